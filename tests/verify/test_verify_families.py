"""Published sizes of every family at full width, two layers deep, random weights: compiled, run, gated."""

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.llama32_1b.synthetic.__main__ import main
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.reference import Reference

SIZES = ["lfm2-350m", "qwen2.5-0.5b", "qwen3-0.6b", "tinyllama-1.1b"]
"""One of SHAPES for each kind of layer: each takes a minute or more. The others went through the same when
their families came."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES)
def test_two_layers_of_a_published_size_pass(shape, open_session, tmp_path):
    assert main([str(tmp_path / shape), "--shape", shape, "--layers", "2"]) == 0
    checkpoint = open_checkpoint(tmp_path / shape)
    session, reference = open_session(checkpoint, 64), Reference.open(tmp_path / shape)
    record = verify(session, reference, choose_prompts(session, full=False))
    assert [str(failure) for failure in record.failures] == []
    assert record.verdict == "PASS"
