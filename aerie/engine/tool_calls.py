"""Tools: functions that a model may call, and the formats in which models write calls.

A chat template with tools gives them to the model, and writes the conversation's calls and results. The
template's text shows the model's call format, which is detected by it (FORMATS). If a template has no tools,
or an unknown format, a system message of ours describes tools and format (DEFAULT_FORMAT); calls become text
of the assistant, and results text of the user.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aerie.common.errors import UserError
from aerie.engine.errors import PromptError

Message: TypeAlias = Mapping[str, Any]
"""`role` (system, user, assistant, tool) and `content`; for an assistant `tool_calls`, as in OpenAI's API;
for a tool `tool_call_id`, the id of its call."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME_SIGNS = "letters, digits, _ and -, 64 at most"
MAX_TOOLS = 128
"""Maximum number of tools, as in OpenAI's API."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CHOICES = ("none", "auto", "required")


class ToolsError(UserError):
    """Tools, a choice or messages that are refused. place: path of the field, such as `tools[1].name`."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class CallsError(ToolsError, PromptError):
    """Messages whose calls and results do not match."""


@dataclass(frozen=True)
class Tool:
    """A function. parameters: a JSON schema of an object; None means no parameters. is_strict: a schema that
    cannot be enforced completely is refused; else what is supported is enforced."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    is_strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its arguments, always an object."""
        made = {"type": "object", **(NO_PARAMETERS if self.parameters is None else self.parameters)}
        if isinstance(made["type"], list) and "object" in made["type"]:
            made["type"] = "object"
        return made

    @property
    def to_json(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Tools:
    """The tools of a request. must_call: the answer must be a call. allowed_names: the only tools that may be
    called; None means all. parallel: an answer may have several calls, if the model's format has them. Raises
    ToolsError for invalid or repeated names, for more than MAX_TOOLS, and for names of unknown tools."""

    tools: tuple[Tool, ...]
    must_call: bool = False
    allowed_names: tuple[str, ...] | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        if len(self.tools) > MAX_TOOLS:
            raise ToolsError(f"there are {len(self.tools)} tools; give {MAX_TOOLS} at most", "tools")
        seen_names: set[str] = set()
        for index, tool in enumerate(self.tools):
            _check(tool, seen_names, f"tools[{index}]")
            seen_names.add(tool.name)
        for name in self.allowed_names or ():
            if name not in seen_names:
                known = ", ".join(sorted(seen_names)) or "none"
                problem = f"tool_choice names {name[:80]!r}, and the tools are {known}"
                raise ToolsError(f"{problem}; name one of these", "tool_choice")
        if self.must_call and not self.callable:
            raise ToolsError("tool_choice asks for a call, and there are no tools; give tools", "tool_choice")

    @property
    def callable(self) -> list[Tool]:
        return [tool for tool in self.tools if self.allowed_names is None or tool.name in self.allowed_names]


def _check(tool: Tool, seen_names: set[str], field_path: str) -> None:
    if not NAME.fullmatch(tool.name):
        problem = f"{field_path}.name is {tool.name[:80]!r}; a name is made of {NAME_SIGNS}"
        raise ToolsError(problem, f"{field_path}.name")
    if tool.name in seen_names:
        raise ToolsError(
            f"{field_path}.name is {tool.name!r}, which a tool before it has; give each its own",
            f"{field_path}.name",
        )
    if (kind := tool.schema["type"]) != "object":
        raise ToolsError(
            f"{field_path}.parameters is of the type {json.dumps(kind)[:80]}, and arguments are an object; "
            "give a "
            'JSON schema of "type": "object"',
            f"{field_path}.parameters",
        )


def read_tools(value: Any, choice: Any = "auto", parallel: bool = True) -> Tools | None:
    """Parse tools and tool_choice of OpenAI's chat API. Returns None if no tool may be called."""
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ToolsError(f"tools is {str(value)[:80]!r}; give a list of tools", "tools")
    tools = tuple(_read(tool, f"tools[{index}]") for index, tool in enumerate(value))
    name = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    if name is None and choice not in CHOICES:
        choices = f'{", ".join(CHOICES)} and {{"type": "function", "function": {{"name": ...}}}}'
        raise ToolsError(f"tool_choice is {str(choice)[:80]!r}; there are {choices}", "tool_choice")
    if name is not None:
        return with_choice(tools, "required", [name], parallel=False)
    return with_choice(tools, choice, None, parallel)


def with_choice(
    tools: tuple[Tool, ...], choice: str, names: Sequence[str] | None, parallel: bool
) -> Tools | None:
    """The tools of a request. choice: one of CHOICES. names: the only tools that may be called. Returns None
    if none may be."""
    requested = Tools(tools, choice == "required", None if names is None else tuple(names), parallel)
    return requested if choice != "none" and requested.callable else None


def _read(tool: Any, field_path: str) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        example = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
        raise ToolsError(f"{field_path} is {str(tool)[:80]!r}; a tool is {example}", field_path)
    parameters = function.get("parameters")
    if not isinstance(parameters or {}, Mapping):
        raise ToolsError(
            f"{field_path}.parameters is {str(parameters)[:80]!r}; give a JSON schema",
            f"{field_path}.parameters",
        )
    is_strict = function.get("strict") is True
    return Tool(function["name"], function.get("description") or "", parameters, is_strict)


@dataclass(frozen=True)
class ToolCallFormat:
    """How calls are written: trigger, opening, call, between, call, closing.

    template_markers: the template has one of these. excluded_markers: and none of these. trigger: starts
    calls after a text. is_bare: an answer that starts with a call, with or without trigger, is one. between:
    None means one call at most. arguments_key: key of the arguments. id_length: length of a call's id, if the
    template needs one.
    """

    template_markers: tuple[str, ...]
    arguments_key: str = "arguments"
    trigger: str = ""
    is_bare: bool = False
    opening: str = ""
    between: str | None = None
    closing: str = ""
    excluded_markers: tuple[str, ...] = ()
    id_length: int | None = None


DEFAULT_FORMAT = ToolCallFormat((), is_bare=True, between="\n")
FORMATS = (
    ToolCallFormat(
        ("<tool_call>",),
        trigger="<tool_call>",
        opening="\n",
        between="\n</tool_call>\n<tool_call>\n",
        closing="\n</tool_call>",
        excluded_markers=("<function=", "<arg_key>"),
    ),
    ToolCallFormat(
        ("[TOOL_CALLS]",),
        trigger="[TOOL_CALLS]",
        opening=" [",
        between=", ",
        closing="]",
        excluded_markers=("[ARGS]",),
        id_length=9,
    ),
    ToolCallFormat(('"parameters": ',), arguments_key="parameters", trigger="<|python_tag|>", is_bare=True),
)
TOOLS_IN_TEMPLATE = re.compile(r"\btools\b")


def detect_format(template: object) -> ToolCallFormat:
    """The call format of models with this chat template, or DEFAULT_FORMAT."""
    if isinstance(
        template, Mapping
    ):  # several, by their names: what transformers takes where there are tools
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str) or not TOOLS_IN_TEMPLATE.search(template):
        return DEFAULT_FORMAT
    fits = (
        form
        for form in FORMATS
        if any(mark in template for mark in form.template_markers)
        and not any(mark in template for mark in form.excluded_markers)
    )
    return next(fits, DEFAULT_FORMAT)


def prepare_messages(
    messages: Sequence[Message], tools: Tools | None, call_format: ToolCallFormat
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for a chat template. Raises CallsError for results without calls, and for arguments
    that are not JSON."""
    parsed = _with_calls(messages, call_format.id_length)
    if call_format is not DEFAULT_FORMAT:
        return parsed, [tool.to_json for tool in tools.tools] if tools else None
    folded = _folded(parsed)
    if tools:
        is_first = bool(folded) and folded[0]["role"] == "system"
        system_text = folded[0]["content"] + "\n\n" if is_first else ""
        folded[: int(is_first)] = [{"role": "system", "content": system_text + _instructions(tools)}]
    return folded, None


def _with_calls(messages: Sequence[Message], id_length: int | None) -> list[dict[str, Any]]:
    """The messages with arguments as objects, function names beside results, and ids of the format's
    length."""
    result: list[dict[str, Any]] = []
    open_calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        place, copy = f"messages[{index}]", dict(message)
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in open_calls:
                raise _unknown_call(call_id, open_calls, f"{place}.tool_call_id")
            copy |= {"tool_call_id": _id(call_id, id_length), "name": open_calls[call_id]}
        elif calls := message.get("tool_calls"):
            parsed = [
                _read_call(call, f"{place}.tool_calls[{number}]", id_length)
                for number, call in enumerate(calls)
            ]
            names = [call["function"]["name"] for call in parsed]
            open_calls = {call["id"]: name for call, name in zip(calls, names, strict=True)}
            copy |= {"content": message.get("content") or "", "tool_calls": parsed}
        else:
            copy.pop("tool_calls", None)
            open_calls = {}
        result.append(copy)
    return result


def _unknown_call(call_id: str, open_ids: Iterable[str], field_path: str) -> CallsError:
    ids = ", ".join(map(repr, open_ids))
    before = f"the calls before it are {ids}" if ids else "no call is before it"
    return CallsError(
        f"{field_path} is {call_id[:80]!r}, and {before}; a message of role tool follows the assistant's "
        "that has its call in tool_calls",
        field_path,
    )


def _read_call(call: Any, field_path: str, id_length: int | None) -> dict[str, Any]:
    """A call of an assistant message, with its arguments parsed."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
        example = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}'
        raise CallsError(f"{field_path} is {str(call)[:80]!r}; a call is {example}", field_path)
    name = str(function.get("name"))
    if not NAME.fullmatch(name):
        field = f"{field_path}.function.name"
        raise CallsError(f"{field} is {name[:80]!r}; a name is made of {NAME_SIGNS}", field)
    raw = function.get("arguments")
    try:
        arguments = json.loads(raw or "{}") if isinstance(raw, str | None) else raw
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        field = f"{field_path}.function.arguments"
        problem = f"{field} is {str(raw)[:80]!r}, which is no object of JSON; give one, or leave the call out"
        raise CallsError(problem, field)
    function_json = {"name": name, "arguments": arguments}
    return {"id": _id(call["id"], id_length), "type": "function", "function": function_json}


def _id(call_id: str, length: int | None) -> str:
    """The id in this length, as letters and digits; equal ids stay equal."""
    return call_id if length is None else hashlib.sha256(call_id.encode()).hexdigest()[:length]


def _instructions(tools: Tools) -> str:
    """The system text for a model whose template has no tools."""
    listed = "\n".join(json.dumps(tool.to_json["function"], ensure_ascii=False) for tool in tools.tools)
    return (
        f"You may call these functions:\n{listed}\n"
        f'To call one, answer {{"name": its name, "{DEFAULT_FORMAT.arguments_key}": an object of its '
        "arguments}, and nothing else."
    )


def _folded(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with calls and results as text. Results and the user's next text become one message,
    because many templates need alternating roles."""
    result: list[dict[str, Any]] = []
    before = ""
    for message in messages:
        text = _as_text(message)
        if before == "tool" and text["role"] == "user":
            result[-1]["content"] += "\n" + text["content"]
        else:
            result.append(text)
        before = message["role"]
    return result


def _as_text(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"{message['name']} returned: {message['content']}"}
    if "tool_calls" not in message:
        return dict(message)
    calls = [_call_text(call["function"]) for call in message["tool_calls"]]
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": "\n".join(filter(None, (message["content"], *calls)))}


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], DEFAULT_FORMAT.arguments_key: function["arguments"]}
    return json.dumps(call, ensure_ascii=False)
