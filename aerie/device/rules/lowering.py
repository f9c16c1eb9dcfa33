"""The operations on the cores, against those that their compiler is known to lower (static/lowering).

A refusal that somebody has met is a fault. One that follows from the source of mlir-aie alone is a warning,
as the state of it that aircc is built with may be another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import frexp, isfinite

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, ModuleOp, VectorType
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.values import origin
from aerie.air_dialect.verifiers import enclosing
from aerie.device.lowering import Form, Row, Verdict, find, forms_of, nearest
from aerie.device.lowering.air import air_forms_of, find_air
from aerie.device.lowering.evidence import recorded
from aerie.device.npu2 import XRT_BACKEND
from aerie.device.report import Fault, Finding
from aerie.device.scopes import Program, place_of

NOWHERE = "aerie/device/lowering"
"""The source named where no upstream file tells of a form: our own table."""


def on_cores(module: ModuleOp) -> Iterator[Operation]:
    """Every operation in a herd."""
    for herd in module.walk():
        if isinstance(herd, HerdOp) and not any(isinstance(parent, HerdOp) for parent in enclosing(herd)):
            yield from herd.walk()


def forms(program: Program) -> Iterator[Finding]:
    """Forms that are known not to lower, and those of which nothing is known, each once in a place."""
    found: dict[tuple[str, Form], list[Operation]] = defaultdict(list)
    for op in on_cores(program.module):
        for form in forms_of(op):
            found[place_of(op), form].append(op)
    for (place, form), ops in found.items():
        fault = _judged(program, place, form, ops[0])
        if fault is not None:
            yield fault


def _judged(program: Program, place: str, form: Form, op: Operation) -> Fault | None:
    architecture = program.device.architecture
    row = find(form, architecture)
    if row is None:
        return _unknown(place, form, op) if architecture == "aie2p" else None
    if row.verdict.lowers or (row.verdict is Verdict.EMULATED and program.options.bf16_emulation):
        return None
    message = f"{_types(form)}: {row.note}; {row.instead}"
    is_known = row.verdict is Verdict.REFUSED and any(map(recorded, row.evidence))
    return Fault("lowering", place, message, row.evidence[0], op, certain=is_known)


def _types(form: Form) -> str:
    return str(form).removeprefix(form.op).strip()


def _unknown(place: str, form: Form, op: Operation) -> Fault:
    known = nearest(form, "aie2p")
    why = f"{_types(form)}: nothing tells whether AIE2P lowers it".removeprefix(": ")
    return Fault("lowering", place, f"{why}; {_advice(known)}", _source(known), op, certain=False)


def _advice(known: Row | None) -> str:
    if known is None:
        return "write it in operations that the table knows (docs/explanation/lowering.md), or in C++"
    return f"use what is known: {known.forms}"


def _source(known: Row | None) -> str:
    return NOWHERE if known is None else known.evidence[0]


# ---- forms of AIR ----


def known_bad(program: Program) -> Iterator[Finding]:
    """A warning for each form of AIR that mlir-air's source is known to lower wrong; nobody recorded a
    failure."""
    for op in program.module.walk():
        for form in air_forms_of(op):
            row = find_air(form, program.device.architecture)
            if row is not None and not row.verdict.lowers:
                message = f"{form.detail}: {row.note}; {row.instead}"
                yield Fault("lowering", place_of(op), message, row.evidence[0], op, certain=False)


# ---- stack ----

DIVISION_STACK = 1152
"""Bytes of stack that a scalar division of floats takes, about (mlir-air xrt.py)."""


def stack(program: Program) -> Iterator[Finding]:
    """Divisions that need more stack than there is."""
    for op in on_cores(program.module):
        yield from _division(program, op)


def _division(program: Program, op: Operation) -> Iterator[Fault]:
    if not isinstance(op, arith.DivfOp) or isinstance(op.operands[0].type, VectorType):
        return
    if program.stack_bytes < DIVISION_STACK and not _is_power_of_two(op.rhs):
        told = program.options.stack_bytes is not None
        has = f"a core has {program.stack_bytes}" + ("" if told else " where aircc is told nothing")
        message = (
            f"a division of scalar floats takes about {DIVISION_STACK} bytes of stack, and {has}; multiply "
            "with a reciprocal, or compile and check with --stack-size 2048"
        )
        yield Fault("stack", place_of(op), message, XRT_BACKEND, op, certain=told)


def _is_power_of_two(value: SSAValue) -> bool:
    """Whether it is a constant whose reciprocal is exact, so that LLVM multiplies."""
    owner = origin(value).owner
    constant = owner.value if isinstance(owner, arith.ConstantOp) else None
    if not isinstance(constant, FloatAttr) or not isfinite(constant.value.data):
        return False
    return abs(frexp(constant.value.data)[0]) == 0.5
