"""Simon Willison's `llm`: its command line with a server of OpenAI's API, and with its plugin for Ollama."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import CITY, FRANCE, PARIS
from tests.serve.conftest import Serving

WHY = "the extra clients is not installed: no llm"
cli = pytest.importorskip("llm.cli", reason=WHY).cli
testing = pytest.importorskip("click.testing", reason=WHY)

pytestmark = pytest.mark.slow
Run = Callable[..., str]


@pytest.fixture
def run(serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`llm` with a folder of its own, in which the server is one of its models."""
    entry: dict[str, Any] = {"model_id": "aerie", "model_name": "demo", "api_base": f"{serving.url}/v1"}
    entry |= {"supports_schema": True, "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OLLAMA_HOST", serving.url)

    def run(*words: str, fails: bool = False) -> str:
        done: Any = testing.CliRunner().invoke(cli, words)
        assert (done.exit_code != 0) is fails, done.output
        return str(done.output).strip()

    return run


@pytest.mark.parametrize("streams", [[], ["--no-stream"]])
def test_a_prompt(run: Run, streams: list[str]) -> None:
    assert run("-m", "aerie", "-o", "temperature", "0", *streams, FRANCE) == PARIS


def test_a_conversation(run: Run) -> None:
    assert run("-m", "aerie", "-o", "temperature", "0", FRANCE) == PARIS
    assert run("-c", "-o", "temperature", "0", "-o", "max_tokens", "8", "And of Spain?")


def test_a_schema(run: Run) -> None:
    made = run("-m", "aerie", "-o", "temperature", "0", "--schema", json.dumps(CITY), FRANCE)
    assert json.loads(made)["city"] in ("Paris", "Rome")


def test_tools_are_taken(run: Run) -> None:
    assert run("-m", "aerie", "-T", "llm_version", "-o", "temperature", "0", "-o", "max_tokens", "20", FRANCE)


def test_an_error(run: Run) -> None:
    assert "prompt is too long" in run("-m", "aerie", "word " * 6000, fails=True)


def test_the_plugin_for_ollama(run: Run) -> None:
    pytest.importorskip("llm_ollama", reason=WHY)
    assert "demo:latest" in run("ollama", "models")
    assert run("-m", "ollama/demo", "-o", "temperature", "0", FRANCE) == PARIS
    made = run("-m", "ollama/demo", "--schema", json.dumps(CITY), "-o", "temperature", "0", FRANCE)
    assert json.loads(made)["city"] in ("Paris", "Rome")
