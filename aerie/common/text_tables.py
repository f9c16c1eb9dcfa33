"""Tables of figures that fit 80 columns, on a terminal and in a pipe alike.

Columns stand one blank apart, without lines between them. Figures are never broken; text wraps in its cell,
and a word that is longer than its cell goes on in the next line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

RULED = "    \n    \n -- \n    \n -- \n -- \n    \n    \n"
"""A box of rich's: a rule below the head and between sections, and nothing else."""


VERDICT = ""
"""The heading of a column of single words, which are never broken: ok, FAIL."""


def compact_table(
    title: str, texts: tuple[str, ...], figures: tuple[str, ...], remarks: tuple[str, ...] = ()
) -> Table:
    """A table of columns of text, then of figures, then of text again, by their headings."""
    from rich.box import Box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=Box(RULED, ascii=True),
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", min_width=max(map(len, name.split()), default=0))
    for name in remarks:
        table.add_column(name, overflow="fold", no_wrap=name == VERDICT)
    return table


def print_tables(console: Console, *tables: Table) -> None:
    """Print them as wide as the console is, and never narrower than their figures are.

    Where a table is wider than the console, headings of figures wrap first, then text.
    """
    narrow = console.width
    for table in tables:
        wanted = console.measure(table, options=console.options.update(width=1000))
        for column in table.columns:
            if column.justify == "right":
                cells = [str(cell) for cell in column.cells]
                column.min_width = max(column.min_width or 0, *map(len, cells or [""]))
                column.max_width = column.min_width if wanted.maximum > narrow else None
        least = console.measure(table, options=console.options.update(width=1000)).minimum
        console.width = max(narrow, least)
        console.print(table)
    console.width = narrow


def text_table(rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Rows of cells in columns, two blanks apart; `alignment` has a `<` or `>` for every column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)
        ).rstrip()
        for row in rows
    )
