"""Random models of unusual shapes through the programs on the virtual NPU; one of every family is among the
slow tests of test_families.py."""

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.errors import ConfigError
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone
from aerie.runtime import select_backend

PROMPT_TOKENS, FED_TOKENS, NEW_TOKENS = 37, 12, 16
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SHAPES = {
    "three KV heads for nine, as SmolLM-135M": {
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "rope_parameters": PLAIN_ROPE,
    },
    "queries wider than the model, one KV head, untied, odd vocabulary": {
        "hidden_size": 192,
        "head_dim": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "vocab_size": 997,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    },
    "heads of 128, each with its own keys": {
        "hidden_size": 384,
        "head_dim": 128,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 704,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "one head of 192, an FFN whose rows come in pieces": {
        "hidden_size": 64,
        "head_dim": 192,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 11008,
        "rms_norm_eps": 1e-3,
    },
    "heads of 256, four for one KV head, as Gemma 3 270M": {
        "family": "Qwen3",
        "hidden_size": 640,
        "head_dim": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
    },
}


@pytest.fixture(scope="module", params=list(SHAPES.values()), ids=list(SHAPES))
def folder(request, make_checkpoint):
    return make_checkpoint(**{"num_hidden_layers": 1, "seed": 7, **request.param})


@pytest.fixture(scope="module")
def model(folder):
    options = RuntimeOptions(64, select_backend("virtual"), default_cache_dir())
    return prepare_runtime(open_checkpoint(folder), options, Reporter()).model


def test_logits_are_those_of_transformers(against, folder, model):
    """Every position of a prompt, then tokens fed to decode: as near to exact as transformers' own bf16."""
    against.check(model, folder, PROMPT_TOKENS, FED_TOKENS)


def test_greedy_tokens_are_those_of_transformers(against, folder, model):
    """Each token is transformers' choice too, or so near it that bf16 does not tell them apart."""
    prompt = against.random_tokens(model, 20)
    tokens = list(generate_alone(model, prompt, NEW_TOKENS, Sampler()))
    logits = against.their_logits(folder, "bfloat16", prompt + tokens)[len(prompt) - 1 : -1]
    best, chosen = logits.max(-1), logits[np.arange(len(tokens)), tokens]
    assert (chosen >= best - 2.0**-6 * np.abs(best)).all()
    assert (chosen == best).mean() > 0.8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 96, "head_dim": 32}, r"hidden_size=96 is not .* of 64 \(a GEMV reads"),
        ({"head_dim": 80}, r"head_dim=80 is not .* of 32 \(RoPE turns 16 pairs of a head at a time\)"),
        ({"intermediate_size": 1000}, "intermediate_size=1000 is not .* of 64"),
        (
            {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32},
            r"num_attention_heads \* head_d",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_models_that_do(changes, words, make_checkpoint, tmp_path):
    checkpoint = open_checkpoint(make_checkpoint(**changes))
    whole = rf"this model does not fit .*: {words}.*\. Among those that do are .*Llama-3\.2-1B .*that run\)$"
    with pytest.raises(ConfigError, match=whole):
        prepare_runtime(
            checkpoint, RuntimeOptions(64, select_backend("virtual"), tmp_path / "cache"), Reporter()
        )
    assert not (tmp_path / "cache").exists()
