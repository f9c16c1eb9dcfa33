"""The shipped files of the demo model: their facts, their size, and what they cost to find."""

import json
import subprocess
import sys
from typing import Any

from safetensors import safe_open

from aerie.llama32_1b.demo import CHECKPOINT
from aerie.llama32_1b.demo.tokenizer import END_OF_TEXT, END_OF_TURN

_WANTED_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def _json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CHECKPOINT / name).read_text(encoding="utf-8"))
    return content


def _shapes() -> dict[str, tuple[str, tuple[int, ...]]]:
    with safe_open(CHECKPOINT / "model.safetensors", framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def test_files_are_all_there_and_under_16_megabytes() -> None:
    sizes = {path.name: path.stat().st_size for path in CHECKPOINT.iterdir()}
    assert set(sizes) == _WANTED_FILES
    assert sum(sizes.values()) < 16_000_000


def test_config_facts() -> None:
    config = _json("config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (256, 768, 6)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 64)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 500000.0)
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["original_max_position_embeddings"] == 128
    assert config["tie_word_embeddings"] is True
    assert config["torch_dtype"] == "bfloat16"


def test_every_weight_is_bf16_and_the_embedding_is_tied() -> None:
    shapes = _shapes()
    assert {dtype for dtype, _ in shapes.values()} == {"BF16"}
    assert shapes["model.embed_tokens.weight"][1] == (1500, 256)
    assert "lm_head.weight" not in shapes


def test_about_five_million_parameters() -> None:
    count = 0
    for _, shape in _shapes().values():
        size = 1
        for extent in shape:
            size *= extent
        count += size
    assert 4_900_000 < count < 5_300_000


def test_both_end_tokens_end_a_generation() -> None:
    vocabulary = {token["content"]: token["id"] for token in _json("tokenizer.json")["added_tokens"]}
    ends = [vocabulary[END_OF_TEXT], vocabulary[END_OF_TURN]]
    assert _json("generation_config.json")["eos_token_id"] == ends
    assert _json("config.json")["eos_token_id"] == ends


def test_finding_the_checkpoint_does_not_import_torch() -> None:
    code = "import sys, llama32_1b.demo; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
