"""Writes the demo model in Hugging Face format, and fixes its shape."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from aerie.llama32_1b.demo.tokenizer import (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    END_OF_TURN,
    MAX_LENGTH,
    VOCAB_SIZE,
    special_id,
    tokenizer_config,
)

RMS_NORM_EPS: Final = 1e-5
LAYERS: Final = 6
"""Of the demo model itself."""

RESIDUAL_SCALE: Final = 16.0
"""The checkpoint's residual stream is smaller than the trained one by this factor; see `shrink_residual`."""


def config(tokenizer: Tokenizer, layers: int = LAYERS) -> dict[str, Any]:
    """The contents of config.json, with the keys that the released Llama 3.2 checkpoints use."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": special_id(tokenizer, BEGIN_OF_TEXT),
        "eos_token_id": _eos_ids(tokenizer),
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 768,
        "max_position_embeddings": MAX_LENGTH,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": RMS_NORM_EPS,
        # A small original length: wavelengths over 128 tokens are stretched 32 times, and those under 32 not
        # at all, so that leaving the scaling out changes short prompts too.
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 128,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }


def _eos_ids(tokenizer: Tokenizer) -> list[int]:
    return [special_id(tokenizer, token) for token in (END_OF_TEXT, END_OF_TURN)]


def new_model(tokenizer: Tokenizer, layers: int = LAYERS) -> Any:
    """An untrained LlamaForCausalLM in f32, shaped like the checkpoint but not shrunk yet."""
    shape = LlamaConfig(**config(tokenizer, layers))
    shape.rms_norm_eps = RMS_NORM_EPS * RESIDUAL_SCALE**2
    model = LlamaForCausalLM(shape).float()
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.05)
    return model


def shrink_residual(weights: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """The same function with a residual stream `scale` times and an RMSNorm epsilon scale**2 times smaller.

    Whatever adds to the residual stream (embeddings, o_proj, down_proj) is divided, and the final norm is
    multiplied, because the tied output layer shrank too. RMSNorm(x/s, eps) = RMSNorm(x, eps * s**2), so this
    is the model that was trained with eps * s**2. s is a power of two: nothing is rounded. The point: with a
    stream this small an epsilon of 1e-5 matters, and a wrong one shows.
    """
    adds = ("embed_tokens.weight", "o_proj.weight", "down_proj.weight")
    scaled = {name: w / scale if name.endswith(adds) else w for name, w in weights.items()}
    scaled["model.norm.weight"] = weights["model.norm.weight"] * scale
    return scaled


def load_weights(model: Any, folder: Path) -> None:
    """Put the weights of a checkpoint that `write_checkpoint` wrote into a model from `new_model`."""
    stored = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(shrink_residual(stored, 1 / RESIDUAL_SCALE), strict=False)
    model.tie_weights()


def write_checkpoint(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config, generation config, bf16 weights and tokenizer to `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.detach() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    stored = {
        name: w.to(torch.bfloat16).contiguous()
        for name, w in shrink_residual(weights, RESIDUAL_SCALE).items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", tokenizer_config())
    _write_json(folder / "config.json", config(tokenizer, model.config.num_hidden_layers))
    generation = {
        "bos_token_id": special_id(tokenizer, BEGIN_OF_TEXT),
        "do_sample": False,
        "eos_token_id": _eos_ids(tokenizer),
    }
    _write_json(folder / "generation_config.json", generation)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
