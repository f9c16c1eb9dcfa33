"""The gate of a model in blocks, against transformers on the weights that the blocks stand for.

The weights of the reference are read out of the blocks here, number by number, and not by our code. A fault
in how the cores read a block is put in as the block that a healthy core would read the same way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.quantised import QuantisedTensor
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts, full_prompt
from aerie.verify.layer_check import try_layers
from aerie.verify.reference import Reference
from tests.verify.faults import Healthy, preloaded

pytestmark = pytest.mark.slow

BF16 = ml_dtypes.bfloat16
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


# ---- what blocks stand for ----


def block_weights(block: Bytes) -> np.ndarray:
    """The 32 x 256 weights of a block of 4 bits (5120 bytes) or 8 (8704)."""
    is_q4 = len(block) == 5120
    scales = block[:512].view(BF16).reshape(8, 32).astype(np.float32)
    minima = block[512:1024].view(BF16).reshape(8, 32).astype(np.float32) if is_q4 else np.zeros((8, 32))
    codes = block[1024:] if is_q4 else block[512:].view(np.int8)
    weights = np.zeros((32, 256), np.float32)
    for row in range(32):
        plane, within = divmod(row, 16)
        for column in range(256):
            at = (plane * 256 + column) * (8 if is_q4 else 16)
            code = int(codes[at + within // 2]) >> 4 * (within % 2) & 15 if is_q4 else int(codes[at + within])
            group = column // 32
            weights[row, column] = np.float32(scales[group, row]) * code + np.float32(minima[group, row])
    return weights.astype(BF16)


def dequantised(tensor: QuantisedTensor) -> np.ndarray:
    packed = tensor.packed()
    whole = np.block([[block_weights(block) for block in row] for row in packed])
    return np.ascontiguousarray(whole[: tensor.shape[0], : tensor.shape[1]])


@pytest.fixture(scope="module")
def quantised():
    """The demo in blocks of 4 bits, with an LM head of 8."""
    return open_checkpoint(DEMO_FOLDER, "q4")


@pytest.fixture(scope="module")
def reference(quantised, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dequantised") / "demo"
    shutil.copytree(DEMO_FOLDER, folder)
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for name, tensor in quantised.weights._tensors.items():
        if isinstance(tensor, QuantisedTensor):
            tensors[name] = dequantised(tensor)
    save_file(tensors, path, {"format": "pt"})
    return Reference.open(folder)


@pytest.fixture(scope="module")
def session(quantised, open_session):
    return open_session(quantised, variants="32x512")


@pytest.fixture(scope="module")
def prompts(session):
    return choose_prompts(session, full=False)


def failures(session, reference, prompts) -> list[str]:
    """Of the gate, and where answers show nothing, of the layers."""
    found = verify(session, reference, prompts).failures
    if not found:
        found = try_layers("the model", session, reference, full_prompt(session)).failures
    return [*map(str, found)]


def test_a_healthy_model_in_blocks_passes(session, reference, prompts):
    assert set(session.model.config.weight_kinds.layers[0]) >= {("wq", "q4"), ("w_down", "q4")}
    assert session.model.config.weight_kinds.head == "q8"
    assert failures(session, reference, prompts) == []


def test_the_weights_that_were_quantised_are_others(session, demo_reference, prompts):
    """Against the weights before they were quantised the same gate fails, so it does see them."""
    assert failures(session, demo_reference, prompts)


# ---- faults ----


def halves(blocks: Bytes) -> tuple[Bytes, Bytes]:
    return blocks[..., :1024], blocks[..., 1024:]


def groups(blocks: Bytes, first: int) -> Bytes:
    """Scales (first = 0) or minima (512), as (..., 8 groups, 64 bytes)."""
    part = blocks[..., first : first + 512]
    return part.reshape(*part.shape[:-1], 8, 64)


def nibbles_swapped(blocks: Bytes) -> None:
    codes = blocks[..., 1024:]
    codes[...] = codes << 4 | codes >> 4


def planes_swapped(blocks: Bytes) -> None:
    codes = blocks[..., 1024:]
    codes[...] = np.roll(codes, 2048, axis=-1)


def scale_of_the_next_group(blocks: Bytes) -> None:
    blocks[..., :512] = np.roll(blocks[..., :512], -64, axis=-1)


def minimum_with_another_sign(blocks: Bytes) -> None:
    blocks[..., 513:1024:2] ^= 0x80


def groups_of_64_read_as_32(blocks: Bytes) -> None:
    for first in (0, 512):
        of = groups(blocks, first).copy()
        blocks[..., first : first + 512] = of[..., [0, 0, 1, 1, 2, 2, 3, 3], :].reshape(
            *blocks.shape[:-1], 512
        )


def scales_rounded_down(blocks: Bytes) -> None:
    """Half of them were rounded up: those are a step smaller."""
    scales = np.ascontiguousarray(blocks[..., :512]).view(np.uint16)
    scales[..., ::2] -= 1
    blocks[..., :512] = scales.view(np.uint8)


def column_order_reversed_in_eights(blocks: Bytes) -> None:
    """AWQ's order of columns left as it is."""
    codes = blocks[..., 1024:]
    eights = codes.reshape(*codes.shape[:-1], 2, 32, 8, 8)
    codes[...] = eights[..., [0, 4, 1, 5, 2, 6, 3, 7], :].reshape(codes.shape)


def zero_off_by_one(blocks: Bytes) -> None:
    """GPTQ's zero: every weight is a scale too large."""
    scales = np.ascontiguousarray(blocks[..., :512]).view(BF16).astype(np.float32)
    minima = np.ascontiguousarray(blocks[..., 512:1024]).view(BF16).astype(np.float32)
    blocks[..., 512:1024] = (minima + scales).astype(BF16).view(np.uint8)


FAULTS: Mapping[str, tuple[Callable[[Bytes], None], tuple[int, ...]]] = {
    "nibbles swapped": (nibbles_swapped, (2,)),
    "planes swapped": (planes_swapped, (2,)),
    "the scale of the next group": (scale_of_the_next_group, (2,)),
    "the minimum's sign": (minimum_with_another_sign, (2,)),
    "a group of 64 read as 32": (groups_of_64_read_as_32, (2,)),
    "scales rounded down": (scales_rounded_down, tuple(range(64))),
    "AWQ's order of columns": (column_order_reversed_in_eights, (2,)),
    "GPTQ's zero off by one": (zero_off_by_one, (2,)),
}


@dataclass(frozen=True)
class Faulty:
    """The weights of a model, of which some layers' blocks are changed."""

    weights: Any
    change: Callable[[Bytes], None]
    layers: tuple[int, ...]

    @property
    def lm_head(self):
        return self.weights.lm_head

    def layer(self, index):
        tensors = self.weights.layer(index)
        if index not in self.layers:
            return tensors
        blocks = {name: tensor for name, tensor in tensors.items() if tensor.kind == "q4"}
        return {**tensors, **{name: self.changed(tensor) for name, tensor in blocks.items()}}

    def changed(self, tensor):
        def fill(out):
            tensor.pack_into(out)
            self.change(out)

        return fill


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_reading_blocks_is_found(fault, session, quantised, reference, prompts):
    change, layers = FAULTS[fault]
    faulty = preloaded(session.model, Healthy(session, quantised), Faulty(quantised.weights, change, layers))
    assert failures(faulty, reference, prompts)


@dataclass(frozen=True)
class Padded:
    """An LM head whose first rows of blocks are read one too late: padding counts as weights."""

    head: Any
    is_part: bool = False

    @property
    def shape(self):
        return self.head.shape

    def part(self, first, rows):
        return Padded(self.head.part(first, rows), is_part=True)

    def pack_into(self, out):
        blocks = np.zeros_like(out)
        self.head.pack_into(blocks)
        out[1:], out[0] = blocks[:-1], 0


def test_padding_read_as_weights_is_found(session, quantised, reference, prompts):
    class Weights:
        layer = staticmethod(quantised.weights.layer)
        lm_head = Padded(quantised.weights.lm_head)

    from aerie.engine import model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "QuantisedTensor", QuantisedTensor | Padded)
        faulty = preloaded(session.model, Healthy(session, quantised), Weights())
    assert failures(faulty, reference, prompts)
