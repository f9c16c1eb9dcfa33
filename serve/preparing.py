"""From a request to what is asked of the model: tokens, forms of answers, calls, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from aerie.engine.call_grammar import call_grammar
from aerie.engine.call_reader import Calls, calls_of
from aerie.engine.errors import UserError
from aerie.engine.grammar import Grammar, Grammars
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.drafting import Drafting, predicted
from aerie.engine.strategies.manner import Manner
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import ToolsError
from aerie.serve.answer import Ask, Mark, prompt_marks
from aerie.serve.chats import Chat
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.fields import MOST_MARKED, Form, Settings
from aerie.serve.worker import Opened, Worker

MOST_COUNTED = 2**16
"""Tokens of a text that are counted for any model."""


def grammar_of(grammars: Grammars, form: Form) -> Grammar:
    """ApiError for a form that is none."""
    try:
        if form.schema is not None:
            return grammars.json(form.schema)
        return grammars.regex(form.regex) if form.regex else grammars.gbnf(form.gbnf)
    except UserError as error:
        raise ApiError(400, str(error), form.param, "invalid_value") from error


def most_counted(opened: Opened) -> int:
    """Tokens of a text that is to be counted and not to be read, at most."""
    return max(MOST_COUNTED, 16 * opened.session.model.positions)


class Conversing(Protocol):
    """A request that is a conversation."""

    @property
    def chat(self) -> Chat: ...

    @property
    def form(self) -> Form | None: ...

    def place(self, name: str) -> str:
        """Where a field is that the engine knows by this name."""
        ...


class Conversed(NamedTuple):
    """The tokens of a conversation, the form of its answer, and the calls that it may have."""

    ids: list[int]
    grammar: Grammar | None
    calls: Calls | None


def conversed(grammars: Grammars, body: Conversing, most: int, tokenizer: Tokenizer) -> Conversed:
    """most: tokens that fit the model. Raises UserError and ApiError."""
    chat, form = body.chat, body.form
    ids = tokenizer.encode_chat(*chat, most=most)
    if not chat.tools:
        return Conversed(ids, grammar_of(grammars, form) if form else None, None)
    if form and form.schema is None:
        raise ToolsError(f"tools and {form.param} were given, and go not together; give one", form.param)
    if form:
        grammar_of(grammars, form)
    calls = calls_of(chat.tools, tokenizer)
    grammar = call_grammar(grammars, chat.tools, calls.form, form.schema if form else None)
    return Conversed(ids, grammar, calls)


def asked(
    opened: Opened,
    settings: Settings,
    prompts: Sequence[Sequence[int]],
    most: int | None,
    time_limit_s: float,
    grammar: Grammar | None = None,
    expected: Sequence[int] = (),
    calls: Calls | None = None,
) -> list[Ask]:
    """What is asked, for each prompt and each of its choices. most: tokens, None for as many as
    the context has. grammar: the form of all answers. expected: tokens that they are expected to be much
    like. calls: of tools that may be in them. ApiError for what cannot be run, or is out of range."""
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
            _ask(opened, settings, prompt, most, time_limit_s, index, sampler, draft, calls)
            for number, prompt in enumerate(prompts)
            for draft in [_draft(opened, settings, prompt, expected)]
            for choice in range(settings.choices)
            for index in [number * settings.choices + choice]
            for sampler in [Sampler(**settings.sampling(choice), grammar=grammar)]
        ]
        for ask in made:
            opened.check(ask)
    except UserError as error:
        raise of_engine(error) from error
    return made


def _ask(
    opened: Opened,
    settings: Settings,
    prompt: Sequence[int],
    most: int | None,
    time_limit_s: float,
    index: int,
    sampler: Sampler,
    draft: str | Drafting | None,
    calls: Calls | None,
) -> Ask:
    room = max(1, opened.session.model.positions - len(prompt))
    return Ask(
        prompt,
        room if most is None else min(most, room),
        sampler,
        settings.stop_strings,
        frozenset(settings.stop_token_ids or ()),
        settings.top,
        time_limit_s,
        index,
        settings.slot if index == 0 else None,
        Manner(**settings.manners, draft=draft),
        settings.as_drawn,
        calls,
        settings.shows_progress,
    )


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


async def marked(worker: Worker, prompts: Sequence[Sequence[int]], top: int | None) -> list[list[Mark]]:
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
        return [await worker.call(partial(_marks, prompt, top)) for prompt in prompts]
    except UserError as error:
        raise of_engine(error) from error


def _marks(prompt: Sequence[int], top: int, opened: Opened) -> list[Mark]:
    return prompt_marks(opened.scheduler, opened.session.tokenizer, prompt, top)
