"""Published sizes of every kind of layer at full width, two layers deep, random weights: run and gated."""

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.llama32_1b.synthetic.__main__ import main
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.reference import Reference

SIZES = {"lfm2-350m": None, "qwen2.5-0.5b": 8192, "qwen3-0.6b": 8192}
"""One of SHAPES for each kind of layer but a Llama's, of which one of full size passes in
test_verify_healthy.py; and how many tokens of the vocabulary it has, where not all: most of the time went
into the LM head."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES)
def test_two_layers_of_a_published_size_pass(shape, open_session, tmp_path):
    cut = ["--vocab-size", str(SIZES[shape])] if SIZES[shape] else []
    assert main([str(tmp_path / shape), "--shape", shape, "--layers", "2", *cut]) == 0
    checkpoint = open_checkpoint(tmp_path / shape)
    session, reference = open_session(checkpoint, 64), Reference.open(tmp_path / shape)
    record = verify(session, reference, choose_prompts(session, full=False))
    assert [str(failure) for failure in record.failures] == []
    assert record.verdict == "PASS"
