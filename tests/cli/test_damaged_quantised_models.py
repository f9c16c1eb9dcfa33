"""`aerie run` on quantised models that are damaged: one line with the tensor, what was found and what is
wanted, before anything is compiled."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

from aerie.cli.command_line import main
from aerie.engine import open_session
from tests import gguf_files, quantised_folders
from tests.engine.checkpoints import write_checkpoint
from tests.quantised_folders import CONFIGS

MODULE = "model.layers.0.mlp.up_proj"
MAKE: dict[str, Callable[..., Any]] = {
    "awq": quantised_folders.awq,
    "gptq": quantised_folders.gptq,
    "compressed-tensors": quantised_folders.compressed_tensors,
    "mlx": quantised_folders.mlx,
    "bitsandbytes": quantised_folders.nf4,
}
CODES = {
    "awq": "qweight",
    "gptq": "qweight",
    "compressed-tensors": "weight_packed",
    "mlx": "weight",
    "bitsandbytes": "weight",
}
SCALES = {
    "awq": "scales",
    "gptq": "scales",
    "compressed-tensors": "weight_scale",
    "mlx": "biases",
    "bitsandbytes": "weight.nested_absmax",
}
STATE = f"{MODULE}.weight.quant_state.bitsandbytes__nf4"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("plain") / "x", num_hidden_layers=1, hidden_size=128, intermediate_size=192
    )


@pytest.fixture(scope="module")
def sound(plain):
    """The tensors of a model quantised by each tool."""
    tensors = load_file(plain / "model.safetensors")

    def quantised(method):
        found = {name: array for name, array in tensors.items() if "_proj" not in name}
        for name in tensors.keys() - found.keys():
            stored = MAKE[method](tensors[name].shape).tensors
            found |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in stored.items()}
        return found

    return {method: quantised(method) for method in MAKE}


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """refused(model, message): `aerie run` of it is refused so, and nothing is compiled."""

    def run(model, kind):
        words = ["run", "--model", str(model), "--backend", "virtual", "-p", "Hi", "--weights", kind]
        return main([*words, "--cache-dir", str(tmp_path / "cache")])

    def check(model, message):
        monkeypatch.setattr(open_session, "compile_programs", None)
        for kind in ("q4", "bf16"):
            assert run(model, kind) == 2
            *_, line = capsys.readouterr().err.splitlines()
            assert re.search(f"^error: .*{message}", line), line

    return check


def written(plain, tmp_path, sound, method, change=None, entry=None) -> Path:
    """The folder of a model of which `change` changed tensors, and `entry` is said of weights."""
    folder, tensors = shutil.copytree(plain, tmp_path / "x"), dict(sound[method])
    if change:
        change(tensors)
    return quantised_folders.write(folder, tensors, entry or CONFIGS[method])


def edit_header(path, change):
    """Change the header of a file of safetensors, and not its data."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("method", MAKE)
def test_a_tensor_that_is_cut_off(method, plain, tmp_path, sound, refused):
    folder = written(plain, tmp_path, sound, method)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    refused(folder, r"damaged \(tensor model\.\S+ ends at byte \d+ of the data, and the data at byte \d+\)")


@pytest.mark.parametrize("method", MAKE)
def test_a_shape_that_the_index_contradicts(method, plain, tmp_path, sound, refused):
    folder, name = written(plain, tmp_path, sound, method), f"{MODULE}.{CODES[method]}"
    rows, columns = sound[method][name].shape
    edit_header(folder / "model.safetensors", lambda header: header[name].update(shape=[2 * rows, columns]))
    nbytes = sound[method][name].nbytes
    wanted = rf"{re.escape(name)}, [IU]\d+ of shape {2 * rows}x{columns}, takes {2 * nbytes} bytes, "
    refused(folder, rf"{wanted}and has {nbytes}\)")


@pytest.mark.parametrize("method", MAKE)
def test_codes_of_other_sizes(method, plain, tmp_path, sound, refused):
    name = f"{MODULE}.{CODES[method]}"
    folder = written(
        plain, tmp_path, sound, method, lambda tensors: tensors.update({name: tensors[name][:-8].copy()})
    )
    shapes = r"has shape \d+x\d+[,;] (and|config\.json) .*(asks for|implies|is a matrix of) \d+x\d+"
    refused(folder, rf"tensor {MODULE}\.\S+ in \S+model\.safetensors {shapes}")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", MAKE)
def test_scales_that_are_no_numbers(method, value, plain, tmp_path, sound, refused):
    name = f"{MODULE}.{SCALES[method]}"
    scales = sound[method][name].copy()
    scales.reshape(-1)[1] = value
    folder = written(plain, tmp_path, sound, method, lambda tensors: tensors.update({name: scales}))
    refused(folder, rf"tensor {name} in \S+ holds {value} in row [01], .* must be finite numbers")


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "mlx"])
def test_groups_that_do_not_divide(method, plain, tmp_path, sound, refused):
    entry = json.loads(json.dumps(CONFIGS[method]))
    of = entry["config_groups"]["group_0"]["weights"] if method == "compressed-tensors" else entry
    of["group_size"] = 100
    folder = written(plain, tmp_path, sound, method, entry=entry)
    refused(
        folder, r"tensor \S+scales? in .* has shape \d+x\d+, and \d+x\d+ in groups of 100 asks for \d+x\d+"
    )


def test_a_block_size_of_another_version(plain, tmp_path, sound, refused):
    def change(tensors):
        state = json.loads(bytes(tensors[STATE])) | {"blocksize": 128}
        tensors[STATE] = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()

    folder = written(plain, tmp_path, sound, "bitsandbytes", change)
    refused(
        folder,
        rf"tensor {MODULE}\.weight\.nested_absmax .* has shape 2, and 192x128 in blocks of 128 asks for 1;",
    )


@pytest.mark.parametrize("said", [True, False])
def test_act_order(said, plain, tmp_path, sound, refused):
    def change(tensors):
        tensors[f"{MODULE}.g_idx"] = tensors[f"{MODULE}.g_idx"][::-1].copy()

    folder = written(plain, tmp_path, sound, "gptq", change, CONFIGS["gptq"] | {"desc_act": said})
    refused(
        folder,
        rf"tensor {MODULE}\.g_idx in .* puts input 0 in group 1, .* act-order \(desc_act\) is not read",
    )


# ---- GGUF ----

TENSOR = "blk.0.ffn_up.weight"


def of_gguf(plain, tmp_path, change=None, keys=None) -> Path:
    source = gguf_files.Source(plain)
    return gguf_files.write(tmp_path / "x.gguf", source, gguf_files.matrices_in(Type.Q4_0), keys, change)


def put(path, at, form, value):
    """Change the file's entry of TENSOR, `at` bytes after its name."""
    data, name = bytearray(path.read_bytes()), TENSOR.encode()
    found = data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
    struct.pack_into(form, data, found + at, value)
    path.write_bytes(data)


ENTRIES = {
    "an unknown type": (20, "<I", 99, "has the unknown type 99, which is not read; BF16, .* Q8_0 are"),
    "a type of old": (20, "<I", 31, r"has Q4_0_4_4 \(type 31\), which is not read"),
    "rows of part of a block": (4, "<Q", 40, "has rows of 40 values, and a block of Q4_0 has 32"),
    "another width": (4, "<Q", 256, r"and \S+ lie over one another at byte \d+"),
    "an offset beyond the end": (24, "<Q", 1 << 40, r"ends at byte \d+, and the file at byte \d+"),
}


@pytest.mark.parametrize("fault", ENTRIES)
def test_an_entry_of_gguf(fault, plain, tmp_path, refused):
    at, form, value, message = ENTRIES[fault]
    path = of_gguf(plain, tmp_path)
    put(path, at, form, value)
    refused(path, rf"x\.gguf: tensors? {TENSOR} {message}")


def test_a_file_of_gguf_that_is_cut_off(plain, tmp_path, refused):
    path = of_gguf(plain, tmp_path)
    path.write_bytes(path.read_bytes()[:-5000])
    refused(path, r"tensor blk\.0\.\S+ ends at byte \d+, and the file at byte \d+: it is cut off")


@pytest.mark.parametrize("version", [1, 3])
def test_blocks_of_another_version(version, plain, tmp_path, refused):
    path = of_gguf(plain, tmp_path, keys={"general.quantization_version": version})
    said = rf"blocks of Q4_0 of version {version} \(general\.quantization_version\), and those of version 2"
    refused(path, rf"tensor \S+ has {said} are read")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_scales_of_gguf_that_are_no_numbers(value, plain, tmp_path, refused):
    def change(tensors):
        blocks = gguf.quants.quantize(tensors[TENSOR], Type.Q4_0).copy()
        blocks[3, 18:20] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        tensors[TENSOR] = blocks

    path = of_gguf(plain, tmp_path, change)
    refused(
        path, rf"tensor {TENSOR} in .* has a scale of {value} \(Q4_0, row 3 of the file, columns from 32 on\)"
    )
