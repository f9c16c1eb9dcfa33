"""What comes next, guessed without the model: texts say again what they have said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

MAX_NGRAM, MIN_NGRAM = 4, 2
"""Tokens of the n-grams by which a place that was like this one is looked for."""


class Drafter(Protocol):
    """Guesses for one answer."""

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """Up to `most` guesses of what follows these ids, prompt and answer; none where it has none."""

    def close(self) -> None:
        """The answer is over: let go of what is held."""


def no_programs_needed(prompt_tokens: int, new_tokens: int) -> None:
    """Guesses that need no programs."""


class DraftSource(NamedTuple):
    """Where guesses come from: `make` gives each answer its drafter; cost: what a guess takes of the time
    that a pass of the model does; at_once: that is what all guesses of a pass take together. make_room: has
    what guesses need after a prompt of so many tokens, and in so many more."""

    make_drafter: Callable[[], Drafter]
    cost: float = 0.0
    cost_is_total: bool = False
    ensure_programs: Callable[[int, int], None] = no_programs_needed


class PromptLookupDrafter:
    """Prompt lookup: what followed the last place that ended as the text ends now, by the longest n-gram.

    Where that runs into the end of the text it goes on over its own guesses: a text that repeats a line is
    taken to repeat it again. An answer has one of its own, which remembers the text that it was shown: a call
    costs as much as what is new in it. before: a text that is looked at as if it came before all.
    """

    def __init__(self, before: Sequence[int] = ()) -> None:
        self._before = tuple(before)
        self._follows: dict[tuple[int, ...], int] = {}
        self._known = 0

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """See Drafter. `tokens` begins with those of the call before."""
        tokens = (*self._before, *tokens) if self._before else tokens
        self._learn(tokens)
        place = next(
            (at for key in _ngrams_before(tokens, len(tokens)) if (at := self._follows.get(key))), None
        )
        if place is None:
            return ()
        text = list(tokens[place:])
        for _ in range(max_drafts):
            text.append(text[len(text) - (len(tokens) - place)])
        return text[len(tokens) - place :]

    def _learn(self, tokens: Sequence[int]) -> None:
        """Remember where each n-gram was last, but for those at the very end, which all of them are like."""
        for end in range(self._known, len(tokens)):
            for key in _ngrams_before(tokens, end):
                self._follows[key] = end
        self._known = len(tokens)

    def close(self) -> None:
        """Nothing is held."""


def prediction_source(prompt: Sequence[int], answer: Sequence[int]) -> DraftSource:
    """Guesses of an answer that is expected to be much like this one, such as a text with a word changed: by
    lookup in it too, as what follows the prompt's last tokens."""
    return DraftSource(partial(PromptLookupDrafter, (*prompt[-MAX_NGRAM:], *answer)))


def _ngrams_before(tokens: Sequence[int], end: int) -> list[tuple[int, ...]]:
    """The n-grams that end before this position, the longest first."""
    return [tuple(tokens[end - n : end]) for n in range(MAX_NGRAM, MIN_NGRAM - 1, -1) if n <= end]
