"""How one call is laid on the machine: tiles, splits of the keys, workspace, grids.

A plan is a pure function of what the host knows without reading a tensor's values (`Call`), of the
device (SM count, compute capability) and of the caller's wishes; no GPU is asked. docs/plan.md has
the rules, the figures and where they come from.
"""

import dataclasses
from dataclasses import dataclass

from optimized.errors import INT32_MAX, choice, flag, integer, refusal
from reference.problem import DTYPES, PAGE_SIZES, Dims, Problem

KV_LORA_RANK, QK_ROPE_HEAD_DIM = 512, 64
FP8 = "float8_e4m3fn"
CAPABILITIES = ((10, 0), (10, 3))
NUM_SMS = 148  # of a B200
TILE_N = 128  # keys
VALUE_COLS = 256  # columns of the values that one MMA takes
MAX_SPLITS = 256
ACC_BYTES = 4  # partials and their LSE are float32
SPLIT_RULES = ("seed", "normalised")
SPLIT_POLICIES = ("auto", "fixed")
# Fixed splits. Eight tiles, because a split then reads more of the cache (8 x 128 keys x 576 bytes
# in FP8) than its partials cost, written and read (2 x 128 rows x 513 float32).
FIXED_TILES, FIXED_MAX_SPLITS = 8, 32


@dataclass(frozen=True)
class Support:
    """Whether a call can be served; ``reason`` says why not, with argument, value and limit."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Call:
    """What the host knows of one call without reading a tensor's values.

    ``max_seq_len`` bounds the keys of every request. ``token_major`` says that the query's heads
    continue from token to token at one stride, which packing needs; `out` always does. Raises
    TypeError or ValueError for a value outside its limit.
    """

    dims: Dims
    dtype: str
    page_size: int
    batch_size: int
    max_seq_len: int
    window_left: int = -1
    is_var_seq: bool = True
    token_major: bool = True

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, DTYPES)
        choice("page_size", self.page_size, PAGE_SIZES)
        integer("batch_size", self.batch_size, 0)
        integer("max_seq_len", self.max_seq_len, 1)
        integer("window_left", self.window_left, -1)
        flag("is_var_seq", self.is_var_seq)

    @staticmethod
    def of(problem: "Problem | Call") -> "Call":
        """What the host knows of ``problem``, its query contiguous; a Call is given back as is."""
        if isinstance(problem, Call):
            return problem
        return Call(
            problem.dims,
            problem.dtype,
            problem.page_size,
            problem.batch_size,
            problem.planning_max_seq_len,
            problem.mask.window_left,
            problem.is_var_seq,
        )


@dataclass(frozen=True)
class Tiling:
    """How the rows (token, head) of a request lie on tiles, in token-major order.

    Folded, a tile holds `fold` whole tokens. Packed, it holds ``tile_m`` rows, whatever token they
    belong to, and only the last tile may be partial.
    """

    num_heads: int
    seq_len_q: int
    tile_m: int
    packed: bool = False

    @property
    def fold(self) -> int:
        """Tokens folded into a tile: the most that fit and divide seq_len_q; 1 where none does."""
        if self.packed:
            return 1
        most = min(self.seq_len_q, self.tile_m // self.num_heads)
        return next((f for f in range(most, 1, -1) if self.seq_len_q % f == 0), 1)

    @property
    def heads_eff(self) -> int:
        """Rows of a full tile."""
        return self.tile_m if self.packed else self.num_heads * self.fold

    @property
    def seq_eff(self) -> int:
        """Tiles of a request."""
        return ceil_div(self.num_heads * self.seq_len_q, self.heads_eff)

    @property
    def cluster_shape(self) -> tuple[int, int, int]:
        """CTAs that share a tile: 128 rows are split over two, 64 rows need one."""
        return (self.tile_m // 64, 1, 1)

    @property
    def mma_tiler_qk(self) -> tuple[int, int]:
        """Rows and keys of a tile of scores."""
        return (self.tile_m, TILE_N)

    @property
    def mma_tiler_pv(self) -> tuple[int, int]:
        """Rows and value columns of a tile of outputs."""
        return (self.tile_m, VALUE_COLS)


@dataclass(frozen=True)
class Specialisation:
    """What one compilation fixes. Everything else is an argument at run time (docs/plan.md)."""

    dtype: str
    tile_m: int
    page_size: int


@dataclass(frozen=True)
class Plan:
    """How a call runs. ``chosen_by`` names what decided ``num_splits``: a rule, fixed, or given."""

    call: Call
    tiling: Tiling
    num_sms: int
    num_splits: int
    chosen_by: str

    @property
    def specialisation(self) -> Specialisation:
        """What must be compiled for it."""
        return Specialisation(self.call.dtype, self.tiling.tile_m, self.call.page_size)

    @property
    def partial_rows(self) -> int:
        """Rows of partial results, each with its LSE; 0 with one split, which needs none."""
        rows = self.call.batch_size * self.tiling.heads_eff * self.tiling.seq_eff
        return 0 if self.num_splits == 1 else rows * self.num_splits

    @property
    def partial_out_bytes(self) -> int:
        """Bytes of the partial outputs, which come first in the workspace; their LSE follows."""
        return self.partial_rows * self.call.dims.kv_lora_rank * ACC_BYTES

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that the call uses."""
        return self.partial_out_bytes + self.partial_rows * ACC_BYTES

    @property
    def num_work(self) -> int:
        """Pieces of work: a tile of rows of a request with one split of its keys."""
        return self.call.batch_size * self.tiling.seq_eff * self.num_splits

    @property
    def split_grid(self) -> tuple[int, int, int]:
        """CTAs of the split-KV kernel, all along x: y and z end at 65,535.

        One cluster for each piece of work; with is_var_seq False, persistent, no more than fit at
        once, and each takes every so-manieth piece.
        """
        size = self.tiling.cluster_shape[0]
        resident = max(1, self.num_sms // size)
        clusters = self.num_work if self.call.is_var_seq else min(self.num_work, resident)
        return (size * clusters, 1, 1)

    @property
    def combine_grid(self) -> tuple[int, int, int]:
        """CTAs of the combine kernel, one for each row; 0 where it is not launched."""
        rows = self.call.batch_size * self.call.dims.seq_len_q * self.call.dims.num_heads
        return (0 if self.num_splits == 1 else rows, 1, 1)

    @property
    def reason(self) -> str:
        """What was chosen and why, as one line."""
        tiling, call = self.tiling, self.call
        rows = "packed" if tiling.packed else f"folded by {tiling.fold}"
        return (
            f"tile_m {tiling.tile_m} for {call.dtype}, {tiling.num_heads} heads and "
            f"{tiling.seq_len_q} tokens, {rows}; tiles a request: {tiling.seq_eff}; "
            f"splits: {self.num_splits}, {self.chosen_by}"
        )

    def key_tiles(self, split: int, num_tiles: int) -> range:
        """The key tiles of ``split`` among a request's ``num_tiles``; the last may have none."""
        each = ceil_div(num_tiles, self.num_splits)
        return range(min(split * each, num_tiles), min((split + 1) * each, num_tiles))


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient of two non-negative integers, rounded up."""
    return -(-dividend // divisor)


def supports(problem: Problem | Call, capability: tuple[int, int] = (10, 0)) -> Support:
    """Whether the kernels serve ``problem`` on a device of ``capability``, and why not."""
    dims = Call.of(problem).dims
    asked = (
        ("kv_lora_rank", dims.kv_lora_rank, (KV_LORA_RANK,)),
        ("qk_rope_head_dim", dims.qk_rope_head_dim, (QK_ROPE_HEAD_DIM,)),
        ("compute capability", capability, CAPABILITIES),
    )
    for name, value, known in asked:
        if value not in known:
            limit = " or ".join(str(one) for one in known)
            return Support(False, refusal(name, f"be {limit}", value))
    if isinstance(problem, Problem):
        dcp, most = problem.dcp, largest_interleave(problem.dcp.world)
        if dcp.interleave_size > most:
            limit = f"be in [1, {most}]"
            return Support(False, refusal("cp_interleave_size", limit, dcp.interleave_size))
    return Support(True)


def largest_interleave(world: int) -> int:
    """The most keys that a rank of ``world`` may have in a row: kernels count rounds in int32."""
    return INT32_MAX // world


def tiling(
    problem: Problem | Call, capability: tuple[int, int] = (10, 0), *, packs: bool = True
) -> Tiling:
    """The tiles for ``problem``: packed where ``packs`` allows it and that takes fewer tiles."""
    call = Call.of(problem)
    heads, tokens = call.dims.num_heads, call.dims.seq_len_q
    small = call.dtype == FP8 and heads * tokens <= 64 and capability == (10, 0)
    folded = Tiling(heads, tokens, tile_m=64 if small else 128)
    packed = dataclasses.replace(folded, packed=True)
    fewer = packed.seq_eff < folded.seq_eff
    return packed if packs and not small and call.token_major and fewer else folded


def specialisation_key(
    problem: Problem | Call, capability: tuple[int, int] = (10, 0)
) -> Specialisation:
    """What must be compiled for ``problem``; calls with equal keys share a compilation."""
    call = Call.of(problem)
    return Specialisation(call.dtype, tiling(call, capability).tile_m, call.page_size)


def plan(
    problem: Problem | Call,
    num_sms: int = NUM_SMS,
    *,
    capability: tuple[int, int] = (10, 0),
    rule: str = "normalised",
    num_splits: int | None = None,
    split_policy: str = "auto",
) -> Plan:
    """How ``problem`` runs on ``num_sms`` SMs; with a batch of 0, which needs nothing, one split.

    ``num_splits`` overrides what decides it otherwise: with ``split_policy`` "auto" the ``rule``,
    "seed" (that of tokenspeed-mla 0.2.5, which never packs) or "normalised" (2.0.4); with "fixed"
    max_seq_len, num_heads and seq_len_q alone. Raises ValueError for what `supports` denies, and
    ValueError or TypeError for a setting outside its limit.
    """
    call = Call.of(problem)
    integer("num_sms", num_sms, 1)
    choice("rule", rule, SPLIT_RULES)
    choice("split_policy", split_policy, SPLIT_POLICIES)
    support = supports(call, capability)
    if not support.ok:
        raise ValueError(support.reason)
    tiles = tiling(call, capability, packs=rule != "seed")
    if num_splits is not None:
        splits, chosen_by = integer("num_splits", num_splits, 1, MAX_SPLITS), "given"
    elif call.batch_size == 0:
        splits, chosen_by = 1, "an empty batch"
    elif split_policy == "fixed":
        splits, chosen_by = _fixed_splits(call), "fixed"
    elif rule == "seed":
        splits, chosen_by = _seed_splits(call, tiles, num_sms), "by rule seed"
    else:
        splits, chosen_by = _normalised_splits(call, tiles, num_sms), "by rule normalised"
    return Plan(call, tiles, num_sms, splits, chosen_by)


def workspace_size(
    problem: Problem | Call,
    num_sms: int = NUM_SMS,
    num_splits: int | None = None,
    *,
    capability: tuple[int, int] = (10, 0),
    split_policy: str = "auto",
) -> int:
    """Bytes of workspace that ``problem`` may need, whatever the strides of its query. See `plan`.

    They decide whether rows are packed, and so how many tiles and splits there are.
    """
    call = Call.of(problem)
    return max(
        plan(
            dataclasses.replace(call, token_major=token_major),
            num_sms,
            capability=capability,
            num_splits=num_splits,
            split_policy=split_policy,
        ).workspace_bytes
        for token_major in (True, False)
    )


def without_empty_splits(num_splits: int, num_tiles: int) -> int:
    """The splits of ``num_splits`` that have a key tile, where a request has ``num_tiles``."""
    return ceil_div(num_tiles, ceil_div(num_tiles, num_splits))


def _seed_splits(call: Call, tiles: Tiling, num_sms: int) -> int:
    """As many splits as SMs are free for a request's tile; M = 64: in whole waves of key tiles."""
    free = max(1, num_sms // call.batch_size // (tiles.cluster_shape[0] * tiles.seq_eff))
    if tiles.tile_m == 128:
        return min(free, 32)
    key_tiles = ceil_div(call.max_seq_len, TILE_N)
    return min(without_empty_splits(min(free, key_tiles), key_tiles), 64)


def _normalised_splits(call: Call, tiles: Tiling, num_sms: int) -> int:
    """The rule of tokenspeed-mla 2.0.4: that of 0.2.5, but no split in FP8 would be empty."""
    if call.dtype != FP8:
        return _seed_splits(call, tiles, num_sms)
    if call.window_left >= 0:
        reach = call.window_left + call.dims.seq_len_q
        call = dataclasses.replace(call, max_seq_len=min(call.max_seq_len, reach))
    splits = _seed_splits(call, tiles, num_sms)
    return without_empty_splits(splits, ceil_div(call.max_seq_len, TILE_N))


def _fixed_splits(call: Call) -> int:
    """Splits of at least `FIXED_TILES` key tiles, and fewer the more tiles of rows there are."""
    key_tiles = ceil_div(call.max_seq_len, TILE_N)
    row_tiles = ceil_div(call.dims.num_heads * call.dims.seq_len_q, 128)
    most = max(1, FIXED_MAX_SPLITS // row_tiles)
    return without_empty_splits(min(ceil_div(key_tiles, FIXED_TILES), most), key_tiles)
