"""The profiler: what it counts, what it shows, what it costs when off."""

import io
import re
import time

import numpy as np
import pytest
from rich.console import Console

from aerie.runtime import Profiler


def render(profiler, width=140):
    text = io.StringIO()
    profiler.print(Console(width=width, file=text))
    return text.getvalue()


@pytest.fixture
def profiler():
    profiler = Profiler()
    profiler.declare("gemm", flops=2e9, nbytes=1e6)
    profiler.declare("gemv", flops=1e6, nbytes=1e6)
    for _ in range(2):
        profiler.record("gemm", write=0.010, run=0.200, read=0.005)
        profiler.record("gemv", write=0.0, run=0.001, read=0.0)
    profiler.record("unknown", 0.0, 0.001, 0.0)
    return profiler


def test_without_a_console_it_prints_on_standard_error(profiler, capsys):
    profiler.print()
    output = capsys.readouterr()
    assert "gemm" in output.err
    assert output.out == ""


def test_programs(profiler):
    gemm = profiler.programs["gemm"]
    assert gemm.calls == 2
    assert gemm.total == pytest.approx(0.43)
    assert gemm.rate == "10.0 GFLOP/s"
    assert profiler.programs["gemv"].rate == "1.0 GB/s"
    assert profiler.programs["unknown"].rate == ""
    assert profiler.total == pytest.approx(0.433)


def test_the_table_lists_programs_then_host_then_total(profiler):
    with profiler.span("sampling"):
        pass
    lines = [line for line in render(profiler).splitlines() if "%" in line]
    names = [re.split(r" {2,}| \d", line)[0] for line in lines]
    assert names == ["gemm", "gemv", "unknown", "host: sampling", "total"]
    assert lines[0].split() == [
        "gemm",
        "2",
        "20.00",
        "400.00",
        "10.00",
        "430.00",
        "99.3",
        "%",
        "10.0",
        "GFLOP/s",
        "0.00",
        "MB",
    ]
    assert "100.0 %" in lines[-1]


@pytest.mark.parametrize("width", [1, 40, 80])
def test_a_narrow_console_gets_whole_figures(profiler, width):
    """Names wrap, words longer than their cell too; figures never do, whatever COLUMNS says."""
    profiler.record("a_program_with_a_name_longer_than_its_cell", 1e4, 1e5, 1e4)
    text = render(profiler, width)
    figures = re.findall(r"\d+\.\d+ \S+|\d+\.\d+", render(profiler, 200))
    assert re.findall(r"\d+\.\d+ \S+|\d+\.\d+", text) == figures
    assert "…" not in text


def test_eighty_columns_are_enough():
    """For times of seconds, and the longest names that there are."""
    profiler = Profiler()
    profiler.declare("rms_gemms_rope", flops=10**9)
    profiler.record("rms_gemms_rope", 0.09, 1.0, 0.09)
    with profiler.span("between recorded calls"):
        pass
    assert max(map(len, render(profiler, 80).splitlines())) <= 80


def test_shares_add_up():
    for count in (3, 6, 7, 11, 13):
        profiler = Profiler()
        for i in range(count):
            profiler.record(f"p{i}", write=0.0, run=1.0 + i % 2, read=0.0)
        with profiler.span("sampling"):
            pass
        shares = [
            float(part.split("%")[0].split()[-1]) for part in render(profiler).splitlines() if "%" in part
        ]
        assert len(shares) == count + 2
        assert round(sum(shares[:-1]), 1) == shares[-1] == 100.0


def test_an_empty_table_renders():
    assert "0.0 %" in render(Profiler())


def test_spans_count_only_their_own_work(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    profiler = Profiler()
    with profiler.span("outer"), profiler.span("inner"):
        profiler.record("program", write=0.0, run=2.0, read=0.0)
    assert profiler.spans["inner"].total == 1.0
    assert profiler.spans["outer"].total == 7.0
    assert profiler.total == 10.0


def test_reset_keeps_the_declared_work(profiler):
    profiler.reset()
    assert profiler.total == 0
    profiler.record("gemm", 0.0, 0.2, 0.0)
    assert profiler.programs["gemm"].rate == "10.0 GFLOP/s"


def test_off_counts_nothing(open_cache, program, arrays):
    profiler = Profiler(enabled=False)
    with profiler.span("host"):
        pass
    cache = open_cache(profiler=profiler)
    cache.compile_and_cache(program)
    cache.run(program, **arrays)
    assert not profiler.spans
    assert not profiler.programs


def test_the_cache_records_calls_and_declares_bytes(cache, arrays):
    started = time.perf_counter()
    cache.run("scale", **arrays)
    cache.load_and_run("scale", *[np.zeros((4, 8), np.float32)] * 4)
    elapsed = time.perf_counter() - started
    times = cache.profiler.programs["scale"]
    assert times.calls == 2
    assert min(times.write, times.run, times.read) > 0
    assert times.write + times.run + times.read <= elapsed
    assert times.nbytes == 4 * 4 * 8 * 4
    cache.profiler.declare("scale", flops=1e12)
    cache.run("scale", x=arrays["x"])
    assert cache.profiler.programs["scale"].rate.endswith("GFLOP/s")
