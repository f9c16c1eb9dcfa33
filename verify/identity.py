"""What must not change a single bit: padding, threads, what ran before, and how a conversation came about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.session import Session
from aerie.engine.tokenizer import Message
from aerie.multi_launch_builder import legal_seq_len
from aerie.verify.prompts import Prompt
from aerie.verify.rules import Failure
from aerie.verify.subject import BROKEN, Said, Subject, one_line

STEPS = 8
"""Tokens decoded after the prompt."""

CHAT = ("What is 3 plus 4?", "Who are you?")
THREADS = "VNPU_THREADS"

Bits = list[npt.NDArray[Any]]
Reopen = Callable[[int], Session]
"""Opens the same model compiled for another prompt length, in tokens."""


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


def identities(session: Session, case: Case, reopen: Reopen) -> Iterator[Identity]:
    """All of them, in turn, in a session that has run other prompts since the case was taken."""
    ways: dict[str, Callable[[str], Identity]] = {
        "after other prompts, and in a fresh session": lambda name: case.compare(name, session),
        "with another padding token": lambda name: case.compare(name, _padded_otherwise(session)),
        "compiled for half the length": lambda name: _other_length(name, session, case, reopen),
        "on one thread": lambda name: _one_thread(name, session, case, reopen),
        "a chat turn by turn, and at once": lambda name: _turn_by_turn(name, session),
    }
    for name, way in ways.items():
        try:
            yield way(name)
        except BROKEN as error:
            yield Identity(name, broken=one_line(error))


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


def _padded_otherwise(session: Session) -> Session:
    """Padding is the first end token; here it is another token, which ends nothing that is only fed."""
    config = session.model.config
    other = config.vocab_size - 1 if config.pad_token_id != config.vocab_size - 1 else 0
    return replace(session, model=replace(session.model, config=replace(config, eos_token_ids=(other,))))


def _other_length(name: str, session: Session, case: Case, reopen: Reopen) -> Identity:
    length, needed = session.model.seq_len, len(case.prompt_ids)
    half = legal_seq_len(max(1, length // 2))
    if half >= length or half < needed:
        return Identity(name, skipped=f"the kernels have no shorter length for a prompt of {needed} tokens")
    return _compare_reopened(name, case, reopen, half)


def _one_thread(name: str, session: Session, case: Case, reopen: Reopen) -> Identity:
    if session.backend != "virtual":
        return Identity(name, skipped="threads are the virtual NPU's")
    with _environment(THREADS, "1"):  # which a session asks for once, when it is opened
        return _compare_reopened(name, case, reopen, session.model.seq_len)


def _compare_reopened(name: str, case: Case, reopen: Reopen, seq_len: int) -> Identity:
    other = reopen(seq_len)
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
