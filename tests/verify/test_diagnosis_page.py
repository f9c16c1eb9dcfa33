"""The table, the page and the record of a diagnosis; the command that writes them."""

import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.multi_launch_builder.shapes import DEMO
from aerie.verify import __main__ as command
from aerie.verify.__main__ import main
from aerie.verify.diagnosis import Diagnosis, diagnose
from aerie.verify.diagnosis_report import as_json, percent, print_diagnosis, render, verdict_line
from aerie.verify.layer_check import LayerStepResult
from aerie.verify.layer_steps import HEAD_STEPS, layer_steps
from aerie.verify.plots import Scale, heat_map, line_chart, shade
from aerie.verify.reference import Reference

ABOUT = {"model": "demo", "prompt": "<script>alert('&')</script>", "backend": "virtual", "numerics": "exact"}
LAYER_STEPS = layer_steps(DEMO)
LAYERS, STEPS = 6, len(LAYER_STEPS)


class Broken:
    """A runner whose swiglu is off by a tenth in layer 4, after `down` has read it right."""

    def __init__(self, inner):
        self.inner = inner

    def record(self):
        return None  # every call comes through `run`

    def unfilled_weights(self, program, /, *, bo_key):
        return self.inner.unfilled_weights(program, bo_key=bo_key)

    def preload(self, program, /, *, bo_key, **static):
        self.inner.preload(program, bo_key=bo_key, **static)

    def run(self, program, /, *, bo_key, outputs=None, copy=True, on_device=(), **arrays):
        results = self.inner.run(
            program, bo_key=bo_key, outputs=outputs, copy=copy, on_device=on_device, **arrays
        )
        if (program.kind, bo_key[-3:]) == ("o_ffn", "_L4") and "swiglu" in results:
            results["swiglu"] = (results["swiglu"].astype(np.float32) * 1.1).astype(results["swiglu"].dtype)
        return results


@pytest.fixture(scope="module")
def broken_session(demo_session):
    return replace(demo_session, model=replace(demo_session.model, runner=Broken(demo_session.model.runner)))


@pytest.fixture(scope="module")
def ids():
    return open_checkpoint(DEMO_FOLDER).tokenizer.encode("Who are you?")


@pytest.fixture(scope="module")
def healthy(demo_session, demo_reference, ids):
    return diagnose(demo_session, demo_reference, ids)


@pytest.fixture(scope="module")
def broken(broken_session, demo_reference, ids):
    return diagnose(broken_session, demo_reference, ids)


def test_a_healthy_model_has_every_step_and_none_named(healthy, ids):
    assert healthy.first is None
    assert healthy.token_ids == ids
    assert healthy.phases == ("prefill", "decode")
    of_phase = LAYERS * STEPS + len(HEAD_STEPS)
    assert [row.phase for row in healthy.rows] == ["prefill"] * of_phase + ["decode"] * of_phase + ["answer"]
    assert [row.step for row in healthy.steps("decode", 3)] == [step.name for step in LAYER_STEPS]
    assert verdict_line(healthy) == "[diagnosis] no step leaves its bound"


def test_a_fault_is_named_with_its_numbers(broken):
    assert (broken.first.phase, broken.first.layer, broken.first.step) == ("prefill", 4, "swiglu")
    assert broken.focus == ("prefill", 4)
    line = verdict_line(broken)
    assert re.match(r"\[diagnosis\] layer 4, step swiglu: .*relative L1 0\.\d+ \(bound 0\.00\d+\)", line)


def test_errors_that_only_add_up_are_named_last(healthy):
    """No step at fault, but the run has drifted: the first place where it has."""
    rows = [replace(row, whole_run=drifted(row.whole_run)) if row.layer == 2 else row for row in healthy.rows]
    found = Diagnosis(healthy.token_ids, rows)
    assert found.first
    assert found.first.place == "layer 2, step input"
    assert "and yet the run has drifted" in render(found, ABOUT)
    assert "far from transformers' run, with no step at fault: cosine 0.5" in verdict_line(found)


def drifted(judged):
    return replace(judged, checks=tuple(replace(check, value=0.5) for check in judged.checks))


def test_a_step_without_a_value_is_named(healthy):
    rows = [LayerStepResult("prefill", 0, "q", remark="q was never computed"), *healthy.rows]
    found = Diagnosis(healthy.token_ids, rows)
    assert verdict_line(found) == "[diagnosis] layer 0, step q: q was never computed"
    assert found.first
    assert found.first.used == math.inf


def test_the_table_is_plain_where_it_is_piped(healthy, broken):
    def text(found):
        out = io.StringIO()
        print_diagnosis(found, out)
        return out.getvalue()

    assert text(healthy).isascii()
    assert "\x1b" not in text(healthy)
    assert "LEFT" not in text(healthy)
    assert text(healthy).splitlines()[-1] == verdict_line(healthy)
    shown = text(broken)
    assert "prefill, layer 4: every step" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80  # but for the verdict, which scripts read
    assert [line.split()[0] for line in shown.splitlines() if "LEFT" in line and "layer" not in line] == [
        "swiglu",
        "down",
    ]
    assert [line.split()[1] for line in shown.splitlines() if "LEFT" in line and "layer" in line] == ["4"]


def test_the_record_has_every_number(broken):
    record = json.loads(json.dumps(as_json(broken, ABOUT), allow_nan=False))
    assert record["first"] == {"phase": "prefill", "layer": 4, "step": "swiglu"}
    assert record["prompt"] == ABOUT["prompt"]
    row = next(row for row in record["rows"] if row["problem"])
    assert row["own"]["ours"]["relative_l1"] == pytest.approx(0.1, abs=0.02)
    assert row["own"]["bounds"]["relative L1"] == 2 * row["own"]["rounding"]["relative_l1"]
    assert set(row["run"]["bounds"]) == {"cosine", "relative L1"}


class Links(HTMLParser):
    """What a page would fetch, and whether its tags are balanced."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(page):
    links = Links()
    links.feed(page)
    assert links.open == []
    return links


def test_the_page_is_one_file_that_fetches_nothing(healthy):
    page = render(healthy, ABOUT)
    links = parsed(page)
    assert links.fetched == []
    assert "script" not in links.tags
    assert "url(" not in page
    assert "@import" not in page
    assert links.tags.count("rect") == 2 * LAYERS * STEPS
    assert "prefers-color-scheme: dark" in page
    assert "no step leaves its bound" in page


def test_the_page_shows_where_the_fault_is(broken):
    page = render(broken, ABOUT)
    parsed(page)
    assert "Prefill, layer 4" in page
    assert "Step <b>swiglu</b>: SiLU of gate, times up" in page
    assert page.count('class="cross"') == 2
    assert '<rect class="left"' in page


def test_the_page_explains_every_step_and_column(healthy):
    page = render(healthy, ABOUT)
    for step in (*LAYER_STEPS, *HEAD_STEPS):
        assert step.meaning in page.replace("&#39;", "'")
    for column in ("cosine", "largest diff", "mean diff", "relative L1", "rounding", "bound used"):
        assert f"<dt>{column}</dt>" in page


def test_a_page_of_values_that_are_not_finite(healthy):
    """As where the model gives NaN: drawn at the upper end, and no crash."""
    first, *others = healthy.steps("prefill", 1)
    bad = replace(
        first.own_inputs, measures=replace(first.own_inputs.measures, relative_l1=math.nan, cosine=math.nan)
    )
    rows = [replace(first, own_inputs=bad, whole_run=bad), *others, *healthy.steps("prefill", None)]
    parsed(render(Diagnosis(healthy.token_ids, rows), ABOUT))


def test_scales_are_of_whole_decades():
    scale = Scale.over([0.002, 0.3, 0.0, math.inf, math.nan], 100, 0)
    assert (scale.low, scale.high) == (-3, 0)
    assert [text for _, text in scale.ticks] == ["0.001", "0.01", "0.1", "1"]
    assert scale(0.001) == 100
    assert scale(1.0) == 0
    assert scale(0.0) == 100
    assert scale(math.inf) == scale(math.nan) == 0
    assert Scale.over([], 0, 10)(1.0) in (0, 10)


def test_plots_hold_a_mark_for_every_value():
    chart = line_chart("runs", ["0", "1"], [("ours", "ours", [0.1, 0.2]), ("bound", "bound", [1.0, 1.0])])
    assert [len(series.marks) for series in chart.series] == [2, 2]
    assert chart.series[0].points.count(",") == 2
    cells = heat_map("steps", ["q", "k"], ["0", "1", "2"], [[0.1, 0.5, 1.1], [math.inf, 0.99, 0.0]]).cells
    assert [cell.kind for cell in cells] == ["s0", "s2", "left", "left", "s4", "s0"]
    assert cells[1].title == "layer 1, q: 50% of its bound"
    assert cells[3].title == "layer 0, k: far beyond the whole of its bound"
    assert shade(math.nan) == "left"


@pytest.mark.parametrize(
    ("used", "text"), [(0.5, "50%"), (1.0, "100%"), (123.4, "123x"), (math.inf, "over 1000x")]
)
def test_shares_of_a_bound_in_words(used, text):
    assert percent(used) == text


@pytest.fixture
def ready(monkeypatch, demo_session, demo_reference):
    """The command on sessions that are open already."""
    monkeypatch.setattr(command, "prepare_runtime", lambda *_: demo_session)
    assert demo_reference.exact  # which is opened when it is first asked for
    monkeypatch.setattr(Reference, "open", lambda *_, **__: demo_reference)


def diagnosis(*arguments):
    return main(["diagnosis", "--backend", "virtual", "--prompt", "Who are you?", *arguments])


@pytest.mark.usefixtures("ready")
def test_the_command_writes_page_and_record_and_prints_the_paths(tmp_path, capsys):
    assert diagnosis("--out", str(tmp_path / "new")) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "[diagnosis] no step leaves its bound"
    assert f"page: {tmp_path / 'new' / 'diagnosis.html'}" in err
    parsed((tmp_path / "new" / "diagnosis.html").read_text())
    record = json.loads((tmp_path / "new" / "diagnosis.json").read_text())
    assert (record["first"], record["numerics"]) == (None, "exact")


@pytest.mark.usefixtures("ready")
def test_the_command_exits_with_1_where_a_step_is_named(tmp_path, capsys, monkeypatch, broken_session):
    monkeypatch.setattr(command, "prepare_runtime", lambda *_: broken_session)
    assert diagnosis("--out", str(tmp_path)) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("[diagnosis] layer 4, step swiglu: ")


@pytest.mark.usefixtures("ready")
def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert diagnosis("--out", str(tmp_path / "file")) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"error: cannot write .*diagnosis.html \(.*\); name another folder with --out, "
        "or for everything with AERIE_CACHE",
        message,
    )


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (" ", "the prompt is empty; give it some text with --prompt"),
        ("word " * 300, "616 tokens long and the model has 512 positions"),
    ],
)
def test_a_prompt_that_cannot_be_run_is_one_line(prompt, message, capsys):
    assert diagnosis("--prompt", prompt) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_a_prompt_of_one_token_is_diagnosed_with_the_next_one(demo_session, demo_reference):
    found = diagnose(demo_session, demo_reference, [9])
    assert found.first is None
    assert len(found.token_ids) == 2
