"""What clients send: null for what they do not set, our own answers again, and fields of other servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import ParsedChatCompletionMessage
from openai.types.responses import ParsedResponse
from pydantic import BaseModel, TypeAdapter, ValidationError

from aerie.serve.anthropic import CountTokensRequest, MessagesRequest
from aerie.serve.chat_fields import ChatRequest, TemplateRequest, TokenizeRequest
from aerie.serve.completion_fields import CompletionRequest, DetokenizeRequest
from aerie.serve.embeddings import EmbeddingsRequest
from aerie.serve.llama_cpp import LlamaCppRequest
from aerie.serve.response_items import TaggedItem
from aerie.serve.response_store import ConversationRequest
from aerie.serve.responses import ResponsesRequest
from aerie.serve.sampling_fields import VLLM_UNSUPPORTED

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
USER: Any = {"role": "user", "content": FRANCE}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
BODIES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (
        ChatRequest,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
                {"role": "assistant", "content": "y", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "z"},
            ],
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "stream": True,
            "stream_options": {"include_usage": True},
            "prediction": {"type": "content", "content": "x"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        },
    ),
    (CompletionRequest, {"prompt": "x"}),
    (TokenizeRequest, {"messages": [USER], "tools": [FUNCTION]}),
    (TemplateRequest, {"messages": [USER]}),
    (DetokenizeRequest, {"tokens": [1]}),
    (EmbeddingsRequest, {"input": "x"}),
    (LlamaCppRequest, {"prompt": {"prompt_string": "x"}}),
    (
        ResponsesRequest,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "z"},
                {"type": "reasoning", "summary": []},
            ],
            "tools": [
                {"type": "function", "name": "f", "parameters": SCHEMA},
                {"type": "custom", "name": "g", "format": {"type": "text"}},
                {"type": "web_search"},
            ],
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
        },
    ),
    (ConversationRequest, {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}}),
    (
        MessagesRequest,
        {
            "max_tokens": 3,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "z"}]},
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "output_config": {"effort": "low"},
        },
    ),
    (CountTokensRequest, {"messages": [USER]}),
]


def objects(given: Any) -> Iterator[dict[str, Any]]:
    """All objects in it that have fields; what stands in a schema, and the like, is the client's own."""
    if isinstance(given, dict):
        yield given
        for name, value in given.items():
            is_own = name in ("schema", "parameters", "input_schema", "metadata", "input")
            if not is_own or isinstance(value, list):
                yield from objects(value)
    elif isinstance(given, list):
        for each in given:
            yield from objects(each)


def every_field() -> set[str]:
    """The names of all fields, of all requests."""
    schemas = [model.model_json_schema() for model, _ in BODIES]
    parts = [part for schema in schemas for part in (schema, *schema.get("$defs", {}).values())]
    return {name for part in parts for name in part.get("properties", {})}


@pytest.mark.parametrize(("model", "body"), BODIES, ids=lambda each: getattr(each, "__name__", ""))
def test_null_is_absent_everywhere(model: type[BaseModel], body: dict[str, Any]) -> None:
    plain = model.model_validate(body)
    filled = json.loads(json.dumps(body))
    names = every_field() | {"of_next_year"}
    for each in list(objects(filled)):
        each.update(dict.fromkeys(names - each.keys()))
    assert model.model_validate(filled) == plain


@pytest.mark.parametrize("name", VLLM_UNSUPPORTED)
def test_an_unsupported_field_is_accepted_only_with_a_neutral_value(name: str) -> None:
    values, why = VLLM_UNSUPPORTED[name]
    for neutral in (*values, None):
        ChatRequest(messages=[USER], **{name: neutral})
    given: tuple[Any, ...] = (True, False, 0, 7, "x", [])
    for value in (one for one in given if one not in values):
        with pytest.raises(ValidationError, match=f"{re.escape(why)}; leave it out"):
            ChatRequest(messages=[USER], **{name: value})


def test_null_in_a_stream_of_every_address(serving: Any) -> None:
    asked: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [USER]},
        "/v1/completions": {"prompt": "x", "echo": None},
        RESPONSES: {"input": "x"},
    }
    asked["/v1/embeddings"] = {"input": "x", "encoding_format": None}
    with serving.http as http:
        for path, body in asked.items():
            assert http.post(path, json={**body, "stream": None, "max_tool_calls": None}).status_code == 200


def nulled(model: type[BaseModel], answer: Any) -> Any:
    """As a client's own type tells it, with every field that it knows."""
    return model.model_construct(**answer).model_dump(mode="json")


def test_own_answers_are_taken_back(serving: Any) -> None:
    with serving.http as http:
        chat = http.post(CHAT, json={"messages": [USER], "temperature": 0}).json()["choices"][0]["message"]
        for message in (
            chat,
            nulled(ParsedChatCompletionMessage, chat),
            {**chat, "annotations": [], "audio": None},
        ):
            again = http.post(CHAT, json={"messages": [USER, message, USER], "temperature": 0})
            assert again.json()["choices"][0]["message"]["content"] == PARIS
        response = http.post(RESPONSES, json={"input": FRANCE, "temperature": 0}).json()
        for output in (response["output"], nulled(ParsedResponse, response)["output"]):
            items = [{**each, "phase": None, "created_by": None, "parsed_arguments": None} for each in output]
            asked = {"input": [USER, *items, USER], "temperature": 0}
            assert http.post(RESPONSES, json=asked).json()["output"][0]["content"][0]["text"] == PARIS
        body = {"max_tokens": 30, "temperature": 0}
        answer = http.post(MESSAGES, json={**body, "messages": [USER]}).json()
        turn = {
            "role": "assistant",
            "content": [{**each, "citations": None, "parsed": None} for each in answer["content"]],
        }
        again = http.post(MESSAGES, json={**body, "messages": [USER, turn, USER]}).json()
        assert again["content"][0]["text"] == PARIS


def test_reasoning_is_passed_to_the_template() -> None:
    thought: Any = {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "t",
        "reasoning": "t",
        "cache_control": {},
    }
    message = ChatRequest(messages=[USER, thought]).chat.messages[1]
    assert message == {"role": "assistant", "content": "x", "reasoning_content": "t"}
    spoken: Any = {"role": "assistant", "content": "x", "reasoning": "r"}
    alone = ChatRequest(messages=[USER, spoken])
    assert alone.chat.messages[1]["reasoning_content"] == "r"
    blocks = [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "x"}]
    turn: Any = {"role": "assistant", "content": blocks}
    assert MessagesRequest(max_tokens=1, messages=[USER, turn]).chat.messages[1] == message
    redacted: Any = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "?"}, blocks[1]]}
    converted = MessagesRequest(max_tokens=1, messages=[USER, redacted]).chat.messages[1]
    assert converted == {"role": "assistant", "content": "x"}


def test_a_prefilled_answer_is_continued(serving: Any) -> None:
    begun = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "The capital of Spain is"},
    ]
    asked = {"messages": begun, "max_tokens": 30, "temperature": 0}
    with serving.http as http:
        assert http.post(MESSAGES, json=asked).json()["content"][0]["text"] == " Madrid."
        chat = http.post(CHAT, json={**asked, "continue_final_message": True, "add_generation_prompt": False})
        assert chat.json()["choices"][0]["message"]["content"] == " Madrid."
        new = http.post(CHAT, json=asked).json()["choices"][0]["message"]["content"]
        assert new != " Madrid."
        ids = http.post("/tokenize", json={"messages": begun, "continue_final_message": True}).json()[
            "tokens"
        ]
        assert ids == http.post("/tokenize", json={"messages": begun}).json()["tokens"][: len(ids)]
        count = http.post(f"{MESSAGES}/count_tokens", json={"messages": begun}).json()
        assert count == {"input_tokens": len(ids)}


def test_reasoning_effort_is_passed_to_the_template() -> None:
    chat = ChatRequest(messages=[USER], reasoning_effort="low", chat_template_kwargs={"x": 1})
    assert chat.chat.template_arguments == {"reasoning_effort": "low", "x": 1}
    response = ResponsesRequest.model_validate({"input": "x", "reasoning": {"effort": "high"}})
    assert response.chat.template_arguments == {"reasoning_effort": "high"}
    for kind, arguments in (
        ("enabled", {"enable_thinking": True}),
        ("disabled", {"enable_thinking": False}),
        ("adaptive", {}),
    ):
        count = CountTokensRequest.model_validate({"messages": [USER], "thinking": {"type": kind}})
        assert count.chat.template_arguments == arguments


def test_a_coding_agent_is_served(serving: Any) -> None:
    """What Claude Code sends, with what it has of other servers' tools in its history."""
    body: dict[str, Any] = {
        "max_tokens": 30,
        "temperature": 0,
        "metadata": {"user_id": "someone"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "output_config": {"effort": "medium"},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    {"type": "text", "text": "Hello."},
                ],
            },
            {"role": "system", "content": "agents: none"},
            USER,
        ],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            {"name": "Bash", "input_schema": SCHEMA, "defer_loading": False},
        ],
    }
    with serving.http as http:
        for changes in (
            {},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"thinking": {"type": "disabled"}},
        ):
            made = http.post(f"{MESSAGES}?beta=true", json={**body, **changes})
            assert made.status_code == 200, made.text
        named = {"tool_choice": {"type": "tool", "name": "web_search"}}
        refused = http.post(MESSAGES, json={**body, **named}).json()["error"]["message"]
    assert "tool_choice names 'web_search', and the tools are Bash" in refused
    count = CountTokensRequest.model_validate({name: body[name] for name in ("messages", "system", "tools")})
    assert count.chat.tools
    assert [tool.name for tool in count.chat.tools.tools] == ["Bash"]
    roles = [message["role"] for message in count.chat.messages]
    assert roles == ["system", "user", "assistant", "system", "user"]


def test_another_coding_agent_is_served(serving: Any) -> None:
    """What Codex sends."""
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    body: dict[str, Any] = {
        "instructions": "Be brief.",
        "input": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "?"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Agents: none."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": FRANCE}]},
        ],
        "tools": [
            {"type": "web_search", "external_web_access": False},
            {"type": "function", "name": "shell", "strict": False, "parameters": SCHEMA},
            {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": lark},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "low"},
        "max_output_tokens": 30,
        "temperature": 0,
    }
    with serving.http as http:
        made = http.post(RESPONSES, json=body)
        wrong = http.post(
            RESPONSES, json={**body, "tools": [{"type": "mcp"}, {"type": "function", "name": "a b"}]}
        )
    assert made.status_code == 200, made.text
    assert [tool.get("name") for tool in made.json()["tools"]] == ["shell", "apply_patch"]
    assert wrong.json()["error"]["message"].startswith("tools[1].name is 'a b'")


def test_items_of_all_kinds_are_kept_as_they_came() -> None:
    items: TypeAdapter[Any] = TypeAdapter(TaggedItem)
    given = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    assert items.validate_python(given).to_json() == given
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]}
    assert items.validate_python(thought).with_id().to_json() == {**thought, "status": "completed"}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": -1}, {}),
        ({"seed": -2}, {"seed": 2**64 - 2}),
        ({"seed": 3}, {"seed": 3}),
        ({"ignore_eos": True}, {"logit_bias": {7: -100.0}}),
        ({"ignore_eos": True, "logit_bias": {"5": 1}}, {"logit_bias": {5: 1.0, 7: -100.0}}),
        ({"min_tokens": 0, "skip_special_tokens": True, "truncate_prompt_tokens": -1}, {}),
        ({"use_beam_search": False, "length_penalty": 1.0, "bad_words": [], "priority": 0}, {}),
    ],
)
def test_words_of_other_servers(given: dict[str, Any], settings: dict[str, Any]) -> None:
    asked = ChatRequest.model_validate({"messages": [USER], **given})
    assert asked.sampling(0, [7]) == {"temperature": 1.0, **settings}


def test_no_limit_by_a_word_of_other_servers() -> None:
    for given in ({"max_tokens": -1}, {"max_completion_tokens": -1}, {}):
        assert ChatRequest.model_validate({"messages": [USER], **given}).max_new_tokens is None
    assert CompletionRequest(prompt="x", max_tokens=-1).max_new_tokens is None


def test_a_prompt_is_only_read(serving: Any) -> None:
    """As lm-evaluation-harness asks: how likely the prompt is, and nothing more."""
    with serving.http as http:
        body = {"prompt": "a b c", "logprobs": 1, "echo": True}
        read = http.post("/v1/completions", json={**body, "max_tokens": 0}).json()
        more = http.post("/v1/completions", json={**body, "max_tokens": 2, "temperature": 0}).json()
        streamed = http.post("/v1/completions", json={**body, "max_tokens": 0, "stream": True}).text
        silent = http.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 0, "n": 2}).json()
    (choice,), (longer,) = read["choices"], more["choices"]
    assert (choice["text"], choice["finish_reason"], read["usage"]["completion_tokens"]) == (
        "a b c",
        "length",
        0,
    )
    count = len(choice["logprobs"]["tokens"])
    assert count == read["usage"]["prompt_tokens"] == len(longer["logprobs"]["tokens"]) - 2
    for column, values in choice["logprobs"].items():
        assert longer["logprobs"][column][:count] == values
    texts = [
        json.loads(line[6:])["choices"][0]["text"]
        for line in streamed.splitlines()
        if line.startswith("data: {")
    ]
    assert "".join(texts) == "a b c"
    assert [each["text"] for each in silent["choices"]] == [""] * 4
