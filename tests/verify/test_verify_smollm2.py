"""The gate on a published model: `make verify MODEL=smollm2 N_PROMPTS=12 CONVERSATION=1000`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.usefixtures("smollm2", "as_users_build")
def test_smollm2_against_transformers(command_line, tmp_path: Path) -> None:
    """A prompt of each kind and a question, every step of every layer for a prompt of 2,048 tokens, and a
    conversation that grows out of the first context."""
    words = f"verify --model smollm2 --backend virtual --prompts 12 --conversation 1000 --out {tmp_path}"
    done = command_line("verify", words)
    assert (done.status, done.out.splitlines()[-1]) == (0, "[verify] PASS")
    record = json.loads((tmp_path / "verify-smollm2-virtual-exact.json").read_text())
    assert len(record["prompts"]) == 12
    (conversation,) = record["conversations"]
    assert conversation["tokens"] >= 1000
    assert len(conversation["distance"]["kl"]) > 200
    ladders = [(one["model"], one["tokens"], len(one["steps"])) for one in record["ladders"]]
    assert ladders[:2] == [("the model", 2048, 1084), ("in few rows", 2048, 1084)]
