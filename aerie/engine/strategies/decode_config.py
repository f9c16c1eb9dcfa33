"""How answers are to be made, as who asks says it: which strategy, by which rule, with whose drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.adapting import Adaptive
from aerie.engine.strategies.autoregressive import Autoregressive
from aerie.engine.strategies.block_diffusion import BlockDiffusion
from aerie.engine.strategies.choosing import (
    DEFAULT,
    DYNAMIC,
    ENTROPY,
    NAMES,
    SEQUENTIAL,
    STATIC,
    Chooser,
    Rule,
)
from aerie.engine.strategies.drafting import Drafting, Lookup
from aerie.engine.strategies.speculative import Speculative
from aerie.engine.strategies.strategy import RequestState, Strategy, StrategyFactory

SETTINGS = {"steps": (SEQUENTIAL, STATIC, DYNAMIC), "threshold": (DYNAMIC,), "entropy": (ENTROPY,)}
"""The rules that go by each setting."""

AUTOREGRESSIVE, BLOCK_DIFFUSION = "autoregressive", "block_diffusion"
LOOKUP = "lookup"


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
    draft: str | Drafting | None = None

    def maker(self, config: ModelConfig, sampler: Sampler) -> StrategyFactory | None:
        """What makes answers of this model so, drawn by this sampler; None for plain decoding. UserError for
        what does not go together, or is out of range."""
        self._check(config)
        if config.diffusion is None:
            return self._drafting() if self.draft is not None else None
        blocks = config.diffusion
        rule = self._rule(blocks.sub_block or blocks.block_size)
        choose = Chooser(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id)
        return partial(BlockDiffusion, blocks=blocks, choose=choose)

    def make_room(self, prompt: int, more: int) -> None:
        """Have what guesses need after a prompt of so many tokens, and in so many more, so that nothing is
        compiled in the middle of an answer. Raises what compiling raises."""
        if isinstance(self.draft, Drafting):
            self.draft.make_room(prompt, more)

    @property
    def _of_blocks(self) -> dict[str, object]:
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
        if config.diffusion is None and self._of_blocks:
            name, given = next(iter(self._of_blocks.items()))
            raise UserError(
                f"{name} is {given!r}, which is for models of block diffusion, and this model {what}; leave "
                "it out"
            )
        if config.diffusion is not None and self.draft is not None:
            raise UserError(
                f"draft is {_told(self.draft)}, which is for models that say one token after the other, and "
                f"this model {what}; leave it out"
            )
        if isinstance(self.draft, str) and self.draft != LOOKUP:
            raise UserError(f"draft is {self.draft!r}; give {LOOKUP!r}, a model that drafts, or None")

    def _rule(self, block: int) -> Rule:
        rule, own = Rule(self.rule or DEFAULT, self.steps), Rule()
        for name, given in self._of_blocks.items():
            if rule.name not in SETTINGS.get(name, NAMES):
                raise UserError(
                    f"{name} is {given!r}, which the rule {rule.name} does not go by; leave it out, or take "
                    f"a rule that does: {', '.join(SETTINGS[name])}"
                )
        threshold = own.threshold if self.threshold is None else self.threshold
        entropy = own.entropy if self.entropy is None else self.entropy
        return replace(rule, threshold=threshold, entropy=entropy).of(block)

    def _drafting(self) -> StrategyFactory:
        drafting = Drafting(Lookup) if isinstance(self.draft, str) else self.draft
        assert drafting is not None
        return partial(_speculative, drafting=drafting)


PLAIN = DecodeConfig()


def _speculative(making: RequestState, drafting: Drafting) -> Strategy:
    return Speculative(making, drafting.make(), Adaptive(per_draft=drafting.cost, at_once=drafting.at_once))


def default_strategy_factory(config: ModelConfig, sampler: Sampler) -> StrategyFactory:
    """How a model's answers are made where nobody says."""
    return PLAIN.maker(config, sampler) or Autoregressive


def _told(draft: object) -> str:
    return repr(draft) if isinstance(draft, str) else "a model"
