"""Part 1, free-running: is our answer an answer, was it sampled from our logits, and where does it part from
the reference's?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from llama32_1b.numerics import F32Array
from verify.reference import Answer
from verify.rules import Failure, place
from verify.subject import Said

PART = "free-running"


def divergence(ours: Sequence[int], theirs: Sequence[int], eos: Collection[int]) -> int | None:
    """The first step at which the answers differ, looking no further than the end of theirs."""
    for step, (our_token, their_token) in enumerate(zip(ours, theirs, strict=False)):
        if our_token != their_token:
            return step
        if their_token in eos:
            return None
    return None


def judge_answer(
    prompt: str, said: Said, theirs: Answer, forced: F32Array, eos: Collection[int], top_k: int
) -> Iterator[Failure]:
    """All rules of part 1. `forced` are our logits of part 2, (steps, vocab_size): up to where the answers
    part both runs have seen the same tokens, so their logits must be the same to the bit."""
    parted = divergence(said.token_ids, theirs.token_ids, eos)
    yield from _judge_length(prompt, said, len(theirs.token_ids), eos)
    yield from _judge_sampling(prompt, said)
    yield from _judge_repetition(prompt, said, forced, parted)
    if parted is not None:
        yield from _judge_parting(prompt, said, theirs, parted, top_k)


def _judge_length(prompt: str, said: Said, steps: int, eos: Collection[int]) -> Iterator[Failure]:
    """An answer goes on until its end token or for all `steps`, and no further."""
    tokens = said.token_ids
    if not tokens:
        yield Failure(PART, prompt, 0, "our answer is empty")
        return
    if tokens[-1] not in eos and len(tokens) < steps:
        what = f"our answer stops after {len(tokens)} of {steps} tokens, without an end token"
        yield Failure(PART, prompt, len(tokens), what)
    ended = next((step for step, token in enumerate(tokens[:-1]) if token in eos), None)
    if ended is not None:
        yield Failure(PART, prompt, ended + 1, f"our answer goes on after end token {tokens[ended]}")


def _judge_sampling(prompt: str, said: Said) -> Iterator[Failure]:
    """What is said is what was sampled; told for the first step where it is not."""
    sampled = [int(np.argmax(logits)) for logits in said.logits]
    for step, token in enumerate(said.token_ids):
        if sampled[step : step + 1] != [token]:
            likeliest = f"{sampled[step]} is the likeliest" if step < len(sampled) else "nothing was sampled"
            yield Failure(PART, prompt, step, f"our answer says token {token} where {likeliest} of ours")
            return


def _judge_repetition(prompt: str, said: Said, forced: F32Array, parted: int | None) -> Iterator[Failure]:
    until = len(forced) if parted is None else parted + 1
    for step, (free, again) in enumerate(zip(said.logits, forced[:until], strict=False)):
        if not np.array_equal(free, again, equal_nan=True):
            largest = float(np.abs(free - again).max())
            what = "the largest difference between our logits and those of the same tokens, forced,"
            yield Failure(PART, prompt, step, what, largest, 0)
            return


def _judge_parting(prompt: str, said: Said, theirs: Answer, step: int, top_k: int) -> Iterator[Failure]:
    for what, found in (
        ("the place of our token in the reference's order", place(theirs.logits[step], said.token_ids[step])),
        ("the place of the reference's token in our order", place(said.logits[step], theirs.token_ids[step])),
    ):
        if found > top_k:
            yield Failure(PART, prompt, step, what, found, top_k)
