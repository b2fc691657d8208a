"""What one compilation of the decode kernel fixes, and all that follows from it."""

from dataclasses import dataclass

from optimized.plan import KV_LORA_RANK, QK_ROPE_HEAD_DIM, TILE_N

GROUP = 64  # elements of a row that one swizzle span holds
QK_GROUPS = (KV_LORA_RANK + QK_ROPE_HEAD_DIM) // GROUP
VALUE_GROUPS = KV_LORA_RANK // GROUP
ROWS = 64  # rows of queries in a CTA, whatever the tile
MMA_K_BYTES = 32  # of either operand that one tcgen05.mma takes
VALUE_BLOCK = 256  # columns of the output that one MMA makes
VALUE_BLOCKS = KV_LORA_RANK // VALUE_BLOCK

# P is multiplied by 2 to this before its cast, and the row sum with it; a row's output is rescaled
# when its maximum has grown by more than the threshold, in powers of two. So P stays below 256 and
# e4m3 holds up to 448. The choice is measured in docs/notes/sm100-kernel-design.md.
LOG2_P_SCALE = 2
RESCALE_THRESHOLD = 6.0

FP8 = "float8_e4m3fn"
_ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, FP8: 1}


@dataclass(frozen=True)
class Config:
    """One specialisation: the dtype of the input, rows of a tile, tokens of a page.

    128 rows are shared by a cluster of two CTAs, 64 rows (FP8) are one CTA's.
    """

    dtype: str
    tile_m: int
    page_size: int

    @property
    def num_ctas(self) -> int:
        """CTAs of a cluster."""
        return self.tile_m // ROWS

    @property
    def element_bytes(self) -> int:
        """Bytes of an input element."""
        return _ELEMENT_BYTES[self.dtype]

    @property
    def is_fp8(self) -> bool:
        """Whether inputs, and P, are e4m3."""
        return self.dtype == FP8

    @property
    def output_dtype(self) -> str:
        """The dtype of `out`."""
        return "bfloat16" if self.is_fp8 else self.dtype

    @property
    def span_bytes(self) -> int:
        """Bytes of a group, which is one swizzle span: 64 in FP8, else 128."""
        return GROUP * self.element_bytes

    @property
    def mma_k(self) -> int:
        """Elements along K that one MMA takes."""
        return MMA_K_BYTES // self.element_bytes

    # Loads. A chunk is what one stage of a pipeline holds.

    @property
    def shares_values(self) -> bool:
        """Whether the keys in shared memory serve as values too.

        Stored key by key in swizzle spans, they are either operand. Two CTAs cannot: one product
        wants half of the keys in each CTA, the other half of the columns.
        """
        return self.num_ctas == 1

    @property
    def key_rows(self) -> int:
        """Keys of a tile whose scores this CTA's operand makes."""
        return TILE_N // self.num_ctas

    @property
    def key_chunk_groups(self) -> int:
        """Groups of a key that one stage holds."""
        return QK_GROUPS if self.is_fp8 else QK_GROUPS // 3

    @property
    def key_chunks(self) -> int:
        """Stages that the keys of a tile fill."""
        return QK_GROUPS // self.key_chunk_groups

    @property
    def key_chunk_bytes(self) -> int:
        """Bytes of a stage of keys."""
        return self.key_chunk_groups * self.key_rows * self.span_bytes

    @property
    def key_stages(self) -> int:
        """Stages of keys: as many as fit."""
        return 2 if self.shares_values else 3

    @property
    def value_groups(self) -> int:
        """Groups of columns of the values that this CTA's operand holds."""
        return VALUE_GROUPS // self.num_ctas

    @property
    def value_chunk_rows(self) -> int:
        """Keys whose values one stage holds."""
        return TILE_N if self.is_fp8 else 32

    @property
    def value_chunks(self) -> int:
        """Stages that the values of a tile fill."""
        return TILE_N // self.value_chunk_rows

    @property
    def value_chunk_bytes(self) -> int:
        """Bytes of a stage of values."""
        return self.value_groups * self.value_chunk_rows * self.span_bytes

    @property
    def value_stages(self) -> int:
        """Stages of values: none where the keys serve."""
        if self.shares_values:
            return 0
        return 2 if self.is_fp8 else 4

    @property
    def box_rows(self) -> int:
        """Tokens of a page that one TMA box holds; both kinds of chunk are whole boxes."""
        return min(self.page_size, self.value_chunk_rows, self.key_rows)
