"""The AIE API on the CPU against numpy: values, roundings, shapes of matrix blocks, and what it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

MODES = ["floor", "ceil", "positive_inf", "negative_inf", "symmetric_inf", "symmetric_zero"]
MODES += ["conv_even", "conv_odd", "symmetric_floor", "symmetric_ceil"]
ROUNDING = {name: code for code, name in enumerate(MODES)}
BF16 = ml_dtypes.bfloat16
Array = np.ndarray[Any, Any]
Compile = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def api(build_cc: Any) -> Any:
    return build_cc(Path(__file__).with_name("probe.cc"))


@pytest.fixture(autouse=True)
def nearest_even(api: Any) -> None:
    api.set_modes(ROUNDING["conv_even"], 0)


def random(lanes: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.array(np.random.default_rng(seed).standard_normal(lanes) * 3, dtype)


def as_f32(array: Array) -> Array:
    return array.astype(np.float32)


BINARY: dict[str, tuple[int, Any, Callable[[Array, Array], Array]]] = {
    "add_bf16": (32, BF16, lambda a, b: a + b),
    "sub_bf16": (16, BF16, lambda a, b: a - b),
    "mul_bf16": (64, BF16, lambda a, b: a * b),
    "mac_f32": (16, np.float32, lambda a, b: a * b + a * a),
    "msc_f32": (16, np.float32, lambda a, b: a * b - b * b),
    "negmul_f32": (8, np.float32, lambda a, b: -(a * b)),
    "max_bf16": (32, BF16, np.maximum),
    "min_f32": (16, np.float32, np.minimum),
    "select_not_ge_bf16": (16, BF16, lambda a, b: np.where(a >= b, a, b)),
    "select_eq_or_first_f32": (16, np.float32, lambda a, b: np.where((a == b) | (np.arange(16) < 2), b, a)),
}


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_and_comparisons(api: Any, name: str) -> None:
    lanes, dtype, expected = BINARY[name]
    a, b = random(lanes, dtype, 1), random(lanes, dtype, 2)
    out = np.zeros(lanes, dtype)
    getattr(api, name)(a, b, out)
    np.testing.assert_allclose(
        as_f32(out), as_f32(expected(as_f32(a), as_f32(b)).astype(dtype)), rtol=2e-7, atol=1e-6
    )


A, B = np.arange(32), np.arange(100, 132)
LANES = {
    "zip_first": np.stack([A.reshape(8, 4), B.reshape(8, 4)], 1).ravel()[:32],
    "zip_second": np.stack([A.reshape(8, 4), B.reshape(8, 4)], 1).ravel()[32:],
    "zip_unzip": B,
    "up_fill": np.r_[B[-5:], A[:-5]],
    "down_fill": np.r_[A[5:], B[:5]],
    "reverse_lanes": A[::-1],
    "up_rotate": np.roll(A, 7),
    "down_rotate": np.roll(A, -7),
    "up_replicate": np.r_[[0] * 3, A[:-3]],
    "down_replicate": np.r_[A[3:], [31] * 3],
    "transpose_4x8": A.reshape(4, 8).T.ravel(),
    "even_odd_chunks": np.r_[A.reshape(8, 2, 2)[:, 0].ravel(), A.reshape(8, 2, 2)[:, 1].ravel()],
}


@pytest.mark.parametrize("name", LANES)
def test_lanes_move_to_where_the_api_says(api: Any, name: str) -> None:
    out = np.zeros(32, np.int16)
    two = name.startswith("zip") or name.endswith("_fill")
    getattr(api, name)(
        *([np.array(A, np.int16), np.array(B, np.int16)] if two else [np.array(A, np.int16)]), out
    )
    np.testing.assert_array_equal(out, LANES[name])


@pytest.mark.parametrize(
    ("name", "lanes", "chunk", "dtype"),
    [
        ("even_odd_4_f32", 32, 4, np.float32),
        ("even_odd_2_f32", 16, 2, np.float32),
        ("even_odd_1_f32", 8, 1, np.float32),
        ("even_odd_1_i32", 16, 1, np.int32),
    ],
)
def test_chunks_of_32_bits_are_taken_by_turns(
    api: Any, name: str, lanes: int, chunk: int, dtype: Any
) -> None:
    v, out = random(lanes, dtype), np.zeros(lanes, dtype)
    getattr(api, name)(v, out)
    np.testing.assert_array_equal(out, v.reshape(-1, 2, chunk).swapaxes(0, 1).ravel())


def test_parts_select_and_masks(api: Any) -> None:
    v = random(32, BF16)
    out = np.zeros(32, BF16)
    api.swap_halves(v, out)
    np.testing.assert_array_equal(out, np.roll(v, 16))
    a, b = np.array([5, -1] * 8, np.int32), np.array([3, 4] * 8, np.int32)
    chosen = np.zeros(16, np.int32)
    api.select_lt_i32(a, b, chosen)
    np.testing.assert_array_equal(chosen, [5, 4] * 8)
    assert api.mask_words(0b10001) == (0b110000 | 2 << 16)


def bf16_bits(value: float) -> tuple[int, bool]:
    """The bits of the bf16 below |value| and whether value is negative."""
    bits = int(np.float32(value).view(np.uint32))
    return (bits & 0x7FFFFFFF) >> 16, bool(bits >> 31)


def expected_rounding(mode: str, value: float) -> int:
    """bf16 bits of value by the definition of the mode."""
    base, negative = bf16_bits(value)
    rest = int(np.float32(value).view(np.uint32)) & 0xFFFF
    tie, over = rest == 0x8000, rest > 0x8000
    up = {
        "floor": negative and rest > 0,
        "ceil": not negative and rest > 0,
        "positive_inf": over or (tie and not negative),
        "negative_inf": over or (tie and negative),
        "symmetric_inf": over or tie,
        "symmetric_zero": over,
        "conv_even": over or (tie and base % 2 == 1),
        "conv_odd": over or (tie and base % 2 == 0),
        "symmetric_floor": False,
        "symmetric_ceil": rest > 0,
    }[mode]
    return (base + up) | (0x8000 if negative else 0)


@pytest.mark.parametrize("mode", ROUNDING)
def test_rounding_mode_governs_conversion_to_bf16(api: Any, mode: str) -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x3F80FFFF, 0x00000001, 0x7F7FFFFF]
    values = np.array(np.array([*bits * 2, *(b | 0x80000000 for b in bits * 2)], np.uint32)).view(np.float32)
    out, scalar = np.zeros(32, np.uint16), np.zeros(1, np.uint16)
    api.set_modes(ROUNDING[mode], 0)
    api.f32_to_bf16(values, out)
    np.testing.assert_array_equal(out, [expected_rounding(mode, v) for v in values])
    for value, lane in zip(values, out, strict=True):
        api.scalar_to_bf16(np.array([value], np.float32), scalar)
        assert scalar[0] == lane


def test_a_core_starts_with_floor_and_constants_are_rounded_to_nearest(api: Any) -> None:
    assert api.aie_host_exchange_modes(0) == ROUNDING["conv_even"]
    assert api.rounding() == ROUNDING["floor"]
    out = np.zeros(1, BF16)
    api.constant_to_bf16(out)
    assert out[0] == BF16(1 / 3)
    assert out[0] > np.float32(1 / 3)


def test_nan_and_infinity_survive_rounding(api: Any) -> None:
    values, out = np.array([np.nan, np.inf, -np.inf, 0.0] * 8, np.float32), np.zeros(32, BF16)
    api.f32_to_bf16(values, out)
    np.testing.assert_array_equal(as_f32(out), values)


def test_broadcast_keeps_the_sign_of_zero(api: Any) -> None:
    out = np.ones(16, np.float32)
    api.spread_scalar(np.array([-0.0], np.float32), out)
    assert (out == 0).all()
    assert np.signbit(out).all()


def test_exp2_is_the_nearest_bf16_and_exact_for_integers(api: Any) -> None:
    x = np.array(
        np.r_[np.linspace(-130, 130, 4000), np.arange(-126, 128), [np.inf, -np.inf], [-1e30] * 16][:4256],
        np.float32,
    )
    out = np.zeros(x.size, BF16)
    api.exp2_lanes(x, out, x.size)
    with np.errstate(over="ignore"):
        exact = np.exp2(x.astype(np.float64)).astype(np.float32)
    exact[exact < 2.0**-126] = 0
    normal = (exact > 2.0**-125) & np.isfinite(exact) & (exact < 2.0**127)
    np.testing.assert_allclose(as_f32(out)[normal], exact[normal], rtol=2.0**-7.999)
    whole = normal & (x == np.round(x))
    np.testing.assert_array_equal(as_f32(out)[whole], exact[whole])
    assert out[-1] == 0
    assert np.isinf(as_f32(out)[x == np.inf]).all()


def test_exp2_is_within_its_error_of_the_nearest(api: Any) -> None:
    """Rounded from a value that is at most 2^-22 away; a rounding to the wrong side would be 2^-9 away."""
    x = np.linspace(-2, 2, 2_000_000, dtype=np.float32)
    out, exact = np.zeros(x.size, BF16), np.exp2(x.astype(np.float64))
    api.exp2_lanes(x, out, x.size)
    least, most = ((exact * (1 + error)).astype(np.float32).astype(BF16) for error in (-(2.0**-22), 2.0**-22))
    assert ((least <= out) & (out <= most)).all()
    assert (least == most).mean() > 0.999, "mostly one alone is right"


def test_functions_of_one_variable(api: Any) -> None:
    x = np.array(np.linspace(0.1, 5, 16), np.float32)
    f32, half, bf = (np.zeros(n, t) for n, t in ((16, np.float32), (8, np.float32), (16, BF16)))
    api.inverse_f32(x, f32)
    np.testing.assert_allclose(f32, 1 / x, rtol=1e-7)
    api.root_f32(x, half)
    np.testing.assert_allclose(half, np.sqrt(x[:8]), rtol=1e-7)
    api.tanh_lanes(x, bf)
    np.testing.assert_array_equal(bf, np.tanh(x).astype(BF16))
    api.scaled_and_shifted(x, f32)
    np.testing.assert_allclose(f32, 2 * x + 1, rtol=1e-7)
    wide, out = np.array(np.linspace(0.1, 5, 32), BF16), np.zeros(32, BF16)
    api.inverse_bf16(wide, out)
    np.testing.assert_array_equal(out, (1 / as_f32(wide)).astype(BF16))
    api.inverse_root_bf16(wide, out)
    np.testing.assert_array_equal(out, (1 / np.sqrt(as_f32(wide))).astype(BF16))


@pytest.mark.parametrize(("suffix", "dtype"), [("f32", np.float32), ("bf16", BF16), ("i32", np.int32)])
def test_magnitudes(api: Any, suffix: str, dtype: Any) -> None:
    values, out = np.r_[-0.0, random(31)].astype(dtype), np.zeros(32, dtype)
    getattr(api, f"magnitude_{suffix}")(values, out)
    np.testing.assert_array_equal(out, np.abs(values))
    assert not np.signbit(as_f32(out)).any()


def test_reductions(api: Any) -> None:
    v, out = random(16), np.zeros(5, np.float32)
    api.sums(v, out)
    np.testing.assert_allclose(out, [v.sum(), v.max(), v.min(), v.sum(), 2 * v.sum()], rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"), [("floor", [2, -3]), ("conv_even", [2, -2]), ("symmetric_inf", [3, -3])]
)
def test_integers_are_shifted_rounded_and_saturated(api: Any, mode: str, expected: list[int]) -> None:
    a, out = np.array([40, -40, 1 << 24, -(1 << 24)] * 4, np.int32), np.zeros(16, np.int16)
    api.set_modes(ROUNDING[mode], 1)
    api.shift_down(a, out, 4)
    assert list(out[:4]) == [*expected, 32767, -32768]
    api.set_modes(ROUNDING[mode], 3)
    api.shift_down(a, out, 4)
    assert out[3] == -32767
    api.set_modes(ROUNDING[mode], 0)
    api.shift_down(a, out, 4)
    assert out[2] == 0


def test_fixed_point(api: Any) -> None:
    x, fixed, back = (
        np.array([1.25, -0.5, 1e20, -3.3] * 4, np.float32),
        np.zeros(16, np.int32),
        np.zeros(16, np.float32),
    )
    api.fixed_and_back(x, fixed, back, 4)
    assert list(fixed[:4]) == [20, -8, 2**31 - 1, -53]
    assert list(back[:4]) == [1.25, -0.5, np.float32(2**31 / 16), -53 / 16]


def test_unaligned_and_floor_accesses(api: Any) -> None:
    a, out = np.array(np.arange(48), BF16), np.zeros(48, BF16)
    api.unaligned_and_floor(a, out)
    np.testing.assert_array_equal(out, np.r_[3:19, 16:32, 16:32])


def test_iterators_walk_a_buffer(api: Any) -> None:
    a, out = np.array(np.arange(48), BF16), np.zeros(48, BF16)
    api.double_by_iterators(a, out)
    np.testing.assert_array_equal(out, 2 * as_f32(a))


MMULS = [
    *((f"mmul_{shape}", BF16, np.float32) for shape in ("8x8x8", "8x8x4", "4x8x8", "4x8x4", "8x1x8")),
    ("mmul_f32_4x8x4", np.float32, np.float32),
    ("mmul_i8_8x8x8", np.int8, np.int32),
    ("mmul_i16_4x4x8", np.int16, np.int32),
]


@pytest.mark.parametrize(("name", "dtype", "result"), MMULS)
def test_block_products(api: Any, name: str, dtype: Any, result: Any) -> None:
    m, k, n = map(int, name.split("_")[-1].split("x"))
    a, b = (np.array(np.round(random(size, np.float32, size) * 5), dtype) for size in (m * k, k * n))
    out = np.zeros(m * n, result)
    getattr(api, name)(a, b, out)
    product = a.astype(np.float64).reshape(m, k) @ b.astype(np.float64).reshape(k, n)
    np.testing.assert_array_equal(out.reshape(m, n), 2 * product)


REFUSED = {
    "aie::vector<bfloat16, 4> v;": "AIE2P vectors are a power of two of lanes and at least 128 bits wide",
    "aie::vector<float, 12> v;": "AIE2P vectors are a power of two of lanes and at least 128 bits wide",
    "aie::vector<double, 8> v;": "double and 64-bit integers do not exist on the core",
    "aie::accum<accfloat, 2> a;": "AIE2P accumulators have a power of two of lanes: accfloat 4 to 128",
    "aie::accum<double, 8> a;": "accumulators of this host subset are accfloat, acc32 and acc64",
    "aie::mmul<4, 4, 4, bfloat16> m;": "AIE2P has no aie::mmul of this shape for these types",
    "aie::mmul<16, 8, 8, bfloat16> m;": "bfloat16 8x8x4, 4x8x8, 4x8x4, 8x1x8, 8x8x8",
    "aie::mmul<8, 8, 8, float> m;": "float 4x8x4, 4x1x4, 4x1x8",
    "auto v = aie::exp2<float>(aie::zeros<float, 16>());": "aie::exp2 gives bfloat16 on AIE2P",
    "auto v = aie::exp2<bfloat16>(aie::zeros<bfloat16, 16>());": "aie::exp2 takes float lanes on AIE2P",
    "auto v = aie::tanh<bfloat16>(aie::zeros<bfloat16, 16>());": "aie::tanh takes float lanes on AIE2P",
    "auto v = aie::zeros<float, 16>().extract<32>(0);": "a part is not larger than the vector",
    "auto v = aie::zeros<acc32, 16>().to_vector<float>();": "use aie::to_fixed and aie::to_float",
}


def test_what_the_core_does_not_have_is_refused_by_name(compile_cc: Compile, tmp_path: Path) -> None:
    """One compile of everything that must not compile; each refusal is in what the compiler says."""
    source = tmp_path / "refused_bad.cc"
    lines = [f"void f{i}() {{ {statement} }}" for i, statement in enumerate(REFUSED)]
    source.write_text("#include <aie_api/aie.hpp>\n" + "\n".join(lines) + "\n")
    done = compile_cc(source, tmp_path / "none.so", "-fsyntax-only")
    assert done.returncode != 0
    missing = [text for text in REFUSED.values() if text not in done.stderr]
    assert not missing, done.stderr


def test_a_misaligned_access_stops_the_run(compile_cc: Compile, tmp_path: Path) -> None:
    source, program = tmp_path / "misaligned_bad.cc", tmp_path / "misaligned"
    source.write_text(
        "#include <aie_api/aie.hpp>\nalignas(64) bfloat16 data[64];\n"
        "int main() { return int(float(aie::load_v<16>(data + 1).get(0))); }\n"
    )
    assert compile_cc(source, program, "-DAIE_HOST_CHECK_ALIGNMENT").returncode == 0
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "which is not a multiple of 32: AIE2P would access another address" in done.stderr
