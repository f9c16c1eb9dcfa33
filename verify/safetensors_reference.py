"""The weights of safetensors for the reference, where transformers cannot read them or they are quantised.

Read by the safetensors package and unpacked in numpy, from what the tools' own sources say of their files:
AutoAWQ (awq/utils/packing_utils.py), GPTQModel (utils/model.py), compressed-tensors
(compressors/pack_quantized), MLX (backend/cpu/quantized.cpp), bitsandbytes (functional.py). Nothing of our
reading of these files is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.numerics import F32Array
from aerie.verify.blocks_reference import GROUP, DeviceKind, in_eight_bits, rounded
from aerie.verify.gguf_reference import write_files

Array = npt.NDArray[Any]

ENTRIES = ("quantization_config", "quantization", "compression_config")
AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that each nibble of a word holds, from the lowest on."""


@dataclass(frozen=True)
class Affine:
    """A matrix of scale * (code - zero), or scale * code + bias. codes: (rows, columns). scales, zeros,
    biases: (rows, groups). groups: of each column."""

    codes: F32Array
    scales: F32Array
    groups: Array
    bits: int
    zeros: F32Array | None = None
    biases: F32Array | None = None

    @property
    def exact(self) -> F32Array:
        if self.biases is not None:
            return self.scales[:, self.groups] * self.codes + self.biases[:, self.groups]
        return self.scales[:, self.groups] * self._differences

    @property
    def _differences(self) -> F32Array:
        assert self.zeros is not None
        return self.codes - self.zeros[:, self.groups]

    @property
    def in_blocks(self) -> F32Array:
        """The weights that blocks of 32 columns stand for; bf16 where such a group has several scales."""
        if any(
            len(set(self.groups[first : first + GROUP])) > 1 for first in range(0, len(self.groups), GROUP)
        ):
            return rounded(self.exact)
        return self._in_four_bits if self.bits == 4 else self._in_eight_bits

    @property
    def _in_four_bits(self) -> F32Array:
        scales = rounded(self.scales)
        minima = self.biases
        if minima is None:
            assert self.zeros is not None
            minima = (-self.zeros * scales).astype(np.float32)
        minima = rounded(minima)
        return rounded(scales[:, self.groups] * self.codes + minima[:, self.groups])

    @property
    def _in_eight_bits(self) -> F32Array:
        again = in_eight_bits(self.exact)
        if self.biases is not None:
            return again
        codes = self._differences
        fits = ((codes >= -128) & (codes <= 127)).all(axis=1, keepdims=True)
        return np.where(fits, rounded(rounded(self.scales)[:, self.groups] * codes), again)


class SafetensorsFiles:
    """The tensors of a folder's files, by transformers' names. entries: of its config.json."""

    def __init__(self, paths: Iterable[Path], entries: Mapping[str, Any], kind: DeviceKind) -> None:
        from safetensors import safe_open

        self._paths, self._kind = {}, kind
        for path in paths:
            with safe_open(path, "pt") as file:
                self._paths.update(dict.fromkeys(file.keys(), path))
        self._entry: Mapping[str, Any] = next((entries[name] for name in ENTRIES if entries.get(name)), {})
        self._matrices = dict(self._found())

    def write(self, folder: Path) -> dict[str, str]:
        """Write all tensors in float32. Returns the file of each."""
        used = {name for _, members in self._matrices.values() for name in members}
        names = [name for name in self._paths if name not in used] + list(self._matrices)
        self._head = _head(names)
        return write_files(names, self._tensor, folder)

    def _tensor(self, name: str) -> F32Array:
        if name not in self._matrices:
            values = self._read(name).astype(np.float32)
            return np.ascontiguousarray(self._kind.of_plain(values, name == self._head))
        make, _ = self._matrices[name]
        return np.ascontiguousarray(make(name.removesuffix(".weight")))

    def _found(self) -> Iterator[tuple[str, tuple[Callable[[str], F32Array], list[str]]]]:
        """The quantised matrices: by name how each is made, and the tensors that it is made of."""
        method = str(self._entry.get("quant_method", ""))
        packed = self._awq if method == "awq" else self._gptq
        ways = {
            ".qweight": (packed, (".qweight", ".qzeros", ".scales", ".g_idx")),
            ".weight_packed": (
                self._compressed,
                (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point"),
            ),
            ".biases": (self._mlx, (".weight", ".scales", ".biases")),
            ".weight.absmax": (self._table, None),
            ".SCB": (self._rows, (".weight", ".SCB", ".weight_format")),
        }
        for stored in self._paths:
            suffix = next((suffix for suffix in ways if stored.endswith(suffix)), None)
            if suffix is None:
                continue
            module, (make, parts) = stored.removesuffix(suffix), ways[suffix]
            begin = f"{module}.weight"
            members = (
                [name for name in self._paths if name == begin or name.startswith(f"{begin}.")]
                if parts is None
                else [module + part for part in parts]
            )
            yield begin, (make, members)

    def _read(self, name: str) -> Array:
        import torch
        from safetensors import safe_open

        with ExitStack() as stack:
            tensor = stack.enter_context(safe_open(self._paths[name], "pt")).get_tensor(name)
            values: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
            return values

    def _wide(self, name: str) -> F32Array:
        return self._read(name).astype(np.float32)

    def _setting(self, name: str, default: Any = None) -> Any:
        return self._entry.get(name, default)

    def _groups(self, columns: int, size: Any) -> Array:
        return np.arange(columns) // (columns if size in (None, -1, 0) else size)

    def _affine(self, matrix: Affine) -> F32Array:
        return matrix.in_blocks if self._kind.keeps_blocks else matrix.exact

    # ---- the tools ----

    def _awq(self, module: str) -> F32Array:
        codes, zeros = (_awq_fields(self._read(f"{module}.{part}")).T for part in ("qweight", "qzeros"))
        scales = self._wide(f"{module}.scales").T
        size = self._setting("group_size", self._setting("q_group_size", 128))
        return self._affine(Affine(codes, scales, self._groups(codes.shape[1], size), 4, zeros))

    def _gptq(self, module: str) -> F32Array:
        bits = self._setting("bits")
        codes = _fields(self._read(f"{module}.qweight").T, bits)
        zeros = _fields(self._read(f"{module}.qzeros"), bits)[:, : len(codes)].T
        if self._setting("checkpoint_format", "gptq") == "gptq":
            zeros = (zeros + 1) % 2**bits
        order = f"{module}.g_idx"
        by_size = self._groups(codes.shape[1], self._setting("group_size", 128))
        groups = self._read(order) if order in self._paths else by_size
        return self._affine(Affine(codes, self._wide(f"{module}.scales").T, groups, bits, zeros))

    def _compressed(self, module: str) -> F32Array:
        (group,) = self._setting("config_groups").values()
        bits, size = group["weights"]["num_bits"], group["weights"].get("group_size")
        rows, columns = (int(each) for each in self._read(f"{module}.weight_shape"))
        codes = _fields(self._read(f"{module}.weight_packed"), bits)[:, :columns]
        scales, stored = self._wide(f"{module}.weight_scale"), f"{module}.weight_zero_point"
        zeros = np.full(scales.shape, 2 ** (bits - 1), np.float32)
        if stored in self._paths:
            zeros = _fields(self._read(stored).T, bits)[:, :rows].T
        return self._affine(Affine(codes, scales, self._groups(columns, size), bits, zeros))

    def _mlx(self, module: str) -> F32Array:
        own = self._setting(module) or {}
        bits, size = (own.get(name, self._setting(name, default)) for name, default in MLX_DEFAULTS)
        codes = _fields(self._read(f"{module}.weight"), bits)
        scales, biases = (self._wide(f"{module}.{part}") for part in ("scales", "biases"))
        return self._affine(Affine(codes, scales, self._groups(codes.shape[1], size), bits, biases=biases))

    def _table(self, module: str) -> F32Array:
        name = f"{module}.weight"
        (state_name,) = (each for each in self._paths if each.startswith(f"{name}.quant_state."))
        state = json.loads(bytes(self._read(state_name).astype(np.uint8)))
        scales = self._read(f"{name}.absmax")
        if f"{name}.nested_absmax" in self._paths:
            outer = np.repeat(self._wide(f"{name}.nested_absmax"), state["nested_blocksize"])[: len(scales)]
            scales = self._wide(f"{name}.nested_quant_map")[scales] * outer
            scales = scales + np.float32(state["nested_offset"])
        octets = self._read(name).reshape(-1)
        codes = np.array([octets // 16, octets % 16]).T.reshape(-1)
        count = int(np.prod(state["shape"]))
        spread = np.repeat(scales.astype(np.float32), state["blocksize"])[:count]
        values = (self._wide(f"{name}.quant_map")[codes[:count]] * spread).reshape(state["shape"])
        return rounded(values) if self._kind.keeps_blocks else values

    def _rows(self, module: str) -> F32Array:
        codes, scales = self._wide(f"{module}.weight"), self._wide(f"{module}.SCB")[:, None] / np.float32(127)
        return rounded(rounded(scales) * codes) if self._kind.keeps_blocks else scales * codes


MLX_DEFAULTS = (("bits", 4), ("group_size", 64))


def _head(names: Iterable[str]) -> str:
    """The LM head, which is the embeddings where the files have no other."""
    for suffix in ("lm_head.weight", "embed_tokens.weight"):
        found = next((name for name in names if name.endswith(suffix)), None)
        if found is not None:
            return found
    return ""


def _fields(words: Array, bits: int) -> F32Array:
    """The fields of words of 32 bits, the low ones first: (..., n) to (..., n * 32 / bits)."""
    wide = words.astype(np.int64) % 2**32
    parts = np.array([wide // 2**shift % 2**bits for shift in range(0, 32, bits)])
    found: F32Array = np.moveaxis(parts, 0, -1).reshape(*words.shape[:-1], -1).astype(np.float32)
    return found


def _awq_fields(words: Array) -> F32Array:
    """(rows, n) to (rows, 8 n), in the order of the outputs."""
    stored = _fields(words, 4).reshape(*words.shape, 8)
    ordered = np.empty_like(stored)
    for nibble, output in enumerate(AWQ_OUTPUTS):
        ordered[..., output] = stored[..., nibble]
    return ordered.reshape(len(words), -1)
