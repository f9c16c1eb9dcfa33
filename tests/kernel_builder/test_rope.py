"""RoPE: what it refuses, and that it is Hugging Face's rotation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_builder.arguments import IllegalShapeError
from kernel_builder.kernels import rope
from kernel_builder.testing import run
from virtual_npu.static import check

BF16 = ml_dtypes.bfloat16
HEADS = {"rows": 64, "n_heads": 4, "head_dim": 64}
REFUSED = [
    ({"head_dim": 48}, r"rope: head_dim=48 is no positive multiple of 32 .*; use 32 or 64"),
    ({"n_heads": 0}, r"rope: n_heads=0 is no positive multiple of 1"),
    ({"rows": 20, "herd_x": 8}, r"8 cores \(herd_x\) cannot share 20 rows .*; use 5"),
    ({"rows": None, "herd_x": 8}, r"herd_x=8 cores for the one position of rows=None; use 1"),
    ({"head_dim": 8192}, r"a head of head_dim=8192 does not fit L1, .*; use at most 5280"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_illegal_shapes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        rope.build(**{**HEADS, **changes})


def test_random_cases_and_full_size_fit() -> None:
    rng = np.random.default_rng(7)
    full = [{"rows": rows, "n_heads": n, "head_dim": 64} for rows in (2048, None) for n in (32, 8)]
    wide = [{"rows": 64, "n_heads": 256, "head_dim": 128}]
    for parameters in (*full, *wide, *(rope.random_case(rng) for _ in range(10))):
        check(rope.build(**parameters).module).require()


def table(positions: int, head_dim: int) -> Any:
    frequency = 500000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.outer(np.arange(positions), frequency)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(BF16)


def test_rotation_is_that_of_hugging_face() -> None:
    """transformers' own function in f32 on the same bf16 numbers; theirs in bf16 rounds three times."""
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rows, heads, dim = 32, 4, 64
    x, lut = np.random.default_rng(0).standard_normal((rows, heads * dim)).astype(BF16), table(rows, dim)
    cos, sin = (torch.from_numpy(np.tile(half, 2)) for half in np.split(lut.astype(np.float32), 2, axis=1))
    q = torch.from_numpy(x.astype(np.float32)).reshape(1, rows, heads, dim).transpose(1, 2)

    def theirs(dtype: Any) -> Any:
        turned, _ = apply_rotary_pos_emb(q.to(dtype), q.to(dtype), cos[None].to(dtype), sin[None].to(dtype))
        return turned.transpose(1, 2).reshape(rows, heads * dim).float().numpy()

    ours = run(rope.build(rows, heads, dim), {"x": x, "lut": lut})["out"]
    assert (ours == theirs(torch.float32).astype(BF16)).all()
    exact, in_bf16 = theirs(torch.float32), theirs(torch.bfloat16)
    assert np.abs(ours.astype(np.float32) - exact).mean() < np.abs(in_bf16 - exact).mean()
    np.testing.assert_allclose(ours.astype(np.float32), in_bf16, atol=4 * 2.0**-7)


def test_vector_form_is_a_row_and_rows_do_not_depend_on_their_number() -> None:
    heads, dim = 3, 32
    x, lut = np.random.default_rng(0).standard_normal((24, heads * dim)).astype(BF16), table(24, dim)
    full = run(rope.build(24, heads, dim), {"x": x, "lut": lut})["out"]
    short = run(rope.build(8, heads, dim), {"x": x[:8], "lut": lut[:8]})["out"]
    assert full[:8].tobytes() == short.tobytes()
    row = run(rope.build(None, heads, dim), {"x": x[7], "lut": lut[7]})["out"]
    assert row.tobytes() == full[7].tobytes()
