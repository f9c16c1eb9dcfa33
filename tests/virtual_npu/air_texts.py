"""AIR texts of tests, with less to write: `%c0`, `%c1`, ... are indices wherever they are used.

MLIR wants every constant declared in every region that nothing is seen into from outside (functions,
launches, segments, herds). with_constants does that, without a new line: line numbers stay what they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|[{}]|%c(\d+)\b(=|\s+=\s|:)?')
ISOLATED = re.compile(r"\b(func\.func|air\.(rank|launch|segment|herd))\b")


@dataclass
class Region:
    """An isolated region: where its body begins, and the constants that it uses and defines itself."""

    begin: int
    used: set[int] = field(default_factory=set)
    defined: set[int] = field(default_factory=set)

    def constants(self) -> str:
        missing = sorted(self.used - self.defined)
        return "".join(f" %c{number} = arith.constant {number} : index" for number in missing)


def with_constants(text: str) -> str:
    """The text, with a declaration of each `%cN` at the beginning of every region that uses it."""
    found, open_regions, closes = [Region(0)], [Region(0)], []
    head_begin, signature = 0, set[int]()  # of the operation at hand
    for token in TOKEN.finditer(text):
        if token[1] is not None:
            region, number = open_regions[-1], int(token[1])
            region.used.add(number)
            if token[2] == ":":
                signature.add(number)
            elif token[2]:
                region.defined.add(number)
        elif token[0] == "{":
            head = text[head_begin : token.start()]
            if head.rstrip().endswith("attributes"):
                closes.append(("attributes", head_begin))
                continue
            is_isolated = ISOLATED.search(head) is not None
            closes.append(("region" if is_isolated else "", 0))
            if is_isolated:
                open_regions.append(Region(token.end(), defined=signature))
                found.append(open_regions[-1])
            head_begin, signature = token.end(), set()
        elif token[0] == "}":
            kind, before = closes.pop()
            if kind == "region":
                open_regions.pop()
            head_begin = before if kind == "attributes" else token.end()
    for region in sorted(found[1:], key=lambda region: region.begin, reverse=True):
        text = text[: region.begin] + region.constants() + text[region.begin :]
    return text
