"""Quantised tensors: of GGUF files and quantised on reading, against the gguf package and loops."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from aerie.engine import quantised
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError, WeightsError
from aerie.engine.gguf import block_types
from aerie.engine.gguf.block_groups import quantised_block_tensor
from aerie.engine.gguf.block_tensors import BlockTensor
from aerie.engine.quantised import QuantisedTensor, as_kind
from aerie.engine.tensors import Rows, Tensor
from aerie.engine.weights import Weights
from aerie.kernel_builder.weight_blocks import WEIGHT_BLOCKS, unpack
from tests import gguf_files
from tests.engine.checkpoints import write_checkpoint
from tests.gguf_files import SCALES, Source, matrices_in, permuted, random_blocks

bf16 = ml_dtypes.bfloat16
SHAPE, HEAD = (96, 512), 16
LOSSES = {
    Type.Q4_0: ("q4", 3e-3),
    Type.Q4_1: ("q4", 6e-3),
    Type.Q4_K: ("q4", 5e-3),
    Type.Q5_0: ("q8", 3e-3),
    Type.Q5_1: ("q8", 7e-3),
    Type.Q5_K: ("q8", 7e-3),
    Type.Q6_K: ("q8", 7e-3),
    Type.Q8_0: ("q8", 3e-3),
}
"""The block of each type, and the relative RMS that it may lose."""


def same(ours, theirs):
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.fixture
def stored(tmp_path):
    """stored(kind, permuted_head=0) -> a quantised tensor in a file, and its blocks in the model's order."""

    def stored(kind, permuted_head=0):
        values = np.random.default_rng(kind).normal(0, 0.02, SHAPE).astype(np.float32)
        raw = random_blocks(kind, SHAPE) if kind in SCALES else gguf.quants.quantize(values, kind)
        raw = raw.view(np.uint8).reshape(SHAPE[0], -1)
        order = permuted(np.arange(SHAPE[0]), SHAPE[0] // permuted_head) if permuted_head else slice(None)
        path = tmp_path / f"{kind.name}.bin"
        path.write_bytes(bytes(64) + raw[order].tobytes())
        about = (path, "x", kind.name, SHAPE, 64, SHAPE[1])
        tensor = BlockTensor(*about, block_type=block_types.READ[kind], permuted_head=permuted_head)
        return quantised_block_tensor(tensor), raw

    return stored


def half(block, at):
    return float(block[at : at + 2].view(np.float16)[0])


def line_of(kind, block, at):
    """Scale, code and minimum of value `at` of a block, as ggml-quants.c has them."""
    low_high = lambda first: int(block[first + at % 16]) >> (4 * (at >= 16)) & 15  # noqa: E731
    if kind == Type.Q4_0:
        return half(block, 0), low_high(2), -8 * float(bf16(half(block, 0)))
    if kind == Type.Q4_1:
        return half(block, 0), low_high(4), half(block, 2)
    if kind == Type.Q5_0:
        bit = int(block[2:6].view(np.uint32)[0]) >> at & 1
        return half(block, 0), low_high(6) + 16 * bit - 16, None
    if kind == Type.Q8_0:
        return half(block, 0), int(block[2 + at].view(np.int8)), None
    part, scales = at // 32, block[4:16]
    if part < 4:
        scale, minimum = int(scales[part]) & 63, int(scales[part + 4]) & 63
    else:
        scale = (int(scales[part + 4]) & 15) + 16 * (int(scales[part - 4]) >> 6)
        minimum = (int(scales[part + 4]) >> 4) + 16 * (int(scales[part]) >> 6)
    code = int(block[16 + 32 * (at // 64) + at % 32]) >> (4 * (part % 2)) & 15
    return half(block, 0) * scale, code, -half(block, 2) * minimum


@pytest.mark.parametrize(
    "kind", [Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.Q5_0, Type.Q8_0], ids=lambda k: k.name
)
def test_codes_stay_and_scales_are_rounded(kind, stored):
    tensor, raw = stored(kind)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    ours, blocks = tensor.grouped(), raw.reshape(SHAPE[0], -1, size)
    for row in (0, 1, 50, 95):
        for column in range(SHAPE[1]):
            scale, code, minimum = line_of(kind, blocks[row, column // values], column % values)
            assert ours.codes[row, column] == code
            assert ours.scales[row, column // 32] == bf16(np.float32(scale))
            if minimum is not None:
                assert ours.minima[row, column // 32] == bf16(np.float32(minimum))


@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("head", [0, HEAD])
def test_every_way_to_read_it(kind, head, stored):
    tensor, raw = stored(kind, head)
    exact, (name, loss) = gguf.quants.dequantize(raw, kind), LOSSES[kind]
    whole, wide = tensor.to_bf16(), tensor.to_bf16().astype(np.float32)
    assert tensor.kind == name
    np.testing.assert_array_equal(tensor.exact(0, len(exact)), exact)
    assert 1e-4 < np.sqrt(((wide - exact) ** 2).mean() / (exact**2).mean()) < loss
    same(tensor.dequantised().read(), exact.astype(bf16))
    same(tensor.part(5, 40).part(3, 20).read(), whole[8:28])
    same(tensor.columns(64, 100).part(7, 2).read(), whole[7:9, 64:164])
    same(tensor.columns(40, 100).read(), whole[:, 40:140])
    assert tensor.columns(64, 100).kind == name
    assert tensor.columns(40, 100).kind == "bf16"
    same(Rows(tensor)[[3, 95, 3]], whole[[3, 95, 3]])
    for part, expected in ((tensor, whole), (tensor.part(7, 50).columns(32, 300), whole[7:57, 32:332])):
        block = WEIGHT_BLOCKS[name]
        same(unpack(block, part.packed(), *expected.shape).to_bf16(), expected)
        assert part.packed().shape == block.shape(*expected.shape)


@pytest.mark.parametrize(("kind", "at"), [(Type.Q4_0, 0), (Type.Q4_1, 2), (Type.Q6_K, 208), (Type.Q2_K, 82)])
def test_scales_that_are_no_numbers(kind, at, tmp_path):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    raw = random_blocks(kind, (6, 512)) if kind in SCALES else np.zeros((6, 512 // values * size), np.uint8)
    raw.reshape(-1, size)[2 * 512 // values + 1, at : at + 2] = (0, 0x7C)  # infinity
    (tmp_path / "x").write_bytes(raw.tobytes())
    tensor = BlockTensor(tmp_path / "x", "x", kind.name, (6, 512), 0, 512, block_type=block_types.READ[kind])
    found = rf"tensor x in .* has a scale of inf \({kind.name}, row 2 of the file, columns from {values} on\)"
    with pytest.raises(WeightsError, match=found):
        tensor.check_scales()
    if quantised := quantised_block_tensor(tensor):
        with pytest.raises(WeightsError, match=r"has the (scale|minimum) (-?inf|nan) in row 2, columns from"):
            quantised.packed()


def test_what_is_quantised_without_a_block_is_not_quantised_again(tmp_path):
    """Nor a vector; but a plain matrix whose rows are permuted in the file."""
    (tmp_path / "x").write_bytes(bytes(1 << 16))
    about = (tmp_path / "x", "x")
    for number, shape, kind in ((10, (16, 512), "bf16"), (30, (512,), "bf16"), (30, (16, 512), "q4")):
        of, permuted = block_types.READ[number], 4 if len(shape) == 2 else 0
        tensor = BlockTensor(*about, of.name, shape, 0, 512, block_type=of, permuted_head=permuted)
        assert as_kind(tensor, "q4").kind == kind


def test_what_has_no_block_there(tmp_path):
    for number, shape in ((10, (4, 512)), (2, (512,))):
        tensor = BlockTensor(tmp_path, "x", "x", shape, 0, 512, block_type=block_types.READ[number])
        assert quantised_block_tensor(tensor) is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint whose head is not tied, in a width that is no multiple of 256."""
    return write_checkpoint(
        tmp_path_factory.mktemp("plain") / "x", hidden_size=288, tie_word_embeddings=False
    )


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_quantised_on_reading_as_the_package_does(kind, checkpoint):
    config = load_config(checkpoint)
    plain, ours = Weights(checkpoint, config, "bf16"), Weights(checkpoint, config, kind)
    pairs = [
        *zip(plain.layer(1).values(), ours.layer(1).values(), strict=True),
        (plain.lm_head, ours.lm_head),
    ]
    for given, tensor in pairs:
        if len(given.shape) == 1:
            assert tensor.kind == "bf16"
            continue
        assert tensor.kind == ("q8" if given is plain.lm_head else kind)
        theirs = {"q8": Type.Q8_0, "q4": Type.Q4_1}[tensor.kind]
        raw = gguf.quants.quantize(given.read().astype(np.float32), theirs)
        (path := checkpoint.parent / "theirs").write_bytes(raw.tobytes())
        about = (path, "x", theirs.name, given.shape, 0, given.shape[1])
        wanted = quantised_block_tensor(BlockTensor(*about, block_type=block_types.READ[theirs]))
        assert isinstance(tensor, QuantisedTensor)
        assert wanted
        same(tensor.to_bf16(), wanted.read())


def test_widths_that_no_group_divides():
    values = np.random.default_rng(0).normal(0, 1, (3, 45)).astype(np.float32)
    for _, quantise in quantised.QUANTISERS.values():
        grouped = quantise(values)
        assert grouped.codes.shape == (3, 45)
        assert grouped.scales.shape == (3, 2)
        error = np.abs(grouped.to_bf16().astype(np.float32) - values).max()
        assert error < 0.2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_cannot_be_quantised(value, tmp_path):
    values = np.ones((40, 64), bf16)
    values[35, 33] = value
    (tmp_path / "x").write_bytes(values.tobytes())
    tensor = as_kind(Tensor(tmp_path / "x", "x", "BF16", (40, 64), 0, 64), "q8")
    assert isinstance(tensor, QuantisedTensor)
    with pytest.raises(
        WeightsError, match=r"tensor x .* has the scale (nan|inf) in row 35, columns from 32 on"
    ):
        tensor.packed()


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_asked_for(keeps, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(quantised, "AUTO_KEEPS_QUANTISED", keeps)
    path = gguf_files.write(tmp_path / "x.gguf", Source(checkpoint), matrices_in(Type.Q4_1))
    config = load_config(path)
    kinds = {kind: Weights(path, config, kind).layer(0)["wq"].kind for kind in quantised.KINDS}
    assert kinds == {"auto": "q4" if keeps else "bf16", "bf16": "bf16", "q8": "q4", "q4": "q4"}
    if not keeps:
        same(*(Weights(path, config, kind).layer(0)["wk"].read() for kind in ("bf16", "auto")))


def test_fused_and_permuted_tensors_of_a_file(checkpoint, tmp_path):
    """Parts of attn_qkv and of gate and up are those that lie alone."""
    source = Source(checkpoint)
    alone = gguf_files.write(tmp_path / "a.gguf", source, matrices_in(Type.Q8_0))
    fused = gguf_files.write(tmp_path / "b.gguf", source, matrices_in(Type.Q8_0), change=gguf_files.fuse)
    config = load_config(alone)
    ours, theirs = Weights(fused, config, "q8").layer(1), Weights(alone, config, "q8").layer(1)
    from_source = Weights(checkpoint, config, "q8").layer(1)
    for name in ("wq", "wk", "wv", "w_gate", "w_up"):
        assert ours[name].kind == "q8"
        same(ours[name].read(), theirs[name].read())
        same(ours[name].read(), from_source[name].read())
        own, other = ours[name], theirs[name]
        assert isinstance(own, QuantisedTensor)
        assert isinstance(other, QuantisedTensor)
        np.testing.assert_array_equal(own.packed(), other.packed())


def test_columns_are_not_read_alone():
    tensor = quantised.ComputedTensor(Path("x"), "x", "I32", (2, 2), 0, 2, source=SimpleNamespace())
    with pytest.raises(NotImplementedError, match="the columns of x are not read alone"):
        tensor.transposed()


def test_drawn_damage(checkpoint, tmp_path):
    """Bytes of a quantised file changed or cut anywhere: it is read, or refused in one line."""
    path = gguf_files.write(tmp_path / "x.gguf", Source(checkpoint), matrices_in(Type.Q4_1))
    whole, draw, refusals = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(40):
        damaged = bytearray(whole)
        for at in draw.integers(0, len(whole), 20):
            damaged[at] = 0xFF
        if draw.random() < 0.2:
            del damaged[draw.integers(8, len(damaged)) :]
        path.write_bytes(damaged)
        try:
            weights = Weights(path, load_config(path), "q4")
            weights.check_scales()
            for _, tensor in weights.named():
                tensor.read()
        except CheckpointError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)
    assert len(refusals) > 10
    assert any("has a scale of" in refusal for refusal in refusals)
