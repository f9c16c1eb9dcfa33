"""What drafts by lookup save on the committed texts by a table of costs: no clock, no model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from aerie.engine.generate import FinishReason
from aerie.engine.strategies.draft_length import AdaptiveDraftLength, allocate_drafts
from aerie.engine.strategies.drafters import PromptLookupDrafter
from aerie.engine.strategies.speculative import SpeculativeStrategy
from aerie.engine.strategies.strategy import DraftEstimate
from benchmarks.drafts import SEPARATOR, TEXTS

AVX512_BF16, AVX512 = {8: 1.0, 16: 1.33, 32: 2.2}, {8: 1.0, 16: 1.57, 32: 3.1}
"""What a pass of up to so many rows takes, over one of 8 (docs/dev/performance-notes.md, few rows)."""
EACH_ROW = {1: 0.63, 2: 0.65, 4: 0.78, 8: 1.0, 16: 1.55, 32: 2.9}
"""The same as it was found in one run on AVX512-BF16 (docs/dev/performance-notes.md, several tokens a
pass): there a draft token takes time among the first rows too."""


class KnownAnswer:
    """An answer that says a text: see RequestState. Logits are places in the answer."""

    def __init__(self, prompt: list[int], text: list[int]) -> None:
        self.prompt_ids, self.text, self.token_ids = tuple(prompt), text, text[:1]
        self.positions = 10_000
        self.finish_reason: FinishReason | None = None

    @property
    def remaining_tokens(self) -> int:
        return len(self.text) - len(self.token_ids)

    @property
    def free_positions(self) -> int:
        return self.positions - len(self.tokens)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.token_ids]

    def tokens_after(self, length: int) -> list[int]:
        return self.tokens[length:]

    def sample(self, logits: object) -> int:
        return self.text[len(self.token_ids)]

    def append_token(self, token: int) -> bool:
        self.token_ids.append(token)
        return bool(self.remaining_tokens)

    def finish(self, reason: FinishReason) -> None:
        raise AssertionError(reason)


def text_of(name: str) -> tuple[list[int], list[int]]:
    """Question and answer; a token is a word with the space before it, as tokenizers have it."""
    parts = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").split(SEPARATOR)
    words = [re.findall(r" ?\w+|\n *| +|[^\w\s]", part) for part in parts]
    ids = {word: number for number, word in enumerate(dict.fromkeys(words[0] + words[1]), start=3)}
    prompt, answer = ([ids[word] for word in part] for part in words)
    return prompt, answer


def times_plain(
    names: Sequence[str], costs: Mapping[int, float], shares: Callable[..., list[int]] = allocate_drafts
) -> float:
    """Tokens in the time of a pass, over plain decoding, while answers that say these texts are under way.
    Each begins at another place of its text, so that they do not repeat themselves at once."""
    making = [_known_answer(name, number / len(names)) for number, name in enumerate(names)]
    strategies = [SpeculativeStrategy(one, PromptLookupDrafter(), AdaptiveDraftLength()) for one in making]
    every, time = list(zip(making, strategies, strict=True)), 0.0
    while all(one.remaining_tokens for one in making):
        inputs = [strategy.next_input(len(one.tokens) - 1) for one, strategy in every]
        counts = shares(len(names), [each.drafts for each in inputs])
        tried = [
            strategy.next_input(len(one.tokens) - 1, count) if count else each
            for (one, strategy), each, count in zip(every, inputs, counts, strict=True)
        ]
        time += cost(sum(len(each.tokens) for each in tried), costs)
        for (_, strategy), each in zip(every, tried, strict=True):
            rows: list[Any] = [0] * each.logits_count
            strategy.update(each, rows)
    tokens = sum(len(one.token_ids) - 1 for one in making)
    return tokens / time / (len(names) / cost(len(names), costs))


def _known_answer(name: str, start: float) -> KnownAnswer:
    prompt, text = text_of(name)
    first = int(start * len(text))
    return KnownAnswer(prompt, text[first:] + text[:first])


def cost(rows: int, costs: Mapping[int, float]) -> float:
    return next(cost for most, cost in costs.items() if rows <= most)


REPEATING = pytest.mark.parametrize("name", ["code_editing", "quoting_summary"])
GAINS = {1: 2.0, 3: 1.9, 6: 1.3, 8: 1.05, 12: 1.2, 20: 1.4}
"""What so many answers gain. Most where few of them leave rows of a program to drafts, for its time is the
same."""


@REPEATING
def test_texts_that_repeat_themselves_gain_alone_and_beside_others(name: str) -> None:
    for costs in (AVX512_BF16, AVX512):
        found = {answers: times_plain([name] * answers, costs) for answers in GAINS}
        assert all(found[answers] >= gain for answers, gain in GAINS.items()), found


FEW = (1, 3, 8, 16, 17, 32)
"""Answers that fill the rows of a program, or need one row more."""
SLOW = pytest.mark.slow


@pytest.mark.parametrize("answers", [FEW, pytest.param(range(1, 33), marks=SLOW)], ids=["few", "any"])
@pytest.mark.parametrize("names", [["code_editing"], ["prose"], ["prose", "code_editing"]], ids="-".join)
def test_no_text_takes_longer(names: list[str], answers: Sequence[int]) -> None:
    """Whether it repeats itself or not, however many answers share the passes, of one text or of two."""
    for costs in (AVX512_BF16, AVX512, EACH_ROW):
        found = {count: times_plain((names * count)[:count], costs) for count in answers}
        assert min(found.values()) >= 0.97, found


def test_guesses_in_all_rows_would_be_seen() -> None:
    def all_rows(answers: int, each: Sequence[DraftEstimate]) -> list[int]:
        return [min(one.max_drafts, 32 // answers - 1) for one in each]

    assert times_plain(["prose"] * 16, AVX512_BF16, all_rows) < 0.97
