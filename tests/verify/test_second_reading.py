"""Two readings of quantised weights, ours and the reference's: the same values, and faults told as such."""

from __future__ import annotations

import shutil

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine import quantisers
from aerie.engine.config import load_config
from aerie.engine.gguf import block_groups, block_types
from aerie.engine.gguf.block_groups import quantised_block_tensor
from aerie.engine.gguf.block_tensors import BlockTensor
from aerie.engine.quantised import as_kind
from aerie.engine.quantised_files import awq, gptq
from aerie.engine.quantised_files.affine import AffineSource
from aerie.engine.weight_files import find_tensors
from aerie.engine.weights import Weights
from aerie.verify import __main__ as cli
from aerie.verify.blocks_reference import DeviceKind
from aerie.verify.reading_check import ReadingError, check_reading, place
from aerie.verify.reference_folder import facts_and_weights
from aerie.verify.safetensors_reference import SafetensorsFiles
from tests import gguf_files, quantised_folders
from tests.engine.test_quantised_files import AGAIN, AS_BF16, CASES, NAME, ROW_SCALES
from tests.gguf_files import SCALES, Source, matrices_in, random_blocks

SHAPE = (40, 512)
SAFETENSORS = {**CASES, **AGAIN, **AS_BF16, **ROW_SCALES}
KINDS = [Type(number) for number in block_types.READ if Type(number).name not in ("F32", "F16", "BF16")]


def same(ours, theirs):
    """A zero may have either sign."""
    np.testing.assert_array_equal(ours.astype(np.float32), theirs.astype(ml_dtypes.bfloat16).astype(float))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_types_of_gguf(kind, tmp_path):
    values = np.random.default_rng(kind).normal(0, 1, SHAPE).astype(np.float32)
    raw = random_blocks(kind, SHAPE) if kind in SCALES else gguf.quants.quantize(values, kind)
    raw = raw.view(np.uint8).reshape(SHAPE[0], -1)
    path = tmp_path / "x"
    path.write_bytes(raw.tobytes())
    ours = BlockTensor(path, "x", kind.name, SHAPE, 0, SHAPE[1], block_type=block_types.READ[kind])
    in_blocks = quantised_block_tensor(ours)
    same((in_blocks or ours).read(), DeviceKind("q4").of_blocks(raw, kind))
    same(ours.read(), DeviceKind("bf16").of_blocks(raw, kind))


@pytest.mark.parametrize("kind", ["bf16", "q4"])
@pytest.mark.parametrize("case", SAFETENSORS)
def test_safetensors(case, kind, tmp_path):
    make, entry = SAFETENSORS[case]
    named = {f"{NAME}.{name}": array for name, array in make().tensors.items()}
    folder = quantised_folders.write(tmp_path / "x", named, entry)
    ((name, tensor),) = find_tensors(folder).tensors.items()
    files = SafetensorsFiles([folder / "model.safetensors"], {"quantization_config": entry}, DeviceKind(kind))
    where = files.write(tmp_path)
    assert list(where) == [name]
    same(as_kind(tensor, kind).read(), load_file(tmp_path / where[name])[name])


def written(folder, kind, tmp_path):
    """Weights as ours reads them, and the folder of the second reading."""
    from transformers import LlamaConfig

    weights = Weights(folder, load_config(folder), kind)
    with facts_and_weights(folder, LlamaConfig, kind) as shown:
        return weights, shutil.copytree(shown, tmp_path / "shown")


@pytest.mark.parametrize("kind", ["q4", "q8"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_checkpoint_in_16_bits(write_llama, tmp_path, kind, is_tied):
    weights, shown = written(write_llama(num_hidden_layers=1, tie_word_embeddings=is_tied), kind, tmp_path)
    assert weights.lm_head.kind == "q8"
    check_reading(weights, shown)


@pytest.mark.parametrize("change", [None, gguf_files.fuse])
@pytest.mark.parametrize("stored", [Type.Q4_0, Type.Q5_1, Type.BF16], ids=lambda kind: kind.name)
def test_a_file_of_gguf(write_llama, tmp_path, stored, change):
    path = gguf_files.write(
        tmp_path / "x.gguf", Source(write_llama(num_hidden_layers=1)), matrices_in(stored), change=change
    )
    check_reading(*written(path, "q4", tmp_path))


# ---- faults of reading ----


def nibbles_swapped(patch):
    patch.setattr(block_groups, "_nibbles", lambda raw: np.concatenate((raw >> 4, raw & 15), axis=-1))


def scales_rounded_down(patch):
    def cut(values):
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)

    patch.setattr(block_groups, "_bf16", lambda values: cut(np.ascontiguousarray(values, np.float32)))


def order_left_out(patch):
    patch.setattr(awq, "FIELD_OF_OUTPUT", tuple(range(8)))


def zero_off_by_one(patch):
    read = gptq.GPTQReader.read

    def one_less(self, *at):
        rows = read(self, *at)
        assert rows.zeros is not None
        return rows._replace(zeros=rows.zeros - 1)

    patch.setattr(gptq.GPTQReader, "read", one_less)


def group_of_64_read_as_32(patch):
    spread = AffineSource._spread
    patch.setattr(
        AffineSource,
        "_spread",
        lambda self, values, read, width: (
            np.resize(values, (len(values), 6)) if width == 32 else spread(self, values, read, width)
        ),
    )


OF_GGUF = [nibbles_swapped, scales_rounded_down]
OF_SAFETENSORS = [("awq", order_left_out), ("gptq v1", zero_off_by_one), ("mlx g64", group_of_64_read_as_32)]


@pytest.mark.parametrize("fault", OF_GGUF)
def test_a_fault_in_reading_gguf_is_found(write_llama, tmp_path, monkeypatch, fault):
    path = gguf_files.write(
        tmp_path / "x.gguf", Source(write_llama(num_hidden_layers=1)), matrices_in(Type.Q4_1)
    )
    fault(monkeypatch)
    with pytest.raises(ReadingError, match="weights are others than in the second reading, the first at"):
        check_reading(*written(path, "q4", tmp_path))


@pytest.mark.parametrize(("case", "fault"), OF_SAFETENSORS)
def test_a_fault_in_reading_safetensors_is_found(case, fault, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="not equal"):
        test_safetensors(case, "q4", tmp_path)


def test_a_wrong_reading_fails_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(quantisers, "_as_stored", lambda values: (values * 1.01).astype(ml_dtypes.bfloat16))
    monkeypatch.setattr(cli, "prepare_runtime", None)
    words = ["verify", "--backend", "virtual", "--weights", "q4", "--out", str(tmp_path)]
    assert cli.main(words) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("[verify] FAIL: tensor model.embed_tokens.weight is read wrong: ")
    assert "no program ran on them: report this with the file's name" in line


def test_another_shape(write_llama, tmp_path):
    weights, shown = written(write_llama(num_hidden_layers=1), "q4", tmp_path)
    name, tensor = next((name, each) for name, each in weights.named() if len(each.shape) == 2)
    weights._tensors[name] = tensor.columns(0, 32)
    with pytest.raises(ReadingError, match=r"has shape \(\d+, 32\), and \(\d+, \d+\) in the second reading"):
        check_reading(weights, shown)


def test_the_second_reading_of_bf16_is_another(tmp_path):
    weights, _ = written(DEMO_FOLDER, "q4", tmp_path / "q4")
    _, shown = written(DEMO_FOLDER, "bf16", tmp_path / "bf16")
    with pytest.raises(ReadingError):
        check_reading(weights, shown)


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_part_of_a_fused_tensor_is_found(kind: str) -> None:
    layer = "model.layers.3."
    where = {f"{layer}self_attn.qkv_proj.{kind}": "file", f"{layer}mlp.ffn_gate_up.weight": "file"}
    sizes = {f"{layer}self_attn.{of}_proj.{kind}": rows for of, rows in (("q", 64), ("k", 16), ("v", 16))}
    sizes[f"{layer}mlp.gate_proj.weight"] = 128
    found = [place(f"{layer}self_attn.{of}_proj.{kind}", where, sizes) for of in "qkv"]
    assert found == [(f"{layer}self_attn.qkv_proj.{kind}", first) for first in (0, 64, 80)]
    assert place(f"{layer}mlp.up_proj.weight", where, sizes) == (f"{layer}mlp.ffn_gate_up.weight", 128)
