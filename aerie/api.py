"""The Python API: a model, opened once, that answers prompts.

    from aerie import load

    with load("demo") as model:
        print(model.generate("What is the capital of France?"))

docs/python.md shows all of it.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from aerie.engine.blocks import GUIDE, ROWS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.context_end import STOP
from aerie.engine.embeddings import Token, embed, embedded_tokens
from aerie.engine.errors import PromptError, UserError
from aerie.engine.forward import all_logits, check_prompt, prefill
from aerie.engine.generate import FinishReason, Generation
from aerie.engine.kpis import Event, EventKind, Kpis
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.progress import Reporter
from aerie.engine.sampler import Sampler, Sampling
from aerie.engine.session import Session, prepare_runtime
from aerie.engine.stopping import StopStrings
from aerie.engine.tokenizer import Message, check_text, note_missing_template
from aerie.llama32_1b.find import find_checkpoint
from aerie.runtime import Profiler, select_backend
from aerie.virtual_npu import folders

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int] | NDArray[Any]"
"""A user's message; a conversation, each message with "role" (system, user, assistant) and "content"; token
ids, which are taken as they are; or embeddings, (tokens, hidden_size) bfloat16 or float32."""

MAX_TOKENS = 128
"""The most tokens of an answer where nobody says how many."""


class Options(Sampling, total=False):
    """What an answer may be asked for with, beside its prompt and how long it may be; see Model.stream."""

    stop: str | int | Iterable[str | int]
    raw: bool


class Told(Reporter):
    """The reporter of a caller in Python: notes go to the caller's function, if there is one; no bars."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        super().__init__(terminal=False)
        self._progress = progress

    def note(self, message: str) -> None:
        if self._progress:
            self._progress(message)


OnEvent: TypeAlias = "Callable[[Event], object]"
"""Told what happens to an answer, while nothing is computed; False stops it."""


@dataclass(frozen=True)
class Usage:
    """Counts of tokens, by the names of OpenAI's API."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt: what was known from the answer before, and not computed again."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Result:
    """What a model answered, and how fast. `str()` of it is its text.

    token_ids: what it generated, a token that ended it included. prompt_token_ids: what it was given,
    none where these were embeddings. kpis: of this answer alone.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    kpis: Kpis

    def __str__(self) -> str:
        return self.text


class Stream(Iterator[str]):
    """The text of an answer, piece by piece as it is made. Nothing is computed before the first is asked for.

    `text` is what has come so far. `close()`, or leaving a `with`, ends the answer where it is; `pause()`
    has it rest until `resume()`.
    """

    def __init__(
        self, model: Model, generation: Generation, stop: Sequence[str | int], on_event: OnEvent | None
    ) -> None:
        self._model = model
        self._generation = generation
        self._on_event = on_event
        self._ended: FinishReason | None = None
        self._is_begun = self._is_over = False
        self._told_tokens = 0
        self._goes_on = threading.Event()
        self._goes_on.set()
        ids = frozenset(one for one in stop if isinstance(one, int))
        self._stop = StopStrings([one for one in stop if isinstance(one, str)])
        self._pieces = model._open().pieces(generation, ids)
        self._text = self._stop.cut(self._pieces)
        self.text = ""

    def __next__(self) -> str:
        if not self._is_begun:
            self._is_begun = True
            self._tell(EventKind.BEGIN)
        try:
            while not (piece := self._next_piece()):
                if not self.token_ids:
                    self._tell(EventKind.CONTINUE)
        except StopIteration:
            self._finish()
            raise
        except BaseException:
            self._ended = FinishReason.INTERRUPTED
            self._finish()
            raise
        self.text += piece
        self._tell(EventKind.CONTINUE, piece)
        return piece

    def _next_piece(self) -> str:
        """The text that the next step gives, which may be none. Waits where the answer rests."""
        self._goes_on.wait()
        with self._model._turn:
            self._generation.go_on_with(self._model._open().model)
            return next(self._text)

    def pause(self) -> None:
        """Have the answer rest after the step under way, a part of the prompt or a token, until `resume`.

        May come from any thread, or from `on_event`. Whoever asks for a piece waits; other answers of the
        model go on. What comes afterwards has the same bits.
        """
        self._goes_on.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._goes_on.set()

    def close(self) -> None:
        """End the answer. What has come of it stays; the model answers the next prompt as if nothing was.

        Another thread that waits for a piece is told at once that there is none, on the virtual NPU in the
        middle of a program.
        """
        if self.finish_reason is None:
            self._ended = FinishReason.INTERRUPTED
        self._generation.stop()
        self.resume()
        with self._model._turn:
            self._pieces.close()
        self._text = iter(())
        self._finish()

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
        by_text = None if self._stop.found is None else FinishReason.STOP
        return self._ended or by_text or self._generation.finish_reason

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        made = self._generation
        return Usage(len(made.prompt), len(made.token_ids), made.cached_tokens)

    @property
    def kpis(self) -> Kpis:
        """Figures of this answer, so far."""
        return self._fed(Kpis())

    def result(self) -> Result:
        """What has come, after making what is left of it."""
        for _ in self:
            pass
        reason = self.finish_reason or FinishReason.INTERRUPTED
        prompt = self._generation.prompt_ids
        return Result(self.text, self.token_ids, prompt, reason, self.usage, self.kpis)

    def _finish(self) -> None:
        """Once, when nothing more comes; told to who was told of the beginning."""
        with self._model._turn:
            is_first, self._is_over = not self._is_over, True
            if is_first:
                self._fed(self._model.kpis)
        if is_first and self._is_begun:
            is_cut = self.finish_reason is FinishReason.INTERRUPTED
            self._tell(EventKind.ABORT if is_cut else EventKind.END)

    def _tell(self, kind: EventKind, text: str = "") -> None:
        """Tell of what happened; an answer that is under way is stopped where the listener says False."""
        made = self.token_ids[self._told_tokens :]
        self._told_tokens += len(made)
        if self._on_event and self._on_event(Event(kind, text, made)) is False and not self._is_over:
            self.close()

    def _fed(self, kpis: Kpis) -> Kpis:
        figures = self._generation.figures
        if figures.new_tokens:
            kpis.prompted(figures.prompt_tokens, figures.ttft_s)
        if figures.tokens_per_s:
            kpis.generated(figures.new_tokens - 1, (figures.new_tokens - 1) / figures.tokens_per_s)
        return kpis


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
            "a prompt is a text, a list of messages, each a dict with role and content, a list of token ids, "
            f"or an array of embeddings, and not {reprlib.repr(prompt)}"
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
        self.kpis = Kpis()
        """Figures of all its answers that have ended."""

    def stream(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """The answer to a prompt, piece by piece.

        options: those of a Sampler, such as `temperature` and `seed`. `stop`: texts and token ids at which
        the answer ends besides the model's own; they are no part of its text. `raw`: `prompt` is continued
        as it is, without the chat template. on_event: is told what happens, and stops the answer by giving
        False.

        Raises PromptError for a prompt that cannot be run, UserError for a value out of range, before
        anything is computed; pulling pieces raises RunError where a device fails.
        """
        stops, raw = _stops(options.pop("stop", ())), options.pop("raw", False)
        sampling: Sampling = options
        session, sampler = self._open(), Sampler(**sampling)
        tokens = self._tokens(prompt, raw)
        with self._turn:
            generation = session.generate(tokens, max_tokens, sampler)
        return Stream(self, generation, stops, on_event)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """The whole answer; see stream."""
        return self.stream(prompt, max_tokens, on_event=on_event, **options).result()

    def logits(self, prompt: Prompt, raw: bool = False) -> F32Array:
        """What the model says of the token after each of a prompt's, (tokens, vocab_size) float32.

        Nothing is sampled. Raises as stream.
        """
        session, tokens = self._open(), self._tokens(prompt, raw)
        with self._turn:
            session.make_room(tokens)
            model = session.model
            return all_logits(model, prefill(model, tokens, model.new_cache(len(tokens))))

    def embed(self, prompt: Prompt, raw: bool = False) -> BF16Array:
        """The embeddings of a prompt's tokens, (tokens, hidden_size) bfloat16. Raises as stream."""
        model, tokens = self._open().model, self._tokens(prompt, raw)
        check_prompt(tokens, model.config)
        return embed(model.embed_table, tokens)

    def _tokens(self, prompt: Prompt, raw: bool) -> Sequence[Token]:
        if isinstance(prompt, np.ndarray) and prompt.ndim != 1:
            return embedded_tokens(prompt, self._open().model.config.hidden_size)
        return self.encode(prompt, raw)

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

    def save(self, path: str | Path) -> None:
        """Write what the model keeps of the last answer and its prompt to a file: tokens, keys and values.

        After `restore`, in any process, a prompt that begins so goes on from there, with the same bits.
        Raises UserError where there is nothing to save, or the file cannot be written.
        """
        with self._turn:
            self._open().save(Path(path))

    def restore(self, path: str | Path) -> int:
        """Keep what `save` wrote; how many tokens these are. Raises UserError for a torn or foreign file, and
        for one that other weights, programs, numerics or another family of decode made; what is kept stays
        then."""
        with self._turn:
            return self._open().restore(Path(path))

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
    variants: str | None = None,
    decode: str = GUIDE,
    seq_len: int | None = None,
    fallback: str | None = None,
    context_end: str = STOP,
    devices: int | Sequence[int] = 0,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Open a model: compile what is not yet compiled, and load the weights.

    model: "demo", a folder with a checkpoint, a Hugging Face id, or "base" or "instruct", Llama-3.2-1B.
    backend: auto, virtual or npu. numerics: exact or bfp16, on the virtual NPU. variants: programs of n
    tokens against m positions, as "8,128x512,2048"; None: a set for the model's size. decode: "guide", GEMVs
    and attention on the CPU, or "rows", blocks as for prompts. seq_len: one prompt length, in tokens, in
    place of variants. fallback: "virtual", where answers go on when the NPU fails. context_end: what happens
    where a sequence comes to the end of the largest context: "stop", or tokens are dropped by "shift" or
    "sink" (engine/context_end.py). devices: on which one programs run, by its index in pyxrt; only one for
    now. cache_dir: of compiled programs. progress: called with each line of what is going on; nothing is
    printed without it. Raises AerieError.
    """
    if decode not in (GUIDE, ROWS):
        raise UserError(f"decode is {decode!r}; give {GUIDE!r} or {ROWS!r}")
    chosen = replace(select_backend(backend, numerics), device=_one_of(devices))
    other = select_backend(fallback) if fallback and fallback != chosen.name else None
    checkpoint = open_checkpoint(find_checkpoint(str(model)))
    folder = cache_dir or folders.programs()
    options = RuntimeOptions(
        seq_len, chosen, folder, other, variants=variants, decode=decode, context_end=context_end
    )
    return Model(prepare_runtime(checkpoint, options, Told(progress)))


def _one_of(devices: int | Sequence[int]) -> int:
    """The index of the one device. UserError for none or several, and for what is no index."""
    given = [devices] if isinstance(devices, int) else [*devices]
    if len(given) != 1 or not isinstance(given[0], Integral) or given[0] < 0:
        raise UserError(
            f"devices is {reprlib.repr(devices)}; a model runs on one device for now: give its index, as 0"
        )
    return int(given[0])
