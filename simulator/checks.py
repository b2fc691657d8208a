"""Which checks a simulation makes beside computing the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

CHECKS: Final = {
    "bounds": "every access lies in an allocation, and bulk copies start inside strict tensors",
    "initialisation": "nothing unwritten is read from shared memory, TMEM or output buffers",
    "races": "accesses to shared memory and TMEM are ordered (several times slower)",
    "global_races": "accesses to global memory are ordered, in a cluster and between "
    "clusters; public kernels often write the same value twice",
    "proxy": "MMAs and bulk stores read no shared memory that was stored to without "
    "fence.proxy.async",
    "mbarriers": "a live mbarrier is touched by mbarrier operations alone, and each of its phases "
    "is seen to end, by nobody too late",
    "publication": "the initialisation of an mbarrier is visible to whoever uses it",
    "named_barriers": "no warp arrives twice at a barrier that has not opened",
    "registers": "setmaxnreg is executed by whole warpgroups, within the CTA's pool",
    "tensor_memory": "TMEM is allocated and freed as PTX demands",
    "tensor_order": "tcgen05.wait and tcgen05.fence order accesses to TMEM by the letter of PTX, "
    "which public kernels often do not keep",
    "grid_order": "a grid that may start early touches global memory after griddepcontrol.wait "
    "only",
    "deadlock": "a launch that can make no progress is stopped and its warps are listed",
}
"""The checks by name. ``bounds`` and ``deadlock`` cost nothing and are always on."""

_ALWAYS: Final = ("bounds", "deadlock")
_WATCHING: Final = tuple(name for name in CHECKS if name not in (*_ALWAYS, "initialisation"))

PRESETS: Final = {
    "memcheck": ("bounds", "tensor_memory"),
    "initcheck": ("initialisation",),
    "racecheck": ("races", "proxy", "grid_order"),
    "synccheck": ("deadlock", "mbarriers", "publication", "named_barriers", "registers"),
    "all": tuple(CHECKS),
}
"""Groups of checks, called as compute-sanitizer calls its tools."""

OnFinding = Literal["finish", "raise", "collect"]
"""What a finding of a check that watches the execution does.

``finish`` lets the launch end and then raises all findings, ``raise`` stops it at the first,
``collect`` only puts them into the result.
"""


@dataclass(frozen=True)
class Checks:
    """The switchable checks of a simulation. Raises ``ValueError`` for an unknown ``on_finding``.

    All but ``initialisation`` watch the execution, which then takes several times as long.
    """

    initialisation: bool = True
    races: bool = False
    global_races: bool = False
    proxy: bool = False
    mbarriers: bool = False
    publication: bool = False
    named_barriers: bool = False
    registers: bool = False
    tensor_memory: bool = False
    tensor_order: bool = False
    grid_order: bool = False
    on_finding: OnFinding = "finish"

    def __post_init__(self) -> None:
        if self.on_finding not in get_args(OnFinding):
            known = ", ".join(get_args(OnFinding))
            raise ValueError(f"on_finding {self.on_finding!r} is none of {known}")

    @property
    def watching(self) -> tuple[str, ...]:
        """The chosen checks that watch the execution."""
        return tuple(name for name in _WATCHING if getattr(self, name))

    @classmethod
    def of(cls, *names: str, on_finding: OnFinding = "finish") -> Checks:
        """The checks with these names, or in the presets of these names.

        Raises ``ValueError`` for an unknown one.
        """
        for name in names:
            if name not in CHECKS and name not in PRESETS:
                known = f"checks {', '.join(CHECKS)} and presets {', '.join(PRESETS)}"
                raise ValueError(f"check {name!r} is none of the {known}")
        chosen = {check for name in names for check in PRESETS.get(name, (name,))}
        switched = {name: name in chosen for name in ("initialisation", *_WATCHING)}
        return cls(**switched, on_finding=on_finding)


USUAL: Final = Checks()
"""The checks of a launch that names none."""
