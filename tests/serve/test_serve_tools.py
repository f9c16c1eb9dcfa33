"""Tools over HTTP: in OpenAI's two APIs, by its client and the client's own helpers, and in Anthropic's."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from aerie import Model
from aerie.serve.response_items import custom_tool_input

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
USER = [{"role": "user", "content": FRANCE}]
SCHEMA = {
    "type": "object",
    "properties": {"country": {"enum": ["France", "Norway"]}},
    "required": ["country"],
    "additionalProperties": False,
}
CAPITAL = {"name": "capital", "description": "A capital.", "parameters": SCHEMA, "strict": True}
TOOLS: Any = [{"type": "function", "function": CAPITAL}]
NOW: Any = [{"type": "function", "function": {"name": "now"}}]
NAMED = {"type": "function", "function": {"name": "now"}}
CHAT: dict[str, Any] = {"model": "demo", "messages": USER, "temperature": 0}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "capital", "arguments": '{"country": "France"}'},
}
TALK = [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Paris"}


class Capital(BaseModel):
    """A capital."""

    country: Literal["France", "Norway"]


def test_a_chat_calls_as_the_model_alone(serving: Any, alone: Model) -> None:
    made = serving.openai.chat.completions.create(
        **CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    own = alone.generate(FRANCE, 200, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert (call.function.name, call.function.arguments) == own.tool_calls[0]
    assert made.usage.completion_tokens == len(own.token_ids)
    again = [*USER, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Paris"}]
    spoken = serving.openai.chat.completions.create(**{**CHAT, "messages": again}, tools=TOOLS, max_tokens=5)
    assert spoken.choices[0].finish_reason in ("stop", "length")


def test_a_chat_need_not_call(serving: Any, alone: Model) -> None:
    given: list[dict[str, Any]] = [{"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]
    for tools in given:
        made = serving.openai.chat.completions.create(**CHAT, **tools)
        assert (made.choices[0].message.content, made.choices[0].message.tool_calls) == (PARIS, None)
        assert made.choices[0].finish_reason == "stop"
    assert made.usage.prompt_tokens == len(alone.encode(FRANCE))


def test_the_clients_own_stream_and_types(serving: Any) -> None:
    tool = openai.pydantic_function_tool(Capital)
    asked = {**CHAT, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    parsed = serving.openai.chat.completions.parse(**asked)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Capital)
    with serving.openai.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (streamed,) = whole.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None


def test_calls_in_company_and_with_guesses(serving: Any) -> None:
    """Several choices, each with the calls that it has alone; and cut ones."""

    def answer(more: dict[str, Any]) -> list[list[tuple[str, str]]]:
        asked = {**CHAT, "tools": TOOLS, "tool_choice": "required", "seed": 3, "max_tokens": 60, **more}
        made = serving.openai.chat.completions.create(**asked)
        return [
            [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
            for choice in made.choices
        ]

    draws: dict[str, Any] = {"temperature": 1.0, "n": 2}
    guesses: dict[str, Any] = {"extra_body": {"draft": "lookup"}}
    with ThreadPoolExecutor(4) as pool:
        first, drawn, guessed, _ = pool.map(answer, ({}, draws, guesses, {"tools": NOW}))
    assert first == guessed == answer({})
    assert drawn == answer(draws)
    assert len(drawn) == 2


def test_an_answer_that_is_cut(serving: Any) -> None:
    made = serving.openai.chat.completions.create(**CHAT, tools=NOW, tool_choice=NAMED, max_tokens=3)
    assert made.choices[0].finish_reason == "length"
    allowed = {"mode": "required", "tools": [NAMED]}
    chosen = {"type": "allowed_tools", "allowed_tools": allowed}
    only = serving.openai.chat.completions.create(**CHAT, tools=TOOLS + NOW, tool_choice=chosen)
    assert {call.function.name for call in only.choices[0].message.tool_calls} == {"now"}


RESPONSES_TOOLS: Any = [{"type": "function", **CAPITAL}]


def test_a_response_calls(serving: Any) -> None:
    asked = {"model": "demo", "input": FRANCE, "temperature": 0, "tools": RESPONSES_TOOLS}
    asked |= {"tool_choice": {"type": "function", "name": "capital"}}
    made = serving.openai.responses.create(**asked)
    (call,) = made.output
    assert (call.type, call.name, call.status) == ("function_call", "capital", "completed")
    assert json.loads(call.arguments)["country"] in ("France", "Norway")
    assert (made.tools[0].name, made.tool_choice.name) == ("capital", "capital")
    events = list(serving.openai.responses.create(**asked, stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type.removeprefix("response.") for each in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
    assert "".join(each.delta for each in events[3:-3]) == events[-3].arguments == call.arguments
    with serving.openai.responses.stream(**asked) as stream:
        assert stream.get_final_response().output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Paris"}
    again = [{"role": "user", "content": FRANCE}, *made.output, result]
    second = serving.openai.responses.create(**{**asked, "input": again, "tool_choice": "none"})
    assert (second.status, second.output[0].type) == ("completed", "message")


NOTE: Any = {"type": "custom", "name": "note", "description": "Writes a note."}


def of_regex(regex: str) -> Any:
    return [{**NOTE, "format": {"type": "grammar", "syntax": "regex", "definition": regex}}]


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (of_regex('a"\\\\[0-9]{3}ü|b"\\\\[0-9]{3}ü'), "required"),
        (of_regex("[0-9]{4}"), {"type": "custom", "name": "note"}),
        (of_regex("[a-c]{6}") + RESPONSES_TOOLS, {"type": "custom", "name": "note"}),
    ],
)
def test_a_custom_tool(serving: Any, tools: Any, choice: Any) -> None:
    asked = {"model": "demo", "input": FRANCE, "temperature": 0, "tools": tools, "tool_choice": choice}
    made = serving.openai.responses.create(**asked)
    (call,) = made.output
    assert (call.type, call.name, made.status) == ("custom_tool_call", "note", "completed")
    assert re.fullmatch(tools[0]["format"]["definition"], call.input)
    assert made.tools[0].model_dump(exclude_none=True) == tools[0]
    events = list(serving.openai.responses.create(**asked, stream=True))
    kinds = [each.type.removeprefix("response.") for each in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-3:] == ["custom_tool_call_input.done", "output_item.done", "completed"]
    assert set(kinds[3:-3]) == {"custom_tool_call_input.delta"}
    assert "".join(each.delta for each in events[3:-3]) == events[-3].input == call.input
    last = events[-1].response
    assert last.output[0].input == call.input
    result = {"type": "custom_tool_call_output", "call_id": last.output[0].call_id, "output": "noted"}
    second = serving.openai.responses.create(
        **asked | {"input": [result], "tool_choice": "none"}, previous_response_id=last.id
    )
    items = list(serving.openai.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert items[1].input == call.input
    as_function = {"name": "note", "arguments": json.dumps({"input": call.input}, ensure_ascii=False)}
    with serving.http as http:
        body = {
            "messages": [
                {"role": "user", "content": FRANCE},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": as_function}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "noted"},
            ]
        }
        counted = http.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
    assert second.usage.input_tokens == counted


def test_any_text_of_a_custom_tool_that_is_cut(serving: Any) -> None:
    made = serving.openai.responses.create(
        model="demo", input=FRANCE, temperature=0, tools=[NOTE], tool_choice="required", max_output_tokens=60
    )
    assert (made.status, made.output[0].type) == ("incomplete", "custom_tool_call")


def test_the_input_in_arguments_that_are_coming() -> None:
    text = 'a"\\\n ü 😀 \t/'
    for whole in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
        inputs = [custom_tool_input(whole[:length]) for length in range(len(whole) + 1)]
        assert (inputs[0], inputs[-1]) == ("", text)
        assert all(text.startswith(each) for each in inputs)
        assert inputs == sorted(inputs, key=len)


MESSAGES = {
    "max_tokens": 150,
    "temperature": 0,
    "messages": USER,
    "tools": [{"name": "capital", "description": "A capital.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "capital"},
}


def test_a_message_calls(serving: Any) -> None:
    with serving.http as http:
        made = http.post("/v1/messages", json=MESSAGES).json()
        (block,) = made["content"]
        assert (block["type"], block["name"], made["stop_reason"]) == ("tool_use", "capital", "tool_use")
        assert block["input"]["country"] in ("France", "Norway")
        with http.stream("POST", "/v1/messages", json={**MESSAGES, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        kinds = [each["type"] for each in events]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert events[1]["content_block"]["input"] == {}
        deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
        assert json.loads("".join(each["partial_json"] for each in deltas)) == block["input"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        result = {
            "type": "tool_result",
            "tool_use_id": block["id"],
            "content": [{"type": "text", "text": "Paris"}],
        }
        talk = [
            *USER,
            {"role": "assistant", "content": made["content"]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]
        second = http.post(
            "/v1/messages",
            json={**MESSAGES, "messages": talk, "tool_choice": {"type": "auto"}, "max_tokens": 5},
        )
        assert second.status_code == 200
        cut = http.post("/v1/messages", json={**MESSAGES, "max_tokens": 12}).json()
        assert (cut["content"], cut["stop_reason"]) == ([{"type": "text", "text": ""}], "max_tokens")
        plain = http.post("/v1/messages", json={**MESSAGES, "tool_choice": {"type": "none"}}).json()
        assert plain["content"] == [{"type": "text", "text": PARIS}]
        counted = http.post(
            "/v1/messages/count_tokens",
            json={name: MESSAGES[name] for name in ("messages", "tools")},
        ).json()
        assert counted["input_tokens"] == sum(
            made["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")
        )


def test_tools_in_the_template(serving: Any) -> None:
    with serving.http as http:
        text = http.post("/apply-template", json={"messages": [*TALK, RESULT], "tools": TOOLS}).json()[
            "prompt"
        ]
        assert '{"name": "capital", "description": "A capital.", "parameters": {' in text
        assert "capital returned: Paris" in text
        counted = http.post("/tokenize", json={"messages": [*TALK, RESULT], "tools": TOOLS}).json()["count"]
        asked = {**CHAT, "messages": [*TALK, RESULT], "tools": TOOLS, "max_tokens": 1}
        made = http.post("/v1/chat/completions", json=asked).json()
    assert made["usage"]["prompt_tokens"] == counted


def function(**changes: Any) -> Any:
    return [{"type": "function", "function": {**CAPITAL, **changes}}]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": "capital"}, "tools", "'capital': Input should be a valid list"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search': Input should be 'function'"),
        ({"tools": TOOLS + TOOLS}, "tools[1].function.name", "is 'capital', which a tool before it has"),
        (
            {"tools": function(name="a b")},
            "tools[0].function.name",
            "'a b'; a name is made of letters, digits",
        ),
        ({"tools": function(name="f") * 129}, "tools", "there are 129 tools; give 128 at most"),
        (
            {"tools": function(parameters={"type": "string"})},
            "tools[0].function.parameters",
            'is of the type "string", and arguments are an object; give a JSON schema of "type": "object"',
        ),
        (
            {"tools": function(parameters={"properties": {"x": {"type": "foo"}}})},
            "tools[0].function.parameters",
            "the parameters of 'capital' cannot be taken: the JSON schema cannot be taken: Invalid type: foo",
        ),
        (
            {"tools": TOOLS, "tool_choice": "always"},
            "tool_choice",
            "'always': Input should be 'none', 'auto' or",
        ),
        (
            {"tools": TOOLS, "tool_choice": NAMED},
            "tool_choice",
            "names 'now', and the tools are capital; name one",
        ),
        ({"tool_choice": "required"}, "tool_choice", "asks for a call, and there are no tools; give tools"),
        (
            {"functions": [CAPITAL]},
            "functions",
            'write each as {"type": "function", "function": ...} in tools',
        ),
        (
            {"function_call": "auto"},
            "function_call",
            "this is OpenAI's older way: write tool_choice; leave it out",
        ),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            "response_format",
            "calls of this model are JSON too: give one of the two",
        ),
        (
            {"tools": TOOLS, "grammar": 'start: "x"'},
            "grammar",
            "tools and grammar are given and exclude each other; give one",
        ),
        ({"messages": [*USER, RESULT]}, "messages[1].tool_call_id", "is 'call_1', and no call is before it"),
        (
            {"messages": [*TALK, {**RESULT, "tool_call_id": "call_2"}]},
            "messages[2].tool_call_id",
            "is 'call_2', and the calls before it are 'call_1'; a message of role tool follows",
        ),
        (
            {"messages": [*TALK, {"role": "tool", "content": "x"}]},
            "messages[2]",
            "tool_call_id goes with the role",
        ),
        ({"messages": [{**USER[0], "tool_calls": [CALL]}]}, "messages[0]", "tool_calls are the assistant's"),
        (
            {
                "messages": [
                    *USER,
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "["}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
            "is '[', which is no object of JSON; give one, or leave the call out",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].function_call",
            "this is OpenAI's older way: write tool_calls; leave it out",
        ),
    ],
)
def test_wrong_tools_of_chats(serving: Any, body: dict[str, Any], param: str, words: str) -> None:
    with serving.http as http:
        refused = http.post("/v1/chat/completions", json={**CHAT, **body})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], words in error["message"]) == (param, True), error


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (
            {"tools": RESPONSES_TOOLS * 2},
            "tools[1].name",
            "tools[1].name is 'capital', which a tool before it has",
        ),
        (
            {"tools": RESPONSES_TOOLS, "tool_choice": {"type": "function", "name": "now"}},
            "tool_choice",
            "tool_choice names 'now', and the tools are capital",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input",
            "is 'c', and no call is before it",
        ),
        (
            {"tools": [{**NOTE, "format": {"type": "grammar"}}]},
            "tools[0].format",
            "the type grammar wants syntax and definition; give both",
        ),
        (
            {"tools": of_regex("(")},
            "tools[0].parameters",
            "the parameters of 'note' cannot be taken",
        ),
        (
            {"tools": RESPONSES_TOOLS, "text": {"format": {"type": "json_object"}}},
            "text.format",
            "calls of this model are JSON too",
        ),
    ],
)
def test_wrong_tools_of_responses(serving: Any, body: dict[str, Any], param: str, words: str) -> None:
    with serving.http as http:
        refused = http.post("/v1/responses", json={"input": "x", **body})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"tool_choice": {"type": "tool"}},
            "name goes with the type tool, which has it; give both, or neither",
        ),
        (
            {"tool_choice": {"type": "tool", "name": "now"}},
            "tool_choice names 'now', and the tools are capital",
        ),
        (
            {"tools": None, "tool_choice": {"type": "any"}},
            "tool_choice asks for a call, and there are no tools",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
            'tools[0].input_schema is of the type "array", and arguments are an object',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "is 't', and no call is before it",
        ),
    ],
)
def test_wrong_tools_of_messages(serving: Any, body: dict[str, Any], words: str) -> None:
    with serving.http as http:
        refused = http.post("/v1/messages", json={**MESSAGES, **body})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert words in refused.json()["error"]["message"]


def test_forms_of_completions_and_regular_expressions(serving: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    made = serving.openai.completions.create(
        model="demo", prompt="x", temperature=0, max_tokens=60, extra_body={"response_format": form}
    )
    assert [*json.loads(made.choices[0].text)] == ["country"]
    matched = serving.openai.chat.completions.create(**CHAT, extra_body={"regex": "[0-9]{3}-[ab]"})
    assert matched.choices[0].message.content[3:] in ("-a", "-b")
    for body, param, words in (
        ({"regex": "("}, "regex", "the regular expression cannot be taken: "),
        ({"regex": "a", "grammar": "b"}, None, "give one of response_format, json_schema, grammar and regex"),
    ):
        with serving.http as http:
            refused = http.post("/v1/completions", json={"prompt": "x", **body})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param)
        assert words in error["message"]
