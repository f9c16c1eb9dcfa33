"""Thinking in every API: apart from the text, counted, limited, sent back. The model is the demo with a
template that opens the thinking: it thinks nonsense until the budget ends it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.serve.service import ServerLimits
from tests.serve.conftest import Serving, opened, start
from tests.thinking_models import OPENED

BUDGET = 5
USER = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 30}
SCHEMA = {"const": "a: b"}
SAID = "a: b"
TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(DEMO_FOLDER, tmp_path_factory.mktemp("thinking") / "thinking")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": OPENED}))
    return folder


@pytest.fixture(scope="module")
def thinker(folder: Path) -> Iterator[Serving]:
    serving, stop = start(ServerLimits(queue=4, thinking_budget=BUDGET), lambda: opened(str(folder)))
    try:
        serving.wait_until(lambda: serving.server.started and serving.service.opened)
        yield serving
    finally:
        stop()


def post(serving: Serving, path: str, **body: Any) -> Any:
    with serving.http as http:
        return http.post(path, json=body).json()


def events(serving: Serving, path: str, **body: Any) -> list[Any]:
    with serving.http as http:
        lines = http.post(path, json={**body, "stream": True}).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", "{"))]
    return [json.loads(one) for one in data if one != "[DONE]"]


@pytest.fixture(scope="module")
def thought(thinker: Serving) -> str:
    """What the model thinks, greedily."""
    body = post(thinker, "/v1/chat/completions", messages=USER, **GREEDY)
    (choice,) = body["choices"]
    thought = choice["message"]["reasoning_content"]
    assert thought
    assert "think>" not in thought + choice["message"]["content"]
    return str(thought)


def chat(thinker: Serving, **more: Any) -> Any:
    return post(thinker, "/v1/chat/completions", messages=USER, json_schema=SCHEMA, **{**GREEDY, **more})


def test_a_chat_has_the_thinking_beside_the_content(thinker: Serving, thought: str) -> None:
    body = chat(thinker)
    message, usage = body["choices"][0]["message"], body["usage"]
    assert message["reasoning_content"] == message["reasoning"] == thought
    assert json.loads(message["content"]) == SAID
    tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert BUDGET < tokens < usage["completion_tokens"]


def test_a_stream_has_it_in_its_deltas_and_before_the_content(thinker: Serving, thought: str) -> None:
    asked = {"messages": USER, "json_schema": SCHEMA, **GREEDY}
    made = events(thinker, "/v1/chat/completions", **asked, stream_options={"include_usage": True})
    deltas = [one["choices"][0]["delta"] for one in made if one["choices"]]
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == thought
    assert "".join(each.get("reasoning") or "" for each in deltas) == thought
    assert json.loads("".join(each.get("content") or "" for each in deltas)) == SAID
    last_thought = max(n for n, each in enumerate(deltas) if each.get("reasoning_content"))
    assert not any(each.get("content") for each in deltas[: last_thought + 1])
    assert made[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > BUDGET


def test_the_official_client_reads_it(thinker: Serving, thought: str) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": USER, **GREEDY}
    made: Any = thinker.openai.chat.completions.create(**asked)
    assert made.choices[0].message.reasoning_content == thought


def test_each_of_several_choices_has_its_own(thinker: Serving) -> None:
    body = chat(thinker, n=3, temperature=1.5, seed=1)
    messages = [each["message"] for each in body["choices"]]
    assert len({each["reasoning_content"] for each in messages}) == 3
    assert [json.loads(each["content"]) for each in messages] == [SAID] * 3


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_are_of_all_tokens(thinker: Serving, streams: bool) -> None:
    if streams:
        asked = {"messages": USER, "json_schema": SCHEMA, **GREEDY, "logprobs": True}
        made = events(thinker, "/v1/chat/completions", **asked)
        choices = [one["choices"][0] for one in made if one["choices"]]
        tokens = [entry for each in choices if each["logprobs"] for entry in each["logprobs"]["content"]]
        assert "".join(each["delta"].get("reasoning_content") or "" for each in choices)
    else:
        tokens = chat(thinker, logprobs=True)["choices"][0]["logprobs"]["content"]
    text = "".join(each["token"] for each in tokens)
    assert json.loads(text.split("</think>")[1]) == SAID


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"]
)
def test_a_request_sets_its_budget(thinker: Serving, name: str) -> None:
    counts = [
        chat(thinker, **{name: budget})["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for budget in (0, 1, 9)
    ]
    assert [count - counts[0] for count in counts] == [0, 1, 9]
    unlimited = chat(thinker, **{name: -1})
    assert unlimited["choices"][0]["message"]["content"] == ""
    assert unlimited["choices"][0]["finish_reason"] == "length"


def test_the_form_of_openrouter(thinker: Serving, thought: str) -> None:
    count = chat(thinker, reasoning={"max_tokens": 0})["usage"]["completion_tokens_details"][
        "reasoning_tokens"
    ]
    assert count == chat(thinker, thinking_budget=0)["usage"]["completion_tokens_details"]["reasoning_tokens"]
    message = chat(thinker, reasoning={"exclude": True, "effort": "low", "enabled": True})["choices"][0][
        "message"
    ]
    assert "reasoning_content" not in message
    assert json.loads(message["content"]) == SAID


def test_thinking_may_be_left_out_or_left_in_the_content(thinker: Serving, thought: str) -> None:
    message = chat(thinker, include_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert json.loads(message["content"]) == SAID
    message = chat(thinker, reasoning_format="none")["choices"][0]["message"]
    assert "reasoning_content" not in message
    before, _, after = message["content"].partition("</think>")
    assert (before.strip(), json.loads(after)) == (thought, SAID)
    body = chat(thinker, reasoning_format="deepseek-legacy")
    assert "Input should be 'auto', 'deepseek' or 'none'" in body["error"]["message"]


def test_a_budget_below_none(thinker: Serving) -> None:
    assert "greater than or equal to -1" in chat(thinker, thinking_budget=-2)["error"]["message"]
    body = post(
        thinker,
        "/v1/messages",
        messages=USER,
        max_tokens=9,
        thinking={"type": "enabled", "budget_tokens": -1},
    )
    assert "greater than or equal to 0" in body["error"]["message"]


def test_stop_strings_are_of_the_answer(thinker: Serving, thought: str) -> None:
    """What the model thinks does not end it."""
    word = thought.split()[0]
    body = chat(thinker, stop=[word, ":"])
    assert body["choices"][0]["message"]["reasoning_content"] == thought
    assert body["choices"][0]["message"]["content"] == '"a'


def test_thinking_then_a_call(thinker: Serving, thought: str) -> None:
    asked = {"messages": USER, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    (choice,) = post(thinker, "/v1/chat/completions", **asked, **{**GREEDY, "max_tokens": 90})["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["look"]


def test_an_answer_that_is_continued_may_be_thinking(thinker: Serving) -> None:
    for content, is_thinking in (("<think>so", True), ("<think>so</think>And", False), ("And", False)):
        messages = [*USER, {"role": "assistant", "content": content}]
        asked = {"messages": messages, "continue_final_message": True, **GREEDY, "max_tokens": 4}
        message = post(thinker, "/v1/chat/completions", **asked)["choices"][0]["message"]
        assert bool(message.get("reasoning_content")) is is_thinking
        assert bool(message["content"]) is not is_thinking


def test_no_splitting_of_a_completion(thinker: Serving) -> None:
    prompt = post(thinker, "/apply-template", messages=USER)["prompt"]
    assert prompt.endswith("<think>\n")
    text = post(thinker, "/v1/completions", prompt=prompt, regex="a</think>b", **GREEDY)["choices"][0]["text"]
    assert text == "a</think>b"


def test_a_response_has_a_reasoning_item(thinker: Serving, thought: str) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    asked = {"input": USER, "text": form, "temperature": 0, "max_output_tokens": 30}
    body = post(thinker, "/v1/responses", **asked)
    reasoning, message = body["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": thought}]
    assert (reasoning["summary"], reasoning["status"]) == ([], "completed")
    assert json.loads(message["content"][0]["text"]) == SAID
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > BUDGET
    again = post(thinker, "/v1/responses", previous_response_id=body["id"], input="And?", max_output_tokens=3)
    assert again["status"] == "incomplete"
    items = [*USER, reasoning, message, {"role": "user", "content": "And?"}]
    count = post(thinker, "/v1/responses/input_tokens", input=items)["input_tokens"]
    assert again["usage"]["input_tokens"] == count


def test_the_events_of_a_reasoning_item(thinker: Serving, thought: str) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    made = events(thinker, "/v1/responses", input=USER, text=form, temperature=0, max_output_tokens=30)
    kinds = [one["type"].removeprefix("response.") for one in made]
    assert [kind for n, kind in enumerate(kinds) if kind != kinds[n - 1]] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    deltas = [one["delta"] for one in made if one["type"] == "response.reasoning_text.delta"]
    (done,) = (one for one in made if one["type"] == "response.reasoning_text.done")
    assert "".join(deltas) == done["text"] == thought
    added = [one for one in made if one["type"] == "response.output_item.added"]
    assert [one["output_index"] for one in added] == [0, 1]
    assert [one["sequence_number"] for one in made] == [*range(len(made))]
    with thinker.openai.responses.stream(
        model="demo", input="Hi", temperature=0, max_output_tokens=40
    ) as stream:
        final = stream.until_done().get_final_response()
    assert final.output[0].type == "reasoning"


def test_a_message_has_a_thinking_block(thinker: Serving, thought: str) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    asked = {"messages": USER, "output_config": form, "temperature": 0, "max_tokens": 30}
    body = post(thinker, "/v1/messages", **asked)
    block, text = body["content"]
    assert (block["type"], block["thinking"]) == ("thinking", thought)
    assert json.loads(text["text"]) == SAID
    made = events(thinker, "/v1/messages", **asked)
    starts = [one["content_block"] for one in made if one["type"] == "content_block_start"]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [one["type"] for one in starts] == ["thinking", "text"]
    deltas = [(one["index"], one["delta"]) for one in made if one["type"] == "content_block_delta"]
    assert "".join(each.get("thinking", "") for _, each in deltas) == thought
    signatures = [(index, each) for index, each in deltas if each["type"] == "signature_delta"]
    assert signatures == [(0, {"type": "signature_delta", "signature": block["signature"]})]
    assert json.loads("".join(each.get("text", "") for _, each in deltas)) == SAID
    assert [one["index"] for one in made if one["type"] == "content_block_stop"] == [0, 1]


@pytest.mark.parametrize("signature", [None, "", "someone else's", "="])
def test_a_thinking_block_is_taken_back_with_any_signature(thinker: Serving, signature: str | None) -> None:
    block = {"type": "thinking", "thinking": "so", "signature": signature}
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "Paris"}]}
    messages = [*USER, answer, {"role": "user", "content": "And?"}]
    assert post(thinker, "/v1/messages", messages=messages, max_tokens=3)["type"] == "message"


def test_a_messages_budget_and_what_is_shown(thinker: Serving, thought: str) -> None:
    def asked(**thinking: Any) -> Any:
        more = {"type": "enabled", **thinking}
        return post(thinker, "/v1/messages", messages=USER, temperature=0, max_tokens=30, thinking=more)

    assert [each["type"] for each in asked(budget_tokens=0)["content"]] == ["text"]
    longer = asked(budget_tokens=BUDGET + 4)["content"][0]["thinking"]
    assert longer.startswith(thought)
    assert longer != thought
    hidden = asked(display="omitted")["content"][0]
    assert (hidden["thinking"], bool(hidden["signature"])) == ("", True)


@pytest.mark.parametrize("think", [None, True, "low"])
def test_ollama(thinker: Serving, thought: str, think: Any) -> None:
    asked = {"model": "demo", "format": SCHEMA, "think": think, "options": {"temperature": 0}}
    chat = {"messages": USER, **asked}
    body = post(thinker, "/api/chat", **chat, stream=False)
    assert body["message"]["thinking"] == thought
    assert json.loads(body["message"]["content"]) == SAID
    lines = events(thinker, "/api/chat", **chat)
    assert "".join(each["message"].get("thinking", "") for each in lines) == thought
    assert json.loads("".join(each["message"]["content"] for each in lines)) == SAID
    prompt = {"prompt": USER[0]["content"], **asked}
    body = post(thinker, "/api/generate", **prompt, stream=False)
    assert (body["thinking"], json.loads(body["response"])) == (thought, SAID)
    lines = events(thinker, "/api/generate", **prompt)
    assert "".join(each.get("thinking", "") for each in lines) == thought
    shown = post(thinker, "/api/show", model="demo")
    assert "thinking" in shown["capabilities"]


def test_old_thinking_is_sent_back_in_each_api(thinker: Serving) -> None:
    """The template of the model drops it, so that prompts are as long as without."""
    answer = {"role": "assistant", "content": "Paris"}
    after = {"role": "user", "content": "And?"}

    def counted(path: str, *extra: dict[str, Any]) -> int:
        messages = [*USER, *(extra or (answer,)), after]
        return int(post(thinker, path, messages=messages)["input_tokens"])

    path = "/v1/chat/completions/input_tokens"
    assert counted(path) == counted(path, {**answer, "reasoning_content": "so"})
    assert counted(path) == counted(path, {**answer, "reasoning": "so"})
    body = post(
        thinker,
        "/api/chat",
        model="demo",
        messages=[*USER, {**answer, "thinking": "so"}, after],
        stream=False,
        options={"num_predict": 2},
    )
    assert body["prompt_eval_count"] == counted(path)
