"""Stop strings: where a text that comes in pieces ends.

A text ends where a stop string is complete: the first one that is, and of several that become complete with
one character the one that started first. So the end does not depend on the pieces. Text that may be the start
of a stop string is held back until it is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aerie.engine.error_scope import isolate_request_errors


class StopStrings:
    """Cuts a text at stop strings, none of them empty. found: the one that ended the text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._pending = ""

    def feed(self, piece: str) -> str:
        """The text that is certain after `piece`; "" once a stop string was found."""
        if self.found is not None:
            return ""
        self._pending += piece
        complete = [
            (at + len(stop), at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0
        ]
        if complete:
            _, sure, self.found = min(complete)
            text, self._pending = self._pending[:sure], ""
        else:
            sure = len(self._pending) - max(
                (_prefix_length(self._pending, stop) for stop in self._stops), default=0
            )
            text, self._pending = self._pending[:sure], self._pending[sure:]
        return text

    def flush(self) -> str:
        """The text that was held back, at the end of the answer."""
        text, self._pending = self._pending, ""
        return text

    def truncate(self, pieces: Iterable[str]) -> Iterator[str]:
        """A piece for each of the pieces, up to a stop string. No more pieces are taken than needed."""
        for piece in pieces:
            with isolate_request_errors():
                sure = self.feed(piece)
            yield sure
            if self.found is not None:
                return
        if rest := self.flush():
            yield rest


def _prefix_length(text: str, stop: str) -> int:
    """Number of characters at the end of `text` that are an incomplete start of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
