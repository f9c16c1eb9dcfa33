"""What the reference gets of a GGUF file: the weights of the source, by the gguf package's own code."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file
from transformers import LlamaConfig, Qwen2Config

from aerie.engine.config import load_config
from aerie.engine.rope import inverse_frequencies
from aerie.verify.reference import Reference
from aerie.verify.reference_folder import facts_and_weights
from tests import gguf_files
from tests.gguf_files import Source, matrices_in


@pytest.mark.parametrize("change", [None, gguf_files.fuse])
@pytest.mark.parametrize(("family", "config_class"), [("Llama", LlamaConfig), ("Qwen2", Qwen2Config)])
def test_the_reference_has_the_weights_of_the_source(write_llama, tmp_path, family, config_class, change):
    source = Source(write_llama(family=family))
    first = gguf_files.write(tmp_path / "x.gguf", source, matrices_in(Type.BF16), change=change, per_part=8)
    with facts_and_weights(first, config_class) as shown:
        index = json.loads((shown / "model.safetensors.index.json").read_text())["weight_map"]
        assert set(index) == set(source.tensors)
        for name, file in index.items():
            np.testing.assert_array_equal(load_file(shown / file)[name], source.tensors[name], err_msg=name)
        facts = json.loads((shown / "config.json").read_text())
    for name in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "vocab_size", "tie_word_embeddings"):
        assert facts[name] == source.config[name]
    assert facts["rope_parameters"] == source.config["rope_parameters"]


@pytest.mark.parametrize("change", [None, {"rope_freqs.weight": np.linspace(1, 9, 32, dtype=np.float32)}])
def test_the_reference_turns_by_the_same_frequencies(write_llama, tmp_path, change):
    """By the rule of Llama 3, and by divisors that no rule made."""
    path = gguf_files.write(
        tmp_path / "x.gguf", Source(write_llama()), change=lambda tensors: tensors.update(change or {})
    )
    config, theirs = load_config(path), Reference.open(path).model.model.rotary_emb
    ours = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(theirs.inv_freq.numpy(), ours, rtol=1e-6)
    assert config.rope_scaling
    assert theirs.attention_scaling == config.rope_scaling.magnitude
