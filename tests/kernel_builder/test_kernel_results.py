"""The kernels' results on the virtual NPU: against their references, and what the system above builds on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.kernel_builder import delta_rows
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.kernels import (
    all_kernels,
    eltwise_add,
    flash_attention,
    gated_delta_rule,
    gemv,
    rms_norm,
    rope,
    swiglu,
)
from aerie.kernel_builder.spec import Parameters
from aerie.kernel_builder.testing import built_kernel, compare, random_arrays, run
from aerie.virtual_npu import toolchain
from tests import remembering

BF16 = ml_dtypes.bfloat16
QUICK = 2
"""Cases of a kernel that `make test` runs: each is a program to compile."""
CASES = [
    pytest.param(name, case, marks=pytest.mark.slow if case >= QUICK else ())
    for name, spec in all_kernels().items()
    for case in range(len(spec.cases))
]
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow)]


def complaints(name: str, parameters: Parameters, seed: int = 0) -> list[str]:
    """One line for every result that is out of tolerance."""
    results = compare(all_kernels()[name], parameters, seed)
    return [f"{result}: {difference}" for result, difference in results.items() if not difference.passes]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_case(name: str, case: int) -> None:
    assert complaints(name, all_kernels()[name].cases[case]) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(all_kernels()))
def test_random_shape(name: str, seed: int) -> None:
    parameters = all_kernels()[name].random_case(np.random.default_rng(seed))
    assert complaints(name, parameters, seed) == [], parameters


ATTENTION = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 32}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "flash_attention",
            {"lq": 32, "lk": 96, "lkp": 32, "num_stages": 2, "num_q_tiles": 1, "causal": False},
        ),
        ("cached_attention", {"n": 8, "m": 64, "heads": 1}),
    ],
    ids=["three tiles of keys for two stages", "a tile for each head of a group"],
)
def test_attention_that_is_shared_out_unevenly(name: str, parameters: dict[str, Any]) -> None:
    assert complaints(name, {**ATTENTION, **parameters}) == []


def result(name: str, parameters: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The one result of a kernel."""
    (out,) = run(all_kernels()[name].build(**parameters), arrays).values()
    return out


ROWS = [name for name, spec in all_kernels().items() if spec.rows in spec.parameters]
"""Kernels whose rows do not touch each other."""
FEW, MANY = 8, 24


@pytest.mark.parametrize("name", ROWS)
def test_rows_do_not_depend_on_how_many_there_are(name: str) -> None:
    """The first rows of a longer call are bit for bit those of a shorter one: padding a prompt is exact.

    And a row alone, as decode has it, is the row among others.
    """
    spec, (few, many) = all_kernels()[name], (with_rows(name, count) for count in (FEW, MANY))
    arrays = random_arrays(spec, many, np.random.default_rng(5))
    of_rows = {argument.name for argument in spec.build(**many).arguments if argument.shape[0] == MANY}
    whole = result(name, many, arrays)
    first = {name: array[:FEW] if name in of_rows else array for name, array in arrays.items()}
    same = {f"of {FEW}": result(name, few, first).tobytes() == whole[:FEW].tobytes()}
    if any(case[spec.rows] is None for case in spec.cases):
        seventh = {name: array[7] if name in of_rows else array for name, array in arrays.items()}
        same["alone"] = result(name, {**many, spec.rows: None}, seventh).tobytes() == whole[7].tobytes()
    if other := " and ".join(how for how, is_same in same.items() if not is_same):
        pytest.fail(
            f"kernel {name}: a row among {MANY} has other bits than {other}, and padding a prompt must be "
            "exact; let no sum of a row depend on the number of rows, or, where rows do touch each other, "
            'say `rows=""` in its KernelSpec',
            pytrace=False,
        )


def with_rows(name: str, count: int) -> dict[str, Any]:
    """The first case with so many rows, cut by the kernel itself."""
    spec = all_kernels()[name]
    case = {key: value for key, value in spec.cases[0].items() if not key.startswith(("herd_", "tile_"))}
    try:
        spec.build(**{**case, spec.rows: count})
    except IllegalShapeError as error:
        pytest.fail(
            f"kernel {name}: its first case must be legal with {FEW} and with {MANY} {spec.rows} too, which "
            f"a test of padding runs, and it is not: {error}",
            pytrace=False,
        )
    return {**case, spec.rows: count}


def test_a_gemv_does_not_depend_on_tiles_or_cores() -> None:
    """The sum over k has one order, whatever the tiles."""
    arrays = random_arrays(gemv.KERNEL, {"m": 64, "k": 512}, np.random.default_rng(1))
    plain = run(gemv.build(64, 512), arrays)["out"]
    cuts: list[dict[str, Any]] = [
        {"tile_m": 4, "m_input": 2, "herd_m": 2},
        *({"k_piece": piece} for piece in (64, 128, 256)),
    ]
    for cut in cuts:
        assert plain.tobytes() == run(gemv.build(64, 512, **cut), arrays)["out"].tobytes(), cut


def swap(array: Any, axis: int, parts: int) -> Any:
    """The first two of equal parts along an axis, exchanged."""
    first, second, *rest = np.split(array, parts, axis=axis)
    return np.concatenate([second, first, *rest], axis=axis)


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "eltwise_add": lambda x: {"b": x["b"] * 1.01},
    "bias_add": lambda x: {"bias": np.roll(x["bias"], 16)},
    "rms_norm": lambda x: {"x": np.concatenate([x["x"][:, :-1], x["x"][:, :1]], axis=1)},
    "gemm": lambda x: {"b": np.concatenate([x["b"][:-1], np.zeros_like(x["b"][:1])])},
    "gemv": lambda x: {"weight": swap(x["weight"], 0, len(x["weight"]))},
    "swiglu": lambda x: {"gate": x["up"], "up": x["gate"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_slightly_wrong_result_is_noticed(name: str) -> None:
    """A factor of 1.01, one element of a norm swapped, one of 256 products left out, two rows swapped."""
    spec = all_kernels()[name]
    arrays = random_arrays(spec, spec.cases[0], np.random.default_rng(0))
    right = spec.reference(spec.cases[0], arrays)
    wrong = spec.reference(spec.cases[0], {**arrays, **WRONG[name](arrays)})
    assert all(spec.tolerance.excess(wrong[out], right[out]) > 1 for out in right)


def test_rms_norm_is_that_of_hugging_face() -> None:
    """transformers' own LlamaRMSNorm in bf16."""
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    arrays = random_arrays(rms_norm.KERNEL, {"rows": 16, "cols": 256}, np.random.default_rng(3))
    norm = LlamaRMSNorm(256, eps=1e-5).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(arrays["weight"].astype(np.float32)))
        theirs = norm(torch.from_numpy(arrays["x"].astype(np.float32)).to(torch.bfloat16)).float().numpy()
    ours = run(rms_norm.build(16, 256), arrays)["out"].astype(np.float32)
    assert np.mean(ours != theirs) < 0.01
    np.testing.assert_allclose(ours, theirs, rtol=rms_norm.KERNEL.tolerance.rtol)


def test_swiglu_is_that_of_hugging_face() -> None:
    """torch's silu and product in bf16: nine results in ten have the same bits, the rest are neighbours."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    gate, up = ((rng.standard_normal((16, 768)) * 4).astype(BF16) for _ in range(2))
    tensors = [torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16) for a in (gate, up)]
    theirs = (torch.nn.functional.silu(tensors[0]) * tensors[1]).float().numpy()
    ours = run(swiglu.build(16, 768), {"gate": gate, "up": up})["out"].astype(np.float32)
    assert np.mean(ours != theirs) < 0.12
    np.testing.assert_allclose(ours, theirs, rtol=swiglu.KERNEL.tolerance.rtol)


@pytest.mark.parametrize("function", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_the_delta_rule_is_that_of_hugging_face(function: str) -> None:
    """Both of transformers' forms, from a state on, of heads that share their keys."""
    torch = pytest.importorskip("torch")
    from transformers.models.qwen3_5 import modeling_qwen3_5

    sizes: dict[str, Any] = {"heads": 2, "positions": 64, "key_dim": 32, "value_dim": 32}
    arrays = random_arrays(gated_delta_rule.KERNEL, sizes, np.random.default_rng(4))
    rows, gates_at = arrays["rows"], slice(64, 80)
    gates = np.ascontiguousarray(rows[..., gates_at]).view(np.float32)
    gates[..., delta_rows.PRESENT] = 1
    rows[..., gates_at] = gates.view(BF16)

    def tensor(array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))[None]

    query, key, value = (tensor(rows[..., at : at + 32].swapaxes(0, 1)) for at in (0, 32, 80))
    decay, rate = (tensor(gates[..., number].T) for number in (delta_rows.DECAY, delta_rows.RATE))
    out, state = getattr(modeling_qwen3_5, function)(
        *(query, key, value),
        g=decay.log(),
        beta=rate,
        initial_state=tensor(delta_rows.from_tiles(arrays["state"], 2)),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    ours = run(gated_delta_rule.build(**sizes), arrays)
    theirs = delta_rows.to_tiles(state[0].numpy())
    np.testing.assert_allclose(ours["state_out"], theirs, rtol=1e-4, atol=1e-5)
    wanted = out[0].reshape(64, -1).numpy()
    np.testing.assert_allclose(ours["out"].astype(np.float32), wanted, rtol=2**-8, atol=1e-5)


def test_positions_that_are_not_there_change_no_bit() -> None:
    """A run of 8 positions, and the same with 8 more that are not there."""
    few: dict[str, Any] = {"heads": 2, "positions": 8, "key_dim": 16, "value_dim": 16}
    arrays = random_arrays(gated_delta_rule.KERNEL, few, np.random.default_rng(6))
    empty = np.full_like(arrays["rows"], np.nan)
    empty[..., 32:48] = 0
    alone = run(gated_delta_rule.build(**few), arrays)
    more = {**arrays, "rows": np.concatenate([arrays["rows"], empty], axis=1)}
    padded = run(gated_delta_rule.build(**few | {"positions": 16}), more)
    assert padded["state_out"].tobytes() == alone["state_out"].tobytes()
    assert padded["out"][:8].tobytes() == alone["out"].tobytes()
    assert not padded["out"][8:].astype(np.float32).any()


def test_rope_is_that_of_hugging_face() -> None:
    """transformers' own function in f32 on the same bf16 numbers; theirs in bf16 rounds three times."""
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rows, heads, dim = 32, 4, 64
    angle = np.outer(np.arange(rows), 500000.0 ** (-np.arange(0, dim, 2) / dim))
    lut = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(BF16)
    x = np.random.default_rng(0).standard_normal((rows, heads * dim)).astype(BF16)
    cos, sin = (torch.from_numpy(np.tile(half, 2)) for half in np.split(lut.astype(np.float32), 2, axis=1))
    q = torch.from_numpy(x.astype(np.float32)).reshape(1, rows, heads, dim).transpose(1, 2)

    def theirs(dtype: Any) -> Any:
        rotated, _ = apply_rotary_pos_emb(q.to(dtype), q.to(dtype), cos[None].to(dtype), sin[None].to(dtype))
        return rotated.transpose(1, 2).reshape(rows, heads * dim).float().numpy()

    ours = run(rope.build(rows, heads, dim), {"x": x, "lut": lut})["out"]
    assert (ours == theirs(torch.float32).astype(BF16)).all()
    exact, in_bf16 = theirs(torch.float32), theirs(torch.bfloat16)
    assert np.abs(ours.astype(np.float32) - exact).mean() < np.abs(in_bf16 - exact).mean()
    np.testing.assert_allclose(ours.astype(np.float32), in_bf16, atol=4 * 2.0**-7)


SMALL = {"lq": 128, "lk": 128, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
"""An attention whose properties are looked at, one by one."""


def attention(arrays: dict[str, Any], **changes: Any) -> Any:
    return result("flash_attention", {**SMALL, **changes}, arrays)


def far_off(out: Any, arrays: dict[str, Any]) -> bool:
    """Whether a result is nowhere near the reference for these arrays."""
    reference = flash_attention.reference(SMALL, arrays)["out"]
    return flash_attention.KERNEL.tolerance.excess(out, reference) > 10


@pytest.fixture(scope="module")
def small() -> tuple[dict[str, Any], Any]:
    """Arrays of SMALL and what the kernel makes of them."""
    arrays = random_arrays(flash_attention.KERNEL, SMALL, np.random.default_rng(0))
    return arrays, attention(arrays)


def test_attention_padded_to_another_length_leaves_every_bit_of_a_row(
    small: tuple[dict[str, Any], Any],
) -> None:
    """Padded to 256 and to 320 (tiles of 8 rows, not 16), with other numbers in the padding each time."""
    arrays, out = small
    for length, seed in ((256, 1), (320, 2)):
        longer = {"lq": length, "lk": length}
        padded = random_arrays(flash_attention.KERNEL, {**SMALL, **longer}, np.random.default_rng(seed))
        for name, array in arrays.items():
            padded[name][: len(array)] = array
        assert attention(padded, **longer)[:128].tobytes() == out.tobytes()


def test_query_tiles_change_no_bit(small: tuple[dict[str, Any], Any]) -> None:
    arrays, out = small
    assert attention(arrays, lqp=64, num_q_tiles=2).tobytes() == out.tobytes()


def test_no_row_sees_the_future(small: tuple[dict[str, Any], Any]) -> None:
    arrays, out = small
    changed = {name: array.copy() for name, array in arrays.items()}
    changed["k"][70:], changed["v"][70:] = 50, -50
    got = attention(changed)
    assert got[:70].tobytes() == out[:70].tobytes()
    assert (got[70:] != out[70:]).any(axis=1).all()


def test_every_query_head_reads_its_own_kv_head(small: tuple[dict[str, Any], Any]) -> None:
    """KV head 1 serves query heads 2 and 3 and no other; swapped heads are far off."""
    arrays, out = small
    changed = {name: array.copy() for name, array in arrays.items()}
    changed["v"][:, 64:] = 0
    got = attention(changed)
    assert got[:, :128].tobytes() == out[:, :128].tobytes()
    assert (got[:, 128:] == 0).all()
    assert far_off(out, {**arrays, "k": swap(arrays["k"], 1, 2), "v": swap(arrays["v"], 1, 2)})
    assert far_off(out, {**arrays, "q": swap(arrays["q"], 1, 4)})


def test_attention_is_that_of_torch(small: tuple[dict[str, Any], Any]) -> None:
    """torch's attention in f32: the mean error relative to the mean value stays below 0.4 %."""
    torch = pytest.importorskip("torch")
    arrays, out = small
    q, k, v = (
        torch.from_numpy(arrays[n].astype(np.float32)).reshape(128, -1, 64).transpose(0, 1) for n in "qkv"
    )
    k, v = (x.repeat_interleave(2, dim=0) for x in (k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = theirs.transpose(0, 1).reshape(128, 256).numpy()
    assert np.abs(out.astype(np.float32) - exact).mean() < 0.004 * np.abs(exact).mean()


def test_large_scores_stay_finite() -> None:
    """Scores of several hundred: one key takes all the weight, none overflows."""
    arrays = random_arrays(flash_attention.KERNEL, SMALL, np.random.default_rng(3))
    arrays["q"] *= BF16(20)
    arrays["k"] *= BF16(20)
    want = flash_attention.reference(SMALL, arrays)["out"]
    assert flash_attention.KERNEL.tolerance.excess(attention(arrays), want) <= 1


def test_a_kernel_is_built_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    """Also for the next process: nothing of it is in this one."""
    kernel = eltwise_add.build(None, 16)
    built_kernel(kernel)
    remembering.share_objects(own_cache, tmp_path)  # it is linked anew, and the runtime not compiled
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path))
    built_kernel(kernel)
    monkeypatch.setattr(toolchain, "build", None)  # would be called
    assert built_kernel(kernel).path.parent == tmp_path


def test_an_array_of_the_wrong_shape_is_refused() -> None:
    wrong = np.zeros((4, 16))
    with pytest.raises(
        ValueError, match=r"eltwise_add wants a \(8x16 bf16\), the array given has shape \(4, 16\)"
    ):
        run(eltwise_add.build(8, 16), {"a": wrong, "b": wrong})
