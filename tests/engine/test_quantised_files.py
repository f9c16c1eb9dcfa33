"""Quantised matrices in safetensors: values, codes, what is refused and with which words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from aerie.engine.config import load_config
from aerie.engine.config_reader import ConfigReader
from aerie.engine.errors import CheckpointError, ConfigError, WeightsError
from aerie.engine.quantised_files.settings import read_settings
from aerie.engine.weight_files import find_tensors
from aerie.engine.weights import Weights
from tests import quantised_folders as folders
from tests.quantised_folders import CONFIGS

bf16 = ml_dtypes.bfloat16
NAME = "model.layers.0.mlp.up_proj"
V2 = CONFIGS["gptq"] | {"checkpoint_format": "gptq_v2"}


def config(method, **changes):
    return CONFIGS[method] | changes


def in_groups(method, bits, size, **changes):
    if method != "compressed-tensors":
        return config(method, bits=bits, group_size=size, **changes)
    weights = {"num_bits": bits, "group_size": size, "strategy": "group" if size else "channel"}
    return config(method, config_groups={"group_0": {"weights": weights}}, **changes)


Cases = dict[str, tuple[Callable[..., Any], dict[str, Any]]]
"""By name: what makes the tensors, and the entry of config.json that says how they are quantised."""
CASES: Cases = {
    "awq": (folders.awq, config("awq")),
    "awq g32": (partial(folders.awq, group=32), in_groups("awq", 4, 32)),
    "awq whole rows": (partial(folders.awq, group=192), in_groups("awq", 4, -1)),
    "gptq v1": (folders.gptq, config("gptq")),
    "gptq v2": (partial(folders.gptq, v1=False), V2),
    "gptq g128, not whole": (partial(folders.gptq, group=128), in_groups("gptq", 4, 128)),
    "gptq 8 bits": (partial(folders.gptq, bits=8, symmetric=True), in_groups("gptq", 8, 64)),
    "compressed-tensors": (folders.compressed_tensors, config("compressed-tensors")),
    "compressed-tensors zeros": (
        partial(folders.compressed_tensors, symmetric=False),
        config("compressed-tensors"),
    ),
    "compressed-tensors channel": (
        partial(folders.compressed_tensors, (40, 100), 100),
        in_groups("compressed-tensors", 4, None),
    ),
    "compressed-tensors 8 bits": (
        partial(folders.compressed_tensors, bits=8),
        in_groups("compressed-tensors", 8, 64),
    ),
    "mlx g32": (partial(folders.mlx, group=32), in_groups("mlx", 4, 32)),
    "mlx g64": (folders.mlx, config("mlx")),
    "mlx g128": (partial(folders.mlx, (40, 256), 128), in_groups("mlx", 4, 128)),
}
AGAIN: Cases = {
    "gptq 8 bits, far zeros": (partial(folders.gptq, bits=8), in_groups("gptq", 8, 64)),
    "mlx 8 bits": (partial(folders.mlx, bits=8), in_groups("mlx", 8, 64)),
}
"""Whose codes do not fit, so that they are quantised again."""
AS_BF16: Cases = {
    "nf4": (partial(folders.nf4, nested=False), config("bitsandbytes")),
    "nf4 nested": (folders.nf4, config("bitsandbytes")),
    "nf4 odd width": (partial(folders.nf4, (30, 105)), config("bitsandbytes")),
    "groups of 16": (partial(folders.gptq, group=16), in_groups("gptq", 4, 16)),
}
"""Which have no block."""
ROW_SCALES: Cases = {"int8": (folders.int8, config("bitsandbytes", load_in_8bit=True, load_in_4bit=False))}


def tensor_in(folder, stored, entry):
    """The one matrix of a folder with these tensors."""
    named = {f"{NAME}.{name}": array for name, array in stored.tensors.items()}
    found = find_tensors(folders.write(folder, named, entry)).tensors
    assert list(found) == [f"{NAME}.weight"]
    return found[f"{NAME}.weight"]


def of_blocks(grouped):
    """bf16(scale * code + minimum) of groups, one by one."""
    found = np.empty(grouped.codes.shape, np.float32)
    for (row, column), code in np.ndenumerate(grouped.codes):
        found[row, column] = np.float32(grouped.scales[row, column // 32]) * np.float32(code)
        if grouped.minima is not None:
            found[row, column] += np.float32(grouped.minima[row, column // 32])
    return found.astype(bf16)


def same(ours, theirs):
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize("case", [*CASES, *AGAIN, *AS_BF16, *ROW_SCALES])
def test_values(case, tmp_path):
    make, entry = {**CASES, **AGAIN, **AS_BF16, **ROW_SCALES}[case]
    stored = make()
    tensor = tensor_in(tmp_path, stored, entry)
    assert tensor.shape == stored.values.shape
    exact = tensor.exact(0, len(stored.values))
    np.testing.assert_allclose(exact, stored.values, rtol=3e-7, atol=1e-9)
    tensor.check_scales()
    part, some = tensor.part(5, 21), tensor.exact(5, 21)
    np.testing.assert_array_equal(part.exact(0, 21), exact[5:26][: len(some)])
    as_bf16 = tensor.dequantised() if tensor.kind != "bf16" else tensor
    same(as_bf16.part(3, 2).read(), exact[3:5].astype(bf16))


@pytest.mark.parametrize("case", CASES)
def test_codes_stay(case, tmp_path):
    """One scale is rounded to bf16, and the minimum; the weights are within that of the file's."""
    make, entry = CASES[case]
    stored = make()
    tensor = tensor_in(tmp_path, stored, entry)
    grouped, bits = tensor.grouped(), 8 if "8 bits" in case else 4
    assert (tensor.kind, grouped.codes.shape) == (f"q{bits}", stored.values.shape)
    same(tensor.to_bf16(), of_blocks(grouped))
    size = np.abs(grouped.scales.astype(float)).repeat(32, 1)[:, : stored.values.shape[1]]
    bound = (size * 2**bits + np.abs(stored.values)) * 2**-8
    if grouped.minima is not None:
        bound += np.abs(grouped.minima.astype(float)).repeat(32, 1)[:, : bound.shape[1]] * 2**-8
    assert (np.abs(tensor.to_bf16().astype(float) - stored.values) <= bound).all()


@pytest.mark.parametrize("case", [*AGAIN, *ROW_SCALES])
def test_quantised_again_or_by_rows(case, tmp_path):
    make, entry = {**AGAIN, **ROW_SCALES}[case]
    stored = make()
    tensor = tensor_in(tmp_path, stored, entry)
    assert tensor.kind == "q8"
    same(tensor.to_bf16(), of_blocks(tensor.grouped()))
    error = tensor.to_bf16().astype(float) - stored.values
    assert np.sqrt((error**2).mean() / (stored.values**2).mean()) < 0.006


@pytest.mark.parametrize("case", AS_BF16)
def test_what_has_no_block_becomes_bf16(case, tmp_path):
    make, entry = AS_BF16[case]
    assert tensor_in(tmp_path, make(), entry).kind == "bf16"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"quant_method": "hqq"}, "quantised with hqq"),
        (
            {"quant_method": "torchao"},
            r"quantised with torchao \(quantization_config\), which is not read; AWQ",
        ),
        ({"quant_method": "fp8"}, "quantised with fp8"),
        ({"quant_method": ["x"] * 99}, "an object|which is not read"),
        (config("awq", version="gemv"), "and version is 'gemv', where 'gemm' is read"),
        (config("awq", zero_point=False), "and zero_point is False, where True is read"),
        (config("awq", bits=8), "and bits is 8, where 4 is read"),
        (config("gptq", bits=3), "and bits is 3, where 4 or 8 is read"),
        (config("gptq", bits=True), "and bits is True"),
        (config("gptq", group_size=0), "and group_size is 0, where from 1 to 16777216 is read"),
        (config("gptq", group_size="64"), "and group_size is '64'"),
        (
            config("gptq", checkpoint_format="marlin"),
            "and checkpoint_format is 'marlin', where 'gptq' is read",
        ),
        (config("gptq", pack_dtype="int16"), "and pack_dtype is 'int16'"),
        (config("gptq", desc_act="yes"), "and desc_act is 'yes', where true or false is read"),
        (
            config("gptq", dynamic={"+:.*": {"bits": 8}}),
            r"and dynamic is .*, where modules that are left out",
        ),
        (config("compressed-tensors", format="int-quantized"), "and format is 'int-quantized'"),
        (config("compressed-tensors", kv_cache_scheme={"a": 1}), "and kv_cache_scheme is"),
        (config("compressed-tensors", config_groups={}), "and config_groups is .., where one group is read"),
        (
            config("compressed-tensors", config_groups={"g": {"weights": {"num_bits": 4, "type": "float"}}}),
            "and its weights are .*, where those of type int are read",
        ),
        (
            config(
                "compressed-tensors", config_groups={"g": {"weights": {"num_bits": 4, "strategy": "block"}}}
            ),
            "and strategy is 'block', where group or channel is read",
        ),
        (
            config(
                "compressed-tensors",
                config_groups={"g": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 8}}},
            ),
            "and input_activations is .*, where weights alone are quantised",
        ),
        (in_groups("compressed-tensors", 3, 64), "and num_bits is 3, where 4 or 8 is read"),
        (config("mlx", mode="mxfp4"), "and mode is 'mxfp4', where 'affine' is read"),
        (config("mlx", **{NAME: {"bits": 6}}), f"and bits of {NAME} is 6"),
        (config("bitsandbytes", bnb_4bit_quant_storage="bfloat16"), "and bnb_4bit_quant_storage is"),
        ({}, "quantised with an unknown tool"),
    ],
)
def test_methods_that_are_not_read(entry, message, tmp_path):
    reader = ConfigReader(tmp_path / "config.json", {"quantization_config": entry})
    with pytest.raises(ConfigError, match=message) as error:
        read_settings(reader)
    assert "\n" not in str(error.value)


def without(name):
    return lambda tensors: tensors.pop(name)


def put(name, array):
    return lambda tensors: tensors.update({name: array})


def put_value(name, value, at=3):
    def change(tensors):
        tensors[name].reshape(-1)[at] = value

    return change


WRONG = [
    ("awq", without("scales"), rf"tensor {NAME}.scales is missing, and {NAME}.qweight in .* cannot be read"),
    (
        "awq",
        put("scales", np.ones((2, 40), np.float16)),
        r"\.scales .* has shape 2x40, and 40x192 in groups of 64",
    ),
    ("awq", put("qweight", np.ones(8, np.int32)), "is I32 of shape 8, and a matrix of I32 or U32 is wanted"),
    (
        "awq",
        put("qzeros", np.ones((3, 5), np.float16)),
        r"\.qzeros in .* has dtype F16, and 40x192 .* I32 or U32",
    ),
    (
        "gptq",
        put("g_idx", np.arange(192)[::-1] // 64),
        "puts input 0 in group 2, and without act-order it is in group 0",
    ),
    ("gptq", put("g_idx", np.zeros(7, np.int32)), r"g_idx .* has shape 7, and a matrix of 192 inputs asks"),
    ("gptq", put("qzeros", np.ones((3, 4), np.int32)), r"\.qzeros .* has shape 3x4, and .* asks for 3x5"),
    ("compressed-tensors", without("weight_shape"), "weight_shape is missing"),
    (
        "compressed-tensors",
        put("weight_shape", np.array([40, 184], np.int64)),
        r"has shape 40x24, and .*weight_shape says that it is a matrix of 40x184 in 4 bits",
    ),
    (
        "compressed-tensors",
        put("weight_shape", np.array([-40, 192], np.int64)),
        "says that it is a matrix of -40x192 in 4 bits",
    ),
    ("compressed-tensors", put("weight_g_idx", np.zeros(192, np.int32)), "actorder group"),
    ("mlx", without("biases"), "biases is missing"),
    (
        "mlx",
        put("weight", np.ones((40, 24), np.float32)),
        "is F32 of shape 40x24, and a matrix of I32 or U32",
    ),
    ("bitsandbytes", without("weight.quant_map"), "quant_map is missing"),
    ("bitsandbytes", without("weight.quant_state.bitsandbytes__nf4"), "bitsandbytes__nf4 is missing"),
    (
        "bitsandbytes",
        put("weight.absmax", np.ones(120, np.float16)),
        "has dtype F16, and 40x192 in blocks of 64",
    ),
    (
        "bitsandbytes",
        put("weight.quant_state.bitsandbytes__nf4", np.frombuffer(b"[" * 999, np.uint8)),
        "is no JSON with shape and blocksize",
    ),
    (
        "bitsandbytes",
        put(
            "weight.quant_state.bitsandbytes__nf4",
            np.frombuffer(json.dumps({"shape": [40], "blocksize": 64}).encode(), np.uint8),
        ),
        "says shape 40 and offset",
    ),
]
NOT_FINITE = [
    (
        "awq",
        put_value("scales", np.nan),
        r"scales in .* holds nan in row 0, column 3, and scales must be finite",
    ),
    ("gptq", put_value("scales", np.inf, 43), "holds inf in row 1, column 3"),
    ("compressed-tensors", put_value("weight_scale", -np.inf), "holds -inf in row 1, column 0"),
    ("mlx", put_value("biases", np.nan), r"biases in .* holds nan in row 1, column 0"),
    ("bitsandbytes", put_value("weight.nested_absmax", np.nan, 0), "nested_absmax .* holds nan"),
]
MAKE: dict[str, Callable[..., Any]] = {
    "awq": folders.awq,
    "gptq": folders.gptq,
    "compressed-tensors": folders.compressed_tensors,
    "mlx": folders.mlx,
    "bitsandbytes": folders.nf4,
}


@pytest.mark.parametrize(("method", "change", "message"), WRONG)
def test_tensors_that_contradict_each_other(method, change, message, tmp_path):
    stored = MAKE[method]()
    change(stored.tensors)
    with pytest.raises(WeightsError, match=message) as error:
        tensor_in(tmp_path, stored, config(method))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("method", "change", "message"), NOT_FINITE)
def test_scales_that_are_no_numbers(method, change, message, tmp_path):
    stored = MAKE[method]()
    change(stored.tensors)
    with pytest.raises(WeightsError, match=message):
        tensor_in(tmp_path, stored, config(method)).check_scales()


def test_act_order_without_an_entry(tmp_path):
    stored = folders.gptq()
    del stored.tensors["g_idx"]
    with pytest.raises(
        WeightsError, match=r"has act-order .desc_act., and its g_idx, which says it, is missing"
    ):
        tensor_in(tmp_path, stored, config("gptq", desc_act=True))


def test_a_matrix_that_is_there_twice(tmp_path):
    stored = folders.awq()
    stored.tensors["weight"] = np.zeros((40, 192), np.float16)
    with pytest.raises(WeightsError, match=r"up_proj.weight is in .*, and so are codes of it in"):
        tensor_in(tmp_path, stored, config("awq"))


def test_a_config_that_says_quantised_of_plain_weights(tmp_path):
    stored = folders.Stored({"weight": np.zeros((40, 192), np.float16)}, np.zeros(0))
    with pytest.raises(WeightsError, match=r"quantised with awq, and no tensor is called \*\.qweight"):
        tensor_in(tmp_path, stored, config("awq"))


@pytest.mark.parametrize("method", MAKE)
def test_drawn_damage(method, tmp_path):
    """Bytes of a file changed, cut or added anywhere: it is read, or refused in one line."""
    draw = np.random.default_rng(len(method))
    tensor_in(tmp_path, MAKE[method](), config(method))
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    refusals = []
    for _ in range(60):
        damaged = bytearray(whole)
        header = int.from_bytes(whole[:8], "little") + 8
        for at in draw.integers(0, header if draw.random() < 0.7 else len(whole), draw.integers(1, 4)):
            damaged[at] = draw.integers(0, 256)
        if draw.random() < 0.3:
            del damaged[draw.integers(8, len(damaged)) :]
        path.write_bytes(damaged)
        try:
            for tensor in find_tensors(tmp_path).tensors.values():
                tensor.check_scales()
                if tensor.is_supported:
                    tensor.read()
        except CheckpointError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)
    assert len(refusals) > 10


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    from tests.engine.checkpoints import write_checkpoint

    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    rope = {"rope_type": "default", "rope_theta": 1e4}
    folder = tmp_path_factory.mktemp("plain") / "x"
    return write_checkpoint(
        folder, **sizes, head_dim=32, num_hidden_layers=1, rope_parameters=rope, family="Qwen2"
    )


@pytest.mark.parametrize("method", MAKE)
@pytest.mark.parametrize("kind", ["auto", "q4"])
def test_a_whole_model(method, kind, plain, tmp_path):
    """Every matrix of a model, with biases and norms beside them, is where the programs look for it."""
    folder = shutil.copytree(plain, tmp_path / "quantised")
    plain_tensors, expected = load_file(plain / "model.safetensors"), {}
    tensors = {}
    for name, array in plain_tensors.items():
        if array.ndim != 2 or "embed" in name:
            tensors[name] = array
            continue
        stored = MAKE[method](array.shape, seed=len(name))
        expected[name] = stored.values
        tensors |= {name.removesuffix("weight") + part: each for part, each in stored.tensors.items()}
    folders.write(folder, tensors, config(method))
    weights = Weights(folder, load_config(folder), kind)
    assert any(("in the file" in note and " 4 bits" in note) or "nf4" in note for note in weights.notes)
    for name, tensor in weights.named():
        if name not in expected:
            assert tensor.kind == ("q8" if "embed" in name and kind == "q4" else "bf16")
            continue
        values, block = tensor.read().astype(float), kind == "q4" and method != "bitsandbytes"
        assert tensor.kind == ("q4" if block else "bf16")
        if not block:
            same(tensor.read(), expected[name].astype(np.float32).astype(bf16))
        assert np.sqrt(((values - expected[name]) ** 2).mean() / (expected[name] ** 2).mean()) < 0.02


def test_a_shape_that_the_config_contradicts(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "quantised")
    tensors = dict(load_file(plain / "model.safetensors"))
    name = "model.layers.0.self_attn.q_proj."
    del tensors[f"{name}weight"]
    tensors |= {name + part: each for part, each in folders.awq((64, 128)).tensors.items()}
    folders.write(folder, tensors, config("awq"))
    message = r"q_proj\.qweight in .* has shape 64x128; config.json implies 64x64"
    with pytest.raises(WeightsError, match=message):
        Weights(folder, load_config(folder))
