"""arith and math on scalars and vectors, every element type, against numpy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
N = 32
NUMPY = {
    "f32": np.float32, "f64": np.float64, "bf16": BF16, "f16": np.float16, "i32": np.int32, "i8": np.int8,
    "i16": np.int16, "i64": np.int64, "i1": np.bool_,
}  # fmt: skip
FUNCTIONS: dict[str, str] = {}
CHECKS: list[tuple[str, str, str, int, object]] = []


def function(name: str, operation: str, source: str, target: str, operands: int) -> None:
    """One function with the operation on 32 scalars and one with it on four vectors of 8."""
    args = ", ".join(f"%x{i}: memref<{N}x{source}>" for i in range(operands))
    for form, step, s_type, t_type in (
        ("s", 1, source, target),
        ("v", 8, f"vector<8x{source}>", f"vector<8x{target}>"),
    ):
        types = {"S": s_type, "T": t_type}
        text = operation.format(*[f"%a{i}" for i in range(operands)], **types)
        load = "memref.load" if form == "s" else "vector.load"
        store = "memref.store" if form == "s" else "vector.store"
        of = "" if form == "s" else f", {s_type}"
        to = "" if form == "s" else f", {t_type}"
        loads = "\n".join(
            f"      %a{i} = {load} %x{i}[%i] : memref<{N}x{source}>{of}" for i in range(operands)
        )
        FUNCTIONS[f"{name}_{form}"] = f"""
  func.func @{name}_{form}({args}, %y: memref<{N}x{target}>) {{
    %c0 = arith.constant 0 : index
    %n = arith.constant {N} : index
    %step = arith.constant {step} : index
    scf.for %i = %c0 to %n step %step {{
{loads}
      %r = {text}
      {store} %r, %y[%i] : memref<{N}x{target}>{to}
    }}
    return
  }}"""


def check(
    name: str, operation: str, type_: str, reference: object, target: str = "", operands: int = 2
) -> None:
    target = target or type_
    label = f"{name}_{type_}_{target}"
    function(label, operation, type_, target, operands)
    CHECKS.append((label, type_, target, operands, reference))


FLOATS = ("f32", "bf16", "f16", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")


def wide(reference: object) -> object:
    """Compute in float32 (float64 for f64): the virtual NPU rounds bf16 and f16 results once."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        kind = np.float64 if arrays[0].dtype == np.float64 else np.float32
        return reference(*[a.astype(kind) for a in arrays]).astype(arrays[0].dtype)  # type: ignore[operator]

    return apply


for t in FLOATS:
    for op, ref in (("addf", np.add), ("subf", np.subtract), ("mulf", np.multiply), ("divf", np.divide)):
        check(op, f"arith.{op} {{}}, {{}} : {{S}}", t, wide(ref))
    for op, ref in (
        ("maximumf", np.maximum),
        ("minimumf", np.minimum),
        ("maxnumf", np.fmax),
        ("minnumf", np.fmin),
    ):
        check(op, f"arith.{op} {{}}, {{}} : {{S}}", t, wide(ref))
    check("negf", "arith.negf {} : {S}", t, np.negative, operands=1)
    check("olt", "arith.cmpf olt, {}, {} : {S}", t, np.less, "i1")
    check("une", "arith.cmpf une, {}, {} : {S}", t, np.not_equal, "i1")
    check("ult", "arith.cmpf ult, {}, {} : {S}", t, lambda a, b: ~(a >= b), "i1")

for t in INTEGERS:
    for op, ref in (
        ("addi", np.add),
        ("subi", np.subtract),
        ("muli", np.multiply),
        ("andi", np.bitwise_and),
        ("ori", np.bitwise_or),
        ("xori", np.bitwise_xor),
        ("maxsi", np.maximum),
        ("minsi", np.minimum),
        ("floordivsi", np.floor_divide),
        ("remsi", np.fmod),
    ):
        check(op, f"arith.{op} {{}}, {{}} : {{S}}", t, ref)
    check(
        "divsi",
        "arith.divsi {}, {} : {S}",
        t,
        lambda a, b: (np.abs(a.astype(object)) // np.abs(b)) * np.sign(a) * np.sign(b),
    )
    check("ceildivsi", "arith.ceildivsi {}, {} : {S}", t, lambda a, b: -((-a.astype(object)) // b))
    for op in ("divui", "remui", "maxui", "minui"):
        ref = {"divui": np.floor_divide, "remui": np.remainder, "maxui": np.maximum, "minui": np.minimum}[op]
        check(
            op,
            f"arith.{op} {{}}, {{}} : {{S}}",
            t,
            lambda a, b, ref=ref: ref(a.view(f"u{a.dtype.name}"), b.view(f"u{a.dtype.name}")).view(a.dtype),
        )
    check("slt", "arith.cmpi slt, {}, {} : {S}", t, np.less, "i1")
    check(
        "ult",
        "arith.cmpi ult, {}, {} : {S}",
        t,
        lambda a, b: a.view(f"u{a.dtype.name}") < b.view(f"u{a.dtype.name}"),
        "i1",
    )
    check("absi", "math.absi {} : {S}", t, np.abs, operands=1)

check("extf", "arith.extf {} : {S} to {T}", "bf16", lambda a: a.astype(np.float32), "f32", 1)
check("extf", "arith.extf {} : {S} to {T}", "f16", lambda a: a.astype(np.float32), "f32", 1)
check("truncf", "arith.truncf {} : {S} to {T}", "f32", lambda a: a.astype(BF16), "bf16", 1)
check("truncf", "arith.truncf {} : {S} to {T}", "f32", lambda a: a.astype(np.float16), "f16", 1)
check("sitofp", "arith.sitofp {} : {S} to {T}", "i32", lambda a: a.astype(np.float32), "f32", 1)
check("uitofp", "arith.uitofp {} : {S} to {T}", "i8", lambda a: a.view(np.uint8).astype(np.float32), "f32", 1)
check("fptosi", "arith.fptosi {} : {S} to {T}", "f32", lambda a: a.astype(np.int32), "i32", 1)
check("extsi", "arith.extsi {} : {S} to {T}", "i8", lambda a: a.astype(np.int32), "i32", 1)
check("extui", "arith.extui {} : {S} to {T}", "i8", lambda a: a.view(np.uint8).astype(np.int32), "i32", 1)
check("trunci", "arith.trunci {} : {S} to {T}", "i32", lambda a: a.astype(np.int8), "i8", 1)
check("trunc1", "arith.trunci {} : {S} to {T}", "i32", lambda a: (a & 1).astype(bool), "i1", 1)
check("bitcast", "arith.bitcast {} : {S} to {T}", "f32", lambda a: a.view(np.int32), "i32", 1)
check("fma", "math.fma {}, {}, {} : {S}", "bf16", wide(lambda a, b, c: a * b + c), operands=3)

ERF = np.vectorize(math.erf)
for op, ref in (
    ("sqrt", np.sqrt),
    ("rsqrt", lambda a: 1 / np.sqrt(a)),
    ("exp", np.exp),
    ("exp2", np.exp2),
    ("log", np.log),
    ("tanh", np.tanh),
    ("sin", np.sin),
    ("cos", np.cos),
    ("erf", ERF),
    ("floor", np.floor),
    ("ceil", np.ceil),
    ("roundeven", np.rint),
    ("absf", np.abs),
    ("log1p", np.log1p),
    ("expm1", np.expm1),
):
    check(op, f"math.{op} {{}} : {{S}}", "f32", ref, operands=1)
    check(op, f"math.{op} {{}} : {{S}}", "bf16", wide(ref), operands=1)
check("powf", "math.powf {}, {} : {S}", "f32", np.power)

_LIBM = ("exp", "log", "tanh", "sin", "cos", "erf", "powf", "rsqrt")


def _values(type_: str, rng: np.random.Generator, label: str) -> np.ndarray:
    if type_ in INTEGERS:
        info = np.iinfo(NUMPY[type_])
        values = rng.integers(info.min, info.max, N, dtype=NUMPY[type_], endpoint=True)
        values[values == 0] = 1
        values[:4] = [info.max, 1, -1 if "div" not in label and "rem" not in label else 3, info.min + 1]
        return values
    values = (rng.standard_normal(N) * 3).astype(NUMPY[type_])
    is_libm = any(label.startswith(name) for name in ("sqrt", "rsqrt", "log", "powf"))
    return np.abs(values) if is_libm else values


@pytest.fixture(scope="module")
def library(program):
    return program("module {" + "\n".join(FUNCTIONS.values()) + "\n}")


@pytest.mark.parametrize(
    ("label", "source", "target", "operands", "reference"), CHECKS, ids=[c[0] for c in CHECKS]
)
def test_operation_matches_numpy(library, run, label, source, target, operands, reference):
    rng = np.random.default_rng(7)
    inputs = [_values(source, rng, label) for _ in range(operands)]
    with np.errstate(all="ignore"):
        want = np.asarray(reference(*inputs)).astype(NUMPY[target])
    for form in ("s", "v"):
        if f"{label}_{form}" not in library.entries:
            continue
        got = run(library, f"{label}_{form}", *inputs, np.zeros(N, NUMPY[target]))[-1]
        if label.startswith(_LIBM):
            tolerance = {"rtol": 1e-2} if source == "bf16" else {"rtol": 2e-6, "atol": 1e-7}
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), **tolerance)
        else:
            np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{got.itemsize}"))


SPECIAL = """
func.func @narrow(%x: memref<8xf32>, %b: memref<8xbf16>, %h: memref<8xf16>) {
  %c0 = arith.constant 0 : index
  %v = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %bf = arith.truncf %v : vector<8xf32> to vector<8xbf16>
  %hf = arith.truncf %v : vector<8xf32> to vector<8xf16>
  vector.store %bf, %b[%c0] : memref<8xbf16>, vector<8xbf16>
  vector.store %hf, %h[%c0] : memref<8xf16>, vector<8xf16>
  return
}
func.func @largest(%x: memref<4xf32>, %y: memref<4xf32>, %z: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  %a = vector.load %x[%c0] : memref<4xf32>, vector<4xf32>
  %b = vector.load %y[%c0] : memref<4xf32>, vector<4xf32>
  %m = arith.maximumf %a, %b : vector<4xf32>
  vector.store %m, %z[%c0] : memref<4xf32>, vector<4xf32>
  return
}
func.func @divide(%x: memref<1xi32>) {
  %c0 = arith.constant 0 : index
  %a = memref.load %x[%c0] : memref<1xi32>
  %one = arith.constant 1 : i32
  %q = arith.divsi %one, %a : i32
  memref.store %q, %x[%c0] : memref<1xi32>
  return
}
"""


@pytest.fixture(scope="module")
def special(program):
    return program(SPECIAL)


def test_rounding_to_narrow_floats_is_to_nearest_even(special, run):
    x = np.array([1.00390625, 1.01171875, np.nan, np.inf, -0.0, 1e-40, 70000.0, 6e-8], np.float32)
    _, b, h = run(special, "narrow", x, np.zeros(8, BF16), np.zeros(8, np.float16))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(b.astype(np.float32), x.astype(BF16).astype(np.float32))
        np.testing.assert_array_equal(h, x.astype(np.float16))
    assert np.signbit(b[4].astype(np.float32))


def test_maximumf_orders_zeros_and_carries_nan(special, run):
    x = np.array([0.0, -0.0, np.nan, 5.0], np.float32)
    y = np.array([-0.0, 0.0, 1.0, 5.0], np.float32)
    z = run(special, "largest", x, y, np.zeros(4, np.float32))[2]
    assert not np.signbit(z[:2]).any()
    assert np.isnan(z[2])
    assert z[3] == 5


def test_division_by_zero_is_an_error_with_its_line(special, run):
    import virtual_npu

    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=r"line 23: arith.divsi: division by zero"):
        run(special, "divide", np.zeros(1, np.int32))
