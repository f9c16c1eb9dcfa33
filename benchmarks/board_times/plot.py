"""A scatter plot of predicted over measured times, as an SVG with logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from benchmarks.board_times.errors import NEAR, Predicted
from benchmarks.board_times.measurements import FIT

SIZE, MARGIN = 640, 60
"""Pixels of the plot's square, and around it."""
MIN_US, MAX_US = 30.0, 200_000.0
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")


def scatter(predictions: Sequence[Predicted]) -> str:
    """The SVG: a circle for each prediction, filled for test rows, and lines at equal times and at NEAR."""
    kernels = sorted({each.row.kernel for each in predictions})
    colours = {kernel: COLOURS[i % len(COLOURS)] for i, kernel in enumerate(kernels)}
    width, height = SIZE + 2 * MARGIN + 130, SIZE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_axes(),
        *_lines(),
        *(_circle(each, colours[each.row.kernel]) for each in predictions),
        *_legend(colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _place(microseconds: float) -> float:
    """Pixels from the plot's lower end."""
    share = math.log(max(microseconds, MIN_US) / MIN_US) / math.log(MAX_US / MIN_US)
    return min(share, 1.0) * SIZE


def _point(measured_us: float, predicted_us: float) -> tuple[float, float]:
    return MARGIN + _place(measured_us), MARGIN + SIZE - _place(predicted_us)


def _axes() -> Iterable[str]:
    yield f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#444"/>'
    for tick, label in ((100, "100 µs"), (1000, "1 ms"), (10_000, "10 ms"), (100_000, "100 ms")):
        x, y = _point(tick, tick)
        yield f'<text x="{x:.1f}" y="{MARGIN + SIZE + 18}" text-anchor="middle">{label}</text>'
        yield f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        yield f'<path d="M{x:.1f} {MARGIN}V{MARGIN + SIZE}M{MARGIN} {y:.1f}H{MARGIN + SIZE}" stroke="#ddd"/>'
    yield f'<text x="{MARGIN + SIZE / 2}" y="{MARGIN + SIZE + 42}" text-anchor="middle">measured</text>'
    yield f'<text x="{MARGIN}" y="{MARGIN - 14}">predicted; dashed: 30 % above and below</text>'


def _lines() -> Iterable[str]:
    for factor, dash in ((1.0, ""), (1 + NEAR, "6 4"), (1 - NEAR, "6 4")):
        low, high = max(MIN_US, MIN_US / factor), min(MAX_US, MAX_US / factor)
        (x1, y1), (x2, y2) = _point(low, low * factor), _point(high, high * factor)
        yield (
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888" '
            f'stroke-dasharray="{dash}"/>'
        )


def _circle(each: Predicted, colour: str) -> str:
    x, y = _point(each.row.value, each.predicted_us)
    fill = "none" if each.row.role == FIT else colour
    title = f"{each.row.name}: {each.row.value:g} µs measured, {each.predicted_us:.0f} µs predicted"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" fill-opacity="0.6" stroke="{colour}">'
        f"<title>{escape(title)}</title></circle>"
    )


def _legend(colours: dict[str, str]) -> Iterable[str]:
    x = MARGIN + SIZE + 14
    for i, (kernel, colour) in enumerate(colours.items()):
        y = MARGIN + 10 + 20 * i
        yield f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'
        yield f'<text x="{x + 10}" y="{y + 4}">{kernel}</text>'
    yield f'<text x="{x - 4}" y="{MARGIN + 20 * len(colours) + 20}">empty: fit row</text>'
