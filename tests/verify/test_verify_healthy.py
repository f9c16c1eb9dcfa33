"""The untouched model passes: the demo, random Llamas, and one layer of full size, as users build them."""

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.verify.diagnosis import diagnose
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.reference import Reference

pytestmark = pytest.mark.usefixtures("as_users_build")

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMAS = {
    "five layers of three heads, each with its own keys": {
        "num_hidden_layers": 5,
        "hidden_size": 192,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 448,
        "rope_parameters": PLAIN_ROPE,
    },
    "untied, one KV head for eight narrow ones": {
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
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
    "a Mistral whose window ends its context": {
        "family": "Mistral",
        "sliding_window": 100,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
}
FULL_SIZE_LAYER = {
    "num_hidden_layers": 1,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
}
SEQ_LEN = 64


def check(session, reference, full):
    prompts = choose_prompts(session, full)
    record = verify(session, reference, prompts)
    assert [str(failure) for failure in record.failures] == []
    assert record.verdict == "PASS"
    assert len(record.trials) == len(prompts) >= (8 if full else 2)
    found = diagnose(session, reference, prompts[0].token_ids).first
    assert found is None, f"{found.place}: {found.problem or found.drift}"


def test_the_demo_passes_with_every_prompt(demo_session, demo_reference):
    check(demo_session, demo_reference, full=True)


@pytest.mark.parametrize("config", LLAMAS.values(), ids=LLAMAS.keys())
def test_other_shapes_pass_with_every_prompt(config, write_llama, open_session):
    folder = write_llama(**config)
    check(open_session(open_checkpoint(folder), SEQ_LEN), Reference.open(folder), full=True)


def test_a_layer_of_full_size_passes(write_llama, open_session):
    folder = write_llama(**FULL_SIZE_LAYER)
    check(open_session(open_checkpoint(folder), SEQ_LEN), Reference.open(folder), full=False)
