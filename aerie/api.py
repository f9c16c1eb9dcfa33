"""The Python API: a model, opened once, that answers prompts.

    from aerie import load

    with load("demo") as model:
        print(model.generate("What is the capital of France?"))

docs/python.md shows all of it.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.errors import PromptError, UserError
from aerie.engine.forward import next_token_row, prefill
from aerie.engine.generate import Figures, FinishReason, Generation
from aerie.engine.numerics import F32Array, widen
from aerie.engine.progress import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session, prepare_runtime
from aerie.engine.tokenizer import Message, check_text, note_missing_template
from aerie.llama32_1b.find import find_checkpoint
from aerie.runtime import Profiler, select_backend
from aerie.virtual_npu import folders

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""A user's message; a conversation, each message with "role" (system, user, assistant) and "content"; or
token ids, which are taken as they are."""

MAX_TOKENS = 128
"""The most tokens of an answer where nobody says how many."""


class Told(Reporter):
    """The reporter of a caller in Python: notes go to the caller's function, if there is one; no bars."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        super().__init__(terminal=False)
        self._progress = progress

    def note(self, message: str) -> None:
        if self._progress:
            self._progress(message)


@dataclass(frozen=True)
class Answer:
    """What a model answered, and how fast. `str()` of it is its text.

    token_ids: what it generated, a token that ended it included. prompt_ids: what it was given.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    finish_reason: FinishReason
    figures: Figures

    def __str__(self) -> str:
        return self.text


class Stream(Iterator[str]):
    """The text of an answer, piece by piece as it is made. Nothing is computed before the first is asked for.

    `text` is what has come so far. `close()`, or leaving a `with`, ends the answer where it is.
    """

    def __init__(self, model: Model, generation: Generation, stop: Sequence[str | int]) -> None:
        self._model = model
        self._generation = generation
        self._ended: FinishReason | None = None
        ids = frozenset(one for one in stop if isinstance(one, int))
        texts = [one for one in stop if isinstance(one, str)]
        pieces = model._open().text(generation, ids)
        self._pieces = self._until(pieces, texts) if texts else pieces
        self.text = ""

    def __next__(self) -> str:
        try:
            with self._model._turn:
                self._generation.go_on_with(self._model._open().model)
                piece = next(self._pieces)
        except StopIteration:
            raise
        except BaseException:
            self._ended = FinishReason.INTERRUPTED
            raise
        self.text += piece
        return piece

    def close(self) -> None:
        """End the answer. What has come of it stays; the model answers the next prompt as if nothing was."""
        self._pieces.close()
        if self.finish_reason is None:
            self._ended = FinishReason.INTERRUPTED

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens so far."""
        return tuple(self._generation.token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        return self._ended or self._generation.finish_reason

    @property
    def figures(self) -> Figures:
        """Counts and times so far."""
        return self._generation.figures

    def answer(self) -> Answer:
        """What has come, after making what is left of it."""
        for _ in self:
            pass
        reason = self.finish_reason or FinishReason.INTERRUPTED
        return Answer(self.text, self.token_ids, self._generation.prompt_ids, reason, self.figures)

    def _until(self, pieces: Iterator[str], stops: Sequence[str]) -> Generator[str, None, None]:
        """The pieces up to where one of `stops` begins. What may be the beginning of one is held back."""
        held = ""
        for piece in pieces:
            held += piece
            found = [at for at in map(held.find, stops) if at >= 0]
            if found:
                self._ended = FinishReason.STOP
                held = held[: min(found)]
                break
            safe = len(held) - max(_overlap(held, stop) for stop in stops)
            if safe:
                yield held[:safe]
            held = held[safe:]
        if held:
            yield held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _stops(stop: str | int | Iterable[str | int]) -> list[str | int]:
    """Texts and token ids, these also of numpy's types. UserError for anything else, and an empty text."""
    given: list[object] = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if "" in given:
        raise UserError("stop holds an empty text, at which every answer would end; leave it out")
    if wrong := [one for one in given if not isinstance(one, str | Integral)]:
        raise UserError(f"stop takes texts and token ids, and not {reprlib.repr(wrong[0])}; leave it out")
    return [one if isinstance(one, str) else int(one) for one in given if isinstance(one, str | Integral)]


def _parts(prompt: Prompt) -> tuple[list[Message], list[int]]:
    """The messages, or the token ids, that a prompt is; the other is empty. PromptError for neither."""
    parts: list[object] = list(prompt) if isinstance(prompt, Iterable) else [None]
    ids = [int(one) for one in parts if isinstance(one, Integral)]
    messages = [one for one in parts if isinstance(one, Mapping) and {"role", "content"} <= set(one)]
    if len(parts) not in (len(ids), len(messages)):
        raise PromptError(
            "a prompt is a text, a list of messages, each a dict with role and content, or a list of token "
            f"ids, and not {reprlib.repr(prompt)}"
        )
    return messages, ids


class Model:
    """A model that is ready to answer; `load` makes one. Close it, or use it in a `with`.

    Its answers do not know of each other: a conversation is the messages that you give. Several may be under
    way at once, also from several threads: they take turns, a token each.
    """

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self._turn = threading.Lock()

    def stream(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | int | Iterable[str | int] = (),
        raw: bool = False,
    ) -> Stream:
        """The answer to a prompt, piece by piece.

        temperature, top_k, top_p, seed: see Sampler. stop: texts and token ids at which the answer ends
        besides the model's own; they are no part of its text. raw: `prompt` is continued as it is, without
        the chat template. Raises PromptError for a prompt that cannot be run, UserError for a value out of
        range, before anything is computed; pulling pieces raises RunError where a device fails.
        """
        stops = _stops(stop)
        session, sampler = self._open(), Sampler(temperature, top_k, top_p, seed)
        ids = self.encode(prompt, raw)
        with self._turn:
            generation = session.generate(ids, max_tokens, sampler)
        return Stream(self, generation, stops)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | int | Iterable[str | int] = (),
        raw: bool = False,
    ) -> Answer:
        """The whole answer; see stream."""
        return self.stream(prompt, max_tokens, temperature, top_k, top_p, seed, stop, raw).answer()

    def logits(self, prompt: Prompt, raw: bool = False) -> F32Array:
        """What the model says of the token after a prompt, (vocab_size,) float32. Raises as stream."""
        session, ids = self._open(), self.encode(prompt, raw)
        with self._turn:
            session.make_room(ids)
            model = session.model
            last = prefill(model, ids, model.new_cache(len(ids)))[-1]
            return widen(next_token_row(model, last))

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """The token ids of a prompt, with the chat template around it unless `raw` or there is none.

        Control tokens that a text spells out are text. Raises PromptError for what is no prompt.
        """
        session = self._open()
        if isinstance(prompt, str):
            check_text(prompt, "the prompt")
            if raw:
                return session.tokenizer.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        messages, ids = _parts(prompt)
        if not messages:
            return ids
        note_missing_template(session.tokenizer, session.note)
        return session.tokenizer.encode_chat(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special tokens left out."""
        return self._open().tokenizer.decode(token_ids)

    @property
    def backend(self) -> str:
        """Where programs run: virtual or npu; "npu, then virtual" after the one gave way to the other."""
        return self._open().backend

    @property
    def profiler(self) -> Profiler:
        """Where the time went since the model was loaded, or since its `reset()`."""
        return self._open().cache.profiler

    def close(self) -> None:
        """Give up the device, the buffers and the weights in them."""
        if self._session:
            self._session.cache.close()
        self._session = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Session:
        if self._session is None:
            raise UserError("this model is closed; load it again")
        return self._session


def load(
    model: str | Path = "demo",
    *,
    backend: str = "auto",
    numerics: str | None = None,
    seq_len: int | None = None,
    fallback: str | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Open a model: compile what is not yet compiled, and load the weights.

    model: "demo", a folder with a checkpoint, a Hugging Face id, or "base" or "instruct", Llama-3.2-1B.
    backend: auto, virtual or npu. numerics: exact or bfp16, on the virtual NPU. seq_len: the longest prompt
    to compile for, in tokens. fallback: "virtual", where answers go on when the NPU fails. cache_dir: of
    compiled programs. progress: called with each line of what is going on; nothing is printed without it.
    Raises AerieError.
    """
    chosen = select_backend(backend, numerics)
    other = select_backend(fallback) if fallback and fallback != chosen.name else None
    checkpoint = open_checkpoint(find_checkpoint(str(model)))
    options = RuntimeOptions(seq_len, chosen, cache_dir or folders.programs(), other)
    return Model(prepare_runtime(checkpoint, options, Told(progress)))
