"""Diagnosis: the ladder from kernel to logits, and the first rung that does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama32_1b.decode import decode_step
from llama32_1b.model import LlamaModel
from llama32_1b.prefill import check_prompt, prefill
from llama32_1b.sampler import Sampler
from llama32_1b.session import Session
from verify.judging import Row, Theirs
from verify.passes import Pass, observe_decode, observe_prefill
from verify.reference import Reference


@dataclass(frozen=True)
class Diagnosis:
    """Every step of prefill, then every step of decode, then the answer, in the order they run."""

    token_ids: list[int]
    rows: list[Row]

    @property
    def first(self) -> Row | None:
        """The first step at fault; without one, the first that is too far from transformers' run."""
        guilty = next((row for row in self.rows if row.problem), None)
        return guilty or next((row for row in self.rows if row.drift), None)


def diagnose(session: Session, reference: Reference, token_ids: Sequence[int]) -> Diagnosis:
    """Climb the ladder with one prompt; `reference` is transformers' bf16 model of the same checkpoint.

    Another prompt goes first, so that what it leaves behind shows. The prompt's last token is decoded
    too, against the same position of the reference; a prompt of one token gets the reference's next one
    for that. Raises PromptError for a prompt that cannot be run.
    """
    model = session.model
    check_prompt(token_ids, model.longest_prompt, model.config.vocab_size)
    ids = list(token_ids)
    if len(ids) == 1:
        ids += reference.greedy(ids, 1).token_ids
    _leave_something_behind(model, ids)
    theirs = Theirs(reference.model, ids)
    whole, split = observe_prefill(model, ids), observe_decode(model, ids)
    return Diagnosis(ids, [*theirs.judge(whole), *theirs.judge(split), _answer(session, ids, whole)])


def _leave_something_behind(model: LlamaModel, ids: Sequence[int]) -> None:
    other = [(token + 1) % model.config.vocab_size for token in ids]
    cache = model.new_cache(len(other))
    prefill(model, other[:-1], cache)
    decode_step(model, other[-1], cache)


def _answer(session: Session, ids: Sequence[int], seen: Pass) -> Row:
    """The first token that the session answers with has to be the one its own logits are greatest for."""
    tokens = list(session.generate(ids, 1, Sampler()))
    likeliest = int(np.argmax(seen.head["logits"]))
    wrong = f"the answer is {tokens or 'empty'}, and the logits say {likeliest}"
    return Row("answer", None, "answer", remark="" if tokens == [likeliest] else wrong)
