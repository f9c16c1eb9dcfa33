"""Quantised matrices as tools store them in safetensors, packed word by word, by the tools' sources.

Each writer draws codes, scales and zeros, and gives the tensors of a file and the weights they stand for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


class Stored(NamedTuple):
    """tensors: of the file, by their names after the module's. values: float64 (out, in)."""

    tensors: dict[str, np.ndarray]
    values: np.ndarray


class Drawn(NamedTuple):
    """codes: (out, in). scales, zeros: (out, groups)."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    group: int

    @property
    def values(self) -> np.ndarray:
        """scale * (code - zero), one by one."""
        rows, columns = self.codes.shape
        found = np.empty((rows, columns))
        for row in range(rows):
            for column in range(columns):
                group = column // self.group
                code = int(self.codes[row, column]) - int(self.zeros[row, group])
                found[row, column] = float(self.scales[row, group]) * code
        return found


def drawn(shape: tuple[int, int], group: int, bits: int, *, seed: int = 0, symmetric: bool = False) -> Drawn:
    draw, (rows, columns), group = np.random.default_rng([seed, bits, group]), shape, min(group, shape[1])
    groups, top = -(-columns // group), 1 << bits
    zeros = np.full((rows, groups), top // 2)
    if not symmetric:
        zeros = draw.integers(top // 2 - 5, top // 2 + 5, (rows, groups))
    scales = (draw.normal(0, 1, (rows, groups)) * 0.02).astype(np.float16)
    return Drawn(draw.integers(0, top, shape), scales, zeros, group)


def words(fields: list[list[int]], bits: int) -> np.ndarray:
    """int32 of lists of fields, the first in the lowest bits; the last word of a list is filled with 0."""
    found = []
    for row in fields:
        line = []
        for first in range(0, len(row), 32 // bits):
            word = 0
            for place, value in enumerate(row[first : first + 32 // bits]):
                word |= int(value) << (bits * place)
            line.append(word)
        found.append(line)
    return np.array(found, np.uint32).view(np.int32)


def awq(shape: tuple[int, int] = (40, 192), group: int = 64, seed: int = 0) -> Stored:
    given = drawn(shape, group, 4, seed=seed)

    def interleaved(table: np.ndarray) -> np.ndarray:
        rows = []
        for values in table.T:  # (in, out): words lie along the outputs
            row: list[int] = []
            for first in range(0, len(values), 8):
                row += [values[first + place] for place in AWQ_ORDER]
            rows.append(row)
        return words(rows, 4)

    tensors = {
        "qweight": interleaved(given.codes),
        "qzeros": interleaved(given.zeros),
        "scales": np.ascontiguousarray(given.scales.T),
    }
    return Stored(tensors, given.values)


def gptq(
    shape: tuple[int, int] = (40, 192),
    group: int = 64,
    bits: int = 4,
    *,
    v1: bool = True,
    symmetric: bool = False,
    seed: int = 0,
) -> Stored:
    given = drawn(shape, group, bits, seed=seed, symmetric=symmetric)
    stored_zeros = (given.zeros - v1) % (1 << bits)
    tensors = {
        "qweight": np.ascontiguousarray(words(given.codes.tolist(), bits).T),
        "qzeros": words(stored_zeros.T.tolist(), bits),
        "scales": np.ascontiguousarray(given.scales.T),
        "g_idx": np.array([column // given.group for column in range(shape[1])], np.int32),
    }
    return Stored(tensors, given.values)


def compressed_tensors(
    shape: tuple[int, int] = (40, 192),
    group: int = 64,
    bits: int = 4,
    *,
    symmetric: bool = True,
    seed: int = 0,
) -> Stored:
    given = drawn(shape, group, bits, seed=seed, symmetric=symmetric)
    tensors = {
        "weight_packed": words(given.codes.tolist(), bits),
        "weight_scale": given.scales,
        "weight_shape": np.array(shape, np.int64),
    }
    if not symmetric:
        packed = words(given.zeros.T.tolist(), bits)
        tensors["weight_zero_point"] = np.ascontiguousarray(packed.T)
    return Stored(tensors, given.values)


def mlx(shape: tuple[int, int] = (40, 192), group: int = 64, bits: int = 4, seed: int = 0) -> Stored:
    given = drawn(shape, group, bits, seed=seed)
    biases = (np.random.default_rng([seed, 1]).normal(0, 1, given.scales.shape) * 0.1).astype(np.float16)
    tensors = {
        "weight": words(given.codes.tolist(), bits).view(np.uint32),
        "scales": given.scales,
        "biases": biases,
    }
    values = np.empty(shape)
    for row in range(shape[0]):
        for column in range(shape[1]):
            scale, bias = (float(each[row, column // given.group]) for each in (given.scales, biases))
            values[row, column] = scale * int(given.codes[row, column]) + bias
    return Stored(tensors, values)


def nf4(shape: tuple[int, int] = (40, 192), *, nested: bool = True, seed: int = 0) -> Stored:
    draw, count = np.random.default_rng([seed, nested]), shape[0] * shape[1]
    codes, blocks = draw.integers(0, 16, count), -(-count // 64)
    octets = [int(codes[at]) << 4 | int(codes[at + 1]) for at in range(0, count, 2)]
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
    tensors = {
        "weight": np.array(octets, np.uint8)[:, None],
        "weight.quant_map": np.array(NF4, np.float32),
    }
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.043}
        small = draw.integers(0, 256, blocks).astype(np.uint8)
        table = np.sort(draw.uniform(-1, 1, 256)).astype(np.float32)
        outer = draw.uniform(0.01, 0.02, -(-blocks // 256)).astype(np.float32)
        tensors |= {
            "weight.absmax": small,
            "weight.nested_quant_map": table,
            "weight.nested_absmax": outer,
        }
        absmax = [float(table[code]) * float(outer[at // 256]) + 0.043 for at, code in enumerate(small)]
    else:
        tensors["weight.absmax"] = draw.uniform(0.01, 0.1, blocks).astype(np.float32)
        absmax = tensors["weight.absmax"].tolist()
    tensors["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(
        json.dumps(state).encode(), np.uint8
    ).copy()
    values = [tensors["weight.quant_map"][codes[at]].item() * absmax[at // 64] for at in range(count)]
    return Stored(tensors, np.array(values).reshape(shape))


def int8(shape: tuple[int, int] = (40, 192), seed: int = 0) -> Stored:
    draw = np.random.default_rng(seed)
    codes = draw.integers(-127, 128, shape).astype(np.int8)
    largest = draw.uniform(0.1, 1, shape[0]).astype(np.float32)
    values = codes.astype(float) * largest[:, None].astype(float) / 127
    return Stored({"weight": codes, "SCB": largest, "weight_format": np.array(0, np.uint8)}, values)


CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "weights": {"num_bits": 4, "group_size": 64, "strategy": "group", "type": "int"},
            }
        },
    },
    "mlx": {"group_size": 64, "bits": 4},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
"""The entry quantization_config of each tool."""


def write(folder: Path, tensors: dict[str, np.ndarray], entry: dict[str, Any] | None = None) -> Path:
    """Write tensors as model.safetensors; entry: becomes quantization_config."""
    folder.mkdir(exist_ok=True)
    save_file({name: _as_torch(array) for name, array in tensors.items()}, folder / "model.safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, "quantization_config": entry}))
    return folder


def _as_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
