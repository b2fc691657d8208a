"""What problems differ in: factors with their values, and the rows that cover them pairwise.

Some factors make up a shape: they choose a compilation, which takes longer than running a problem.
So the covering array is built in two steps, and has few shapes:

    shapes  pairwise over the factors of a shape
    rows    pairwise over all factors, each row with one of these shapes
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from reference.problem import DTYPES, LAYOUTS, TABLE_TAILS
from reference.values import VALUES

Levels = Mapping[str, tuple[Any, ...]]  # factor -> its values, the simplest first
Row = dict[str, Any]  # factor -> one of its values
Cell = tuple[str, Any]  # one factor and one of its values
Shape = tuple[Any, ...]  # a value for each of SHAPE_FACTORS

SHAPE_FACTORS = (
    "dtype", "heads_and_queries", "page_size", "causal", "window_left", "is_var_seq", "enable_pdl",
    "splits",
)  # fmt: skip

# A length is a number of keys or a place relative to the page; "queries" is seq_len_q; 129 and 132
# are the first keys of a second tile, which with S tokens not every token sees. With "window at a
# tile" the tokens' windows begin on both sides of the edge between two tiles.
_DEFAULT: Levels = {
    "dtype": DTYPES,
    "heads_and_queries": ((1, 1), (16, 4), (128, 1), (64, 2), (40, 3)),
    "page_size": (128, 64, 32, 16),
    "causal": (True, False),
    "window_left": (-1, 0, 7, 200),
    "is_var_seq": (True, False),
    "enable_pdl": (False, True),
    "splits": (1, 2, 3, 8),
    "longest": (
        "queries", "queries - 1", "queries + 1", "page", "page - 1", "page + 1",
        127, 128, 129, 132, 255, 256, 257, 640, 700, "window at a tile",
    ),
    "batch_size": (1, 2, 3, 4),
    "others": ("equal", "shortest", "mixed"),  # the lengths of the other requests
    "loose_max_seq_len": (False, True),
    "softmax_scale": (192**-0.5, 0.02, 0.25, 0.0),
    "output_scale": (1.0, -0.5, 3.0),
    "lse_base": (2, "e"),
    "layout": LAYOUTS,
    "values": tuple(VALUES),
    "magnitude": (1.0, 0.1, 4.0),
    "table_tail": TABLE_TAILS,
    "spare_pages": (0, 3),
    "poison": (False, True),
}  # fmt: skip
_SMOKE: Levels = {
    **_DEFAULT,
    "heads_and_queries": ((16, 4), (128, 1), (64, 2)),
    "window_left": (-1,),
    "enable_pdl": (False,),
    "longest": ("queries", "page", 127, 128, 129, 257, 300, 640),
}
_DEEP: Levels = {
    **_DEFAULT,
    "heads_and_queries": (
        (1, 1), (12, 4), (16, 4), (128, 1), (64, 2), (40, 3), (8, 8), (96, 2), (128, 4),
    ),
    "page_size": (128, 64, 32, 16, 8, 4, 2),
    "window_left": (-1, 0, 7, 130, 200),
    "longest": (*_DEFAULT["longest"], 383, 385, 511, 512, 513, 1023, 1025, 2048),
}  # fmt: skip
LEVELS: Mapping[str, Levels] = MappingProxyType(
    {"smoke": _SMOKE, "default": _DEFAULT, "deep": _DEEP}
)
PAIRWISE = ("default", "deep")  # in the smoke profile each value occurs, no more


@dataclass(frozen=True)
class Space:
    """The factors of a profile with their values, of which the kernel takes ``shapes``."""

    items: tuple[tuple[str, tuple[Any, ...]], ...]
    shapes: frozenset[Shape]
    pairwise: bool

    @property
    def levels(self) -> Levels:
        """The values of each factor, the simplest first."""
        return dict(self.items)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the covering array: always the same, in the same order."""
        for row in _rows(self):
            yield dict(row)

    def simplest_shapes_first(self) -> tuple[Row, ...]:
        """Return the shapes of the covering array's rows, each factor's simpler values first."""
        levels = self.levels
        shapes = {tuple(row[factor] for factor in SHAPE_FACTORS) for row in self.rows()}
        simplest = tuple(levels[factor][0] for factor in SHAPE_FACTORS)
        shapes |= {simplest} & self.shapes

        def complexity(shape: Shape) -> list[int]:
            places = zip(SHAPE_FACTORS, shape, strict=True)
            return [levels[factor].index(value) for factor, value in places]

        return tuple(
            dict(zip(SHAPE_FACTORS, shape, strict=True)) for shape in sorted(shapes, key=complexity)
        )


def space(profile: str, overrides: Levels, takes: Callable[[Row], bool]) -> Space:
    """Return the profile's space, with some factors' values replaced, for shapes that are taken.

    ``takes`` is asked about each shape once, with the simplest values of the other factors. Raises
    ValueError for an unknown profile, and where no shape is taken.
    """
    if profile not in LEVELS:
        raise ValueError(f"profile: {profile!r} is none of {', '.join(LEVELS)}")
    levels = {**LEVELS[profile], **overrides}
    simplest = {factor: values[0] for factor, values in levels.items()}
    shapes = frozenset(
        shape
        for shape in itertools.product(*(levels[factor] for factor in SHAPE_FACTORS))
        if takes(simplest | dict(zip(SHAPE_FACTORS, shape, strict=True)))
    )
    if not shapes:
        raise ValueError(f"profile: none of the shapes of {profile!r} is taken")
    for place, factor in enumerate(SHAPE_FACTORS):
        taken = {shape[place] for shape in shapes}
        levels[factor] = tuple(value for value in levels[factor] if value in taken)
    return Space(tuple(levels.items()), shapes, profile in PAIRWISE)


@functools.lru_cache(maxsize=8)
def _rows(wanted: Space) -> tuple[tuple[Cell, ...], ...]:
    levels = wanted.levels
    free = {factor: values for factor, values in levels.items() if factor not in SHAPE_FACTORS}
    taken = [tuple(zip(SHAPE_FACTORS, shape, strict=True)) for shape in wanted.shapes]
    taken.sort(key=lambda shape: [levels[factor].index(value) for factor, value in shape])
    shapes = list(_cover(taken, {}))
    rows = _cover(shapes, free)
    return tuple(rows if wanted.pairwise else _until_all_occur(rows, levels))


def _cover(shapes: Sequence[tuple[Cell, ...]], free: Levels) -> Iterator[tuple[Cell, ...]]:
    """Yield rows, each one of ``shapes`` with ``free`` factors added, in which all pairs meet.

    Greedy: a row starts from a pair that has not met, and takes for one factor after the other the
    value that makes most pairs meet; of the rows for all shapes the best one is kept. So each row
    makes a pair meet, and the work ends.
    """
    apart = _pairs(shapes, free)
    while any(apart.values()):
        first = max(apart, key=lambda cell: len(apart[cell]))
        pair = (first, next(cell for cell in apart if cell in apart[first]))
        rows = [row for shape in shapes if (row := _extended(shape, free, pair, apart))]
        best = max(rows, key=lambda row: sum(len(apart[cell].intersection(row)) for cell in row))
        for cell in best:
            apart[cell].difference_update(best)
        yield best


def _pairs(shapes: Sequence[tuple[Cell, ...]], free: Levels) -> dict[Cell, set[Cell]]:
    """Return, for each cell in order, the cells that it can meet in a row."""
    can_meet: dict[Cell, set[Cell]] = {}
    for shape in shapes:
        for cell in shape:
            can_meet.setdefault(cell, set()).update(other for other in shape if other != cell)
    for factor, values in free.items():
        for value in values:
            others = {other for other in can_meet if other[0] != factor}
            for other in others:
                can_meet[other].add((factor, value))
            can_meet[factor, value] = others
    return can_meet


def _extended(
    shape: tuple[Cell, ...],
    free: Levels,
    pair: tuple[Cell, Cell],
    apart: Mapping[Cell, set[Cell]],
) -> tuple[Cell, ...] | None:
    """Return ``shape`` with values for the free factors, ``pair`` among them; None if it cannot."""
    row = dict(shape)
    for factor, value in pair:
        if row.setdefault(factor, value) != value:
            return None
    for factor, values in free.items():
        if factor not in row:
            cells = [(factor, value) for value in values]
            met = row.items()
            row[factor] = max(cells, key=lambda cell: (len(apart[cell] & met), len(apart[cell])))[1]
    return tuple(row.items())


def _until_all_occur(
    rows: Iterable[tuple[Cell, ...]], levels: Levels
) -> Iterator[tuple[Cell, ...]]:
    """Yield rows until each value of each factor has occurred."""
    missing = {(factor, value) for factor, values in levels.items() for value in values}
    for row in rows:
        yield row
        missing.difference_update(row)
        if not missing:
            return
