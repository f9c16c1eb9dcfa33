"""Sliding windows: what a token sees in each layer, against transformers and however it is scheduled."""

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, prefill
from aerie.engine.kv_cache import causal
from aerie.engine.layer_masks import layer_masks
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions, choose_seq_len
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone
from aerie.runtime import select_backend

MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "mistral": {"family": "Mistral", "sliding_window": 20},
    "qwen3": {
        "family": "Qwen3",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": MIXED,
    },
    "gemma3": {
        "family": "Gemma3",
        "num_hidden_layers": 3,
        "sliding_window": 9,
        "layer_types": MIXED,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
    },
}
"""Of windows in all layers, and in some."""
PROMPT_TOKENS, FED_TOKENS = 71, 8


def open_session(folder, decode, variants="8,32,128x512"):
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants=variants, decode=decode
    )
    return prepare_runtime(open_checkpoint(folder), options, Reporter())


@pytest.fixture(scope="module", params=MODELS)
def folder(request, make_checkpoint):
    return make_checkpoint(seed=7, **MODELS[request.param])


@pytest.fixture(scope="module", params=["guide", "rows"])
def session(request, folder):
    return open_session(folder, request.param)


def test_logits_are_those_of_transformers(against, folder, session):
    """Of a prompt of several windows in one call, and of tokens after it."""
    against.check(session.model, folder, PROMPT_TOKENS, FED_TOKENS)


def bits(model, prompt, fed, chunks):
    """Of the rows of a prompt in chunks of these lengths, and of tokens after it."""
    cache, rows = model.new_cache(len(prompt) + len(fed)), []
    for chunk in np.split(np.array(prompt), np.cumsum(chunks)):
        rows += [*prefill(model, chunk.tolist(), cache)]
    rows += [decode_step(model, token, cache) for token in fed]
    return np.array(rows).tobytes()


def test_chunks_have_the_bits_of_the_whole(against, session):
    tokens = against.random_tokens(session.model, PROMPT_TOKENS + FED_TOKENS)
    prompt, fed = tokens[:PROMPT_TOKENS], tokens[PROMPT_TOKENS:]
    assert bits(session.model, prompt, fed, [5, 30, 1]) == bits(session.model, prompt, fed, [])


@pytest.mark.slow
def test_a_batch_has_the_bits_of_each_alone(against, make_checkpoint):
    """Texts of other lengths side by side, and the first again from pages that the prefix cache holds."""
    session = open_session(make_checkpoint(seed=7, **MODELS["qwen3"]), "rows")
    text = against.random_tokens(session.model, 140)
    prompts = [text[:90], text[:70], text[5:]]

    def sampler():
        return Sampler(temperature=1.0, seed=3)

    alone = [[*generate_alone(session.model, prompt, 6, sampler())] for prompt in prompts]
    requests = [session.requests.add_request(prompt, 6, sampler()) for prompt in prompts]
    assert [[token for token in one.steps() if token is not None] for one in requests] == alone
    again = session.requests.add_request(prompts[0], 6, sampler())
    assert [token for token in again.steps() if token is not None] == alone[0]
    assert again.cached_tokens == 64


def test_what_a_layer_sees():
    """The key at j from the query at i: j <= i and j > i - W."""
    masks = layer_masks(3, 3, frozenset([0, 2]))
    assert (masks.windows, masks.of_layer) == ((3, None), (0, 1, 0))
    near, all_before = (rule(5) for rule in masks.rules(causal))
    assert (near, all_before) == (slice(3, 6), slice(0, 6))
    assert masks.rules(lambda _: np.array([0, 1, 4, 5]))[0](5).tolist() == [4, 5]
    positions = np.arange(1, 6)
    seen = np.arange(6) <= positions[:, None]
    expected = [[max(0, at - 2) <= key <= at for key in range(6)] for at in range(1, 6)]
    keys = np.arange(6)
    assert masks.visible(seen, positions, keys, 0).tolist() == expected
    assert masks.visible(seen[:, 2:], positions, keys[2:], 0).tolist() == [row[2:] for row in expected]
    assert (masks.visible(seen, positions, keys, 1) == seen).all()
    assert layer_masks(2, None, frozenset()).windows == (None,)


@pytest.mark.parametrize(("layers", "windowed"), [(1, {0}), (2, {0}), (3, {0, 2}), (5, {0, 2, 3})])
def test_a_model_of_other_layers_has_windows_too(make_checkpoint, layers, windowed):
    config = load_config(make_checkpoint(seed=7, **MODELS["qwen3"]))
    assert config.context == 256
    assert config.with_layers(layers).layers_with_window == windowed


def test_the_six_programs_end_with_the_window(make_checkpoint):
    config = load_config(make_checkpoint(seed=7, family="Mistral", sliding_window=100))
    assert choose_seq_len(config, 64) == 64
    with pytest.raises(
        UserError,
        match=r"--seq-len 128 \(SEQ_LEN\) asks for programs in which a token sees all tokens before it, and "
        r"in this model it sees 100 \(sliding_window\); leave --seq-len out",
    ):
        choose_seq_len(config, 128)
