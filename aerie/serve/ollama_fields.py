"""The fields of Ollama's API: chats, prompts, embeddings, and their options.

Source: docs/api.md and docs/modelfile.mdx of Ollama (ollama/ollama). Defaults are Ollama's. Options about how
its own runner uses a machine are accepted and ignored. A field that would change the answer and is not
supported is refused unless its value disables it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from aerie.engine.tool_calls import Tools, with_choice
from aerie.serve.chat_fields import ChatInput, Function
from aerie.serve.common_fields import ClientMessagePart, RequestFields, Text, UnsupportedFields
from aerie.serve.embeddings import MAX_INPUTS, VectorSettings
from aerie.serve.llama_settings import LlamaSettings
from aerie.serve.sampling_fields import MAX_TOP_LOGPROBS, SamplingFields
from aerie.serve.structured_output_fields import ANY_OBJECT, StructuredOutput

TEXT_ONLY = "models here read text; take out the images"
KeepAlive = str | int | float
Think = bool | Literal["low", "medium", "high", "max"]


def _whole(value: Any) -> Any:
    """A float without a fraction as an int: Ollama's clients write numbers of options either way."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber = Annotated[int, BeforeValidator(_whole)]


class OllamaOptions(LlamaSettings):
    """The settings of an answer. num_predict: maximum output tokens; 0 or less means up to the end of the
    context. num_ctx: ignored, as the context is the model's."""

    num_predict: WholeNumber = -1
    top_k: WholeNumber = 40
    top_p: float = 0.9
    min_p: float = 0.0
    seed: WholeNumber = -1
    repeat_last_n: WholeNumber | None = None
    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    numa: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    draft_num_predict: Any = None
    penalize_newline: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None
    typical_p: Any = None
    tfs_z: Any = None
    mirostat: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap"),
            *("use_mlock", "low_vram", "f16_kv", "draft_num_predict", "mirostat_tau", "mirostat_eta"),
        )
    )
    unsupported: ClassVar[UnsupportedFields] = {
        "typical_p": ([1], "typical sampling is not built"),
        "tfs_z": ([1], "tail-free sampling is not built"),
        "mirostat": ([0], "Mirostat is not built"),
        "penalize_newline": ([True], "penalties are for all tokens"),
    }


class OllamaSampling(SamplingFields):
    """The sampling fields of OpenAI's API, with logprobs as Ollama asks for them."""

    top_logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs


class OllamaFields(RequestFields):
    """Fields of all requests to a model. keep_alive: ignored, as the server's --idle-unload decides, except 0
    without a prompt, which unloads the model."""

    model: str
    keep_alive: KeepAlive | None = None
    options: OllamaOptions = Field(default_factory=OllamaOptions)
    ignored: ClassVar[frozenset[str]] = frozenset(("keep_alive",))


class AnswerFields(OllamaFields):
    """Fields of a chat and of a prompt. format: "json" for any object, or a JSON schema. think: passed to the
    chat template as enable_thinking, and a level as reasoning_effort too. truncate, shift: ignored, as
    nothing is cut from a prompt that is too long: it is refused."""

    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    think: Think | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    ignored: ClassVar[frozenset[str]] = OllamaFields.ignored | {"truncate", "shift"}

    @property
    def structured_output(self) -> StructuredOutput | None:
        if not self.format:
            return None
        schema = ANY_OBJECT if isinstance(self.format, str) else self.format
        return StructuredOutput("format", schema, enforcement="known")

    @property
    def max_new_tokens(self) -> int | None:
        """Maximum output tokens; None means up to the end of the context."""
        return self.options.num_predict if self.options.num_predict > 0 else None

    @property
    def sampling_fields(self) -> OllamaSampling:
        top_logprobs = self.top_logprobs if self.logprobs else None
        return OllamaSampling(**self.options.openai_settings(), top_logprobs=top_logprobs)

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        """Further arguments for the chat template."""
        if self.think is None:
            return None
        if isinstance(self.think, bool):
            return {"enable_thinking": self.think}
        return {"enable_thinking": True, "reasoning_effort": self.think}

    @property
    def needs_no_model(self) -> bool:
        """Whether the request only unloads the model."""
        return self.is_empty and self.keep_alive in (0, "0", "0s", "0m")

    @property
    def is_empty(self) -> bool:
        """Whether the request has nothing to answer, and only loads or unloads the model."""
        raise NotImplementedError


class OllamaFunctionCall(ClientMessagePart):
    name: Text
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None


class OllamaToolCall(ClientMessagePart):
    """A tool call of an earlier answer."""

    id: Text | None = None
    type: Literal["function"] | None = None
    function: OllamaFunctionCall


class OllamaMessage(ClientMessagePart):
    """A message. thinking: of an earlier answer, passed to the template, which mostly drops it. tool_name,
    tool_call_id: of the call whose result a message of the role tool is; without either it is the next of
    the calls before it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    thinking: Text | None = None
    images: Any = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: Text | None = None
    tool_call_id: Text | None = None
    unsupported: ClassVar[UnsupportedFields] = {"images": ([[]], TEXT_ONLY)}

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, and the role is {self.role!r}; leave them out")
        return self


class OllamaTool(RequestFields):
    type: Literal["function"] = "function"
    function: Function
    items: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(("items",))


class OllamaChatRequest(AnswerFields):
    """POST /api/chat. Without messages it loads the model, or unloads it if keep_alive is 0."""

    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[OllamaTool] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.messages

    @property
    def chat(self) -> ChatInput:
        """The conversation. If the last message is the assistant's, the output continues it. Raises
        ToolsError."""
        continues = bool(self.messages) and self.messages[-1].role == "assistant"
        return ChatInput(_to_messages(self.messages), self._tools, self.template_arguments, continues)

    @property
    def _tools(self) -> Tools | None:
        return with_choice(tuple(tool.function.tool for tool in self.tools or ()), "auto", None, True)

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`."""
        return name.replace("].", "].function.", 1) if name.startswith("tools[") else name


def _to_messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages for the chat template. Calls without an id get one, and results the id of their call."""
    rendered: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        body: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            body["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [
                (call.id or f"call_{number}_{index}", call) for index, call in enumerate(message.tool_calls)
            ]
            open_calls = [(call_id, call.function.name) for call_id, call in calls]
            body["tool_calls"] = [_to_tool_call(call_id, call.function) for call_id, call in calls]
        if message.role == "tool":
            body["tool_call_id"] = message.tool_call_id or _take_call(open_calls, message.tool_name)
        rendered.append(body)
    return rendered


def _to_tool_call(call_id: str, call: OllamaFunctionCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def _take_call(open_calls: list[tuple[str, str]], name: str | None) -> str:
    """The id of the first call without a result, of this name if it is known; the call is removed."""
    named = [call for call in open_calls if call[1] == name] or open_calls
    if not named:
        return name or ""  # the engine names the message that has no call
    first = named[0]
    open_calls.remove(first)
    return first[0]


class OllamaGenerateRequest(AnswerFields):
    """POST /api/generate. Without a prompt it loads the model, or unloads it if keep_alive is 0. raw: the
    prompt is used as it stands, control tokens included; else it is the message of a user, after the system
    message."""

    prompt: Text = ""
    system: Text = ""
    raw: bool = False
    suffix: Any = None
    images: Any = None
    template: Any = None
    context: Any = None
    unsupported: ClassVar[UnsupportedFields] = {
        "suffix": ([""], "no model here fills in a gap before a suffix"),
        "images": ([[]], TEXT_ONLY),
        "template": (
            [""],
            "the model's own chat template is used; send raw with a prompt in your own format",
        ),
        "context": ([[]], "it is Ollama's older way; send the conversation as messages to /api/chat"),
    }

    @model_validator(mode="after")
    def _check_raw(self) -> Self:
        if self.raw and self.system:
            raise ValueError("raw has no chat template for a system message; put it into the prompt")
        return self

    @property
    def is_empty(self) -> bool:
        return not self.prompt

    @property
    def chat(self) -> ChatInput:
        """The conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.prompt}]
        return ChatInput(messages, None, self.template_arguments)

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`."""
        return "prompt" if name.startswith("messages") else name


class OllamaEmbedRequest(OllamaFields):
    """POST /api/embed. truncate: unless it is false, a text that is too long is cut at its end. dimensions:
    0 means all."""

    input: Text | Annotated[list[Text], Field(max_length=MAX_INPUTS)] = Field(default_factory=list)
    truncate: bool | None = None
    dimensions: int | None = None

    @property
    def settings(self) -> VectorSettings:
        """How the vectors are made."""
        return VectorSettings(self.dimensions or None, is_cut=self.truncate is not False)

    @property
    def inputs(self) -> list[str]:
        """The texts that are embedded; an empty one only loads the model."""
        return [self.input] if isinstance(self.input, str) and self.input else [*self.input]


class OllamaEmbeddingsRequest(OllamaFields):
    """POST /api/embeddings, the older form: one text."""

    prompt: Text = ""


class OllamaNameRequest(RequestFields):
    """Fields of the requests about one model. Open WebUI sends the older name beside the newer."""

    model: str

    @model_validator(mode="before")
    @classmethod
    def _take_older_name(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "name" not in given:
            return given
        rest = {key: value for key, value in given.items() if key != "name"}
        return {"model": given["name"], **rest}


class OllamaShowRequest(OllamaNameRequest):
    """POST /api/show. The other fields are ignored."""

    verbose: Any = None
    system: Any = None
    template: Any = None
    options: Any = None


class OllamaPullRequest(OllamaNameRequest):
    """POST /api/pull. Only a model that is served here can be pulled, which does nothing."""

    stream: bool = True
    insecure: Any = None
    username: Any = None
    password: Any = None
