"""The gate on Gemma 3 270M, where it was pulled (`aerie pull gemma3-270m`): no test fetches it, as its terms
must be agreed to first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerie.cli import package_models

POSITIONS = 16
"""Of a prompt and its answer. With more the reference, in bf16 and in float32, takes minutes."""


@pytest.fixture
def gemma3_270m(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The GGUF file where a user has it; programs are kept with those of other tests."""
    if not package_models.is_fetched("gemma3-270m"):
        pytest.skip("gemma3-270m is not here: aerie pull gemma3-270m")
    file = package_models.package_file("gemma3-270m")
    monkeypatch.setenv("AERIE_CACHE", str(own_cache / "aerie"))
    return file


@pytest.mark.slow
def test_gemma3_270m_against_transformers(command_line, gemma3_270m: Path, tmp_path: Path) -> None:
    """A prompt, and every step of every layer, of the model and of random weights in its shape; in the six
    programs, which are the fewest to build."""
    words = f"--model {gemma3_270m} --backend virtual --prompts 1 --seq-len 64 --max-model-len {POSITIONS}"
    words = f"verify {words} --out {tmp_path}"
    done = command_line("verify", words)
    assert (done.status, done.out.splitlines()[-1]) == (0, "[verify] PASS")
    record = json.loads((tmp_path / f"verify-{gemma3_270m.name}-virtual-exact.json").read_text())
    assert len(record["prompts"]) == 1
    assert [(one["model"], one["tokens"]) for one in record["ladders"]] == [
        ("the model", POSITIONS),
        ("random weights", POSITIONS),
    ]
