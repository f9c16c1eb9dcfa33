"""Drafters without a model: texts repeat what they had before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

MAX_NGRAM, MIN_NGRAM = 4, 2
"""Tokens of the n-grams that prompt lookup compares."""


class Drafter(Protocol):
    """Drafts tokens for one answer."""

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """At most `max_drafts` tokens that may follow these ids, prompt and answer; may be empty."""

    def close(self) -> None:
        """Release resources: the answer is finished."""


def no_programs_needed(prompt_tokens: int, new_tokens: int) -> None:
    """Does nothing: these drafts need no programs."""


class DraftSource(NamedTuple):
    """A source of drafts.

    make_drafter: makes the drafter of an answer. cost: time of a draft, relative to a pass of the model;
    cost_is_total: it is the time of all drafts of a pass. ensure_programs: compiles what drafts need after a
    prompt of this number of tokens, for this number of new tokens.
    """

    make_drafter: Callable[[], Drafter]
    cost: float = 0.0
    cost_is_total: bool = False
    ensure_programs: Callable[[int, int], None] = no_programs_needed


class PromptLookupDrafter:
    """Prompt lookup: the tokens that followed the last earlier occurrence of the text's last n-gram, the
    longest that occurred.

    At the end of the text it continues over its own drafts: a text that repeats a line is expected to repeat
    it again. Each answer has its own drafter, which remembers the text so far: a call costs as much as the
    text that is new. before: a text that counts as if it were before the prompt.
    """

    def __init__(self, before: Sequence[int] = ()) -> None:
        self._before = tuple(before)
        self._follows: dict[tuple[int, ...], int] = {}
        self._known = 0

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """`tokens` starts with those of the call before."""
        tokens = (*self._before, *tokens) if self._before else tokens
        self._learn(tokens)
        positions = map(self._follows.get, _ngrams_before(tokens, len(tokens)))
        position = next(filter(None, positions), None)
        if position is None:
            return ()
        text = list(tokens[position:])
        for _ in range(max_drafts):
            text.append(text[len(text) - (len(tokens) - position)])
        return text[len(tokens) - position :]

    def _learn(self, tokens: Sequence[int]) -> None:
        """Record where each n-gram was last, except those at the very end, which equal themselves."""
        for end in range(self._known, len(tokens)):
            for key in _ngrams_before(tokens, end):
                self._follows[key] = end
        self._known = len(tokens)

    def close(self) -> None:
        """Does nothing: this drafter holds no resources."""


def prediction_source(prompt: Sequence[int], answer: Sequence[int]) -> DraftSource:
    """Drafts for an answer that is expected to be similar to `answer`, such as a text with one word changed:
    prompt lookup in that text too, as if it followed the prompt's last tokens."""
    return DraftSource(partial(PromptLookupDrafter, (*prompt[-MAX_NGRAM:], *answer)))


def _ngrams_before(tokens: Sequence[int], end: int) -> list[tuple[int, ...]]:
    """The n-grams that end before this position, longest first."""
    return [tuple(tokens[end - n : end]) for n in range(MAX_NGRAM, MIN_NGRAM - 1, -1) if n <= end]
