"""aerie kernels tune: which form is chosen, what is kept, what is refused, and that no form changes a bit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aerie.common.store import Store
from aerie.kernel_builder import tuning
from aerie.kernel_builder.__main__ import main
from aerie.kernel_builder.kernels import all_kernels, eltwise_add
from aerie.kernel_builder.spec import KernelModule, Parameters
from aerie.kernel_builder.testing import random_arrays, run
from aerie.kernel_builder.tuning import NothingToTuneError, TimedSchedule, Tuning, tune
from aerie.virtual_npu.timing import NOTE

SHAPE = {"rows": None, "cols": 1 << 16, "scale": None, "herd_x": None}


def build_on_one_core(
    rows: int | None, cols: int, scale: float | None = None, herd_x: int | None = None
) -> KernelModule:
    return eltwise_add.build(rows, cols, herd_x or 1)


def some_schedules(_: Parameters) -> Iterator[dict[str, int]]:
    yield from ({"herd_x": herd_x} for herd_x in (1, 2, 8, 3, 4))  # 3 cores cannot share 2**16 elements


SLOW_BY_DEFAULT = dataclasses.replace(eltwise_add.KERNEL, build=build_on_one_core, schedules=some_schedules)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "programs_store", lambda: Store(tmp_path))


def silent(_: str) -> None: ...


def found(parameters: Parameters = SHAPE) -> Tuning:
    return tune(SLOW_BY_DEFAULT, parameters, silent)


def test_the_fastest_form_is_chosen() -> None:
    tuned = found()
    assert tuned.best.schedule == {"herd_x": 8}
    assert tuned.best.us == min(each.us for each in tuned.timed) < tuned.default.us
    assert tuned.gain == tuned.default.us / tuned.best.us > 1.1
    assert [each.us for each in tuned.timed] == sorted(each.us for each in tuned.timed)


def test_forms_that_are_refused_or_equal_are_not_timed() -> None:
    tuned = found()
    assert tuned.refused == 1
    assert {each.schedule.get("herd_x") for each in tuned.timed} == {None, 2, 4, 8}  # 1 is the default


def test_a_form_that_does_not_fit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []

    def refuse_the_first(module: object, _: object) -> Any:
        checked.append(module)
        return SimpleNamespace(faults=["planted"] if len(checked) == 1 else [])

    monkeypatch.setattr(tuning, "check", refuse_the_first)
    tuned = found()
    assert tuned.best.schedule == {"herd_x": 4}
    assert tuned.timed[0].schedule == {"herd_x": 8}
    assert tuned.timed[0].misfit == "planted"
    assert len(checked) == 2


def test_a_small_gain_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LEAST_GAIN", 1000.0)
    assert found().best is not None
    assert found().best.schedule == {}


def test_what_is_given_stays() -> None:
    assert {each.schedule.get("herd_x") for each in found({**SHAPE, "herd_x": 2}).timed} == {None}


def test_a_second_run_finds_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = found()

    def time_nothing(*_: object) -> TimedSchedule:
        raise AssertionError("it was timed again")

    monkeypatch.setattr(tuning, "_timed", time_nothing)
    assert found() == first


def test_another_shape_is_not_what_was_kept() -> None:
    assert found().default.us < found({**SHAPE, "cols": 1 << 17}).default.us


def test_a_kernel_with_one_schedule_is_refused() -> None:
    with pytest.raises(NothingToTuneError, match=r"rms_norm has one schedule .* such as gemm"):
        tune(all_kernels()["rms_norm"], {"rows": 8, "cols": 64}, silent)


def test_parameters_that_leave_nothing_open_are_refused() -> None:
    with pytest.raises(NothingToTuneError, match="leave no schedule open; leave out"):
        found({**SHAPE, "cols": 3 << 14, "herd_x": 6})


def test_an_illegal_shape_is_refused_in_the_words_of_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "gemm", "--m=12"]) == 2
    assert capsys.readouterr().err.startswith("error: gemm: m=12 is no positive multiple of 8")


# ---- the command ----


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {"eltwise_add": SLOW_BY_DEFAULT}
    monkeypatch.setattr("aerie.kernel_builder.__main__.all_kernels", lambda: kernels)


WORDS = ["tune", "eltwise_add", "--rows=none", f"--cols={1 << 16}"]


@pytest.mark.usefixtures("one_kernel")
def test_the_command_prints_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--for", "npu2", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("eltwise_add rows=None cols=65536")
    assert lines[0].endswith("on npu2, predicted")
    assert lines[2].startswith("--herd-x=8")
    assert lines[2].endswith("choice")
    assert lines[4].startswith("(what it chooses by itself)")
    assert lines[5].startswith("choice: --herd-x=8: ")
    assert lines[5].endswith(" times as fast")
    assert lines[6] == "forms timed: 4, refused: 1"
    assert lines[7] == NOTE
    assert "compilers for the NPU have not" in lines[8]


@pytest.mark.usefixtures("one_kernel")
def test_the_command_says_that_nothing_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--herd-x=2"]) == 0
    assert "no form that fits is 1 % faster than what the kernel chooses by itself" in capsys.readouterr().out


@pytest.mark.usefixtures("one_kernel")
def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["measured"], record["device"]) == (False, "npu2")
    assert record["best"]["schedule"] == {"herd_x": 8}
    assert record["best"]["us"] < record["default"]["us"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top", "0"], "'0' is no number of forms; give a whole number of 1 or more"),
        (["--for", "npu1"], "invalid choice: 'npu1'"),
    ],
)
def test_the_command_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "gemm", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


# ---- the schedules of kernels ----

TUNABLE = {name: spec for name, spec in all_kernels().items() if spec.schedules is not None}


@pytest.mark.parametrize("name", TUNABLE)
def test_schedules_are_parameters_of_their_kernel(name: str) -> None:
    spec = TUNABLE[name]
    assert spec.schedules
    schedules = [each for case in spec.cases for each in spec.schedules(case)]
    assert schedules
    assert all(set(each) <= set(spec.parameters) for each in schedules)


SMALL = {
    "gemm": {"m": 32, "k": 64, "n": 64, "b_transposed": True},
    "gemm_rows": {"m": 8, "k": 64, "n": 64},
    "gemv": {"m": 64, "k": 2048},
    "flash_attention": {"lq": 64, "lk": 64, "n_heads": 1, "n_kv_heads": 1, "head_dim": 32},
    "cached_attention": {"n": 8, "m": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_schedule_changes_no_bit(name: str) -> None:
    spec, shape = TUNABLE[name], SMALL[name]
    arrays = random_arrays(spec, shape, np.random.default_rng(3))
    expected = run(spec.build(**shape), arrays)
    (result,) = expected
    for schedule in list(tuning.open_schedules(spec, shape))[:3]:
        assert (
            run(spec.build(**{**shape, **schedule}), arrays)[result].tobytes() == expected[result].tobytes()
        )
