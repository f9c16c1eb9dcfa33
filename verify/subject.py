"""What is verified: a Session, asked by the very functions that `make run` and `make chat` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama32_1b.decode import decode_step
from llama32_1b.generate import FinishReason
from llama32_1b.lm_head import next_token_logits
from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array, F32Array
from llama32_1b.prefill import prefill
from llama32_1b.sampler import Sampler
from llama32_1b.session import Session


@dataclass(frozen=True)
class Forced:
    """A run on given tokens. `rows` is the last layer's output at every position of the prompt, bf16,
    (prompt length, hidden_size); `logits` is (steps, vocab_size), row 0 from the prompt's last position."""

    rows: BF16Array
    logits: F32Array


class Subject:
    """A session under test. It computes nothing itself."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def model(self) -> LlamaModel:
        return self.session.model

    def answer(self, prompt_ids: Sequence[int], steps: int) -> tuple[list[int], FinishReason | None]:
        """At most `steps` greedy tokens as `make run` makes them, and why they ended."""
        generation = self.session.generate(prompt_ids, steps, Sampler())
        tokens = list(generation)
        return tokens, generation.finish_reason

    def forced(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Forced:
        """Prefill the prompt, then decode `token_ids` whatever the logits say; the last is not fed."""
        model = self.model
        cache = model.new_cache(len(prompt_ids) + len(token_ids))
        rows = prefill(model, prompt_ids, cache)
        logits = [next_token_logits(model, rows[-1])]
        logits += [next_token_logits(model, decode_step(model, token, cache)) for token in token_ids[:-1]]
        return Forced(rows, np.stack(logits))

    def position_logits(self, rows: BF16Array) -> F32Array:
        """Logits after each of `rows` (of Forced): (len(rows), vocab_size)."""
        return np.stack([next_token_logits(self.model, row) for row in rows])
