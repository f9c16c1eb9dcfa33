"""Runs whose results must be equal in every bit: programs of another prompt length, another number of
threads, after other prompts, a conversation by turns or in one prompt. schedule_identity.py has the schedules
of tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.common.knobs import THREADS
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.session import Session
from aerie.engine.tool_calls import Message
from aerie.engine.variant_set import ROWS
from aerie.multi_launch_builder import round_up_seq_len
from aerie.verify.bounds import GateFailure
from aerie.verify.gate_prompts import Prompt
from aerie.verify.subject import FORWARD_ERRORS, FreeRun, SessionUnderTest, one_line

STEPS = 8
"""Tokens decoded after the prompt."""

CHAT = ("What is 3 plus 4?", "Who are you?")

Bits = list[npt.NDArray[Any]]
Reopen = Callable[[RuntimeOptions], Session]
"""Opens the same model with other options."""


@dataclass(frozen=True)
class BitIdentity:
    """The comparison of two runs that must have the same bits: `differing` of `compared` numbers differ.

    skipped: why the runs were not compared. broken: the error that ended one of them. of: the name of the
    model if it is not the model under test.
    """

    name: str
    compared: int = 0
    differing: int = 0
    skipped: str = ""
    broken: str = ""
    of: str = ""

    @property
    def failure(self) -> GateFailure | None:
        where = f"{self.name}, {self.of}" if self.of else self.name
        if self.broken:
            return GateFailure("bit identity", where, None, self.broken)
        if not self.differing:
            return None
        return GateFailure("bit identity", where, None, "the count of numbers that differ", self.differing, 0)


@dataclass(frozen=True)
class IdentityCase:
    """A prompt, the tokens decoded after it, and the bits of that run in a fresh session."""

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    fresh: Bits

    @classmethod
    def record(cls, session: Session, prompt: Prompt) -> IdentityCase:
        """Run the prompt in a fresh session."""
        tokens = SessionUnderTest(session).free_run(prompt.token_ids, STEPS).token_ids
        return cls(prompt.token_ids, tokens, _bits(session, prompt.token_ids, tokens))

    def compare(self, name: str, session: Session) -> BitIdentity:
        return compare(name, self.fresh, _bits(session, self.prompt_ids, self.token_ids))


def identities_in_session(session: Session, case: IdentityCase) -> Iterator[BitIdentity]:
    """Compare a session that has run other prompts with the case that was recorded when it was fresh."""
    yield try_identity("after other prompts, and fresh", lambda name: case.compare(name, session))
    yield try_identity("a chat by turns, and at once", lambda name: _turn_by_turn(name, session))


def identities_reopened(
    session: Session, case: IdentityCase, options: RuntimeOptions, reopen: Reopen
) -> Iterator[BitIdentity]:
    """Compare the case with sessions of other options. `session` itself may be closed already."""
    length, virtual = session.model.seq_len, session.backend == "virtual"
    yield try_identity(
        "programs of another length",
        lambda name: _other_length(name, length, case, options, reopen),
    )
    yield try_identity(
        "on one thread",
        lambda name: _one_thread(name, virtual, case, options, reopen),
    )


def try_identity(name: str, run: Callable[[str], BitIdentity]) -> BitIdentity:
    """Run one comparison. An error of the forward pass makes it a failure."""
    try:
        return run(name)
    except FORWARD_ERRORS as error:
        return BitIdentity(name, broken=one_line(error))


def compare(name: str, first: Bits, second: Bits) -> BitIdentity:
    """Compare number by number. Arrays of different shapes differ in every number."""
    differing = sum(
        int((a != b).sum()) if a.shape == b.shape else max(a.size, b.size)
        for a, b in zip(first, second, strict=True)
    )
    return BitIdentity(name, sum(a.size for a in first), differing)


def _bits(session: Session, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Bits:
    """Return the prompt's rows and the logits after each token, as integers."""
    forced = SessionUnderTest(session).forced_run(prompt_ids, token_ids)
    return [forced.rows.view(np.uint16), forced.logits.view(np.uint32)]


def _other_length(
    name: str, length: int, case: IdentityCase, options: RuntimeOptions, reopen: Reopen
) -> BitIdentity:
    """Compare with the six programs of half the length; for a session of variants, of the shortest legal
    length that holds the prompt.
    """
    if options.decode == ROWS:
        return BitIdentity(name, skipped="programs of one prompt length need --decode guide")
    needed = len(case.prompt_ids)
    other = round_up_seq_len(max(1, length // 2) if length else needed)
    if other == length or other < needed:
        return BitIdentity(
            name, skipped=f"the kernels have no shorter length for a prompt of {needed} tokens"
        )
    return _compare_reopened(name, case, replace(options, seq_len=other, variants=None), reopen)


def _one_thread(
    name: str, virtual: bool, case: IdentityCase, options: RuntimeOptions, reopen: Reopen
) -> BitIdentity:
    if not virtual:
        return BitIdentity(name, skipped="only the virtual NPU has threads")
    with with_threads(1):
        return _compare_reopened(name, case, options, reopen)


def _compare_reopened(name: str, case: IdentityCase, options: RuntimeOptions, reopen: Reopen) -> BitIdentity:
    other = reopen(options)
    try:
        return case.compare(name, other)
    finally:
        other.cache.close()


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Run the virtual NPU of sessions opened inside on `count` threads."""
    name = THREADS.name
    before = os.environ.get(name)
    os.environ[name] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


CONTINUATION_NAME = "going on from an answer, and alone"


def identity_of_continuation(subject: SessionUnderTest, prompt: Prompt) -> BitIdentity:
    """Continue a prompt and its answer by one more token, with reuse of the KV cache.

    Compares the reused keys and values, and the logits of the new answer, with a run that computes all of it.
    """
    if not subject.model.variant_set.variants:
        return BitIdentity(CONTINUATION_NAME, skipped="programs of one prompt length cannot reuse a prefix")
    before = [*prompt.token_ids, *subject.free_run(prompt.token_ids, STEPS).token_ids]
    prompt_ids = [*before, *prompt.token_ids[-1:]]
    total = len(prompt_ids) + STEPS
    if total > subject.model.max_prompt_tokens:
        return BitIdentity(CONTINUATION_NAME, skipped=f"the context is shorter than {total} tokens")
    first, reused = subject.cached_kv(prompt_ids)
    answer = subject.free_run(prompt_ids, STEPS)
    if not answer.token_ids:
        return BitIdentity(CONTINUATION_NAME, broken="our answer is empty")
    if not answer.cached_tokens:
        return BitIdentity(CONTINUATION_NAME, broken="all of the prompt was computed again")
    alone = subject.forced_run(prompt_ids, answer.token_ids)
    computed = [array[:, first : answer.cached_tokens] for layer in alone.cache.layers for array in layer]
    ours = _with_logits(reused, np.stack(answer.logits))
    expected = _with_logits(computed, alone.logits)
    return compare(CONTINUATION_NAME, ours, expected)


def _with_logits(arrays: Sequence[BF16Array], logits: F32Array) -> Bits:
    return [*(array.view(np.uint16) for array in arrays), logits.view(np.uint32)]


def _turn_by_turn(name: str, session: Session) -> BitIdentity:
    """Compare the last answer of a chat with the answer to the whole conversation as one prompt."""
    tokenizer = session.tokenizer
    if not tokenizer.has_chat_template:
        return BitIdentity(name, skipped="there is no chat template")
    subject = SessionUnderTest(session)
    turns = subject.chat(CHAT, STEPS)
    if len(turns) < len(CHAT):
        return BitIdentity(name, skipped="the conversation is longer than the longest prompt")
    if subject.model.variant_set.variants and not turns[1].cached_tokens:
        return BitIdentity(name, broken="the second turn computed the first one again")
    messages: list[Message] = [
        {"role": "user", "content": CHAT[0]},
        {"role": "assistant", "content": tokenizer.decode(turns[0].token_ids)},
        {"role": "user", "content": CHAT[1]},
    ]
    whole = subject.free_run(tokenizer.encode_chat(messages), STEPS)
    return compare(name, _bits_of(turns[1]), _bits_of(whole))


def _bits_of(run: FreeRun) -> Bits:
    return [np.array(run.prompt_ids), np.array(run.token_ids), np.stack(run.logits).view(np.uint32)]
