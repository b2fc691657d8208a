"""What a decode call may be given: one function that refuses, naming argument, limit and value.

It is pure and comes before any launch: nothing is allocated, and no element of a tensor is read.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from optimized.errors import choice, flag, integer, number, refusal
from optimized.plan import (
    NUM_SMS,
    Call,
    Plan,
    largest_interleave,
    plan,
    supports,
    workspace_size,
)
from optimized.tensors import TMA_BYTES, Described, Tensor
from reference.problem import DTYPES, Dims

OUT_DTYPES = {dtype: dtype for dtype in DTYPES} | {"float8_e4m3fn": "bfloat16"}
LENGTH_DTYPES = ("int32", "int64", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
WORKSPACE_ALIGNMENT = 32  # bytes


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of one `mla_decode` call: its parameters in their order, with their defaults.

    All up to cp_rank are those of tokenspeed-mla 0.2.5; the others are given by keyword.
    """

    query: Tensor  # [batch, seq_len_q, num_heads, qk_head_dim]
    kv_cache: Tensor  # [num_pages, (1,) page_size, qk_head_dim]
    workspace_buffer: Tensor  # [bytes]
    kv_lora_rank: int
    qk_rope_head_dim: int
    block_tables: Tensor  # [batch, max_pages] int32
    seq_lens: Tensor  # [batch] of any integer dtype
    max_seq_len: int
    softmax_scale: float
    output_scale: float = 1.0
    out: Tensor | None = None  # [batch, seq_len_q, num_heads, kv_lora_rank]
    is_var_seq: bool = True
    causal_mask: bool = True
    enable_pdl: bool = False
    return_lse: bool = False
    causal_seqs: Tensor | None = None  # [batch] of any integer dtype
    cp_world: int = 1
    cp_rank: int = 0
    _: KW_ONLY
    cp_interleave_size: int = 1
    window_left: int = -1
    lse_base: int | str = 2
    num_splits: int | None = None
    split_policy: str = "auto"


def validate(
    arguments: Arguments, num_sms: int = NUM_SMS, capability: tuple[int, int] = (10, 0)
) -> Plan:
    """The plan of a call that can be served on a device with these SMs and this capability.

    Raises TypeError for an argument of the wrong kind, ValueError for one outside its limit. The
    stride of a dimension with fewer than two entries leads nowhere and may be anything.
    """
    _check_options(arguments)
    query = Described.of("query", arguments.query, "batch seq_len_q num_heads qk_head_dim")
    call = _call(arguments, query)
    support = supports(call, capability)
    if not support.ok:
        raise ValueError(support.reason)
    _check_tables(arguments, query)
    _check_out(arguments, query, call)
    splits, policy = arguments.num_splits, arguments.split_policy
    needed = workspace_size(call, num_sms, splits, capability=capability, split_policy=policy)
    _check_workspace(arguments, query, needed)
    return plan(call, num_sms, capability=capability, num_splits=splits, split_policy=policy)


def _check_options(arguments: Arguments) -> None:
    """Refuse what is no tensor, asks no tensor for its limit, and is not the plan's to refuse."""
    for name in ("is_var_seq", "causal_mask", "enable_pdl", "return_lse"):
        flag(name, getattr(arguments, name))
    number("softmax_scale", arguments.softmax_scale, low=0.0)
    number("output_scale", arguments.output_scale)
    choice("lse_base", arguments.lse_base, (2, "e"))
    world = integer("cp_world", arguments.cp_world, 1)
    integer("cp_rank", arguments.cp_rank, 0, world - 1)
    integer("cp_interleave_size", arguments.cp_interleave_size, 1, largest_interleave(world))
    if world > 1 and arguments.causal_seqs is None:
        raise ValueError(refusal("cp_world", "be 1 without causal_seqs", world))


def _call(arguments: Arguments, query: Described) -> Call:
    """What query and cache say of the call, once they are found to agree."""
    query.require_dtype(*DTYPES)
    batch, tokens, heads, _ = query.shape
    rank = integer("kv_lora_rank", arguments.kv_lora_rank, 1)
    dims = Dims(heads, tokens, rank, integer("qk_rope_head_dim", arguments.qk_rope_head_dim, 1))
    layouts = ("num_pages page_size qk_head_dim", "num_pages num_kv_heads page_size qk_head_dim")
    cache = Described.of("kv_cache", arguments.kv_cache, *layouts)
    cache.require_dtype(query.dtype)
    cache.require_device_of(query)
    cache.require_extents(num_kv_heads=1)
    for tensor in (query, cache):
        tensor.require_extents(qk_head_dim=dims.qk_head_dim)
        tensor.require_tensor_map()
    return Call(
        dims,
        query.dtype,
        page_size=cache.shape[-2],
        batch_size=batch,
        max_seq_len=integer("max_seq_len", arguments.max_seq_len, 1),
        window_left=integer("window_left", arguments.window_left, -1),
        is_var_seq=arguments.is_var_seq,
        token_major=query.strides[1] == heads * query.strides[2],
    )


def _check_tables(arguments: Arguments, query: Described) -> None:
    """Refuse a block table or lengths that the query's batch and device do not go with."""
    tables = Described.of("block_tables", arguments.block_tables, "batch max_pages")
    tables.require_dtype("int32")
    lengths = [Described.of("seq_lens", arguments.seq_lens, "batch")]
    if arguments.causal_seqs is not None:
        lengths.append(Described.of("causal_seqs", arguments.causal_seqs, "batch"))
    for tensor in lengths:
        tensor.require_dtype(*LENGTH_DTYPES)
    for tensor in (tables, *lengths):
        tensor.require_device_of(query)
        tensor.require_extents(batch=query.shape[0])
        tensor.require_unit_stride()


def _check_out(arguments: Arguments, query: Described, call: Call) -> None:
    if arguments.out is None:
        return
    out = Described.of("out", arguments.out, "batch seq_len_q num_heads kv_lora_rank")
    out.require_dtype(OUT_DTYPES[query.dtype])
    out.require_device_of(query)
    rows = dict(zip(query.dims[:3], query.shape[:3], strict=True))
    out.require_extents(**rows, kv_lora_rank=call.dims.kv_lora_rank)
    out.require_contiguous()
    out.require_alignment(TMA_BYTES)


def _check_workspace(arguments: Arguments, query: Described, needed_bytes: int) -> None:
    workspace = Described.of("workspace_buffer", arguments.workspace_buffer, "bytes")
    workspace.require_dtype("int8", "uint8")
    workspace.require_device_of(query)
    workspace.require_unit_stride()
    workspace.require_alignment(WORKSPACE_ALIGNMENT)
    if workspace.shape[0] < needed_bytes:
        limit = f"have at least {needed_bytes} bytes"
        raise ValueError(refusal("workspace_buffer", limit, workspace.shape[0]))
