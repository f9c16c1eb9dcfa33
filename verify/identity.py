"""What must not change a single bit: padding, threads, what ran before, how a prompt was cut into blocks, and
how a conversation came about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.blocks import ROWS
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.forward import next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array
from aerie.engine.session import Session
from aerie.engine.tokenizer import Message
from aerie.multi_launch_builder import legal_seq_len
from aerie.verify.prompts import Prompt, full_prompt
from aerie.verify.rules import Failure
from aerie.verify.subject import BROKEN, Said, Subject, one_line

STEPS = 8
"""Tokens decoded after the prompt."""

CHAT = ("What is 3 plus 4?", "Who are you?")
THREADS = "VNPU_THREADS"

Bits = list[npt.NDArray[Any]]
Reopen = Callable[[RuntimeOptions], Session]
"""Opens the same model with other options."""


def in_blocks(options: RuntimeOptions) -> RuntimeOptions:
    """Programs of few rows, which cut all but the shortest prompt into several steps, in decode too."""
    return replace(options, seq_len=None, variants="8,32x512", decode=ROWS)


@dataclass(frozen=True)
class Identity:
    """Two ways to one result. `differing` of `compared` numbers differ; `skipped`: why it was not tried;
    `broken`: what it ended with instead of a result."""

    name: str
    compared: int = 0
    differing: int = 0
    skipped: str = ""
    broken: str = ""

    @property
    def failure(self) -> Failure | None:
        if self.broken:
            return Failure("bit identity", self.name, None, self.broken)
        if not self.differing:
            return None
        return Failure("bit identity", self.name, None, "the count of numbers that differ", self.differing, 0)


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


def identities(session: Session, case: Case, options: RuntimeOptions, reopen: Reopen) -> Iterator[Identity]:
    """All of them, in turn, in a session that has run other prompts since the case was taken."""
    ways: dict[str, Callable[[str], Identity]] = {
        "after other prompts, and in a fresh session": lambda name: case.compare(name, session),
        "compiled for half the length": lambda name: _other_length(name, session, case, options, reopen),
        "on one thread": lambda name: _one_thread(name, session, case, options, reopen),
        "a chat turn by turn, and at once": lambda name: _turn_by_turn(name, session),
    }
    for name, way in ways.items():
        try:
            yield way(name)
        except BROKEN as error:
            yield Identity(name, broken=one_line(error))
    yield from _in_blocks(session, options, reopen)


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


def _other_length(
    name: str, session: Session, case: Case, options: RuntimeOptions, reopen: Reopen
) -> Identity:
    length, needed = session.model.seq_len, len(case.prompt_ids)
    half = legal_seq_len(max(1, length // 2))
    if half >= length or half < needed:
        return Identity(name, skipped=f"the kernels have no shorter length for a prompt of {needed} tokens")
    return _compare_reopened(name, case, replace(options, seq_len=half), reopen)


def _one_thread(name: str, session: Session, case: Case, options: RuntimeOptions, reopen: Reopen) -> Identity:
    if session.backend != "virtual":
        return Identity(name, skipped="threads are the virtual NPU's")
    with _environment(THREADS, "1"):  # which a session asks for once, when it is opened
        return _compare_reopened(name, case, replace(options, seq_len=session.model.seq_len), reopen)


def _compare_reopened(name: str, case: Case, options: RuntimeOptions, reopen: Reopen) -> Identity:
    other = reopen(options)
    try:
        return case.compare(name, other)
    finally:
        other.cache.close()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@dataclass(frozen=True)
class Cut:
    """A way to prefill: tokens per call of prefill, over and over, and how many others come first, which the
    cache then goes back over. `least_steps` are those that it has to take, or it was not that way."""

    name: str
    tokens: int
    others: int = 0
    least_steps: int = 2


KEPT = 3
"""Tokens that a rewind goes back to."""

CUT_TOKENS = 45
"""Tokens of text that are cut: blocks of 32, 8 and 8 rows, and three of these are padding."""

CUTS = (
    Cut("in blocks of 8 and 32 rows", 10**6),
    Cut("in chunks of 5 tokens, with padding", 5, least_steps=3),
    Cut("token by token, in blocks", 1, least_steps=8),
    Cut("after a rewind", 13, others=11, least_steps=3),
)


def _in_blocks(session: Session, options: RuntimeOptions, reopen: Reopen) -> Iterator[Identity]:
    """A prompt's rows, its keys and values, and the logits after it, on blocks against all at once; each way
    on as many threads as there are, and one of them on one thread."""
    ids = full_prompt(session)[:CUT_TOKENS]
    try:
        whole = _prefilled(session.model, ids, Cut("at once", len(ids))).held
        logits: Bits = []
        for cuts, threads in ((CUTS, ""), (CUTS[1:2], "1")):
            with _environment(THREADS, threads) if threads else nullcontext():
                other = reopen(in_blocks(options))
            try:
                for cut in cuts:
                    found = _prefilled(other.model, ids, cut)
                    logits = logits or found.logits  # of the family of blocks, whose LM head is its own
                    yield _judged(cut, found, [*whole, *logits], threads)
            finally:
                other.cache.close()
    except BROKEN as error:
        yield Identity("in blocks of rows", broken=one_line(error))


@dataclass(frozen=True)
class Prefilled:
    """The last layer's rows, the keys and values of each layer, and the logits after the last token, as
    integers; and how many steps the tokens took."""

    held: Bits
    logits: Bits
    steps: int


def _judged(cut: Cut, found: Prefilled, wanted: Bits, threads: str) -> Identity:
    name = f"{cut.name}, one thread" if threads else cut.name
    if found.steps < cut.least_steps:
        return Identity(name, broken=f"took {found.steps} steps, and {cut.least_steps} or more are meant")
    return compare(name, wanted, [*found.held, *found.logits])


def _prefilled(model: LoadedModel, ids: Sequence[int], cut: Cut) -> Prefilled:
    cache = model.new_cache(len(ids) + cut.others)
    rows: list[BF16Array] = []
    steps = first = 0
    if cut.others:
        other = (ids[0] + 1) % model.config.vocab_size
        rows.append(prefill(model, [*ids[:KEPT], *[other] * cut.others], cache)[:KEPT])
        cache.length = first = KEPT
    for start in range(first, len(ids), cut.tokens):
        some = ids[start : start + cut.tokens]
        steps += len(model.blocks.plan(len(some), start, cache.capacity))
        rows.append(prefill(model, some, cache))
    made = np.concatenate(rows)
    held = [array[:, : len(ids)] for layer in cache.layers for array in layer]
    bits: Bits = [np.ascontiguousarray(each).view(np.uint16) for each in (made, *held)]
    return Prefilled(bits, [next_token_logits(model, made[-1]).view(np.uint32)], steps)


def _turn_by_turn(name: str, session: Session) -> Identity:
    """The last answer of a chat, against the whole conversation as one prompt."""
    tokenizer = session.tokenizer
    if not tokenizer.has_chat_template:
        return Identity(name, skipped="there is no chat template")
    subject = Subject(session)
    turns = subject.chat(CHAT, STEPS)
    if len(turns) < len(CHAT):
        return Identity(name, skipped="the conversation is longer than the compiled length")
    messages: list[Message] = [
        {"role": "user", "content": CHAT[0]},
        {"role": "assistant", "content": tokenizer.decode(turns[0].token_ids)},
        {"role": "user", "content": CHAT[1]},
    ]
    whole = subject.answer(tokenizer.encode_chat(messages), STEPS)
    return compare(name, _bits_of(turns[1]), _bits_of(whole))


def _bits_of(said: Said) -> Bits:
    return [np.array(said.prompt_ids), np.array(said.token_ids), np.stack(said.logits).view(np.uint32)]
