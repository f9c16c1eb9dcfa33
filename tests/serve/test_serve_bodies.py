"""Bodies: what is refused before it is read, what is wrong with one, and that nobody waits for one."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.serve.errors import ApiError
from aerie.serve.request_body import MAX_DEPTH, MAX_OBJECTS, MAX_VALUES, _without_strings, parse_body

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
JSON = {"Content-Type": "application/json"}
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    PLAIN | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@settings(deadline=None, max_examples=40)
@given(VALUES, st.booleans())
def test_what_json_holds_is_read(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_body(body) == value
    assert parse_body(b"\xef\xbb\xbf" + body) == value


@settings(deadline=None, max_examples=40)
@given(VALUES)
def test_marks_outside_texts_are_those_of_values(value: Any) -> None:
    body = json.dumps(value).encode()
    bare = b"".join(_without_strings(body))
    texts: list[Any] = []
    empty = json.dumps(_without_texts(value, texts)).encode()
    assert [bare.count(each) for each in (b"{", b"[", b":", b",")] == [
        empty.count(each) for each in (b"{", b"[", b":", b",")
    ]


def _without_texts(value: Any, names: list[Any]) -> Any:
    if isinstance(value, dict):
        return {str(number): _without_texts(each, names) for number, each in enumerate(value.values())}
    if isinstance(value, list):
        return [_without_texts(each, names) for each in value]
    return "" if isinstance(value, str) else value


WRONG = [
    (b'{"a": "\xe9"}', "invalid_json", "it is no UTF-8 at byte 7, 0xe9); send UTF-8"),
    (b'{"a": NaN}', "invalid_json", "NaN is no number of JSON"),
    (b'{"a": -Infinity}', "invalid_json", "-Infinity is no number of JSON"),
    (b'{"a": 1e999}', "invalid_json", "the number 1e999 is larger than a double can be"),
    (
        b'{"a": ' + b"7" * 5000 + b"}",
        "invalid_json",
        "a number has 5000 digits, 77777777777777777777..., and 100",
    ),
    (b"[" * 100_000, "too_deep", f"nested deeper than {MAX_DEPTH} objects and lists"),
    (b"[" * 150 + b"]" * 150, "too_deep", f"nested deeper than {MAX_DEPTH} objects and lists"),
    (b'{"a": ' * 150 + b"1" + b"}" * 150, "too_deep", "send a flatter one"),
    (b'{"a": [{"b": "\\ud800"}]}', "invalid_value", "a[0].b holds half a character (a lone surrogate)"),
    (b'{"a": {"\\udfff": 1}}', "invalid_value", "a lone surrogate"),
    (b'"\\ud800"', "invalid_value", "a text of the body holds half a character"),
    (b'{"a": 1', "invalid_json", "Expecting ',' delimiter at line 1, column 8); send one object"),
]


@pytest.mark.parametrize(("body", "code", "words"), WRONG)
def test_what_is_wrong_with_a_body(body: bytes, code: str, words: str) -> None:
    with pytest.raises(ApiError) as wrong:
        parse_body(body)
    assert (wrong.value.status_code, wrong.value.code) == (400, code)
    assert words in wrong.value.message


@pytest.mark.parametrize("body", [b'"\\ud83d\\ude00"', b'["\\\\ud800"]', b"[" * 100 + b"]" * 100])
def test_what_only_looks_wrong(body: bytes) -> None:
    assert parse_body(body) == json.loads(body)


def test_forms_of_bodies(serving: Any) -> None:
    """A type that is absent is taken for JSON; a coding or a charset is refused by its name."""
    body = json.dumps({"messages": USER, "max_tokens": 1}).encode()
    for headers, status, words in (
        ({}, 200, ""),
        ({"Content-Type": "application/json; charset=UTF-8"}, 200, ""),
        ({**JSON, "Content-Encoding": "identity"}, 200, ""),
        ({**JSON, "Content-Encoding": "gzip"}, 415, "Content-Encoding is 'gzip'; send the body as it is"),
        ({"Content-Type": "application/json; charset=latin-1"}, 415, "charset is 'latin-1'; send UTF-8"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "send application/json"),
    ):
        with serving.http as http:
            response = http.post(CHAT, content=body, headers=headers)
        assert response.status_code == status, response.text
        assert words in response.text


Body = tuple[str, Any, int, str]
"""Path and body of a request, the status and some words of the response."""


def bodies_of_many_values() -> dict[str, Body]:
    many = MAX_VALUES + 10
    return {
        "a list of numbers": (
            "/v1/completions",
            {"prompt": [5] * many},
            413,
            f"{MAX_VALUES} values are the limit",
        ),
        "many messages": (CHAT, {"messages": USER * (MAX_OBJECTS + 1)}, 413, f"{MAX_OBJECTS} objects"),
        "messages": (
            CHAT,
            {"messages": USER * 12_000},
            400,
            "there are 12000 messages, and 512 tokens is the limit",
        ),
        "wrong messages": (
            CHAT,
            {"messages": [{}] * 12_000},
            400,
            "values of the body are wrong, and 1000 are looked",
        ),
        "names": (
            CHAT,
            {"messages": USER, **{f"a{n}": n for n in range(50_000)}},
            400,
            "50000 values of the body",
        ),
        "metadata": (CHAT, {"messages": USER, "max_tokens": 1, "metadata": {"a": [0] * 100_000}}, 200, ""),
        "to tokens": ("/detokenize", {"tokens": [5] * 100_000}, 200, ""),
    }


def bodies_of_a_long_text() -> dict[str, Body]:
    text = "the capital of " * 200_000
    return {
        "a message": (
            CHAT,
            {"messages": [{"role": "user", "content": text}]},
            400,
            "tokens or more, and 512 is the",
        ),
        "a text": (
            "/v1/completions",
            {"prompt": text},
            400,
            "a token stands for 19 at most: it is 157895 tokens",
        ),
        "texts": (
            "/v1/embeddings",
            {"input": ["x", text]},
            400,
            "tokens or more, and 512 is the limit; shorten it",
        ),
        "llama.cpp's": ("/completion", {"prompt": [1, text]}, 400, "tokens or more, and 512 is the limit"),
        "to count": ("/tokenize", {"content": text}, 400, "tokens or more, and 65536 is the limit"),
        "a tool": (
            CHAT,
            {
                "messages": USER,
                "tools": [{"type": "function", "function": {"name": "f", "description": text}}],
            },
            400,
            "tokens or more, and 512 is the limit",
        ),
        "a guess": (
            CHAT,
            {"messages": USER, "prediction": {"type": "content", "content": text}},
            400,
            "or more",
        ),
    }


def large() -> dict[str, Body]:
    """Bodies near the limit."""
    return {**bodies_of_many_values(), **bodies_of_a_long_text()}


@pytest.mark.parametrize("name", large())
def test_a_large_body_blocks_no_other_request(serving: Any, name: str) -> None:
    """`/health` is answered before the server has computed for a second. These are seconds of the CPU: a busy
    machine stretches those on the clock."""
    path, body, status, words = large()[name]
    content, worst, is_over = json.dumps(body), [0.0], threading.Event()

    def look() -> None:
        with serving.http as http:
            while not is_over.is_set():
                began = time.process_time()
                assert http.get("/health").status_code == 200
                worst[0] = max(worst[0], time.process_time() - began)
                time.sleep(0.005)

    witness = threading.Thread(target=look)
    witness.start()
    with serving.http as http:
        response = http.post(path, content=content, headers=JSON)
    is_over.set()
    witness.join()
    assert response.status_code == status, response.text[:300]
    assert words in response.text
    assert worst[0] < 1
