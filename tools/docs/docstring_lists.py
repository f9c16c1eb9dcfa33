"""What a docstring says of parameters, one after the other as `name: text`, as a list in Markdown."""

from __future__ import annotations

import re

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
