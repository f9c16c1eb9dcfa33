"""Which tokens an answer that begins with thinking may have: a budget for the thinking, and a grammar that
holds for the answer after it.

As in vLLM, a grammar is not applied to the thinking. While an answer may still open its thinking, the next
token is one of the opening tag or of the grammar. When the budget is used up, the closing tag comes next.
What is allowed depends on the answer's tokens only, so drafts and schedules change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.grammar import Grammar, GrammarCompiler, GrammarMatcher
from aerie.engine.thinking import Phase, ThinkingStart, ThinkingTags
from aerie.engine.tokenizer import Tokenizer

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ThinkingPlan:
    """start: how the answer begins. budget: tokens of thinking after the opening tag; None means no limit.
    Raises UserError for a negative budget."""

    start: ThinkingStart
    tokenizer: Tokenizer
    vocab_size: int
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise UserError(
                f"the thinking budget is {self.budget} tokens; it must be 0 (no thinking) or more, or left "
                "out for no limit"
            )

    def matcher(self, grammar: Grammar | None) -> ThinkingMatcher:
        """For one answer. grammar: of what follows the thinking."""
        return ThinkingMatcher(self, grammar)

    def to_json(self) -> dict[str, Any]:
        start = self.start
        return {
            "tags": [*start.tags],
            "is_open": start.is_open,
            "is_closed": start.is_closed,
            "shown": sorted(start.shown),
            "budget": self.budget,
        }

    @staticmethod
    def from_json(content: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int) -> ThinkingPlan:
        """The plan that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        tags = ThinkingTags(*map(str, content["tags"]))
        shown = frozenset(map(int, content["shown"]))
        start = ThinkingStart(tags, bool(content["is_open"]), bool(content["is_closed"]), shown)
        budget = content["budget"]
        return ThinkingPlan(start, tokenizer, vocab_size, None if budget is None else int(budget))


def plan_thinking(
    start: ThinkingStart | None, grammars: GrammarCompiler, budget: int | None, grammar: Grammar | None
) -> ThinkingPlan | None:
    """The plan of an answer; None if nothing of it depends on its thinking. Raises UserError for a negative
    budget."""
    if start is None or start.is_closed or (budget is None and grammar is None):
        return None
    return ThinkingPlan(start, grammars.tokenizer, grammars.vocab_size, budget)


class ThinkingMatcher:
    """The state of a plan for one answer. Each call gets all tokens of the answer; those of the call before
    are not looked at again."""

    def __init__(self, plan: ThinkingPlan, grammar: Grammar | None) -> None:
        self._plan, self._grammar = plan, grammar
        self._matcher: GrammarMatcher | None = grammar.start() if grammar else None
        tags, tokenizer = plan.start.tags, plan.tokenizer
        self._end_ids = tokenizer.tag_ids(tags.end)
        self._openings = [
            tokenizer.tag_ids(tags.start),
            [*tokenizer.encode(tags.start + "\n", special=False)],
        ]
        self._restart()

    def _restart(self) -> None:
        start = self._plan.start
        self._splitter = start.splitter()
        self._stream = self._plan.tokenizer.incremental_detokenizer((), start.shown)
        self._taken: list[int] = []
        self._thinking_at = 0 if start.is_open else None
        """How many tokens come before the thinking; None if it has not begun."""
        self._answer_at: int | None = None
        """How many tokens come before the answer; None if it has not begun."""

    def token_mask(self, token_ids: Sequence[int]) -> Mask | None:
        """bool (vocab_size,): which tokens may come after these; None for all. Raises UserError as
        GrammarMatcher.token_mask."""
        ids = [int(token) for token in token_ids]
        self._follow(ids)
        if self._answer_at is not None:
            return self._matcher.token_mask(ids[self._answer_at :]) if self._matcher else None
        if self._thinking_at is None:
            return self._beginning_mask(ids)
        return self._thinking_mask(len(ids) - self._thinking_at)

    def _follow(self, ids: list[int]) -> None:
        if ids[: len(self._taken)] != self._taken:
            self._restart()
        for number, token in enumerate(ids[len(self._taken) :], start=len(self._taken) + 1):
            if self._answer_at is not None:
                return
            self._splitter.feed(self._stream.feed(token))
            self._taken.append(token)
            if self._thinking_at is None and self._splitter.thinking_tokens:
                self._thinking_at = number
            if self._splitter.phase in (Phase.BLANKS, Phase.ANSWER):
                self._answer_at = 0 if self._thinking_at is None else number

    def _beginning_mask(self, ids: list[int]) -> Mask | None:
        """Where an opening tag may still come: its tokens, and those of the grammar."""
        if self._matcher is None:
            return None
        mask = np.zeros(self._plan.vocab_size, np.bool_)
        if self._matcher.accepts(ids):
            mask |= self._matcher.token_mask(ids)
        for opening in self._openings:
            if opening[: len(ids)] == ids and len(ids) < len(opening):
                mask[opening[len(ids)]] = True
        return mask

    def _thinking_mask(self, tokens: int) -> Mask | None:
        """After so many tokens of thinking: anything, unless the budget is used up. If a grammar waits, the
        answer cannot end here, and the closing tag ends with its token."""
        budget = self._plan.budget
        if budget is not None and tokens >= budget:
            mask = np.zeros(self._plan.vocab_size, np.bool_)
            mask[self._end_ids[(tokens - budget) % len(self._end_ids)]] = True
            return mask
        if self._grammar is None:
            return None
        mask = np.ones(self._plan.vocab_size, np.bool_)
        mask[[token for token in self._grammar.grammars.eos_ids if token < len(mask)]] = False
        if undecided := self._splitter.undecided:
            rest = self._plan.start.tags.end[len(undecided) :]
            mask[self._plan.tokenizer.tokens_beyond(rest, self._plan.vocab_size)] = False
        return mask
