"""What a row of the table says: a form, what the compiler of the cores makes of it, and who says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

ALL, AIE2, AIE2P = ("aie2", "aie2p"), ("aie2",), ("aie2p",)


class LoweringVerdict(Enum):
    """What becomes of a form on a core; the value is how docs and messages say it."""

    DIRECT = "as it is"
    SPLIT = "in pieces"
    SCALAR = "a lane at a time, or by a library call"
    EMULATED = "only with --bf16-emulation"
    REFUSED = "refused"
    WRONG = "compiled wrong"

    @property
    def lowers(self) -> bool:
        """Whether a program may use the form as it stands."""
        return self in (LoweringVerdict.DIRECT, LoweringVerdict.SPLIT, LoweringVerdict.SCALAR)


@dataclass(frozen=True)
class OpForm:
    """One way to use an operation: what the compiler of the cores looks at to choose how to lower it.

    element: the type that it computes on, or moves. lanes: all of a vector's, 0 for a scalar or no type.
    detail: what else matters, such as the type that a conversion gives, or the kind of a reduction.
    """

    op: str
    element: str = ""
    lanes: int = 0
    detail: str = ""

    def __str__(self) -> str:
        type_ = f"vector<{self.lanes}x{self.element}>" if self.lanes else self.element
        return " ".join(part for part in (self.op, type_, self.detail) if part)


ANY = -1
"""Vectors of any number of lanes."""


@dataclass(frozen=True)
class LoweringRule:
    """How the core's compiler treats a set of op forms.

    elements: element types, () for any. lanes: numbers of lanes, 0 for scalars, ANY for any vector.
    details: the values of `OpForm.detail` that match. evidence: upstream's files, the strongest first:
    programs that run on an NPU2, then tests of the lowering, then sources.
    note: a remark; for a form that does not lower, the reason. alternative: what to write instead.
    """

    ops: tuple[str, ...]
    elements: tuple[str, ...]
    lanes: tuple[int, ...]
    verdict: LoweringVerdict
    evidence: tuple[str, ...]
    note: str = ""
    alternative: str = ""
    details: tuple[str, ...] = ("",)
    architectures: tuple[str, ...] = AIE2P

    def matches(self, form: OpForm, architecture: str) -> bool:
        """Whether the row is about this form on cores of this architecture."""
        return (
            form.op in self.ops
            and architecture in self.architectures
            and (not self.elements or form.element in self.elements)
            and (form.lanes in self.lanes or (ANY in self.lanes and form.lanes > 0))
            and form.detail in self.details
        )

    @property
    def forms(self) -> str:
        """The forms as docs and messages name them; details only where they are not all."""
        details = "" if "" in self.details else " or ".join(self.details)
        return " ".join(filter(None, [", ".join(f"`{op}`" for op in self.ops), self._types, details]))

    @property
    def _types(self) -> str:
        elements = " or ".join(self.elements)
        if ANY in self.lanes:
            return f"any vector of {elements}" if elements else "any vector"
        vectors = ", ".join(str(count) for count in self.lanes if count)
        return f"{vectors} x {elements or 'any type'}" if vectors else elements


def rule(
    verdict: LoweringVerdict,
    ops: str,
    types: str,
    *evidence: str,
    note: str = "",
    alternative: str = "",
    details: tuple[str, ...] = ("",),
    architectures: tuple[str, ...] = AIE2P,
) -> LoweringRule:
    """A row as the tables write it.

    ops: with blanks between them. types: `16 32 x bf16 f32` for vectors, `any x f32`, `f32` for scalars, `x`
    for vectors of any type, and nothing for operations without one.
    """
    lanes, is_vector, elements = f" {types} ".rpartition(" x ")
    counts = [ANY if count == "any" else int(count) for count in (lanes.split() or ["any"])]
    return LoweringRule(
        tuple(ops.split()),
        tuple(elements.split()),
        tuple(counts) if is_vector else (0,),
        verdict,
        evidence,
        note,
        alternative,
        details,
        architectures,
    )


RuleFactory = Callable[..., LoweringRule]
direct: RuleFactory = partial(rule, LoweringVerdict.DIRECT)
split: RuleFactory = partial(rule, LoweringVerdict.SPLIT)
scalar: RuleFactory = partial(rule, LoweringVerdict.SCALAR)
emulated: RuleFactory = partial(rule, LoweringVerdict.EMULATED)
refused: RuleFactory = partial(rule, LoweringVerdict.REFUSED)
wrong: RuleFactory = partial(rule, LoweringVerdict.WRONG)


def distance(form: OpForm, rule: LoweringRule) -> tuple[int, ...]:
    """How far a form is from a row about the same operation: details and element first, then lanes."""
    return (
        form.detail not in rule.details,
        bool(rule.elements) and form.element not in rule.elements,
        (0 in rule.lanes) != (form.lanes == 0),
        min(abs(form.lanes - lanes) for lanes in rule.lanes),
    )
