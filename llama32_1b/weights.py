"""Weights from safetensors: one file or several with an index, read tensor by tensor when asked for.

Shapes are checked against the config before anything is read, so a wrong checkpoint is refused at
once. Tensors come out in bf16 and in Hugging Face's (out, in) layout. Tensors are not kept: a file is mapped
while one is read, so that a model that is being loaded takes little more memory than its buffers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from llama32_1b.config import LlamaConfig
from llama32_1b.errors import WeightsError
from llama32_1b.numerics import BF16Array, bf16

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ACCEPTED_DTYPES = ("BF16", "F16", "F32")

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class LayerWeights:
    """One transformer block in Hugging Face's (out, in) layout, bf16.

    E is the hidden size, H*D the width of all query heads, KV*D that of all KV heads, F the FFN's.
    """

    attn_norm: BF16Array  # (E,)
    wq: BF16Array  # (H*D, E)
    wk: BF16Array  # (KV*D, E)
    wv: BF16Array  # (KV*D, E)
    wo: BF16Array  # (E, H*D)
    ffn_norm: BF16Array  # (E,)
    w_gate: BF16Array  # (F, E)
    w_up: BF16Array  # (F, E)
    w_down: BF16Array  # (E, F)


LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}


def layer_tensor(layer: int, field: str) -> str:
    """The checkpoint's name for a field of LayerWeights."""
    return f"model.layers.{layer}.{LAYER_TENSORS[field]}.weight"


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, by name, with the shape the config implies."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    of_layer = {
        "attn_norm": (hidden,),
        "wq": (query, hidden),
        "wk": (key_value, hidden),
        "wv": (key_value, hidden),
        "wo": (hidden, query),
        "ffn_norm": (hidden,),
        "w_gate": (ffn, hidden),
        "w_up": (ffn, hidden),
        "w_down": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        shapes.update({layer_tensor(layer, field): shape for field, shape in of_layer.items()})
    return shapes


class Rows:
    """A table in a file, of which single rows are read: `rows[3]`, `rows[[3, 1, 3]]`.

    The file stays mapped, and of it only what is looked up takes memory.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._closing = ExitStack()
        self._table = _open(path, self._closing).get_slice(name)

    def __getitem__(self, ids: int | Sequence[int]) -> BF16Array:
        """One row, (width,), or as many as there are ids, (ids, width)."""
        if isinstance(ids, int | np.integer):
            row: BF16Array = self._table[ids : ids + 1][0].astype(bf16, copy=False)
            return row
        once = {token: self[token] for token in set(ids)}  # a prompt is mostly padding
        return np.stack([once[token] for token in ids])


class Weights:
    """A checkpoint's tensors, read when they are asked for."""

    def __init__(self, folder: Path, config: LlamaConfig) -> None:
        """Check all; WeightsError for a file or tensor that is missing, damaged or does not fit."""
        self._config = config
        with ExitStack() as opened:
            files = _open_files(folder, opened)
            for name, shape in expected_shapes(config).items():
                _check(files, name, shape)
            self._paths = {name: path for name, (path, _) in files.items()}

    def layer(self, layer: int) -> LayerWeights:
        """The weights of block `layer`, read now."""
        return LayerWeights(**{field: self._read(layer_tensor(layer, field)) for field in LAYER_TENSORS})

    @property
    def embed_table(self) -> Rows:
        """Token embeddings, (vocab_size, hidden_size)."""
        return Rows(self._paths[EMBED], EMBED)

    @property
    def final_norm(self) -> BF16Array:
        """The weight of the last RMSNorm, (hidden_size,)."""
        return self._read(FINAL_NORM)

    @property
    def lm_head(self) -> BF16Array:
        """Output projection, (vocab_size, hidden_size): the embeddings themselves where they are tied."""
        return self._read(EMBED if self._config.tie_word_embeddings else LM_HEAD)

    def _read(self, name: str) -> BF16Array:
        path = self._paths[name]
        with ExitStack() as opened:
            file = _open(path, opened)
            try:
                tensor: np.ndarray[Any, Any] = file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise WeightsError(
                    f"cannot read tensor {name} from {path}: {error}; fetch it again"
                ) from None
        return tensor.astype(bf16, copy=False)


def _check(files: Mapping[str, tuple[Path, Any]], name: str, expected: tuple[int, ...]) -> None:
    if name not in files:
        raise WeightsError(
            f"tensor {name} is missing from the checkpoint; config.json asks for it with shape "
            f"{_shape(expected)}: the files and the config do not belong together"
        )
    path, file = files[name]
    tensor = file.get_slice(name)
    shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
    if shape != expected:
        raise WeightsError(
            f"tensor {name} in {path} has shape {_shape(shape)}; config.json implies "
            f"{_shape(expected)}: the files and the config do not belong together"
        )
    if dtype not in ACCEPTED_DTYPES:
        raise WeightsError(
            f"tensor {name} of shape {_shape(shape)} in {path} has dtype {dtype}; only "
            f"{', '.join(ACCEPTED_DTYPES)} are read: convert the checkpoint to BF16"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _open_files(folder: Path, closing: ExitStack) -> dict[str, tuple[Path, Any]]:
    """Where each tensor is: name -> (path, open safetensors file)."""
    index = folder / INDEX_FILE
    if index.is_file():
        where = _read_index(index)
        opened = {name: _open(folder / name, closing) for name in sorted(set(where.values()))}
        held = {name: set(file.keys()) for name, file in opened.items()}
        return {
            tensor: (folder / name, opened[name]) for tensor, name in where.items() if tensor in held[name]
        }
    single = folder / SINGLE_FILE
    file = _open(single, closing)
    return dict.fromkeys(file.keys(), (single, file))


def _read_index(path: Path) -> Mapping[str, str]:
    try:
        where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in where.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is not a safetensors index ({error!r}); fetch it again") from None


def _open(path: Path, closing: ExitStack) -> Any:
    try:
        return closing.enter_context(safe_open(path, framework="np"))
    except FileNotFoundError:
        raise WeightsError(
            f"there is no {path}; a checkpoint needs {SINGLE_FILE}, or {INDEX_FILE} and every file it names"
        ) from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is truncated or damaged ({error}); fetch it again") from None
