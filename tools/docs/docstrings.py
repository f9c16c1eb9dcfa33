"""A griffe extension: what a docstring says of parameters, as `name: text`, becomes a list.

The house writes them one after the other in a paragraph. In a page of the site each is an item.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMED = re.compile(r"(?:(?<=^)|(?<=[.)\"] ))(`?\w+`?(?:, `?\w+`?)*): (?=\S)", re.MULTILINE)


def as_list(text: str, names: set[str]) -> str:
    """The text with an item for each `name: ...` of these names, where a paragraph begins with one."""
    return "\n\n".join(_paragraph(each, names) for each in text.split("\n\n"))


def _paragraph(text: str, names: set[str]) -> str:
    flat = " ".join(text.split())
    places = [found for found in NAMED.finditer(flat) if _all_known(found[1], names)]
    if not places or places[0].start():
        return text
    ends = [found.start() for found in places[1:]] + [len(flat)]
    items = [
        f"- **{found[1].replace('`', '')}**: {flat[found.end() : end].strip()}"
        for found, end in zip(places, ends, strict=True)
    ]
    return "\n".join(items)


def _all_known(words: str, names: set[str]) -> bool:
    return {word.strip("` ") for word in words.split(",")} <= names


class Parameters(griffe.Extension):  # type: ignore[misc]
    def on_function(self, *, func: Any, **_: Any) -> None:
        self._rewrite(func, {parameter.name.strip("*") for parameter in func.parameters})

    def on_class(self, *, cls: Any, **_: Any) -> None:
        made = cls.members.get("__init__")
        parameters = {each.name for each in made.parameters} if made else set()
        self._rewrite(cls, set(cls.members) | parameters)

    @staticmethod
    def _rewrite(named: Any, names: set[str]) -> None:
        if named.docstring:
            extra = {"options", "sampling", "kwargs"}
            named.docstring.value = as_list(named.docstring.value, names | extra)
