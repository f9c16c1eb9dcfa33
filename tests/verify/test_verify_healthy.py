"""The untouched model passes: the demo, and one layer of full size. As users build it the demo is verified by
`make verify` in CI, and smollm2 in test_verify_smollm2.py."""

from aerie.engine.checkpoint import open_checkpoint
from aerie.verify.reference import Reference
from tests.verify.passing import SEQ_LEN, check

FULL_SIZE_LAYER = {
    "num_hidden_layers": 1,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
}


def test_the_demo_passes_with_every_prompt(demo_session, demo_reference):
    check(demo_session, demo_reference, full=True)


def test_a_layer_of_full_size_passes(write_llama, open_session):
    folder = write_llama(**FULL_SIZE_LAYER)
    check(open_session(open_checkpoint(folder), SEQ_LEN), Reference.open(folder), full=False)
