"""Answers of a form over HTTP: JSON of a schema, read by the official client's own helpers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from aerie import Model

USER = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


class City(BaseModel):
    kind: Literal["capital", "town"]
    sure: bool


def test_a_chat_of_a_schema_is_that_of_the_model_alone(serving: Any, alone: Model) -> None:
    made = serving.openai.chat.completions.create(
        model="demo", messages=USER, temperature=0, response_format=FORMAT
    )
    own = alone.generate(USER[0]["content"], 400, json_schema=SCHEMA)
    assert made.choices[0].message.content == own.text
    assert made.choices[0].finish_reason == "stop"
    assert [*json.loads(own.text)] == ["city", "sure"]


def test_the_clients_own_types(serving: Any) -> None:
    asked = {"model": "demo", "temperature": 1.3, "seed": 5}
    parsed = serving.openai.chat.completions.parse(messages=USER, response_format=City, **asked)
    assert isinstance(parsed.choices[0].message.parsed, City)
    del asked["seed"]
    response = serving.openai.responses.parse(input="Where?", text_format=City, **asked)
    assert isinstance(response.output_parsed, City)
    format_ = response.text.format
    assert (format_.type, format_.schema_["title"]) == ("json_schema", "City")


def test_streams_in_company(serving: Any) -> None:
    """Choices, logprobs and draws, each beside answers of other forms and of none."""

    def answer(seed: int) -> list[str]:
        form: Any = {"response_format": FORMAT} if seed % 2 else {}
        chunks = serving.openai.chat.completions.create(
            model="demo",
            messages=USER,
            temperature=1.2,
            seed=seed,
            n=2,
            stream=True,
            max_tokens=120,
            logprobs=True,
            **form,
        )
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(answer, range(6)))
    assert together == [answer(seed) for seed in range(6)]
    for texts in together[1::2]:
        assert all([*json.loads(text)] == ["city", "sure"] for text in texts)


def test_an_object_and_a_text(serving: Any) -> None:
    made = serving.openai.chat.completions.create(
        model="demo", messages=USER, response_format={"type": "json_object"}, max_tokens=60, temperature=0
    )
    assert made.choices[0].message.content.startswith("{")
    plain = serving.openai.chat.completions.create(
        model="demo", messages=USER, response_format={"type": "text"}, temperature=0
    )
    assert plain.choices[0].message.content == "The capital of France is Paris."
    cut = serving.openai.chat.completions.create(
        model="demo", messages=USER, response_format=FORMAT, max_tokens=3, temperature=0
    )
    assert cut.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "json_schema"}, "the type json_schema wants json_schema: {name, schema}; give it"),
        ({"type": "xml"}, "'xml'"),
        ({"type": "json_object", "schema": {"type": "foo"}}, "cannot be taken: Invalid type: foo"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"minLength": -1}}},
            "cannot be taken",
        ),
    ],
)
def test_invalid_response_formats(serving: Any, given: Any, message: str) -> None:
    with serving.http as http:
        refused = http.post(CHAT, json={"messages": USER, "response_format": given})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert message in error["message"]
    assert error["param"].startswith("response_format")
    assert error["code"] == "invalid_value"


CHAINED = {
    "$defs": {f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(1000)},
    "$ref": "#/$defs/d0",
}
DEEP = "the depth that a form may have"
OF_CHATS = {"messages": USER}
MESSAGES = {"messages": USER, "max_tokens": 5}
TOO_LONG = {"x": "a" * 2**20}
FORMATTED = {"format": {"type": "json_schema", "name": "x", "schema": CHAINED}}


def tools_of(schema: Any, name: str = "f", **more: Any) -> Any:
    return [{"type": "function", "function": {"name": name, "parameters": schema, **more}}]


@pytest.mark.parametrize(
    ("address", "body", "message"),
    [
        (CHAT, {**OF_CHATS, "json_schema": CHAINED}, DEEP),
        (CHAT, {**OF_CHATS, "tools": tools_of(CHAINED)}, DEEP),
        (CHAT, {**OF_CHATS, "tools": tools_of(TOO_LONG)}, "it has more than 262144 characters"),
        (CHAT, {**OF_CHATS, "grammar": 'root ::= root "a"'}, "no rule of it comes to an end"),
        (CHAT, {**OF_CHATS, "regex": "[a&&b]"}, "no text is of it"),
        (CHAT, {**OF_CHATS, "json_schema": {"$ref": "#"}}, "no JSON is of it that comes to an end"),
        (CHAT, {**OF_CHATS, "json_schema": {"const": 9007199254740993}}, "has 9007199254740993, and numbers"),
        ("/v1/messages", {**MESSAGES, "tools": [{"name": "f", "input_schema": CHAINED}]}, DEEP),
        ("/v1/responses", {"input": "x", "text": FORMATTED}, DEEP),
        ("/v1/completions", {"prompt": "x", "json_schema": CHAINED}, DEEP),
        ("/completion", {"prompt": "x", "json_schema": CHAINED}, DEEP),
    ],
)
def test_a_form_of_a_stranger_hurts_its_request_alone(
    serving: Any, address: str, body: dict[str, Any], message: str
) -> None:
    with serving.http as http:
        refused = http.post(address, json=body)
        assert http.get("/health").status_code == 200
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


def test_an_empty_answer_may_be_asked_for(serving: Any) -> None:
    made = serving.openai.chat.completions.create(model="demo", messages=USER, extra_body={"regex": ""})
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("", "stop")


UNIQUE = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


@pytest.mark.parametrize("stream", [False, True])
def test_unenforced_keywords_are_reported(serving: Any, stream: bool) -> None:
    tools = [
        *tools_of({"type": "object", "properties": {"a": UNIQUE}}),
        *tools_of({"type": ["object", "null"], "required": None}, "g"),
        *tools_of({}, "h"),
    ]
    loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE}}
    with serving.http as http:
        for body, note in (
            ({"tools": tools}, "not held to: f: uniqueItems; g: required null"),
            ({"response_format": loose}, "not held to: uniqueItems"),
            ({"response_format": FORMAT}, None),
        ):
            made = http.post(CHAT, json={**OF_CHATS, **body, "max_tokens": 8, "stream": stream})
            assert (made.status_code, made.headers.get("x-aerie-note")) == (200, note)


def test_unenforced_keywords_are_refused_in_strict_mode(serving: Any) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE, "strict": True}}
    for body in (
        {"tools": tools_of({"type": "object", "properties": {"a": UNIQUE}}, strict=True)},
        {"response_format": strict},
        {"json_schema": UNIQUE},
    ):
        with serving.http as http:
            refused = http.post(CHAT, json={**OF_CHATS, **body})
        assert refused.status_code == 400
        assert 'Unimplemented keys: ["uniqueItems"]' in refused.json()["error"]["message"]


def test_the_same_of_responses(serving: Any) -> None:
    with serving.http as http:
        refused = http.post(
            "/v1/responses", json={"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}
        )
        wrong = {"type": "json_schema", "name": "x", "schema": {"type": "foo"}}
        unread = http.post("/v1/responses", json={"input": "x", "text": {"format": wrong}})
    assert "the type json_schema wants a schema; give it" in refused.json()["error"]["message"]
    assert (unread.status_code, unread.json()["error"]["param"]) == (400, "text.format")
