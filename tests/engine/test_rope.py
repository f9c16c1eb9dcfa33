"""The RoPE table by every rule against transformers' own module, bit by bit."""

import numpy as np
import pytest

from aerie.engine.config import load_config
from aerie.engine.errors import ConfigError
from aerie.engine.rope import RULES, inverse_frequencies
from aerie.engine.rope_tables import rope_table

LLAMA32 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 1024,
    "short_factor": [1 + 0.01 * pair for pair in range(32)],
    "long_factor": [1.5 + 0.7 * pair for pair in range(32)],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
CASES = {
    "llama3": (LLAMA32, 64),
    "llama3, heads of 128": ({**LLAMA32, "factor": 8.0}, 128),
    "default": (DEFAULT, 64),
    "default, heads of 128": ({"rope_type": "default", "rope_theta": 1e6}, 128),
    "default, heads of 96": (DEFAULT, 96),
    "linear": (LINEAR, 64),
    "longrope": (LONG, 64),
    "yarn": (YARN, 64),
    "yarn, heads of 128, all entries": (
        YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.05},
        128,
    ),
    "yarn by scales": (YARN | {"mscale": 0.8, "mscale_all_dim": 0.5, "rope_theta": 500.0}, 64),
    "dynamic": (DYNAMIC, 64),
    "longrope, factor and magnitude given": ({**LONG, "factor": 4.0, "attention_factor": 1.3}, 64),
}
POSITIONS = 8192


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def both(request, make_checkpoint):
    """Our config and transformers' RoPE module for the same checkpoint, and how many positions to compare."""
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope, head_dim = request.param
    folder = make_checkpoint(rope_parameters=rope, head_dim=head_dim, max_position_embeddings=POSITIONS)
    config = load_config(folder)
    return config, LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder)), config.context


def theirs(module, positions):
    """Their cosines and sines in bf16, as our table has them."""
    import torch

    halves = module(torch.zeros(1, dtype=torch.bfloat16), torch.arange(positions)[None])
    return np.concatenate([half[0, :, : half.shape[-1] // 2].float().numpy() for half in halves], axis=1)


def test_frequencies_are_theirs(both):
    config, module, positions = both
    theirs(module, positions)  # longrope makes its choice in the forward pass
    ours = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    assert ours.dtype == np.float32
    expected = module.inv_freq.numpy()
    assert (ours != expected).sum() <= 1
    np.testing.assert_allclose(ours, expected, rtol=2e-7)


def test_table_after_rounding_is_theirs(both):
    """The cosines of two libraries differ in the last bit of float32: rarely one step of bf16."""
    config, module, positions = both
    table, expected = rope_table(config, positions).astype(np.float32), theirs(module, positions)
    assert table.shape == (positions, config.head_dim)
    assert (table != expected).mean() < 2e-4
    np.testing.assert_allclose(table, expected, rtol=2**-7, atol=2**-8)


def test_every_rule_is_compared():
    assert {rope["rope_type"] for rope, _ in CASES.values()} == set(RULES)


def test_rows_do_not_depend_on_the_length(both):
    config = both[0]
    np.testing.assert_array_equal(rope_table(config, 2048)[:100], rope_table(config, 100))


@pytest.mark.parametrize("rope", [LLAMA32, LINEAR, LONG, YARN], ids=lambda rope: rope["rope_type"])
def test_the_rule_matters(rope, make_checkpoint):
    config = load_config(make_checkpoint(rope_parameters=rope, max_position_embeddings=POSITIONS))
    plain = inverse_frequencies(64, config.rope_theta, None)
    ratio = plain / inverse_frequencies(64, config.rope_theta, config.rope_scaling)
    wanted = {"llama3": 32.0, "linear": 3.0, "longrope": 1.31, "yarn": 4.0}[rope["rope_type"]]
    assert ratio[-1] == pytest.approx(wanted, rel=1e-6)


def load_long(make_checkpoint, checkpoints, tmp_path, **changes):
    """A copy of a checkpoint with LongRoPE, changed after transformers wrote it."""
    import shutil

    folder = make_checkpoint(rope_parameters=LONG, head_dim=64, max_position_embeddings=POSITIONS)
    copy = shutil.copytree(folder, tmp_path / "long")
    checkpoints.edit_json(copy / "config.json", rope_parameters={**LONG, **changes})
    return load_config(copy)


def test_longrope_ends_where_its_frequencies_change(make_checkpoint, checkpoints, tmp_path):
    """transformers takes others for every text that is longer, and keys in its cache stay as they were."""
    import torch
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = load_long(make_checkpoint, checkpoints, tmp_path)
    assert (config.context, config.context_entry) == (1024, "original_max_position_embeddings")
    assert "longrope" in config.context_reason
    module = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path / "long"))
    within, beyond = (
        module(torch.zeros(1), torch.arange(length)[None])[0][0, 1000] for length in (1024, 1025)
    )
    assert not torch.equal(within, beyond)


def test_longrope_with_one_set_of_frequencies_has_all_positions(make_checkpoint, checkpoints, tmp_path):
    config = load_long(make_checkpoint, checkpoints, tmp_path, long_factor=LONG["short_factor"])
    assert config.context == POSITIONS
    assert config.context_reason == ""


def test_magnitude_of_longrope(make_checkpoint, checkpoints, tmp_path):
    """sqrt(1 + ln(8192 / 1024) / ln(1024)), and 1 where the context was not stretched."""
    rule = load_long(make_checkpoint, checkpoints, tmp_path).rope_scaling
    assert rule.magnitude == pytest.approx(1.14017542)
    config = load_long(make_checkpoint, checkpoints, tmp_path / "other", factor=1.0)
    assert config.rope_scaling.magnitude == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"short_factor": [1.0] * 31},
            "short_factor has 31 factors and a head has 32 pairs to turn; fetch it again",
        ),
        ({"long_factor": [0.0] * 32}, "long_factor is 0.0; it must be a finite number above 0"),
        ({"long_factor": 4}, "long_factor is 4; it must be a list"),
        ({"beta_fast": 32}, "RoPE has beta_fast 32, which the rule 'longrope' knows nothing of"),
    ],
)
def test_a_longrope_that_makes_no_sense(changes, message, make_checkpoint, checkpoints, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load_long(make_checkpoint, checkpoints, tmp_path, **changes)


def test_another_rule_is_refused(damaged, checkpoints):
    checkpoints.edit_json(damaged / "config.json", rope_parameters={**DEFAULT, "rope_type": "ntk"})
    wanted = (
        "RoPE rule 'ntk' is not supported; 'default', 'linear', 'llama3', 'yarn', 'dynamic' and 'longrope'"
    )
    with pytest.raises(ConfigError, match=wanted):
        load_config(damaged)


@pytest.mark.parametrize("entry", [{"rope_theta": 1.0}, {"beta_fast": 0.5}])
def test_a_yarn_that_makes_no_sense(entry, damaged, checkpoints):
    rule = YARN | {"rope_theta": None} | entry if "rope_theta" in entry else YARN | entry
    checkpoints.edit_json(damaged / "config.json", rope_parameters=rule)
    with pytest.raises(
        ConfigError, match=r"must be above 1, and beta_fast .* above beta_slow .*cannot be blended"
    ):
        load_config(damaged)
