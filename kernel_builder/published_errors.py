"""Errors that were measured on an NPU, and those of the same computations on the virtual NPU.

The table is mlir-air's kernel registry (programming_examples/kernel_registry/details at e972f294, measured on
NPU2 in June 2026). Its error is mean |actual - expected| / mean |expected| over the whole result, with
`expected` computed in f32 and converted to the result's type (python/air/backend/xrt_runner.py). Inputs are
generated here as its programs do, with the same numpy generators and seeds, so an error should agree in its
last printed digit. Errors do not depend on tiles, so our tiles may differ from those measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from aerie.kernel_builder.arguments import bf16
from aerie.kernel_builder.dsl import remove_rounding_calls
from aerie.kernel_builder.kernels import eltwise_add, gemm, narrow
from aerie.kernel_builder.spec import Array, KernelModule
from aerie.kernel_builder.testing import run
from aerie.virtual_npu.options import BuildOptions

TOLERANCE = 0.05
"""How far an error may be from the published one, relative to it."""

BOARD = BuildOptions(numerics="bfp16", rounding="floor")
"""The virtual NPU with everything that is known about the device's numbers."""

Product = tuple[int, int, int, str]
"""m, k, n, and the error as published."""

F32_OUT: tuple[Product, ...] = (
    (512, 512, 512, "9.3e-3"),
    (1024, 1024, 1024, "9.5e-3"),
    (2048, 2048, 512, "9.3e-3"),
    (2048, 2048, 2048, "9.3e-3"),
    (2048, 2048, 8192, "9.3e-3"),
    (2048, 8192, 2048, "9.3e-3"),
    (4096, 4096, 4096, "9.4e-3"),
)
"""GEMM_bf16_in_fp32_out.json: all rows; both methods of code generation have the same errors."""

ROUNDED: tuple[Product, ...] = (
    (64, 32, 720, "9.26e-3"),
    (64, 720, 32, "9.01e-3"),
    (192, 64, 256, "9.39e-3"),
    (192, 256, 64, "9.45e-3"),
    (192, 64, 320, "9.42e-3"),
    (192, 320, 64, "9.27e-3"),
    (256, 64, 256, "9.5708e-3"),
    (256, 256, 64, "9.6173e-3"),
    (64, 720, 320, "9.43e-3"),
    (256, 320, 320, "9.4e-3"),
    (64, 720, 720, "9.45e-3"),
    (64, 720, 960, "9.39e-3"),
    (64, 960, 720, "9.47e-3"),
    (64, 960, 768, "9.46e-3"),
    (64, 1440, 720, "9.29e-3"),
    (64, 1440, 768, "9.34e-3"),
    (64, 720, 1600, "9.44e-3"),
    (256, 960, 320, "9.4e-3"),
    (64, 720, 2048, "9.43e-3"),
    (64, 2048, 720, "9.36e-3"),
    (64, 2048, 768, "9.28e-3"),
    (512, 512, 512, "9.3e-3"),
    (64, 720, 4096, "9.44e-3"),
    (2048, 896, 128, "9.4e-3"),
    (256, 960, 960, "9.5e-3"),
    (1024, 768, 768, "9.5e-3"),
    (256, 960, 2560, "9.4e-3"),
    (256, 2560, 960, "9.4e-3"),
    (64, 12288, 960, "9.5e-3"),
    (2048, 1536, 256, "9.3e-3"),
    (1024, 1024, 1024, "9.5e-3"),
    (2048, 2048, 256, "9.3e-3"),
    (2048, 896, 896, "9.4e-3"),
    (2048, 1024, 1024, "9.4e-3"),
    (2048, 2048, 512, "9.3e-3"),
    (1024, 768, 3072, "9.4e-3"),
    (1024, 3072, 768, "9.4e-3"),
    (2048, 3584, 512, "9.44e-3"),
    (2048, 2560, 1024, "9.4e-3"),
    (2048, 2048, 2048, "9.3e-3"),
    (2048, 2048, 8192, "9.3e-3"),
    (2048, 8192, 2048, "9.3e-3"),
    (4096, 4096, 4096, "9.4e-3"),
)
"""GEMM_bf16_in_bf16_out.json, method `drain`, all rows: the cores that computed the product round it."""

CAST: tuple[Product, ...] = (
    (512, 512, 512, "9.7e-3"),
    (1024, 1024, 1024, "9.9e-3"),
    (2048, 4096, 1024, "9.87e-3"),
    (2048, 3584, 3584, "9.88e-3"),
)
"""The same file, method `fused-cast`, some rows: a second launch rounds, on cores that start with floor."""

SUM_ERROR = "1.9e-3"
"""EltwiseAdd_bf16.md, for every length: bf16 sums, rounded by cores that start with floor."""

NOT_COMPARED: Mapping[str, str] = {
    "FlashAttention 3.8e-2 to 5.5e-2": "it keeps softmax statistics and accumulator in bf16; ours are f32",
    "SiLU_Mul 1.0e-2, GELU 8.4e-3": "the accuracy of the core's tanh and exp2 tables is not published",
    "RMSNorm 4.2e-3 to 4.6e-3": "its kernel and ours round in different places",
    "RoPE 2.4e-3 to 2.8e-3": "its kernel and ours round in different places",
    "GEMM 1.0e-2 to 1.9e-2, method `direct`": "it rounds its partial sums to bf16; ours stay f32",
    "GEMV 1e-6 and less": "no matrix product: multiply-adds of single bf16 numbers are exact, here as there",
}
"""Other errors of the registry, and why no number here can be compared with them."""


@dataclass(frozen=True)
class PublishedError:
    """One published error. work: its multiply-adds (or elements), which decide how long `measure` takes.

    measure(rows): the error here, over so many rows of the result at most, or over all for None.
    """

    name: str
    published: str
    work: int
    measure: Callable[[int | None], float]


@dataclass(frozen=True)
class ErrorComparison:
    """A published error, as text, and the measured error of the virtual NPU."""

    name: str
    published: str
    measured: float

    @property
    def ratio(self) -> float:
        """The measured error divided by the published one."""
        return self.measured / float(self.published)

    @property
    def agrees(self) -> bool:
        """Whether the two agree within TOLERANCE."""
        return abs(self.ratio - 1) <= TOLERANCE

    @property
    def same_digits(self) -> bool:
        """Whether the measured error, rounded to as many digits, equals the published one."""
        digits = len(self.published.partition("e")[0].partition(".")[2])
        return float(f"{self.measured:.{digits}e}") == float(self.published)


def rows_up_to(size: int) -> list[PublishedError]:
    """The rows with at most size**3 multiply-adds."""
    return [row for row in ROWS if row.work <= size**3]


def compare(rows: Iterable[PublishedError], max_rows: int | None = None) -> Iterator[ErrorComparison]:
    """Measure the rows of the table, one after the other, over `max_rows` rows of each result at most."""
    return (ErrorComparison(row.name, row.published, row.measure(max_rows)) for row in rows)


def relative_error(actual: Array, expected: Array) -> float:
    """mean |actual - expected| / mean |expected|."""
    exact = expected.astype(np.float64)
    return float(np.abs(actual.astype(np.float64) - exact).mean() / np.abs(exact).mean())


def product_operands(m: int, k: int, n: int) -> dict[str, Array]:
    """a (m, k) and b (k, n): normal numbers over sqrt(k) in bf16, as both GEMM programs draw them."""
    rng = np.random.RandomState(42)
    a, b = (rng.randn(*shape) / np.sqrt(k) for shape in ((m, k), (k, n)))
    return {"a": a.astype(bf16.numpy), "b": b.astype(bf16.numpy)}


def _product_error(
    build: Callable[..., KernelModule], result: str, m: int, k: int, n: int, rows: int | None
) -> float:
    """The relative error of one GEMM, over its first `rows` rows. result: `f32`, `bf16`, or `cast` for f32
    that a second launch rounds.
    """
    arrays = product_operands(m, k, n)
    m = min(m, rows or m)
    arrays["a"] = arrays["a"][:m]
    expected = gemm.exact_product({}, arrays)
    actual = run(build(m, k, n), arrays, BOARD)["c"]
    if result == "cast":
        actual = run(_as_upstream(narrow.build(m, n)), {"x": actual}, BOARD)["out"]
    return relative_error(actual, expected if result == "f32" else expected.astype(bf16.numpy))


def sum_error(rows: int, cols: int) -> float:
    """The relative error of bf16 sums of standard normal numbers."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal((rows, cols), dtype=np.float32).astype(bf16.numpy) for name in ("a", "b")
    }
    expected = eltwise_add.reference({}, arrays)["out"]
    return relative_error(run(_as_upstream(eltwise_add.build(rows, cols)), arrays, BOARD)["out"], expected)


def _as_upstream(kernel: KernelModule) -> KernelModule:
    """The kernel with the rounding mode in which cores start: upstream's kernels do not set another."""
    return replace(kernel, module=remove_rounding_calls(kernel.module))


def _products(
    description: str, build: Callable[..., KernelModule], result: str, shapes: Iterable[Product]
) -> list[PublishedError]:
    return [
        PublishedError(
            f"GEMM {m}x{k}x{n}, {description}",
            published,
            m * k * n,
            lambda rows, m=m, k=k, n=n: _product_error(build, result, m, k, n, rows),  # type: ignore[misc]
        )
        for m, k, n, published in shapes
    ]


ROWS: tuple[PublishedError, ...] = (
    *_products("f32 result", gemm.KERNEL_F32.build, "f32", F32_OUT),
    *_products("bf16 result", gemm.build, "bf16", ROUNDED),
    *_products("f32 result, then cast", gemm.KERNEL_F32.build, "cast", CAST),
    PublishedError("EltwiseAdd 2048x2048", SUM_ERROR, 2048 * 2048, lambda _: sum_error(2048, 2048)),
)
"""Every row that can be compared."""
