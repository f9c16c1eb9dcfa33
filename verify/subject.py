"""What is verified: a Session, asked by the very functions that `make run` and `make chat` call."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from aerie.cli.chat import Chat
from aerie.common.errors import UserError
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.generate import FinishReason, never_interrupted
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_pool import KVCache
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.sampling_filters import F64Array
from aerie.engine.session import Session
from aerie.engine.tokenizer import Tokenizer
from aerie.runtime import AerieRuntimeError

UNWRITTEN = 1000.0
"""Far from any key and value, and finite, so that what it does to the logits can be told in numbers."""

BROKEN = (AerieRuntimeError, UserError)
"""What a forward pass may raise that gets no further: logits that are no numbers, a program that fails."""


def one_line(error: Exception) -> str:
    """An error's message, for a line of its own."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True)
class Recorder(Sampler):
    """The greedy sampler, which keeps the logits it was given, in float32."""

    sampled: list[F32Array] = field(default_factory=list, repr=False, compare=False)

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        self.sampled.append(logits.astype(np.float32))
        return super().__call__(logits, prompt_ids, token_ids)


@dataclass(frozen=True)
class Drawer(Sampler):
    """A sampler that draws, and keeps the probabilities it drew from, of each token in the order of ids."""

    drawn: list[F64Array] = field(default_factory=list, repr=False, compare=False)

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        tokens, probabilities = self.distribution(logits, prompt_ids, token_ids)
        by_id = np.zeros(len(logits))
        by_id[tokens] = probabilities
        self.drawn.append(by_id)
        return super().__call__(logits, prompt_ids, token_ids)


@dataclass(frozen=True)
class Said:
    """A free-running answer to `prompt_ids`: its tokens, the logits that were sampled, and why it ended;
    `cached`: how many tokens of the prompt were not computed again."""

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    logits: list[F32Array]
    reason: FinishReason | None
    cached: int = 0


@dataclass(frozen=True)
class Forced:
    """A run on given tokens. `rows` is the last layer's output at every position of the prompt, bf16,
    (prompt length, hidden_size); `logits` is (steps, vocab_size), row 0 from the prompt's last position;
    `cache` is what the run has written to."""

    rows: BF16Array
    logits: F32Array
    cache: KVCache


class Subject:
    """A session under test. It computes nothing itself."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def model(self) -> LoadedModel:
        return self.session.model

    def answer(self, prompt_ids: Sequence[int], steps: int) -> Said:
        """At most `steps` greedy tokens, as `make run` makes them."""
        sampler = Recorder()
        generation = self.session.generate(prompt_ids, steps, sampler)
        tokens, cached = list(generation), generation.cached_tokens
        return Said(tuple(prompt_ids), tokens, sampler.sampled, generation.finish_reason, cached)

    def drawn(self, prompt_ids: Sequence[int], steps: int, penalty: float) -> tuple[list[int], F64Array]:
        """At most `steps` tokens, drawn with a repetition penalty, and what each was drawn from: (steps,
        vocab_size) probabilities, or nothing where nothing was said."""
        sampler = Drawer(temperature=1.0, seed=0, repetition_penalty=penalty)
        tokens = list(self.session.generate(prompt_ids, steps, sampler))
        return tokens, np.array(sampler.drawn)

    def chat(self, messages: Sequence[str], steps: int) -> list[Said]:
        """The answers to `messages`, one after the other, as `make chat` makes them.

        Raises KeyboardInterrupt where Ctrl-C stopped an answer.
        """
        listening = _Listening(self.session)
        lines = iter(messages)
        talk = Chat(
            listening, Sampler(), steps, note=_unheard, out=io.StringIO(), read=lambda _: _next(lines)
        )
        talk.run()
        if any(said.reason is FinishReason.INTERRUPTED for said in listening.said):
            raise KeyboardInterrupt
        return listening.said

    def forced(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Forced:
        """Prefill the prompt, then decode `token_ids` whatever the logits say; the last is not fed.

        The KV cache is full of UNWRITTEN before, so that a position read before it is written shows.
        """
        model = self.model
        cache = model.new_cache(len(prompt_ids) + len(token_ids))
        for layer in range(model.config.num_hidden_layers):
            for array in cache.layers[layer]:
                array.fill(UNWRITTEN)
        rows = prefill(model, prompt_ids, cache)
        logits = [next_token_logits(model, rows[-1])]
        logits += [next_token_logits(model, decode_step(model, token, cache)) for token in token_ids[:-1]]
        return Forced(rows, np.stack(logits), cache)

    def kept(self, prompt_ids: Sequence[int]) -> list[BF16Array]:
        """Copies of the keys and values, of each layer, that the session would use again for a prompt."""
        kept = self.session.requests.last_sequence
        if kept is None or not (common := kept.sequence.common_prefix(prompt_ids)):
            return []
        places = kept.sequence.pool_positions(0, common)
        return [array[:, places] for layer in kept.sequence.pool.layers for array in layer]

    def position_logits(self, rows: BF16Array) -> F32Array:
        """Logits after each of `rows` (of Forced): (len(rows), vocab_size)."""
        return np.stack([next_token_logits(self.model, row) for row in rows])


class _Listening:
    """A session for Chat, which notes what is said."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorders: list[Recorder] = []
        self._generations: list[Request] = []
        self._heard: list[list[int]] = []

    @property
    def tokenizer(self) -> Tokenizer:
        return self._session.tokenizer

    def ensure_programs(self, prompt_ids: Sequence[int]) -> None:
        self._session.ensure_programs(prompt_ids)

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,  # noqa: ARG002 (as greedy as the one that records)
        interrupted: Callable[[], bool] = never_interrupted,
    ) -> Request:
        recorder = Recorder()
        generation = self._session.generate(prompt_ids, max_new_tokens, recorder, interrupted)
        self._recorders.append(recorder)  # what was refused is no answer
        self._generations.append(generation)
        self._heard.append([])
        return generation

    def text(self, generation: Request) -> Iterator[str]:
        return self._session.text(generation, self._overhear(generation))

    def _overhear(self, generation: Request) -> Iterator[int]:
        for token in generation:
            self._heard[-1].append(token)
            yield token

    @property
    def said(self) -> list[Said]:
        return [
            Said(made.prompt_ids, heard, recorder.sampled, made.finish_reason, made.cached_tokens)
            for made, heard, recorder in zip(self._generations, self._heard, self._recorders, strict=True)
        ]


def _unheard(remark: str) -> None:
    """What a chat says beside the answers."""


def _next(lines: Iterator[str]) -> str:
    try:
        return next(lines)
    except StopIteration:
        raise EOFError from None
