"""The columns of tensor memory, and the instructions of the tensor core.

    0     64    128        256        384       512
    | S 0 | S 1 | O 0..255 | O 256..511 |  unused |

Scores of a tile, S, are [64 rows, 128 keys] in a CTA, and a block of the output, O, is [64 rows,
256 columns]. Both lie two by two: row r of the left half in lane r, of the right half in lane
64 + r. So a thread of a softmax or correction warp owns a row, and of each block one half.

Sources: PTX ISA, "Data Path Layout Organization" (layout B and E), "Shared memory descriptor",
"Instruction descriptor".
"""

from dataclasses import dataclass

from cutlass import Float32, Int32, Int64

from optimized.common.ptx import Place, asm
from optimized.plan import TILE_N
from optimized.sm100.config import MMA_K_BYTES, VALUE_BLOCK, VALUE_BLOCKS, Config

COLUMNS = 512  # allocated: there is one CTA on an SM
SCORES, SCORES_COLS = 0, TILE_N // 2
OUTPUT, OUTPUT_COLS = 2 * SCORES_COLS, VALUE_BLOCK // 2
USED_COLUMNS = OUTPUT + VALUE_BLOCKS * OUTPUT_COLS
assert USED_COLUMNS <= COLUMNS

WARP_LANES = 32
LANE_SHIFT = 16  # of the lane in an address


# 1. Between tensor memory and registers. A warp reaches its own 32 lanes.


def load_columns(address: Int32, count: int, transfer: int = 32) -> list[Float32]:
    """``count`` columns of the warp's lanes, as float32; they have arrived.

    The wait is part of the text, so that nothing can use a register before it.
    """
    moves = [
        f"tcgen05.ld.sync.aligned.32x32b.x{transfer}.b32 "
        f"{{{', '.join(f'${i}' for i in range(at, at + transfer))}}}, [${count} + {at}];"
        for at in range(0, count, transfer)
    ]
    text = "\n".join([*moves, "tcgen05.wait::ld.sync.aligned;"])
    return list(asm(text, [address], [Float32] * count))


def store_columns(address: Int32, values: list[Float32]) -> None:
    """Write columns of the warp's lanes; they have arrived."""
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    asm(
        f"tcgen05.st.sync.aligned.32x32b.x{len(values)}.b32 [$0], {{{names}}};\n"
        "tcgen05.wait::st.sync.aligned;",
        [address, *values],
    )


def fence_before() -> None:
    """Order this thread's accesses to tensor memory before what it signals next."""
    asm("tcgen05.fence::before_thread_sync;")


def fence_after() -> None:
    """Order this thread's accesses to tensor memory after what it waited for."""
    asm("tcgen05.fence::after_thread_sync;")


def allocate(word: Int32, config: Config) -> None:
    """Allocate the columns; their address is left in shared memory. By a whole warp of each CTA."""
    group = f"tcgen05.alloc.cta_group::{config.num_ctas}.sync.aligned.shared::cta.b32"
    permit = f"tcgen05.relinquish_alloc_permit.cta_group::{config.num_ctas}.sync.aligned;"
    asm(f"{group} [$0], {COLUMNS};\n{permit}", [word])


def deallocate(address: Int32, config: Config) -> None:
    """Free the columns. By the warp that allocated them."""
    asm(f"tcgen05.dealloc.cta_group::{config.num_ctas}.sync.aligned.b32 $0, {COLUMNS};", [address])


# 2. The tensor core. One thread issues.


@dataclass(frozen=True)
class Operand:
    """How an operand lies in shared memory: the constant part of its descriptor.

    ``leading_bytes`` separates swizzle spans along M or N of an operand whose M or N is contiguous;
    an operand whose K is contiguous has none. ``stride_bytes`` separates its groups of eight rows.
    """

    span_bytes: int
    leading_bytes: int
    stride_bytes: int

    @property
    def bits(self) -> int:
        """The descriptor of an operand at address 0."""
        swizzle = {128: 2, 64: 4}[self.span_bytes]
        return (
            self.leading_bytes >> 4 << 16 | self.stride_bytes >> 4 << 32 | 1 << 46 | swizzle << 61
        )

    def at(self, address: Int32) -> Int64:
        """The descriptor of an operand at a shared memory address."""
        bits = self.bits - (1 << 64) if self.bits >> 63 else self.bits
        return Int64(address >> 4) | Int64(bits)


def offset(descriptor: Int64, num_bytes: int) -> Int64:
    """The descriptor of what lies ``num_bytes`` further."""
    return descriptor + Int64(num_bytes >> 4)


def instruction_descriptor(config: Config, columns: int, *, rows_contiguous_b: bool) -> int:
    """The shape and formats of an MMA [tile_m, columns] that adds in float32."""
    kind = {"float16": 0, "bfloat16": 1, "float8_e4m3fn": 0}[config.dtype]
    major = int(rows_contiguous_b)
    return (
        1 << 4
        | kind << 7
        | kind << 10
        | major << 16
        | columns >> 3 << 17
        | config.tile_m >> 4 << 24
    )


def multiply(
    config: Config, d: Int32, a: Int64, b: Int64, shape: int, accumulate: Int32 | bool
) -> None:
    """D = A B, plus D where ``accumulate`` is not 0: one step of `MMA_K_BYTES` along K.

    With one CTA the weight-stationary form is used, whose D lies two by two as that of two CTAs.
    """
    weights = ".ws" if config.num_ctas == 1 else ""
    kind = "f8f6f4" if config.is_fp8 else "f16"
    name = f"tcgen05.mma{weights}.cta_group::{config.num_ctas}.kind::{kind}"
    added = Int32(int(accumulate)) if isinstance(accumulate, bool) else accumulate
    asm(
        f"{{\n.reg .pred add;\nsetp.ne.b32 add, $4, 0;\n{name} [$0], $1, $2, $3, add;\n}}",
        [d, a, b, Int32(shape), added],
    )


def commit(config: Config, barrier: Place) -> None:
    """Arrive at a barrier, in every CTA of the cluster, when all MMAs issued so far are done."""
    name = f"tcgen05.commit.cta_group::{config.num_ctas}.mbarrier::arrive::one.shared::cluster"
    if config.num_ctas == 1:
        asm(f"{name}.b64 [$0+{barrier.offset}];", [barrier.base])
    else:
        name = f"{name}.multicast::cluster.b64 [$0+{barrier.offset}], both;"
        asm(f"{{\n.reg .b16 both;\nmov.b16 both, 3;\n{name}\n}}", [barrier.base])


assert MMA_K_BYTES == 32  # what the kinds f16 and f8f6f4 take
