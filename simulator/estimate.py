"""What a launch would take of each pipe of a B200: an estimate from published throughputs.

No clock is simulated. Each pipe's work, spread evenly over the SMs that the grid can fill, is
divided by the pipe's published throughput. So each figure says how long the launch would take if
nothing but that pipe were in its way, as in a roofline; latencies, dependences, occupancy, caches
and imbalance are left out, and nothing was compared with a device. The PTX is counted, not the
machine code that ptxas makes of it, which may be shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simulator.profile import Profile

SMS: Final = 148
"""Streaming multiprocessors of a B200."""

GUIDE: Final = (
    'CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", compute '
    "capability 9.0; B200 keeps these units (Zadouri et al. 2026)"
)
FA4: Final = (
    "Zadouri et al., FlashAttention-4: Algorithm and Kernel Pipelining Co-Design for Asymmetric "
    "Hardware Scaling, 2026: figures for B200"
)
DATASHEET: Final = (
    "NVIDIA Blackwell datasheet: dense FP8 is twice, TF32 half of dense FP16 (4.5, 1.1 and 2.25 "
    "PFLOPS); times the FP16 figure of Zadouri et al. 2026"
)


@dataclass(frozen=True)
class Pipe:
    """A pipe of one SM: ``per_cycle`` of ``unit`` a cycle, and where the figure is published."""

    name: str
    unit: str
    per_cycle: float
    source: str


PIPES: Final = {
    "issue": Pipe("issue slots", "warp-instructions", 4, 'CUDA C++ Programming Guide, '
                  '"Compute Capability 9.0": four warp schedulers, one instruction a cycle each'),
    "fp32": Pipe("32-bit floating point", "results", 128, GUIDE),
    "half": Pipe("16-bit floating point", "results", 256, GUIDE),
    "fp64": Pipe("64-bit floating point", "results", 64, GUIDE),
    "integer": Pipe("32-bit integer and logic", "results", 64, GUIDE),
    "conversion": Pipe("conversions", "results", 64, GUIDE),
    "special": Pipe("special functions", "results", 16, FA4),
    "shared": Pipe("shared memory", "bytes", 128, FA4),
    "tensor_f16": Pipe("tensor core, kind::f16", "FLOP", 8192, FA4),
    "tensor_f8f6f4": Pipe("tensor core, kind::f8f6f4", "FLOP", 16384, DATASHEET),
    "tensor_tf32": Pipe("tensor core, kind::tf32", "FLOP", 4096, DATASHEET),
    "tensor_i8": Pipe("tensor core, kind::i8", "FLOP", 16384, DATASHEET),
}  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A pipe's ``work`` in a launch, and the ``cycles`` that it alone would take."""

    pipe: Pipe
    work: float
    cycles: float


def estimate(profile: Profile, ctas: int) -> tuple[Estimate, ...]:
    """The cycles of each pipe that a launch of ``ctas`` CTAs uses, the longest first."""
    sms = min(ctas, SMS)
    found = [
        Estimate(PIPES[name], work, work / PIPES[name].per_cycle / sms)
        for name, work in _work(profile).items()
        if work
    ]
    return tuple(sorted(found, key=lambda entry: -entry.cycles))


def _work(profile: Profile) -> Mapping[str, float]:
    """The work of each pipe, in its unit. A wavefront of shared memory takes a cycle's bytes."""
    work = dict.fromkeys(PIPES, 0.0)
    work["issue"] = profile.warp_instructions
    for line in profile.lines:
        pipe = _PIPE_OF_CLASS.get(line.kind)
        if pipe is not None:
            work[pipe] += line.results
    work["special"] = profile.special_functions
    by_units = sum(
        size
        for name, size in profile.bytes.items()
        if name.startswith("shared_") and "_by_" in name
    )
    passes = sum(access.wavefronts for access in profile.shared.values())
    work["shared"] = by_units + PIPES["shared"].per_cycle * passes
    for kind, flop in profile.flop.items():
        work[f"tensor_{kind}"] = flop
    return work


_PIPE_OF_CLASS: Final = {
    "fp32": "fp32",
    "half": "half",
    "fp64": "fp64",
    "integer": "integer",
    "conversion": "conversion",
}
"""Which pipe executes a class of ``simulator.profile``; the others have figures of their own."""
