"""Recognises the patterns that known mistakes leave in wrong elements.

Arrays are treated as matrices: the last dimension makes the columns, all others the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from aerie.kernel_builder.spec import Array

MIN_EXPLAINED = 0.95
"""A pattern is reported if it explains at least this share of the wrong elements."""
MIN_SHARE = 0.05
"""Values that a core never computes by accident (NaN, zero, the previous content) are reported from this
share.
"""
ALIKE, MATCH = 2.0**-4, 0.8
"""Two numbers are alike if they differ by at most the first, relative to the larger; two pieces are alike if
the second share of their numbers are. Roundings that the virtual NPU does not model leave that much; chance
does not.
"""
RESIDUE = 0.02
"""The mean relative error that may remain beside a constant factor."""
BLOCKS = (64, 32, 16, 8, 4)
"""Edges of blocks that a DMA or a core may transpose, the matrix unit's 8 among them."""
ROWS_TRIED = 64
"""The number of wrong rows that are searched for elsewhere."""
MIN_PIECE = 16
"""Elements; fewer may be alike by chance."""


def patterns(
    actual: Array, expected: Array, wrong: Array, previous: Array | None, floors: Mapping[str, Array]
) -> tuple[str, ...]:
    """Sentences that describe the patterns, the most certain first.

    previous: the content of the same argument after the run with other inputs. floors: by numerics, the
    expected result if cores round downwards.
    """
    g, w, bad = _matrix(actual), _matrix(expected), wrong.reshape(_matrix(actual).shape)
    old = None if previous is None else _matrix(previous)
    sentences = (
        *_values(g, w, bad, old),
        *_rounding(g, floors),
        *_arrangement(g, w, bad),
        *_scale(g, w, bad),
    )
    return sentences or _describe_differences(g, w, bad)


def describe_positions(wrong: Array) -> str:
    """Where the wrong elements are, in rows and columns."""
    bad = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    if bad.all():
        return "all of them"
    if len(bad) == 1:
        return f"elements {describe_ranges(columns)}"
    for what, part, where in (("rows", bad[rows], rows), ("columns", bad[:, columns], columns)):
        if part.mean() >= MIN_EXPLAINED and len(where) < len(bad if what == "rows" else bad.T):
            return f"{'all' if part.all() else 'nearly all'} of {what} {describe_ranges(where)}"
    filled = "all of" if bad[np.ix_(rows, columns)].all() else "scattered over"
    return f"{filled} rows {describe_ranges(rows)}, columns {describe_ranges(columns)}"


def describe_ranges(numbers: Array, max_ranges: int = 6) -> str:
    """`0-7, 16-23, 40`; of many ranges, the first ones and how many more."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:max_ranges]]
    return ", ".join(shown) + (f" and {len(runs) - max_ranges} more ranges" if len(runs) > max_ranges else "")


def _matrix(array: Array) -> Array:
    return array.astype(np.float64).reshape(-1, array.shape[-1])


def _share(part: Array, total: Array) -> float:
    return float(np.count_nonzero(part & total)) / max(1, int(np.count_nonzero(total)))


def _are_close(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(a - b) <= ALIKE * np.maximum(np.abs(a), np.abs(b)))


def _values(actual: Array, expected: Array, bad: Array, previous: Array | None) -> Iterator[str]:
    """Numbers that were never computed."""
    marks = {
        "NaN or infinite": ~np.isfinite(actual) & np.isfinite(expected),
        "zero, as if never written": (actual == 0) & (expected != 0),
    }
    if previous is not None:
        marks["stale: what the run before left there"] = (
            (actual == previous) & (actual != 0) & (actual != expected)
        )
    for text, mark in marks.items():
        if (share := _share(mark, bad)) >= MIN_SHARE:
            yield f"{share:.0%} of them are {text}"


def _rounding(actual: Array, floors: Mapping[str, Array]) -> Iterator[str]:
    """The cores' rounding mode: every number is as predicted, but for a few that the order of a
    sum changes.
    """
    for name, expected in floors.items():
        same = float((actual == _matrix(expected)).mean())
        if same >= 0.99:
            yield (
                f"rounded towards minus infinity instead of to the nearest: {same:.1%} of all elements are "
                f"those of the virtual NPU with {name} (VNPU_ROUNDING=floor); the core's rounding mode was "
                "not set"
            )
            return


def _arrangement(actual: Array, expected: Array, bad: Array) -> Iterator[str]:
    """The right numbers in the wrong place."""
    for edge in BLOCKS:
        if (share := _transposed(actual, expected, bad, edge)) >= MIN_EXPLAINED:
            yield f"{edge}x{edge} blocks are transposed ({share:.0%} of what is wrong)"
            return
    yield from _moved(actual, expected, bad)


def _transposed(actual: Array, expected: Array, bad: Array, edge: int) -> float:
    """The share of wrong elements in blocks that contain their transpose."""
    g, w, b = (_cut(array, edge) for array in (actual, expected, bad))
    if not g.size:
        return 0.0
    turned = _are_close(g, w.transpose(0, 2, 1)).mean(axis=(1, 2)) >= MATCH
    return float(np.count_nonzero(b[turned])) / max(1, int(np.count_nonzero(bad)))


def _cut(array: Array, edge: int) -> Array:
    """Aligned blocks, (number, edge, edge); empty if the array is smaller than a block."""
    rows, columns = (extent // edge for extent in array.shape)
    cropped = array[: rows * edge, : columns * edge].reshape(rows, edge, columns, edge)
    return cropped.transpose(0, 2, 1, 3).reshape(-1, edge, edge)


def _moved(actual: Array, expected: Array, bad: Array) -> Iterator[str]:
    """A rectangle, or rows, with data that belongs elsewhere."""
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    height, width = _extent(rows), _extent(columns)
    piece = actual[rows[0] : rows[0] + height, columns[0] : columns[0] + width]
    if MIN_PIECE <= piece.size < actual.size and _is_run(rows) and _is_run(columns):
        for top, left in _tiles(actual.shape, piece.shape):
            if _is(piece, expected[top : top + height, left : left + width]):
                yield (
                    f"they hold what belongs at rows {top}-{top + height - 1}, "
                    f"columns {left}-{left + width - 1}: the result of another tile"
                )
                return
    yield from _moved_rows(actual, expected, rows[:ROWS_TRIED])


def _tiles(extent: tuple[int, ...], tile: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The offsets of tiles of that size."""
    return itertools.product(*(range(0, e - t + 1, t) for e, t in zip(extent, tile, strict=True)))


def _moved_rows(actual: Array, expected: Array, rows: Array) -> Iterator[str]:
    if actual.shape[1] < 8:
        return
    pairs = [(row, other) for row in rows if (other := _find_row(actual[row], expected)) not in (None, row)]
    if pairs and len(pairs) >= MIN_EXPLAINED * len(rows):
        shown = ", ".join(f"row {row} holds row {other}" for row, other in pairs[:3])
        yield f"rows are exchanged: {shown}{' and so on' if len(pairs) > 3 else ''}"


def _find_row(row: Array, expected: Array) -> int | None:
    matches = np.flatnonzero(_are_close(expected, row).mean(axis=1) >= MATCH)
    return int(matches[0]) if len(matches) else None


def _is(piece: Array, other: Array) -> bool:
    return piece.shape == other.shape and float(_are_close(piece, other).mean()) >= MATCH


def _extent(indices: Array) -> int:
    return int(indices[-1] - indices[0]) + 1


def _is_run(indices: Array) -> bool:
    return _extent(indices) == len(indices)


def _scale(actual: Array, expected: Array, bad: Array) -> Iterator[str]:
    """Every wrong number off by the same factor, in the whole array or row by row."""
    usable = bad & (expected != 0) & np.isfinite(actual)
    if np.count_nonzero(usable) < 8:
        return
    ratios = np.where(usable, actual / np.where(expected == 0, 1, expected), np.nan)
    factor = float(np.nanmedian(ratios))
    if _explains(factor * expected, actual, usable):
        if abs(factor - 1) > RESIDUE:
            yield f"off by a constant factor of {factor:.3g}"
        return
    rows = np.flatnonzero(usable.any(axis=1))
    own = np.ones((len(actual), 1))
    own[rows, 0] = np.nanmedian(ratios[rows], axis=1)
    if len(rows) > 1 and actual.shape[1] >= 8 and _explains(own * expected, actual, usable):
        yield f"every row is off by a factor of its own ({own[rows].min():.3g} to {own[rows].max():.3g})"


def _explains(predicted: Array, actual: Array, mask: Array) -> bool:
    return float(np.abs(actual - predicted)[mask].sum()) <= RESIDUE * float(np.abs(predicted)[mask].sum())


def _describe_differences(actual: Array, expected: Array, bad: Array) -> tuple[str, ...]:
    """No known pattern: how large the differences are, and whether they are biased."""
    difference = actual[bad] - expected[bad]
    share = float(
        np.abs(difference).mean() / max(float(np.abs(expected[bad]).mean()), np.finfo(np.float64).tiny)
    )
    below = float((difference < 0).mean())
    smaller = float((np.abs(actual[bad]) < np.abs(expected[bad])).mean())
    if smaller >= MIN_EXPLAINED:
        sentence = (
            f"{smaller:.0%} of them are nearer to zero than expected: bits are cut off instead of rounded"
        )
        return (sentence,)
    if max(below, 1 - below) >= MIN_EXPLAINED:
        return (f"{max(below, 1 - below):.0%} of them are too {'low' if below > 0.5 else 'high'}: a bias",)
    return (f"no known pattern: the differences are {share:.0%} of the expected numbers",)
