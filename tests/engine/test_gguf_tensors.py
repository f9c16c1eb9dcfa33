"""Tensors of GGUF files, of every type: whole, by rows, by columns, with queries and keys in order."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from aerie.engine.errors import WeightsError
from aerie.engine.gguf import block_tensors, block_types
from aerie.engine.gguf.block_tensors import BlockTensor
from aerie.engine.numerics import bf16
from aerie.engine.tensors import Rounding, Rows
from tests.gguf_files import SCALES, permuted, random_blocks

SHAPE = (24, 512)
KINDS = [Type(number) for number in block_types.READ]
HEAD = 8


def stored(kind, values):
    """Bytes, (rows, bytes), of values; of random ones for a type that the package does not quantise to."""
    return random_blocks(kind, values.shape) if kind in SCALES else gguf.quants.quantize(values, kind)


@pytest.fixture
def make(tmp_path):
    """make(kind, permuted_head=0) -> a tensor in a file, not at its start, and the values it should have."""

    def make(kind, permuted_head=0, shape=SHAPE):
        values = np.random.default_rng(kind).normal(0, 1, shape).astype(np.float32)
        raw = stored(kind, values).view(np.uint8).reshape(shape[0], -1)
        path = tmp_path / f"{kind.name}.bin"
        expected = gguf.quants.dequantize(raw, kind).astype(bf16)
        if permuted_head:
            order = permuted(np.arange(shape[0]), shape[0] // permuted_head)
            raw = raw[order]
        path.write_bytes(bytes(96) + raw.tobytes())
        about = (path, "x", kind.name, shape, 96, shape[1])
        return BlockTensor(*about, block_type=block_types.READ[kind], permuted_head=permuted_head), expected

    return make


def same(ours, theirs):
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("permuted_head", [0, HEAD])
def test_all_of_it_and_parts_of_it(make, kind, permuted_head):
    tensor, expected = make(kind, permuted_head)
    same(tensor.read(), expected)
    same(tensor.part(5, 11).read(), expected[5:16])
    same(tensor.part(5, 11).part(2, 1).read(), expected[7:8])
    same(tensor.columns(40, 8).read(), expected[:, 40:48])
    same(tensor.columns(40, 80).part(3, 20).columns(10, 7).read(), expected[3:23, 50:57])
    out = np.empty((3, SHAPE[1]), bf16)
    tensor.part(4, 20).rows_into(out, 6)
    same(out, expected[10:13])
    rows = Rows(tensor)
    same(rows[17], expected[17])
    same(rows[[3, 1, 3]], expected[[3, 1, 3]])


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("permuted_head", [0, HEAD])
def test_pieces_of_any_size_make_the_same(make, kind, permuted_head, monkeypatch):
    tensor, expected = make(kind, permuted_head)
    for values, chunk in ((1, 1), (600, 300), (5000, 1 << 20)):
        monkeypatch.setattr(block_tensors, "CONVERTED", values)
        monkeypatch.setattr(block_tensors, "CHUNK_BYTES", chunk)
        same(tensor.read(), expected)
        same(tensor.part(5, 11).read(), expected[5:16])


KNOWN_TO_TRANSFORMERS = ("Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


@pytest.mark.parametrize("name", KNOWN_TO_TRANSFORMERS)
def test_values_are_those_of_transformers_too(make, name):
    """Whose code for blocks is another, in torch."""
    import torch
    from transformers.integrations.gguf.dequant import dequantize

    tensor, _ = make(Type[name])
    raw = torch.from_numpy(np.fromfile(tensor.path, np.uint8)[96:]).reshape(SHAPE[0], -1)
    theirs = dequantize(raw, Type[name].value, torch.float32).reshape(SHAPE).numpy()
    same(tensor.read(), theirs.astype(bf16))


def test_five_bits_and_mxfp4_by_hand(tmp_path):
    """Which transformers has no code for: nibbles in halves, the fifth bits in a word, a power of two."""
    nibbles = bytes(range(16, 32))  # low: 0 to 15, high: all 1
    high = (0xFFFF0001).to_bytes(4, "little")  # of value 0, and of 16 to 31
    half, one = np.float16(0.5).tobytes(), np.float16(1).tobytes()
    low = np.arange(16) + 16 * (np.arange(16) == 0)
    expected = {
        Type.Q5_0: (half + high + nibbles, 0.5 * (np.concatenate([low, np.full(16, 17)]) - 16)),
        Type.Q5_1: (half + one + high + nibbles, 0.5 * np.concatenate([low, np.full(16, 17)]) + 1),
        Type.MXFP4: (
            bytes([129]) + nibbles,
            2 * np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, *[1] * 16]),
        ),
    }
    for kind, (raw, values) in expected.items():
        path = tmp_path / kind.name
        path.write_bytes(raw)
        tensor = BlockTensor(path, "x", kind.name, (1, 32), 0, 32, block_type=block_types.READ[kind])
        np.testing.assert_array_equal(tensor.read().astype(np.float32), values[None].astype(np.float32))


def test_a_vector_in_pairs(tmp_path):
    """A bias of queries."""
    values = np.arange(32, dtype=np.float32)
    (tmp_path / "x").write_bytes(permuted(values, 4).tobytes())
    tensor = BlockTensor(
        tmp_path / "x", "x", "F32", (32,), 0, 1, block_type=block_types.READ[0], permuted_head=HEAD
    )
    same(tensor.read(), values.astype(bf16))
    same(tensor.part(8, 8).read(), values[8:16].astype(bf16))


def test_what_is_lost_is_counted(make):
    tensor, expected = make(Type.Q4_1)
    rounding = Rounding()
    tensor = BlockTensor(**{**vars(tensor), "rounding": rounding})
    tensor.read()
    assert rounding.values == expected.size
    assert rounding.types == {"Q4_1"}
    assert 0 < rounding.largest < 2**-8


def test_a_file_that_ends_early(make):
    tensor, _ = make(Type.Q4_0)
    whole = tensor.path.read_bytes()
    tensor.path.write_bytes(whole[:-1])
    with pytest.raises(WeightsError, match=r"cannot read tensor x from .*Q4_0\.bin: it ends at byte"):
        tensor.read()


def test_a_scale_that_bf16_has_not(tmp_path):
    """MXFP4's largest exponent: 12 * 2 ** 127 is more than any float32."""
    (tmp_path / "x").write_bytes(bytes([255]) + bytes([0x77] * 16))
    tensor = BlockTensor(tmp_path / "x", "x", "MXFP4", (1, 32), 0, 32, block_type=block_types.READ[39])
    assert not np.isfinite(tensor.read().astype(np.float32)).any()
