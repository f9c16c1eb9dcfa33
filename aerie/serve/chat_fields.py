"""The fields of conversations in OpenAI's API: messages, tools, and what is asked of a chat.

Whether tools, choices and calls go together, the engine checks (tool_calls.py): its errors name a place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from aerie.engine.tool_calls import Tool, Tools, chosen
from aerie.serve.common_fields import (
    MOST_TOP,
    OF_VLLM,
    Content,
    Fields,
    Formed,
    Most,
    Said,
    Settings,
    Text,
    TextPart,
    Unbuilt,
    room_of,
    text_of,
)

OLDER: Final = "this is OpenAI's older way"


class CalledFunction(Said):
    """parsed_arguments: as the official client has them beside the text."""

    name: Text
    arguments: Text
    parsed_arguments: Any = None


class Call(Said):
    """index: of a call that was put together from a stream."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    @property
    def as_call(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(Said):
    """`developer` is `system`. name: taken, and told to no template. reasoning_content, or reasoning: of an
    earlier answer, told to templates, which mostly leave it out. annotations, parsed, cache_control: taken,
    and change no prompt."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    annotations: Any = None
    parsed: Any = None
    cache_control: Any = None
    audio: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        "function_call": ((), f"{OLDER}: write tool_calls"),
        "audio": ((), "messages are text"),
    }

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} has a content; give a text")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, and the role is {self.role!r}; leave them out")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError("tool_call_id goes with the role tool, which has it; give both, or neither")
        return self

    @property
    def as_message(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text_of(self.content),
        }
        if thought := self.reasoning_content or self.reasoning:
            made["reasoning_content"] = thought
        if self.tool_calls:
            made["tool_calls"] = [call.as_call for call in self.tool_calls]
        if self.tool_call_id is not None:
            made["tool_call_id"] = self.tool_call_id
        return made


class Function(Fields):
    """strict: a schema is refused of which something cannot be held; else that is told in a note."""

    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))


class ChatTool(Fields):
    type: Literal["function"]
    function: Function


class Named(Fields):
    name: str


class NamedChoice(Fields):
    """One function, which is to be called."""

    type: Literal["function"]
    function: Named


class Allowed(Fields):
    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


class AllowedChoice(Fields):
    """Some of the functions: the model is told of all."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


def nth_told(name: str, tools: Sequence[object], kind: Any) -> str:
    """The place of a tool, `tools[0].name`, among all that were given, where the engine is given those of a
    kind, a class or several, alone."""
    numbers = [number for number, tool in enumerate(tools) if isinstance(tool, kind)]
    return re.sub(r"^tools\[(\d+)\]", lambda found: f"tools[{numbers[int(found[1])]}]", name)


def with_effort(given: Mapping[str, Any] | None, effort: str | None) -> Mapping[str, Any] | None:
    """Values for a chat template, and among them how much to reason, by the name that templates have."""
    return given if effort is None else {"reasoning_effort": effort, **(given or {})}


class Chat(NamedTuple):
    """A conversation, the tools that its model is told of, further values for the chat template, and whether
    the answer goes on with the last message."""

    messages: list[dict[str, Any]]
    tools: Tools | None
    template_arguments: Mapping[str, Any] | None
    continues: bool = False


class HasTools(Fields):
    """What a conversation may have beside its messages. chat_template_kwargs, continue_final_message and
    add_generation_prompt are vLLM's names: further values for the chat template, and whether the answer goes
    on with the last message or is a new one."""

    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    tools: list[ChatTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _begins_or_goes_on(self) -> Self:
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

    def chat_of(self, messages: Sequence[ChatMessage]) -> Chat:
        """Raises ToolsError."""
        each = [message.as_message for message in messages]
        return Chat(each, self.asked_tools, self.template_arguments, self.continue_final_message)

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        """Further values for the chat template."""
        return self.chat_template_kwargs

    @property
    def asked_tools(self) -> Tools | None:
        """Those that may be called. Raises ToolsError."""
        each = tuple(tool.function.tool for tool in self.tools or ())
        choice, is_parallel = self.tool_choice, self.parallel_tool_calls is not False
        if isinstance(choice, NamedChoice):
            return chosen(each, "required", [choice.function.name], parallel=False)
        if isinstance(choice, AllowedChoice):
            allowed = choice.allowed_tools
            return chosen(each, allowed.mode, [tool.function.name for tool in allowed.tools], is_parallel)
        return chosen(each, choice or "auto", None, is_parallel)

    def place(self, name: str) -> str:
        """Where a field is here that the engine knows by this name."""
        return re.sub(r"^(tools\[\d+\])\.", r"\1.function.", name)


class Prediction(Fields):
    """What an answer is expected to be much like."""

    type: Literal["content"]
    content: Text | list[TextPart]


class ChatRequest(Settings, Formed, HasTools):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Most = None
    return_progress: bool = False
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    verbosity: Any = None
    web_search_options: Any = None
    echo: Any = None
    add_special_tokens: Any = None
    documents: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        **OF_VLLM,
        "web_search_options": ((), "nothing is searched here"),
        "echo": ([False], "/v1/completions has it"),
        "add_special_tokens": ([False], "the chat template writes them"),
        "documents": ([[]], "put them in a message"),
        "functions": ((), f'{OLDER}: write each as {{"type": "function", "function": ...}} in tools'),
        "function_call": ((), f"{OLDER}: write tool_choice"),
        "modalities": ([["text"]], "answers are text"),
        "audio": ((), "answers are text"),
        "verbosity": (["medium"], "no model here is told how much to say"),
    }

    @model_validator(mode="after")
    def _asks_for_marks(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs=true; set it, or leave top_logprobs out")
        return self

    @property
    def most(self) -> int | None:
        return room_of(self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens)

    @property
    def top(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def shows_progress(self) -> bool:
        return self.stream and self.return_progress

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        return with_effort(self.chat_template_kwargs, self.reasoning_effort)

    @property
    def predicted(self) -> str:
        return text_of(self.prediction.content) if self.prediction else ""

    @property
    def chat(self) -> Chat:
        """Raises ToolsError."""
        return self.chat_of(self.messages)


class TokenizeRequest(HasTools):
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
    def chat(self) -> Chat:
        """Raises ToolsError."""
        return self.chat_of(self.messages or ())


class TemplateRequest(HasTools):
    """POST /apply-template."""

    model: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    @property
    def chat(self) -> Chat:
        """Raises ToolsError."""
        return self.chat_of(self.messages)
