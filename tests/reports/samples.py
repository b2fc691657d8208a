"""Records to report on, made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.records import Case, CaseResult, Measurement, RecordWriter

PROBLEM: dict[str, Any] = {
    "dims": {"num_heads": 16, "seq_len_q": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "dtype": "float8_e4m3fn",
    "page_size": 64,
    "seq_lens": [129, 7],
    "softmax_scale": 0.1,
    "mask": {"causal": True, "window_left": -1},
    "dcp": {"world": 1, "rank": 0, "interleave_size": 1, "causal_seqs": None},
    "lse_base": 2,
    "is_var_seq": True,
    "enable_pdl": False,
}
RECIPE = {"values": "normal", "poison": False, "layout": "contiguous", "table_tail": "tile"}
CASE = Case(
    kernel="ours",
    engine="simulator",
    arch="sm_100a",
    property="matches_float64",
    problem=PROBLEM,
    recipe=RECIPE,
    seed=0,
    policy="fair",
    policy_seed=0,
    checks=("bounds",),
    num_sms=148,
    num_splits=None,
)


def case(**changes: Any) -> Case:
    """A case with some of its problem, or of itself, changed."""
    own = {name: changes.pop(name) for name in list(changes) if name in Case.__dataclass_fields__}
    return replace(CASE, **{"problem": PROBLEM | changes, **own})


def write(
    folder: Path, *lines: CaseResult | Measurement, ended: bool = True, tool: str = "conformance"
) -> Path:
    """A records file that holds ``lines``; without a summary if it has not ``ended``."""
    writer = RecordWriter(tool, folder, device="a laptop")
    for line in lines:
        if isinstance(line, Measurement):
            writer.measure(line)
        else:
            writer.write(line)
    if ended:
        writer.close()
    else:
        writer._file.close()
    return writer.path
