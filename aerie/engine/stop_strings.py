"""Stop strings: where a text ends that comes in pieces.

A text ends where a stop string is complete: the first one that is, and of several that become so with one
character the one that began first. So the end is the same however the text is cut into pieces. What may be
the beginning of a stop string is held back until it is sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aerie.engine.error_scope import isolate_request_errors


class StopStrings:
    """A text on its way past stop strings, none of them empty. `found` is the one that ended it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""

    def feed(self, piece: str) -> str:
        """What is sure to belong to the text now that `piece` has come; nothing once one was found."""
        if self.found is not None:
            return ""
        self._held += piece
        complete = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if complete:
            _, sure, self.found = min(complete)
            text, self._held = self._held[:sure], ""
        else:
            sure = len(self._held) - max((_begun(self._held, stop) for stop in self._stops), default=0)
            text, self._held = self._held[:sure], self._held[sure:]
        return text

    def flush(self) -> str:
        """What was held back, where no more comes."""
        text, self._held = self._held, ""
        return text

    def truncate(self, pieces: Iterable[str]) -> Iterator[str]:
        """A piece for each of the pieces, up to where a stop string begins. No more are taken than needed."""
        for piece in pieces:
            with isolate_request_errors():
                sure = self.feed(piece)
            yield sure
            if self.found is not None:
                return
        if rest := self.flush():
            yield rest


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` are a beginning of `stop`, and not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
