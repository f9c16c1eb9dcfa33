"""The gate on a published model: `make verify MODEL=smollm2 N_PROMPTS=12 CONVERSATION=900`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TOKENS = 1024


@pytest.mark.usefixtures("smollm2", "as_users_build")
def test_smollm2_against_transformers(command_line, tmp_path: Path) -> None:
    """A prompt of each kind and a question, every step of every layer for a prompt of 1,024 tokens, and a
    conversation; both grow out of the first context."""
    asked = f"--prompts 12 --conversation 900 --max-model-len {TOKENS}"
    words = f"verify --model smollm2 --backend virtual {asked} --out {tmp_path}"
    done = command_line("verify", words)
    assert (done.status, done.out.splitlines()[-1]) == (0, "[verify] PASS")
    record = json.loads((tmp_path / "verify-smollm2-virtual-exact.json").read_text())
    assert len(record["prompts"]) == 12
    (conversation,) = record["conversations"]
    assert conversation["tokens"] >= 900
    assert len(conversation["distance"]["kl"]) > 200
    ladders = [(one["model"], one["tokens"], len(one["steps"])) for one in record["ladders"]]
    assert ladders[:2] == [("the model", TOKENS, 1084), ("in few rows", TOKENS, 1084)]
