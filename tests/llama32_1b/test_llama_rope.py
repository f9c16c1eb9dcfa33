"""The RoPE table against transformers."""

import numpy as np
import pytest

from aerie.engine.config import load_config
from aerie.engine.numerics import inverse_frequencies, rope_table

LLAMA32 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.fixture(params=[LLAMA32, DEFAULT], ids=["llama3", "default"])
def both(request, make_checkpoint):
    """Our config and transformers' RoPE module for the same checkpoint."""
    import torch
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    folder = make_checkpoint(rope_parameters=request.param, max_position_embeddings=2048)
    module = LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder))
    cos, sin = module(torch.zeros(1, dtype=torch.bfloat16), torch.arange(2048)[None])
    return load_config(folder), module.inv_freq.numpy(), cos[0].float().numpy(), sin[0].float().numpy()


def test_frequencies(both):
    config, frequencies, _, _ = both
    ours = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, frequencies, rtol=3e-7)


def test_table_after_rounding(both):
    """cos and sin of two libraries may differ in the last float32 bit: rarely one step of bf16."""
    config, _, cos, sin = both
    table = rope_table(config, 2048).astype(np.float32)
    half = config.head_dim // 2
    expected = np.concatenate([cos[:, :half], sin[:, :half]], axis=1)
    assert table.shape == (2048, config.head_dim)
    assert (table == expected).mean() > 0.995
    np.testing.assert_allclose(table, expected, atol=2**-8)


def test_rows_do_not_depend_on_the_length(both):
    config = both[0]
    np.testing.assert_array_equal(rope_table(config, 2048)[:100], rope_table(config, 100))


def test_llama3_rule_matters(both):
    """The longest wavelengths are stretched 32 times; without the rule they would not be."""
    config, frequencies, _, _ = both
    plain = inverse_frequencies(config.head_dim, config.rope_theta, None)
    ratio = plain[-1] / frequencies[-1]
    assert ratio == pytest.approx(32.0 if config.rope_scaling else 1.0, rel=1e-6)
