"""The responses of OpenAI's newer API, Anthropic's messages, and embeddings."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from aerie import Model
from aerie.engine.embeddings import embed
from aerie.engine.forward import prefill
from aerie.engine.numerics import rms_norm, widen

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
MESSAGES = {
    "model": "demo",
    "max_tokens": 30,
    "temperature": 0,
    "messages": [{"role": "user", "content": FRANCE}],
}


def test_a_response(serving: Any, alone: Model) -> None:
    made = serving.openai.responses.create(model="demo", input=FRANCE, temperature=0)
    own = alone.generate(FRANCE)
    assert (made.output_text, made.status, made.object) == (PARIS, "completed", "response")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (
        len(own.prompt_token_ids),
        len(own.token_ids),
    )
    again = serving.openai.responses.create(
        model="demo",
        instructions="Be brief.",
        input=[
            {"role": "user", "content": FRANCE},
            *made.output,
            {"role": "user", "content": "And of Spain?"},
        ],
        temperature=0,
        max_output_tokens=4,
    )
    messages = [("system", "Be brief."), ("user", FRANCE), ("assistant", PARIS), ("user", "And of Spain?")]
    whole = alone.generate([{"role": role, "content": text} for role, text in messages], 4)
    assert again.output_text == whole.text
    assert (again.status, again.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_the_events_of_a_response(serving: Any) -> None:
    events = list(serving.openai.responses.create(model="demo", input=FRANCE, temperature=0, stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type.removeprefix("response.") for each in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == PARIS
    last = events[-1].response
    assert (last.output_text, last.id) == (PARIS, events[0].response.id)
    with serving.openai.responses.stream(model="demo", input=FRANCE, temperature=0) as stream:
        assert stream.get_final_response().output_text == PARIS


def test_messages(serving: Any, alone: Model) -> None:
    with serving.http as http:
        made = http.post("/v1/messages", json=MESSAGES).json()
        assert made["content"] == [{"type": "text", "text": PARIS}]
        assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "demo")
        assert (made["stop_reason"], made["stop_sequence"]) == ("end_turn", None)
        own = alone.generate(FRANCE)
        assert made["usage"] == {
            "input_tokens": len(own.prompt_token_ids),
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(own.token_ids),
        }
        counted = http.post("/v1/messages/count_tokens", json={"messages": MESSAGES["messages"]}).json()
        assert counted == {"input_tokens": len(own.prompt_token_ids)}
        blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        with_system = http.post("/v1/messages", json={**MESSAGES, "system": blocks}).json()
        plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": FRANCE}]
        assert with_system["content"][0]["text"] == alone.generate(plain, 30).text


@pytest.mark.parametrize(
    ("changes", "reason", "sequence"),
    [({"max_tokens": 2}, "max_tokens", None), ({"stop_sequences": ["Par"]}, "stop_sequence", "Par")],
)
def test_why_a_message_ends(serving: Any, changes: dict[str, Any], reason: str, sequence: str | None) -> None:
    with serving.http as http:
        made = http.post("/v1/messages", json={**MESSAGES, **changes}).json()
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)


def test_the_events_of_a_message(serving: Any) -> None:
    with (
        serving.http as http,
        http.stream("POST", "/v1/messages", json={**MESSAGES, "stream": True}) as response,
    ):
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [each["type"] for each in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta") == PARIS
    assert events[0]["message"]["usage"]["input_tokens"] == 22
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 9


def test_embeddings(serving: Any, alone: Model) -> None:
    texts = ["The capital of France is Paris.", "The capital of Spain is Madrid."]
    made = serving.openai.embeddings.create(model="demo", input=texts)
    vectors = np.array([each.embedding for each in made.data])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
    floats = serving.openai.embeddings.create(model="demo", input=texts[0], encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(list(vectors[0]), abs=1e-7)
    ids = alone.encode(texts[1], raw=True)
    of_ids = serving.openai.embeddings.create(model="demo", input=ids).data[0].embedding
    assert of_ids == pytest.approx(list(vectors[1]), abs=1e-7)
    assert vectors[0] @ vectors[1] < 0.9999
    assert made.usage.prompt_tokens == sum(len(alone.encode(text, raw=True)) for text in texts)
    with serving.http as http:
        plain = http.post("/v1/embeddings", json={"input": texts[0], "encoding_format": "base64"}).json()
    assert np.frombuffer(base64.b64decode(plain["data"][0]["embedding"]), "<f4") == pytest.approx(vectors[0])


def test_embeddings_are_the_mean_of_what_the_lm_head_reads(serving: Any, alone: Model) -> None:
    """So the LM head's product with the rows that are averaged gives the logits."""
    session = alone._open()
    ids = alone.encode(FRANCE, raw=True)
    hidden = prefill(session.model, ids, session.model.new_cache(len(ids)))
    config = session.model.config
    rows = widen(rms_norm(hidden, session.model.final_norm, config.rms_norm_eps))
    mean = rows.mean(axis=0)
    made = serving.openai.embeddings.create(model="demo", input=FRANCE).data[0].embedding
    assert made == pytest.approx(list(mean / np.linalg.norm(mean)), abs=1e-6)
    head = widen(embed(session.model.embed_table, range(config.vocab_size)))  # the demo's are tied
    assert np.argmax(rows[-1] @ head.T) == np.argmax(alone.logits(ids, raw=True)[-1])


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "at least 1 item"),
        (
            {"input": "x", "previous_response_id": "resp_1"},
            "previous_response_id",
            "there is no response 'resp_1' here: it was never stored",
        ),
        (
            {"input": "x", "conversation": "c"},
            "conversation",
            "there is no conversation 'c' here: it was never stored",
        ),
        ({"input": "x", "tools": [{"type": "functoin"}]}, "tools[0].type", "Input should be 'function'"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice", "there are no tools; give tools"),
        (
            {"input": "x", "text": {"verbosity": "loud"}},
            "text.verbosity",
            "Input should be 'low', 'medium' or",
        ),
        ({"input": "x", "truncation": "auto"}, "truncation", "nothing is cut from a prompt; leave it out"),
        (
            {"input": "x", "include": ["message.output_text.logprobs"]},
            "include",
            "this API has no logprobs; use /v1/chat/completions, or leave it out",
        ),
        ({"input": "x", "background": True}, "background", "responses are made while their client waits"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"input": "x", "temperature": -1}, "temperature", "it must be 0 (greedy) or more"),
        (
            {"input": "x", "stream": True, "stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options.include_usage is not a field that is taken here",
        ),
        ({"input": "x", "stream_options": 1e308}, "stream_options", "1e+308: Input should be"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "models here read text; leave the image out",
        ),
    ],
)
def test_wrong_responses(serving: Any, body: dict[str, Any], param: str, words: str) -> None:
    with serving.http as http:
        response = http.post("/v1/responses", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]
    assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"max_tokens": None}, 400, "max_tokens is missing; give it"),
        ({"messages": []}, 400, "messages is []: List should have at least 1 item"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            400,
            "messages[0].role is 'tool': Input should be",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "models here read text; leave the image out",
        ),
        ({"temperature": 1.5}, 400, "temperature is 1.5: Input should be less than or equal to 1"),
        ({"top_k": -2}, 400, "top-k is -2; it must be 0 (all tokens) or more"),
        ({"tools": [{"name": "f"}]}, 400, "tools[0].input_schema is missing; give it"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice asks for a call, and there are no tools"),
        ({"container": "c"}, 400, "nothing runs code here; leave it out"),
        (
            {
                "tools": [
                    {"type": "web_search_20250305", "name": "web_search"},
                    {"name": "a b", "input_schema": {}},
                ]
            },
            400,
            "tools[1].name is 'a b'; a name is made of",
        ),
        (
            {"mcp_servers": [{}]},
            400,
            "Aerie does not connect to tool servers; send their tools in the field tools; leave it out",
        ),
        ({"unknown": 1}, 400, "unknown is not a field that is taken here; leave it out"),
        ({"model": "claude"}, 404, "there is no model 'claude' here; there is 'demo'"),
    ],
)
def test_wrong_messages(serving: Any, changes: dict[str, Any], status: int, words: str) -> None:
    with serving.http as http:
        response = http.post("/v1/messages", json={**MESSAGES, **changes})
    assert response.status_code == status
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert words in body["error"]["message"]


def test_errors_in_the_midst_of_a_stream(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = serving.service.worker.opened.scheduler
    real, steps = scheduler.step, [0]

    def failing() -> None:
        steps[0] += 1
        if steps[0] == 4:
            raise ValueError("broken")
        real()

    monkeypatch.setattr(scheduler, "step", failing)
    with serving.http as http:
        for path, body, shape in (
            ("/v1/messages", MESSAGES, {"type": "error", "error": {"type": "api_error"}}),
            ("/v1/responses", {"input": FRANCE}, {"type": "error", "code": "internal_error"}),
        ):
            steps[0] = 0
            with http.stream("POST", path, json={**body, "stream": True}) as response:
                lines = [line for line in response.iter_lines() if line]
            assert lines[-2] == "event: error"
            event = json.loads(lines[-1].removeprefix("data: "))
            assert {key: event[key] for key in ("type",)} == {"type": shape["type"]}
            assert "the server failed in this request and continues to run" in json.dumps(event)
        assert http.post("/v1/messages", json=MESSAGES).json()["content"][0]["text"] == PARIS


def test_wrong_embeddings(serving: Any) -> None:
    client: openai.OpenAI = serving.openai
    for given, words in (
        ({"input": []}, "at least 1 item"),
        ({"input": ["x"] * 257}, "at most 256 items"),
        ({"input": "word " * 600}, "the model has 512 positions"),
        (
            {"input": "x", "dimensions": 257},
            "dimensions is 257, and the vectors of this model have 256; give 1 to 256, or leave it out",
        ),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            client.embeddings.create(model="demo", **given)
        assert words in wrong.value.message
    with serving.http as http:
        response: httpx2.Response = http.post(
            "/v1/embeddings", json={"input": "x", "encoding_format": "int8"}
        )
    assert "'int8': Input should be 'float' or 'base64'" in response.json()["error"]["message"]
