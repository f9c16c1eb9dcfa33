"""Random Llamas of other shapes pass with every prompt; the first two have shapes of test_model_shapes.py, of
which all programs are built once."""

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.verify.reference import Reference
from tests.verify.passing import SEQ_LEN, check

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMAS = {
    "five layers of three heads, each with its own keys": {
        "num_hidden_layers": 5,
        "hidden_size": 384,
        "head_dim": 128,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 704,
        "rope_parameters": PLAIN_ROPE,
    },
    "untied, one KV head for sixteen narrow ones": {
        "num_hidden_layers": 3,
        "hidden_size": 192,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 997,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    },
    "wide heads, fewer queries than hidden": {
        "num_hidden_layers": 2,
        "hidden_size": 384,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "intermediate_size": 1024,
        "vocab_size": 800,
    },
}


@pytest.mark.parametrize("config", LLAMAS.values(), ids=LLAMAS.keys())
def test_other_shapes_pass_with_every_prompt(config, write_llama, open_session):
    folder = write_llama(**config)
    check(open_session(open_checkpoint(folder), SEQ_LEN), Reference.open(folder), full=True)
