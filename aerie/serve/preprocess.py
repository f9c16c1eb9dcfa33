"""From the fields of a request to requests for the engine: tokens, grammars, tool calls, sampling
parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from aerie.common.errors import UserError
from aerie.engine.call_grammar import tool_call_grammar
from aerie.engine.call_reader import ToolCallSpec, tool_call_spec
from aerie.engine.grammar import Grammar, GrammarCompiler
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.drafters import DraftSource, prediction_source
from aerie.engine.thinking import ThinkingStart
from aerie.engine.thinking_plan import plan_thinking
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import ToolsError
from aerie.serve.chat_fields import DEFAULT_THINKING, ChatInput, ThinkingSettings
from aerie.serve.errors import ApiError, from_engine_error
from aerie.serve.output_processor import OutputRequest
from aerie.serve.sampling_fields import SamplingFields
from aerie.serve.structured_output_fields import StructuredOutput
from aerie.serve.worker import OpenedModel

MIN_COUNTABLE_TOKENS = 2**16
"""Texts of up to so many tokens are counted for every model."""


def compile_structured_output(grammars: GrammarCompiler, output: StructuredOutput) -> Grammar:
    """Compile the grammar of an output. Raises ApiError 400 if it is invalid."""
    try:
        if output.schema is not None:
            return grammars.json(output.schema, output.enforcement)
        return grammars.regex(output.regex) if output.regex is not None else grammars.gbnf(output.gbnf or "")
    except UserError as error:
        raise ApiError(400, str(error), output.param, "invalid_value") from error


def check_ids(opened: OpenedModel, ids: Iterable[int], param: str) -> None:
    """Raise ApiError 400 if a token id of a client is outside the vocabulary."""
    size = opened.session.model.config.vocab_size
    if (invalid := next((token for token in ids if not 0 <= token < size), None)) is not None:
        raise ApiError(
            400,
            f"{param} has {invalid}, and the model's tokens are 0 to {size - 1}; send ids of its "
            "own tokenizer, from POST /tokenize, or a text",
            param,
            "invalid_value",
        )


def max_countable_tokens(opened: OpenedModel) -> int:
    """Maximum tokens of a text that is only counted."""
    return max(MIN_COUNTABLE_TOKENS, 16 * opened.session.model.positions)


class ChatBody(Protocol):
    """A request with a conversation."""

    @property
    def chat(self) -> ChatInput: ...

    @property
    def structured_output(self) -> StructuredOutput | None: ...

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`."""
        ...


class EncodedChat(NamedTuple):
    """The token ids of a conversation, the grammar of its output, its tools, and how the output begins, if
    the model thinks."""

    ids: list[int]
    grammar: Grammar | None = None
    tool_calls: ToolCallSpec | None = None
    thinking: ThinkingStart | None = None


OutputConstraints = tuple[Grammar | None, ToolCallSpec | None]
"""The grammar of an output, and its tools."""


def encode_chat(body: ChatBody, max_tokens: int, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a conversation. max_tokens: the limit of the model. Raises UserError."""
    return tokenizer.encode_chat(*body.chat, most=max_tokens)


def encode_for_answer(
    body: ChatBody, max_tokens: int, tokenizer: Tokenizer
) -> tuple[list[int], ThinkingStart | None]:
    """The token ids of a conversation, and how its output begins. Raises UserError."""
    chat = body.chat
    ids = tokenizer.encode_chat(*chat, most=max_tokens)
    continued = chat.messages[-1]["content"] if chat.continues else None
    return ids, tokenizer.thinking_start(ids, continued)


def compile_output_constraints(
    grammars: GrammarCompiler, body: ChatBody, tokenizer: Tokenizer
) -> OutputConstraints:
    """Compile the grammar for a conversation, before its prompt is encoded: tools that are too large for a
    grammar are too large for a prompt. Raises UserError or ApiError."""
    chat, output = body.chat, body.structured_output
    if not chat.tools:
        return compile_structured_output(grammars, output) if output else None, None
    if output and output.schema is None:
        raise ToolsError(f"tools and {output.param} are given and exclude each other; give one", output.param)
    if output:
        compile_structured_output(grammars, output)
    tool_calls = tool_call_spec(chat.tools, tokenizer)
    schema, enforcement = (output.schema, output.enforcement) if output else (None, "meaning")
    return tool_call_grammar(grammars, chat.tools, tool_calls.format, schema, enforcement), tool_calls


def output_requests(
    opened: OpenedModel,
    settings: SamplingFields,
    prompts: Sequence[Sequence[int]],
    max_tokens: int | None,
    time_limit_s: float,
    grammar: Grammar | None = None,
    expected: Sequence[int] = (),
    tool_calls: ToolCallSpec | None = None,
    start: ThinkingStart | None = None,
    thinking: ThinkingSettings = DEFAULT_THINKING,
) -> list[OutputRequest]:
    """Return one OutputRequest for each prompt and choice. max_tokens: None means up to the end of the
    context. grammar: of all outputs. expected: predicted token ids, for drafts. tool_calls: the tools that
    may be called. start: how outputs begin, if the model thinks. Raises ApiError if the model does not
    support a setting, or a value is out of range."""
    if settings.num_logprobs is not None and opened.session.model.config.diffusion is not None:
        raise ApiError(
            400,
            "logprobs need an autoregressive model, and this model is a block diffusion model; leave it out",
            "logprobs",
            "invalid_value",
        )
    check_ids(opened, settings.stop_token_ids or (), "stop_token_ids")
    eos = opened.session.model.config.eos_token_ids
    try:
        plan = plan_thinking(start, opened.session.grammar_compiler, thinking.budget, grammar)
        requests = [
            replace(
                _output_request(
                    opened, settings, prompt, max_tokens, time_limit_s, index, sampler, draft, tool_calls
                ),
                thinking=start,
                splits_thinking=thinking.is_split,
            )
            for number, prompt in enumerate(prompts)
            for draft in [_draft_source(opened, settings, prompt, expected)]
            for choice in range(settings.choices)
            for index in [number * settings.choices + choice]
            for sampler in [Sampler(**settings.sampling(choice, eos), grammar=grammar, thinking=plan)]
        ]
        for request in requests:
            opened.check(request)
    except UserError as error:
        raise from_engine_error(error) from error
    return requests


def _output_request(
    opened: OpenedModel,
    settings: SamplingFields,
    prompt: Sequence[int],
    max_tokens: int | None,
    time_limit_s: float,
    index: int,
    sampler: Sampler,
    draft: str | DraftSource | None,
    tool_calls: ToolCallSpec | None,
) -> OutputRequest:
    capacity = max(1, opened.session.model.positions - len(prompt))
    return OutputRequest(
        prompt,
        capacity if max_tokens is None else min(max_tokens, capacity),
        sampler,
        settings.stop_strings,
        frozenset(settings.stop_token_ids or ()),
        settings.num_logprobs,
        time_limit_s,
        index,
        settings.slot if index == 0 else None,
        DecodeConfig(**settings.decode_settings, draft=draft),
        settings.logprobs_after_sampling,
        tool_calls,
        settings.shows_progress,
    )


def _draft_source(
    opened: OpenedModel, settings: SamplingFields, prompt: Sequence[int], answer: Sequence[int]
) -> str | DraftSource | None:
    """Where draft tokens come from: the request's prediction or setting, else the server's flag. Raises
    UserError if a block diffusion model gets a prediction."""
    if settings.draft == "none":
        return None
    if answer and opened.session.model.config.diffusion is not None:
        raise UserError(
            "prediction is for autoregressive models, and this model is a block diffusion model; leave it out"
        )
    return prediction_source(prompt, answer) if answer else settings.draft or opened.draft
