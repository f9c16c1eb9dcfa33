# ruff: noqa: E501 - MLIR has long lines
"""Which loops become one matrix product (virtual_npu.codegen.passes.products), and that it gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as kept
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu
from aerie.kernel_builder import gemm_tiles
from aerie.kernel_builder.kernels import gemm
from aerie.virtual_npu import BuildOptions, cache
from tests.virtual_npu.instruction_sets import SETS

BF16 = ml_dtypes.bfloat16
STATEMENT = "vnpu::multiply_add("
FAST, WATCHED, SLOW = BuildOptions(), BuildOptions(checks=True), BuildOptions(fast=False)


@dataclass(frozen=True)
class Form:
    """C (m, n) += A (m, k) B (k, n) on a herd of 2 x 2 tiles, in blocks; `transposed`: blocks of B are n x k."""

    block: tuple[int, int, int]
    transposed: bool = False
    counts: tuple[int, int, int] = (2, 3, 2)
    steps: int = 2
    flat: bool = False
    """Whether the loop of k carries flat vectors."""

    def text(self, **changes: str) -> str:
        """The program; changes: names of its pieces, and what stands there instead."""
        text = TEMPLATE
        for name, piece in {**self._pieces(), **changes}.items():
            text = text.replace(f"<{name}>", piece)
        return text

    def _pieces(self) -> dict[str, str]:
        (r, s, t), (i, j, p) = self.block, self.counts
        m, n, k = 2 * i * r, 2 * j * s, self.steps * p * t
        b_block = f"{s}x{t}" if self.transposed else f"{t}x{s}"
        l1_b = f"{j}x{p}x{b_block}"
        # Blocks of B: p to the next rows, j to the next columns; inside, as B lies or turned.
        offsets, extents, strides = (
            ("%column, %at", f"%c{s}, %c{t}", f"%c1, %c{n}")
            if self.transposed
            else ("%at, %column", f"%c{t}, %c{s}", f"%c{n}, %c1")
        )
        carried = f"vector<{r * s}xf32>" if self.flat else f"vector<{r}x{s}xf32>"
        cast = f"vector.shape_cast %{{}} : vector<{r}x{s}xf32> to {carried}"
        uncast = f"vector.shape_cast %{{}} : {carried} to vector<{r}x{s}xf32>"
        numbers = {0, 1, 2, r, s, t, i, j, p, m, n, k, p * t, r * k, t * n}
        return {
            "constants": "\n".join(f"%c{x} = arith.constant {x} : index" for x in sorted(numbers)),
            "A": f"memref<{m}x{k}xbf16>", "B": f"memref<{k}x{n}xbf16>", "C": f"memref<2x2x{j}x{i}x{r}x{s}xf32>",
            "l1_a": f"memref<{p}x{i}x{r}x{t}xbf16, 2>", "l1_b": f"memref<{l1_b}xbf16, 2>",
            "acc": f"memref<2x2x{j}x{i}x{r}x{s}xf32, 2>",
            "rows": f"affine_map<(d0) -> (d0 * {i * r})>", "columns": f"affine_map<(d0) -> (d0 * {j * s})>",
            "k": f"%c{k}", "pt": f"%c{p * t}", "i": f"%c{i}", "j": f"%c{j}", "p": f"%c{p}",
            "a_side": f"[%c0, %c0, %row, %at] [%c{p}, %c{i}, %c{r}, %c{t}] [%c{t}, %c{r * k}, %c{k}, %c1]",
            "b_side": f"[%c0, %c0, {offsets}] [%c{j}, %c{p}, {extents}] [%c{s}, %c{t * n}, {strides}]",
            "b_map": "(n, k)" if self.transposed else "(k, n)",
            "va": f"vector<{r}x{t}xbf16>", "vb": f"vector<{b_block}xbf16>", "vc": f"vector<{r}x{s}xf32>", "carried": carried,
            "before": cast.format("c"), "inside": uncast.format("sum"), "after": cast.format("made"), "end": uncast.format("all"),
            "kind": "add", "more": "", "between": "", "grid": "%c2, %sy=%c2", "tile": "%tx, %ty", "c_at": "%acc",
        }  # fmt: skip

    def operands(self, seed: int = 1) -> list[np.ndarray]:
        (r, s, t), (i, j, p) = self.block, self.counts
        rng = np.random.default_rng(seed)
        a, b = (
            rng.standard_normal(shape).astype(BF16)
            for shape in ((2 * i * r, self.steps * p * t), (self.steps * p * t, 2 * j * s))
        )
        return [a, b, rng.standard_normal((2, 2, j, i, r, s)).astype(np.float32)]


TEMPLATE = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> <b_map>>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @product(%x: <A>, %y: <B>, %z: <C>) {
  air.launch () in () args(%a=%x, %b=%y, %c=%z) : <A>, <B>, <C> {
    air.segment @s args(%sa=%a, %sb=%b, %sc=%c) : <A>, <B>, <C> {
      %c2 = arith.constant 2 : index
      %acc = memref.alloc() : <acc>
      air.dma_memcpy_nd (%acc[] [] [], %sc[] [] []) : (<acc>, <C>)
      air.herd @h tile (%tx, %ty) in (%sx=<grid>) args(%ha=%sa, %hb=%sb, %hc=<c_at>) : <A>, <B>, <acc> {
        <constants>
        %zero = arith.constant 0.0 : bf16
        %none = arith.constant 0.0 : f32
        %l1_a = memref.alloc() : <l1_a>
        %l1_b = memref.alloc() : <l1_b>
        %row = affine.apply <rows>(%tx)
        scf.for %at = %c0 to <k> step <pt> {
          %column = affine.apply <columns>(%ty)
          air.dma_memcpy_nd (%l1_a[] [] [], %ha<a_side>) : (<l1_a>, <A>)
          air.dma_memcpy_nd (%l1_b[] [] [], %hb<b_side>) : (<l1_b>, <B>)
          <between>
          scf.for %j = %c0 to <j> step %c1 {
            scf.for %i = %c0 to <i> step %c1 {
              %c = vector.transfer_read %hc[<tile>, %j, %i, %c0, %c0], %none {in_bounds = [true, true]} : <acc>, <vc>
              %begin = <before>
              %all = scf.for %p = %c0 to <p> step %c1 iter_args(%sum = %begin) -> (<carried>) {
                %before = <inside>
                %va = vector.transfer_read %l1_a[%p, %i, %c0, %c0], %zero {in_bounds = [true, true]} : <l1_a>, <va>
                %vb = vector.transfer_read %l1_b[%j, %p, %c0, %c0], %zero {in_bounds = [true, true]} : <l1_b>, <vb>
                %made = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<<kind>>} %va, %vb, %before : <va>, <vb> into <vc>
                %next = <after>
                scf.yield %next : <carried>
              }
              %end = <end>
              vector.transfer_write %end, %hc[<tile>, %j, %i, %c0, %c0] {in_bounds = [true, true]} : <vc>, <acc>
              <more>
            }
          }
        }
        memref.dealloc %l1_a : <l1_a>
        memref.dealloc %l1_b : <l1_b>
      }
      air.dma_memcpy_nd (%sc[] [] [], %acc[] [] []) : (<C>, <acc>)
      memref.dealloc %acc : <acc>
    }
  }
  return
}"""

FORMS = {
    "8x8x8": Form((8, 8, 8)),
    "8x8x8 in flat vectors": Form((8, 8, 8), flat=True),
    "8x8x8 transposed": Form((8, 8, 8), transposed=True),
    "4x8x8": Form((4, 8, 8), counts=(3, 2, 4)),
    "8x8x4": Form((8, 4, 8), counts=(1, 5, 2)),
    "4x4x8 transposed": Form((4, 4, 8), transposed=True, flat=True),
    "one step": Form((8, 8, 8), counts=(4, 4, 1), steps=1),
}


def emitted(text: str, options: BuildOptions = FAST) -> str:
    return virtual_npu.emit(text, options=options).text


@pytest.mark.parametrize("form", FORMS)
def test_a_herd_of_products_is_one(program, run, form):
    """The same bits recognised and not: a program with checks makes the same sums, block by block."""
    text = FORMS[form].text()
    code = emitted(text)
    assert code.count(STATEMENT) == 1
    assert "contract<" not in code
    assert not any(STATEMENT in emitted(text, options) for options in (WATCHED, SLOW))
    operands = FORMS[form].operands()
    made = run(program(text), "product", *operands)[2]
    np.testing.assert_array_equal(made, run(program(text, options=WATCHED), "product", *operands)[2])
    slow = run(program(text, options=SLOW), "product", *operands)[2]
    np.testing.assert_allclose(made, slow, rtol=1e-5, atol=1e-5)


GOES = {
    "two blocks": (Form((8, 8, 8)), 1),
    "three": (Form((8, 8, 8), counts=(2, 3, 3)), 1),
    "four": (Form((8, 8, 8), counts=(2, 3, 4)), 4),
    "eight, flat": (Form((4, 8, 8), counts=(2, 3, 8), flat=True), 4),
    "two of sixteen steps, transposed": (Form((4, 8, 16), transposed=True), 2),
    "one of 32": (Form((8, 8, 32)), 1),
}


@pytest.mark.parametrize("name", ["native", pytest.param("AMX emulated", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", GOES)
def test_blocks_that_a_loop_sums_together(program, run, case, name):
    """As many blocks as AMX sums at once, whether the loops are a product or run as they stand."""
    form, blocks = GOES[case]
    rows, columns, steps = form.block
    assert f"{blocks * steps}, {columns}}});" in emitted(form.text())
    keeper = f"vnpu::SummedTogether<{blocks}, {rows}, {columns}, {steps}> v_go;"
    assert (keeper in emitted(form.text(), WATCHED)) == (blocks > 1)
    assert "SummedTogether" not in emitted(form.text(), BuildOptions(numerics="bfp16"))
    operands = form.operands()
    with SETS[name].chosen():
        made, watched = (
            run(program(form.text(), options=options), "product", *operands)[2] for options in (FAST, WATCHED)
        )
    np.testing.assert_array_equal(made, watched)


@pytest.mark.parametrize("piece", ["inside", "after"])
def test_a_sum_that_something_else_reads_is_not_summed_in_one_go(program, run, piece):
    """It would see a sum of four blocks where the text has one of each."""
    form, value = Form((8, 8, 8), counts=(2, 3, 4)), {"inside": "%sum", "after": "%made"}[piece]
    text = form.text(**{piece: f"arith.negf {value} : vector<8x8xf32>"})
    assert "SummedTogether" not in emitted(text, WATCHED)
    a, b, c = form.operands()
    want = c
    for at in range(0, a.shape[1], 8):
        product = a[:, at : at + 8].astype(np.float32) @ b[at : at + 8].astype(np.float32)
        block = product.reshape(2, 2, 8, 2, 3, 8).transpose(0, 3, 4, 1, 2, 5)
        want = block - want if piece == "inside" else -(want + block)
    np.testing.assert_allclose(run(program(text), "product", a, b, c)[2], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_threads_change_no_bit(program, run, monkeypatch, threads):
    form = Form((8, 8, 8), counts=(8, 16, 4), steps=4)
    library, operands = program(form.text()), form.operands()
    monkeypatch.setenv("VNPU_THREADS", "3")
    want = run(library, "product", *operands)[2]
    monkeypatch.setenv("VNPU_THREADS", threads)
    np.testing.assert_array_equal(run(library, "product", *operands)[2], want)


@kept
def held(most: int, m: int = 16, n: int = 16, **options: Any) -> str:
    """A GEMM on one core, (m, 32) by (32, n), whose loop over k makes at most so many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_tiles, "MAX_ACCUMULATORS", most)
        return gemm.build(m, 32, n, herd_m=1, herd_n=1, tile_k_l1=16, **options).text


@pytest.mark.parametrize(
    ("m", "n", "blocks"), [(16, 16, 4), (8, 32, 4), (32, 8, 4), (24, 16, 3), (24, 40, 3), (8, 8, 1)]
)
@pytest.mark.parametrize("b_transposed", [False, True])
def test_blocks_that_share_factors_are_the_product_that_they_are_one_by_one(m, n, blocks, b_transposed):
    apart, together = (held(most, m, n, b_transposed=b_transposed) for most in (1, 4))
    assert (apart.count("vector.contract"), together.count("vector.contract")) == (1, blocks)
    calls = [[line for line in emitted(text).splitlines() if STATEMENT in line] for text in (apart, together)]
    assert calls[0] == calls[1]
    assert calls[0]


@pytest.mark.parametrize("options", [WATCHED, BuildOptions(numerics="bfp16")], ids=["checks", "bfp16"])
def test_blocks_that_share_factors_have_the_bits_that_they_have_one_by_one(program, run, options):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((16, 32), (32, 16)))
    libraries = [program(held(most), options=options) for most in (1, 4)]
    one, four = (run(library, "gemm", a, b, np.zeros((16, 16), BF16))[2] for library in libraries)
    np.testing.assert_array_equal(one, four)


def test_a_factor_is_made_block_floats_once_for_all_products_by_it():
    code = emitted(held(4), BuildOptions(numerics="bfp16"))
    made = [code.count(f"const vnpu::Bfp16{side}") for side in ("Left<8>", "Right")]
    assert (made, code.count("vnpu::contract(")) == ([2, 2], 4)


FORM = FORMS["8x8x8"]
PIECES = FORM._pieces()


def test_loops_in_a_tile_are_a_product_where_the_tile_has_more_to_do(program, run):
    text = FORM.text(between="memref.assume_alignment %l1_a, 64 : " + PIECES["l1_a"])
    assert emitted(text).count(STATEMENT) <= 1
    operands = FORM.operands()
    want = run(program(FORM.text()), "product", *operands)[2]
    np.testing.assert_array_equal(run(program(text), "product", *operands)[2], want)


def other(old: str, new: str) -> str:
    """The program with another piece of text."""
    text = FORM.text()
    assert old in text
    return text.replace(old, new)


def rewired(old: str, new: str) -> str:
    """Four blocks that share factors, with another piece of text."""
    text = held(4)
    assert text.count(old) == 1
    return text.replace(old, new)


LEFT_ALONE: dict[str, Any] = {
    "a block by the wrong factor": partial(rewired, "%17, %19, %29", "%16, %19, %29"),
    "a block by its neighbour's sum": partial(rewired, "%17, %19, %29", "%17, %19, %26"),
    "a sum that takes another's place": partial(rewired, "scf.yield %22, %25, %28, %31", "scf.yield %25, %22, %28, %31"),
    "blocks of other layouts": partial(rewired, "(d0, d1)>], iterator_types = [\"parallel\", \"parallel\", \"reduction\"], kind = #vector.kind<add>} %17, %19, %29", "(d1, d0)>], iterator_types = [\"parallel\", \"parallel\", \"reduction\"], kind = #vector.kind<add>} %17, %19, %29"),
    "blocks that are written apart": partial(rewired, "vector.transfer_write %35, %accumulator_1[%hx, %hy, %at_5, %at_4", "vector.transfer_write %35, %accumulator_1[%hx, %hy, %at_5, %i_3"),
    "another kind": FORM.text(kind="maximumf"),
    "a sum that leaves the loops elsewhere": FORM.text(more=f"vector.transfer_write %end, %hc[%tx, %ty, %j, %c0, %c0, %c0] {{in_bounds = [true, true]}} : {PIECES['vc']}, {PIECES['acc']}"),
    "blocks that overlap": other("%hc[%tx, %ty, %j, %i, %c0, %c0] {", "%hc[%tx, %ty, %i, %i, %c0, %c0] {"),
    "lanes that may lie outside": other("in_bounds = [true, true]} : " + PIECES["l1_a"], "in_bounds = [true, false]} : " + PIECES["l1_a"]),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_no_product_is_left_alone(case):
    form = LEFT_ALONE[case]
    assert STATEMENT not in emitted(form if isinstance(form, str) else form())


def test_a_factor_of_products_in_two_layouts_is_converted_in_each_by_itself():
    code = emitted(LEFT_ALONE["blocks of other layouts"](), BuildOptions(numerics="bfp16"))
    assert (code.count("vnpu::contract<1, 8, 8, 8>("), code.count("vnpu::contract(")) == (3, 1)


def test_tiles_that_share_their_sums_are_not_one_product():
    """Each by itself is one; together they would race, as the program has them do."""
    code = emitted(FORM.text(tile="%c0, %c0"))
    assert STATEMENT in code.split("static void herd_h")[1].split("static void segment")[0]
    assert code.count(STATEMENT) == 1


def test_a_buffer_that_others_use_is_copied(program, run):
    """What a DMA brought is read a second time, after the loops: the copy must stay."""
    read = f"%again = vector.transfer_read %l1_b[%c0, %c0, %c0, %c0], %zero {{in_bounds = [true, true]}} : {PIECES['l1_b']}, {PIECES['vb']}"
    write = f"vector.transfer_write %again, %l1_a[%c0, %c0, %c0, %c0] {{in_bounds = [true, true]}} : {PIECES['vb']}, {PIECES['l1_a']}"
    text = FORM.text(between=f"{read}\n{write}")
    code = emitted(text)
    assert code.count("vnpu::dma(") == emitted(FORM.text()).count("vnpu::dma(") + 2
    operands = FORM.operands()
    got = run(program(text), "product", *operands)[2]
    np.testing.assert_array_equal(got, run(program(text, options=WATCHED), "product", *operands)[2])


def test_a_transfer_that_leaves_its_source_is_still_refused(program, run):
    """Nothing is recognised whose bounds are not certain: the copy says so at run time."""
    text = FORM.text(rows="affine_map<(d0) -> (d0 * 32)>")
    assert STATEMENT not in emitted(text).split("scf.for %j")[0]
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match="access pattern reaches"):
        run(program(text), "product", *FORM.operands())


def test_the_knob_turns_it_off_and_makes_another_program(monkeypatch):
    def built_for() -> tuple[BuildOptions, Any]:
        options = BuildOptions.from_knobs()
        return options, cache.ProgramSource(FORM.text(), "<string>", (), options).plan_key

    monkeypatch.delenv("AERIE_PLAIN", raising=False)
    fast, fast_key = built_for()
    monkeypatch.setenv("AERIE_PLAIN", "products")
    slow, slow_key = built_for()
    assert STATEMENT in emitted(FORM.text(), fast)
    assert STATEMENT not in emitted(FORM.text(), slow)
    assert fast_key != slow_key
