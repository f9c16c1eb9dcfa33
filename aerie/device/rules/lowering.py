"""The operations on the cores, against those that their compiler is known to lower (device/lowering).

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
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.lowering import (
    LoweringRule,
    LoweringVerdict,
    OpForm,
    find_rule,
    forms_of,
    nearest_lowered_rule,
)
from aerie.device.lowering.air import air_forms_of, find_air
from aerie.device.lowering.evidence import is_reported_failure
from aerie.device.npu2 import XRT_BACKEND
from aerie.device.report import Fault, Finding
from aerie.device.scopes import CheckedProgram, op_location

NOWHERE = "aerie/device/lowering"
"""The source of a form that no upstream file describes: our own table."""


def core_operations(module: ModuleOp) -> Iterator[Operation]:
    """Every operation in a herd."""
    for herd in module.walk():
        if isinstance(herd, HerdOp) and not any(isinstance(parent, HerdOp) for parent in parent_ops(herd)):
            yield from herd.walk()


def check_op_forms(program: CheckedProgram) -> Iterator[Finding]:
    """Forms that are known not to lower, and those of which nothing is known, each once in a place."""
    by_place: dict[tuple[str, OpForm], list[Operation]] = defaultdict(list)
    places: dict[Operation | None, str] = {}
    for op in core_operations(program.module):
        forms = list(forms_of(op))
        around = op if isinstance(op, HerdOp) else op.parent_op()
        if forms and around not in places:
            places[around] = op_location(op)
        for form in forms:
            by_place[places[around], form].append(op)
    for (place, form), ops in by_place.items():
        fault = _form_fault(program, place, form, ops[0])
        if fault is not None:
            yield fault


def _form_fault(program: CheckedProgram, place: str, form: OpForm, op: Operation) -> Fault | None:
    architecture = program.device.architecture
    rule = find_rule(form, architecture)
    if rule is None:
        return _unknown(place, form, op) if architecture == "aie2p" else None
    if rule.verdict.lowers or (rule.verdict is LoweringVerdict.EMULATED and program.options.bf16_emulation):
        return None
    message = f"{_types(form)}: {rule.note}; {rule.alternative}"
    is_known = rule.verdict is LoweringVerdict.REFUSED and any(map(is_reported_failure, rule.evidence))
    return Fault("lowering", place, message, rule.evidence[0], op, certain=is_known)


def _types(form: OpForm) -> str:
    return str(form).removeprefix(form.op).strip()


def _unknown(place: str, form: OpForm, op: Operation) -> Fault:
    rule = nearest_lowered_rule(form, "aie2p")
    why = f"{_types(form)}: there is no evidence that AIE2P lowers it".removeprefix(": ")
    return Fault("lowering", place, f"{why}; {_advice(rule)}", _source(rule), op, certain=False)


def _advice(rule: LoweringRule | None) -> str:
    if rule is None:
        return "write it in operations that the table knows (docs/dev/lowering.md), or in C++"
    return f"use a known form: {rule.forms}"


def _source(rule: LoweringRule | None) -> str:
    return NOWHERE if rule is None else rule.evidence[0]


# ---- forms of AIR ----


def check_air_forms(program: CheckedProgram) -> Iterator[Finding]:
    """A warning for each form of AIR that mlir-air's source is known to lower wrong; nobody recorded a
    failure."""
    for op in program.module.walk():
        for form in air_forms_of(op):
            rule = find_air(form, program.device.architecture)
            if rule is not None and not rule.verdict.lowers:
                message = f"{form.detail}: {rule.note}; {rule.alternative}"
                yield Fault("lowering", op_location(op), message, rule.evidence[0], op, certain=False)


# ---- stack ----

DIVISION_STACK = 1152
"""Bytes of stack that a scalar division of floats takes, about (mlir-air xrt.py)."""


def check_stack(program: CheckedProgram) -> Iterator[Finding]:
    """Divisions that need more stack than there is."""
    for op in core_operations(program.module):
        yield from _division(program, op)


def _division(program: CheckedProgram, op: Operation) -> Iterator[Fault]:
    if not isinstance(op, arith.DivfOp) or isinstance(op.operands[0].type, VectorType):
        return
    if program.stack_bytes < DIVISION_STACK and not _is_power_of_two(op.rhs):
        is_given = program.options.stack_bytes is not None
        has = f"a core has {program.stack_bytes}" + ("" if is_given else " unless aircc gets another size")
        message = (
            f"a division of scalar floats takes about {DIVISION_STACK} bytes of stack, and {has}; multiply "
            "with a reciprocal, or compile and check with --stack-size 2048"
        )
        yield Fault("stack", op_location(op), message, XRT_BACKEND, op, certain=is_given)


def _is_power_of_two(value: SSAValue) -> bool:
    """Whether it is a constant whose reciprocal is exact, so that LLVM multiplies."""
    owner = root_value(value).owner
    constant = owner.value if isinstance(owner, arith.ConstantOp) else None
    if not isinstance(constant, FloatAttr) or not isfinite(constant.value.data):
        return False
    return abs(frexp(constant.value.data)[0]) == 0.5
