"""What guesses by lookup save on the committed texts by a table of costs: no clock, no model."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from aerie.engine.generate import FinishReason
from aerie.engine.strategies import speculative
from aerie.engine.strategies.adapting import Adaptive
from aerie.engine.strategies.drafting import Lookup
from aerie.engine.strategies.speculative import Speculative
from benchmarks.drafts import BETWEEN, TEXTS

AVX512_BF16, AVX512 = {8: 1.0, 16: 1.33, 32: 2.2}, {8: 1.0, 16: 1.57, 32: 3.1}
"""What a pass of up to so many rows takes, over one of 8 (docs/performance.md, few rows)."""
ROWS = 32
"""That answers share (scheduler.py, MOST_ANSWERS)."""


class Said:
    """An answer that says a text: see Making. Logits are places in the answer."""

    def __init__(self, prompt: list[int], text: list[int]) -> None:
        self.prompt_ids, self.text, self.token_ids = tuple(prompt), text, text[:1]
        self.positions, self.finish_reason = 10_000, None

    @property
    def left(self) -> int:
        return len(self.text) - len(self.token_ids)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.token_ids]

    def after(self, length: int) -> list[int]:
        return self.tokens[length:]

    def draw(self, logits: object) -> int:
        return self.text[len(self.token_ids)]

    def say(self, token: int) -> bool:
        self.token_ids.append(token)
        return bool(self.left)

    def end(self, reason: FinishReason) -> None:
        raise AssertionError(reason)


def text_of(name: str) -> tuple[list[int], list[int]]:
    """Question and answer; a token is a word with the space before it, as tokenizers have it."""
    parts = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").split(BETWEEN)
    words = [re.findall(r" ?\w+|\n *| +|[^\w\s]", part) for part in parts]
    ids = {word: number for number, word in enumerate(dict.fromkeys(words[0] + words[1]), start=3)}
    prompt, answer = ([ids[word] for word in part] for part in words)
    return prompt, answer


def times_plain(name: str, answers: int, costs: Mapping[int, float]) -> float:
    """Tokens in the time of a pass, over plain decoding, while as many answers are under way. Each begins at
    another place of the text, so that they do not repeat themselves at once."""
    prompt, text = text_of(name)
    starts = [number * len(text) // answers for number in range(answers)]
    making = [Said(prompt, text[start:] + text[:start]) for start in starts]
    strategies = [Speculative(one, Lookup(), Adaptive()) for one in making]
    time = 0.0
    while all(one.left for one in making):
        dues = [
            strategy.due(len(one.tokens) - 1, ROWS // answers)
            for one, strategy in zip(making, strategies, strict=True)
        ]
        time += cost(sum(len(due.tokens) for due in dues), costs)
        for strategy, due in zip(strategies, dues, strict=True):
            strategy.took(due, [0] * due.wanted)  # type: ignore[list-item]
    said = sum(len(one.token_ids) - 1 for one in making)
    return said / time / (answers / cost(answers, costs))


def cost(rows: int, costs: Mapping[int, float]) -> float:
    return next(cost for most, cost in costs.items() if rows <= most)


@pytest.mark.parametrize("costs", [AVX512_BF16, AVX512])
@pytest.mark.parametrize("name", ["code_editing", "quoting_summary"])
def test_texts_that_repeat_themselves_take_half_the_time(name: str, costs: Mapping[int, float]) -> None:
    assert times_plain(name, 1, costs) >= 2.0


@pytest.mark.parametrize("costs", [AVX512_BF16, AVX512])
@pytest.mark.parametrize("answers", [1, 2, 3, 4, 5, 6, 8, 16])
@pytest.mark.parametrize("name", ["code_editing", "quoting_summary", "prose"])
def test_no_text_takes_longer(name: str, answers: int, costs: Mapping[int, float]) -> None:
    """Whether it repeats itself or not, however many answers share the passes."""
    assert times_plain(name, answers, costs) >= 0.97


def test_guesses_in_all_rows_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "_share", lambda rows: rows - 1)
    assert times_plain("prose", 16, AVX512_BF16) < 0.97
