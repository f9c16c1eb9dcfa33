"""From a request to what is asked of the model: tokens, forms of answers, calls, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from aerie.common.errors import UserError
from aerie.engine.call_grammar import call_grammar
from aerie.engine.call_reader import Calls, calls_of
from aerie.engine.grammar import Grammar, Grammars
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.drafting import Drafting, predicted
from aerie.engine.strategies.manner import Manner
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import ToolsError
from aerie.serve.chat_fields import Chat
from aerie.serve.common_fields import Form, Settings
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.output_processor import Ask
from aerie.serve.worker import Opened

MOST_COUNTED = 2**16
"""Tokens of a text that are counted for any model."""


def grammar_of(grammars: Grammars, form: Form) -> Grammar:
    """ApiError for a form that is none."""
    try:
        if form.schema is not None:
            return grammars.json(form.schema, form.hold)
        return grammars.regex(form.regex) if form.regex is not None else grammars.gbnf(form.gbnf or "")
    except UserError as error:
        raise ApiError(400, str(error), form.param, "invalid_value") from error


def check_ids(opened: Opened, ids: Iterable[int], param: str) -> None:
    """ApiError for a token id that a client has given and the model does not have."""
    size = opened.session.model.config.vocab_size
    if (wrong := next((each for each in ids if not 0 <= each < size), None)) is not None:
        raise ApiError(
            400,
            f"{param} has {wrong}, and the model's tokens are 0 to {size - 1}; give ids of its own "
            "tokenizer, as POST /tokenize tells them, or a text",
            param,
            "invalid_value",
        )


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


Formed = tuple[Grammar | None, Calls | None]
"""The form of an answer, and the calls that it may have."""


def encoded(body: Conversing, most: int, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a conversation. most: that fit the model. Raises UserError."""
    return tokenizer.encode_chat(*body.chat, most=most)


def formed(grammars: Grammars, body: Conversing, tokenizer: Tokenizer) -> Formed:
    """Of a conversation, before its tokens: tools that are too large are no prompt either. Raises UserError
    and ApiError."""
    chat, form = body.chat, body.form
    if not chat.tools:
        return grammar_of(grammars, form) if form else None, None
    if form and form.schema is None:
        raise ToolsError(f"tools and {form.param} were given, and go not together; give one", form.param)
    if form:
        grammar_of(grammars, form)
    calls = calls_of(chat.tools, tokenizer)
    schema, hold = (form.schema, form.hold) if form else (None, "meaning")
    return call_grammar(grammars, chat.tools, calls.form, schema, hold), calls


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
    check_ids(opened, settings.stop_token_ids or (), "stop_token_ids")
    eos = opened.session.model.config.eos_token_ids
    try:
        made = [
            _ask(opened, settings, prompt, most, time_limit_s, index, sampler, draft, calls)
            for number, prompt in enumerate(prompts)
            for draft in [_draft(opened, settings, prompt, expected)]
            for choice in range(settings.choices)
            for index in [number * settings.choices + choice]
            for sampler in [Sampler(**settings.sampling(choice, eos), grammar=grammar)]
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
