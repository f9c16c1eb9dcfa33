"""What must not change a single bit: the programs' prompt length, threads, what ran before, and how a
conversation came about. How tokens are cut into blocks of rows: `ways.py`."""

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
from aerie.verify.subject import BROKEN, Said, Subject, one_line

STEPS = 8
"""Tokens decoded after the prompt."""

CHAT = ("What is 3 plus 4?", "Who are you?")

Bits = list[npt.NDArray[Any]]
Reopen = Callable[[RuntimeOptions], Session]
"""Opens the same model with other options."""


@dataclass(frozen=True)
class Identity:
    """Two ways to one result. `differing` of `compared` numbers differ; `skipped`: why it was not tried;
    `broken`: what it ended with instead of a result. `of`: whose, where it is not the model as it is run."""

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
class Case:
    """A prompt, the tokens decoded after it, and the bits that this gave when nothing else had run."""

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    fresh: Bits

    @classmethod
    def take(cls, session: Session, prompt: Prompt) -> Case:
        """From a session that is fresh."""
        tokens = Subject(session).answer(prompt.token_ids, STEPS).token_ids
        return cls(prompt.token_ids, tokens, _bits(session, prompt.token_ids, tokens))

    def compare(self, name: str, session: Session) -> Identity:
        return compare(name, self.fresh, _bits(session, self.prompt_ids, self.token_ids))


def in_the_session(session: Session, case: Case) -> Iterator[Identity]:
    """Those of a session that has run other prompts since the case was taken."""
    yield try_identity("after other prompts, and fresh", lambda name: case.compare(name, session))
    yield try_identity("a chat by turns, and at once", lambda name: _turn_by_turn(name, session))


def reopened(session: Session, case: Case, options: RuntimeOptions, reopen: Reopen) -> Iterator[Identity]:
    """Those that a session opened otherwise has to share with `session`, which may be closed by now."""
    length, virtual = session.model.seq_len, session.backend == "virtual"
    yield try_identity(
        "programs of another length",
        lambda name: _other_length(name, length, case, options, reopen),
    )
    yield try_identity(
        "on one thread",
        lambda name: _one_thread(name, virtual, case, options, reopen),
    )


def try_identity(name: str, way: Callable[[str], Identity]) -> Identity:
    """What breaks the forward pass is a failure like any other."""
    try:
        return way(name)
    except BROKEN as error:
        return Identity(name, broken=one_line(error))


def compare(name: str, one: Bits, other: Bits) -> Identity:
    """Number by number; arrays of different shapes differ everywhere."""
    differing = sum(
        int((a != b).sum()) if a.shape == b.shape else max(a.size, b.size)
        for a, b in zip(one, other, strict=True)
    )
    return Identity(name, sum(a.size for a in one), differing)


def _bits(session: Session, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Bits:
    """The prompt's rows and the logits of each token fed after it, as integers."""
    forced = Subject(session).forced(prompt_ids, token_ids)
    return [forced.rows.view(np.uint16), forced.logits.view(np.uint32)]


def _other_length(name: str, length: int, case: Case, options: RuntimeOptions, reopen: Reopen) -> Identity:
    """The six programs: of half the length; after variants, of the least that holds the prompt."""
    if options.decode == ROWS:
        return Identity(name, skipped="programs of one prompt length decode in the family guide")
    needed = len(case.prompt_ids)
    other = round_up_seq_len(max(1, length // 2) if length else needed)
    if other == length or other < needed:
        return Identity(name, skipped=f"the kernels have no shorter length for a prompt of {needed} tokens")
    return _compare_reopened(name, case, replace(options, seq_len=other, variants=None), reopen)


def _one_thread(name: str, virtual: bool, case: Case, options: RuntimeOptions, reopen: Reopen) -> Identity:
    if not virtual:
        return Identity(name, skipped="threads are the virtual NPU's")
    with on_threads(1):
        return _compare_reopened(name, case, options, reopen)


def _compare_reopened(name: str, case: Case, options: RuntimeOptions, reopen: Reopen) -> Identity:
    other = reopen(options)
    try:
        return case.compare(name, other)
    finally:
        other.cache.close()


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Sessions that are opened meanwhile run the virtual NPU on so many threads."""
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


GOES_ON = "going on from an answer, and alone"


def going_on(subject: Subject, prompt: Prompt) -> Identity:
    """A prompt that begins with another one and its answer: what the KV cache has of them and is used again,
    and the logits of the answer, against a cache of its own."""
    if not subject.model.variant_set.variants:
        return Identity(GOES_ON, skipped="programs of one prompt length go on from nothing")
    before = [*prompt.token_ids, *subject.answer(prompt.token_ids, STEPS).token_ids]
    asked = [*before, *prompt.token_ids[-1:]]
    if len(asked) + STEPS > subject.model.max_prompt_tokens:
        return Identity(GOES_ON, skipped=f"there is no room for {len(asked) + STEPS} tokens")
    used = subject.kept(asked)
    said = subject.answer(asked, STEPS)
    if not said.token_ids:
        return Identity(GOES_ON, broken="our answer is empty")
    if not said.cached:
        return Identity(GOES_ON, broken="all of the prompt was computed again")
    alone = subject.forced(asked, said.token_ids)
    held = [array[:, : said.cached] for layer in alone.cache.layers for array in layer]
    return compare(GOES_ON, _with_logits(used, np.stack(said.logits)), _with_logits(held, alone.logits))


def _with_logits(held: Sequence[BF16Array], logits: F32Array) -> Bits:
    return [*(array.view(np.uint16) for array in held), logits.view(np.uint32)]


def _turn_by_turn(name: str, session: Session) -> Identity:
    """The last answer of a chat, against the whole conversation as one prompt."""
    tokenizer = session.tokenizer
    if not tokenizer.has_chat_template:
        return Identity(name, skipped="there is no chat template")
    subject = Subject(session)
    turns = subject.chat(CHAT, STEPS)
    if len(turns) < len(CHAT):
        return Identity(name, skipped="the conversation is longer than can be read")
    if subject.model.variant_set.variants and not turns[1].cached:
        return Identity(name, broken="the second turn computed the first one again")
    messages: list[Message] = [
        {"role": "user", "content": CHAT[0]},
        {"role": "assistant", "content": tokenizer.decode(turns[0].token_ids)},
        {"role": "user", "content": CHAT[1]},
    ]
    whole = subject.answer(tokenizer.encode_chat(messages), STEPS)
    return compare(name, _bits_of(turns[1]), _bits_of(whole))


def _bits_of(said: Said) -> Bits:
    return [np.array(said.prompt_ids), np.array(said.token_ids), np.stack(said.logits).view(np.uint32)]
