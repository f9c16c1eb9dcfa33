"""The rarer operations of arith, math and index on scalars and vectors, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
N = 16
NUMPY = {
    "f32": np.float32, "f64": np.float64, "bf16": BF16, "f16": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "index": np.int64, "i1": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`{0}`, `{1}` are operands, `{t}` their type; every result is compared."""

    operation: str
    type: str
    reference: Callable[..., tuple[np.ndarray, ...] | np.ndarray]
    operands: int = 1
    results: tuple[str, ...] = ()
    """Element types; () for the operands' own."""
    scalar_only: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        return self.results or (self.type,)


def unsigned(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.name}")


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
    return tuple(h.astype(f"u{a.dtype.name}").view(a.dtype) for h in halves)  # type: ignore[return-value]


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What repeated multiplication gives, modulo the width; 1/x is 0 but for 1 and -1."""
    width = 8 * a.dtype.itemsize
    found = [
        (int(x) ** int(y)) if y >= 0 else {1: 1, -1: 1 if y % 2 == 0 else -1}.get(int(x), 0)
        for x, y in zip(a, b, strict=True)
    ]
    return np.array([f % (1 << width) for f in found], dtype=object).astype(f"u{a.dtype.name}").view(a.dtype)


CASES: dict[str, Case] = {}
for t in ("i8", "i16", "i32", "i64"):
    CASES[f"ctlz_{t}"] = Case("math.ctlz {0} : {t}", t, lambda a: leading(bits(a)))
    CASES[f"cttz_{t}"] = Case("math.cttz {0} : {t}", t, lambda a: leading(bits(a)[:, ::-1]))
    CASES[f"ctpop_{t}"] = Case("math.ctpop {0} : {t}", t, lambda a: bits(a).sum(1))
    CASES[f"ipowi_{t}"] = Case("math.ipowi {0}, {1} : {t}", t, power, 2)
    CASES[f"addui_{t}"] = Case(
        "arith.addui_extended {0}, {1} : {t}, {r1}", t,
        lambda a, b: (a + b, unsigned(a + b) < unsigned(a)), 2, (t, "i1"),
    )  # fmt: skip
    CASES[f"mului_{t}"] = Case(
        "arith.mului_extended {0}, {1} : {t}", t, lambda a, b: extended(a, b, False), 2, (t, t)
    )
    CASES[f"mulsi_{t}"] = Case(
        "arith.mulsi_extended {0}, {1} : {t}", t, lambda a, b: extended(a, b, True), 2, (t, t)
    )
    CASES[f"castui_{t}"] = Case(
        "arith.index_castui {0} : {t} to {r0}", t, lambda a: unsigned(a).astype(np.int64), 1, ("index",)
    )
    CASES[f"slt_{t}"] = Case("arith.cmpi slt, {0}, {1} : {t}", t, np.less, 2, ("i1",))
    CASES[f"ult_{t}"] = Case(
        "arith.cmpi ult, {0}, {1} : {t}", t, lambda a, b: unsigned(a) < unsigned(b), 2, ("i1",)
    )
    CASES[f"uitofp_{t}"] = Case(
        "arith.uitofp {0} : {t} to {r0}", t, lambda a: unsigned(a).astype(np.float32), 1, ("f32",)
    )
for t in ("f32", "f64", "bf16", "f16"):
    CASES[f"remf_{t}"] = Case("arith.remf {0}, {1} : {t}", t, np.fmod, 2)
    CASES[f"isnan_{t}"] = Case("math.isnan {0} : {t}", t, np.isnan, 1, ("i1",))
    CASES[f"isinf_{t}"] = Case("math.isinf {0} : {t}", t, np.isinf, 1, ("i1",))
    CASES[f"isfinite_{t}"] = Case("math.isfinite {0} : {t}", t, np.isfinite, 1, ("i1",))
    CASES[f"isnormal_{t}"] = Case(
        "math.isnormal {0} : {t}", t,
        lambda a: np.isfinite(a) & (np.abs(a) >= ml_dtypes.finfo(a.dtype).smallest_normal), 1, ("i1",),
    )  # fmt: skip
    CASES[f"oeq_{t}"] = Case("arith.cmpf oeq, {0}, {1} : {t}", t, np.equal, 2, ("i1",))
    CASES[f"fptosi_{t}"] = Case(
        "arith.fptosi {0} : {t} to {r0}", t, lambda a: np.trunc(a.astype(np.float64)), 1, ("i32",)
    )
CASES["clampf"] = Case(
    "math.clampf {0} to [{1}, {2}] : {t}", "f32",
    lambda v, low, high: np.minimum(np.maximum(v, low), high), 3,
)  # fmt: skip
CASES["sincos"] = Case("math.sincos {0} : {t}", "f32", lambda a: (np.sin(a), np.cos(a)), 1, ("f32", "f32"))
CASES["erfc"] = Case("math.erfc {0} : {t}", "f32", np.vectorize(math.erfc))
CASES["asinh"] = Case("math.asinh {0} : {t}", "f32", np.arcsinh)
CASES["acosh"] = Case("math.acosh {0} : {t}", "f32", np.arccosh)
CASES["atanh"] = Case("math.atanh {0} : {t}", "f32", np.arctanh)
for name, reference in {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "maxu": lambda a, b: np.maximum(unsigned(a), unsigned(b)).view(np.int64),
    "minu": lambda a, b: np.minimum(unsigned(a), unsigned(b)).view(np.int64),
    "ceildivu": lambda a, b: (-(-unsigned(a).astype(object) // unsigned(b))).astype(np.uint64).view(np.int64),
}.items():  # fmt: skip
    CASES[f"index_{name}"] = Case(f"index.{name} {{0}}, {{1}}", "index", reference, 2, (), True)
CASES["index_sgt"] = Case("index.cmp sgt({0}, {1})", "index", np.greater, 2, ("i1",), True)
CASES["index_ule"] = Case(
    "index.cmp ule({0}, {1})", "index", lambda a, b: unsigned(a) <= unsigned(b), 2, ("i1",), True
)


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
    %c0 = arith.constant 0 : index
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


def values(name: str, type_: str, rng: np.random.Generator) -> np.ndarray:
    kind = np.dtype(NUMPY[type_])
    if np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        found = rng.integers(info.min, info.max, N, dtype=kind, endpoint=True)
        found[:6] = [1, -1, info.max, info.min, 3, 8]
        return np.where(found == 0, 5, found).astype(kind)
    found = (rng.standard_normal(N) * 4).astype(kind)
    if name.startswith("is") or name.startswith("oeq"):
        tiny = ml_dtypes.finfo(kind).smallest_subnormal
        found[:6] = [np.nan, np.inf, -np.inf, 0, tiny, ml_dtypes.finfo(kind).smallest_normal]
    if name == "acosh":
        return 1 + np.abs(found)
    return np.tanh(found) if name == "atanh" else found


@pytest.mark.parametrize("name", CASES)
def test_operation(library, run, name):
    case, rng = CASES[name], np.random.default_rng(11)
    inputs = [values(name, case.type, rng) for _ in range(case.operands)]
    if name.startswith("ipowi"):
        inputs[1] = rng.integers(-3, 7, N).astype(inputs[1].dtype)
    with np.errstate(all="ignore"):
        found = case.reference(*inputs)
    want = [np.asarray(w) for w in (found if isinstance(found, tuple) else (found,))]
    for form in ("s", "v"):
        if f"{name}_{form}" not in library.entries:
            continue
        empty = [np.zeros(N, NUMPY[t]) for t in case.targets]
        got = run(library, f"{name}_{form}", *inputs, *empty)[case.operands :]
        for result, wanted in zip(got, want, strict=True):
            if result.dtype.kind == "f":
                np.testing.assert_allclose(result, wanted.astype(result.dtype), rtol=3e-6, atol=1e-7)
            else:
                np.testing.assert_array_equal(result, wanted.astype(result.dtype))
