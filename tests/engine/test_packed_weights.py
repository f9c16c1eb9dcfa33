"""The file of packed weights: what is in it, when it is used, and what becomes of a damaged one."""

from __future__ import annotations

import io
import os
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.cli.cache_command import cache_sections, clear
from aerie.engine import packed_weights
from aerie.engine.errors import WeightsError
from aerie.engine.packed_weights import (
    Damaged,
    open_packed,
    packed_path,
    packing_key,
    prepare_weights,
    prune,
    write_packed,
)
from aerie.engine.quantised import quantised
from aerie.engine.reporter import Reporter, no_progress
from aerie.engine.tensors import Tensor
from aerie.kernel_builder.weight_blocks import BLOCK_ROWS

bf16 = ml_dtypes.bfloat16
SHAPES = {"a": ((70, 300), "q4"), "b": ((512, 256), "q8"), "c": ((32, 32), "q4")}


class SomeWeights:
    """As Weights, with these tensors."""

    kind = "q4"

    def __init__(self, tensors):
        self.quantised, self.blocks, self.checked = tensors, None, 0

    def use_packed(self, blocks):
        self.blocks = blocks

    def check_scales(self):
        self.checked += 1


@pytest.fixture
def tensors(tmp_path):
    found = {}
    for name, (shape, kind) in SHAPES.items():
        values = np.random.default_rng(len(name)).normal(0, 1, shape).astype(bf16)
        (tmp_path / name).write_bytes(values.tobytes())
        found[name] = quantised(Tensor(tmp_path / name, name, "BF16", shape, 0, shape[1]), kind)
    return found


@pytest.fixture
def prepare(tensors, tmp_path):
    """prepare() -> weights after a start, and what was noted."""

    def prepare():
        notes = io.StringIO()
        weights: Any = SomeWeights(tensors)
        prepare_weights(weights, "a model/x", tmp_path / "packed", lambda: "fp", Reporter(notes))
        return weights, notes.getvalue()

    return prepare


def test_packed_once_and_mapped_from_then_on(prepare, tensors, tmp_path, monkeypatch):
    first, notes = prepare()
    (path,) = (tmp_path / "packed").iterdir()
    assert path == packed_path(tmp_path / "packed", "a model/x", packing_key("fp", "q4"))
    assert path.name.startswith("a_model_x-")
    assert f"packed weights: {path}" in notes
    assert first.checked == 1
    monkeypatch.setattr(packed_weights, "write_packed", None)
    again, notes = prepare()
    assert (notes, again.checked) == ("", 0)
    for name, tensor in tensors.items():
        blocks, expected = again.blocks[name], tensor.packed()
        np.testing.assert_array_equal(blocks.mapped, expected)
        assert not blocks.mapped.flags.writeable
        for out in (
            np.empty_like(expected),
            np.empty((*expected.shape[:2], 9999), np.uint8)[..., : expected.shape[2]],
        ):
            blocks.read_into(out)
            np.testing.assert_array_equal(out, expected)


def test_parts_of_what_is_packed(prepare, tensors):
    from dataclasses import replace

    weights, _ = prepare()
    tensor = replace(tensors["b"], blocks=weights.blocks["b"])
    for first, rows in ((0, 64), (96, 416), (96, 33), (7, 64)):
        part = tensor.part(first, rows)
        assert (part.blocks is not None) == (first % BLOCK_ROWS == 0 and (rows % BLOCK_ROWS == 0))
        np.testing.assert_array_equal(part.packed(), tensors["b"].part(first, rows).packed())
        out = np.empty_like(part.packed())
        part.pack_into(out)
        np.testing.assert_array_equal(out, part.packed())
    assert tensor.columns(32, 64).blocks is None
    np.testing.assert_array_equal(tensor.columns(32, 64).packed(), tensors["b"].columns(32, 64).packed())


def test_other_weights_another_question_another_key():
    keys = {packing_key(*about) for about in (("a", "q4"), ("b", "q4"), ("a", "q8"))}
    assert len(keys) == 3


DAMAGE = {
    "a changed byte": lambda data: data.__setitem__(len(data) // 2, data[len(data) // 2] ^ 1),
    "a changed header": lambda data: data.__setitem__(30, data[30] ^ 1),
    "a changed digest": lambda data: data.__setitem__(-1, data[-1] ^ 1),
    "cut off": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "empty": lambda data: data.clear(),
    "one byte more": lambda data: data.append(0),
    "zeros": lambda data: data.__setitem__(slice(8192, 12288), bytes(4096)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_reported_and_packed_anew(damage, prepare, tmp_path):
    prepare()
    (path,) = (tmp_path / "packed").iterdir()
    whole = path.read_bytes()
    data = bytearray(whole)
    DAMAGE[damage](data)
    path.write_bytes(data)
    weights, notes = prepare()
    assert f"packed weights in {path} are damaged (" in notes
    assert "): they are packed anew" in notes
    assert path.read_bytes() == whole
    assert weights.blocks is not None


def test_a_file_that_others_can_write(prepare, tmp_path):
    prepare()
    (path,) = (tmp_path / "packed").iterdir()
    path.chmod(0o666)
    assert "are damaged (others can write to it): they are packed anew" in prepare()[1]


def test_a_folder_that_cannot_be_written(prepare, tmp_path):
    (tmp_path / "packed").write_text("in the way")
    weights, notes = prepare()
    assert "packed weights are not kept in" in notes
    assert "each start packs them again" in notes
    assert weights.blocks is None


def test_nothing_is_left_of_weights_that_cannot_be_packed(tensors, tmp_path):
    (tmp_path / "b").write_bytes(b"\xff" * 512 * 256 * 2)  # NaN
    with pytest.raises(WeightsError, match=r"tensor b .* has the scale nan"):
        write_packed(tmp_path / "packed" / "x.packed", tensors, no_progress)
    assert not [*(tmp_path / "packed").iterdir()]


def test_a_file_of_other_tensors(prepare, tensors, tmp_path):
    prepare()
    (path,) = (tmp_path / "packed").iterdir()
    with pytest.raises(Damaged, match=r"it has .* bytes, and .* are wanted"):
        open_packed(path, {"a": tensors["a"]})


def test_old_files_go(tmp_path):
    for number, days in enumerate((0, 2, 3, 31)):
        path = packed_path(tmp_path, "x", f"{number:016x}")
        path.write_bytes(bytes(100))
        os.utime(path, (time.time() - days * 86400,) * 2)
    (tmp_path / "mine.packed").write_text("kept")
    prune(tmp_path)
    assert len([*tmp_path.iterdir()]) == 4
    prune(tmp_path, 150)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.packed", "x-0000000000000000.packed"}


def test_the_command_of_the_cache(prepare, tmp_path):
    prepare()
    section = next(
        each for each in cache_sections(tmp_path, tmp_path) if each.description == "packed weights"
    )
    assert (section.files, section.is_rebuilt) == (1, True)
    nbytes = section.nbytes
    assert clear(section) == (1, nbytes)
    assert not (tmp_path / "packed").exists() or not [*(tmp_path / "packed").iterdir()]
