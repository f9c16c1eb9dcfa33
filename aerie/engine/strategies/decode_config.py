"""How an answer is decoded: strategy, unmasking rule, and the source of drafts."""

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
"""The unmasking rules that use each setting."""

AUTOREGRESSIVE, BLOCK_DIFFUSION = "autoregressive", "block_diffusion"
PROMPT_LOOKUP = "lookup"


class DecodeSettings(TypedDict, total=False):
    """The settings of a DecodeConfig by name, for keyword arguments."""

    strategy: str | None
    rule: str | None
    steps: int | None
    threshold: float | None
    entropy: float | None


@dataclass(frozen=True)
class DecodeConfig:
    """How an answer is decoded. None means the model's default.

    strategy: "autoregressive" or "block_diffusion". rule, steps, threshold, entropy: for block diffusion, see
    unmasking.UnmaskingRule. draft: "lookup", or another source of drafts; for autoregressive models.
    """

    strategy: str | None = None
    rule: str | None = None
    steps: int | None = None
    threshold: float | None = None
    entropy: float | None = None
    draft: str | DraftSource | None = None

    def strategy_factory(self, config: ModelConfig, sampler: Sampler) -> StrategyFactory | None:
        """Makes the strategy of each answer of this model, which samples with `sampler`; None for plain
        decoding. Raises UserError for settings that contradict each other or are out of range."""
        self._check(config)
        if config.diffusion is None:
            return self._speculative_factory() if self.draft is not None else None
        diffusion = config.diffusion
        rule = self._rule(diffusion.sub_block or diffusion.block_size)
        choose = Unmasker(rule, diffusion.sub_block or diffusion.block_size, sampler, diffusion.mask_token_id)
        return partial(BlockDiffusionStrategy, diffusion=diffusion, choose=choose)

    def ensure_programs(self, prompt_tokens: int, new_tokens: int) -> None:
        """Compile what drafts need after a prompt of `prompt_tokens`, for `new_tokens`, so that none is
        compiled during an answer. Raises what compiling raises."""
        if isinstance(self.draft, DraftSource):
            self.draft.ensure_programs(prompt_tokens, new_tokens)

    @property
    def _diffusion_settings(self) -> dict[str, object]:
        """The settings of block diffusion that are set."""
        named = {"rule": self.rule, "steps": self.steps, "threshold": self.threshold, "entropy": self.entropy}
        return {name: value for name, value in named.items() if value is not None}

    def _check(self, config: ModelConfig) -> None:
        """Raises UserError for settings that the model does not support."""
        own = AUTOREGRESSIVE if config.diffusion is None else BLOCK_DIFFUSION
        behaviour = "is autoregressive" if config.diffusion is None else "is one of block diffusion"
        if self.strategy not in (None, own):
            is_strategy = self.strategy in (AUTOREGRESSIVE, BLOCK_DIFFUSION)
            reason = f"this model {behaviour}" if is_strategy else "there is no such strategy"
            raise UserError(f"strategy is {self.strategy!r}, and {reason}; leave it out, or give {own!r}")
        if config.diffusion is None and self._diffusion_settings:
            name, value = next(iter(self._diffusion_settings.items()))
            raise UserError(
                f"{name} is {value!r}, which is for models of block diffusion, and this model {behaviour}; "
                "leave it out"
            )
        if config.diffusion is not None and self.draft is not None:
            draft = repr(self.draft) if isinstance(self.draft, str) else "a model"
            raise UserError(
                f"draft is {draft}, which is for autoregressive models, and "
                f"this model {behaviour}; leave it out"
            )
        if isinstance(self.draft, str) and self.draft != PROMPT_LOOKUP:
            raise UserError(f"draft is {self.draft!r}; give {PROMPT_LOOKUP!r}, a model that drafts, or None")

    def _rule(self, block: int) -> UnmaskingRule:
        rule, default = UnmaskingRule(self.rule or DEFAULT_RULE, self.steps), UnmaskingRule()
        for name, value in self._diffusion_settings.items():
            if rule.name not in RULES_BY_SETTING.get(name, RULE_NAMES):
                raise UserError(
                    f"{name} is {value!r}, which the rule {rule.name} does not use; leave it out, or take "
                    f"a rule that does: {', '.join(RULES_BY_SETTING[name])}"
                )
        threshold = default.threshold if self.threshold is None else self.threshold
        entropy = default.entropy if self.entropy is None else self.entropy
        return replace(rule, threshold=threshold, entropy=entropy).for_block(block)

    def _speculative_factory(self) -> StrategyFactory:
        drafts = DraftSource(PromptLookupDrafter) if isinstance(self.draft, str) else self.draft
        assert drafts is not None
        return partial(_speculative_strategy, drafts=drafts)


DEFAULT_DECODE_CONFIG = DecodeConfig()


def _speculative_strategy(request: RequestState, drafts: DraftSource) -> Strategy:
    return SpeculativeStrategy(
        request,
        drafts.make_drafter(),
        AdaptiveDraftLength(draft_cost=drafts.cost, cost_is_total=drafts.cost_is_total),
    )


def default_strategy_factory(config: ModelConfig, sampler: Sampler) -> StrategyFactory:
    """The default strategy of a model's answers."""
    return DEFAULT_DECODE_CONFIG.strategy_factory(config, sampler) or AutoregressiveStrategy
