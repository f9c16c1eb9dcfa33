"""Published times of NPU2 beside predictions: the data, what may be fitted to, the errors, the programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aerie.common.errors import UserError
from aerie.kernel_builder.kernels import gemv
from aerie.virtual_npu.timing import DEFAULT, Parameters, predict
from aerie.virtual_npu.timing.fit import ParameterRange, fit, parameter_ranges
from aerie.virtual_npu.timing.prediction import LIMITS
from benchmarks.board_times import __main__ as command
from benchmarks.board_times import baselines, errors, limits, models
from benchmarks.board_times.errors import Predicted, summarize, variant_pairs
from benchmarks.board_times.measurements import (
    COLUMNS,
    DATA,
    FIT,
    LEFT_OUT,
    TEST,
    Measurement,
    fit_rows,
    read_measurements,
)
from benchmarks.board_times.plot import scatter
from benchmarks.board_times.programs import BUILDERS, WITHOUT_PROGRAM, NotBuildableError, build_program

ROWS = read_measurements()
EXAMPLE = next(row for row in ROWS if row.kernel == "eltwise_add")


def made_up(value: float, role: str = TEST, variant: str = "", box: str = "STX") -> Measurement:
    return replace(EXAMPLE, value=value, role=role, variant=variant, box=box)


# ---- the data ----


def test_every_row_names_a_source_that_the_file_explains() -> None:
    explained = {line.split()[1] for line in DATA.read_text().splitlines() if line.startswith("#   ")}
    named = {row.source.split()[0].strip(",") for row in ROWS}
    assert {name.removesuffix("-calibration") for name in named} - explained == {"AIR-git"} - explained


def test_rows_differ() -> None:
    seen = {(row.name, row.dtypes, row.numerics, row.box, row.source, row.unit) for row in ROWS}
    assert len(seen) == len(ROWS) > 300


HELD_OUT = {"silu_mul", "rms_norm", "gemv", "gemm_bf16", "flash_attention", "program", "decode"}
"""Kernels whose rows are kept for the test, each with no row that a fit may see."""


@pytest.mark.parametrize("kernel", sorted(HELD_OUT))
def test_kernels_that_are_held_out_have_no_fit_row(kernel: str) -> None:
    roles = {row.role for row in ROWS if row.kernel == kernel}
    assert TEST in roles
    assert FIT not in roles


def test_the_pair_of_equal_products_is_held_out() -> None:
    pair = [row for row in ROWS if row.variant in ("EMB native ffn_up", "EMB native ffn_down")]
    assert {row.role for row in pair} == {TEST}
    assert {row.value for row in pair if row.kernel == "gemm_f32"} == {4196, 4273}


def test_doubtful_rows_are_left_out_with_a_reason() -> None:
    left_out = [row for row in ROWS if row.role == LEFT_OUT]
    assert all(row.reason for row in left_out)
    assert sum("dagger" in row.reason for row in left_out) == 3


GOOD = "gelu\tvector\tn=4096\ttile=4096\t1x1\tbf16 bf16\tf32\t10\tus\tSTX\tAIR\tfit\t"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("\tfit\t", "\tmaybe\t"), "role 'maybe' is none of fit, test, left out"),
        (GOOD.replace("\tus\t", "\tms\t"), "unit 'ms' is none of us, cycles"),
        (GOOD.replace("\tfit\t", "\tleft out\t"), "must give its reason"),
        (GOOD.replace("\t10\t", "\tten\t"), "value 'ten' and cores '1x1' must be a number"),
        (GOOD.replace("\t10\t", "\t0\t"), "value '0' is no time"),
        (GOOD.replace("\t", " "), "1 cells for 13 columns; separate them with tabs"),
    ],
)
def test_a_line_that_is_no_measurement_is_refused_with_its_number(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("# a remark\n" + "\t".join(COLUMNS) + "\n" + line + "\n")
    with pytest.raises(UserError, match=r"^rows.tsv, line 3: ") as caught:
        read_measurements(path)
    assert message in str(caught.value)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("class\tvalue\n")
    with pytest.raises(UserError, match="line 1: the columns must be class, variant, shape"):
        read_measurements(path)


# ---- the fit ----


def test_a_fit_sees_fit_rows_only() -> None:
    asked = []

    def predictor(row: Measurement, values: Mapping[str, float]) -> float:
        asked.append(row)
        return values["factor"] * row.value

    values, least = fit(
        fit_rows(ROWS), predictor, {"factor": 1.5}, [ParameterRange("factor", 0.5, 2.0)], lambda _: None
    )
    assert {row.role for row in asked} == {FIT}
    assert {row.unit for row in asked} == {"us"}
    assert values["factor"] == pytest.approx(1.0, abs=0.05)
    assert least == pytest.approx(abs(math.log(values["factor"])))


def test_a_fit_does_not_change_with_the_held_out_rows() -> None:
    def predictor(row: Measurement, values: Mapping[str, float]) -> float:
        return values["factor"] * row.shape["n"]

    own = [made_up(1e5, FIT), made_up(2e5, FIT)]
    results = [
        fit(
            fit_rows([*own, made_up(other)]),
            predictor,
            {"factor": 1.0},
            [ParameterRange("factor", 0.01, 2)],
            lambda _: None,
        )
        for other in (1.0, 1e6)
    ]
    assert results[0] == results[1]


def test_a_fit_stays_in_the_range_of_its_sources() -> None:
    def predictor(row: Measurement, values: Mapping[str, float]) -> float:
        return values["factor"] * row.value

    values, _ = fit(
        [made_up(100, FIT)], predictor, {"factor": 2.0}, [ParameterRange("factor", 1.9, 2.5)], lambda _: None
    )
    assert values["factor"] == 1.9


def test_baselines_are_fitted_to_fit_rows_only() -> None:
    fitting = [
        replace(made_up(50 + n / 1e4, FIT), shape={"n": n}) for n in (10**6, 2 * 10**6, 3 * 10**6, 5 * 10**6)
    ]
    line = baselines.AffineFits([*fitting, replace(made_up(9e9), shape={"n": 7 * 10**6})])
    assert line(replace(EXAMPLE, shape={"n": 4 * 10**6})) == pytest.approx(50 + 400)
    assert baselines.AffineFits(fitting[:3])(EXAMPLE) is None


# ---- errors ----


def test_the_factor_of_a_share_goes_both_ways() -> None:
    chosen = [Predicted(made_up(100), us) for us in (50, 100, 110, 150, 400)]
    assert errors.factor_of(chosen, 0.8) == pytest.approx(2.0)
    assert errors.factor_of(chosen, 0.2) == 1.0
    assert errors.factor_of(chosen, 1.0) == 4.0


def test_the_factors_by_limit_are_printed() -> None:
    row = next(row for row in ROWS if row.kernel == "eltwise_add" and row.role == TEST)
    model = models.TimingModel()
    prediction = model.prediction(row)
    assert prediction is not None
    chosen = [Predicted(row, prediction.total_us), Predicted(replace(row, role=FIT), 1.0)]
    table = command.limit_table(chosen, model, models.start_values())
    assert [[*column.cells] for column in table.columns[:2]] == [[prediction.limited_by, "all"], ["1", "1"]]


def test_errors_are_relative_to_the_measured_time() -> None:
    chosen = [Predicted(made_up(100), 110), Predicted(made_up(200), 100), Predicted(made_up(10), 10)]
    summary = summarize(chosen)
    assert (summary.rows, summary.near, summary.worst) == (3, 2, chosen[1])
    assert summary.median_error == pytest.approx(0.1)
    assert summary.worst.error == pytest.approx(-0.5)


def test_variants_are_ordered_within_one_shape_and_box() -> None:
    one, other = Predicted(made_up(100, variant="a"), 1), Predicted(made_up(200, variant="b"), 2)
    wrong, elsewhere = Predicted(made_up(150, variant="c"), 3), Predicted(made_up(400, box="KRK"), 0)
    summary = summarize([one, other, wrong, elsewhere])
    assert (summary.pairs, summary.ordered) == (3, 2)


def test_variants_as_fast_as_each_other_have_no_order() -> None:
    close = 100 * (1 + errors.MIN_DIFFERENCE / 2)
    assert not variant_pairs([Predicted(made_up(100), 5), Predicted(made_up(close), 1)])


def test_baselines_count_bytes_and_operations() -> None:
    row = next(row for row in ROWS if row.kernel == "gemm_f32")
    m, k, n = (row.shape[side] for side in "mkn")
    nbytes = 2 * (m * k + k * n) + 4 * m * n
    assert baselines.work(row) == (nbytes, 2 * m * k * n)
    assert baselines.bytes_over_bandwidth(row) == pytest.approx(nbytes / 66.6e3)
    assert baselines.operations_over_peak(row) == pytest.approx(2 * m * k * n / 29.49e6)
    assert baselines.work(next(row for row in ROWS if row.kernel == "switch")) is None


# ---- programs ----


def test_every_class_is_built_or_says_why_not() -> None:
    assert {row.kernel for row in ROWS} == {*BUILDERS, *WITHOUT_PROGRAM}


REFUSED = {
    ("gemm_bf16", "it rounds c to bf16 after each L2 tile of K; our GEMM keeps f32 sums"): 16,
    ("gemm_bf16", "its tiles are not published"): 4,
    ("flash_attention", "its tiles are not published, or it skips masked blocks"): 4,
    ("program", "several launches whose tiles are not published"): 12,
    ("eltwise_add", "our eltwise_add has one row of cores, this one 2x4"): 1,
    ("silu_mul", "our silu_mul has one row of cores, this one 2x4"): 1,
    ("rope", "our rope has one row of cores, this one 2x4"): 1,
    ("silu_mul", "our swiglu moves runs of 4096, this one 256"): 1,
    ("silu_mul", "our swiglu moves runs of 4096, this one 512"): 1,
}
"""Rows of each class with a builder that it refuses, by its reason."""


@pytest.mark.slow
def test_every_other_row_builds() -> None:
    reasons: Counter[tuple[str, str]] = Counter()
    for row in ROWS:
        if row.kernel not in BUILDERS:
            continue
        try:
            assert "air.launch" in build_program(row).text
        except NotBuildableError as error:
            reasons[row.kernel, str(error)] += 1
    assert reasons == REFUSED


@pytest.mark.parametrize("kernel", sorted(BUILDERS))
def test_a_row_of_each_class_builds(kernel: str) -> None:
    row = min(
        (row for row in ROWS if row.kernel == kernel and row.cores[1] < 4 and row.value < 20_000),
        key=lambda row: row.value,
        default=next(row for row in ROWS if row.kernel == kernel),
    )
    if kernel == "program":
        row = next(row for row in ROWS if row.variant == "prefill flash_attn")
    assert "air.launch" in build_program(row).text


@pytest.mark.parametrize("kernel", sorted(WITHOUT_PROGRAM))
def test_a_class_without_programs_says_why(kernel: str) -> None:
    with pytest.raises(NotBuildableError, match=r"\w+ \w+"):
        build_program(next(row for row in ROWS if row.kernel == kernel))


def test_small_rows_have_a_predicted_time() -> None:
    row = next(row for row in ROWS if row.kernel == "rope" and row.shape["rows"] == 8)
    model = models.TimingModel()
    as_published = predict(build_program(row).text).total_us
    assert model(row, {}) == pytest.approx(as_published)
    slower = model(row, {"dispatch_us": 2 * DEFAULT.dispatch_us})
    assert slower == pytest.approx(as_published + DEFAULT.dispatch_us)


def test_a_box_has_the_parameters_that_its_owner_published() -> None:
    row = next(row for row in ROWS if row.kernel == "rope" and row.shape["rows"] == 8)
    at_home = models.TimingModel(100)(row, {})
    elsewhere = models.TimingModel(100)(replace(row, box="STX-EMB"), {"dispatch_us": 20})
    more = models.BOXES["STX-EMB"]["dispatch_us"] - DEFAULT.dispatch_us
    assert at_home is not None
    assert elsewhere == pytest.approx(at_home + more, abs=1)


def test_a_launch_in_situ_is_loaded_and_not_dispatched() -> None:
    row = next(row for row in ROWS if row.kernel == "eltwise_add" and row.is_one_of_several)
    model = models.TimingModel(100)
    alone, in_situ = model(replace(row, variant="vector"), {}), model(row, {})
    assert alone is not None
    assert in_situ is not None
    locks = 8 * 3 * 2 * 2
    assert in_situ - alone == pytest.approx(locks * DEFAULT.load_us - DEFAULT.dispatch_us)
    assert row.series != replace(row, variant="vector").series


@pytest.mark.parametrize("box", models.BOXES)
def test_parameters_of_a_box_lie_in_their_ranges(box: str) -> None:
    replace(DEFAULT, **models.BOXES[box])
    assert any(row.box == box for row in ROWS)


def test_all_parameters_are_fitted_within_their_ranges() -> None:
    fitted = {each.name: each for each in parameter_ranges()}
    assert set(fitted) == {row["name"] for row in Parameters().describe()}
    assert all(each.low <= models.start_values()[name] <= each.high for name, each in fitted.items())


# ---- the command ----


def test_a_fit_moves_parameters_that_there_are() -> None:
    assert set(models.FITTED) < {each.name for each in parameter_ranges()}


def test_the_table_of_limits_has_a_row_for_each_launch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = gemv.build(128, 256)
    monkeypatch.setattr(limits, "load_programs", lambda *_: {"first": small, "second": small})
    assert command.main(["--programs"]) == 0
    mark, _, heading, _, *rows = capsys.readouterr().out.splitlines()
    assert (mark, heading.split(" | ")[:3]) == (limits.MARK, ["| program", "launch", "us"])
    assert [row.split(" | ")[:2] for row in rows] == [["| `first`", "gemv"], ["| `second`", "gemv"]]
    assert all(row.split(" | ")[4] in LIMITS for row in rows)


def test_an_unknown_class_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--class", "gem"]) == 2
    assert "--class gem is none of core_cycles, ddr, decode" in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*name another file with --plot"):
        command.write_plot(tmp_path, [])


def test_the_plot_has_a_circle_for_each_row() -> None:
    tree = ElementTree.fromstring(scatter([Predicted(made_up(100), 90), Predicted(made_up(9e9, FIT), 1)]))
    titles = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2
    assert "100 µs measured, 90 µs predicted" in str(titles[0])


def test_the_report_says_that_nothing_was_measured_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--class", "switch"]) == 0
    printed = capsys.readouterr().out
    assert "measured by others, never by us" in printed
    assert "6 rows without a prediction: the locks of each design are not published" in printed


def test_json_has_rows_errors_and_parameters() -> None:
    chosen = {"model": [Predicted(made_up(100), 90)]}
    text = json.dumps(command.to_json(chosen, {"clock_ghz": 1.8}, {"x": "why"}))
    read = json.loads(text)
    assert read["rows"][0]["predicted_us"] == 90
    assert {(each["role"], each["class"]) for each in read["errors"]["model"]} == {
        ("test", "eltwise_add"),
        ("test", "all"),
    }
