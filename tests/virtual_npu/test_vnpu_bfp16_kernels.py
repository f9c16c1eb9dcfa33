# ruff: noqa: E501 - MLIR has long lines
"""aie::mmul of external kernels through block floating point: where it is asked for, and built for it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.virtual_npu.bfp16_model import product

BF16 = ml_dtypes.bfloat16

SOURCE = """
#include <aie_api/aie.hpp>
template <unsigned M, unsigned K, unsigned N>
static void mac(const bfloat16 *a, const bfloat16 *b, float *c) {
  using Block = aie::mmul<M, K, N, bfloat16, bfloat16>;
  Block block(aie::load_v<Block::size_C>(c));
  block.mac(aie::load_v<Block::size_A>(a), aie::load_v<Block::size_B>(b));
  aie::store_v(c, block.template to_vector<float>());
}
extern "C" {
void mac_8x8x8(int32_t mode, const bfloat16 *a, const bfloat16 *b, float *c) {
  aie::set_rounding(aie::rounding_mode(mode));
  mac<8, 8, 8>(a, b, c);
}
void mac_4x8x8(int32_t mode, const bfloat16 *a, const bfloat16 *b, float *c) {
  aie::set_rounding(aie::rounding_mode(mode));
  mac<4, 8, 8>(a, b, c);
}
void mac_8x8x4(int32_t mode, const bfloat16 *a, const bfloat16 *b, float *c) {
  aie::set_rounding(aie::rounding_mode(mode));
  mac<8, 8, 4>(a, b, c);
}
void mul_8x8x8(int32_t mode, const bfloat16 *a, const bfloat16 *b, float *c) {
  aie::set_rounding(aie::rounding_mode(mode));
  aie::mmul<8, 8, 8, bfloat16> block;
  block.mul(aie::load_v<64>(a), aie::load_v<64>(b));
  aie::store_v(c, block.to_vector<float>());
}
}
"""

SHAPES = {"mac_8x8x8": (8, 8, 8), "mac_4x8x8": (4, 8, 8), "mac_8x8x4": (8, 8, 4), "mul_8x8x8": (8, 8, 8)}
EMULATE = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"
OBJECTS = {"asked": f"{EMULATE}=1 ", "plain": "", "refused": f"{EMULATE}=0 "}


def functions(object_name, define):
    """The kernels in an object file of their own, and an entry for each."""
    renames = " ".join(f"{name}={object_name}_{name}" for name in SHAPES)
    text = ""
    for name, (m, k, n) in SHAPES.items():
        types = f"i32, memref<{m}x{k}xbf16>, memref<{k}x{n}xbf16>, memref<{m}x{n}xf32>"
        attributes = (
            f'link_with = "{object_name}.o", link_source = "mmul.cc", link_defines = "{define}{renames}"'
        )
        text += f"""
  func.func private @{object_name}_{name}({types}) attributes {{{attributes}}}
  func.func @run_{object_name}_{name}(%mode: memref<1xi32>, %a: memref<{m}x{k}xbf16>, %b: memref<{k}x{n}xbf16>, %c: memref<{m}x{n}xf32>) {{
    %c0 = arith.constant 0 : index
    %rounding = memref.load %mode[%c0] : memref<1xi32>
    func.call @{object_name}_{name}(%rounding, %a, %b, %c) : ({types}) -> ()
    return
  }}"""
    return text


@pytest.fixture(scope="module", params=["bfp16", "exact"])
def kernels(request, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "mmul.cc").write_text(SOURCE)
    text = "".join(functions(name, define) for name, define in OBJECTS.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_NUMERICS", request.param)
        return program(f"module {{{text}\n}}", kernel_dirs=(folder,)), request.param == "bfp16"


MODES = {
    "floor": np.floor,
    "ceil": np.ceil,
    "positive_inf": lambda x: np.floor(x + 0.5),
    "negative_inf": lambda x: np.ceil(x - 0.5),
    "symmetric_inf": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "symmetric_zero": lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
    "conv_even": np.rint,
    "conv_odd": lambda x: np.where(
        np.abs(x - np.floor(x)) == 0.5, np.floor(x) + (np.floor(x) % 2 == 0), np.rint(x)
    ),
    "symmetric_floor": np.trunc,
    "symmetric_ceil": lambda x: np.sign(x) * np.ceil(np.abs(x)),
}
EVEN = list(MODES).index("conv_even")


def arrays(shape, rng):
    m, k, n = shape
    a = rng.standard_normal((m, k)) * np.exp2(rng.integers(-5, 6, (m, k)))
    return (
        a.astype(BF16),
        rng.standard_normal((k, n)).astype(BF16),
        rng.standard_normal((m, n)).astype(np.float32),
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("object_name", OBJECTS)
def test_blocks_go_through_bfp16_where_kernel_and_build_ask_for_it(kernels, run, object_name, name):
    library, is_bfp16 = kernels
    for seed in range(5):
        a, b, c = arrays(SHAPES[name], np.random.default_rng(seed))
        got = run(library, f"run_{object_name}_{name}", np.array([EVEN], np.int32), a, b, c)[3]
        start = np.zeros_like(c) if name.startswith("mul") else c
        exact = start + a.astype(np.float32) @ b.astype(np.float32)
        if is_bfp16 and object_name == "asked" and name != "mac_8x8x4":
            np.testing.assert_array_equal(got, product(a, b, start))
            assert np.abs(got - exact).max() > 1e-3
        else:
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernels", ["bfp16"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_the_conversion_follows_the_rounding_mode(kernels, run, mode):
    library, _ = kernels
    rng = np.random.default_rng(7)
    for _ in range(10):
        a, b, c = arrays((8, 8, 8), rng)
        a[0, :4] = [127.5, 0.5, -0.5, 1.5]  # ties, and a mantissa that does not fit
        number = np.array([list(MODES).index(mode)], np.int32)
        got = run(library, "run_asked_mac_8x8x8", number, a, b, c)[3]
        np.testing.assert_array_equal(got, product(a, b, c, MODES[mode]))
