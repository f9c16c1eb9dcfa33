"""Tools: functions that a model may call, and how models write their calls.

A chat template that knows tools tells a model of them, and calls and results of the conversation are written
by it. How such a model writes a call stands in the template's text, by which its form is found (FORMATS). Where
a template knows no tools, or a form that is not here, a system message of ours tells tools and form (DEFAULT_FORMAT),
calls are what the assistant wrote, and results what the user did.
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
"""`role` (system, user, assistant, tool) and `content`; of an assistant `tool_calls`, as OpenAI's API has
them; of a tool `tool_call_id`, the call whose result it is."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME_SIGNS = "letters, digits, _ and -, 64 at most"
MOST_TOOLS = 128
"""As OpenAI's API has it, and names."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CHOICES = ("none", "auto", "required")


class ToolsError(UserError):
    """Tools, a choice or messages that cannot be taken. place: where, as `tools[1].name`."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class CallsError(ToolsError, PromptError):
    """Messages with calls or results that do not go together."""


@dataclass(frozen=True)
class Tool:
    """A function. parameters: a JSON schema of an object; None: there are none. is_strict: arguments are held
    to all of it, and a schema of which that cannot be is refused; else to what can be held."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    is_strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments, which are an object, where others may be none."""
        made = {"type": "object", **(NO_PARAMETERS if self.parameters is None else self.parameters)}
        if isinstance(made["type"], list) and "object" in made["type"]:
            made["type"] = "object"
        return made

    @property
    def to_json(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Tools:
    """What a model is told of, and what it may call. required: an answer is a call. names: only these may be
    called; None: all. parallel: an answer may have several calls, where the model's form has that. ToolsError
    for names that are none or come twice, for more than MOST_TOOLS, and for names of no tool."""

    tools: tuple[Tool, ...]
    must_call: bool = False
    allowed_names: tuple[str, ...] | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        if len(self.tools) > MOST_TOOLS:
            raise ToolsError(f"there are {len(self.tools)} tools; give {MOST_TOOLS} at most", "tools")
        known: set[str] = set()
        for index, tool in enumerate(self.tools):
            _check(tool, known, f"tools[{index}]")
            known.add(tool.name)
        for name in self.allowed_names or ():
            if name not in known:
                told = (
                    f"tool_choice names {name[:80]!r}, and the tools are {', '.join(sorted(known)) or 'none'}"
                )
                raise ToolsError(f"{told}; name one of these", "tool_choice")
        if self.must_call and not self.callable:
            raise ToolsError("tool_choice asks for a call, and there are no tools; give tools", "tool_choice")

    @property
    def callable(self) -> list[Tool]:
        return [tool for tool in self.tools if self.allowed_names is None or tool.name in self.allowed_names]


def _check(tool: Tool, before: set[str], place: str) -> None:
    if not NAME.fullmatch(tool.name):
        told = f"{place}.name is {tool.name[:80]!r}; a name is made of {NAME_SIGNS}"
        raise ToolsError(told, f"{place}.name")
    if tool.name in before:
        raise ToolsError(
            f"{place}.name is {tool.name!r}, which a tool before it has; give each its own", f"{place}.name"
        )
    if (kind := tool.schema["type"]) != "object":
        raise ToolsError(
            f"{place}.parameters is of the type {json.dumps(kind)[:80]}, and arguments are an object; give a "
            'JSON schema of "type": "object"',
            f"{place}.parameters",
        )


def read_tools(given: Any, choice: Any = "auto", parallel: bool = True) -> Tools | None:
    """Tools, and a choice, as OpenAI's API has them in chats; None where there are none to call."""
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ToolsError(f"tools is {str(given)[:80]!r}; give a list of tools", "tools")
    each = tuple(_read(tool, f"tools[{index}]") for index, tool in enumerate(given))
    name = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    if name is None and choice not in CHOICES:
        told = f'{", ".join(CHOICES)} and {{"type": "function", "function": {{"name": ...}}}}'
        raise ToolsError(f"tool_choice is {str(choice)[:80]!r}; there are {told}", "tool_choice")
    if name is not None:
        return with_choice(each, "required", [name], parallel=False)
    return with_choice(each, choice, None, parallel)


def with_choice(
    each: tuple[Tool, ...], choice: str, names: Sequence[str] | None, parallel: bool
) -> Tools | None:
    """choice: one of CHOICES. names: only these may be called. None where none may be."""
    asked = Tools(each, choice == "required", None if names is None else tuple(names), parallel)
    return asked if choice != "none" and asked.callable else None


def _read(tool: Any, place: str) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        wanted = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
        raise ToolsError(f"{place} is {str(tool)[:80]!r}; a tool is {wanted}", place)
    parameters = function.get("parameters")
    if not isinstance(parameters or {}, Mapping):
        raise ToolsError(
            f"{place}.parameters is {str(parameters)[:80]!r}; give a JSON schema", f"{place}.parameters"
        )
    is_strict = function.get("strict") is True
    return Tool(function["name"], function.get("description") or "", parameters, is_strict)


@dataclass(frozen=True)
class ToolCallFormat:
    """How calls are written: trigger, opening, call, between, call, closing.

    marks: the template has one of these. without: and none of these. trigger: begins calls, after a text, if
    any. is_bare: an answer that begins with a call, trigger or not, is one. between: None where an answer has
    one call at most. key: of the arguments. id_length: that of a call's id, where the template wants one.
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
    """The form of the calls of models with this chat template, or DEFAULT_FORMAT."""
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
    messages: Sequence[Message], tools: Tools | None, form: ToolCallFormat
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for a chat template. CallsError for results without calls, and arguments that are no
    JSON."""
    read = _with_calls(messages, form.id_length)
    if form is not DEFAULT_FORMAT:
        return read, [tool.to_json for tool in tools.tools] if tools else None
    folded = _folded(read)
    if tools:
        is_first = bool(folded) and folded[0]["role"] == "system"
        begun = folded[0]["content"] + "\n\n" if is_first else ""
        folded[: int(is_first)] = [{"role": "system", "content": begun + _instructions(tools)}]
    return folded, None


def _with_calls(messages: Sequence[Message], id_length: int | None) -> list[dict[str, Any]]:
    """With arguments as objects, the names of called functions beside results, ids as the form has them."""
    made: list[dict[str, Any]] = []
    open_calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        place, kept = f"messages[{index}]", dict(message)
        if message["role"] == "tool":
            given = str(message.get("tool_call_id"))
            if given not in open_calls:
                raise _unasked(given, open_calls, f"{place}.tool_call_id")
            kept |= {"tool_call_id": _id(given, id_length), "name": open_calls[given]}
        elif calls := message.get("tool_calls"):
            read = [
                _read_call(call, f"{place}.tool_calls[{number}]", id_length)
                for number, call in enumerate(calls)
            ]
            names = [call["function"]["name"] for call in read]
            open_calls = {call["id"]: name for call, name in zip(calls, names, strict=True)}
            kept |= {"content": message.get("content") or "", "tool_calls": read}
        else:
            kept.pop("tool_calls", None)
            open_calls = {}
        made.append(kept)
    return made


def _unasked(given: str, asked: Iterable[str], place: str) -> CallsError:
    ids = ", ".join(map(repr, asked))
    before = f"the calls before it are {ids}" if ids else "no call is before it"
    return CallsError(
        f"{place} is {given[:80]!r}, and {before}; a message of role tool follows the assistant's that "
        "has its call in tool_calls",
        place,
    )


def _read_call(call: Any, place: str, id_length: int | None) -> dict[str, Any]:
    """One of an assistant's, with its arguments read."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
        wanted = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}'
        raise CallsError(f"{place} is {str(call)[:80]!r}; a call is {wanted}", place)
    name = str(function.get("name"))
    if not NAME.fullmatch(name):
        where = f"{place}.function.name"
        raise CallsError(f"{where} is {name[:80]!r}; a name is made of {NAME_SIGNS}", where)
    given = function.get("arguments")
    try:
        arguments = json.loads(given or "{}") if isinstance(given, str | None) else given
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        where = f"{place}.function.arguments"
        told = f"{where} is {str(given)[:80]!r}, which is no object of JSON; give one, or leave the call out"
        raise CallsError(told, where)
    said = {"name": name, "arguments": arguments}
    return {"id": _id(call["id"], id_length), "type": "function", "function": said}


def _id(given: str, length: int | None) -> str:
    """Of this length, in letters and digits; the same for the same."""
    return given if length is None else hashlib.sha256(given.encode()).hexdigest()[:length]


def _instructions(tools: Tools) -> str:
    """What a model is told whose template tells nothing of tools."""
    listed = "\n".join(json.dumps(tool.to_json["function"], ensure_ascii=False) for tool in tools.tools)
    return (
        f"You may call these functions:\n{listed}\n"
        f'To call one, answer {{"name": its name, "{DEFAULT_FORMAT.arguments_key}": an object of its arguments}}, and nothing '
        "else."
    )


def _folded(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls and results as texts. Results, and what the user says after them, are one message: many templates
    want turns."""
    made: list[dict[str, Any]] = []
    before = ""
    for message in messages:
        text = _as_text(message)
        if before == "tool" and text["role"] == "user":
            made[-1]["content"] += "\n" + text["content"]
        else:
            made.append(text)
        before = message["role"]
    return made


def _as_text(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"{message['name']} returned: {message['content']}"}
    if "tool_calls" not in message:
        return dict(message)
    calls = [_call_text(call["function"]) for call in message["tool_calls"]]
    return {"role": message["role"], "content": "\n".join(filter(None, (message["content"], *calls)))}


def _call_text(function: Mapping[str, Any]) -> str:
    said = {"name": function["name"], DEFAULT_FORMAT.arguments_key: function["arguments"]}
    return json.dumps(said, ensure_ascii=False)
