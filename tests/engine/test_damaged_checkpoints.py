"""Checkpoints damaged at random: what transformers reads of the same files, or one line that says why not."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.errors import CheckpointError
from aerie.engine.rope import inverse_frequencies
from tests.engine.checkpoints import all_tensors

DRAWN = 84
JUNK: tuple[Any, ...] = (
    *(None, True, "x", "", -1, 0, 1, 2, 0.5, 1e308, 10**40, 2**63, float("nan"), float("inf"), [], {}, [1]),
    *({"a": 1}, [[]] * 3, "\x1b[2J\n", {"rope_type": "linear"}, {"rope_type": "default", "factor": 1.0}),
)
FACTS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "vocab_size")


def cut(drawn, folder):
    path = drawn.choice([*folder.glob("*.safetensors*"), folder / "config.json"])
    path.write_bytes(path.read_bytes()[: drawn.randrange(path.stat().st_size)])


def flip(drawn, folder):
    """Bits anywhere in the text of a file, for tensors have few that matter."""
    path = drawn.choice([*folder.glob("*.safetensors*"), folder / "config.json"])
    content = bytearray(path.read_bytes())
    for _ in range(drawn.choice((1, 1, 3))):
        content[drawn.randrange(min(4000, len(content)))] ^= 1 << drawn.randrange(8)
    path.write_bytes(content)


def set_entry(drawn, folder):
    path = drawn.choice([folder / "config.json", folder / "generation_config.json"])
    content = json.loads(path.read_text())
    content[drawn.choice([*content, "rope_scaling", "rope_theta"])] = drawn.choice(JUNK)
    path.write_text(json.dumps(content))


def swap_entries(drawn, folder):
    content = json.loads((folder / "config.json").read_text())
    one, other = drawn.sample([*content], 2)
    content[one], content[other] = content[other], content[one]
    (folder / "config.json").write_text(json.dumps(content))


def mix_index_up(drawn, folder):
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    files = content["weight_map"]
    one, other = drawn.sample([*files], 2)
    files[one], files[other] = files[other], drawn.choice([files[one], "gone.safetensors", "../x", 7])
    files.pop(drawn.choice([*files]))
    path.write_text(json.dumps(content))


def rename(drawn, folder):
    path = drawn.choice([*folder.glob("*.safetensors*")])
    path.rename(folder / drawn.choice(["model.safetensors", "x.safetensors", "model.gguf", "config.json"]))


def rename_tensors(drawn, folder):
    """In the headers, by names of the same length: two swapped, or one that is no name."""
    path = drawn.choice([*folder.glob("*.safetensors")])
    content = path.read_bytes()
    for old, new in drawn.choice([((b"q_proj", b"\0"), (b"k_proj", b"q_proj")), ((b"norm", b"Norm"),)]):
        content = content.replace(old, new.ljust(len(old), b"_"))
    path.write_bytes(content)


DAMAGES = (cut, flip, set_entry, swap_entries, mix_index_up, rename, rename_tensors)


def check_read(folder, checkpoint, sound):
    """Tensors and facts are those of transformers; where it refuses an entry for its type, as 1 for 1.0,
    those of the sound checkpoint beside it."""
    from transformers import LlamaForCausalLM

    try:
        theirs = LlamaForCausalLM.from_pretrained(folder)
    except Exception:
        checkpoint = replace(
            checkpoint, config=replace(checkpoint.config, rms_norm_eps=sound.config.rms_norm_eps)
        )
        assert checkpoint.config == sound.config
        theirs = LlamaForCausalLM.from_pretrained(sound.folder)
    config, held = checkpoint.config, theirs.state_dict()
    for name, ours in all_tensors(checkpoint.weights, config).items():
        np.testing.assert_array_equal(ours.astype(np.float32), held[name].float().numpy(), err_msg=name)
    for name in FACTS:
        assert getattr(config, name) == getattr(theirs.config, name), name
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(frequencies, theirs.model.rotary_emb.inv_freq.numpy(), rtol=1e-6)


@pytest.mark.parametrize("number", range(DRAWN))
def test_what_transformers_reads_or_one_line(make_checkpoint, tmp_path, number):
    """The sound checkpoint is one of several files, so that all that names files can be wrong."""
    drawn = random.Random(number)
    sound = make_checkpoint(shard="600KB")
    folder = shutil.copytree(sound, tmp_path / "drawn")
    DAMAGES[number % len(DAMAGES)](drawn, folder)
    refused = None
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        refused = str(error)
    if refused is None:
        check_read(folder, checkpoint, open_checkpoint(sound))
    else:
        assert refused.isprintable()
        assert len(refused) < 2100
