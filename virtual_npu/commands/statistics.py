"""What tiles and channels did, as tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from virtual_npu.commands.reporting import print_table

_TILES = {
    "where": "tile or body",
    "line": "line",
    "bytes_in": "bytes in",
    "bytes_out": "bytes out",
    "transfers": "transfers",
    "kernel_calls": "kernel calls",
    "peak_l1_bytes": "peak L1 bytes",
}
_CHANNELS = {
    "name": "channel",
    "transfers": "transfers",
    "bytes": "bytes",
    "most_in_flight": "most in flight",
}


def print_stats(stats: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The two tables, on standard output."""
    _print("per tile", _TILES, stats["tiles"])
    if stats["channels"]:
        _print("per channel", _CHANNELS, stats["channels"])


def _print(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    cells = [[str(row[key]) for key in columns] for row in rows]
    print_table(title, list(columns.values()), cells, "<" + ">" * (len(columns) - 1), sys.stdout)
