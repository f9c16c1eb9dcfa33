"""The table, the last line and the JSON record, of a record made by hand."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from aerie.engine.generate import FinishReason
from aerie.verify.bit_identity import BitIdentity
from aerie.verify.bounds import EXACT, GateFailure, compare
from aerie.verify.gate import GateRecord, Trial
from aerie.verify.gate_prompts import Prompt
from aerie.verify.layer_check import CheckedMeasures, LayerReport, LayerStepResult
from aerie.verify.measures import measure, own_checks, run_checks
from aerie.verify.reference import ExpectedAnswer, ReferenceAnswer
from aerie.verify.report import as_json, print_record, save_record, verdict_line
from aerie.verify.subject import FreeRun

THEIRS = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
DISTANCE = compare(THEIRS, THEIRS + np.float32(0.25))
ROUNDING = compare(THEIRS, THEIRS + np.float32(0.125))
FAILURE = GateFailure("teacher-forced", "greeting", 2, "rms logit difference", 1.5, 0.25)


def trial(**changes):
    expected = ExpectedAnswer(ReferenceAnswer([4, 5, 6], THEIRS), ROUNDING, None, None)
    run = FreeRun((1, 2), [4, 5, 7], list(THEIRS), FinishReason.LENGTH)
    return replace(Trial(Prompt("greeting", (1, 2)), expected, run, 2, DISTANCE), **changes)


def record(*trials, overall=(), identities=()):
    return GateRecord("virtual", "exact", EXACT, list(trials), list(overall), list(identities))


def printed(found):
    out = io.StringIO()
    print_record(found, out)
    return out.getvalue().splitlines()


def row(lines, name):
    """What stands beside the name, cell by cell, as far as cells have no blanks."""
    return next(line.removeprefix(name).split() for line in lines if line.startswith(name))


def test_a_pass_ends_with_its_one_line():
    lines = printed(record(trial()))
    assert lines[-1] == "[verify] PASS"
    assert not [line for line in lines if "FAIL" in line]


def test_the_row_of_a_prompt_is_in_units_of_rounding():
    cells = row(printed(record(trial())), "greeting")
    assert cells[:8] == ["steps", "3", "2", "of", "3", "1", "2.00", "2.00"]
    assert cells[8] == "2.00"
    assert cells[-1] == "ok"


def test_positions_have_a_row_of_their_own():
    expected = ExpectedAnswer(ReferenceAnswer([4, 5, 6], THEIRS), ROUNDING, THEIRS, ROUNDING)
    lines = printed(record(trial(expected=expected, positions=DISTANCE)))
    assert [line.split()[1] for line in lines if "greeting" in line] == ["steps", "prompt"]


def test_a_failure_is_the_last_line_and_marks_its_row():
    lines = printed(record(trial(failures=[FAILURE])))
    assert lines[-1] == (
        "[verify] FAIL: teacher-forced, greeting, position 2: rms logit difference is 1.5, bound 0.25"
    )
    assert row(lines, "greeting")[-1] == "FAIL"


def test_some_more_failures_are_printed_before_the_last_line():
    lines = printed(record(trial(failures=[replace(FAILURE, position=n) for n in range(40)])))
    shown = [line for line in lines if line.startswith("also: teacher-forced, greeting")]
    assert [f"position {n}:" in line for n, line in enumerate(shown, start=1)] == [True] * 10
    assert lines[-1].endswith("bound 0.25 (and 39 more)")


def test_a_part_that_was_not_reached_has_no_numbers():
    broken = trial(free_run=None, divergence=None, forced_distance=None, failures=[FAILURE])
    assert row(printed(record(broken)), "greeting") == ["steps", "-", "0", "of", "0", *"------", "FAIL"]


def test_a_long_line_is_not_broken():
    failure = replace(FAILURE, what="what " * 60)
    assert printed(record(trial(failures=[failure])))[-1].count("what") == 60


def test_brackets_of_a_message_are_no_markup():
    failure = GateFailure("free-running", "greeting", None, "operand [bold]x[/bold] [3]")
    assert "[bold]x[/bold] [3]" in printed(record(trial(failures=[failure])))[-1]


def test_bit_identity_has_a_table():
    same, other = BitIdentity("on one thread", 100), BitIdentity("padded", 100, 7, of="random qwen3")
    skipped = BitIdentity("a chat", skipped="there is no chat template")
    lines = printed(record(trial(), identities=[same, other, skipped]))
    assert row(lines, "on one thread") == ["100", "0", "ok"]
    assert row(lines, "padded")[-1] == "FAIL"
    assert " ".join(row(lines, "a chat")) == "- - skipped: there is no chat template"
    assert lines[-1] == (
        "[verify] FAIL: bit identity, padded, random qwen3: the count of numbers that differ is 7, bound 0"
    )


NOISE = measure(THEIRS, THEIRS + np.float32(1e-3))


def ladder(model="the model", **ours):
    """Two steps of a prompt, of which the second has its own numbers so much worse."""
    checks = [own_checks(replace(NOISE, **values), NOISE, of_blocks=False) for values in ({}, ours)]
    rows = [
        LayerStepResult(
            phase,
            0,
            step,
            CheckedMeasures(NOISE, NOISE, own),
            CheckedMeasures(NOISE, NOISE, run_checks(NOISE, NOISE, 4.0)),
        )
        for phase in ("prefill", "decode")
        for step, own in zip(("q", "attention"), checks, strict=True)
    ]
    return LayerReport(model, 128, rows)


def test_a_ladder_has_a_row_for_prefill_and_one_for_decode():
    lines = printed(
        record(trial()).with_layer_reports([ladder(), ladder("random", max_diff=3 * NOISE.max_diff)])
    )
    assert " ".join(row(lines, "the model")) == "prefill 128 2 layer 0, step q 60% ok"
    assert " ".join(row(lines[::-1], "random")) == "decode 128 2 layer 0, step attention 75% ok"
    assert lines[-1] == "[verify] PASS"


def test_a_step_beyond_its_bound_is_a_failure():
    found = record(trial()).with_layer_reports([ladder(), ladder("random", relative_l1=9.0)])
    lines = printed(found)
    assert [failure.part for failure in found.failures] == ["ladder", "ladder"]
    assert "also: ladder, random: decode, layer 0, step attention: relative L1 9 (bound" in "\n".join(lines)
    assert lines[-1].startswith(
        "[verify] FAIL: ladder, random: layer 0, step attention: relative L1 9 (bound"
    )
    assert row(lines, "random")[-1] == "FAIL"
    assert row(lines, "the model")[-1] == "ok"


def test_drift_is_a_failure_where_no_step_is_at_fault():
    healthy = ladder()
    far = replace(
        healthy.rows[1],
        whole_run=CheckedMeasures(NOISE, NOISE, run_checks(replace(NOISE, cosine=0.5), NOISE, 4.0)),
    )
    (failure,) = replace(healthy, rows=[healthy.rows[0], far, far]).failures
    assert str(failure).startswith(
        "ladder, the model: layer 0, step attention: far from transformers' run, with no step at fault: cos"
    )


def test_a_ladder_that_broke_has_a_row():
    found = record(trial()).with_layer_reports([LayerReport("the model", 128, [], "channel @c0 waits")])
    lines = printed(found)
    assert lines[-1] == "[verify] FAIL: ladder, the model: channel @c0 waits"
    assert row(lines, "the model") == ["-", "128", "-", "-", "-", "FAIL"]
    assert as_json(found, "demo")["ladders"][0]["broken"] == "channel @c0 waits"


def test_tables_fit_80_columns():
    """In a pipe, with numbers as wide as those of the worst fault and the longest name of a prompt."""
    far = compare(THEIRS, THEIRS + np.float32(1000))
    prompt = Prompt("near the end of the context", (1, 2))
    found = record(
        trial(forced_distance=far, prompt=prompt), identities=[BitIdentity("a chat at once", 12059)]
    )
    lines = printed(found.with_layer_reports([ladder("random weights", relative_l1=1e9)]))
    assert max(len(line) for line in lines if "ladder, " not in line) <= 80
    assert row(lines, "near the")[-1] == "ok"


def test_the_verdict_counts_failures_of_all_sorts():
    found = record(trial(failures=[FAILURE]), overall=[FAILURE], identities=[BitIdentity("padded", 9, 1)])
    assert len(found.failures) == 3
    assert found.verdict == "FAIL"
    assert verdict_line(found.failures).endswith("(and 2 more)")


def test_the_record_holds_everything():
    content = json.loads(json.dumps(as_json(record(trial(failures=[FAILURE])), "demo"), allow_nan=False))
    assert (content["verdict"], content["model"], content["backend"]) == ("FAIL", "demo", "virtual")
    assert content["numerics"] == "exact"
    assert content["bounds"]["top_k"] == 5
    assert set(content["versions"]) == {"aerie", "numpy", "torch", "transformers", "python"}
    assert content["failures"][0]["text"] == str(FAILURE)
    (prompt,) = content["prompts"]
    assert prompt["prompt_token_ids"] == [1, 2]
    assert prompt["reference_token_ids"] == [4, 5, 6]
    assert prompt["our_token_ids"] == [4, 5, 7]
    assert prompt["finish_reason"] == "length"
    assert prompt["steps"]["rms"] == pytest.approx([0.25] * 3)
    assert prompt["steps_rounding"]["our_place"] == [1, 1, 1]
    assert prompt["positions"] is None


def test_a_record_is_written_whole_over_an_older_one(tmp_path):
    path = tmp_path / "new" / "record.json"
    for model in ("first", "second"):
        save_record(record(trial()), model, path)
    assert json.loads(path.read_text())["model"] == "second"
    assert list(path.parent.iterdir()) == [path]


def test_an_infinite_number_is_no_json(tmp_path):
    endless = replace(FAILURE, value=float("inf"))
    save_record(record(trial(failures=[endless])), "demo", tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text())["failures"][0]["value"] is None
