"""Layers with linear attention: against transformers, and the same however they are scheduled, taken back,
swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, prefill
from aerie.engine.session import Session
from tests.engine.scheduling import Family, session_of

QWEN = {
    "family": "Qwen3_5",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
    "vocab_size": 1500,
}


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(seed=7, **QWEN)


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return session_of(open_checkpoint(folder), "rows")


def test_logits_are_those_of_transformers(against: Any, folder: Path, session: Session) -> None:
    against.check(session.model, folder, 71, 8)
