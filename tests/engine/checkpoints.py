"""Tiny random Llamas in Hugging Face format, and a tiny tokenizer, written to disk for tests."""

from __future__ import annotations

import json
from pathlib import Path

from aerie.engine.config import load_config
from aerie.engine.weights import Weights, expected_shapes

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|bos|>", "<|eos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
EOS_IDS = [1, 2]  # <|eos|> and <|end|>

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE,
    "bos_token_id": 0,
    "eos_token_id": EOS_IDS,
}


def write_tokenizer(folder: Path, vocab_size: int, template: str | None = TEMPLATE) -> None:
    """A byte-level tokenizer: special tokens, then one id per byte, then merges made of pairs of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    merges = [(a, b) for a in "Ġetaoinshr" for b in "etaoinshrdlu"]
    merges = merges[: vocab_size - len(vocabulary)]
    vocabulary.update({a + b: len(vocabulary) + index for index, (a, b) in enumerate(merges)})
    inner = Tokenizer(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|bos|>", eos_token="<|eos|>", chat_template=template
    ).save_pretrained(folder)


def write_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "bfloat16",
    shard: str = "5GB",
    template=TEMPLATE,
    family: str = "Llama",
    entries: dict[str, object] | None = None,
    **changes,
) -> Path:
    """A random Llama (or another family) of SMALL with `changes`, saved by transformers, with a tokenizer.

    entries: of config.json, where a model that comes with code of its own says other things there.
    """
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # on standard error, which tests read
    torch.manual_seed(seed)
    settings = {**SMALL, **changes}
    make = getattr(transformers, f"{family}ForCausalLM")
    model = make(make.config_class(**settings)).to(getattr(torch, dtype))
    sharpen(model)
    model.generation_config.eos_token_id = settings["eos_token_id"]
    model.save_pretrained(folder, max_shard_size=shard)
    edit_json(folder / "config.json", **(entries or {}))
    write_tokenizer(folder, settings["vocab_size"], template)
    return folder


def sharpen(model) -> None:
    """Spread the weights, so that tokens differ and logits are far apart, as in a trained model."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".bias"):
                weight.copy_(0.5 * torch.randn_like(weight))
            elif weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "embed" in name or "lm_head" in name:
                weight.copy_(0.2 * torch.randn_like(weight))
            elif weight.ndim == 3:  # a convolution, of which each column has its taps
                weight.copy_(1.5 * weight.shape[2] ** -0.5 * torch.randn_like(weight))
            else:
                weight.mul_(1.5 * weight.shape[1] ** -0.5 / 0.02)


def edit_json(path: Path, **changes) -> None:
    """Change entries of a JSON file; None removes one."""
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def open_weights(folder):
    return Weights(folder, load_config(folder))


def all_tensors(weights, config):
    """Every tensor, by the checkpoint's names."""
    found = [weights.embed_table.table, weights.final_norm, weights.lm_head]
    for layer in range(config.num_hidden_layers):
        found += weights.layer(layer).values()
    values = {tensor.name: tensor.read() for tensor in found}
    assert set(values) == set(expected_shapes(config))
    return values
