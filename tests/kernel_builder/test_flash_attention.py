"""FlashAttention: what it refuses, and the properties that the rest of the system stands on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from air_dialect.ops import ChannelGetOp, ChannelPutOp
from kernel_builder.arguments import IllegalShapeError
from kernel_builder.kernels import flash_attention as fa
from kernel_builder.testing import random_arrays, run
from virtual_npu.static import check

BF16 = ml_dtypes.bfloat16
SMALL = {"lq": 128, "lk": 128, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
REFUSED = [
    ({"n_heads": 5}, r"n_heads=5 is no positive multiple of 2 \(every KV head .*; use 4 or 6"),
    ({"n_kv_heads": 0}, r"n_kv_heads=0 is no positive multiple of 1"),
    ({"head_dim": 60}, r"head_dim=60 is no positive multiple of 8 \(a panel has 8 columns\); use 56 or 64"),
    ({"num_stages": 5}, r"num_stages=5 rows of cores, the array has 4; use 1 to 4"),
    ({"num_q_tiles": 9}, r"num_q_tiles=9 columns of cores, the array has 8; use 1 to 8"),
    ({"lk": 96}, r"lk=96 is no multiple of the K/V tile of 64 rows; pad to 128, or give lkp=48"),
    ({"lk": 100}, r"lk=100 is no multiple of the K/V tile of 64 rows; pad to 128$"),
    ({"lkp": 20}, r"lkp=20 is no positive multiple of 8 \(a matrix block has 8 rows\); use 16 or 24"),
    ({"lkp": 48}, r"lk=128 is no positive multiple of 48 .*; use 96 or 144"),
    ({"lq": 100}, r"lq=100 is no positive multiple of 8 .*; use 96 or 104"),
    ({"lqp": 48}, r"lq=128 is no positive multiple of 48 \(lqp, the rows of a launch\); use 96 or 144"),
    ({"lqp": 32, "num_q_tiles": 8}, r"lqp=32 is no positive multiple of 64 \(8 rows for 8 cores\); use 64"),
    ({"lqp": 128, "num_q_tiles": 1}, r"128 query rows and lkp=64 at head_dim=64 take .* a core has 63488; "),
    (
        {"lq": 65536, "lqp": 64, "num_q_tiles": 8},
        r"makes 1024 blocks of lqp=64 rows, .* an lq of at most 16320",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_illegal_shapes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalShapeError, match="flash_attention: .*" + message):
        fa.build(**{**SMALL, **changes})


@pytest.mark.parametrize("length", [64, 128, 192, 256, 512, 1024, 2048])
@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "head_dim"), [(4, 2, 64), (32, 8, 64), (24, 8, 128), (3, 1, 32)]
)
def test_shapes_of_models_fit_the_device(length: int, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
    check(fa.build(length, length, n_heads, n_kv_heads, head_dim).module).require()


def test_l1_count_is_that_of_preflight() -> None:
    shape = fa.build(256, 256, 2, 1, 64)
    (usage,) = (u for u in check(shape.module).usages if "L1 bytes" in u.resource)
    assert usage.used == fa.l1_bytes(32, 64, 64) + 1024


def test_random_cases_fit() -> None:
    rng = np.random.default_rng(7)
    for _ in range(15):
        check(fa.build(**fa.random_case(rng)).module).require()


@pytest.mark.parametrize("length", [64, 128, 2048])
def test_kv_tiles_do_not_depend_on_the_length(length: int) -> None:
    text = fa.build(length, length, 2, 1, 64).text
    assert "ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64" in text
    assert f"@kv_in [{min(fa.STAGES, length // 64)}]" in text


@pytest.mark.parametrize(("head_dim", "lkp"), [(64, 64), (32, 64), (128, 32)])
def test_a_cascade_carries_whole_buffers_of_one_type(head_dim: int, lkp: int) -> None:
    module = fa.build(256, 256, 2, 1, head_dim, lkp=lkp).module
    ends = [op for op in module.walk() if isinstance(op, ChannelPutOp | ChannelGetOp)]
    sent, taken = (
        [op.memref for op in ends if isinstance(op, kind) and op.chan_name == "partial"]
        for kind in (ChannelPutOp, ChannelGetOp)
    )
    assert [x.type for x in sent] == [x.type for x in taken]
    assert len(sent) == 2


@pytest.fixture(scope="module")
def small() -> tuple[dict[str, Any], Any]:
    """Arrays of SMALL and what the kernel makes of them."""
    arrays = random_arrays(fa.KERNEL, SMALL, np.random.default_rng(0))
    return arrays, run(fa.build(**SMALL), arrays)["out"]


def test_padding_to_another_length_leaves_every_bit_of_a_row(small: tuple[dict[str, Any], Any]) -> None:
    """Padded to 256 and to 320 (tiles of 8 rows, not 16), with other numbers in the padding each time."""
    arrays, out = small
    for length, seed in ((256, 1), (320, 2)):
        longer = {**SMALL, "lq": length, "lk": length}
        padded = random_arrays(fa.KERNEL, longer, np.random.default_rng(seed))
        for name, array in arrays.items():
            padded[name][: len(array)] = array
        assert run(fa.build(**longer), padded)["out"][:128].tobytes() == out.tobytes()


def test_query_tiles_change_no_bit(small: tuple[dict[str, Any], Any]) -> None:
    arrays, out = small
    assert run(fa.build(**SMALL, lqp=64, num_q_tiles=2), arrays)["out"].tobytes() == out.tobytes()


def test_no_row_sees_the_future(small: tuple[dict[str, Any], Any]) -> None:
    arrays, out = small
    changed = {name: array.copy() for name, array in arrays.items()}
    changed["k"][70:], changed["v"][70:] = 50, -50
    got = run(fa.build(**SMALL), changed)["out"]
    assert got[:70].tobytes() == out[:70].tobytes()
    assert (got[70:] != out[70:]).any(axis=1).all()


def test_every_query_head_reads_its_own_kv_head(small: tuple[dict[str, Any], Any]) -> None:
    """KV head 1 serves query heads 2 and 3 and no other; a swap of the two KV heads is far off."""
    arrays, out = small
    changed = {name: array.copy() for name, array in arrays.items()}
    changed["v"][:, 64:] = 0
    got = run(fa.build(**SMALL), changed)["out"]
    assert got[:, :128].tobytes() == out[:, :128].tobytes()
    assert (got[:, 128:] == 0).all()
    swapped = {**arrays, "k": np.roll(arrays["k"], 64, axis=1), "v": np.roll(arrays["v"], 64, axis=1)}
    assert fa.KERNEL.tolerance.excess(out, fa.reference(SMALL, swapped)["out"]) > 10


def test_a_swapped_query_head_fails(small: tuple[dict[str, Any], Any]) -> None:
    arrays, out = small
    heads = np.split(arrays["q"], 4, axis=1)
    swapped = {**arrays, "q": np.concatenate([heads[1], heads[0], *heads[2:]], axis=1)}
    assert fa.KERNEL.tolerance.excess(out, fa.reference(SMALL, swapped)["out"]) > 10


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
    arrays = random_arrays(fa.KERNEL, SMALL, np.random.default_rng(3))
    arrays["q"] *= BF16(20)
    arrays["k"] *= BF16(20)
    got = run(fa.build(**SMALL), arrays)["out"]
    assert fa.KERNEL.tolerance.excess(got, fa.reference(SMALL, arrays)["out"]) <= 1
