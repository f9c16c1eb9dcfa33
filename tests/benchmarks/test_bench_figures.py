"""From measurements to figures: units, directions of ratios, shares, targets, and what the tables show."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from aerie.common.text_tables import print_tables
from benchmarks.drafts import DraftFigures
from benchmarks.figures import OURS, THEIRS, Samples, add_rates, record, shares_of_programs, verdicts
from benchmarks.instruction_sets import LIMITS
from benchmarks.tables import comparison_table, machine_lines, missed_targets, peaks_by_set, table_by_set

GB = 1e9
PEAKS = {
    "product_gflop_per_s": [200.0, 400.0],
    "f32_fma_gflop_per_s": [100.0, 200.0],
    "memory_gb_per_s": [20.0, 30.0],
}
PROGRAMS = add_rates(
    {
        "o_ffn_ar2048": {"calls": 16, "seconds": 1.0, "flops": 300 * GB, "nbytes": GB},
        "o_ffn_ar8": {"calls": 1, "seconds": 0.1, "flops": GB, "nbytes": GB},
        "cached_attn_ar2048_cl2048": {"calls": 45, "seconds": 0.1, "flops": 0.0, "nbytes": GB},
        "cached_attn_ar8_cl2048": {"calls": 3, "seconds": 0.5, "flops": 0.0, "nbytes": GB},
        "flash_attn": {"calls": 4, "seconds": 0.1, "flops": 12 * GB, "nbytes": GB},
        "rms_gemv_rope": {"calls": 16, "seconds": 0.001, "flops": GB, "nbytes": 0.016 * GB},
        "o_gemv_ffn": {"calls": 16, "seconds": 0.004, "flops": GB, "nbytes": 0.1 * GB},
        "lm_head_gemv": {"calls": 1, "seconds": 0.02, "flops": GB, "nbytes": 0.5 * GB},
    }
)
LEAST = {"prefill_ratio": 1.0, "decode_ratio": 2.0, "gemv_share": 0.8, "attention_share": 0.8}


def measured(rounds=3, theirs_once=False) -> Samples:
    """A run in which ours is twice as fast in prefill and four times in decode."""
    weighed = (int(2.5 * GB), int(2.4 * GB), 32768, 180 * GB)
    samples = Samples(*weighed, (16, 64, 2048), (64, 2048), (128, 2048), ("prose", "code_editing"))
    for number in range(rounds):
        slow = 1 + number  # the machine is more and more loaded, for both
        for side, prefill, decode in ((OURS, 4.0, 0.1), (THEIRS, 8.0, 0.4)):
            samples.add(side, "first_16", slow * (0.12 if side == OURS else 0.1))
            samples.add(side, "first_64", slow * prefill / 32)
            if side == OURS or not (theirs_once and number):
                samples.add(side, "first_2048", slow * prefill)
            samples.add(side, "decode_128", slow * decode)
            samples.add(side, "decode_2048", slow * decode * 1.25)
        for context in (128, 2048):
            samples.add("machine", f"bandwidth_{context}", 30 * GB / slow)
            samples.add(OURS, f"python_{context}", 0.0015 * slow)
            samples.add(OURS, f"call_overhead_{context}", 12e-6 * slow)
            samples.add(OURS, f"attention_{context}", 0.003 * slow)
            samples.add(OURS, f"guide_{context}", 0.1 * slow)
            samples.add(OURS, f"rows_{context}", (0.13 if context == 128 else 0.14) * slow)
        samples.add("machine", "beside_2048", 20 * GB / slow)
        samples.add(OURS, "programs_beside_2048", 0.16 * slow)
        samples.add(OURS, "attention_beside_2048", 0.005 * slow)
        for rows, seconds in ((1, 0.1), (8, 0.15), (16, 0.17)):
            samples.add(OURS, f"few_rows_{rows}", seconds * slow)
        samples.add(OURS, "shared", 0.1 * slow)
        for number, seconds in ((1, 0.1), (8, 0.125), (16, 0.25)):
            samples.add(OURS, f"together_{number}", seconds * slow)
        samples.add(THEIRS, "together_8", 0.375 * slow)
        for text, lookup in (("prose", 0.15), ("code_editing", 0.02)):
            row = DraftFigures(0.1 * slow, 0.15 * slow, lookup * slow, 1.5, 0.75)
            for name, value in row._asdict().items():
                samples.add(OURS, f"{text}_{name}", value)
        for name, seconds in (
            ("pool_new", 4),
            ("pool_shared", 0.2),
            ("decode_pages", 0.11),
            ("decode_own", 0.1),
            ("http_first", 0.001),
            ("http_token", 0.0002),
            ("http_together", 0.125),
            ("engine_together", 0.12),
        ):
            samples.add(OURS, name, seconds * slow)
    for side in (OURS, THEIRS):
        for name, value in (("load", 3.0), ("ready", 5.0), ("cold", 9.0), ("peak_bytes", 3 * GB)):
            samples.add(side, name, value)
    samples.add(OURS, "compile", 100.0)
    samples.add(OURS, "load_and_run", 17e-6)
    return samples


def whole(judged=True, **how):
    return record(measured(**how), PROGRAMS, PEAKS, LEAST if judged else None, title="a set")


def test_ratios_are_speeds_and_round_by_round():
    found = whole()
    assert found["prefill_ratio_64"] == found["prefill_ratio_2048"] == pytest.approx(2)
    assert found["decode_ratio_128"] == found["decode_ratio_2048"] == pytest.approx(4)
    assert found["first_token_ratio_64"] == found["first_token_ratio_2048"] == pytest.approx(0.5)
    assert found["first_token_ratio_16"] == pytest.approx(1.2)
    assert "prefill_ratio_16" not in found
    assert found["rss_ratio"] == pytest.approx(1.2)


def test_ratios_of_ours_alone_are_times():
    found = whole()
    assert (found["rows_ratio_128"], found["rows_ratio_2048"]) == pytest.approx((1.3, 1.4))
    assert (found["few_rows_ratio_8"], found["few_rows_ratio_16"]) == pytest.approx((1.5, 1.7))
    assert found["shared_ratio"] == pytest.approx(0.1 / 4)
    assert (found["together_ratio_8"], found["together_ratio_16"]) == pytest.approx((6.4, 6.4))
    assert (found["batch_ratio"], found["pool_ratio"]) == pytest.approx((3, 0.05))
    assert found["paging_ratio"] == pytest.approx(1.1)
    assert found["http_together_ratio_16"] == pytest.approx(0.96)
    assert (found["lookup_ratio_prose"], found["lookup_guide_ratio_prose"]) == pytest.approx((1, 1 / 1.5))
    assert (found["lookup_ratio_code_editing"], found["lookup_guide_ratio_code_editing"]) == pytest.approx(
        (7.5, 5)
    )


def test_what_the_other_side_measured_once_is_held_against_the_same_round():
    found = whole(theirs_once=True)
    assert found["prefill_ratio_2048"] == pytest.approx(2)
    assert found[THEIRS]["first_token_2048_s"] == 8.0
    assert found[OURS]["first_token_2048_s"] == 8.0  # the median of 4, 8 and 12


def test_units():
    found = whole()
    ours = found[OURS]
    assert ours["first_token_2048_s"] == 8.0
    assert ours["first_token_64_s"] == 0.25
    assert ours["first_token_shared_s"] == pytest.approx(0.2)
    assert ours["decode_rows_128_ms"] == pytest.approx(260)
    assert (ours["few_rows_1_ms"], ours["few_rows_16_ms"]) == pytest.approx((200, 340))
    assert ours["decode_128_ms"] == pytest.approx(200)
    assert ours["python_ms"] == pytest.approx(3)
    assert ours["call_overhead_us"] == pytest.approx(24)
    assert ours["load_and_run_us"] == pytest.approx(17)
    assert ours["attention_2048_ms"] == pytest.approx(6)
    assert (ours["http_first_token_ms"], ours["http_token_ms"]) == pytest.approx((2, 0.4))
    assert ours["http_together_tokens_per_s"] == pytest.approx(64)
    assert "compile_s" not in found[THEIRS]
    assert found["bandwidth_bytes_per_s"] == 30 * GB


def test_shares_of_bandwidth_are_round_by_round():
    """Of what memory gave in that round, or beside that token, whatever it gave in others."""
    found = whole()
    assert found[OURS]["bandwidth_share_128"] == pytest.approx(2.4 / 0.1 / 30)
    assert found[OURS]["bandwidth_share_2048"] == pytest.approx(2.4 / 0.125 / 30)
    assert found[THEIRS]["bandwidth_share_128"] == pytest.approx(2.4 / 0.4 / 30)
    assert found[OURS]["gemv_share"] == pytest.approx(2.4 / 0.16 / 20)
    assert found[OURS]["attention_share_2048"] == pytest.approx(2048 * 32768 / 0.005 / (20 * GB))


def test_shares_of_what_the_machine_can_do():
    ours = whole()[OURS]
    assert (ours["product_gflop_per_s"], ours["product_share"]) == pytest.approx((300, 0.75))
    assert (ours["flash_gflop_per_s"], ours["flash_share"]) == pytest.approx((120, 0.4))
    assert (ours["cached_gflop_per_s"], ours["cached_share"]) == pytest.approx((3 * 180 / 6, 0.3))
    assert ours["gemv_gb_per_s"] == pytest.approx((16 * 0.116 + 0.5) / (16 * 0.005 + 0.02))


def test_a_slower_program_counts_by_its_time():
    """Not the mean of rates: a slow one takes most of the time."""
    programs = dict(PROGRAMS, lm_head_gemv={"calls": 1, "ms": 1000.0, "gflop_per_s": 1.0, "gb_per_s": 0.5})
    assert shares_of_programs(measured(), programs, 400)["gemv_gb_per_s"] == pytest.approx(2.356 / 1.08)


def test_targets():
    found = whole()
    met = {name: verdict["met"] for name, verdict in found["targets"].items()}
    assert met == {
        "first_token_ratio_16": False,
        "first_token_ratio_64": True,
        "first_token_ratio_2048": True,
        "rows_ratio_128": True,
        "rows_ratio_2048": False,
        "few_rows_ratio_8": False,
        "few_rows_ratio_16": True,
        "shared_ratio": True,
        "together_ratio_8": True,
        "together_ratio_16": False,
        "batch_ratio": True,
        "lookup_ratio_code_editing": True,
        "lookup_ratio_prose": True,
        "pool_ratio": True,
        "paging_ratio": False,
        "prefill_ratio_64": True,
        "prefill_ratio_2048": True,
        "decode_ratio_128": True,
        "decode_ratio_2048": True,
        "bandwidth_share_128": True,
        "bandwidth_share_2048": False,
        "http_first_token_ms": True,
        "http_token_ms": False,
        "http_together_ratio_16": True,
        "rss_ratio": True,
        "compile_s": False,
        "ready_s": True,
        "call_overhead_us": True,
        "load_and_run_us": True,
        "python_ms": False,
        "flash_share": False,
        "cached_share": False,
        "gemv_share": False,
        "attention_share_2048": False,
    }
    assert whole(judged=False)["targets"] == {}


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("prefill_ratio_64", 1.0, True),
        ("prefill_ratio_2048", 0.99, False),
        ("first_token_ratio_512", 1.1, True),
        ("first_token_ratio_512", 1.11, False),
        ("few_rows_ratio_8", 1.35, True),
        ("few_rows_ratio_8", 1.36, False),
        ("few_rows_ratio_16", 1.8, True),
        ("shared_ratio", 0.06, False),
        ("together_ratio_8", 5.5, True),
        ("together_ratio_16", 7.9, False),
        ("batch_ratio", 1.9, False),
        ("lookup_ratio_prose", 0.97, True),
        ("lookup_ratio_prose", 0.96, False),
        ("lookup_ratio_quoting_summary", 1.99, False),
        ("pool_ratio", 0.06, True),
        ("paging_ratio", 1.04, False),
        ("http_first_token_ms", 3.01, False),
        ("http_token_ms", 0.3, True),
        ("http_together_ratio_16", 0.89, False),
        ("rss_ratio", 1.3, True),
        ("rss_ratio", 1.31, False),
    ],
)
def test_a_bound_itself_is_met(name, value, met):
    assert verdicts({name: value}, LEAST)[name]["met"] is met


def test_no_verdict_without_a_target():
    assert verdicts({"load_s": 1.0, "decode_128_ms": 1.0, "peak_bytes": 1.0}, LEAST) == {}


def test_each_set_has_targets_of_its_own():
    """Those of the comparison with transformers, and of memory's bandwidth."""
    wanted = {name: tuple(limits.targets.values())[:3] for name, limits in LIMITS.items() if limits.targets}
    assert wanted == {
        "avx2": (1.5, 1.5, 0.7),
        "avx512": (1.2, 1.5, 0.8),
        "avx512_bf16": (1.0, 2.0, 0.8),
        "amx": (1.0, 1.5, 0.8),
    }


def printed(*tables, width=80) -> str:
    out = io.StringIO()
    print_tables(Console(file=out, width=width), *tables)
    return out.getvalue()


def compared(judged=True, width=80) -> str:
    return printed(comparison_table("a model", "AVX2", whole(judged)), width=width)


def row(text, label) -> list[str]:
    (line,) = (line for line in text.splitlines() if label in line)
    return line.split()


def test_the_table_fits_80_columns_and_is_whole_on_a_narrower_terminal():
    text = compared(width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, "first token of 2048")[3:] == [
        "2048,",
        "s",
        "8.000",
        "16.000",
        "0.50",
        "<=",
        "1.1",
        "met",
    ]
    assert row(text, "first token of 16,")[-4:] == ["<=", "1.1", "not", "met"]
    assert row(text, "of 8 rows")[-6:] == ["300.0", "1.50", "<=", "1.35", "not", "met"]
    assert row(text, "peak resident")[-6:] == ["3.00", "3.00", "1.20", "<=", "1.3", "met"]
    assert row(text, "compiling")[-5:] == ["100.0", "<=", "90", "not", "met"]
    narrow = compared(width=40)
    assert "…" not in narrow
    assert all(figure in narrow.split() for figure in ("8.000", "16.000", "100.0"))


def test_one_context_has_one_row():
    found = {**whole(judged=False), "contexts": [128]}
    found["ours"] |= {"attention_128_ms": 1.0, "attention_share_128": 0.5}
    labels = [str(cell) for cell in comparison_table("a model", "AVX2", found).columns[0].cells]
    assert len([label for label in labels if label.startswith("decode at 128")]) == 1


def test_sets_stand_side_by_side_in_80_columns():
    titles = ("AVX2", "AVX-512", "AVX512-BF16", "AMX-BF16")
    text = printed(table_by_set("a model", {title: whole() for title in titles}))
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, "prompt of 2048: ours/theirs")[4:] == ["0.50", "<=", "1.1"] * 4
    assert row(text, "prompt of 16: ours/theirs")[4:] == ["1.20", ">", "1.1"] * 4
    assert row(text, "decode at 128: theirs/ours")[4:] == ["4.00", ">=", "2"] * 4
    assert row(text, "flash_attn, of products")[3:] == ["0.40", "<", "0.5"] * 4
    assert row(text, "pass of 8 rows")[-12:] == ["1.50", ">", "1.35"] * 4
    assert row(text, "product in L1")[-4:] == ["400"] * 4
    ours, theirs = [line for line in text.splitlines() if "ms/token" in line][:2]
    assert ours.split() == ["ours,", "ms/token", *["200.0"] * 4]
    assert theirs.split() == ["transformers,", "ms/token", *["800.0"] * 4]


def test_a_set_alone_and_not_judged():
    text = printed(table_by_set("a model", {"native, AVX2": whole(judged=False)}))
    assert row(text, "decode at 128: theirs/ours")[-1] == "4.00"


def test_what_is_missed_is_reported_by_set():
    lines = list(missed_targets({"AVX2": whole(), "AVX-512": whole(judged=False)}))
    assert "AVX2: flash_share 0.40, wanted >= 0.5" in lines
    assert "AVX2: compile_s 100.00, wanted <= 90" in lines
    assert "AVX2: few_rows_ratio_8 1.50, wanted <= 1.35" in lines
    assert len(lines) == 13


def test_peaks_by_set():
    text = printed(peaks_by_set({"AVX2": PEAKS, "AVX-512": PEAKS}))
    assert row(text, "product in L1, GFLOP/s")[-4:] == ["200", "400", "200", "400"]
    assert row(text, "memory, GB/s")[-4:] == ["20", "30", "20", "30"]


MACHINE = {
    **{"cpu": "A CPU", "cpus": 4, "cores": 2, "threads": 4, "instruction_sets": ["AVX2", "AVX-512"]},
    **{"cache_bytes": {"L1d": 48 << 10, "L3": 32 << 20}, "memory_bytes": 25 << 30, "compiler": "g++ 12"},
}


def test_lines_on_the_machine():
    assert machine_lines(MACHINE) == [
        "A CPU: 4 CPUs (hyperthreads) on 2 cores, 4 threads used; has AVX2, AVX-512",
        "caches: L1d 48 KiB, L3 32 MiB; memory: 25 GiB; compiler: g++ 12",
    ]


def test_lines_on_a_machine_of_which_little_is_known():
    little = {"cpus": 1, "cores": 1, "threads": 1, "instruction_sets": [], "cache_bytes": {}}
    assert machine_lines({**MACHINE, **little, "memory_bytes": None}) == [
        "A CPU: 1 CPU on 1 core, 1 thread used; has no instruction set that is known",
        "caches: not known; memory: not known; compiler: g++ 12",
    ]


def test_another_model_is_not_judged():
    assert "met" not in row(compared(judged=False), "decode at 128")


def test_rates_of_programs():
    rates = add_rates({"o_ffn": {"calls": 32, "seconds": 0.5, "flops": 2e9, "nbytes": 1e9}})
    assert rates == {"o_ffn": {"calls": 32, "ms": 500.0, "gflop_per_s": 4.0, "gb_per_s": 2.0}}
