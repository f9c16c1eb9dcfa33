"""The DSL: what it writes, and what it refuses at the line that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aerie.air_dialect import parse, print_module
from aerie.kernel_builder import dsl
from aerie.kernel_builder.arguments import DslError, i1
from aerie.kernel_builder.dsl import L1, L2, L3, Kernel, Role, bf16, contract, f32, fma, i32
from aerie.kernel_builder.kernels import eltwise_add
from aerie.kernel_builder.testing import run


class Sketch(Kernel):
    """A kernel with two arguments, and its regions opened in one go."""

    def __init__(self) -> None:
        super().__init__("sketch")
        self.x = self.argument("x", (64, 64), bf16, Role.INPUT)
        self.out = self.argument("out", (64, 64), bf16, Role.OUTPUT)


def in_herd(write) -> str:
    """The text of a sketch whose 4x2 herd `write(k, tx, ty)` fills."""
    k = Sketch()
    with k.launch(), k.segment("seg"), k.herd(4, 2, name="herd") as (tx, ty):
        write(k, tx, ty)
    text = k.finish().text
    assert print_module(parse(text)) == text
    return text


def test_values_of_outer_regions_arrive_through_args() -> None:
    def write(k: Sketch, tx, ty) -> None:
        k.dma(k.alloc(L1, (8, 64), bf16), k.x[tx * 8 : tx * 8 + 8, :])

    text = in_herd(write)
    assert "air.launch () in () args(%x_1=%x)" in text
    assert "air.segment @seg args(%x_2=%x_1)" in text
    assert "air.herd @herd tile (%hx, %hy) in (%hsx=%c4, %hsy=%c2) args(%x_3=%x_2)" in text
    assert "affine_map<()[s0] -> ((s0 * 8))> ()[%hx]" in text


def test_unused_arguments_are_not_passed_in() -> None:
    text = in_herd(lambda k, tx, ty: k.dma(k.alloc(L1, (64, 64), bf16), k.x))
    assert "%out_1" not in text


def test_launch_ids_reach_the_herd() -> None:
    k = Sketch()
    with k.launch(2, 2) as (i, j), k.segment(), k.herd(4, 1) as (tx, _):
        k.dma(k.alloc(L1, (8, 32), bf16), k.x[i * 32 + tx * 8 : i * 32 + tx * 8 + 8, j * 32 : j * 32 + 32])
    text = k.finish().text
    assert "(s0 * 32) + (s1 * 8)" in text
    assert "args(%x_3=%x_2, %lx_2=%lx_1, %ly_2=%ly_1) : memref<64x64xbf16>, index, index" in text


def test_the_same_index_is_computed_once_per_region() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (8, 64), bf16)
        k.dma(near, k.x[tx * 8 : tx * 8 + 8, :])
        k.dma(k.out[tx * 8 : tx * 8 + 8, :], near)

    assert in_herd(write).count("affine.apply") == 1


def test_buffers_end_with_their_region() -> None:
    def write(k: Sketch, tx, ty) -> None:
        for row in k.loop(0, 8, 2):
            k.dma(k.alloc(L1, (2, 64), bf16, "near"), k.x[row : row + 2, :])

    body = in_herd(write).split("scf.for")[1]
    assert body.index("memref.alloc") < body.index("memref.dealloc") < body.index("}")


@pytest.mark.parametrize(("stop", "loops"), [(2, 0), (1, 0), (4, 1), (0, 1)])
def test_one_trip_may_be_its_body_alone(stop: int, loops: int) -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (64,), bf16)
        for row in k.loop(0, stop, 2, unwraps=True):
            k.dma(near, k.x[row + tx, :])

    text = in_herd(write)
    assert text.count("scf.for") == loops
    assert text.count("air.dma_memcpy_nd") == 1


def test_carried_values_become_iter_args() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (64,), bf16)
        total = k.carried(k.constant(0.0, f32, 16))
        for j in k.loop(0, 64, 16, carry=[total]):
            part = k.load(near[j : j + 16]).to(f32)
            total.set(fma(part, part, total.value))
        k.store(near[0], (total.value.reduce("add") * 0.5 + 1e-5).rsqrt().to(bf16))

    text = in_herd(write)
    assert "iter_args(" in text
    assert "vector.reduction <add>" in text


def test_conditions_on_tile_ids_are_affine_and_others_are_not() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (64,), bf16)
        with k.when((tx == 0) & (ty < 1)):
            k.store(near[0:16], k.constant(1.0, bf16, 16))
        with k.otherwise():
            k.store(near[0:16], k.constant(2.0, bf16, 16))
        for j in k.loop(0, 64, 16):
            with k.when(j + tx >= 16):
                k.store(near[j : j + 16], k.constant(3.0, bf16, 16))
        with k.when(k.load(near[0]) > 0.5):
            k.store(near[0], k.constant(0.0, bf16))

    text = in_herd(write)
    assert "affine.if affine_set<()[s0, s1] : (s0 == 0" in text
    assert "} else {" in text
    assert text.count("scf.if") == 2
    assert "arith.cmpi sge" in text


def test_channels_and_parallel_points() -> None:
    k = Sketch()
    c = k.channel("feed", 4, 2)
    with k.launch(), k.segment():
        l2 = k.alloc(L2, (64, 64), bf16)
        k.dma(l2, k.x)
        with k.parallel(4, 2) as (i, j):
            k.put(c[i, j], l2[i * 16 : i * 16 + 16, j * 32 : j * 32 + 32].blocks(8, 8))
        with k.herd(4, 2) as (tx, ty):
            near = k.alloc(L1, (16, 32), bf16)
            k.get(c[tx, ty], near)
    text = k.finish().text
    assert 'air.channel @feed [4, 2] {channel_type = "npu_dma_stream"}' in text
    assert "scf.parallel" in text
    assert "air.channel.put @feed[" in text
    assert "air.channel.get @feed[%hx, %hy]" in text
    assert print_module(parse(text)) == text


def test_external_functions() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (64,), bf16)
        f = k.external("f", "k.o", [L1((64,), bf16), i32, f32], source="g.cc", defines={"N": 64, "f": "g"})
        f(near, tx * 16 + 3, 2.0)
        f(near, 7, k.constant(0.5, f32))

    text = in_herd(write)
    assert "func.func private @f(memref<64xbf16, 2>, i32, f32)" in text
    assert 'link_with = "k.o", link_source = "g.cc", link_defines = "N=64 f=g", llvm.emit_c_interface' in text
    assert text.count("func.call @f(") == 2
    assert "arith.index_cast" in text


def test_matrix_values() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (8, 8), bf16)
        block = k.load(near[:, :])
        total = contract(block, block.transpose(), k.constant(0.0, f32, 8, 8))
        flat = total.reshape(64).maximum(0.0)
        k.store(near[:, :], flat.reshape(8, 8).to(bf16))

    text = in_herd(write)
    for op in ("vector.contract", "vector.transpose", "vector.shape_cast", "arith.maximumf"):
        assert op in text


def test_scalars_promote_numbers_and_select() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (4,), f32)
        x = k.load(near[0])
        k.store(near[1], (x > 1.0).select(2 * x, 1 / x - (-x)))
        n = k.alloc(L1, (4,), i32)
        k.store(n[0], (k.load(n[1]) + 3) // 2 % 5)
        k.store(near[2], k.load(n[0]).to(f32))

    text = in_herd(write)
    for op in ("arith.select", "arith.divf", "arith.negf", "arith.floordivsi", "arith.sitofp"):
        assert op in text


REFUSED_IN_HERD = [
    (lambda k, tx, ty: k.alloc(L2, (8,), bf16), "L2 cannot be allocated here"),
    (lambda k, tx, ty: k.alloc(L3, (8,), bf16), "L3 cannot be allocated here"),
    (lambda k, tx, ty: k.load(k.x[0, 0]), "is loaded or stored outside of a core's L1"),
    (lambda k, tx, ty: k.load(k.alloc(L1, (8, 8), bf16)[:, 3]), "needs a plain slice: index the leading"),
    (lambda k, tx, ty: k.load(k.alloc(L1, (8, 8), bf16).blocks(4, 4)), "needs a plain slice"),
    (
        lambda k, tx, ty: k.store(k.alloc(L1, (8,), bf16), k.constant(0, f32, 8)),
        "cannot store a 8 vector of f32",
    ),
    (
        lambda k, tx, ty: k.constant(0, f32, 8) + k.constant(0, f32),
        "cannot combine a 8 vector of f32 with a scalar",
    ),
    (lambda k, tx, ty: k.constant(1, i32) / 2, "`/` is not defined for a scalar of i32"),
    (lambda k, tx, ty: k.constant(1, i32).rsqrt(), "math.rsqrt needs a float, not a scalar of i32"),
    (lambda k, tx, ty: k.constant(1, f32).reduce("add"), "reduce needs a 1-D vector, not a scalar of f32"),
    (lambda k, tx, ty: k.constant(1, f32).transpose(), "transpose needs a 2-D vector"),
    (
        lambda k, tx, ty: (k.constant(1, f32, 8) < 2).select(k.constant(1, f32), 2),
        "a 8 vector of i1 cannot choose for a scalar of f32; select with a comparison of scalars, or of",
    ),
    (
        lambda k, tx, ty: k.constant(1, f32).select(k.constant(1, f32), 2),
        "a scalar of f32 cannot choose for a scalar of f32; select with a comparison",
    ),
    (
        lambda k, tx, ty: k.constant(1, f32).to(i1),
        "f32 does not convert to i1; write a comparison, such as x > 0",
    ),
    (lambda k, tx, ty: k.constant(1, f32, 8).broadcast(8), "is a vector already; only a scalar is broadcast"),
    (lambda k, tx, ty: bool(k.constant(1, f32) > 0), "has no truth while the kernel is written"),
    (
        lambda k, tx, ty: contract(*(k.constant(0, f32, 8) for _ in range(3))),
        "contract needs three 2-D vectors",
    ),
    (
        lambda k, tx, ty: contract(
            k.constant(0, f32, 4, 8), k.constant(0, f32, 4, 8), k.constant(0, f32, 4, 8)
        ),
        "contract of a 4x8 vector of f32 with a 4x8 vector of f32 gives 4x8",
    ),
    (lambda k, tx, ty: k.loop(0, 8, 0), "a loop has step 0; it must be positive"),
    (lambda k, tx, ty: k.when(True).__enter__(), "decided while the kernel is written; use a Python `if`"),
    (lambda k, tx, ty: k.otherwise().__enter__(), "must directly follow its `with k.when"),
    (lambda k, tx, ty: k.herd(1, 1).__enter__(), "a herd must be inside a segment, not inside another herd"),
    (lambda k, tx, ty: k.launch(1).__enter__(), "a launch is opened inside another region"),
    (lambda k, tx, ty: k.segment().__enter__(), "a segment must be directly inside a launch"),
    (lambda k, tx, ty: k.argument("y", (8,), bf16, Role.INPUT), "argument y of sketch is declared"),
    (lambda k, tx, ty: k.finish(), "sketch is finished inside an open herd"),
    (lambda k, tx, ty: k.channel("c", 2)[0, 1], "channel c has 1 dimensions, 2 indices given"),
    (lambda k, tx, ty: [k.channel("c", 2)[i] for i in k.loop(2)], "channel c is picked by a loop variable"),
    (lambda k, tx, ty: (k.channel("c", 2), k.channel("c", 3)), "c is declared twice in sketch, differently"),
    (
        lambda k, tx, ty: [k.external(f"f{n}", "f.o", [i32], defines={"N": n}) for n in (1, 2)],
        "f.o is built in two ways, for f2 and before: one object file has one source, one set of macros",
    ),
    (lambda k, tx, ty: k.external("f", "f.o", [i32])(1, 2), "f takes 1 arguments, 2 given"),
    (
        lambda k, tx, ty: k.external("f", "f.o", [i32])(k.constant(1, f32)),
        "argument 0 of f is a scalar of i32",
    ),
    (
        lambda k, tx, ty: k.external("f", "f.o", [L1((8,), bf16)])(k.alloc(L1, (16,), bf16)),
        "argument 0 of f is a whole buffer of 8 bf16 in L1, not l1_buffer",
    ),
]


@pytest.mark.parametrize(
    ("write", "message"), REFUSED_IN_HERD, ids=[message[:40] for _, message in REFUSED_IN_HERD]
)
def test_refused_in_a_herd(write, message: str) -> None:
    with pytest.raises(DslError, match=message):
        in_herd(write)


def test_a_loop_left_by_break_is_refused() -> None:
    def write(k: Sketch, tx, ty) -> None:
        for _ in k.loop(0, 8):
            break

    with pytest.raises(DslError, match=r"a loop of sketch was left early; .* no break, no return"):
        in_herd(write)


def test_a_loop_not_run_to_its_end_is_refused() -> None:
    held: list[Any] = []

    def write(k: Sketch, tx, ty) -> None:
        held.append(k.loop(0, 8))
        next(held[0])

    with pytest.raises(DslError, match="a loop is still open at the end of the herd around it"):
        in_herd(write)


def test_an_error_inside_leaves_no_region_open() -> None:
    k = Sketch()
    with pytest.raises(KeyError), k.launch(), k.segment():
        raise KeyError
    assert len(k.scopes.stack) == 1


def test_values_do_not_outlive_their_region() -> None:
    def write(k: Sketch, tx, ty) -> None:
        near = k.alloc(L1, (64,), bf16)
        for j in k.loop(0, 64, 16):
            last = k.load(near[j : j + 16])
        k.store(near[0:16], last)

    with pytest.raises(DslError, match="is used outside of the region it was made in"):
        in_herd(write)


def test_calls_need_a_core() -> None:
    k = Sketch()
    f = k.external("f", "f.o", [i32])
    with pytest.raises(DslError, match="f runs on a core: call it inside"), k.launch(), k.segment():
        f(1)


@pytest.mark.parametrize("shape", [(), (0, 8), (8, -1), (8.0,)])
def test_shapes_are_positive_ints(shape: tuple[int, ...]) -> None:
    with pytest.raises(DslError, match=r"a buffer has shape \(.*\); give at least one extent, all pos"):
        Kernel("k").argument("x", shape, bf16, Role.INPUT)


def test_hierarchies_have_points() -> None:
    with pytest.raises(DslError, match="a launch of 2x0 has no points; every extent must be positive"):
        Sketch().launch(2, 0).__enter__()


def test_arguments_come_before_launches() -> None:
    k = Sketch()
    with k.launch(2):
        pass
    with pytest.raises(DslError, match="argument y of sketch is declared after the first launch"):
        k.argument("y", (8,), bf16, Role.INPUT)


def test_the_example_of_the_docstring_runs() -> None:
    lines = [line[4:] for line in (dsl.__doc__ or "").splitlines() if line.startswith("    ")]
    names = {**vars(dsl), "rows": 16, "cols": 64}
    exec("\n".join(lines), names)
    kernel = names["module"]
    a, b = (np.random.default_rng(i).standard_normal((16, 64)).astype(bf16.numpy) for i in range(2))
    (out,) = run(kernel, {"a": a, "b": b}).values()
    assert (out == (a.astype(np.float32) + b.astype(np.float32)).astype(bf16.numpy)).all()


def test_f32_columns_may_be_walked() -> None:
    """A transposed walk ends in a dimension of stride 1, and moves what it says."""
    k = Kernel("transpose")
    a = k.argument("a", (8, 16), f32, Role.INPUT)
    out = k.argument("out", (16, 8), f32, Role.OUTPUT)
    with k.launch(), k.segment(), k.herd(2, 1) as (tx, _):
        near = k.alloc(L1, (8, 8), f32)
        k.dma(near, a[:, tx * 8 : tx * 8 + 8].permute(1, 0))
        k.dma(out[tx * 8 : tx * 8 + 8, :], near)
    kernel = k.finish()
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    assert (run(kernel, {"a": x})["out"] == x.T).all()


def test_the_text_of_the_dsl_computes_its_expression() -> None:
    """Branches, carried values, scalars and blocks, run on the virtual NPU."""
    k = Kernel("sketch")
    a = k.argument("a", (32, 64), bf16, Role.INPUT)
    out = k.argument("out", (4, 64), f32, Role.OUTPUT)
    with k.launch(), k.segment(), k.herd(4, 1) as (tx, _):
        near, far = k.alloc(L1, (8, 64), bf16), k.alloc(L1, (64,), f32)
        k.dma(near, a[tx * 8 : tx * 8 + 8, :])
        for j in k.loop(0, 64, 16):
            total = k.carried(k.constant(0.0, f32, 16))
            for row in k.loop(8, carry=[total]):
                total.set(total.value + k.load(near[row, j : j + 16]).to(f32))
            with k.when(tx == 0):
                k.store(far[j : j + 16], total.value * 2.0)
            with k.otherwise():
                with k.when(j >= 32):
                    k.store(far[j : j + 16], total.value.maximum(0.0))
                with k.otherwise():
                    k.store(far[j : j + 16], -total.value)
        k.dma(out[tx, :], far)
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(bf16.numpy)
    sums = x.astype(np.float32).reshape(4, 8, 64).sum(axis=1)
    expected = np.concatenate([-sums[:, :32], np.maximum(sums[:, 32:], 0)], axis=1)
    expected[0] = 2 * sums[0]
    np.testing.assert_allclose(run(k.finish(), {"a": x})["out"], expected, rtol=1e-5, atol=1e-6)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (lambda v: v.exp(), np.exp),
    "exp2": (lambda v: v.exp2(), np.exp2),
    "tanh": (lambda v: v.tanh(), np.tanh),
    "sqrt": (lambda v: (v * v).sqrt(), np.abs),
    "rsqrt": (lambda v: (v * v + 1.0).rsqrt(), lambda x: 1 / np.sqrt(x * x + 1)),
    "minimum": (lambda v: v.minimum(0.5), lambda x: np.minimum(x, 0.5)),
    "select": (lambda v: (v.reduce("add") <= 0).select(v, 1 - v), lambda x: x if x.sum() <= 0 else 1 - x),
    "select_lanes": (lambda v: (v > 0.5).select(v, -v), lambda x: np.where(x > 0.5, x, -x)),
    "select_whole": (lambda v: (v.reduce("max") > 0).select(v, 2 * v), lambda x: x),
    "comparison": (lambda v: (v <= 0).to(f32), lambda x: (x <= 0).astype(np.float32)),
    "integer_lanes": (
        lambda v: ((v * 4).to(i32) >= 2).select((v * 4).to(i32), (v < 0).to(i32)).to(f32),
        lambda x: np.where(np.trunc(x * 4) >= 2, np.trunc(x * 4), (x < 0).astype(np.float32)),
    ),
    "quotient": (lambda v: 1 / (v * v + 2), lambda x: 1 / (x * x + 2)),
    "max": (lambda v: v.reduce("max").broadcast(16), lambda x: np.full(16, x.max())),
    "min": (lambda v: v.reduce("min").broadcast(16), lambda x: np.full(16, x.min())),
}


def test_functions_of_vectors() -> None:
    k = Kernel("functions")
    x = k.argument("x", (16,), f32, Role.INPUT)
    out = k.argument("out", (len(FUNCTIONS), 16), f32, Role.OUTPUT)
    with k.launch(), k.segment(), k.herd(1, 1):
        near, far = k.alloc(L1, (16,), f32), k.alloc(L1, out.shape, f32)
        k.dma(near, x)
        for row, (on_core, _) in enumerate(FUNCTIONS.values()):
            k.store(far[row, :], on_core(k.load(near[:])))
        k.dma(out, far)
    values = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    got = run(k.finish(), {"x": values})["out"]
    for row, (name, (_, in_numpy)) in enumerate(FUNCTIONS.items()):
        np.testing.assert_allclose(got[row], in_numpy(values), rtol=1e-6, err_msg=name)


def test_kernel_module_carries_its_table() -> None:
    kernel = eltwise_add.build(8, 32)
    assert kernel.arguments.names == ("a", "b", "out")
    assert kernel.arguments.output_indices == (2,)
    assert kernel.arguments["out"].nbytes == 8 * 32 * 2
    assert "func.func @eltwise_add(" in kernel.text
