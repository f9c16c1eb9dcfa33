"""What is compared, on which numbers, and who wrote an element."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.board.compare.items import (
    LOUD_CHANNELS,
    ComparisonItem,
    all_items,
    choose,
    plan_item,
    random_arguments,
)
from aerie.board.compare.virtual_results import NO_WRITER, describe_writers, has_products, writers
from aerie.common.errors import UsageError
from aerie.kernel_builder.arguments import WRITTEN_ROLES
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.builder import build_kernel
from aerie.multi_launch_builder.programs import PLANS as SIX

VARIANTS = ["rms_gemms_rope_ar8", "cached_attn_ar8_cl512", "o_ffn_ar8", "lm_head_ar8"]
VARIANTS += ["rms_gemms_rope_ar64", "cached_attn_ar64_cl512", "o_ffn_ar64"]
PLANS = [*SIX, *VARIANTS]


def test_all_of_them() -> None:
    items = all_items()
    assert {item.name for item in items if item.kind == "kernel"} == set(all_kernels())
    assert [item.name for item in items if item.kind == "program"] == PLANS
    assert len(items) == sum(len(spec.cases) for spec in all_kernels().values()) + len(PLANS)


def test_names_choose() -> None:
    assert choose(["gemm[2]", "o_ffn"]) == (
        ComparisonItem("kernel", "gemm", 2),
        ComparisonItem("program", "o_ffn"),
    )
    assert choose(["gemm"], first_cases=True) == (ComparisonItem("kernel", "gemm"),)
    assert len(choose(["gemm"])) == len(all_kernels()["gemm"].cases)
    assert len(choose([], first_cases=True)) == len(all_kernels()) + len(PLANS)
    assert choose(["kernels"], first_cases=True) == tuple(
        ComparisonItem("kernel", name) for name in all_kernels()
    )
    assert choose(["programs"]) == tuple(ComparisonItem("program", name) for name in PLANS)
    assert choose(["gemm[1]", "gemm[1]"], first_cases=True) == (ComparisonItem("kernel", "gemm", 1),)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no kernel or program is called 'gem'; there are: .*eltwise_add, .*o_ffn"
    ):
        choose(["gem"])


def test_a_kernel_alone_is_compiled_as_the_programs_compile_it() -> None:
    flags = {option.flag for option in plan_item(ComparisonItem("kernel", "flash_attention")).options}
    assert flags == {option.flag for option in plan_item(ComparisonItem("program", "flash_attn")).options}
    assert any(flag.startswith("--omit-ping-pong-transform") for flag in flags)


BITS_OF_F32 = {("gated_delta_rule", "rows")}
"""Arguments of bf16 that hold halves of f32 numbers: a half by itself may be no number."""


@pytest.mark.parametrize("item", all_items(), ids=str)
def test_numbers_for_every_argument_that_is_read(item: ComparisonItem) -> None:
    plan = plan_item(item)
    arrays, again, other = random_arguments(plan, 1), random_arguments(plan, 1), random_arguments(plan, 2)
    read = {a.name: a for a in plan.arguments if a.role not in WRITTEN_ROLES}
    assert set(arrays) == set(read)
    for name, array in arrays.items():
        assert (array.shape, array.dtype) == (read[name].shape, np.dtype(read[name].dtype.numpy))
        assert np.isfinite(array.astype(np.float32)).all() or (item.name, name) in BITS_OF_F32
        assert array.tobytes() == again[name].tobytes()
    assert any(array.tobytes() != other[name].tobytes() for name, array in arrays.items())


def test_numbers_like_a_layers() -> None:
    arrays = random_arguments(plan_item(ComparisonItem("program", "rms_gemms_rope")), 7)
    x = arrays["x"].astype(np.float32)
    assert np.abs(x[:, ::LOUD_CHANNELS]).mean() > 5 * np.abs(x[:, 1::LOUD_CHANNELS]).mean()
    table = arrays["rope_lut"].astype(np.float32)
    assert np.abs(np.hypot(table[:, :32], table[:, 32:]) - 1).max() < 0.01
    assert abs(arrays["attn_norm"].astype(np.float32).mean() - 1) < 0.05


def test_kernels_that_numerics_can_change() -> None:
    changed = {
        name: has_products(build_kernel(plan_item(ComparisonItem("kernel", name)).launches[0], name))
        for name in ("gemm", "gemm_f32", "eltwise_add", "rope", "rms_norm", "narrow")
    }
    assert {name for name, may in changed.items() if may} == {"gemm", "gemm_f32"}


ALLOWANCES = [spec.allowance for spec in all_kernels().values() if spec.allowance]


def test_allowances_have_reasons() -> None:
    assert len(ALLOWANCES) >= 5
    assert all(len(allowance.reason) > 40 for allowance in ALLOWANCES)


def test_an_allowance_sees_one_wrong_row() -> None:
    """A mean over a whole result would not."""
    want = np.random.default_rng(0).standard_normal((256, 64))
    got = want.copy()
    got[7] = 0
    for allowance in ALLOWANCES:
        assert allowance.mask(got, want)[7].any()
        assert not allowance.mask(want, want).any()
        assert allowance.mask(np.full_like(want, np.nan), want).all()


def test_the_writer_of_each_argument() -> None:
    """Rows in turn to the cores of a herd of 8; columns in the second of two launch iterations."""
    kernel = all_kernels()["swiglu"].build(rows=3, cols=48)
    owners = writers(kernel, "out")
    assert [np.unique(row).tolist() for row in owners] == [[0], [4], [8]]
    wrong = np.zeros(owners.shape, bool)
    wrong[1] = True
    assert describe_writers(kernel, "out", wrong, (1, 0)) == (
        "written by core (1, 0) alone; the worst by core (1, 0), iteration 0"
    )
    wrong[:] = True
    assert describe_writers(kernel, "out", wrong, (2, 5)).startswith(
        "written by all 3 cores; the worst by core (2, 0)"
    )


def test_the_writer_through_l2_and_in_several_iterations() -> None:
    kernel = all_kernels()["gemm"].build(16, 16, 16, tile_m=8, tile_n=8, tile_k_l1=8, herd_m=1, herd_n=2)
    owners = writers(kernel, "c")
    assert owners[:8, :8].max() == owners[:8, :8].min() == 0
    assert set(np.unique(owners)) == {0, 1, 32, 33}
    wrong = np.zeros(owners.shape, bool)
    wrong[8:, 8:] = True
    assert describe_writers(kernel, "c", wrong, (9, 9)) == (
        "written by core (0, 1) alone in launch iteration 1 (of 2); the worst by core (0, 1), iteration 1"
    )
    assert (owners < NO_WRITER).all()
