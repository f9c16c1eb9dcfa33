"""How suites of other projects are run and read, on one that is made up here."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.outside import suites

outside = importlib.import_module("tests.outside.__main__")
FAILED, PASSED, SKIPPED, UNREAD = outside.FAILED, outside.PASSED, outside.SKIPPED, outside.UNREAD
UTILS = """
class ServerProcess:
    temperature, seed, n_predict = 0.8, 42, 64

    def make_request(self, method, path, data=None):
        self.data, self.headers = data, {"a-name": 1}
        self.body = {"usage": {"prompt_tokens": 5}, "timings": [{"prompt_n": 2, "predicted_n": 3}]}
        return self

    def make_stream_request(self, method, path, data=None):
        yield {"asked": data, "choices": [{"delta": {"role": "assistant", "content": ""}}]}

def match_regex(regex, text):
    return False
"""
TEST = """
import utils

server = utils.ServerProcess()

def test_settings():
    asked = {"temperature": 0, "n_predict": 100}
    assert server.make_request("POST", "/completion", asked).data == {**asked, "seed": 42}
    (made,) = server.make_stream_request("POST", "/chat/completions", {})
    assert made["asked"] == {"temperature": 0.8, "seed": 42, "max_tokens": 64}
    assert made["choices"][0]["delta"]["content"] is None
    assert server.make_request("GET", "/slots").data is None
    server.debug = True
    assert server.make_request("POST", "/chat/completions", {}).data["verbose"]
    assert "verbose" not in server.make_request("POST", "/completion", {}).data

def test_headers():
    assert server.make_request("GET", "/health").headers["A-Name"] == 1

def test_text():
    assert utils.match_regex("a", "b")

def test_lengths():
    body = server.make_request("POST", "/completion", {}).body
    assert body["usage"]["prompt_tokens"] == 77
    assert body["timings"][0]["prompt_n"] + 1 == 4
    assert not body["usage"]["prompt_tokens"] > 5
    assert body["timings"][0]["predicted_n"] != 4

def test_that_is_passed_over():
    raise AssertionError

def test_that_fails():
    assert 1 == 2
"""
REQUESTS = """
class CaseInsensitiveDict(dict):
    def __init__(self, given):
        super().__init__((name.lower(), value) for name, value in given.items())

    def __getitem__(self, name):
        return super().__getitem__(name.lower())
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like llama.cpp's, and no server."""
    files = {"utils.py": UTILS, "unit/test_made_up.py": TEST, "requests/structures.py": REQUESTS}
    for name, text in {**files, "requests/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    @contextmanager
    def serving(_: Sequence[str]) -> Iterator[int]:
        yield 1

    monkeypatch.setattr(outside, "serving", serving)
    monkeypatch.setattr(suites, "LLAMA_CPP", [suites.Run(["unit/test_made_up.py"], [])])
    return tmp_path


def test_a_suite_of_pytest(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skips = suite / "suites.py"  # before tests/outside in the path of what pytest runs
    skips.write_text(
        'LLAMA_CPP_SKIPS = {"test_made_up.py": {"test_that_is": "too far"}}\n'
        "def reason(skips, test):\n"
        "    return next((skips[each] for each in skips if test.startswith(each)), '')\n"
    )
    assert outside.main(["--llama-cpp", str(suite), "--python", sys.executable]) == 1
    output = capsys.readouterr().out
    assert "skipped  test_made_up.py::test_that_is_passed_over: too far" in output
    assert "failed   test_made_up.py::test_that_fails: assert 1 == 2" in output
    assert "llama.cpp: 2 passed, 2 passed, text not compared, 1 skipped, 1 failed" in output


def test_reasons() -> None:
    skips = suites.LLAMA_CPP_SKIPS["test_completion.py"]
    assert suites.reason(skips, "test_n_probs_post_sampling") == suites.VAGUE
    assert suites.reason({"test_a$": "why"}, "test_a") == "why"
    assert suites.reason({"test_a$": "why"}, "test_a_b") == ""
    assert suites.reason(skips, "test_completion_with_tokens_input") == ""
    every = [*suites.LLAMA_CPP_SKIPS.values(), *suites.LEMONADE_SKIPS.values(), suites.TESTER_SKIPS]
    assert all(why for each in every for why in each.values())


def line(test: str, status: str, error: str = "", message: str = "so it is", **more: Any) -> str:
    layer: dict[str, Any] = {"status": status, "error_type": error, "error_message": message}
    layers = {f"{name}_{key}": value for name in ("compat", "spec") for key, value in layer.items()}
    return json.dumps({"test_id": test, **layers, **more})


def called(test: str, last: str) -> str:
    """A tool was called as it should be, and an answer without words followed."""
    more: dict[str, Any] = {suites.CALLED: True, "steps": [{}, {"response": last}]}
    return line(test, "fail", "schema", **more)


def test_the_log_of_the_tester() -> None:
    lines = [
        line("chat.basic", "pass"),
        line("chat.stream", "fail", "assert", evidence={"canonical_stream_terminal_seen": True}),
        line("chat.memory", "fail", "assert"),
        line("responses.custom_tool.grammar", "fail"),
        line(
            "responses.custom_tool", "fail", "tool_call", f"{suites.INPUT}: x", evidence={suites.CUSTOM: True}
        ),
        called("chat.tool_call", '{"tool_calls":[{}]}'),
        called("responses.tool_call", '{"output":[]}'),
    ]
    made = outside.results_from_log("\n".join(lines))
    assert [(each.name, each.outcome) for each in made if "compat" in each.name] == [
        ("chat.basic (compat)", PASSED),
        ("chat.stream (compat)", UNREAD),
        ("chat.memory (compat)", FAILED),
        ("responses.custom_tool.grammar (compat)", SKIPPED),
        ("responses.custom_tool (compat)", UNREAD),
        ("chat.tool_call (compat)", UNREAD),
        ("responses.tool_call (compat)", FAILED),
    ]
    assert (made[4].reason, made[6].reason) == (
        "fail: so it is",
        suites.TESTER_SKIPS["responses.custom_tool.grammar"],
    )


def test_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        outside.main([])
    assert "there is nothing to run: say where a suite lies" in capsys.readouterr().err
