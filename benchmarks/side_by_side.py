"""What our kernels execute beside tokenspeed-mla 2.0.4's, on the same problems: a table, counted.

    python benchmarks/side_by_side.py --write docs/side_by_side.md

Everything is counted by the simulator under the fair schedule; no figure is a time. A request of
4096 keys and one of 8192 differ by 32 key tiles and by nothing else, so their difference over 32 is
what a tile costs; what is left of the shorter one is its beginning and end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.adapters import optimized, tokenspeed
from conformance.adapters.tokenspeed_wrapper import PEERS
from conformance.kernel import Kernel, RunOptions
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from simulator.launch import KernelRun
from simulator.profile import Profile

SHAPES = ((128, 1), (64, 2), (16, 4), (96, 4), (32, 1))  # heads, query tokens
KEYS, MORE_KEYS, TILE_KEYS = 4096, 8192, 128
SPLITS = 4  # where the combine kernel is counted
FACTORIES: dict[str, Callable[[], Kernel]] = {
    "float8_e4m3fn": tokenspeed.fp8_2_0_4,
    "bfloat16": tokenspeed.bf16_2_0_4,
}


def profile_of(run: KernelRun) -> Profile:
    """Return the counts of a launch that was profiled."""
    assert run.profile is not None
    return run.profile


QUANTITIES: dict[str, Callable[[KernelRun], float]] = {
    "warp-instructions": lambda run: profile_of(run).warp_instructions,
    "special functions": lambda run: profile_of(run).special_functions,
    "tensor-core FLOP": lambda run: run.counts["mma_flop"],
    "TMA bytes": lambda run: run.counts["tma_load_bytes"] + run.counts["tma_store_bytes"],
    "global bytes (sectors)": lambda run: sum(profile_of(run).bytes.values()),
}

HEAD = f"""# Our kernels beside tokenspeed-mla 2.0.4

Made by `nox -s side_by_side`; do not edit. Counted on the simulator (sm_100a, fair schedule); there
is no Blackwell behind any figure, and none is a time. One request, pages of 64, N(0, 1) data.

*A tile* is what {TILE_KEYS} more keys cost: (count at {MORE_KEYS} keys - count at {KEYS}) /
{(MORE_KEYS - KEYS) // TILE_KEYS}, over all CTAs. *Ends* is the rest of the {KEYS}-key call: set-up,
query, epilogue. *Ragged* is what one key more than {KEYS} costs above a tile. *Combine* is the
second kernel where {SPLITS} splits are asked for. Waits count once, however often they are tried.

Two readings: a *ragged* tile as a whole is a tile plus that column, and ours is below the peer's
there too. In the *ends* our query comes by ordinary loads (global bytes) and the peer's by TMA (TMA
bytes): the sum of both columns is what compares.
"""


@dataclass(frozen=True)
class Counts:
    """One quantity of one kernel on one shape."""

    tile: float
    ends: float
    ragged: float
    combine: float


def run(kernel: Kernel, problem: Problem, num_splits: int) -> tuple[KernelRun, ...]:
    """Return the launches of one call, profiled."""
    options = RunOptions(num_splits=num_splits, checks=("bounds", "deadlock"), profile=True)
    return kernel.run(problem, make_inputs(problem, Recipe(), 0), options).launches


def count(kernel: Kernel, dtype: str, heads: int, tokens: int) -> dict[str, Counts]:
    """Return every quantity of one kernel on one shape."""

    def problem(keys: int) -> Problem:
        return Problem(Dims(heads, tokens), dtype, 64, (keys,), softmax_scale=192**-0.5)

    short, long, ragged = (run(kernel, problem(keys), 1)[0] for keys in (KEYS, MORE_KEYS, KEYS + 1))
    combine = run(kernel, problem(KEYS), SPLITS)[1]
    found = {}
    for name, quantity in QUANTITIES.items():
        tile = (quantity(long) - quantity(short)) / ((MORE_KEYS - KEYS) // TILE_KEYS)
        found[name] = Counts(
            tile,
            quantity(short) - tile * (KEYS // TILE_KEYS),
            quantity(ragged) - quantity(short) - tile,
            quantity(combine),
        )
    return found


def rows(progress: Callable[[str], object]) -> Iterator[str]:
    """Yield the lines of the tables, one table for each quantity."""
    cases = [(dtype, *shape) for dtype in FACTORIES for shape in SHAPES]
    ours, theirs = {}, {}
    for done, case in enumerate(cases, start=1):
        progress(f"{done}/{len(cases)} {case[0]} H {case[1]} S {case[2]}")
        ours[case] = count(optimized.kernel(), *case)
        theirs[case] = count(FACTORIES[case[0]](), *case)
    for name in QUANTITIES:
        yield f"\n## {name}\n"
        headings = ("dtype", "H/S", "a tile: ours", "peer", "ours/peer")
        headings += ("ends", "peer", "ragged", "peer", "combine", "peer")
        yield f"| {' | '.join(headings)} |"
        yield "|---" * len(headings) + "|"
        for case in cases:
            mine, other = ours[case][name], theirs[case][name]
            ratio = f"{mine.tile / other.tile:.3f}" if other.tile else "-"
            pairs = [
                text
                for part in ("ends", "ragged", "combine")
                for text in (number(getattr(mine, part)), number(getattr(other, part)))
            ]
            cells = (case[0], f"{case[1]}/{case[2]}", number(mine.tile), number(other.tile), ratio)
            yield f"| {' | '.join((*cells, *pairs))} |"


def number(value: float) -> str:
    """Return a count with thousands separated; fractions of a tile to one place."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write there; default: print")
    path = parser.parse_args(arguments).write
    if not (PEERS / "tokenspeed-mla-2.0.4").is_dir():
        parser.error(f"tokenspeed-mla 2.0.4 is not in {PEERS.name}/: nox -s peers installs it")
    text = "\n".join([HEAD, *rows(lambda line: sys.stderr.write(f"{line}\n"))]) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
