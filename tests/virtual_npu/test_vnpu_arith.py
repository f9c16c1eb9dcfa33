"""Operations of arith, math and index on scalars and vectors, every element type, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu

BF16 = ml_dtypes.bfloat16
N = 32
NUMPY = {
    "f32": np.float32, "f64": np.float64, "bf16": BF16, "f16": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "index": np.int64, "i1": np.bool_,
}  # fmt: skip
FLOATS = ("f32", "f64", "bf16", "f16")
INTEGERS = ("i8", "i16", "i32", "i64")
Reference = Callable[..., tuple[np.ndarray, ...] | np.ndarray]


@dataclass(frozen=True)
class Case:
    """`{0}`, `{1}` are operands, `{t}` their type, `{r0}` that of the first result; every result is compared.

    results: element types; () for the operands' own. tolerance: how far a float may be off, relatively; where
    it is 0 every bit is compared.
    """

    operation: str
    type: str
    reference: Reference
    operands: int = 1
    results: tuple[str, ...] = ()
    tolerance: float = 0
    scalar_only: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        return self.results or (self.type,)


CASES: dict[str, Case] = {}


def add(name: str, types: tuple[str, ...], reference: Reference, operation: str = "", **more: Any) -> None:
    """A case of two operands per type; `operation` where it is not written as most are."""
    for t in types:
        text = operation or f"{name} {{0}}, {{1}} : {{t}}"
        label = "_".join([name.replace(".", "_").replace(" ", "_"), t, *more.get("results", ())])
        CASES[label] = Case(text, t, reference, **{"operands": 2, **more})


def add_one(name: str, types: tuple[str, ...], reference: Reference, to: str = "", **more: Any) -> None:
    """A case of one operand per type; `to` is the type it is converted to."""
    results = {"results": (to,)} if to else {}
    text = f"{name} {{0}} : {{t}}" + (" to {r0}" if to else "")
    add(name, types, reference, text, operands=1, **results, **more)


def each(operations: dict[str, Reference]) -> ItemsView[str, Reference]:
    """What `dict.items` gives, of the type that `add` takes."""
    return operations.items()


def wide(reference: Reference) -> Reference:
    """Compute in float32 (float64 for f64): the virtual NPU rounds bf16 and f16 results once."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        kind = np.float64 if arrays[0].dtype == np.float64 else np.float32
        found = reference(*[a.astype(kind) for a in arrays])
        assert not isinstance(found, tuple)
        return found.astype(arrays[0].dtype)

    return apply


def unsigned(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.name}")


def as_unsigned(reference: Reference) -> Reference:
    """Computed on unsigned numbers of the same bits."""

    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = reference(unsigned(a), unsigned(b))
        assert isinstance(found, np.ndarray)
        return found if found.dtype == np.bool_ else found.astype(f"u{a.dtype.name}").view(a.dtype)

    return apply


def bits(a: np.ndarray) -> np.ndarray:
    """One row of bits per value, the highest first."""
    raw = unsigned(a).astype(">" + f"u{a.dtype.itemsize}").reshape(-1, 1).view(np.uint8)
    return np.unpackbits(raw, axis=1).astype(bool)


def leading(rows: np.ndarray) -> np.ndarray:
    """How many zeros every row begins with."""
    return np.where(rows.any(1), rows.argmax(1), rows.shape[1])


def extended(a: np.ndarray, b: np.ndarray, is_signed: bool) -> tuple[np.ndarray, np.ndarray]:
    wide = [(x if is_signed else unsigned(x)).astype(object) for x in (a, b)]
    product, width = wide[0] * wide[1], 8 * a.dtype.itemsize
    halves = product & ((1 << width) - 1), (product >> width) & ((1 << width) - 1)
    low, high = (h.astype(f"u{a.dtype.name}").view(a.dtype) for h in halves)
    return low, high


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What repeated multiplication gives, modulo the width; 1/x is 0 but for 1 and -1."""
    width = 8 * a.dtype.itemsize
    found = [
        (int(x) ** int(y)) if y >= 0 else {1: 1, -1: 1 if y % 2 == 0 else -1}.get(int(x), 0)
        for x, y in zip(a, b, strict=True)
    ]
    return np.array([f % (1 << width) for f in found], dtype=object).astype(f"u{a.dtype.name}").view(a.dtype)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.abs(a.astype(object)) // np.abs(b.astype(object))) * np.sign(a) * np.sign(b)


def ceiling(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -(-a.astype(object) // b)


# ---- floats ----

for op, two in each({
    "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "maximumf": np.maximum,
    "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin,
}):  # fmt: skip
    add(f"arith.{op}", FLOATS, wide(two))
for op, two in each({
    "oeq": np.equal, "olt": np.less, "une": np.not_equal, "ult": lambda a, b: ~(a >= b),
}):  # fmt: skip
    add(f"arith.cmpf {op}", FLOATS, two, f"arith.cmpf {op}, {{0}}, {{1}} : {{t}}", results=("i1",))
add("arith.remf", FLOATS, np.fmod)
add_one("arith.negf", FLOATS, np.negative)
for op, one in each({
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "isnormal": lambda a: np.isfinite(a) & (np.abs(a) >= ml_dtypes.finfo(a.dtype).smallest_normal),
}):  # fmt: skip
    add(f"math.{op}", FLOATS, one, f"math.{op} {{0}} : {{t}}", operands=1, results=("i1",))
add("math.fma", ("bf16",), wide(lambda a, b, c: a * b + c), "math.fma {0}, {1}, {2} : {t}", operands=3)
add(
    "math.clampf", ("f32",), lambda v, low, high: np.minimum(np.maximum(v, low), high),
    "math.clampf {0} to [{1}, {2}] : {t}", operands=3,
)  # fmt: skip
for op, one in each({
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "roundeven": np.rint, "absf": np.abs,
}):  # fmt: skip
    add_one(f"math.{op}", ("f32", "bf16"), wide(one))
for op, one in each({
    "rsqrt": lambda a: 1 / np.sqrt(a), "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "erf": np.vectorize(math.erf),
}):  # fmt: skip
    add_one(f"math.{op}", ("f32",), one, tolerance=2e-6)
    add_one(f"math.{op}", ("bf16",), wide(one), tolerance=1e-2)
add("math.powf", ("f32",), np.power, tolerance=2e-6)
add("math.powf", ("f64",), np.power, tolerance=1e-12)
for op, one in each({
    "erfc": np.vectorize(math.erfc), "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}):  # fmt: skip
    add_one(f"math.{op}", ("f32",), one, tolerance=3e-6)
    add_one(f"math.{op}", ("f64",), one, tolerance=1e-12)
add(
    "math.sincos", ("f32",), lambda a: (np.sin(a), np.cos(a)), "math.sincos {0} : {t}",
    operands=1, results=("f32", "f32"), tolerance=3e-6,
)  # fmt: skip

# ---- integers ----

for op, two in each({
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum, "floordivsi": np.floor_divide,
    "remsi": np.fmod, "divsi": quotient, "ceildivsi": ceiling, "divui": as_unsigned(np.floor_divide),
    "remui": as_unsigned(np.remainder), "maxui": as_unsigned(np.maximum), "minui": as_unsigned(np.minimum),
}):  # fmt: skip
    add(f"arith.{op}", INTEGERS, two)
for op, two in each({"slt": np.less, "ult": as_unsigned(np.less)}):
    add(f"arith.cmpi {op}", INTEGERS, two, f"arith.cmpi {op}, {{0}}, {{1}} : {{t}}", results=("i1",))
for op, one in each({
    "absi": np.abs, "ctlz": lambda a: leading(bits(a)), "cttz": lambda a: leading(bits(a)[:, ::-1]),
    "ctpop": lambda a: bits(a).sum(1),
}):  # fmt: skip
    add_one(f"math.{op}", INTEGERS, one)
add("math.ipowi", INTEGERS, power)
for t in INTEGERS:
    add(
        "arith.addui_extended", (t,), lambda a, b: (a + b, unsigned(a + b) < unsigned(a)),
        "arith.addui_extended {0}, {1} : {t}, {r1}", results=(t, "i1"),
    )  # fmt: skip
    add("arith.mului_extended", (t,), lambda a, b: extended(a, b, False), results=(t, t))
    add("arith.mulsi_extended", (t,), lambda a, b: extended(a, b, True), results=(t, t))
for op, two in each({
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "maxu": as_unsigned(np.maximum),
    "minu": as_unsigned(np.minimum),
    "ceildivu": as_unsigned(lambda a, b: -(-a.astype(object) // b)),
}):  # fmt: skip
    add(f"index.{op}", ("index",), two, f"index.{op} {{0}}, {{1}}", scalar_only=True)
for op, two in each({"sgt": np.greater, "ule": as_unsigned(np.less_equal)}):
    text = f"index.cmp {op}({{0}}, {{1}})"
    add(f"index.cmp {op}", ("index",), two, text, results=("i1",), scalar_only=True)

# ---- from one type to another ----

add_one("arith.extf", ("bf16", "f16"), lambda a: a.astype(np.float32), "f32")
add_one("arith.truncf", ("f32",), lambda a: a.astype(BF16), "bf16")
add_one("arith.truncf", ("f32",), lambda a: a.astype(np.float16), "f16")
add_one("arith.sitofp", ("i32",), lambda a: a.astype(np.float32), "f32")
add_one("arith.uitofp", INTEGERS, lambda a: unsigned(a).astype(np.float32), "f32")
add_one("arith.fptosi", FLOATS, lambda a: np.trunc(a.astype(np.float64)), "i32")
add_one("arith.extsi", ("i8",), lambda a: a.astype(np.int32), "i32")
add_one("arith.extui", ("i8",), lambda a: unsigned(a).astype(np.int32), "i32")
add_one("arith.trunci", ("i32",), lambda a: a.astype(np.int8), "i8")
add_one("arith.trunci", ("i32",), lambda a: (a & 1).astype(bool), "i1")
add_one("arith.bitcast", ("f32",), lambda a: a.view(np.int32), "i32")
add_one("arith.index_castui", INTEGERS, lambda a: unsigned(a).astype(np.int64), "index")


def function(name: str, case: Case, lanes: int) -> str:
    """A loop over the arguments with the operation on scalars (0 lanes) or vectors."""

    def type_of(element: str) -> str:
        return f"vector<{lanes}x{element}>" if lanes else element

    inputs = [case.type] * case.operands
    arguments = [f"%a{n}: memref<{N}x{t}>" for n, t in enumerate(inputs)]
    arguments += [f"%y{n}: memref<{N}x{t}>" for n, t in enumerate(case.targets)]
    load, store = ("vector.load", "vector.store") if lanes else ("memref.load", "memref.store")
    lines = [
        f"%x{n} = {load} %a{n}[%i] : memref<{N}x{t}>" + (f", {type_of(t)}" if lanes else "")
        for n, t in enumerate(inputs)
    ]
    results = {f"r{n}": type_of(t) for n, t in enumerate(case.targets)}
    operands = [f"%x{n}" for n in range(case.operands)]
    names = ", ".join(f"%z{n}" for n in range(len(case.targets)))
    lines.append(f"{names} = " + case.operation.format(*operands, t=type_of(case.type), **results))
    lines += [
        f"{store} %z{n}, %y{n}[%i] : memref<{N}x{t}>" + (f", {type_of(t)}" if lanes else "")
        for n, t in enumerate(case.targets)
    ]
    body = "\n      ".join(lines)
    return f"""func.func @{name}({", ".join(arguments)}) {{
    %n = arith.constant {N} : index
    %step = arith.constant {lanes or 1} : index
    scf.for %i = %c0 to %n step %step {{
      {body}
    }}
    return
  }}"""


@pytest.fixture(scope="module")
def library(program):
    functions = [function(f"{name}_s", case, 0) for name, case in CASES.items()]
    functions += [function(f"{name}_v", case, 8) for name, case in CASES.items() if not case.scalar_only]
    return program("\n".join(functions))


def integers(name: str, kind: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Of the whole range, its ends among them, and no 0; the least divided by -1 has no result."""
    info = np.iinfo(kind)
    found = rng.integers(info.min, info.max, N, dtype=kind, endpoint=True)
    is_division = any(part in name for part in ("div", "remsi"))
    found[:6] = [1, 3 if is_division else -1, info.max, info.min + is_division, 3, 8]
    return np.where(found == 0, 5, found).astype(kind)


def floats(name: str, kind: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Near 0, where the function has a value; comparisons also without a size."""
    found = (rng.standard_normal(N) * 4).astype(kind)
    if "cmpf" in name or "math_is" in name:
        tiny, least = ml_dtypes.finfo(kind).smallest_subnormal, ml_dtypes.finfo(kind).smallest_normal
        found[:6] = rng.permutation(np.array([np.nan, np.inf, -np.inf, 0, tiny, least], kind))
        found[6:9] = 1
    if any(part in name for part in ("sqrt", "log", "powf")):
        return np.abs(found)
    if "acosh" in name:
        return 1 + np.abs(found)
    return np.tanh(found) if "atanh" in name else found


@pytest.mark.parametrize("name", CASES)
def test_operation_matches_numpy(library, run, name):
    case, rng = CASES[name], np.random.default_rng(11)
    kind = np.dtype(NUMPY[case.type])
    draw = integers if np.issubdtype(kind, np.integer) else floats
    inputs = [draw(name, kind, rng) for _ in range(case.operands)]
    if "ipowi" in name:
        inputs[1] = rng.integers(-3, 7, N).astype(kind)
    with np.errstate(all="ignore"):
        found = case.reference(*inputs)
    want = [np.asarray(w) for w in (found if isinstance(found, tuple) else (found,))]
    for form in ("s",) if case.scalar_only else ("s", "v"):
        empty = [np.zeros(N, NUMPY[t]) for t in case.targets]
        got = run(library, f"{name}_{form}", *inputs, *empty)[case.operands :]
        for result, wanted in zip(got, want, strict=True):
            compare(result, wanted.astype(result.dtype), case.tolerance)


def compare(result: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    if tolerance and result.dtype.kind not in "iub":
        narrow = result.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(*narrow, rtol=tolerance, atol=min(tolerance, 1e-7))
    else:
        bits_of = f"u{result.itemsize}"
        np.testing.assert_array_equal(result.view(bits_of), wanted.view(bits_of))


SPECIAL = """
func.func @narrow(%x: memref<8xf32>, %b: memref<8xbf16>, %h: memref<8xf16>) {
  %v = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %bf = arith.truncf %v : vector<8xf32> to vector<8xbf16>
  %hf = arith.truncf %v : vector<8xf32> to vector<8xf16>
  vector.store %bf, %b[%c0] : memref<8xbf16>, vector<8xbf16>
  vector.store %hf, %h[%c0] : memref<8xf16>, vector<8xf16>
  return
}
func.func @largest(%x: memref<4xf32>, %y: memref<4xf32>, %z: memref<4xf32>) {
  %a = vector.load %x[%c0] : memref<4xf32>, vector<4xf32>
  %b = vector.load %y[%c0] : memref<4xf32>, vector<4xf32>
  %m = arith.maximumf %a, %b : vector<4xf32>
  vector.store %m, %z[%c0] : memref<4xf32>, vector<4xf32>
  return
}
func.func @divide(%x: memref<1xi32>) {
  %a = memref.load %x[%c0] : memref<1xi32>
  %one = arith.constant 1 : i32
  %q = arith.divsi %one, %a : i32
  memref.store %q, %x[%c0] : memref<1xi32>
  return
}
func.func @numbers(%x: memref<4xf32>, %y: memref<4xf32>, %most: memref<4xf32>, %least: memref<4xf32>) {
  %a = vector.load %x[%c0] : memref<4xf32>, vector<4xf32>
  %b = vector.load %y[%c0] : memref<4xf32>, vector<4xf32>
  %m = arith.maxnumf %a, %b : vector<4xf32>
  %l = arith.minnumf %a, %b : vector<4xf32>
  vector.store %m, %most[%c0] : memref<4xf32>, vector<4xf32>
  vector.store %l, %least[%c0] : memref<4xf32>, vector<4xf32>
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
    z = run(special, "largest", y, x, np.zeros(4, np.float32))[2]
    assert np.isnan(z[2])


def test_maxnumf_and_minnumf_pass_over_a_nan(special, run):
    x = np.array([np.nan, 1.0, np.nan, 2.0], np.float32)
    y = np.array([1.0, np.nan, np.nan, 3.0], np.float32)
    _, _, most, least = run(special, "numbers", x, y, np.zeros(4, np.float32), np.zeros(4, np.float32))
    np.testing.assert_array_equal(most, np.fmax(x, y))
    np.testing.assert_array_equal(least, np.fmin(x, y))


def test_division_by_zero_is_an_error_with_its_line(special, run):
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=r"line 20: arith.divsi: division by zero"):
        run(special, "divide", np.zeros(1, np.int32))
