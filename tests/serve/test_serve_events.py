"""Events that are written from one that was made: the same bytes as those that the client's types give."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from aerie.serve.event_stream import MAX_NOTE_LENGTH, NOTE_HEADER, event, notes_header
from aerie.serve.metrics import Metrics, RequestLog
from aerie.serve.openai_format import ChatWriter, CompletionWriter
from aerie.serve.output_processor import OutputDelta

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ODD = 'a "quote", \\ and \x00\x1f\x7f\u2028\n\t\b\f\r é 日本 😀 </script>'


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("form", [ChatWriter, CompletionWriter])
@given(text=TEXTS)
def test_every_text_is_encoded_as_by_the_types(
    form: type[ChatWriter] | type[CompletionWriter], usage: bool, text: str
) -> None:
    made = form('a "model"', 2, usage, False)
    for piece in (text, ODD):
        *_, written = made.delta_events(OutputDelta(1, piece))
        assert written == event(made._with_text(1, piece))


def test_clients_read_them() -> None:
    (text_event,) = CompletionWriter("demo", 1, False, False).delta_events(OutputDelta(0, ODD))
    assert json.loads(text_event.removeprefix(b"data: "))["choices"][0]["text"] == ODD
    role, text_event = ChatWriter("demo", 1, False, False).delta_events(OutputDelta(0, ODD))
    assert b'"role":"assistant"' in role
    chunk = ChatCompletionChunk.model_validate_json(text_event.removeprefix(b"data: "))
    assert (chunk.choices[0].delta.content, chunk.choices[0].delta.role) == (ODD, None)


@given(notes=st.lists(TEXTS, min_size=1))
def test_a_note_is_a_valid_header_for_every_schema(notes: list[str]) -> None:
    (header,) = notes_header(notes).values()
    assert header.isascii()
    assert header.isprintable()
    assert len(header) <= MAX_NOTE_LENGTH + len(" ...")


def test_a_note_names_all_that_is_not_held() -> None:
    assert notes_header([]) == {}
    assert notes_header(["a: b", "c\r\nd: é"]) == {NOTE_HEADER: "not held to: a: b; c  d: \\xe9"}


def test_tokens_of_the_last_request_and_of_all() -> None:
    metrics = Metrics()
    log = RequestLog(
        "POST",
        "/v1/chat/completions",
        "here",
        prompt_tokens=70,
        cached_tokens=64,
        completion_tokens=5,
        model="m",
    )
    for _ in range(2):
        metrics.count(log, log.path)
    last = {"input_tokens": 6, "output_tokens": 5, "prompt_tokens": 70, "cache_tokens": 64}
    assert {name: metrics.last[name] for name in last} == last
    assert metrics.totals == {
        "request_count_total": 2,
        **{f"{name}_total": 2 * n for name, n in last.items()},
    }
