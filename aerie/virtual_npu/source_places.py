"""Where the lines of a text come from, as its own locations say, added to the errors that name lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

from aerie.common.errors import ProgramError

SourcePlaces = Mapping[int, str]
"""By the line of an operation, the place that its location names: `kernel.py:12:7`."""

_LINE = re.compile(r"\bline (\d+)|^[^\n]*?:(\d+):\d+: error")


def places_in(text: str) -> SourcePlaces:
    """The places that the locations of a text name; none where it does not parse."""
    from aerie.air_dialect import AirParseError, source_places  # xDSL comes with it

    try:
        return source_places(text)
    except AirParseError:
        return {}


def with_places(message: str, places: SourcePlaces) -> str:
    """The message, and behind it the place of each line that it names, where it does not say that already."""
    lines = dict.fromkeys(int(match[1] or match[2]) for match in _LINE.finditer(message))
    known = [f"line {line} is {places[line]}" for line in lines if line in places]
    new = [sentence for sentence in known if sentence not in message]
    return f"{message}; {', '.join(new)}" if new else message


@contextlib.contextmanager
def naming_places(find: Callable[[], SourcePlaces]) -> Iterator[None]:
    """Add the places to the message of a ProgramError. find: gives them, where there is one."""
    try:
        yield
    except ProgramError as error:
        named = with_places(str(error), find())
        if named != str(error):
            error.args = (named,)
        raise
