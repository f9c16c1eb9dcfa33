"""The positions of a plot's marks, in units of its SVG; the templates draw them.

Values are errors and shares of bounds, from zero to infinite. Scales are logarithmic, with 0 at the lower end
and values that are not finite at the upper one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PlotMark:
    """A point or a cell: its position, its tooltip, and its class for the style sheet."""

    x: float
    y: float
    title: str
    kind: str = ""


@dataclass(frozen=True)
class Label:
    """Text at a position."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Series:
    """A line with its points. kind: its class for the style sheet."""

    name: str
    kind: str
    marks: tuple[PlotMark, ...]

    @property
    def points(self) -> str:
        """The points attribute of an SVG polyline."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale of whole decades from 10^low to 10^high, mapped to `start` to `end`."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float) -> Scale:
        """A scale that contains all `values` that are finite and above 0."""
        logs = [math.log10(value) for value in values if value > 0 and math.isfinite(value)] or [0.0]
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        return cls(low, max(high, low + 1), start, end)

    def __call__(self, value: float) -> float:
        if not value > 0:
            share = 0.0 if value == 0 else 1.0  # NaN is as bad as infinite
        else:
            share = (math.log10(min(value, 1e300)) - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """A position and a text for each decade."""
        return [(self(10.0**power), f"{10.0**power:g}") for power in range(self.low, self.high + 1)]


@dataclass(frozen=True)
class LineChart:
    """Lines over named positions. A line has one value per position."""

    title: str
    width: float
    height: float
    series: tuple[Series, ...]
    ticks: tuple[Label, ...]
    places: tuple[Label, ...]


MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM = 56.0, 12.0, 60.0
COLUMN, PLOT_HEIGHT = 44.0, 200.0

Line = tuple[str, str, Sequence[float]]
"""Name, kind, and a value for each position."""


def line_chart(title: str, places: Sequence[str], lines: Sequence[Line]) -> LineChart:
    """The chart of `lines` over `places`; the scale ends above the largest value."""
    bottom = MARGIN_TOP + PLOT_HEIGHT
    scale = Scale.over((value for _, _, values in lines for value in values), bottom, MARGIN_TOP)
    across = {place: MARGIN_LEFT + COLUMN * (index + 0.5) for index, place in enumerate(places)}

    def marks(name: str, values: Sequence[float]) -> Iterator[PlotMark]:
        for (place, x), value in zip(across.items(), values, strict=True):
            yield PlotMark(x, scale(value), f"{place}: {name} {value:.3g}")

    return LineChart(
        title,
        width=MARGIN_LEFT + COLUMN * len(places) + 12,
        height=bottom + MARGIN_BOTTOM,
        series=tuple(Series(name, kind, tuple(marks(name, values))) for name, kind, values in lines),
        ticks=tuple(Label(MARGIN_LEFT, y, text) for y, text in scale.ticks),
        places=tuple(Label(x, bottom + 14, place) for place, x in across.items()),
    )


@dataclass(frozen=True)
class HeatMap:
    """Cells in named rows and columns."""

    title: str
    width: float
    height: float
    cell: float
    cells: tuple[PlotMark, ...]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]


CELL, NAMES_WIDTH, NAMES_HEIGHT = 22.0, 110.0, 24.0


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], used: Sequence[Sequence[float]]
) -> HeatMap:
    """A heat map. used: for each row and column the used share of the bound."""
    down = [NAMES_HEIGHT + CELL * index for index in range(len(rows))]
    across = [NAMES_WIDTH + CELL * index for index in range(len(columns))]

    def cells() -> Iterator[PlotMark]:
        for row, y, values in zip(rows, down, used, strict=True):
            for column, x, value in zip(columns, across, values, strict=True):
                yield PlotMark(x, y, f"layer {column}, {row}: {_percent(value)} of its bound", shade(value))

    return HeatMap(
        title,
        width=NAMES_WIDTH + CELL * len(columns) + 4,
        height=NAMES_HEIGHT + CELL * len(rows) + 4,
        cell=CELL - 2,
        cells=tuple(cells()),
        rows=tuple(Label(NAMES_WIDTH - 8, y + CELL / 2, row) for row, y in zip(rows, down, strict=True)),
        columns=tuple(Label(x + 10, NAMES_HEIGHT - 8, name) for name, x in zip(columns, across, strict=True)),
    )


def shade(used: float) -> str:
    """The class of a cell: s0 to s4 for fifths of the bound, `left` above it."""
    if not used <= 1:
        return "left"
    return f"s{min(int(used * 5), 4)}"


def _percent(used: float) -> str:
    return f"{used:.0%}" if math.isfinite(used) else "far beyond the whole"
