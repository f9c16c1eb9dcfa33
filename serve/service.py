"""What all requests share: the model's worker, its name, the limits, and who may wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aerie.engine.errors import UserError
from aerie.engine.grammar import Grammar
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.strategies.drafting import Drafting, predicted
from aerie.engine.strategies.manner import Manner
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.answer import Ask, Mark, prompt_marks
from aerie.serve.asking import Asking
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.fields import MOST_MARKED, Form, Settings
from aerie.serve.metrics import Line, Metrics
from aerie.serve.slot_files import SlotFiles, Storage
from aerie.serve.worker import Opened, Worker

Made = TypeVar("Made")
LOADING_S = 2
"""What a client is told to wait while the model is loaded."""


@dataclass(frozen=True)
class Limits:
    """queue: answers that may wait beside those under way. time_limit_s: of a request, from its coming to its
    last token. drain_s: what is left to answers when the server is told to stop. heartbeat_s: after so much
    silence a stream has a comment. body_bytes, header_bytes: of a request. body_s: until its body is there.
    send_s: until a reader takes what was sent. api_key: None lets everybody in. origins: of pages in browsers
    that may ask. is_local: only this machine's names are taken for the server's. slots: where they are saved,
    None for nowhere."""

    queue: int = 64
    time_limit_s: float = 600.0
    drain_s: float = 30.0
    heartbeat_s: float = 5.0
    body_bytes: int = 8 * 2**20
    header_bytes: int = 32 * 2**10
    body_s: float = 30.0
    send_s: float = 60.0
    api_key: str | None = None
    origins: tuple[str, ...] = ()
    is_local: bool = True
    slots: Storage | None = None


class Service:
    """A model under a name. `begin` and `end` are called within the event loop. aliases: other names that
    clients may call it by."""

    def __init__(
        self,
        name: str,
        open_model: Callable[[], Opened],
        limits: Limits | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        self.name, self.limits, self.aliases = name, limits or Limits(), tuple(aliases)
        self.began = int(time.time())
        """When it was made, in seconds since 1970."""
        self._open_model = open_model
        self._worker: Worker | None = None
        self._askings: set[Asking] = set()
        self._is_draining = False
        self._encoding = ThreadPoolExecutor(1, "encoding")
        self.metrics = Metrics(lambda: self.worker.running, lambda: self.worker.waiting)
        self.slot_files = SlotFiles(self.limits.slots)

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    @property
    def is_over(self) -> bool:
        """Whether the model's thread has ended."""
        return self.worker.over.is_set()

    def begin(self) -> None:
        """Load the model, in a thread."""
        self._worker = Worker(self._open_model)

    async def end(self) -> None:
        """End the model's thread. Answers under way have been waited for."""
        self.worker.stop()
        self._encoding.shutdown(wait=False)
        self.slot_files.end()
        await asyncio.get_running_loop().run_in_executor(None, self.worker.join, self.limits.drain_s)

    def drain(self) -> None:
        """Take no more requests, and give those under way `drain_s`; then they end with an error."""
        if self._is_draining:
            return
        self._is_draining = True
        stopped = ApiError(503, "the server was stopped before this answer was complete", code="stopped")
        asyncio.get_running_loop().call_later(self.limits.drain_s, self.worker.end_all, stopped)

    def ready(self) -> Opened:
        """The model. ApiError 503 while it is loaded, and where it never will be."""
        if self._is_draining:
            raise ApiError(503, "the server is about to stop; ask another", code="stopping")
        if self.worker.over.is_set():
            raise ApiError(503, "the model could not be loaded; the server's log says why", code="failed")
        if self.worker.opened is None:
            raise ApiError(503, "the model is being loaded; ask again", code="loading", retry_after=LOADING_S)
        return self.worker.opened

    def opened(self, model: str | None) -> Opened:
        """The model, which a request names so; None is the one that there is. ApiError 404 for another's."""
        if model not in (None, self.name, *self.aliases):
            raise ApiError(
                404,
                f"there is no model {model[:80]!r} here; there is {self.name!r}"
                if model
                else "model is empty",
                "model",
                "model_not_found",
            )
        return self.ready()

    async def encoded(self, function: Callable[[Tokenizer], Made]) -> Made:
        """What a function makes with the tokenizer, in the one thread that uses it. Raises ApiError."""
        work = partial(function, self.ready().tokenizer)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._encoding, work)
        except UserError as error:
            raise of_engine(error) from error

    async def grammar(self, opened: Opened, form: Form | None) -> Grammar | None:
        """The form of an answer, read in the thread that encodes. ApiError for one that is none."""
        if form is None:
            return None
        forms = opened.session.grammars
        work = partial(forms.gbnf, form.gbnf) if form.schema is None else partial(forms.json, form.schema)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._encoding, work)
        except UserError as error:
            raise ApiError(400, str(error), form.param, "invalid_value") from error

    def asks(
        self,
        opened: Opened,
        settings: Settings,
        prompts: Sequence[Sequence[int]],
        most: int | None,
        grammar: Grammar | None = None,
        expected: Sequence[int] = (),
    ) -> list[Ask]:
        """What is asked, for each prompt and each of its choices. most: tokens, None for as many as
        the context has. grammar: the form of all answers. expected: tokens that they are expected to be much
        like. ApiError for what cannot be run, or is out of range."""
        if settings.top is not None and opened.session.model.config.diffusion is not None:
            raise ApiError(
                400,
                "logprobs are of models that say one token after the other, and this one fills in blocks of "
                "masks; leave it out",
                "logprobs",
                "invalid_value",
            )
        try:
            made = [
                self._ask(opened, settings, prompt, most, number * settings.choices + choice, sampler, draft)
                for number, prompt in enumerate(prompts)
                for draft in [_draft(opened, settings, prompt, expected)]
                for choice in range(settings.choices)
                for sampler in [Sampler(**settings.sampling(choice), grammar=grammar)]
            ]
            for ask in made:
                opened.check(ask)
        except UserError as error:
            raise of_engine(error) from error
        return made

    def _ask(
        self,
        opened: Opened,
        settings: Settings,
        prompt: Sequence[int],
        most: int | None,
        index: int,
        sampler: Sampler,
        draft: str | Drafting | None,
    ) -> Ask:
        room = max(1, opened.session.model.positions - len(prompt))
        return Ask(
            prompt,
            room if most is None else min(most, room),
            sampler,
            settings.stop_strings,
            frozenset(settings.stop_token_ids or ()),
            settings.top,
            self.limits.time_limit_s,
            index,
            settings.slot if index == 0 else None,
            Manner(**settings.manners, draft=draft),
            settings.as_drawn,
        )

    async def prompt_marks(self, prompts: Sequence[Sequence[int]], top: int | None) -> list[list[Mark]]:
        """How likely the tokens of each prompt are, with the `top` likeliest of each; none where top is None.
        ApiError for a prompt of more than MOST_MARKED tokens, and for what cannot be run."""
        if top is None:
            return []
        if (longest := max(map(len, prompts))) > MOST_MARKED:
            raise ApiError(
                400,
                f"a prompt has {longest} tokens; of {MOST_MARKED} at most it is told how likely each is; "
                "shorten it, or leave out prompt_logprobs, or echo with logprobs",
                "prompt_logprobs",
                "invalid_value",
            )
        try:
            return [await self.worker.call(partial(_marked, prompt, top)) for prompt in prompts]
        except UserError as error:
            raise of_engine(error) from error

    def asking(self, asks: Sequence[Ask], line: Line) -> Asking:
        """Put to the worker. ApiError 429 where too many wait."""
        most, there = MOST_ANSWERS + self.limits.queue, sum(len(one.left) for one in self._askings)
        if there + len(asks) > most:
            after = min(60, max(1, math.ceil(self.metrics.mean_s * there / MOST_ANSWERS)))
            raise ApiError(
                429,
                f"{there} answers are under way or wait, {len(asks)} more were asked for, and {most} is the "
                f"limit; ask again in {after} s",
                code="queue_full",
                retry_after=after,
            )
        line.model, line.prompt = (
            self.name,
            sum(len(prompt) for prompt in {id(one.prompt): one.prompt for one in asks}.values()),
        )
        asking = Asking(self.worker, asks, line, self.limits.heartbeat_s, self._askings.discard)
        self._askings.add(asking)
        return asking


def _draft(
    opened: Opened, settings: Settings, prompt: Sequence[int], answer: Sequence[int]
) -> str | Drafting | None:
    """Where guesses of an answer come from: as the request says, or the server's flags. UserError for a model
    that fills in blocks and is given an answer to expect."""
    if settings.draft == "none":
        return None
    if answer and opened.session.model.config.diffusion is not None:
        raise UserError(
            "prediction is for models that say one token after the other, and this one fills in blocks of "
            "masks; leave it out"
        )
    return predicted(prompt, answer) if answer else settings.draft or opened.draft


def _marked(prompt: Sequence[int], top: int, opened: Opened) -> list[Mark]:
    return prompt_marks(opened.scheduler, opened.session.tokenizer, prompt, top)
