"""What wrong elements look like: a known mistake leaves a mark of its own.

Arrays are looked at as matrices: the last dimension makes the columns, all others the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from aerie.kernel_builder.spec import Array

MOST = 0.95
"""A pattern is named when it explains so much of what is wrong."""
SOME = 0.05
"""Values that a core never computes by accident (NaN, zero, what was there before) are named from here on."""
ALIKE, MATCH = 2.0**-4, 0.8
"""Two numbers are alike when they differ by at most so much, as a share of the larger; two pieces are when so
many of their numbers are. Roundings that the virtual NPU does not model leave that much; chance does not."""
RESIDUE = 0.02
"""What may be left of the numbers, on average, beside a constant factor."""
BLOCKS = (64, 32, 16, 8, 4)
"""Edges of blocks that a DMA or a core may turn round, the matrix unit's 8 among them."""
ROWS_TRIED = 64
"""So many wrong rows are looked for elsewhere."""
LEAST_PIECE = 16
"""Elements; fewer may be alike by chance."""


def patterns(
    got: Array, want: Array, wrong: Array, previous: Array | None, floors: Mapping[str, Array]
) -> tuple[str, ...]:
    """Sentences, the surest first.

    previous: what the same argument held after the run before, on other inputs. floors: what would be wanted
    of cores that round downwards, by numerics.
    """
    g, w, bad = _matrix(got), _matrix(want), wrong.reshape(_matrix(got).shape)
    old = None if previous is None else _matrix(previous)
    found = (*_values(g, w, bad, old), *_rounding(g, floors), *_arrangement(g, w, bad), *_scale(g, w, bad))
    return found or _how_far(g, w, bad)


def place(wrong: Array) -> str:
    """Where the wrong elements are, in rows and columns."""
    bad = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    if bad.all():
        return "all of them"
    if len(bad) == 1:
        return f"elements {ranges(columns)}"
    for what, part, where in (("rows", bad[rows], rows), ("columns", bad[:, columns], columns)):
        if part.mean() >= MOST and len(where) < len(bad if what == "rows" else bad.T):
            return f"{'all' if part.all() else 'nearly all'} of {what} {ranges(where)}"
    filled = "all of" if bad[np.ix_(rows, columns)].all() else "scattered over"
    return f"{filled} rows {ranges(rows)}, columns {ranges(columns)}"


def ranges(numbers: Array, most: int = 6) -> str:
    """`0-7, 16-23, 40`; of many, the first ones and how many more."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:most]]
    return ", ".join(shown) + (f" and {len(runs) - most} more ranges" if len(runs) > most else "")


def _matrix(array: Array) -> Array:
    return array.astype(np.float64).reshape(-1, array.shape[-1])


def _share(part: Array, of: Array) -> float:
    return float(np.count_nonzero(part & of)) / max(1, int(np.count_nonzero(of)))


def _alike(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(a - b) <= ALIKE * np.maximum(np.abs(a), np.abs(b)))


def _values(got: Array, want: Array, bad: Array, previous: Array | None) -> Iterator[str]:
    """Numbers that were never computed."""
    marks = {
        "NaN or infinite": ~np.isfinite(got) & np.isfinite(want),
        "zero, as if never written": (got == 0) & (want != 0),
    }
    if previous is not None:
        marks["stale: what the run before left there"] = (got == previous) & (got != 0) & (got != want)
    for text, mark in marks.items():
        if (share := _share(mark, bad)) >= SOME:
            yield f"{share:.0%} of them are {text}"


def _rounding(got: Array, floors: Mapping[str, Array]) -> Iterator[str]:
    """The cores' rounding mode: every number as predicted, but for a few that a sum's order tips."""
    for name, want in floors.items():
        same = float((got == _matrix(want)).mean())
        if same >= 0.99:
            yield (
                f"rounded towards minus infinity instead of to the nearest: {same:.1%} of all elements are "
                f"those of the virtual NPU with {name} (VNPU_ROUNDING=floor); the core's rounding mode was "
                "not set"
            )
            return


def _arrangement(got: Array, want: Array, bad: Array) -> Iterator[str]:
    """The right numbers in the wrong place."""
    for edge in BLOCKS:
        if (share := _transposed(got, want, bad, edge)) >= MOST:
            yield f"{edge}x{edge} blocks are transposed ({share:.0%} of what is wrong)"
            return
    yield from _moved(got, want, bad)


def _transposed(got: Array, want: Array, bad: Array, edge: int) -> float:
    """The share of wrong elements that lie in blocks which hold their transpose."""
    g, w, b = (_cut(array, edge) for array in (got, want, bad))
    if not g.size:
        return 0.0
    turned = _alike(g, w.transpose(0, 2, 1)).mean(axis=(1, 2)) >= MATCH
    return float(np.count_nonzero(b[turned])) / max(1, int(np.count_nonzero(bad)))


def _cut(array: Array, edge: int) -> Array:
    """Aligned blocks, (number, edge, edge); none where the array is smaller."""
    rows, columns = (extent // edge for extent in array.shape)
    whole = array[: rows * edge, : columns * edge].reshape(rows, edge, columns, edge)
    return whole.transpose(0, 2, 1, 3).reshape(-1, edge, edge)


def _moved(got: Array, want: Array, bad: Array) -> Iterator[str]:
    """A rectangle, or rows, that hold what belongs elsewhere."""
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    height, width = _extent(rows), _extent(columns)
    piece = got[rows[0] : rows[0] + height, columns[0] : columns[0] + width]
    if LEAST_PIECE <= piece.size < got.size and _is_run(rows) and _is_run(columns):
        for top, left in _tiles(got.shape, piece.shape):
            if _is(piece, want[top : top + height, left : left + width]):
                yield (
                    f"they hold what belongs at rows {top}-{top + height - 1}, "
                    f"columns {left}-{left + width - 1}: the result of another tile"
                )
                return
    yield from _moved_rows(got, want, rows[:ROWS_TRIED])


def _tiles(extent: tuple[int, ...], tile: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Where tiles of that size begin."""
    return itertools.product(*(range(0, e - t + 1, t) for e, t in zip(extent, tile, strict=True)))


def _moved_rows(got: Array, want: Array, rows: Array) -> Iterator[str]:
    if got.shape[1] < 8:
        return
    pairs = [(row, other) for row in rows if (other := _row_of(got[row], want)) not in (None, row)]
    if pairs and len(pairs) >= MOST * len(rows):
        shown = ", ".join(f"row {row} holds row {other}" for row, other in pairs[:3])
        yield f"rows are exchanged: {shown}{' and so on' if len(pairs) > 3 else ''}"


def _row_of(row: Array, want: Array) -> int | None:
    found = np.flatnonzero(_alike(want, row).mean(axis=1) >= MATCH)
    return int(found[0]) if len(found) else None


def _is(piece: Array, other: Array) -> bool:
    return piece.shape == other.shape and float(_alike(piece, other).mean()) >= MATCH


def _extent(indices: Array) -> int:
    return int(indices[-1] - indices[0]) + 1


def _is_run(indices: Array) -> bool:
    return _extent(indices) == len(indices)


def _scale(got: Array, want: Array, bad: Array) -> Iterator[str]:
    """Every wrong number off by the same factor, in all or row by row."""
    usable = bad & (want != 0) & np.isfinite(got)
    if np.count_nonzero(usable) < 8:
        return
    ratios = np.where(usable, got / np.where(want == 0, 1, want), np.nan)
    factor = float(np.nanmedian(ratios))
    if _explains(factor * want, got, usable):
        if abs(factor - 1) > RESIDUE:
            yield f"off by a constant factor of {factor:.3g}"
        return
    rows = np.flatnonzero(usable.any(axis=1))
    own = np.ones((len(got), 1))
    own[rows, 0] = np.nanmedian(ratios[rows], axis=1)
    if len(rows) > 1 and got.shape[1] >= 8 and _explains(own * want, got, usable):
        yield f"every row is off by a factor of its own ({own[rows].min():.3g} to {own[rows].max():.3g})"


def _explains(made: Array, got: Array, where: Array) -> bool:
    return float(np.abs(got - made)[where].sum()) <= RESIDUE * float(np.abs(made)[where].sum())


def _how_far(got: Array, want: Array, bad: Array) -> tuple[str, ...]:
    """Nothing known: how large the differences are, and whether they lean."""
    difference = got[bad] - want[bad]
    share = float(np.abs(difference).mean() / max(float(np.abs(want[bad]).mean()), np.finfo(np.float64).tiny))
    below = float((difference < 0).mean())
    smaller = float((np.abs(got[bad]) < np.abs(want[bad])).mean())
    if smaller >= MOST:
        return (f"{smaller:.0%} of them are nearer to zero than wanted: bits are cut off instead of rounded",)
    if max(below, 1 - below) >= MOST:
        return (f"{max(below, 1 - below):.0%} of them are too {'low' if below > 0.5 else 'high'}: a bias",)
    return (f"no known pattern: the differences are {share:.0%} of the numbers wanted",)
