"""The JSON of the last request for the page of the virtual NPU: passes, programs, bytes, the trace."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aerie.runtime import Profiler
from aerie.serve import npu_request, npu_view, pass_history
from aerie.serve.pass_history import PassHistory
from aerie.virtual_npu import arrays
from aerie.virtual_npu.program import Program

NAME = "cached_attn_ar8_cl512"
PROMPT = [5 + 3 * each % 900 for each in range(41)]


def asked(serving: Any, **more: Any) -> dict[str, Any]:
    """Send a request, and return its JSON for the page."""
    bias = serving.endless["logit_bias"]
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "logit_bias": bias, **more}
    with serving.http as http:
        assert http.post("/v1/completions", json=body).status_code == 200
        return dict(http.get("/npu/request").json())


def test_every_pass_of_a_request_is_listed(serving: Any) -> None:
    view = asked(serving)
    assert (view["prompt"], view["made"], view["reason"], view["left_out"]) == (41, 5, "length", 0)
    passes = view["passes"]
    assert [one["rows"] for one in passes] in ([41, 1, 1, 1, 1], [32, 9, 1, 1, 1, 1])
    assert sum(one["made"] for one in passes) == 5
    assert {one["answers"] for one in passes} == {1}
    layers = serving.service.require_loaded().session.model.config.num_hidden_layers
    attention = [one for one in view["programs"] if one["kind"] == "cached_attn"]
    assert sum(one["calls"] for one in attention) >= layers * len(passes)
    assert [one["at_ms"] for one in passes] == sorted(one["at_ms"] for one in passes)
    for one in passes:
        parts = [*one["programs"].values(), *one["host"].values()]
        assert sum(ms for _, ms in parts) + one["rest_ms"] == pytest.approx(one["ms"], abs=0.01)
    by_program = {one["name"]: one["calls"] for one in view["programs"]}
    for name, calls in by_program.items():
        assert calls == sum(one["programs"].get(name, (0, 0))[0] for one in passes)
    assert not {"text", "tokens", "token_ids"} & view.keys()


def test_bytes_are_those_of_one_run_as_often_as_it_ran(serving: Any) -> None:
    view = asked(serving, max_tokens=3)
    with serving.http as http:
        moved = http.post(f"/npu/request/moved/{NAME}", timeout=120).json()
        one = http.get(f"/npu/programs/{NAME}").json()
        other = http.post("/npu/request/moved/none")
        again = http.get("/npu/request").json()["programs"]
    assert other.status_code == 404
    message = "the last request ran no program 'none'; GET /npu/request lists its own"
    assert other.json()["error"]["message"] == message
    calls = next(each["calls"] for each in view["programs"] if each["name"] == NAME)
    assert (moved["number"], moved["why"], moved["launch"]["name"]) == (view["number"], "", NAME)
    assert next(each["is_counted"] for each in again if each["name"] == NAME)
    (launch,) = one["launches"]
    assert moved["launch"]["shim"]["bytes_out"] == calls * launch["shim"]["bytes_out"] > 0
    cores = moved["launch"]["cores"]
    assert len(cores) == len(launch["cores"])
    for core, alone in zip(cores, launch["cores"], strict=True):
        assert core["bytes_in"] == calls * alone["bytes_in"]
        assert core["peak_bytes"] == alone["peak_bytes"]
    tiles = [each["bytes_out"] for each in moved["launch"]["memtiles"]]
    assert tiles == [calls * each["bytes_out"] for each in launch["memtiles"]]
    assert [each["bytes"] for each in moved["channels"]] == [
        calls * each["bytes"] for each in one["channels"]
    ]


OTHERS = "rms_gemms_rope_ar8", "o_ffn_ar8", "lm_head_ar8"


@pytest.mark.parametrize("name", [NAME, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_a_program_moves_the_same_whatever_its_numbers_are(serving: Any, name: str) -> None:
    program = serving.service.require_loaded().session.model.programs[name]
    built = Program.from_text(program.text, name)
    drawn, entry = np.random.default_rng(5), built.entry()
    seen = []
    for fill in ("zeros", "drawn", "all ones"):
        given = arrays.zero_arrays(entry)
        for array in given:
            if array.dtype == np.int32:  # the mask: what positions see
                array[...] = {"zeros": 0, "drawn": drawn.integers(0, 2**31, array.shape), "all ones": -1}[
                    fill
                ]
            elif fill != "zeros":
                array[...] = drawn.normal(size=array.shape)
        record = built.run(*given, stats=True).record
        assert record
        stats = record["stats"]
        seen.append((stats["tiles"], stats["channels"]))
    assert seen[0] == seen[1] == seen[2]


def test_the_trace_has_passes_programs_and_the_host(serving: Any) -> None:
    view = asked(serving)
    with serving.http as http:
        answer = http.get("/npu/request/trace")
    assert "attachment" in answer.headers["content-disposition"]
    events = answer.json()["traceEvents"]
    assert [each["args"]["name"] for each in events[1:4]] == ["passes", "programs", "host"]
    slices = [each for each in events if each["ph"] == "X"]
    passes = [each for each in slices if each["cat"] == "passes"]
    assert [each["args"]["made"] for each in passes] == [one["made"] for one in view["passes"]]
    for one in passes:
        inside = [each for each in slices if each["cat"] != "passes" and one["ts"] <= each["ts"]]
        inside = [each for each in inside if each["ts"] < one["ts"] + one["dur"]]
        assert sum(each["dur"] for each in inside) == pytest.approx(one["dur"], abs=5)
        assert "rest" in [each["name"] for each in inside]


def test_nothing_was_asked_yet(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.service.worker, "history", PassHistory())
    with serving.http as http:
        answers = [http.get("/npu/request"), http.post(f"/npu/request/moved/{NAME}")]
        answers.append(http.get("/npu/request/trace"))
    message = "no request was answered yet: send one"
    assert [(each.status_code, each.json()["error"]["message"]) for each in answers] == [(404, message)] * 3


def test_what_is_not_counted_says_why(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(serving)
    monkeypatch.setattr(npu_view, "MAX_ARGUMENT_BYTES", 1000)
    opened, worker = serving.service.require_loaded(), serving.service.worker

    async def why(programs: Any) -> str:
        view = await npu_request.traffic_to_json(worker.history.last, npu_view.ProgramViews(), programs, NAME)
        assert (view["launch"], view["channels"]) == (None, ())
        return str(view["why"])

    large = asyncio.run(why(opened.session.model.programs))
    assert "1000 is the most that is run for this page" in large
    assert asyncio.run(why({})) == "the model that ran it was unloaded"


class Stepping:
    """A scheduler of which each step is a pass of a row, that gives a request its next token."""

    def __init__(self, request: Any) -> None:
        self.request, self.stats = request, type("", (), {"steps": 0, "rows": 0})()

    def step(self) -> None:
        self.stats = type("", (), {"steps": self.stats.steps + 1, "rows": self.stats.rows + 1})()
        self.request.token_ids.append(1)


def test_of_a_long_answer_the_last_passes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_history, "MAX_PASSES", 10)
    facts = {"prompt": [1, 2], "token_ids": [], "is_finished": False, "error": None, "finish_reason": None}
    request = type("", (), {**facts, "cached_tokens": 0})()
    kept: Any = PassHistory()
    kept.start_request(request)
    stepping: Any = Stepping(request)
    for _ in range(25):
        kept.step(stepping, Profiler())
    request.is_finished = True
    kept.collect_finished()
    assert (len(kept.last.passes), kept.last.omitted_passes, kept.last.completion_tokens) == (10, 15, 25)
    assert [one["made"] for one in npu_request.passes_to_json(kept.last)] == [16] + 9 * [1]
