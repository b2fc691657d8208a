"""Counts how often our oracles refuse a right answer: ``nox -s false-alarms -- --draws 10000``.

Right answers come from the emulator of `emulation`, which shares no code with the oracles: sums cut
bit by bit, ex2 off by up to two ulp. Its kernels take their tiles in the order of the keys, for
oracles A and B, and every fourth one from the last to the first too, for A. Each draw has its own
kind of data, length, magnitude, softmax scale, splits, tile, scale of P and threshold.

Draw n of a dtype is always the same. Each hundred is one measurement in the records, so a run that
is interrupted goes on with ``--resume FOLDER``, and what is there is not drawn again.
"""

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass

import torch

from conformance.compare import compare
from conformance.faithful import emulations
from conformance.kernel import Algorithm, UsageError
from conformance.session import records_to_resume
from conformance.tolerance import bounds
from reference.decode import decode
from reference.problem import DTYPES
from reports.records import Measurement, RecordWriter
from tests.conformance import draws
from tests.conformance.drawn import Drawn
from tests.conformance.emulation import Settings, emulate

TOOL = "false-alarms"
EMULATION = "emulation"
HUNDRED = 100
BINS = 20  # of error / bound, up to 1
ORACLES = ("A out", "A lse", "B out")
# p_scale and rescale_threshold; P stays within e4m3.
CASTS = ((1.0, 0.0), (4.0, 6.0), (1.0, 8.0), (256.0, 0.0), (64.0, 2.0))
SCALE = 192**-0.5
LONGEST = 700

Ratios = dict[str, float]  # worst error over bound of each oracle


@dataclass(frozen=True)
class Draw:
    """Data and the kernel that answers."""

    drawn: Drawn
    algorithm: Algorithm
    kind: str


def draw(dtype: str, number: int) -> Draw:
    """Return draw ``number`` of a dtype, always the same."""
    choice = random.Random(f"{dtype}/{number}")
    kind = draws.KINDS[number % len(draws.KINDS)]
    query, keys = draws.draw(choice, kind, getattr(torch, dtype), rows=2, longest=LONGEST)
    p_scale, threshold = choice.choice(CASTS)
    algorithm = Algorithm(p_scale, threshold, choice.choice((64, 128)), 2, "given")
    scale = SCALE * 10.0 ** choice.uniform(-1.0, 0.5)
    drawn = Drawn(query, keys, scale, splits=choice.choice((1, 1, 2, 3, 7)))
    return Draw(drawn, algorithm, kind.__name__)


def judge(one: Draw, number: int) -> Ratios:
    """Return the worst ratio of each oracle on the right answers to one draw."""
    problem, inputs, algorithm = one.drawn.problem, one.drawn.inputs, one.algorithm
    exact, limit = decode(problem, inputs), bounds(problem, inputs, algorithm)
    ratios = dict.fromkeys(ORACLES, 0.0)
    for last_first in (False, True) if number % 4 == 0 else (False,):
        out, lse = answer(one, number, last_first)
        found = {"A out": compare(out, exact.out, limit.out).ratio}
        found["A lse"] = compare(lse, exact.lse, limit.lse, name="lse").ratio
        if not last_first:
            near = emulations(problem, inputs, algorithm, one.drawn.splits).nearest(out)
            found["B out"] = compare(out, near.out, near.bound).ratio
        ratios |= {name: max(ratios[name], ratio) for name, ratio in found.items()}
    return ratios


def answer(one: Draw, seed: int, last_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the emulated kernel gives, with the shapes of a call."""
    drawn, algorithm = one.drawn, one.algorithm
    settings = Settings(
        rescale_threshold=algorithm.rescale_threshold,
        p_scale=algorithm.p_scale,
        tile_n=algorithm.tile_n,
        num_splits=drawn.splits,
        seed=seed,
        last_tile_first=last_first,
    )
    out, lse = emulate(drawn.query, drawn.keys, draws.LATENT, drawn.scale, settings)
    return out[None, None], lse[None, None]


def measure(dtype: str, hundred: int) -> Measurement:
    """Return what one hundred draws show."""
    alarms: list[dict[str, object]] = []
    bins = {name: [0] * BINS for name in ORACLES}
    worst = dict.fromkeys(ORACLES, 0.0)
    for number in range(HUNDRED * hundred, HUNDRED * (hundred + 1)):
        one = draw(dtype, number)
        ratios = judge(one, number)
        for name, ratio in ratios.items():
            worst[name] = max(worst[name], ratio)
            bins[name][min(BINS - 1, int(ratio * BINS))] += 1
        if max(ratios.values()) > 1.0:
            alarms.append({"number": number, "kind": one.kind, **ratios})
    detail = {
        "dtype": dtype, "hundred": hundred, "draws": HUNDRED, "worst": worst, "bins": bins,
        "alarms": alarms,
    }  # fmt: skip
    name = f"{dtype}, hundred {hundred}"  # of its own: of one name only the last counts
    return Measurement(EMULATION, "false_alarms", name, float(len(alarms)), "alarms", detail)


def report(measurements: list[Measurement]) -> str:
    """Return the result in words: draws, alarms, the limit 3 / n, and the distribution."""
    lines = []
    for dtype in DTYPES:
        mine = [one for one in measurements if one.detail["dtype"] == dtype]
        found = [one.detail | {"value": one.value} for one in mine]
        total = sum(one["draws"] for one in found)
        if not total:
            continue
        count = sum(int(one["value"]) for one in found)
        limit = f", upper 95% limit {3.0 / total:.3%}" if count == 0 else ""
        lines.append(f"{dtype}: {count} alarms in {total} draws{limit}")
        for name in ORACLES:
            bins: Counter[int] = Counter()
            for one in found:
                bins.update(dict(enumerate(one["bins"][name])))
            worst = max(one["worst"][name] for one in found)
            shares = " ".join(f"{bins[n] / total:.3f}" for n in range(BINS))
            lines.append(f"  {name}: worst {worst:.3f}; by twentieths of the bound: {shares}")
    return "\n".join(lines)


def known(folder: str | None) -> list[Measurement]:
    """Return the measurements of an earlier run; UsageError if it is one of other sources."""
    return [] if folder is None else list(records_to_resume(folder).measurements)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=TOOL, description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--draws", type=int, default=1000, help="draws of each dtype; default 1000")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: all")
    parser.add_argument("--resume", metavar="FOLDER", help="an earlier run's records")
    parser.add_argument("--results", default="results", help="where records go; default: results")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        found = known(options.resume)
    except UsageError as error:
        parser.error(str(error))
    done = {(one.detail["dtype"], one.detail["hundred"]) for one in found}
    hundreds = range(-(-options.draws // HUNDRED))
    wanted = [(dtype, hundred) for hundred in hundreds for dtype in options.dtype or DTYPES]
    with RecordWriter(TOOL, options.results) as records:
        for one in found:
            records.measure(one)
        for at, (dtype, hundred) in enumerate(wanted, start=1):
            if (dtype, hundred) not in done:
                found.append(measure(dtype, hundred))
                records.measure(found[-1])
            sys.stderr.write(f"\r{at} of {len(wanted)} hundreds")
    sys.stdout.write(f"\n{report(found)}\nrecords: {records.path}\n")
    return 1 if any(one.value for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
