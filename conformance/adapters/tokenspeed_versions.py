"""What tells the published versions of tokenspeed-mla apart, and which problems each takes.

Read from each version's wrapper, ``tokenspeed_mla/mla_decode.py``, and its kernels'
``can_implement``. A problem that a wrapper takes and then gets wrong counts as supported: such
limits are recorded in ``conformance/expectations``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.kernel import Limits, Support
from reference.problem import Problem

FP8 = "float8_e4m3fn"


@dataclass(frozen=True)
class Version:
    """One published version.

    ``is_2`` stands for what came with 2.0: windows, interleaved DCP, a lower bound on the splits,
    packed rows, rescaling only past a threshold (FP8), and splits without empty ones (FP8).
    """

    number: str
    is_2: bool

    def rescale_threshold(self, dtype: str) -> float:
        """Growth of the row maximum, in powers of two, that leaves the accumulator as it is."""
        return 8.0 if self.is_2 and dtype == FP8 else 0.0

    def split_rule(self, dtype: str) -> str:
        """Name of the rule for the number of splits: by occupancy, or without empty ones too."""
        return "normalised" if self.is_2 and dtype == FP8 else "occupancy"

    def limits(self, dtype: str) -> Limits:
        """What its kernels need of their inputs: shown by running them outside on the simulator.

        Table entries of a request's last 128-key tile are read, past its last page too. The FP8
        kernels read them past the width of the table; the 16-bit kernels take 0 there. Their
        reduction kernels read the lengths before they wait for the grid before them. What the race
        check reports of them is in docs/peers.md.
        """
        tails = ("tile",) if dtype == FP8 else ("minimal", "tile")
        layouts = ("contiguous", "strided", "4-D")
        return Limits(
            table_tails=tails,
            layouts=layouts,
            poison=False,
            empty_rows=False,
            inputs_ready=True,
            orders_accesses=False,
        )

    def support(self, dtype: str, problem: Problem, *, can_be_asked: bool = False) -> Support:
        """Whether its wrapper takes ``problem`` in its kernels for ``dtype``, and why not.

        With ``can_be_asked``, whether its wrapper has the arguments to ask for ``problem`` at all.
        """
        objections = self._inexpressible(problem)
        if not can_be_asked:
            objections = itertools.chain(objections, self._refused(dtype, problem))
        reason = next(objections, None)
        return Support(True) if reason is None else Support(False, reason)

    def _inexpressible(self, problem: Problem) -> Iterator[str]:
        window_left, dcp = problem.mask.window_left, problem.dcp
        if problem.lse_base != 2:
            yield f"lse_base {problem.lse_base}: this kernel's is 2"
        if not self.is_2 and dcp.interleave_size != 1:
            yield f"cp_interleave_size {dcp.interleave_size}: version {self.number} has 1 only"
        if not self.is_2 and window_left != -1:
            yield f"window_left {window_left}: version {self.number} has no window"

    def _refused(self, dtype: str, problem: Problem) -> Iterator[str]:
        dims, window_left, dcp = problem.dims, problem.mask.window_left, problem.dcp
        if problem.dtype != dtype:
            yield f"dtype {problem.dtype}: this kernel takes {dtype}"
        if (dims.kv_lora_rank, dims.qk_rope_head_dim) != (512, 64):
            yield (
                f"kv_lora_rank {dims.kv_lora_rank} and qk_rope_head_dim {dims.qk_rope_head_dim}: "
                "this kernel takes 512 and 64"
            )
        if problem.batch_size == 0:
            yield "batch_size 0: the wrapper divides by it"
        if dtype != FP8 and (dcp.world > 1 or dcp.causal_seqs is not None):
            yield f"cp_world {dcp.world} or causal_seqs: only its FP8 kernels take them"
        if 0 <= window_left < dims.seq_len_q - 1:
            yield f"window_left {window_left}: the limit is seq_len_q - 1 = {dims.seq_len_q - 1}"


V2_0_4 = Version("2.0.4", is_2=True)
V0_2_5 = Version("0.2.5", is_2=False)
