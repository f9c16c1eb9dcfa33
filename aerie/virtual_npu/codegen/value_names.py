"""What a value is called in messages: its name in the text, whole, or that of its location.

xDSL keeps of `%alloc_3` the name `alloc`, and nothing of `%3`. Where MLIR made the name up, as its Python
bindings print it, a location `loc("acc"(...))` has the better one, also as a part of a fused location.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.ir import BlockArgument, OpResult, SSAValue

from aerie.common import shown_names
from aerie.virtual_npu.codegen.op_errors import line_of

_NAME = r"%([\w$.-]+)"
_RESULTS = re.compile(rf"\s*((?:{_NAME}(?::\d+)?\s*,?\s*)+)=\s*\"?([\w.]+)")
_COUNTED = re.compile(_NAME + r"(?::(\d+))?")
_MADE_UP = re.compile(r"\d+|arg\d+|alloca?(_\d+)?")
_ARGUMENT = re.compile(rf"{_NAME}\s*:")
_LOCATION = re.compile(r"\bloc\(")
_PART = re.compile(
    r'"(?P<text>(?:[^"\\]|\\.)*)"\s*(?P<colon>:?)|(?P<alias>#[\w.$-]+)|(?P<call>\bcallsite\b)|\bfused<.*?>(?=\[)'
)
"""A name, or a file, which a colon follows; an alias; a call, which names no value; metadata of a fusion."""
_ALIAS = re.compile(r"(#[\w.$-]+)\s*=\s*(loc\(.*)")


class ValueNames:
    """The names of the values of a module, from the lines of its text."""

    def __init__(self, source: Sequence[str]) -> None:
        self._source = source
        self._aliases: dict[str, str] | None = None
        self._known: dict[SSAValue, str] = {}

    def of(self, value: SSAValue) -> str:
        """`%name` of a value; empty for one that has none."""
        if value not in self._known:
            self._known[value] = shown_names.value_name(self._name(value))
        return self._known[value]

    def _name(self, value: SSAValue) -> str | None:
        name, rest = self._in_text(value)
        if name is None:
            return value.name_hint
        return (self._location_name(rest) if _MADE_UP.fullmatch(name) else "") or name

    def _in_text(self, value: SSAValue) -> tuple[str | None, str]:
        """The name in the text, and the text behind it, where its location stands."""
        if isinstance(value, OpResult):
            return self._result(value)
        assert isinstance(value, BlockArgument)
        function = value.owner.parent_op()
        if not isinstance(function, func.FuncOp) or function.body.blocks.first is not value.owner:
            return None, ""
        line = self._line(line_of(function))
        found = list(_ARGUMENT.finditer(line))
        if len(found) != len(value.owner.args):
            return None, ""
        ends = [*(argument.start() for argument in found[1:]), len(line)]
        return found[value.index][1], line[found[value.index].end() : ends[value.index]]

    def _result(self, value: OpResult) -> tuple[str | None, str]:
        line = self._line(line_of(value.op))
        found = _RESULTS.match(line)
        if found is None or found[3] != value.op.name:
            return None, ""
        names: list[str] = []
        for name, count in _COUNTED.findall(found[1]):
            names += [f"{name}#{number}" for number in range(int(count))] if count else [name]
        return (names[value.index], line[found.end() :]) if value.index < len(names) else (None, "")

    def _line(self, number: int) -> str:
        return self._source[number - 1] if 0 < number <= len(self._source) else ""

    def _location_name(self, text: str) -> str:
        """The first name in the last location of a text; empty where it has none, as `"kernel.py":12:7`."""
        every = list(_LOCATION.finditer(text))
        open_searches = [_PART.finditer(text, every[-1].end())] if every else []
        seen = set[str]()
        while open_searches:
            part = next(open_searches[-1], None)
            if part is None:
                open_searches.pop()
            elif part["call"] or (part["text"] and not part["colon"]):
                return part["text"] or ""
            elif part["alias"] and part["alias"] not in seen:
                seen.add(part["alias"])
                open_searches.append(_PART.finditer(self._alias(part["alias"])))
        return ""

    def _alias(self, name: str) -> str:
        if self._aliases is None:
            matches = map(_ALIAS.match, self._source)
            self._aliases = {found[1]: found[2] for found in matches if found}
        return self._aliases.get(name, "")
