"""The session under test. It generates through the same functions that `make run` and `make chat` call."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from aerie.verify.reference import no_note

UNWRITTEN_VALUE = 1000.0
"""Fills the KV cache before a run: far from any real key or value, and finite, so that logits stay
comparable.
"""

FORWARD_ERRORS = (AerieRuntimeError, UserError)
"""Exceptions of a failed forward pass: logits that are not finite, a program that fails."""


def one_line(error: Exception) -> str:
    """Return an error's message as one line, or the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True)
class RecordingSampler(Sampler):
    """A greedy sampler that records the logits of each call, in float32."""

    sampled: list[F32Array] = field(default_factory=list, repr=False, compare=False)

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        self.sampled.append(logits.astype(np.float32))
        return super().__call__(logits, prompt_ids, token_ids)


@dataclass(frozen=True)
class DrawingSampler(Sampler):
    """A sampler that records the distribution of each draw: (vocab_size,) probabilities, by token id."""

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
class FreeRun:
    """A greedy answer to `prompt_ids`: its tokens, the logits of each step, and why it ended.

    cached_tokens: tokens of the prompt whose keys and values came from the prefix cache.
    """

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    logits: list[F32Array]
    reason: FinishReason | None
    cached_tokens: int = 0


@dataclass(frozen=True)
class ForcedRun:
    """The result of a run on given tokens.

    rows: the last layer's output at every position of the prompt, bf16, (prompt length, hidden_size).
    logits: (steps, vocab_size); row 0 is from the prompt's last position. cache: the KV cache of the run.
    """

    rows: BF16Array
    logits: F32Array
    cache: KVCache


Enough = Callable[[Sequence[FreeRun]], bool]


def never_enough(_: Sequence[FreeRun]) -> bool:
    """Go on until there is no message."""
    return False


class SessionUnderTest:
    """Runs a session in the ways that the gate compares. It computes nothing itself."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def model(self) -> LoadedModel:
        return self.session.model

    def free_run(self, prompt_ids: Sequence[int], steps: int) -> FreeRun:
        """Generate at most `steps` greedy tokens, as `make run` does."""
        sampler = RecordingSampler()
        generation = self.session.generate(prompt_ids, steps, sampler)
        tokens, cached = list(generation), generation.cached_tokens
        return FreeRun(tuple(prompt_ids), tokens, sampler.sampled, generation.finish_reason, cached)

    def sampled_run(
        self, prompt_ids: Sequence[int], steps: int, penalty: float
    ) -> tuple[list[int], F64Array]:
        """Sample at most `steps` tokens with a repetition penalty.

        Returns the token ids and their distributions, (steps, vocab_size); an empty array if there is no
        token.
        """
        sampler = DrawingSampler(temperature=1.0, seed=0, repetition_penalty=penalty)
        tokens = list(self.session.generate(prompt_ids, steps, sampler))
        return tokens, np.array(sampler.drawn)

    def chat(self, messages: Iterable[str], steps: int, enough: Enough = never_enough) -> list[FreeRun]:
        """Send `messages` one after the other, as `make chat` does, and return the answers.

        enough: whether these answers end the conversation. A message without an answer ends it too. Raises
        KeyboardInterrupt if Ctrl-C stopped an answer.
        """
        session, lines = _RecordingSession(self.session), iter(messages)

        sent = 0

        def read_line(_: str) -> str:
            nonlocal sent
            answers = session.answers
            if len(answers) < sent or enough(answers) or (line := next(lines, None)) is None:
                raise EOFError
            sent += 1
            return line

        Chat(session, Sampler(), steps, note=no_note, out=io.StringIO(), read=read_line).run()
        if any(answer.reason is FinishReason.INTERRUPTED for answer in session.answers):
            raise KeyboardInterrupt
        return session.answers

    def forced_run(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> ForcedRun:
        """Prefill the prompt, then decode `token_ids` whatever the logits are. The last token is not fed.

        The KV cache is filled with UNWRITTEN_VALUE first, and so are the buffers into which attention's
        programs gather pages, so that reading an unwritten position shows.
        """
        model = self.model
        cache = model.new_cache(len(prompt_ids) + len(token_ids))
        blocks, capacity = model.variant_set, cache.capacity
        contexts = {*_up_to(blocks.contexts, capacity), *_up_to(blocks.window_contexts, capacity)}
        storage = model.kv_storage
        buffers = [
            (storage.allocate(context, window), window)
            for context in sorted(contexts)
            for window in range(len(model.config.masks.windows))
        ]
        for layers in (cache.layers, *(buffer.layers.values() for buffer, _ in buffers)):
            for array in itertools.chain.from_iterable(layers):
                array.fill(UNWRITTEN_VALUE)
        for buffer, window in buffers:
            storage.free(buffer, window)  # the buffer that was freed last is allocated next
        rows = prefill(model, prompt_ids, cache)
        logits = [next_token_logits(model, rows[-1])]
        logits += [next_token_logits(model, decode_step(model, token, cache)) for token in token_ids[:-1]]
        return ForcedRun(rows, np.stack(logits), cache)

    def cached_kv(self, prompt_ids: Sequence[int]) -> tuple[int, list[BF16Array]]:
        """Copy the cached keys and values, of each layer, that the session would reuse for a prompt. Returns
        the first position that has any: those before it are behind the window of all layers."""
        kept = self.session.requests.last_sequence
        if kept is None or not (common := kept.sequence.common_prefix(prompt_ids)):
            return 0, []
        first = kept.sequence.first_held
        places = kept.sequence.pool_positions(first, common - first)
        return first, [array[:, places] for layer in kept.sequence.pool.layers for array in layer]

    def position_logits(self, rows: BF16Array) -> F32Array:
        """Return the logits after each of `rows` (ForcedRun.rows): (len(rows), vocab_size)."""
        return np.stack([next_token_logits(self.model, row) for row in rows])


def _up_to(contexts: Sequence[int], positions: int) -> Iterator[int]:
    """Yield the contexts that a sequence has while it grows to `positions`."""
    for context in sorted(contexts):
        yield context
        if context >= positions:
            return


class _RecordingSession:
    """A session for Chat that records every answer with its logits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorders: list[RecordingSampler] = []
        self._generations: list[Request] = []
        self._token_ids: list[list[int]] = []

    @property
    def tokenizer(self) -> Tokenizer:
        return self._session.tokenizer

    def ensure_programs(self, prompt_ids: Sequence[int]) -> None:
        self._session.ensure_programs(prompt_ids)

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,  # noqa: ARG002 (greedy too: the recorder takes its place)
        interrupted: Callable[[], bool] = never_interrupted,
    ) -> Request:
        recorder = RecordingSampler()
        generation = self._session.generate(prompt_ids, max_new_tokens, recorder, interrupted)
        self._recorders.append(recorder)  # only after generate: a refused prompt has no answer
        self._generations.append(generation)
        self._token_ids.append([])
        return generation

    def text(self, generation: Request) -> Iterator[str]:
        return self._session.text(generation, self._record_tokens(generation))

    def _record_tokens(self, generation: Request) -> Iterator[int]:
        for token in generation:
            self._token_ids[-1].append(token)
            yield token

    @property
    def answers(self) -> list[FreeRun]:
        runs = zip(self._generations, self._token_ids, self._recorders, strict=True)
        return [
            FreeRun(request.prompt_ids, ids, recorder.sampled, request.finish_reason, request.cached_tokens)
            for request, ids, recorder in runs
        ]
