"""From a conversation to tokens, the form of its answer, and the calls that the answer may have."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from aerie.engine.call_grammar import call_grammar
from aerie.engine.call_reader import Calls, calls_of
from aerie.engine.errors import UserError
from aerie.engine.grammar import Grammar, Grammars
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import ToolsError
from aerie.serve.chats import Chat
from aerie.serve.errors import ApiError
from aerie.serve.fields import Form


def grammar_of(grammars: Grammars, form: Form) -> Grammar:
    """ApiError for a form that is none."""
    try:
        if form.schema is not None:
            return grammars.json(form.schema)
        return grammars.regex(form.regex) if form.regex else grammars.gbnf(form.gbnf)
    except UserError as error:
        raise ApiError(400, str(error), form.param, "invalid_value") from error


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


def conversed(grammars: Grammars, body: Conversing, tokenizer: Tokenizer) -> Conversed:
    """Raises UserError and ApiError."""
    chat, form = body.chat, body.form
    ids = tokenizer.encode_chat(*chat)
    if not chat.tools:
        return Conversed(ids, grammar_of(grammars, form) if form else None, None)
    if form and form.schema is None:
        raise ToolsError(f"tools and {form.param} were given, and go not together; give one", form.param)
    if form:
        grammar_of(grammars, form)
    calls = calls_of(chat.tools, tokenizer)
    grammar = call_grammar(grammars, chat.tools, calls.form, form.schema if form else None)
    return Conversed(ids, grammar, calls)
