"""Requests of coding agents: taken whole, with what is ignored in a header and what cannot be had refused."""

from __future__ import annotations

from typing import Any

import pytest

from aerie.engine.call_reader import ToolCall, ToolCallDelta
from aerie.serve.common_fields import ignored_fields
from aerie.serve.output_processor import FinishInfo, OutputDelta
from aerie.serve.request_outputs import CompletedOutput
from aerie.serve.responses import ResponsesRequest, ResponsesWriter

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HELLO = {"role": "user", "content": "Hello"}
SCHEMA = {"type": "object", "additionalProperties": False}
CACHED = {"cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {}, "caller": {"type": "direct"}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "t1",
    "is_error": False,
    "content": [{"type": "tool_reference", "tool_name": "Bash"}],
}
CLAUDE_CODE: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 1,
    "metadata": {"user_id": "someone"},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "xhigh", "task_budget": {"type": "tokens", "total": 1000}},
    "speed": "fast",
    "diagnostics": {"previous_message_id": "msg_1"},
    "fallbacks": [],
    "system": [{"type": "text", "text": "Be brief.", **CACHED}],
    "messages": [
        HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, USE]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "Go on.", **CACHED}]},
        {"role": "system", "content": "agents: none"},
    ],
    "tools": [
        {"name": "Bash", "description": "run", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"name": "ToolSearch", "input_schema": SCHEMA, "defer_loading": False, **CACHED},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
}
SEARCH = {"type": "function", "name": "search", "strict": False, "defer_loading": True, "parameters": SCHEMA}
CODEX: dict[str, Any] = {
    "model": "demo",
    "instructions": "Be brief.",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA},
        {"type": "namespace", "name": "mcp__docs__", "description": "Tools of docs.", "tools": [SEARCH]},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": SCHEMA},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x": "y"},
    "service_tier": "priority",
    "text": {"verbosity": "low"},
}


def test_what_a_message_request_ignores_is_in_a_header(serving: Any) -> None:
    with serving.http as http:
        made = http.post(f"{MESSAGES}?beta=true", json=CLAUDE_CODE)
        streamed = http.post(MESSAGES, json={**CLAUDE_CODE, "stream": True})
    assert made.status_code == streamed.status_code == 200, made.text
    assert made.headers["x-aerie-note"] == streamed.headers["x-aerie-note"]
    noted = made.headers["x-aerie-note"].removeprefix("ignored: ").split(", ")
    assert sorted(noted) == [
        "context_management",
        "diagnostics",
        "fallbacks",
        "messages.content.cache_control",
        "messages.content.is_error",
        "metadata",
        "output_config.task_budget",
        "speed",
        "system.cache_control",
        "tools of type web_search_20250305",
        "tools.cache_control",
        "tools.defer_loading",
        "tools.eager_input_streaming",
    ]


def content(kind: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": kind, "source": {}}]}]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"container": "c"}, "nothing runs code here"),
        ({"thread": {"type": "create"}}, "messages are not stored here; send the whole conversation"),
        ({"compaction": {}}, "conversations are not shortened here; ask for a summary"),
        ({"mcp_servers": [{"name": "x"}]}, "Aerie does not connect to tool servers"),
        (content("image"), "models here read text; leave the image out"),
        (content("document"), "models here read text; leave the document out"),
        (content("compaction"), "the summary is another server's"),
    ],
)
def test_what_changes_a_message_is_refused_by_name(serving: Any, changes: dict[str, Any], words: str) -> None:
    with serving.http as http:
        made = http.post(MESSAGES, json={**CLAUDE_CODE, **changes})
    assert made.status_code == 400
    assert words in made.json()["error"]["message"]


def test_a_call_of_a_namespace_comes_back_with_it(serving: Any) -> None:
    named = {"type": "function", "name": "search", "namespace": "mcp__docs__"}
    with serving.http as http:
        made = http.post(RESPONSES, json={**CODEX, "tool_choice": named, "temperature": 0})
        assert made.status_code == 200, made.text
        (call,) = [item for item in made.json()["output"] if item["type"] == "function_call"]
        assert (call["name"], call["namespace"]) == ("search", "mcp__docs__")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "none"}
        history = [*CODEX["input"], call, result]
        again = http.post(RESPONSES, json={**CODEX, "max_output_tokens": 1, "input": history})
    assert again.status_code == 200, again.text
    assert [tool["type"] for tool in made.json()["tools"]] == ["function", "namespace"]
    noted = made.headers["x-aerie-note"].partition("ignored: ")[2].split(", ")
    assert sorted(noted) == [
        "client_metadata",
        "include",
        "prompt_cache_key",
        "reasoning.summary",
        "service_tier",
        "text.verbosity",
        "tools of type tool_search",
        "tools of type web_search",
        "tools.tools.defer_loading",
    ]


def test_a_tool_of_a_namespace_has_it_in_its_name() -> None:
    request = ResponsesRequest.model_validate(CODEX)
    tools = request.chat.tools
    assert tools is not None
    assert [tool.name for tool in tools.tools] == ["exec_command", "mcp__docs__search"]
    assert request.field_path("tools[1].parameters") == "tools[1].tools[0].parameters"
    call = {"type": "function_call", "call_id": "c", "name": "search", "namespace": "mcp__docs__"}
    items = [{**call, "arguments": "{}"}]
    history = ResponsesRequest.model_validate({**CODEX, "input": items}).chat.messages
    assert history[-1]["tool_calls"][0]["function"]["name"] == "mcp__docs__search"


def test_the_items_of_a_namespace_whole_and_as_events() -> None:
    request = ResponsesRequest.model_validate(CODEX)
    finish = FinishInfo("tool_calls", 5, 9, 0)
    output = CompletedOutput(finish=finish, tool_calls=[ToolCall("mcp__docs__search", "{}")])
    (item,) = ResponsesWriter("demo", request, lambda _: None).write_whole([output]).output
    assert item.type == "function_call"
    assert (item.name, item.namespace) == ("search", "mcp__docs__")
    delta = OutputDelta(0, tool_calls=(ToolCallDelta(0, "mcp__docs__search", "{}"),), finish=finish)
    events = b"".join(ResponsesWriter("demo", request, lambda _: None).delta_events(delta)).decode()
    assert events.count('"namespace": "mcp__docs__"') == 3  # added, done, completed


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "compaction", "encrypted_content": "?"}, "conversations are not shortened here"),
        ({"type": "compaction_trigger"}, "conversations are not shortened here"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]},
            "models here read text; leave the image out",
        ),
    ],
)
def test_what_changes_a_response_is_refused_by_name(serving: Any, item: dict[str, Any], words: str) -> None:
    with serving.http as http:
        made = http.post(RESPONSES, json={**CODEX, "input": [item]})
    assert made.status_code == 400
    assert words in made.json()["error"]["message"]


def test_items_of_tools_that_others_ran_are_ignored_and_named() -> None:
    kinds = ("shell_call", "shell_call_output", "apply_patch_call", "tool_search_output")
    others = [{"type": kind, "call_id": "c"} for kind in kinds]
    request = ResponsesRequest.model_validate({"input": [*others, HELLO]})
    assert [message["role"] for message in request.chat.messages] == ["user"]
    assert ignored_fields(request) == [f"input of type {kind}" for kind in kinds]


def test_a_chat_says_what_it_ignores(serving: Any) -> None:
    body = {"model": "demo", "messages": [HELLO], "user": "u", "max_tokens": 1, "service_tier": "auto"}
    with serving.http as http:
        made = http.post("/v1/chat/completions", json=body)
    assert made.headers["x-aerie-note"] == "ignored: user, service_tier"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"])
def test_what_is_no_reranker_ranks_nothing(serving: Any, path: str) -> None:
    with serving.http as http:
        made = http.post(path, json={"query": "x", "documents": ["y"]})
    error = made.json()["error"]
    assert (made.status_code, error["param"], error["code"]) == (400, "model", "invalid_value")
    assert error["message"].startswith("this model (LlamaForCausalLM) is no reranker: it was not trained to")
    assert error["message"].endswith("and rank by the products of their vectors")


def test_the_pages_of_the_api_need_nothing_from_elsewhere(serving: Any) -> None:
    with serving.http as http:
        page, schema = http.get("/docs"), http.get("/openapi.json").json()
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    for word in ("<script", "http:", "https:", "src=", "url("):
        assert word not in page.text
    assert schema["openapi"].startswith("3.")
    assert set(schema["paths"]) >= {"/v1/chat/completions", "/api/chat", "/v1/models/{name}"}
    for path, methods in schema["paths"].items():
        assert f" {path}</code>" in page.text
        assert all(each["summary"] for each in methods.values())
    assert "<td><code>messages</code><td>list of object<td>required" in page.text
