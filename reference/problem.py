"""The vocabulary of one MLA decode call: frozen, validated, serialisable. Standard library only.

A `Problem` says everything about a call except the numbers in its tensors; a `Recipe` and a seed
say those. Both are refused at construction with the argument, its value and the limit. The limits
here are those of the call itself. That a kernel wants kv_lora_rank = 512 or a certain dtype is the
kernel's own rule, asked with its `supports`; so the oracle can be proved on tiny dimensions.

JSON: `to_json` gives plain dicts, lists, numbers and strings; `from_json` takes exactly those keys
back. Floats are JSON numbers: Python prints the shortest decimal that reads back to the same
double, so they return exactly. NaN and infinity are no JSON and are refused.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar

DTYPES = ("float16", "bfloat16", "float8_e4m3fn")
PAGE_SIZES = (2, 4, 8, 16, 32, 64, 128)
PAGE_ORDERS = ("random", "identity", "reversed")
TABLE_TAILS = ("minimal", "tile", "wild")
LAYOUTS = ("contiguous", "strided", "gapped", "4-D")
MAX_HEADS = 128
INT32_MAX = 2**31 - 1

T = TypeVar("T")


def _check_int(name: str, value: object, low: int, high: int = INT32_MAX) -> None:
    if type(value) is not int:  # isinstance would let a bool pass
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")


def _check_number(name: str, value: object, minimum: float = -math.inf) -> None:
    if type(value) is int and abs(value) <= 2**53:  # exactly a double
        value = float(value)
    if type(value) is not float:
        raise TypeError(f"{name} must be a float, got {value!r}")
    if not (math.isfinite(value) and value >= minimum):
        limit = "finite" if minimum == -math.inf else f"finite and at least {minimum}"
        raise ValueError(f"{name} must be {limit}, got {value}")


def _check_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise TypeError(f"{name} must be a bool, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[int | str, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def _check_lengths(name: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a tuple of int, got {value!r}")
    for index, length in enumerate(value):
        _check_int(f"{name}[{index}]", length, 0)


@dataclass(frozen=True)
class Dims:
    """Sizes of one request's query and of one cached row, in elements."""

    num_heads: int
    seq_len_q: int
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64

    def __post_init__(self) -> None:
        _check_int("num_heads", self.num_heads, 1, MAX_HEADS)
        _check_int("seq_len_q", self.seq_len_q, 1)
        _check_int("kv_lora_rank", self.kv_lora_rank, 1)
        _check_int("qk_rope_head_dim", self.qk_rope_head_dim, 1)

    @property
    def qk_head_dim(self) -> int:
        """Elements of a query head and of a cached row: latent values, then rope values."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class Mask:
    """Which positions a query token may see; window_left = -1 is no window."""

    causal: bool = True
    window_left: int = -1

    def __post_init__(self) -> None:
        _check_bool("causal_mask", self.causal)
        _check_int("window_left", self.window_left, -1)


@dataclass(frozen=True)
class Dcp:
    """This cache's share of a context dealt to `world` ranks, interleave_size keys at a time.

    causal_seqs holds the length of each request's whole context, in keys; None says that the cache
    is the whole context, which needs world = 1.
    """

    world: int = 1
    rank: int = 0
    interleave_size: int = 1
    causal_seqs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_int("cp_world", self.world, 1)
        _check_int("cp_rank", self.rank, 0, self.world - 1)
        _check_int("cp_interleave_size", self.interleave_size, 1)
        if self.causal_seqs is not None:
            _check_lengths("causal_seqs", self.causal_seqs)
        elif self.world > 1:
            raise ValueError(f"cp_world must be 1 without causal_seqs, got {self.world}")


@dataclass(frozen=True)
class Problem:
    """One MLA decode call without its numbers. Lengths count keys, new tokens included; 0 is legal.

    Raises TypeError for a value of the wrong type and ValueError for one outside its limit.
    """

    dims: Dims
    dtype: str
    page_size: int
    seq_lens: tuple[int, ...]
    softmax_scale: float
    output_scale: float = 1.0
    mask: Mask = Mask()
    dcp: Dcp = Dcp()
    lse_base: int | str = 2
    max_seq_len: int | None = None
    is_var_seq: bool = True
    enable_pdl: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("dims", Dims), ("mask", Mask), ("dcp", Dcp)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("page_size", self.page_size, PAGE_SIZES)
        _check_choice("lse_base", self.lse_base, (2, "e"))
        _check_lengths("seq_lens", self.seq_lens)
        _check_number("softmax_scale", self.softmax_scale, minimum=0.0)
        _check_number("output_scale", self.output_scale)
        _check_bool("is_var_seq", self.is_var_seq)
        _check_bool("enable_pdl", self.enable_pdl)
        if self.max_seq_len is not None:
            _check_int("max_seq_len", self.max_seq_len, max((1, *self.seq_lens)))
        causal_seqs = self.dcp.causal_seqs
        if causal_seqs is not None and len(causal_seqs) != self.batch_size:
            raise ValueError(
                f"causal_seqs must have one entry per request, {self.batch_size}, got {causal_seqs}"
            )

    @property
    def batch_size(self) -> int:
        """Number of requests; 0 is legal."""
        return len(self.seq_lens)

    @property
    def output_dtype(self) -> str:
        """The dtype of `out`: bfloat16 for FP8 input, else the input's own."""
        return "bfloat16" if self.dtype == "float8_e4m3fn" else self.dtype

    @property
    def planning_max_seq_len(self) -> int:
        """The max_seq_len to plan with: the one given, else the longest request, at least 1."""
        return max((1, *self.seq_lens)) if self.max_seq_len is None else self.max_seq_len

    def context_len(self, request: int) -> int:
        """Keys in a request's whole context: causal_seqs if given, else its keys in this cache."""
        lengths = self.seq_lens if self.dcp.causal_seqs is None else self.dcp.causal_seqs
        return lengths[request]

    def to_json(self) -> dict[str, Any]:
        """The problem as JSON values; `from_json` gives an equal problem back."""
        return _to_json(self)

    @staticmethod
    def from_json(data: object) -> "Problem":
        """The problem that `to_json` wrote.

        Raises ValueError that names a key which is unknown, missing or malformed.
        """
        values = _keys(Problem, data, "problem")
        dcp = _keys(Dcp, values["dcp"], "problem.dcp")
        if dcp["causal_seqs"] is not None:
            dcp["causal_seqs"] = _tuple(dcp["causal_seqs"], "problem.dcp.causal_seqs")
        values["dcp"] = _build(Dcp, dcp, "problem.dcp")
        for name, kind in (("dims", Dims), ("mask", Mask)):
            where = f"problem.{name}"
            values[name] = _build(kind, _keys(kind, values[name], where), where)
        values["seq_lens"] = _tuple(values["seq_lens"], "problem.seq_lens")
        return _build(Problem, values, "problem")


@dataclass(frozen=True)
class Recipe:
    """How a problem's tensors are filled; with a seed it fixes every bit of them.

    values: name of a value generator of `reference.inputs`.
    magnitude: factor on the generated values.
    page_order: order of the pages in the pool: random, identity or reversed.
    table_tail: width of the block table, and its entries past a request's last page. minimal: as
        wide as the longest request's pages; tile: as wide as its whole 128-key tiles; both fill up
        with valid page ids. wild: as tile, filled up with ids outside the pool.
    spare_pages: pages of the pool that hold no request's keys.
    poison: NaN or infinity in every slot that no query token may see. Without it such slots hold
        large finite random values, so that a missing mask shows.
    layout: strides of query, cache and block table. contiguous: none of them has room between rows.
        strided: all have. gapped: as strided, and the query has room between its tokens too, so
        that no stride leads from one token's heads to the next. 4-D: contiguous, and the cache is
        [num_pages, 1, page_size, qk_head_dim].
    """

    values: str = "normal"
    magnitude: float = 1.0
    page_order: str = "random"
    table_tail: str = "tile"
    spare_pages: int = 3
    poison: bool = False
    layout: str = "contiguous"

    def __post_init__(self) -> None:
        if not isinstance(self.values, str):
            raise TypeError(f"values must be the name of a value generator, got {self.values!r}")
        _check_number("magnitude", self.magnitude, minimum=0.0)
        _check_choice("page_order", self.page_order, PAGE_ORDERS)
        _check_choice("table_tail", self.table_tail, TABLE_TAILS)
        _check_int("spare_pages", self.spare_pages, 0)
        _check_bool("poison", self.poison)
        _check_choice("layout", self.layout, LAYOUTS)

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values; `from_json` gives an equal recipe back."""
        return _to_json(self)

    @staticmethod
    def from_json(data: object) -> "Recipe":
        """The recipe that `to_json` wrote.

        Raises ValueError that names a key which is unknown, missing or malformed.
        """
        return _build(Recipe, _keys(Recipe, data, "recipe"), "recipe")


def _to_json(record: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            value = _to_json(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif field.type is float:
            value = float(value)  # 1 and 1.0 are equal problems and are written alike
        data[field.name] = value
    return data


def _keys(kind: type, data: object, where: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(data, dict):
        raise ValueError(f"{where} must be an object with the keys {names}, got {data!r}")
    for name in data:
        if name not in names:
            raise ValueError(f"{where} has the unknown key {name!r}; its keys are {names}")
    for name in names:
        if name not in data:
            raise ValueError(f"{where} lacks the key {name!r}; its keys are {names}")
    return dict(data)


def _tuple(data: object, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{where} must be a list of int, got {data!r}")
    return tuple(data)


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
