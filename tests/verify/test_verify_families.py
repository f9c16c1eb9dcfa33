"""Published sizes of every kind of layer at full width, two layers deep, random weights: run and gated."""

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.llama32_1b.synthetic.__main__ import main
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.reference import Reference

SIZES = ("lfm2-350m", "qwen2.5-0.5b", "qwen3-0.6b")
"""One of SHAPES for each kind of layer but a Llama's, of which one of full size passes in
test_verify_healthy.py."""
VOCABULARY = "8192"
"""Tokens: with all of them most of the time goes into the LM head. A whole vocabulary is smollm2's
(test_verify_smollm2.py)."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES)
def test_two_layers_of_a_published_size_pass(shape, open_session, tmp_path):
    cut = ["--layers", "2", "--vocab-size", VOCABULARY]
    assert main([str(tmp_path / shape), "--shape", shape, *cut]) == 0
    checkpoint = open_checkpoint(tmp_path / shape)
    session, reference = open_session(checkpoint, 64), Reference.open(tmp_path / shape)
    record = verify(session, reference, choose_prompts(session, full=False))
    assert [str(failure) for failure in record.failures] == []
    assert record.verdict == "PASS"
