"""GGUF files for tests, written by the gguf package as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401  numpy knows no bfloat16 without it
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

SOURCE_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "vocab_size": "vocab_size",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
"""Keys of an architecture by the entries of config.json that they are made of."""

SCALES = {
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
}
"""Where a block has scales in float16: any other bytes are numbers, and these are not."""


def random_blocks(kind: Type, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Bytes of a tensor of this shape, (rows, bytes), whose values are finite and not large."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng([seed, kind])
    blocks = draw.integers(0, 256, (*shape[:-1], shape[-1] // values, size), np.uint8)
    for at in SCALES[kind]:
        scales = draw.normal(0, 1e-4, blocks.shape[:-1]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys in the order that a llama's file has (llama.cpp, conversion/llama.py)."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def divisors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray:
    """The tensor rope_freqs of the rule llama3, in float32 as torch computes it."""
    one = np.float32(1)
    powers = np.float32(rope["rope_theta"]) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    original, factor = rope["original_max_position_embeddings"], np.float32(rope["factor"])
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    found = []
    for frequency in one / powers:
        wavelength = np.float32(2 * np.pi) / frequency
        smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
        if wavelength < original / high:
            found.append(one)
        elif wavelength > original / low:
            found.append(factor)
        else:
            found.append(one / ((one - smooth) / factor + smooth))
    return np.array(found, np.float32)


PERMUTED = ("llama", "smollm3", "granite")
"""Architectures whose converter is that of llama."""


class Source:
    """A checkpoint in Hugging Face's format, to be written as GGUF."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {
            name: array.astype(np.float32) for name, array in load_file(folder / "model.safetensors").items()
        }
        called = {"mistral": "llama", "qwen3_5_text": "qwen35"}
        self.architecture = called.get(self.config["model_type"], self.config["model_type"])
        plain = {"rope_type": "default", "rope_theta": self.config.get("rope_theta")}
        self.rope = self.config.get("rope_parameters") or plain | (self.config.get("rope_scaling") or {})
        self.head_dim = (
            self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
        )

    def keys(self) -> dict[str, Any]:
        """Metadata, but for the architecture's name."""
        of_model = {ours: self.config.get(theirs) for ours, theirs in SOURCE_KEYS.items()}
        of_model |= dict.fromkeys(("attention.key_length", "attention.value_length"), self.head_dim)
        of_model["rope.dimension_count"] = int(self.head_dim * self.rope.get("partial_rotary_factor", 1))
        if self.rope["rope_type"] == "longrope":
            original = self.rope["original_max_position_embeddings"]
            of_model["rope.scaling.original_context_length"] = original
            of_model["rope.scaling.attn_factor"] = self.rope["attention_factor"]
        eps = self.config.get("norm_eps") or self.config["rms_norm_eps"]
        of_model["attention.layer_norm_rms_epsilon"] = float(eps)
        if "conv_L_cache" in self.config:  # 0 heads in a layer with a convolution (conversion/lfm2.py)
            heads, kinds = self.config["num_key_value_heads"], self.config["layer_types"]
            of_model["attention.head_count_kv"] = [heads * (kind != "conv") for kind in kinds]
            of_model["shortconv.l_cache"] = self.config["conv_L_cache"]
        if "linear_num_key_heads" in self.config:  # (conversion/qwen.py)
            of_model |= {ours: self.config[theirs] for ours, theirs in DELTA_KEYS.items()}
            width = self.config["linear_value_head_dim"] * self.config["linear_num_value_heads"]
            of_model["ssm.inner_size"] = width
            interval = self.config["layer_types"].index("full_attention") + 1
            of_model["full_attention_interval"] = interval
        of_model["rope.freq_base"] = float(self.rope["rope_theta"])
        if self.rope["rope_type"] in ("linear", "yarn"):
            of_model["rope.scaling.type"] = self.rope["rope_type"]
            of_model["rope.scaling.factor"] = float(self.rope["factor"])
        return {f"{self.architecture}.{key}": value for key, value in of_model.items()} | self._tokenizer()

    def _tokenizer(self) -> dict[str, Any]:
        content = (self.folder / "tokenizer.json").read_text()
        whole = json.loads(content)
        texts = {number: text for text, number in whole["model"]["vocab"].items()}
        texts |= {token["id"]: token["content"] for token in whole["added_tokens"]}
        control = {token["id"] for token in whole["added_tokens"]}
        numbers = range(self.config["vocab_size"])
        settings = json.loads((self.folder / "tokenizer_config.json").read_text())
        template = self.folder / "chat_template.jinja"
        shown = template.read_text() if template.is_file() else settings.get("chat_template")
        ends = self.config["eos_token_id"]
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [texts.get(number, f"[PAD{number}]") for number in numbers],
            "tokenizer.ggml.token_type": [3 if n in control else 1 if n in texts else 5 for n in numbers],
            "tokenizer.ggml.merges": [
                pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]
            ],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": ends[0] if isinstance(ends, list) else ends,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.huggingface.json": content,
            **({"tokenizer.chat_template": shown} if shown else {}),
        }

    def _as_qwen35(self, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
        """What the converter makes of a tensor: norms get 1, decays are exponents, and heads of values lie
        by their number within their head of keys (conversion/qwen.py)."""
        keys, count = self.config["linear_num_key_heads"], self.config["linear_num_value_heads"]
        before = 2 * keys * self.config["linear_key_head_dim"]

        def tiled(rows: np.ndarray) -> np.ndarray:
            by_keys = rows.reshape(keys, count // keys, len(rows) // count, *rows.shape[1:])
            return by_keys.swapaxes(0, 1).reshape(rows.shape)

        if "in_proj_qkv" in name or "conv1d" in name:
            values = np.concatenate([values[:before], tiled(values[before:])])
        elif "out_proj" in name:
            values = tiled(values.T).T
        elif "linear_attn" in name and "linear_attn.norm" not in name:
            values = tiled(values)
        if name.endswith("A_log"):
            values = -np.exp(values)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        return name.replace("dt_bias", "dt_proj.bias"), np.ascontiguousarray(values)

    def file_tensors(self) -> dict[str, np.ndarray]:
        """Tensors by the file's names and in its order of rows, in float32."""
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)
        names = gguf.get_tensor_name_map(kind, self.config["num_hidden_layers"])
        found: dict[str, np.ndarray] = {}
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for name, values in self.tensors.items():
            count = next((self.config[entry] for part, entry in heads.items() if part in name), None)
            if count and self.architecture in PERMUTED:
                values = permuted(values, count)
            if self.architecture == "qwen35":
                name, values = self._as_qwen35(name, values)
            in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert in_file, name
            found[in_file] = values.squeeze(1) if values.ndim == 3 else values
        for name in ("long", "short") if self.rope["rope_type"] == "longrope" else ():
            found[f"rope_factors_{name}.weight"] = np.array(self.rope[f"{name}_factor"], np.float32)
        if self.rope["rope_type"] == "llama3":
            found["rope_freqs.weight"] = divisors(self.rope, self.head_dim)
        return found


DELTA_KEYS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}

FUSED = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}


def fuse(tensors: dict[str, np.ndarray]) -> None:
    """Put queries, keys and values in one tensor, and gate and up, as files of some converters have them."""
    names = [name for name in tensors if name.startswith("blk.")]
    for layer, suffix in {(name.split(".")[1], name.split(".")[3]) for name in names}:
        for whole, parts in FUSED.items():
            members = [f"blk.{layer}.{part}.{suffix}" for part in parts]
            if members[0] in tensors:
                together = np.concatenate([tensors.pop(name) for name in members])
                tensors[f"blk.{layer}.{whole}.{suffix}"] = together


Kinds = Callable[[np.ndarray], Type]
"""The type in which a tensor is written."""


def matrices_in(kind: Type) -> Kinds:
    """As converters write models: vectors are always float32."""
    return lambda values: kind if values.ndim > 1 else Type.F32


BF16 = matrices_in(Type.BF16)


def write(
    path: Path,
    source: Source,
    kinds: Kinds = BF16,
    keys: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, Any]], None] | None = None,
    per_part: int = 0,
) -> Path:
    """Write a checkpoint as GGUF. kinds: the type of each tensor. keys: metadata in place of others, None for
    a key to leave out. change: of the tensors. per_part: tensors in a part, 0 for one file. A tensor of uint8
    has blocks already, of the type that `kinds` says. Returns the first file."""
    writer = gguf.GGUFWriter(path, source.architecture, split_max_tensors=per_part)
    for key, value in {**source.keys(), **(keys or {})}.items():
        add_key(writer, key, value)
    tensors = source.file_tensors()
    if change:
        change(tensors)
    for name, values in tensors.items():
        wanted = kinds(values)
        raw = values if values.dtype == np.uint8 else gguf.quants.quantize(values, wanted)
        writer.add_tensor(name, raw, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}*.gguf"))


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key whose type follows from Python's."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def string(text: str | bytes) -> bytes:
    """A string of a header."""
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    """A key of a header with its value."""
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """A line of the table of tensors. shape: the fastest dimension first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 0,
) -> bytes:
    """A file by hand. counts: of tensors and of keys, where they are not what is there; data: bytes of it."""
    counted = counts or (len(tensors), len(keys))
    table = b"GGUF" + struct.pack("<IQQ", version, *counted) + b"".join((*keys, *tensors))
    return table + bytes(-len(table) % 32) + bytes(data)
