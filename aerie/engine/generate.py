"""The limits of an answer, why it ended, and its speed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token
from aerie.engine.forward import check_prompt
from aerie.engine.model import LoadedModel
from aerie.engine.sampler import Sampler
from aerie.runtime import RunError


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"  # the model gave an end-of-sequence token
    LENGTH = "length"  # the number of tokens asked for was reached
    CONTEXT = "context"  # the model has no further positions
    INTERRUPTED = "interrupted"  # the user stopped it
    ERROR = "error"  # it could not go on; those beside it did


@dataclass(frozen=True)
class RequestFigures:
    """Counts in tokens, times in seconds. ttft_s: from the start of prefill to the first token.

    tokens_per_s: rate of the tokens after the first, or after the first block (`first_tokens`); None if there
    are none.
    """

    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tokens_per_s: float | None
    first_tokens: int = 1

    @staticmethod
    def from_times(
        prompt_tokens: int, new_tokens: int, started: float, first: float, last: float, first_tokens: int = 1
    ) -> RequestFigures:
        """Figures of an answer that was started, and got its first and last token, at these times in
        seconds."""
        rate = (new_tokens - first_tokens) / (last - first) if new_tokens > first_tokens else None
        return RequestFigures(prompt_tokens, new_tokens, first - started, rate, first_tokens)

    def __str__(self) -> str:
        rate = "-" if self.tokens_per_s is None else f"{self.tokens_per_s:.2f}"
        return (
            f"prompt {self.prompt_tokens} tokens | new {self.new_tokens} tokens | "
            f"time to first token {self.ttft_s:.3f} s | {rate} tokens/s"
        )


Recover = Callable[[RunError, str], LoadedModel]
"""Called with a failure and where it happened. Returns the model to continue with, or raises the failure."""


def raise_error(error: RunError, where: str) -> LoadedModel:  # noqa: ARG001
    """Raises the failure: there is no other model."""
    raise error


def never_interrupted() -> bool:
    return False


def check_generation(model: LoadedModel, prompt: Sequence[Token], max_tokens: int, sampler: Sampler) -> None:
    """Raises PromptError for a prompt that cannot run, and UserError for other values that are not
    possible."""
    check_prompt(prompt, model.config, model.seq_len, past_context_allowed=model.context_end.drops)
    if max_tokens < 1:
        raise UserError(f"{max_tokens} tokens were asked for; ask for 1 or more")
    sampler.check_vocabulary(model.config.vocab_size)
    if sampler.thinking and sampler.thinking.budget is not None and model.config.diffusion is not None:
        raise UserError(
            "a thinking budget needs an autoregressive model, and this model is one of block diffusion; "
            "leave it out, or turn thinking off"
        )
    if sampler.grammar and model.config.diffusion is not None:
        raise UserError(
            "structured output (a JSON schema, tool calls) needs an autoregressive model, and this model is "
            "one of block diffusion; ask for the format in the prompt, or use another model"
        )


def finish_reason_for(
    model: LoadedModel, token: int, is_last: bool, next_position: int
) -> FinishReason | None:
    """Why an answer ends with this token; None if it continues. is_last: it is the last token of
    `max_tokens`."""
    if token in model.config.eos_token_ids:
        return FinishReason.STOP
    if is_last:
        return FinishReason.LENGTH
    is_full = next_position >= model.positions and not model.context_end.drops
    return FinishReason.CONTEXT if is_full else None


def finish_text(reason: FinishReason | None, max_tokens: int, positions: int) -> str:
    """The finish reason in words. max_tokens, positions: the limits of the answer and of the model."""
    return {
        FinishReason.STOP: "complete",
        FinishReason.LENGTH: f"cut after {max_tokens} tokens (--n-tokens, N_TOKENS)",
        FinishReason.CONTEXT: f"cut at the end of the model's context of {positions} positions "
        "(--context-end, CONTEXT_END)",
        FinishReason.INTERRUPTED: "stopped",
        FinishReason.ERROR: "failed",
        None: "not ended",
    }[reason]
