"""Measures where the time goes: calls and milliseconds per program, then host work, then the total."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerie.common.text_tables import compact_table, print_tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COMPUTE_BOUND = 16.0
"""Operations per byte from which a program's rate is shown in GFLOP/s; below it, in GB/s."""


@dataclass
class ProgramTimes:
    """Times of one program, in seconds. flops, nbytes: of one call; 0 if unknown.

    bytes_moved: bytes that the host wrote to its buffers and read from them, in all calls.
    """

    calls: int = 0
    bytes_moved: int = 0
    write: float = 0.0
    run: float = 0.0
    read: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of writing, running and reading."""
        return self.write + self.run + self.read

    @property
    def rate(self) -> str:
        """GFLOP/s or GB/s over the time in `run`; "" if the work of a call is unknown."""
        if not self.run:
            return ""
        if self.flops and self.flops >= COMPUTE_BOUND * self.nbytes:
            return f"{self.calls * self.flops / self.run / 1e9:.1f} GFLOP/s"
        return f"{self.calls * self.nbytes / self.run / 1e9:.1f} GB/s" if self.nbytes else ""


@dataclass
class SpanTimes:
    """Times of one named piece of host work, in seconds, without the program calls and spans inside it."""

    calls: int = 0
    total: float = 0.0


@dataclass
class Profiler:
    """Collects times while `enabled`; otherwise it costs a flag test. Not thread-safe."""

    enabled: bool = True
    programs: dict[str, ProgramTimes] = field(default_factory=dict)
    spans: dict[str, SpanTimes] = field(default_factory=dict)
    _counted: float = 0.0
    _work: dict[str, tuple[float, float]] = field(default_factory=dict)

    def declare(self, program: str, flops: float = 0.0, nbytes: float = 0.0) -> None:
        """Declare the work of one call of a program: operations, and bytes of its buffers. 0 keeps the last
        value.
        """
        known_flops, known_nbytes = self._work.get(program, (0.0, 0.0))
        self._work[program] = flops or known_flops, nbytes or known_nbytes

    def record(
        self, program: str, write: float, run: float, read: float, moved: int = 0, calls: int = 1
    ) -> None:
        """Count calls of a program: seconds of writing arguments, running, reading results; bytes moved."""
        times = self.programs.get(program)
        if times is None:
            times = self.programs[program] = ProgramTimes()
        times.calls += calls
        times.bytes_moved += moved
        times.write += write
        times.run += run
        times.read += read
        times.flops, times.nbytes = self._work.get(program, (0.0, 0.0))
        self._counted += write + run + read

    def span(self, name: str) -> AbstractContextManager[None]:
        """A context that counts host work under a name, without the calls and spans recorded inside it."""
        return _Span(self, name) if self.enabled else contextlib.nullcontext()

    def count_span(self, name: str, seconds: float, calls: int = 1) -> None:
        """Count `seconds` of host work, without what was recorded inside it."""
        times = self.spans.get(name)
        if times is None:
            times = self.spans[name] = SpanTimes()
        times.calls += calls
        times.total += seconds
        self._counted += seconds

    @property
    def total(self) -> float:
        """Seconds in program calls and spans."""
        return self._counted

    @property
    def bytes_moved(self) -> int:
        """Bytes that the host wrote to buffers and read from them."""
        return sum(times.bytes_moved for times in self.programs.values())

    def reset(self) -> None:
        """Forget all times, as after a warm-up. Declared work stays."""
        self.programs.clear()
        self.spans.clear()
        self._counted = 0.0

    def table(self) -> Table:
        """Programs, then host operations, then the total; times in milliseconds."""
        headings = ("calls", "write", "run", "read", "total", "share", "rate", "moved")
        table = compact_table("where the time went (milliseconds)", ("program or host operation",), headings)
        programs = sorted(self.programs.items(), key=lambda item: -item[1].total)
        spans = sorted(self.spans.items(), key=lambda item: -item[1].total)
        totals = [times.total for _, times in programs] + [spent.total for _, spent in spans]
        shares = iter(_percentages(totals))
        for name, times in programs:
            parts = [_ms(seconds) for seconds in (times.write, times.run, times.read, times.total)]
            table.add_row(name, str(times.calls), *parts, next(shares), times.rate, _mb(times.bytes_moved))
        table.add_section()
        for name, spent in spans:
            table.add_row(f"host: {name}", str(spent.calls), "", "", "", _ms(spent.total), next(shares))
        table.add_section()
        total_share = "100.0 %" if self.total else "0.0 %"
        table.add_row("total", "", "", "", "", _ms(self.total), total_share, "", _mb(self.bytes_moved))
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table, to standard error by default; never narrower than its numbers."""
        from rich.console import Console

        print_tables(console or Console(stderr=True), self.table())


class _Span:
    """Times the block that it is entered for."""

    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler, self._name = profiler, name

    def __enter__(self) -> None:
        self._counted, self._started = self._profiler.total, time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._started
        self._profiler.count_span(self._name, spent - (self._profiler.total - self._counted))


def _percentages(times: Sequence[float]) -> list[str]:
    """The share of each in their sum, rounded to tenths of a percent that add up to 100.0.

    All are rounded down; those with the largest remainders are rounded up instead.
    """
    total = sum(times)
    exact = [1000 * seconds / total if total else 0.0 for seconds in times]
    tenths = [int(share) for share in exact]
    short = round(sum(exact)) - sum(tenths)
    for i in sorted(range(len(times)), key=lambda i: tenths[i] - exact[i])[:short]:
        tenths[i] += 1
    return [f"{share / 10:.1f} %" for share in tenths]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB"
