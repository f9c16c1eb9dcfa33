"""From measurements to figures: units, directions of ratios, targets, and what the table shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from aerie.runtime.tables import print_tables
from benchmarks.bench import with_rates
from benchmarks.figures import OURS, THEIRS, Samples, record, table, verdicts

GB = 1e9


def measured(rounds=3) -> Samples:
    """A run in which ours is twice as fast in prefill and four times in decode."""
    samples = Samples(int(2.5 * GB), int(2.4 * GB), 2048, (128, 2048))
    for number in range(rounds):
        slow = 1 + number  # the machine is more and more loaded, for both
        for side, prefill, decode in ((OURS, 4.0, 0.1), (THEIRS, 8.0, 0.4)):
            samples.add(side, "warm", slow * prefill)
            samples.add(side, "prefill", slow * prefill)
            samples.add(side, "decode_128", slow * decode)
            samples.add(side, "decode_2048", slow * decode * 1.25)
        for context in (128, 2048):
            samples.add("machine", f"bandwidth_{context}", 30 * GB / slow)
            samples.add(OURS, f"python_{context}", 0.0015 * slow)
            samples.add(OURS, f"call_overhead_{context}", 12e-6 * slow)
    for side in (OURS, THEIRS):
        for name, value in (("load", 3.0), ("ready", 5.0), ("cold", 9.0), ("peak_bytes", 3 * GB)):
            samples.add(side, name, value)
    samples.add(OURS, "compile", 70.0)
    samples.add(OURS, "load_and_run", 17e-6)
    return samples


def whole(judged=True):
    samples = measured()
    return record(samples, judged=judged, model="a model"), samples


def test_ratios_are_speeds_and_round_by_round():
    found, _ = whole()
    assert found["prefill_ratio"] == pytest.approx(2)
    assert found["decode_ratio_128"] == found["decode_ratio_2048"] == pytest.approx(4)
    assert found["rss_ratio"] == pytest.approx(1.2)


def test_units():
    found, _ = whole()
    ours = found[OURS]
    assert ours["prefill_s"] == 8.0
    assert ours["prefill_tokens_per_s"] == pytest.approx(256)
    assert ours["decode_128_ms"] == pytest.approx(200)
    assert ours["python_ms"] == pytest.approx(3)
    assert ours["call_overhead_us"] == pytest.approx(24)
    assert ours["load_and_run_us"] == pytest.approx(17)
    assert "compile_s" not in found[THEIRS]
    assert found["bandwidth_bytes_per_s"] == 30 * GB


def test_shares_of_bandwidth_are_round_by_round():
    """Of what memory gave in that round, whatever it gave in others."""
    found, _ = whole()
    assert found[OURS]["bandwidth_share_128"] == pytest.approx(2.4 / 0.1 / 30)
    assert found[OURS]["bandwidth_share_2048"] == pytest.approx(2.4 / 0.125 / 30)
    assert found[THEIRS]["bandwidth_share_128"] == pytest.approx(2.4 / 0.4 / 30)


def test_targets():
    found, _ = whole()
    met = {name: verdict["met"] for name, verdict in found["targets"].items()}
    assert met == {
        "prefill_ratio": True,
        "decode_ratio_128": True,
        "decode_ratio_2048": True,
        "bandwidth_share_128": True,
        "bandwidth_share_2048": False,
        "rss_ratio": True,
        "compile_s": False,
        "ready_s": True,
        "call_overhead_us": True,
        "load_and_run_us": True,
        "python_ms": False,
    }
    assert whole(judged=False)[0]["targets"] == {}


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("prefill_ratio", 1.0, True),
        ("prefill_ratio", 0.99, False),
        ("rss_ratio", 1.25, True),
        ("rss_ratio", 1.3, False),
    ],
)
def test_a_bound_itself_is_met(name, value, met):
    assert verdicts({name: value})[name]["met"] is met


def test_no_verdict_without_a_target():
    assert verdicts({"load_s": 1.0, "decode_128_ms": 1.0, "peak_bytes": 1.0}) == {}


def printed(judged=True, width=80) -> str:
    found, samples = whole(judged)
    out = io.StringIO()
    print_tables(Console(file=out, width=width), table(found, samples))
    return out.getvalue()


def row(text, label) -> list[str]:
    (line,) = (line for line in text.splitlines() if label in line)
    return line.split()


def test_the_table_fits_80_columns_and_is_whole_on_a_narrower_terminal():
    text = printed(width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, "prefill of 2048") == [
        "prefill",
        "of",
        "2048",
        "tokens,",
        "s",
        "8.00",
        "16.00",
        "2.00",
        ">=",
        "1",
        "met",
    ]
    assert row(text, "peak resident")[-6:] == ["3.00", "3.00", "1.20", "<=", "1.25", "met"]
    assert row(text, "compiling")[-5:] == ["70.0", "<=", "60", "not", "met"]
    narrow = printed(width=40)
    assert "…" not in narrow
    assert all(figure in narrow.split() for figure in ("8.00", "16.00", "70.0"))


def test_one_context_has_one_row():
    found, samples = whole(judged=False)
    samples.contexts = (128,)
    labels = [str(cell) for cell in table(found, samples).columns[0].cells]
    assert labels.count("decode at context 128, ms/token") == 1
    assert not [label for label in labels if "the same at" in label]


def test_another_model_is_not_judged():
    assert "met" not in row(printed(judged=False), "decode at context 128")


def test_rates_of_programs():
    rates = with_rates({"o_ffn": {"calls": 32, "seconds": 0.5, "flops": 2e9, "nbytes": 1e9}})
    assert rates == {"o_ffn": {"calls": 32, "ms": 500.0, "gflop_per_s": 4.0, "gb_per_s": 2.0}}
