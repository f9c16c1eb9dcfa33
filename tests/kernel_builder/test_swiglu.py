"""SwiGLU: what it refuses, and how near it is to Hugging Face's in bf16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_builder.arguments import IllegalShapeError
from kernel_builder.kernels import swiglu
from kernel_builder.testing import random_arrays, run
from virtual_npu.static import check

BF16 = ml_dtypes.bfloat16
REFUSED = [
    ({"rows": 8, "cols": 100}, r"swiglu: cols=100 is no positive multiple of 16 .*; use 96 or 112"),
    ({"rows": 20, "cols": 64, "herd_x": 8}, r"swiglu: 8 cores \(herd_x\) cannot share 20 rows .*; use 5"),
    ({"rows": None, "cols": 48, "herd_x": 2}, r"cannot share 3 blocks of 16 elements evenly .*; use 3"),
    ({"rows": 0, "cols": 64}, r"swiglu: 0 rows leave nothing to do; use at least 1"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_illegal_shapes_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        swiglu.build(**parameters)


def test_random_cases_and_full_size_fit() -> None:
    rng = np.random.default_rng(7)
    full = [{"rows": 2048, "cols": 8192}, {"rows": None, "cols": 8192}, {"rows": 128, "cols": 768}]
    for parameters in (*full, *(swiglu.random_case(rng) for _ in range(10))):
        check(swiglu.build(**parameters).module).require()


def test_activation_is_that_of_hugging_face() -> None:
    """torch's silu and product in bf16: nine results in ten have the same bits, the rest are neighbours."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    gate, up = ((rng.standard_normal((16, 768)) * 4).astype(BF16) for _ in range(2))
    tensors = [torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16) for a in (gate, up)]
    theirs = (torch.nn.functional.silu(tensors[0]) * tensors[1]).float().numpy()
    ours = run(swiglu.build(16, 768), {"gate": gate, "up": up})["out"].astype(np.float32)
    assert np.mean(ours != theirs) < 0.12
    np.testing.assert_allclose(ours, theirs, rtol=swiglu.KERNEL.tolerance.rtol)


def test_vector_form_is_a_row_and_rows_do_not_depend_on_their_number() -> None:
    arrays = random_arrays(swiglu.KERNEL, {"rows": 24, "cols": 96}, np.random.default_rng(2))
    full = run(swiglu.build(24, 96), arrays)["out"]
    short = run(swiglu.build(8, 96), {name: a[:8] for name, a in arrays.items()})["out"]
    assert full[:8].tobytes() == short.tobytes()
    row = run(swiglu.build(None, 96), {name: a[7] for name, a in arrays.items()})["out"]
    assert row.tobytes() == full[7].tobytes()


def test_gate_and_up_are_not_interchangeable() -> None:
    arrays = random_arrays(swiglu.KERNEL, {"rows": 8, "cols": 96}, np.random.default_rng(2))
    got = run(swiglu.build(8, 96), {"gate": arrays["up"], "up": arrays["gate"]})["out"]
    assert swiglu.KERNEL.tolerance.excess(got, swiglu.reference({}, arrays)["out"]) > 1
