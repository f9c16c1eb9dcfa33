"""Errors published for an NPU come out on the virtual NPU; aerie kernels numerics."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.kernel_builder import published_errors
from aerie.kernel_builder.__main__ import main
from aerie.kernel_builder.kernels import gemm
from aerie.kernel_builder.published_errors import ErrorComparison, PublishedError, compare, product_operands
from aerie.kernel_builder.testing import run
from aerie.virtual_npu.options import BuildOptions

BFP16 = BuildOptions(numerics="bfp16")

NAMED = {row.name: row for row in published_errors.ROWS}
DRAWN_OTHERWISE = ("GEMM 256x64x256, bf16 result", "GEMM 256x256x64, bf16 result")
"""Published with five digits that no other row agrees with: other inputs, it seems. Within 5 % anyway."""

FAST = (
    "GEMM 64x32x720, bf16 result",
    "GEMM 64x720x32, bf16 result",
    "GEMM 192x64x256, bf16 result",
    "GEMM 64x2048x720, bf16 result",
    "GEMM 256x64x256, bf16 result",
    "GEMM 512x512x512, f32 result",
    "GEMM 1024x1024x1024, f32 result",
    "GEMM 512x512x512, f32 result, then cast",
    "EltwiseAdd 2048x2048",
)


def check_published_error(name: str, max_rows: int | None = None) -> None:
    (found,) = compare([NAMED[name]], max_rows)
    assert found.agrees, found
    assert found.same_digits or name in DRAWN_OTHERWISE, found


@pytest.mark.parametrize("name", FAST)
def test_published_errors(name: str) -> None:
    check_published_error(name)


def test_exact_products_have_another_error() -> None:
    """The rows say something: without bfp16 the error is another by orders of magnitude."""
    arrays = product_operands(64, 720, 32)
    want = gemm.exact_product({}, arrays)
    got = run(gemm.KERNEL_F32.build(64, 720, 32), arrays, BuildOptions())["c"]
    assert published_errors.relative_error(got, want) < 1e-6


@pytest.mark.parametrize("spec", [gemm.KERNEL, gemm.KERNEL_F32], ids=lambda spec: spec.name)
def test_bfp16_products_are_the_same_on_any_number_of_threads(spec, monkeypatch) -> None:
    arrays = product_operands(128, 256, 256)
    kernel, results = spec.build(128, 256, 256), []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("VNPU_THREADS", threads)
        results.append(run(kernel, arrays, BFP16)["c"])
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_padding_changes_no_bit_of_a_bfp16_product() -> None:
    arrays = product_operands(128, 256, 128)
    short = {"a": arrays["a"][:64], "b": arrays["b"]}
    got = run(gemm.build(64, 256, 128), short, BFP16)["c"]
    np.testing.assert_array_equal(got, run(gemm.build(128, 256, 128), arrays, BFP16)["c"][:64])


def test_the_environment_chooses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, kernel = product_operands(64, 64, 64), gemm.build(64, 64, 64)
    monkeypatch.setenv("VNPU_NUMERICS", "bfp16")
    emulated = run(kernel, arrays)["c"]
    monkeypatch.delenv("VNPU_NUMERICS")
    np.testing.assert_array_equal(emulated, run(kernel, arrays, BFP16)["c"])
    assert (emulated != run(kernel, arrays)["c"]).any()


@pytest.mark.parametrize(
    ("published", "here", "agrees", "same_digits"),
    [
        ("9.3e-3", 9.349e-3, True, True),
        ("9.3e-3", 9.36e-3, True, False),
        ("9.30e-3", 9.306e-3, True, False),
        ("1.0e-2", 1.049e-2, True, True),
        ("1.0e-2", 1.051e-2, False, False),
        ("1.0e-2", 0.949e-2, False, False),
    ],
)
def test_what_agrees(published: str, here: float, agrees: bool, same_digits: bool) -> None:
    comparison = ErrorComparison("row", published, here)
    assert (comparison.agrees, comparison.same_digits) == (agrees, same_digits)


def rows(*errors: float) -> tuple[PublishedError, ...]:
    def row(error: float) -> PublishedError:
        return PublishedError(f"row {error}", "1.0e-2", 10**6, lambda _: error)

    return tuple(map(row, errors))


def test_command_prints_the_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published_errors, "ROWS", rows(0.0101, 0.01))
    assert main(["numerics"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["row", "published", "here", "ratio", "same", "digits"]
    assert out[2].split() == ["row", "0.0101", "1.0e-2", "1.010e-2", "1.0100", "yes"]
    assert "  FlashAttention 3.8e-2 to 5.5e-2: it keeps softmax statistics" in "\n".join(out[4:])


def test_command_fails_where_an_error_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published_errors, "ROWS", rows(0.0106, 0.01))
    assert main(["numerics", "--size=100"]) == 1
    assert capsys.readouterr().err == (
        "error: row 0.0106: published 1.0e-2, here 1.06e-02; more than 5% apart\n"
    )


def test_command_runs_rows_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.name for row in published_errors.rows_up_to(128)] == [
        "GEMM 64x32x720, bf16 result",
        "GEMM 64x720x32, bf16 result",
    ]
    assert len(published_errors.rows_up_to(4096)) == len(published_errors.ROWS)


@pytest.mark.parametrize("size", ["113", "many", "-5"])
def test_command_refuses_sizes_that_leave_nothing(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["numerics", f"--size={size}"])
    assert stopped.value.code == 2
    message = f"'{size}' leaves no row; give a whole number of 114 or more"
    assert message in capsys.readouterr().err
