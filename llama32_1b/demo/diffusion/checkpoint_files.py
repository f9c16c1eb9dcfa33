"""The checkpoint of the demo model that fills in blocks, as SDAR's are written: its shape, its files."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from aerie.llama32_1b.demo.diffusion import BLOCK, MASK_TOKEN
from aerie.llama32_1b.demo.tokenizer import (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    END_OF_TURN,
    MAX_LENGTH,
    SPECIAL_TOKENS,
    add_special_tokens,
    learn_tokenizer,
    special_id,
    tokenizer_config,
    tokenizer_texts,
)

VOCAB_SIZE: Final = 1504
"""The demo's 1500 tokens, the mask token, and 3 that nobody says."""


def new_tokenizer() -> Tokenizer:
    """The demo's own, and the mask token behind it."""
    tokenizer = learn_tokenizer(tokenizer_texts())
    add_special_tokens(tokenizer, [*SPECIAL_TOKENS, MASK_TOKEN])
    return tokenizer


def end_ids(tokenizer: Tokenizer) -> list[int]:
    return [special_id(tokenizer, token) for token in (END_OF_TEXT, END_OF_TURN)]


def config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of config.json: layers as the demo's, with SDAR's norms of heads."""
    return {
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "block_size": BLOCK,
        "bos_token_id": special_id(tokenizer, BEGIN_OF_TEXT),
        "eos_token_id": end_ids(tokenizer),
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 768,
        "mask_token_id": special_id(tokenizer, MASK_TOKEN),
        "max_position_embeddings": MAX_LENGTH,
        "model_type": "sdar",
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
    }


def new_model(tokenizer: Tokenizer) -> Any:
    """An untrained model in f32, of the class of transformers that has these layers."""
    entries = config(tokenizer)
    shape = Qwen3Config(
        **{name: entries[name] for name in entries if name not in ("architectures", "model_type")}
    )
    model = Qwen3ForCausalLM(shape).float()
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.05)
    return model


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Tokenizer]:
    """The model and the tokenizer of a folder that `write_checkpoint` wrote."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = new_model(tokenizer)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    return model.to(dtype).eval(), tokenizer


def write_checkpoint(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config, generation config, bf16 weights and tokenizer to `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.detach() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    stored = {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    generation = {"bos_token_id": special_id(tokenizer, BEGIN_OF_TEXT), "eos_token_id": end_ids(tokenizer)}
    _write(folder / "tokenizer_config.json", {**tokenizer_config(), "mask_token": MASK_TOKEN})
    _write(folder / "config.json", config(tokenizer))
    _write(folder / "generation_config.json", generation)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
