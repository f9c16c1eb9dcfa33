"""C++ text: sums, products, names and strings; affine expressions, maps and sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir.affine import AffineConstraintKind, AffineExpr, AffineMap, AffineSet

from aerie.air_dialect.indices import Operator, Reading


def is_integer(text: str) -> bool:
    """Whether a text is an integer literal."""
    return text.lstrip("-").isdigit()


def times(left: str, right: str) -> str:
    """C++ text of a product; integer literals are folded."""
    if is_integer(left) and is_integer(right):
        return str(int(left) * int(right))
    if "0" in (left, right):
        return "0"
    if left == "1":
        return right
    return left if right == "1" else f"{left} * {right}"


def plus(*terms: str) -> str:
    """C++ text of a sum; integer literals are folded."""
    literal = sum(int(term) for term in terms if is_integer(term))
    open_terms = [term for term in terms if not is_integer(term)]
    return " + ".join(open_terms + ([str(literal)] if literal or not open_terms else []))


def grouped(text: str) -> str:
    """The text in parentheses, unless it is one identifier or number."""
    return text if text.isidentifier() or is_integer(text) else f"({text})"


def quotable(name: str) -> str:
    """A name as it stands in a C++ string: a symbol may have quotes and backslashes of its own."""
    return name.replace("\\", "/").replace('"', "'")


def quoted(text: str) -> str:
    """A C++ string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_KEYWORDS = frozenset([
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
    "const", "continue", "default", "delete", "do", "double", "else", "enum", "explicit", "export",
    "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable",
    "namespace", "new", "not", "operator", "or", "private", "protected", "public", "register", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true",
    "try", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while",
    "xor",
    # names that generated code uses itself
    "channels", "island", "modes", "where", "sequencer", "arena", "arguments", "flat", "rest", "lane",
    "transfer", "vnpu", "nested",
])  # fmt: skip

_FUNCTIONS = ("func_", "launch", "segment", "herd", "global_")
"""How the names of generated functions and globals begin."""


def local_name(hint: str | None) -> str:
    """A C++ identifier for a local variable: no keyword, and no name that generated functions have."""
    base = "".join(char if char.isalnum() else "_" for char in hint or "v")
    is_taken = not base[0].isalpha() or base in _KEYWORDS or base.startswith(_FUNCTIONS)
    return f"v{base}" if is_taken else base


# ---- affine ----


def _call(function: str) -> Callable[[str, str], str]:
    return lambda left, right: f"vnpu::{function}({left}, {right})"


TEXTS: Reading[str] = Reading(
    str,
    {
        **dict.fromkeys(Operator),
        Operator.ADD: lambda left, right: grouped(plus(left, right)),
        Operator.MULTIPLY: lambda left, right: grouped(times(left, right)),
        Operator.MODULO: _call("floor_mod"),
        Operator.FLOOR_DIVIDE: _call("floor_div"),
        Operator.CEIL_DIVIDE: _call("ceil_div"),
        Operator.MIN: _call("minsi<vnpu::i64>"),
        Operator.MAX: _call("maxsi<vnpu::i64>"),
    },
)
"""The reading of affine expressions, and of bounds of loops, as C++ text."""
_CONSTRAINTS = {AffineConstraintKind.ge: ">=", AffineConstraintKind.le: "<=", AffineConstraintKind.eq: "=="}


def _expression(expr: AffineExpr, dims: Sequence[str], symbols: Sequence[str] = ()) -> str:
    """C++ text of an affine expression over given dimension and symbol texts."""
    text = TEXTS.expression(expr, [*dims, *symbols], len(dims))
    assert text is not None  # every operation has a text
    return text


def map_results(map_: AffineMap, operands: Sequence[str]) -> list[str]:
    """C++ text of every result of a map; operands are the dimensions, then the symbols."""
    dims, symbols = operands[: map_.num_dims], operands[map_.num_dims :]
    return [_expression(result, dims, symbols) for result in map_.results]


def folded(operator: Operator, texts: Sequence[str]) -> str:
    """C++ text of the smallest (MIN) or largest (MAX) of several texts."""
    text = TEXTS.apply(operator, texts)
    assert text is not None
    return text


def set_condition(set_: AffineSet, operands: Sequence[str]) -> str:
    """C++ text of the condition that operands lie in an integer set."""
    dims, symbols = operands[: set_.num_dims], operands[set_.num_dims :]
    parts = [
        f"{_expression(c.lhs, dims, symbols)} {_CONSTRAINTS[c.kind]} {_expression(c.rhs, dims, symbols)}"
        for c in set_.constraints
    ]
    return " && ".join(parts) or "true"
