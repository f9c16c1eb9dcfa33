"""The published measurements of NPU2 that the timing model is fitted to and tested on.

measurements.tsv has one row for each, with its source. A row's role was written down before the first fit:
`fit` rows are all that a fit may see, `test` rows judge it, `left out` rows are doubtful, with the reason. A
kind of row that nobody chose for the fit is a test row, which is the stricter choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aerie.common.errors import UserError

DATA = Path(__file__).with_name("measurements.tsv")
FIT, TEST, LEFT_OUT = ROLES = ("fit", "test", "left out")
MICROSECONDS, CYCLES = UNITS = ("us", "cycles")
IN_SITU = "ELF in situ"
"""Of a variant: half of what a program of four equal launches takes more than one of two."""
COLUMNS = (
    *("class", "variant", "shape", "tiles", "cores", "dtypes", "numerics"),
    *("value", "unit", "box", "source", "role", "reason"),
)


@dataclass(frozen=True)
class Measurement:
    """One published number. shape and tiles: names with numbers; cores: columns by rows."""

    kernel: str
    variant: str
    shape: Mapping[str, int]
    shape_text: str
    tiles: Mapping[str, int]
    cores: tuple[int, int]
    dtypes: tuple[str, ...]
    numerics: str
    value: float
    unit: str
    box: str
    source: str
    role: str
    reason: str

    @property
    def name(self) -> str:
        """How tables call it: the kernel, its variant, shape, tiles and cores."""
        tiles = "/".join(str(number) for number in self.tiles.values())
        cores = f"{self.cores[0]}x{self.cores[1]}"
        return " ".join(part for part in (self.kernel, self.variant, self.shape_text, tiles, cores) if part)

    @property
    def is_one_of_several(self) -> bool:
        """Whether it is what a launch adds to a program of several, and no program's time."""
        return IN_SITU in self.variant

    @property
    def is_from_elf(self) -> bool:
        """Whether each launch loaded its design: several in an ELF, and attention (attn_npu2.py)."""
        return self.is_one_of_several or self.kernel == "flash_attention"

    @property
    def series(self) -> str:
        """What an affine fit takes as one kernel: the class, and for a GEMM what makes its inner loop."""
        if self.is_one_of_several:
            return f"{self.kernel} {IN_SITU}"
        return f"{self.kernel} {self.variant.split(',')[0]}" if "gemm" in self.kernel else self.kernel


def fit_rows(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows that a fit may see."""
    return [row for row in rows if row.role == FIT and row.unit == MICROSECONDS]


def read_measurements(path: Path = DATA) -> list[Measurement]:
    """All rows of the file, in its order. Raises UserError for a line that is none."""
    return list(_rows(path))


def _rows(path: Path) -> Iterator[Measurement]:
    header: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if not header:
            header = cells
            if tuple(header) != COLUMNS:
                raise UserError(f"{path.name}, line {number}: the columns must be {', '.join(COLUMNS)}")
            continue
        if len(cells) != len(header):
            raise UserError(
                f"{path.name}, line {number}: {len(cells)} cells for {len(header)} columns; "
                "separate them with tabs"
            )
        yield _measurement(dict(zip(header, cells, strict=True)), f"{path.name}, line {number}")


def _measurement(cells: Mapping[str, str], where: str) -> Measurement:
    if cells["role"] not in ROLES:
        raise UserError(f"{where}: role {cells['role']!r} is none of {', '.join(ROLES)}")
    if cells["unit"] not in UNITS:
        raise UserError(f"{where}: unit {cells['unit']!r} is none of {', '.join(UNITS)}")
    if cells["role"] == LEFT_OUT and not cells["reason"]:
        raise UserError(f"{where}: a row that is left out must give its reason")
    try:
        value = float(cells["value"])
        columns, rows = (int(count) for count in (cells["cores"] or "0x0").split("x"))
    except ValueError:
        raise UserError(
            f"{where}: value {cells['value']!r} and cores {cells['cores']!r} must be a number, and columns "
            "x rows"
        ) from None
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{where}: value {cells['value']!r} is no time; give a number above 0")
    return Measurement(
        kernel=cells["class"],
        variant=cells["variant"],
        shape=_numbers(cells["shape"]),
        shape_text=cells["shape"],
        tiles=_numbers(cells["tiles"]),
        cores=(columns, rows),
        dtypes=tuple(cells["dtypes"].split()),
        numerics=cells["numerics"],
        value=value,
        unit=cells["unit"],
        box=cells["box"],
        source=cells["source"],
        role=cells["role"],
        reason=cells["reason"],
    )


def _numbers(text: str) -> dict[str, int]:
    """The `name=number` pairs of a cell; other words are remarks."""
    pairs = (word.partition("=") for word in text.split())
    return {name: int(value) for name, _, value in pairs if value.isdigit()}
