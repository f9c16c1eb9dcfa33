"""Our kernels written out by hand as aircc's passes leave them give the bits of the kernels themselves.

compiled_forms/KERNEL_FORM.mlir holds a function of that name with the arguments of the kernel. Its first
lines say which passes make such a form and what it shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from aerie import air_dialect, virtual_npu
from aerie.kernel_builder.arguments import Role
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Array, KernelModule, Parameters
from aerie.virtual_npu import cache

FORMS = Path(__file__).parent / "compiled_forms"
SHAPES: dict[str, Parameters] = {
    "eltwise_add": {"rows": 2, "cols": 8192, "herd_x": 2},
    "swiglu": {"rows": 2, "cols": 16384, "herd_x": 2},
    "rope": {"rows": 8, "n_heads": 2, "head_dim": 32, "herd_x": 2},
    "flash_attention": {
        **{"lq": 64, "lk": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16},
        **{"lqp": 16, "lkp": 8, "num_q_tiles": 2, "num_stages": 2},
    },
    "gemm": {
        **{"m": 32, "k": 64, "n": 16, "tile_m": 8, "tile_n": 8, "tile_k_l2": 32, "tile_k_l1": 8},
        **{"herd_m": 2, "herd_n": 2},
    },
    "rms_norm": {"rows": 32, "cols": 32, "eps": 0.25, "herd_x": 2},
    "gemv": {"m": 16, "k": 64, "herd_m": 2, "tile_m": 4, "m_input": 2},
}
PATHS = sorted(FORMS.glob("*.mlir"))
CASES = [path.stem for path in PATHS]


def kernel_of(form: str) -> str:
    return next(kernel for kernel in SHAPES if form.startswith(f"{kernel}_"))


@pytest.fixture(scope="module")
def built() -> Callable[..., tuple[KernelModule, virtual_npu.Library]]:
    """built(kernel, checks=False) -> the kernel, and one library with it and all its forms."""

    @functools.cache
    def build(name: str, checks: bool = False) -> tuple[KernelModule, virtual_npu.Library]:
        kernel = all_kernels()[name].build(**SHAPES[name])
        text = together(air_dialect.parse(kernel.text), *forms_of(name))
        source = cache.ProgramSource(text, "<string>", (), virtual_npu.BuildOptions(checks=checks))
        return kernel, cache.load(source)

    return build


def together(whole: ModuleOp, *others: ModuleOp) -> str:
    """One program of several; a function that more than one declares is declared once."""
    names = {op.sym_name.data for op in whole.ops if isinstance(op, FuncOp)}
    for op in [op for other in others for op in other.ops]:
        if not (isinstance(op, FuncOp) and op.sym_name.data in names):
            op.detach()
            whole.body.block.add_op(op)
    return air_dialect.print_module(whole)


def forms_of(kernel: str) -> list[ModuleOp]:
    return [
        air_dialect.parse(path.read_text(), path.name) for path in PATHS if kernel_of(path.stem) == kernel
    ]


def inputs(kernel: KernelModule, seed: int) -> list[Array]:
    """Random normal numbers for what the kernel reads, NaN for what it writes."""
    rng = np.random.default_rng(seed)
    return [
        np.full(a.shape, np.nan, a.dtype.numpy)
        if a.role is Role.OUTPUT
        else rng.standard_normal(a.shape).astype(a.dtype.numpy)
        for a in kernel.arguments
    ]


@pytest.mark.parametrize("form", CASES)
def test_form_gives_the_bits_of_the_kernel(form, built, run):
    kernel, library = built(kernel_of(form))
    arrays = inputs(kernel, seed=len(form))
    want = run(library, kernel.name, *arrays)
    got = run(library, form, *arrays)
    for argument, one, other in zip(kernel.arguments, want, got, strict=True):
        np.testing.assert_array_equal(other.view(np.uint8), one.view(np.uint8), err_msg=argument.name)
    assert not any(np.isnan(array.astype(np.float32)).any() for array in want)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SHAPES)
def test_forms_are_clean_with_checks_in_any_legal_order(name, seed, built, run):
    kernel, library = built(name, checks=True)
    unchecked = run(built(name)[1], name, *inputs(kernel, seed))
    results = {"without checks": [array.tobytes() for array in unchecked]}
    for entry in library.entries:
        arrays = inputs(kernel, seed)
        pointers = [array.ctypes.data for array in arrays]
        done = library.run(entry, pointers, virtual_npu.RunOptions(seed=seed))
        assert not done.notes, entry
        results[entry] = [array.tobytes() for array in arrays]
    assert {entry for entry in results if results[entry] != results[name]} == set()
