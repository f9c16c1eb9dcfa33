"""How answers are to be made, as who asks says it: which strategy, by which rule, with whose drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.block_diffusion import BlockDiffusionStrategy
from aerie.engine.strategies.draft_length import AdaptiveDraftLength
from aerie.engine.strategies.drafters import DraftSource, PromptLookupDrafter
from aerie.engine.strategies.speculative import SpeculativeStrategy
from aerie.engine.strategies.strategy import RequestState, Strategy, StrategyFactory
from aerie.engine.strategies.unmasking import (
    DEFAULT_RULE,
    DYNAMIC,
    ENTROPY,
    RULE_NAMES,
    SEQUENTIAL,
    STATIC,
    Unmasker,
    UnmaskingRule,
)

RULES_BY_SETTING = {"steps": (SEQUENTIAL, STATIC, DYNAMIC), "threshold": (DYNAMIC,), "entropy": (ENTROPY,)}
"""The rules that go by each setting."""

AUTOREGRESSIVE, BLOCK_DIFFUSION = "autoregressive", "block_diffusion"
PROMPT_LOOKUP = "lookup"


class DecodeSettings(TypedDict, total=False):
    """The settings of a DecodeConfig, by name, where they are passed on."""

    strategy: str | None
    rule: str | None
    steps: int | None
    threshold: float | None
    entropy: float | None


@dataclass(frozen=True)
class DecodeConfig:
    """How an answer is made. What is None is the model's own way.

    strategy: "autoregressive" or "block_diffusion". rule, steps, threshold, entropy: of block diffusion, see
    choosing.Rule. draft: "lookup", or where else guesses come from; of autoregressive models.
    """

    strategy: str | None = None
    rule: str | None = None
    steps: int | None = None
    threshold: float | None = None
    entropy: float | None = None
    draft: str | DraftSource | None = None

    def strategy_factory(self, config: ModelConfig, sampler: Sampler) -> StrategyFactory | None:
        """What makes answers of this model so, drawn by this sampler; None for plain decoding. UserError for
        what does not go together, or is out of range."""
        self._check(config)
        if config.diffusion is None:
            return self._speculative_factory() if self.draft is not None else None
        blocks = config.diffusion
        rule = self._rule(blocks.sub_block or blocks.block_size)
        choose = Unmasker(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id)
        return partial(BlockDiffusionStrategy, diffusion=blocks, choose=choose)

    def ensure_programs(self, prompt_tokens: int, new_tokens: int) -> None:
        """Have what guesses need after a prompt of so many tokens, and in so many more, so that nothing is
        compiled in the middle of an answer. Raises what compiling raises."""
        if isinstance(self.draft, DraftSource):
            self.draft.ensure_programs(prompt_tokens, new_tokens)

    @property
    def _diffusion_settings(self) -> dict[str, object]:
        """What is said of block diffusion alone."""
        named = {"rule": self.rule, "steps": self.steps, "threshold": self.threshold, "entropy": self.entropy}
        return {name: given for name, given in named.items() if given is not None}

    def _check(self, config: ModelConfig) -> None:
        """UserError for what the model cannot be asked for."""
        own = AUTOREGRESSIVE if config.diffusion is None else BLOCK_DIFFUSION
        what = "says one token after the other" if config.diffusion is None else "fills in blocks of masks"
        if self.strategy not in (None, own):
            known = self.strategy in (AUTOREGRESSIVE, BLOCK_DIFFUSION)
            why = f"this model was trained otherwise: it {what}" if known else "there is no such strategy"
            raise UserError(f"strategy is {self.strategy!r}, and {why}; leave it out, or give {own!r}")
        if config.diffusion is None and self._diffusion_settings:
            name, given = next(iter(self._diffusion_settings.items()))
            raise UserError(
                f"{name} is {given!r}, which is for models of block diffusion, and this model {what}; leave "
                "it out"
            )
        if config.diffusion is not None and self.draft is not None:
            raise UserError(
                f"draft is {_draft_name(self.draft)}, which is for models that say one token after the other, and "
                f"this model {what}; leave it out"
            )
        if isinstance(self.draft, str) and self.draft != PROMPT_LOOKUP:
            raise UserError(f"draft is {self.draft!r}; give {PROMPT_LOOKUP!r}, a model that drafts, or None")

    def _rule(self, block: int) -> UnmaskingRule:
        rule, own = UnmaskingRule(self.rule or DEFAULT_RULE, self.steps), UnmaskingRule()
        for name, given in self._diffusion_settings.items():
            if rule.name not in RULES_BY_SETTING.get(name, RULE_NAMES):
                raise UserError(
                    f"{name} is {given!r}, which the rule {rule.name} does not go by; leave it out, or take "
                    f"a rule that does: {', '.join(RULES_BY_SETTING[name])}"
                )
        threshold = own.threshold if self.threshold is None else self.threshold
        entropy = own.entropy if self.entropy is None else self.entropy
        return replace(rule, threshold=threshold, entropy=entropy).for_block(block)

    def _speculative_factory(self) -> StrategyFactory:
        drafting = DraftSource(PromptLookupDrafter) if isinstance(self.draft, str) else self.draft
        assert drafting is not None
        return partial(_speculative_strategy, drafts=drafting)


DEFAULT_DECODE_CONFIG = DecodeConfig()


def _speculative_strategy(request: RequestState, drafts: DraftSource) -> Strategy:
    return SpeculativeStrategy(
        request,
        drafts.make_drafter(),
        AdaptiveDraftLength(draft_cost=drafts.cost, cost_is_total=drafts.cost_is_total),
    )


def default_strategy_factory(config: ModelConfig, sampler: Sampler) -> StrategyFactory:
    """How a model's answers are made where nobody says."""
    return DEFAULT_DECODE_CONFIG.strategy_factory(config, sampler) or AutoregressiveStrategy


def _draft_name(draft: object) -> str:
    return repr(draft) if isinstance(draft, str) else "a model"
