"""Launches whose C++ is alike share it: one body with parameters, which is compiled once.

Each launch is analysed and emitted by itself. Afterwards, launches whose functions differ only in names of
their own, in lines, in labels, and with checks in numbers, are found by their text. The functions of the
first become those of all, with a pointer to a constant that holds what differs; each launch keeps a function
of its own name, which calls them. A program without such launches keeps its C++ as it is.

A number becomes a parameter only where C++ wants no constant and converts it as it stands: not in template
arguments, initializers in braces, or `static` and `constexpr` statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from aerie.virtual_npu.codegen.body import CppFile

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*) | (?P<text>"(?:[^"\\\n]|\\.)*") | (?P<float>0x[0-9a-f.]+p[+-]?\d+\b)
    | (?P<int>\d{1,9}\b(?![.\w])) | (?P<name>(?:\.|->|::)?[A-Za-z_]\w*) | (?P<bracket>[(){}<>\[\]])
    | (?P<end>;) | (?P<other>\s+|\w+|[^\w\s"(){}<>\[\];]+?)""",
    re.VERBOSE,
)
_HEAD = re.compile(
    r"(?:VNPU_ISSUES_ONLY )?static (?P<result>[\w:]+) (?P<name>\w+)\((?P<parameters>[^\n]*)\) \{\n"
)
_LABEL = re.compile(r"^static (?:constexpr|const) (?P<type>vnpu::\w+) (?P<name>\w+)\b(?!\[)", re.MULTILINE)
_STRUCT = re.compile(r"struct (?P<name>\w+) \{\n")
_TYPES = {"text": "const char *", "int": "int ", "float": "double "}
_CONSTANTS = ("static", "constexpr", "case", "alignas")
"""Words after which numbers stay up to the end of the statement."""
_CLOSING = {")": "(", "}": "{", "]": "[", ">": "<"}


class Slot(NamedTuple):
    """A piece of C++ that may differ between launches that are alike: its C++ type, and what stands there."""

    type: str
    text: str


Piece = str | Slot


class _Names(NamedTuple):
    """Declarations of a file: the types of constants that describe places, and structs of channels, as text
    without their own name."""

    labels: Mapping[str, str]
    structs: Mapping[str, str]

    @staticmethod
    def of(declarations: Sequence[str]) -> _Names:
        labels = [match for text in declarations for match in _LABEL.finditer(text)]
        structs = [match for text in declarations if (match := _STRUCT.match(text))]
        return _Names(
            {match["name"]: f"const {match['type']} &" for match in labels},
            {match["name"]: re.sub(rf"\b{match['name']}\b", "", match.string) for match in structs},
        )


# ---- what a launch consists of ----


class _Brackets:
    """The brackets that are open at a place of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[str] = []
        self._is_frozen = False

    def pass_token(self, token: str, kind: str, begin: int) -> None:
        """Go on behind a token, which begins there."""
        if token in _CONSTANTS and self._open:
            self._is_frozen = True
        elif kind == "end":
            self._is_frozen = False
        elif kind == "bracket":
            self._pass_bracket(token, begin)

    def _pass_bracket(self, token: str, begin: int) -> None:
        before = self._text[:begin][-20:]
        if token in _CLOSING:
            if self._open and self._open[-1][0] == _CLOSING[token]:
                self._open.pop()
        elif token == "{" and re.search(r"vnpu::(Site|ExecutionPlace)$", before):
            self._open.append("{place")
        elif token == "{" and (before.endswith(") ") or self._text.startswith("\n", begin + 1)):
            self._open.append("{block")
        elif token != "<" or not before.endswith(" "):  # that is a comparison
            self._open.append(token)

    @property
    def wants_constants(self) -> bool:
        """Whether what stands here is to stay as it is."""
        return self._is_frozen or "<" in self._open

    @property
    def is_of_place(self) -> bool:
        """Whether a `vnpu::Site` or `vnpu::ExecutionPlace` is made here."""
        return self._open[-1:] == ["{place"] and not self.wants_constants

    @property
    def takes_variables(self) -> bool:
        """Whether a number here may become a variable."""
        return self._open[-1:] in (["("], ["{block"]) and not self.wants_constants


@dataclass
class _Launch:
    """The functions of a launch; its own comes last."""

    functions: Sequence[str]
    names: _Names
    with_numbers: bool
    """Whether numbers may differ, not only lines."""

    @cached_property
    def heads(self) -> list[re.Match[str]]:
        """The heads of the functions; fewer where one has another form."""
        return [match for text in self.functions if (match := _HEAD.match(text))]

    @cached_property
    def own(self) -> dict[str, int]:
        """The names of the functions."""
        return {match["name"]: number for number, match in enumerate(self.heads)}

    @cached_property
    def pieces(self) -> list[list[Piece]]:
        """The functions in pieces."""
        return [list(self._pieces(text)) for text in self.functions]

    @cached_property
    def slots(self) -> list[Slot]:
        """All that may differ, in order."""
        return [piece for pieces in self.pieces for piece in pieces if isinstance(piece, Slot)]

    @cached_property
    def skeleton(self) -> str:
        """What launches that are alike have in common."""
        return "\n".join("".join(map(self._common, pieces)) for pieces in self.pieces)

    def _common(self, piece: Piece) -> str:
        if isinstance(piece, Slot):
            return f"\0{piece.type}"
        if piece in self.own:
            return f"\0{self.own[piece]}"
        return self.names.structs.get(piece, "" if piece.startswith("//") else piece)

    def _pieces(self, text: str) -> Iterator[Piece]:
        brackets = _Brackets(text)
        for match in _TOKEN.finditer(text):
            token, kind = match[0], match.lastgroup or ""
            if kind == "name" and token in self.names.labels and not brackets.wants_constants:
                yield Slot(self.names.labels[token], token)
            elif kind in _TYPES and (
                (brackets.is_of_place and kind != "float")
                or (self.with_numbers and kind != "text" and brackets.takes_variables)
            ):
                yield Slot(_TYPES[kind], token)
            else:
                yield token
            brackets.pass_token(token, kind, match.start())


# ---- sharing ----


def share_launches(file: CppFile) -> None:
    """Let launches that are alike call the same functions, in place."""
    names = _Names.of(file.declarations)
    numbers_of_lines = [[file.functions[i].count("\n") for i in place] for place in file.launches]
    groups: dict[str, list[tuple[range, _Launch]]] = {}
    for place, numbers in zip(file.launches, numbers_of_lines, strict=True):
        launch = _Launch([file.functions[i] for i in place], names, file.options.checks)
        if numbers_of_lines.count(numbers) > 1 and len(launch.heads) == len(launch.functions):
            groups.setdefault(launch.skeleton, []).append((place, launch))
    for group in groups.values():
        if len(group) > 1:
            _share(file, [place for place, _ in group], [launch for _, launch in group])
    file.functions = [text for text in file.functions if text]
    used = "\n".join(file.functions)
    unused = [name for name in names.structs if not re.search(rf"\b{name}\b", used)]
    file.declarations = [
        text for text in file.declarations if not ((match := _STRUCT.match(text)) and match["name"] in unused)
    ]


def _share(file: CppFile, places: Sequence[range], launches: Sequence[_Launch]) -> None:
    values = list(zip(*(launch.slots for launch in launches), strict=True))
    differing = [found for found in dict.fromkeys(values) if len(set(found)) > 1]
    fields = {found: f"a{number}" for number, found in enumerate(differing)}
    struct, constant = file.fresh("Alike"), file.fresh("alike")
    members = "".join(f"  {found[0].type}{name};\n" for found, name in fields.items())
    shared = _shared_functions(launches[0], [fields.get(found) for found in values], struct)
    last = launches[0].heads[-1]["name"]
    for number, (place, launch) in enumerate(zip(places, launches, strict=True)):
        made = ", ".join(found[number].text for found in differing)
        table = f"static constexpr {struct} {constant}_{number}{{{made}}};"
        for i in place:
            file.functions[i] = ""
        file.functions[place[-1]] = (
            f"{table}\n\n{_call_of(launch.heads[-1], f'{last}_alike', f'{constant}_{number}')}"
        )
    head = f"// {len(launches)} launches share this; its comments carry the lines of the first.\n"
    functions = [f"{head}struct {struct} {{\n{members}}};", *shared]
    file.functions[places[0][0]] = "\n\n".join([*functions, *filter(None, [file.functions[places[0][0]]])])


def _shared_functions(launch: _Launch, fields: Sequence[str | None], struct: str) -> Iterator[str]:
    """The functions of a launch with a further parameter. fields: for each slot, the name of what differs."""
    rest = iter(fields)
    for pieces in launch.pieces:
        texts: list[str] = []
        added = f"const {struct} *alike"  # first in the function's head, then in its calls
        calls: list[int] = []
        depth = 0
        for piece in pieces:
            if isinstance(piece, Slot):
                name = next(rest)
                texts.append(piece.text if name is None else f"alike->{name}")
                continue
            depth += (piece == "(") - (piece == ")")
            if piece == ")" and calls[-1:] == [depth]:
                calls.pop()
                texts += ["" if texts[-1] == "(" else ", ", added]
                added = "alike"
            texts.append(piece)
            if piece in launch.own:
                texts[-1] += "_alike"
                calls.append(depth)
        yield "".join(texts)


def _call_of(head: re.Match[str], function: str, constant: str) -> str:
    """A launch's own function, which calls the one that it shares."""
    parameters = re.sub(r"<[^<>]*>", "", head["parameters"])
    arguments = re.findall(r"(\w+)(?=,|$)", parameters)
    call = f"{function}({', '.join([*arguments, f'&{constant}'])});"
    return f"{head[0]}  {'' if head['result'] == 'void' else 'return '}{call}\n}}"
