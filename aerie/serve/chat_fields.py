"""The fields of conversations in OpenAI's API: messages, tools, and settings of a chat.

The engine checks how tools, choices and calls fit together (tool_calls.py); its errors name a field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AliasChoices, Field, model_validator

from aerie.engine.tool_calls import Tool, Tools, with_choice
from aerie.serve.common_fields import (
    ClientMessagePart,
    Content,
    RequestFields,
    Text,
    TextPart,
    UnsupportedFields,
    content_text,
)
from aerie.serve.sampling_fields import (
    MAX_TOP_LOGPROBS,
    VLLM_UNSUPPORTED,
    MaxTokens,
    SamplingFields,
    max_tokens_or_none,
)
from aerie.serve.structured_output_fields import StructuredOutputFields

OLDER: Final = "this is OpenAI's older way"


class FunctionCallFields(ClientMessagePart):
    """parsed_arguments: what the official client stores beside the text; ignored."""

    name: Text
    arguments: Text
    parsed_arguments: Any = None


class ToolCallFields(ClientMessagePart):
    """A tool call of an earlier answer. index: set if a client assembled it from a stream; ignored."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCallFields
    index: int | None = None

    def to_tool_call(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(ClientMessagePart):
    """A message. The role `developer` is `system`. name: accepted and ignored. reasoning_content or
    reasoning: of an earlier answer, passed to the template, which mostly drops it. annotations, parsed,
    cache_control: accepted and ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: list[ToolCallFields] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    annotations: Any = None
    parsed: Any = None
    cache_control: Any = None
    audio: Any = None
    unsupported: ClassVar[UnsupportedFields] = {
        "function_call": ((), f"{OLDER}: write tool_calls"),
        "audio": ((), "messages are text"),
    }

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} has a content; give a text")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, and the role is {self.role!r}; leave them out")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError("tool_call_id goes with the role tool, which has it; give both, or neither")
        return self

    def to_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content_text(self.content),
        }
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_tool_call() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Function(RequestFields):
    """strict: refuse a schema that cannot be enforced in full; else a response header notes what is not
    enforced."""

    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))


class ChatTool(RequestFields):
    type: Literal["function"]
    function: Function


class FunctionName(RequestFields):
    name: str


class FunctionChoice(RequestFields):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestFields):
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]


class AllowedToolsChoice(RequestFields):
    """The functions that may be called. The model sees all functions."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedToolsChoice


def tool_field_path(name: str, tools: Sequence[object], kind: Any) -> str:
    """The path of a tool field among all tools of the request, where the engine was given only the tools of
    `kind` (a class or several) and names `tools[0].name`."""
    numbers = [number for number, tool in enumerate(tools) if isinstance(tool, kind)]
    return re.sub(r"^tools\[(\d+)\]", lambda match: f"tools[{numbers[int(match[1])]}]", name)


def add_reasoning_effort(values: Mapping[str, Any] | None, effort: str | None) -> Mapping[str, Any] | None:
    """Template arguments with reasoning_effort, which templates read by this name. "none" also turns thinking
    off, as in vLLM."""
    if effort is None:
        return values
    switch = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **switch, **(values or {})}


UNLIMITED: Final = -1


class ThinkingSettings(NamedTuple):
    """How a request wants the model's thinking. budget: its limit in tokens; None means the server's default,
    UNLIMITED none. is_split: tell thinking and text apart; else all is text, tags included."""

    budget: int | None = None
    is_split: bool = True


DEFAULT_THINKING = ThinkingSettings()


class ChatInput(NamedTuple):
    """The messages, the tools, further arguments for the chat template, and whether the output continues the
    last message."""

    messages: list[dict[str, Any]]
    tools: Tools | None
    template_arguments: Mapping[str, Any] | None
    continues: bool = False


class ToolFields(RequestFields):
    """Fields of a conversation besides its messages. chat_template_kwargs, continue_final_message and
    add_generation_prompt are vLLM's names: arguments for the chat template, and whether the output continues
    the last message."""

    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    tools: list[ChatTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_continuation(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError(
                "continue_final_message goes on with the last message, and add_generation_prompt begins a "
                "new one; give one of them"
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise ValueError(
                "add_generation_prompt is false, and answers begin where the template has the assistant "
                "begin; leave it out, or give continue_final_message"
            )
        return self

    def to_chat_input(self, messages: Sequence[ChatMessage]) -> ChatInput:
        """The conversation with these messages. Raises ToolsError."""
        rendered = [message.to_message() for message in messages]
        return ChatInput(rendered, self.callable_tools, self.template_arguments, self.continue_final_message)

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        """Further arguments for the chat template."""
        return self.chat_template_kwargs

    @property
    def callable_tools(self) -> Tools | None:
        """The tools that may be called. Raises ToolsError."""
        tools = tuple(tool.function.tool for tool in self.tools or ())
        choice, is_parallel = self.tool_choice, self.parallel_tool_calls is not False
        if isinstance(choice, FunctionChoice):
            return with_choice(tools, "required", [choice.function.name], parallel=False)
        if isinstance(choice, AllowedToolsChoice):
            allowed = choice.allowed_tools
            return with_choice(
                tools, allowed.mode, [tool.function.name for tool in allowed.tools], is_parallel
            )
        return with_choice(tools, choice or "auto", None, is_parallel)

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`."""
        return re.sub(r"^(tools\[\d+\])\.", r"\1.function.", name)


class ReasoningOptions(RequestFields):
    """OpenRouter's form of what reasoning_effort, thinking_budget and include_reasoning say."""

    effort: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    enabled: bool | None = None
    exclude: bool = False


class Prediction(RequestFields):
    """Text that the output is expected to resemble."""

    type: Literal["content"]
    content: Text | list[TextPart]


class ChatRequest(SamplingFields, StructuredOutputFields, ToolFields):
    """POST /v1/chat/completions. thinking_budget: by llama.cpp's and vLLM's names; after so many tokens of
    thinking the answer begins; -1 means no limit. reasoning_format: llama.cpp's; "none" leaves thinking and
    its tags in the content. include_reasoning: vLLM's; false leaves thinking out. verbose:
    llama.cpp's; a whole response has the prompt, as the model sees it."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: MaxTokens = None
    return_progress: bool = False
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    thinking_budget: Annotated[int, Field(ge=UNLIMITED)] | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"
        ),
    )
    reasoning_format: Literal["auto", "deepseek", "none"] = "auto"
    include_reasoning: bool = True
    verbose: bool = False
    reasoning: ReasoningOptions | None = None
    verbosity: Any = None
    web_search_options: Any = None
    echo: Any = None
    add_special_tokens: Any = None
    documents: Any = None
    unsupported: ClassVar[UnsupportedFields] = {
        **VLLM_UNSUPPORTED,
        "web_search_options": ((), "nothing is searched here"),
        "echo": ([False], "/v1/completions has it"),
        "add_special_tokens": ([False], "the chat template writes them"),
        "documents": ([[]], "put them in a message"),
        "functions": ((), f'{OLDER}: write each as {{"type": "function", "function": ...}} in tools'),
        "function_call": ((), f"{OLDER}: write tool_choice"),
        "modalities": ([["text"]], "answers are text"),
        "audio": ((), "answers are text"),
        "verbosity": (["medium"], "no model here takes a verbosity"),
    }

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs=true; set it, or leave top_logprobs out")
        if self.verbose and self.stream:
            raise ValueError("verbose cannot be streamed; remove stream, or ask /apply-template")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        return max_tokens_or_none(
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def shows_progress(self) -> bool:
        return self.stream and self.return_progress

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        options = self.reasoning or ReasoningOptions()
        switch = {} if options.enabled is None else {"enable_thinking": options.enabled}
        values = {**switch, **(self.chat_template_kwargs or {})}
        return add_reasoning_effort(values or None, self.reasoning_effort or options.effort)

    @property
    def thinking_settings(self) -> ThinkingSettings:
        budget = self.thinking_budget
        if budget is None and self.reasoning:
            budget = self.reasoning.max_tokens
        return ThinkingSettings(budget, self.reasoning_format != "none")

    @property
    def shows_thinking(self) -> bool:
        """Whether the response has the thinking."""
        return self.include_reasoning and not (self.reasoning and self.reasoning.exclude)

    @property
    def prediction_text(self) -> str:
        return content_text(self.prediction.content) if self.prediction else ""

    @property
    def chat(self) -> ChatInput:
        """The conversation. Raises ToolsError."""
        return self.to_chat_input(self.messages)


class TokenizeRequest(ToolFields):
    """POST /tokenize: one of content (llama.cpp's name), prompt and messages (vLLM's)."""

    model: str | None = None
    content: Text | None = None
    prompt: Text | None = None
    messages: list[ChatMessage] | None = None
    add_special: bool = False
    add_special_tokens: bool | None = None
    with_pieces: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.content, self.prompt, self.messages)) != 1:
            raise ValueError("give one of content, prompt and messages")
        return self

    @property
    def chat(self) -> ChatInput:
        """The conversation. Raises ToolsError."""
        return self.to_chat_input(self.messages or ())


class TemplateRequest(ToolFields):
    """POST /apply-template."""

    model: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    @property
    def chat(self) -> ChatInput:
        """The conversation. Raises ToolsError."""
        return self.to_chat_input(self.messages)
