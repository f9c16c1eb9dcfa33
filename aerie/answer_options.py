"""The options of an answer: what they may be, and what they mean for a model."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from numbers import Integral
from typing import Any, NamedTuple, Protocol

from aerie.answers import SessionState
from aerie.argument_types import plain_number
from aerie.common.errors import UserError
from aerie.engine.call_grammar import tool_call_grammar
from aerie.engine.call_reader import ToolCallSpec, tool_call_spec
from aerie.engine.embeddings import EmbeddedToken, Token, ids_only
from aerie.engine.grammar import Grammar, Schema
from aerie.engine.sampler import Sampler, SamplingSettings
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DecodeConfig, DecodeSettings
from aerie.engine.strategies.draft_model import check_drafter, draft_model_source
from aerie.engine.strategies.drafters import DraftSource
from aerie.engine.thinking import ThinkingStart
from aerie.engine.thinking_plan import plan_thinking
from aerie.engine.tool_calls import Tools, read_tools

LOG = logging.getLogger("aerie")


class HasModelSession(Protocol):
    """An aerie.Model."""

    session_state: SessionState


class GenerateOptions(SamplingSettings, DecodeSettings, total=False):
    """Options of an answer besides its prompt and length; see Model.stream."""

    draft: str | HasModelSession | None
    stop: str | int | Iterable[str | int]
    raw: bool
    json_schema: Schema
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    thinking_budget: int | None
    num_beams: int
    use_block_cache: bool


UNSUPPORTED_OPTIONS: Mapping[str, tuple[object, str]] = {
    "num_beams": (1, "beam search is not built; tokens are the likeliest, or drawn (temperature)"),
    "pipeline_parallel_size": (1, "pipeline parallelism is not built; every device has all layers"),
    "use_block_cache": (
        False,
        "every pass sees a block as it is now; keys and values of its parts that are older are not kept",
    ),
}
"""Options with one supported value each, and the reason."""


def check_supported_option(name: str, value: object) -> None:
    """Raise UserError if the value of an option is not supported."""
    allowed, reason = UNSUPPORTED_OPTIONS[name]
    if value != allowed:
        raise UserError(f"{name} is {value!r}: {reason}; leave it out")


def parse_stops(stop: str | int | Iterable[str | int]) -> list[str | int]:
    """Texts and token ids, also of numpy's types. Raises UserError for anything else, and for an empty
    text."""
    stops: list[object] = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if "" in stops:
        raise UserError("stop holds an empty text, at which every answer would end; leave it out")
    if wrong := [item for item in stops if not isinstance(item, str | Integral)]:
        raise UserError(f"stop takes texts and token ids, and not {reprlib.repr(wrong[0])}; leave it out")
    return [
        item if isinstance(item, str) else int(item) for item in stops if isinstance(item, str | Integral)
    ]


class ParsedOptions(NamedTuple):
    """Parsed options. stops: texts and token ids. raw: skip the chat template. tool_calls: the tools that the
    model sees. template_arguments: further arguments for the chat template. thinking_budget: in tokens."""

    sampler: Sampler
    decode_config: DecodeConfig
    stops: list[str | int]
    raw: bool
    tool_calls: ToolCallSpec | None
    template_arguments: Mapping[str, Any]
    thinking_budget: int | None = None

    def thinking_start(self, session: Session, tokens: Sequence[Token]) -> ThinkingStart | None:
        """How the answer to this prompt begins, if the model thinks."""
        if self.raw or any(isinstance(token, EmbeddedToken) for token in tokens):
            return None
        return session.tokenizer.thinking_start([int(token) for token in ids_only(tokens)])

    def thinking_sampler(self, session: Session, start: ThinkingStart | None) -> Sampler:
        """The sampler, with the plan of the thinking."""
        grammar = self.sampler.grammar
        plan = plan_thinking(start, session.grammar_compiler, self.thinking_budget, grammar)
        return replace(self.sampler, thinking=plan) if plan else self.sampler

    @property
    def tools(self) -> Tools | None:
        """The tools that the model sees."""
        return self.tool_calls.tools if self.tool_calls else None


def _draft_source(draft: Any, session: Session) -> str | DraftSource | None:
    """The source of draft tokens. Raises UserError if the draft model does not fit."""
    if draft is None or isinstance(draft, str):
        return draft
    state = getattr(draft, "session_state", None)
    if not isinstance(state, SessionState):
        raise UserError(f"draft is {reprlib.repr(draft)}; give 'lookup', a model that drafts, or None")
    other = state.session()
    if other is session:
        raise UserError("draft is the model itself, whose drafts cost what its answers do; name a smaller")
    own, others = ((each.model.config, each.tokenizer) for each in (session, other))
    check_drafter(own, others, "model")
    return draft_model_source(lambda: other.model, state.lock, session.model.config)


def _grammar(options: Mapping[str, Any], session: Session, tool_calls: ToolCallSpec | None) -> Grammar | None:
    """The grammar of the output, if any."""
    schema = options.get("json_schema")
    if tool_calls:
        grammar = tool_call_grammar(session.grammar_compiler, tool_calls.tools, tool_calls.format, schema)
        if grammar.notes:
            LOG.warning("calls are not held to: %s", "; ".join(grammar.notes))
        return grammar
    return None if schema is None else session.grammar_compiler.json(schema)


def _tool_calls(options: Mapping[str, Any], session: Session) -> ToolCallSpec | None:
    """The tools that may be called."""
    choice, parallel = options.get("tool_choice", "auto"), options.get("parallel_tool_calls", True)
    tools = read_tools(options.get("tools") or (), choice, parallel)
    if tools and options.get("raw"):
        raise UserError(
            "the chat template lists the tools, and raw skips the template; leave out one of the two"
        )
    return tool_call_spec(tools, session.tokenizer) if tools else None


def _template_arguments(options: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = options.get("chat_template_kwargs") or {}
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise UserError(
            f"chat_template_kwargs is {reprlib.repr(arguments)}; give a dict of what the chat "
            "template asks for"
        )
    if arguments and options.get("raw"):
        raise UserError(
            "chat_template_kwargs are for the chat template, which raw leaves out; leave out one of the two"
        )
    return arguments


def _budget(options: Mapping[str, Any]) -> int | None:
    """The thinking budget. Raises UserError if it is negative, or there is no chat template."""
    budget: int | None = options.get("thinking_budget")
    if budget is not None and budget < 0:
        raise UserError(
            f"thinking_budget is {budget}; give a number of tokens, 0 or more, or None for no limit"
        )
    if budget is not None and options.get("raw"):
        raise UserError(
            "thinking_budget is for answers in the chat template, which raw leaves out; leave out one of the "
            "two"
        )
    return budget


def parse_options(options: Mapping[str, Any], session: Session) -> ParsedOptions:
    """Parse the options of a request. Raises UserError if an option is unknown or out of range."""
    option_names = GenerateOptions.__annotations__
    if unknown := next((name for name in options if name not in option_names), None):
        names = ["max_tokens", *option_names]  # the first is an argument of its own
        close = "".join(f" (did you mean {name}?)" for name in get_close_matches(unknown, names, 1))
        raise UserError(f"there is no option {unknown!r}{close}; there are {', '.join(names)}")
    for name in UNSUPPORTED_OPTIONS.keys() & options.keys():
        check_supported_option(name, options[name])
    decode_config = {name: options[name] for name in DecodeSettings.__annotations__ if name in options}
    decode_config["draft"] = _draft_source(options.get("draft"), session)
    sampling = {
        name: plain_number(options[name]) for name in SamplingSettings.__annotations__ if name in options
    }
    tool_calls = _tool_calls(options, session)
    try:
        sampler = Sampler(**sampling, grammar=_grammar(options, session, tool_calls))
    except TypeError as error:
        raise UserError(
            f"a setting cannot be taken ({error}); see Model.stream for what each may be"
        ) from None
    stops, raw, budget = parse_stops(options.get("stop", ())), options.get("raw", False), _budget(options)
    template_arguments = _template_arguments(options)
    return ParsedOptions(
        sampler, DecodeConfig(**decode_config), stops, raw, tool_calls, template_arguments, budget
    )
