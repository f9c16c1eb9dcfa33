"""Responses and conversations that are kept, as the official client asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from aerie import Model
from aerie.serve.errors import ApiError
from aerie.serve.models import ModelManager
from aerie.serve.response_items import MessageItem
from aerie.serve.response_store import ItemHistory, ResponseStore, StoredConversation, StoredResponse
from aerie.serve.responses import ResponsesRequest
from aerie.serve.service import ServedModel, ServerLimits
from tests.serve.conftest import Serving, demo

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
ASKED: dict[str, Any] = {"model": "demo", "temperature": 0}
SPAIN = "What is the capital of Spain?"
TOOL = {"type": "function", "name": "rain", "parameters": {"type": "object", "properties": {}}}


def test_a_response_is_kept_and_deleted(serving: Any) -> None:
    responses = serving.openai.responses
    made = responses.create(**ASKED, input=FRANCE, metadata={"of": "a test"})
    kept = responses.retrieve(made.id)
    assert kept.model_dump() == made.model_dump()
    assert (kept.output_text, kept.metadata) == (PARIS, {"of": "a test"})
    responses.delete(made.id)
    for ask in (responses.retrieve, responses.delete, responses.input_items.list, responses.cancel):
        with pytest.raises(openai.NotFoundError) as gone:
            ask(made.id)
        assert f"there is no response {made.id!r} here: it was never stored, was deleted" in str(gone.value)
        assert isinstance(gone.value.body, dict)
        assert gone.value.body["code"] == "response_not_found"
    with pytest.raises(openai.BadRequestError) as lost:
        responses.create(**ASKED, input="And of Spain?", previous_response_id=made.id)
    assert (lost.value.param, lost.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("streams", [False, True])
def test_a_response_goes_on_from_another(serving: Any, alone: Model, streams: bool) -> None:
    def made(**asked: Any) -> Response:
        if not streams:
            return serving.openai.responses.create(**ASKED, **asked)
        *_, last = serving.openai.responses.create(**ASKED, **asked, stream=True)
        return last.response

    first = made(input=FRANCE, instructions="Be brief.")
    second = made(input=SPAIN, previous_response_id=first.id)
    third = made(input=[{"role": "user", "content": "Thanks."}], previous_response_id=second.id)
    talk = [("user", FRANCE), ("assistant", first.output_text), ("user", SPAIN)]
    talk += [("assistant", second.output_text), ("user", "Thanks.")]
    own = alone.generate([{"role": role, "content": text} for role, text in talk])
    assert (third.output_text, third.previous_response_id) == (own.text, second.id)
    assert third.usage
    assert third.usage.input_tokens == len(own.prompt_token_ids)
    assert first.previous_response_id is None
    listed = serving.openai.responses.input_items
    items = list(listed.list(third.id, order="asc"))
    texts = [(item.role, item.content[0].text) for item in items]
    assert texts == talk
    assert [item.id for item in listed.list(third.id, limit=2)] == [item.id for item in reversed(items)]
    (page,) = [listed.list(third.id, limit=2, after=items[3].id)]
    assert ([item.id for item in page.data], page.has_more) == ([items[2].id, items[1].id], True)
    (page,) = [listed.list(third.id, limit=2, after=items[2].id)]
    assert ([item.id for item in page.data], page.has_more) == ([items[1].id, items[0].id], False)
    serving.openai.responses.delete(first.id)  # its messages stay in the responses that continue it
    assert made(input="Thanks.", previous_response_id=second.id).output_text == own.text


def test_what_is_not_to_be_stored_is_not(serving: Any) -> None:
    made = serving.openai.responses.create(**ASKED, input=FRANCE, store=False)
    with pytest.raises(openai.NotFoundError):
        serving.openai.responses.retrieve(made.id)
    long = {"format": {"type": "json_schema", "name": "long", "schema": {"type": "string", "minLength": 900}}}
    begun = serving.openai.responses.create(**ASKED, input=FRANCE, text=long, stream=True)
    name = next(begun).response.id
    begun.close()
    serving.wait_until(lambda: serving.running() == 0)
    with pytest.raises(openai.NotFoundError):  # nobody listened to its end
        serving.openai.responses.retrieve(name)


def test_calls_are_kept_with_what_they_gave(serving: Any) -> None:
    responses = serving.openai.responses
    first = responses.create(**ASKED, input="Is it raining?", tools=[TOOL], tool_choice="required")
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "no"}
    parts = [{"type": "input_text", "text": "not at all"}]
    second = responses.create(**ASKED, input=[result], tools=[TOOL], previous_response_id=first.id)
    counted = responses.input_tokens.count(
        model="demo", input=[result], tools=[TOOL], previous_response_id=first.id
    )
    assert counted.input_tokens == second.usage.input_tokens
    items = list(responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]
    assert items[1].model_dump() == call.model_dump() | {"created_by": None}
    assert items[2].output == "no"
    again = [{**result, "output": parts}]
    third = responses.create(**ASKED, input=again, tools=[TOOL], previous_response_id=first.id)
    (item, *_) = responses.input_items.list(third.id)
    assert item.output[0].text == "not at all"
    with pytest.raises(openai.BadRequestError):  # a result of a call that was not made
        responses.create(**ASKED, input=[result], tools=[TOOL])


def test_a_conversation(serving: Any, alone: Model) -> None:
    talks = serving.openai.conversations
    talk = talks.create(items=[{"role": "system", "content": "Be brief."}], metadata={"of": "a test"})
    assert talks.retrieve(talk.id).model_dump() == talk.model_dump()
    first = serving.openai.responses.create(**ASKED, input=FRANCE, conversation=talk.id)
    assert (first.conversation.id, first.output_text) == (talk.id, PARIS)
    *_, last = serving.openai.responses.create(
        **ASKED, input=SPAIN, conversation={"id": talk.id}, stream=True, store=False
    )
    conversation = [("system", "Be brief."), ("user", FRANCE), ("assistant", PARIS), ("user", SPAIN)]
    own = alone.generate([{"role": role, "content": text} for role, text in conversation])
    assert last.response.output_text == own.text
    items = list(talks.items.list(talk.id, order="asc", limit=100))
    assert [item.content[0].text for item in items] == [text for _, text in [*conversation, ("", own.text)]]
    assert talks.items.retrieve(items[1].id, conversation_id=talk.id).content[0].text == FRANCE
    talks.items.delete(items[1].id, conversation_id=talk.id)
    added = talks.items.create(talk.id, items=[{"role": "user", "content": "Thanks."}])
    assert [item.content[0].text for item in added.data] == ["Thanks."]
    left = [item.id for item in talks.items.list(talk.id, order="asc")]
    assert left == [items[0].id, *(item.id for item in items[2:]), added.data[0].id]
    assert talks.update(talk.id, metadata={"to": "b"}).metadata == {"to": "b"}
    assert talks.delete(talk.id).deleted
    with pytest.raises(openai.NotFoundError, match=f"there is no conversation '{talk.id}' here"):
        talks.retrieve(talk.id)
    with pytest.raises(openai.BadRequestError) as lost:
        serving.openai.responses.create(**ASKED, input=FRANCE, conversation=talk.id)
    assert (lost.value.param, lost.value.code) == ("conversation", "conversation_not_found")


def test_what_is_refused(serving: Any) -> None:
    made = serving.openai.responses.create(**ASKED, input=FRANCE)
    talk = serving.openai.conversations.create()
    both = "previous_response_id and conversation exclude each other; give one of them"
    for method, path, body, status, words in (
        ("GET", f"/v1/responses/{made.id}?stream=true", None, 400, "cannot be streamed; remove stream"),
        ("GET", f"/v1/responses/{made.id}/input_items?limit=0", None, 400, "limit is '0'"),
        ("GET", f"/v1/responses/{made.id}/input_items?order=up", None, 400, "order is 'up'"),
        ("GET", f"/responses/{made.id}/input_items?after=x", None, 400, "after is 'x', and no item here"),
        ("POST", f"/v1/responses/{made.id}/cancel", None, 400, "this response is complete"),
        ("GET", f"/v1/responses/{talk.id}", None, 404, "there is no response 'conv_"),
        ("GET", f"/v1/conversations/{made.id}", None, 404, "there is no conversation 'resp_"),
        ("GET", f"/v1/conversations/{talk.id}/items/msg_1", None, 404, "has no item 'msg_1'; list its items"),
        ("POST", f"/v1/conversations/{talk.id}", {}, 400, "metadata is missing"),
        ("POST", f"/v1/conversations/{talk.id}/items", {"items": [{}]}, 400, "items[0].role is missing"),
        (
            "POST",
            "/v1/responses",
            {"input": "x", "conversation": "a", "previous_response_id": "b"},
            400,
            both,
        ),
    ):
        with serving.http as http:
            answer = http.request(method, path, json=body)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), (
            path,
            answer.text,
        )


def past(*texts: str) -> ItemHistory:
    return ItemHistory().extended_by([MessageItem(role="user", content=text).with_id() for text in texts])


def response(*texts: str) -> StoredResponse:
    made = past(*texts)
    return StoredResponse({"id": ""}, made.items, made)


def test_the_oldest_go_first() -> None:
    by_count, by_bytes = ResponseStore(3, 10**6), ResponseStore(100, 3 * response("x" * 500).nbytes)
    for kept in (by_count, by_bytes):
        for name in "abcdef":
            assert kept.put(name, response("x" * 500))
        kept.put("d", response("x" * 500))  # is the newest now
        kept.put("g", response("x" * 500))
        assert len(kept) == 3
        assert kept.response("d").input_items[0].to_json()["content"][0]["text"] == "x" * 500
        for name in "abce":
            with pytest.raises(Exception, match="was dropped for newer ones"):
                kept.response(name)
        for name in "dfg":
            kept.remove(name)
        assert (len(kept), kept.nbytes) == (0, 0)
    assert not by_bytes.put("h", response("x" * 5000))
    assert len(by_bytes) == 0


def test_what_came_before_counts_with_each_response() -> None:
    long = "x" * 1000
    first = past(long)
    second = first.extended_by([MessageItem(role="user", content=long).with_id()])
    assert json.dumps([item.to_json() for item in second.items]).count(long) == 2
    assert second.nbytes == 2 * first.nbytes > 2000


def test_a_conversation_that_has_no_room_stays_as_it_was() -> None:
    kept = ResponseStore(10, 3000)
    talk = kept.store_conversation(StoredConversation({}, past("x" * 100)))
    with pytest.raises(
        Exception, match="bytes, and 3000 is the limit of everything stored; start a new conversation"
    ):
        kept.store_conversation(StoredConversation({}, past("x" * 4000)))
    asked = ResponsesRequest(input="x" * 4000, conversation=talk.id)
    fields: dict[str, Any] = {
        "id": "resp_1",
        "output": [],
        "created_at": 0,
        "model": "",
        "object": "response",
    }
    made = Response(**fields, tools=[], tool_choice="auto", parallel_tool_calls=True)
    kept.store_response(asked, kept.history_before(asked), made)
    assert kept.conversation(talk.id).history == talk.history
    with pytest.raises(ApiError, match="had no room for its last response; list its items") as full:
        kept.history_before(asked)
    assert (full.value.status_code, full.value.code) == (400, "conversation_full")


def test_a_server_that_keeps_nothing(starting_models: Callable[[ModelManager], Serving]) -> None:
    serving = starting_models(ModelManager([ServedModel("demo", demo)], ServerLimits(max_stored=0)))
    made = serving.openai.responses.create(**ASKED, input=FRANCE)
    assert made.output_text == PARIS
    with pytest.raises(openai.NotFoundError, match="this server keeps no responses; send the whole"):
        serving.openai.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="this server keeps no responses; send the whole"):
        serving.openai.responses.create(**ASKED, input=SPAIN, previous_response_id=made.id)
    with pytest.raises(openai.APIStatusError, match="this server keeps no conversations"):
        serving.openai.conversations.create()
