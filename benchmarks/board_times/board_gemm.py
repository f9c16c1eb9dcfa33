"""c = a @ b as others' boards ran it: a C++ product in the inner loop, through block floats (8x8x8) or native
(4x8x8), and the cores' rows and columns either way round.

The schedule is that of kernel_builder/kernels/gemm.py. A C++ product takes a core's whole accumulator, so
that has no core ids in its shape here. These programs are timed and not run.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerie.kernel_builder.arguments import DType
from aerie.kernel_builder.buffers import Buffer
from aerie.kernel_builder.dsl import L1, L2, Index, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import KernelModule, require_multiple
from aerie.kernel_builder.values import ExternalFunction

BLOCK = 8
"""Elements of a product's block in k and n."""


@dataclass(frozen=True)
class BoardGemm:
    """How a product is divided. cores: columns by rows of the array; m_by_columns: columns share m, rows n.

    block_rows: 8, or 4 for the native product.
    """

    tile_m: int
    tile_k_l2: int
    tile_k_l1: int
    tile_n: int
    cores: tuple[int, int]
    m_by_columns: bool = True
    block_rows: int = BLOCK
    out: DType = f32

    @property
    def l2_m(self) -> int:
        """Rows of c that all cores compute."""
        return self.tile_m * self.cores[0 if self.m_by_columns else 1]

    @property
    def l2_n(self) -> int:
        """Columns of c that all cores compute."""
        return self.tile_n * self.cores[1 if self.m_by_columns else 0]

    def first_row(self, core: tuple[Index, Index]) -> Index:
        """A core's first row in L2."""
        return core[0 if self.m_by_columns else 1] * self.tile_m

    def tile_of_n(self, core: tuple[Index, Index]) -> Index:
        """The number of a core's tile along n."""
        return core[1 if self.m_by_columns else 0]

    def first_column(self, core: tuple[Index, Index]) -> Index:
        """A core's first column in L2."""
        return self.tile_of_n(core) * self.tile_n

    def rows(self, core: tuple[Index, Index]) -> slice:
        """A core's rows in L2."""
        return slice(self.first_row(core), self.first_row(core) + self.tile_m)

    def columns(self, core: tuple[Index, Index]) -> slice:
        """A core's columns in L2."""
        return slice(self.first_column(core), self.first_column(core) + self.tile_n)


def build_board_gemm(m: int, k: int, n: int, how: BoardGemm) -> KernelModule:
    """a (m, k) and b (k, n) bf16, c (m, n) of `how.out`. Raises IllegalShapeError."""
    for name, extent, tile in (("m", m, how.l2_m), ("k", k, how.tile_k_l2), ("n", n, how.l2_n)):
        require_multiple("board_gemm", name, extent, tile, "the tiles of all cores")
    kernel = Kernel("board_gemm")
    a = kernel.argument("a", (m, k), bf16, Role.INPUT)
    b = kernel.argument("b", (k, n), bf16, Role.WEIGHT)
    c = kernel.argument("c", (m, n), how.out, Role.OUTPUT)
    product = _external(kernel, how)
    with kernel.launch(n // how.l2_n, m // how.l2_m) as (lj, li), kernel.segment("board_gemm_segment"):
        rows = slice(li * how.l2_m, li * how.l2_m + how.l2_m)
        columns = slice(lj * how.l2_n, lj * how.l2_n + how.l2_n)
        l2_a = kernel.alloc(L2, (how.l2_m, how.tile_k_l2), bf16, "l2_a")
        l2_b = kernel.alloc(L2, (how.tile_k_l2, how.l2_n), bf16, "l2_b")
        l2_c = kernel.alloc(L2, (how.l2_m, how.l2_n), how.out, "l2_c")
        slab = (how.tile_n // BLOCK, how.tile_m // how.block_rows, how.block_rows, BLOCK)
        sums = kernel.alloc(L1, slab, f32, "sums")
        _clear(kernel, how, sums)
        for at in kernel.loop(0, k, how.tile_k_l2):
            depth = slice(at, at + how.tile_k_l2)
            kernel.dma(l2_a, a[rows, depth])
            kernel.dma(l2_b, b[depth, columns])
            _accumulate(kernel, how, l2_a, l2_b, sums, product)
        _drain(kernel, how, sums, l2_c)
        kernel.dma(c[rows, columns], l2_c)
    return kernel.finish()


def _external(kernel: Kernel, how: BoardGemm) -> ExternalFunction:
    a = L1((how.tile_k_l1 // BLOCK, how.tile_m // how.block_rows, how.block_rows, BLOCK), bf16)
    b = L1((how.tile_n // BLOCK, how.tile_k_l1 // BLOCK, BLOCK, BLOCK), bf16)
    c = L1((how.tile_n // BLOCK, how.tile_m // how.block_rows, how.block_rows, BLOCK), f32)
    return kernel.external(f"matmul_{how.block_rows}x8x8_bf16_f32", "mm.o", [a, b, c])


def _clear(kernel: Kernel, how: BoardGemm, sums: Buffer) -> None:
    with kernel.herd(*how.cores, name="board_gemm_herd"):
        zero = kernel.constant(0.0, f32, how.block_rows, BLOCK)
        for j in kernel.loop(how.tile_n // BLOCK):
            for i in kernel.loop(how.tile_m // how.block_rows):
                kernel.store(sums[j, i], zero)


def _accumulate(
    kernel: Kernel, how: BoardGemm, l2_a: Buffer, l2_b: Buffer, sums: Buffer, product: ExternalFunction
) -> None:
    """sums += a @ b over one L2 tile of K."""
    m, k, n = how.tile_m // how.block_rows, how.tile_k_l1 // BLOCK, how.tile_n // BLOCK
    with kernel.herd(*how.cores, name="board_gemm_herd") as core:
        l1_a = kernel.alloc(L1, (k, m, how.block_rows, BLOCK), bf16, "l1_a")
        l1_b = kernel.alloc(L1, (n, k, BLOCK, BLOCK), bf16, "l1_b")
        for at in kernel.loop(0, how.tile_k_l2, how.tile_k_l1):
            depth = slice(at, at + how.tile_k_l1)
            of_a = l2_a[how.rows(core), depth].blocks(how.block_rows, BLOCK)
            of_b = l2_b[depth, how.columns(core)].blocks(BLOCK, BLOCK)
            kernel.dma(l1_a, of_a.permute(1, 0, 2, 3))
            kernel.dma(l1_b, of_b.permute(1, 0, 2, 3))
            product(l1_a, l1_b, sums)


def _drain(kernel: Kernel, how: BoardGemm, sums: Buffer, l2_c: Buffer) -> None:
    """l2_c = sums, rounded unless it is f32."""
    m, n = how.tile_m // how.block_rows, how.tile_n // BLOCK
    with kernel.herd(*how.cores, name="board_gemm_herd") as core:
        result = sums
        if how.out is not f32:
            result = kernel.alloc(L1, (n, m, how.block_rows, BLOCK), how.out, "rounded")
            for j in kernel.loop(n):
                for i in kernel.loop(m):
                    kernel.store(result[j, i], kernel.load(sums[j, i]).to(how.out))
        of_c = l2_c[how.rows(core), how.columns(core)].blocks(how.block_rows, BLOCK)
        kernel.dma(of_c.permute(1, 0, 2, 3), result)
