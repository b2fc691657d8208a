"""Division, roots and transcendental functions of f32.

The approximate functions are ``simulator.numerics.approximate``: as accurate as float64 makes them,
where the ISA only bounds their errors. The correctly rounded forms are exact.
"""

from __future__ import annotations

from simulator.isa.table import instruction
from simulator.isa.types import Array
from simulator.numerics import approximate

_FTZ = ("", ".ftz")


@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("rcp",), ftz=_FTZ, section="9.7.3.13 rcp")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("sqrt",), ftz=_FTZ, section="9.7.3.15 sqrt")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("rsqrt",), ftz=_FTZ, section="9.7.3.16 rsqrt")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("sin",), ftz=_FTZ, section="9.7.3.18 sin")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("cos",), ftz=_FTZ, section="9.7.3.19 cos")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("lg2",), ftz=_FTZ, section="9.7.3.20 lg2")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("ex2",), ftz=_FTZ, section="9.7.3.21 ex2")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("tanh",), ftz=("",), section="9.7.3.22 tanh")
def approximation(a: Array, *, f: str, ftz: str) -> Array:
    """The function of ``a``."""
    return approximate.FUNCTIONS[f](a, ftz=ftz != "")
