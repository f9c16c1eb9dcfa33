"""What a token is in text and bytes, in every API: with a tokenizer as SentencePiece's, and of characters
that several tokens make. And values that a request gives to the chat template."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine import chat_template
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.service import ServerLimits
from tests.serve.conftest import PATIENCE_S, Serving, opened, start
from tests.spm import llama_2

TEMPLATE = (
    "{% for i in range(n | default(0)) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ more }}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
)
USER = [{"role": "user", "content": "the world"}]
CODE = 'the world:\n    return "é😀" '
HELD = r'the world:\n    return "é😀" '
GREEDY = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo with another tokenizer: its answers mean nothing."""
    folder = shutil.copytree(DEMO_FOLDER, tmp_path_factory.mktemp("spm") / "spm")
    llama_2().save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token_id": 1, "eos_token_id": 2}))
    return folder


@pytest.fixture(scope="module")
def spoken(folder: Path) -> Iterator[Serving]:
    serving, stop = start(ServerLimits(queue=4), lambda: opened(str(folder)))
    try:
        serving.wait_until(lambda: serving.server.started and serving.service.opened)
        yield serving
    finally:
        stop()


def post(serving: Serving, path: str, **body: Any) -> Any:
    with serving.http as http:
        return http.post(path, json=body).json()


def streamed(serving: Serving, path: str, **body: Any) -> list[Any]:
    with serving.http as http:
        lines = http.post(path, json={**body, "stream": True}).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def bytes_of(tokens: Sequence[Any]) -> bytes:
    return bytes(byte for each in tokens for byte in each["bytes"])


def test_a_completion_continues_its_prompt_with_all_whitespace(spoken: Serving) -> None:
    for prompt, answer in [("the world", " is a tile"), ("x:", "    return x"), (CODE[:5], CODE[5:])]:
        asked: dict[str, Any] = {"prompt": prompt, "regex": answer, **GREEDY}
        assert post(spoken, "/v1/completions", **asked)["choices"][0]["text"] == answer
        assert post(spoken, "/v1/completions", **asked, echo=True)["choices"][0]["text"] == prompt + answer
        events = streamed(spoken, "/v1/completions", **asked)
        assert "".join(each["choices"][0]["text"] for each in events) == answer


@pytest.mark.parametrize("streams", [False, True])
def test_tokens_of_an_echo_join_to_its_text_and_offsets_point_into_it(spoken: Serving, streams: bool) -> None:
    asked = {"prompt": CODE[:5], "regex": HELD[5:], "echo": True, "logprobs": 4, **GREEDY}
    made = (
        streamed(spoken, "/v1/completions", **asked)
        if streams
        else [post(spoken, "/v1/completions", **asked)]
    )
    choices = [each["choices"][0] for each in made]
    columns = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens, offsets, tops = (
        [one for each in columns for one in each[name]] for name in ("tokens", "text_offset", "top_logprobs")
    )
    assert "".join(choice["text"] for choice in choices) == "".join(tokens) == CODE
    assert [CODE[at : at + len(token)] for at, token in zip(offsets, tokens, strict=True)] == tokens
    assert tokens[0] == ""  # what begins a text has none
    assert [len(top) for top in tops] == [0, *[4] * (len(tokens) - 1)]


def test_bytes_of_a_chats_tokens_are_its_text(spoken: Serving) -> None:
    answer = " " + HELD
    asked = {"messages": USER, "regex": answer, "logprobs": True, "top_logprobs": 5, **GREEDY}
    made = post(spoken, "/v1/chat/completions", **asked)["choices"][0]
    text, content = made["message"]["content"], made["logprobs"]["content"]
    assert text == " " + CODE == "".join(each["token"] for each in content)
    assert bytes_of(content) == text.encode()
    assert [240] in [each["bytes"] for each in content]
    events = [each["choices"][0] for each in streamed(spoken, "/v1/chat/completions", **asked)]
    assert "".join(each["delta"].get("content") or "" for each in events) == text
    for event in events:
        own = "".join(each["token"] for each in (event["logprobs"] or {}).get("content", ()))
        assert own == (event["delta"].get("content") or "")


def test_every_api_gives_the_same_answer(spoken: Serving, folder: Path) -> None:
    """The text of all tokens, less that of the prompt."""
    tokenizer = Tokenizer(llama_2())
    prompt = post(spoken, "/tokenize", messages=USER)["tokens"]
    settings = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    made = post(spoken, "/completion", prompt=prompt, n_predict=24, return_tokens=True, n_probs=2, **settings)
    wanted = tokenizer.decode([*prompt, *made["tokens"]])[len(tokenizer.decode(prompt)) :]
    assert made["content"] == wanted
    marks = made["completion_probabilities"]
    assert "".join(mark["token"] for mark in marks) == wanted
    assert [mark["id"] for mark in marks] == made["tokens"]
    asked = {"messages": USER, "max_tokens": 24, "temperature": 0}
    chat = post(spoken, "/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    message = post(spoken, "/v1/messages", **asked)["content"][0]["text"]
    response = post(spoken, "/v1/responses", input="the world", max_output_tokens=24, temperature=0)
    assert chat == message == response["output"][0]["content"][0]["text"] == wanted


def test_pieces_of_a_text(spoken: Serving) -> None:
    tokens = post(spoken, "/tokenize", content=CODE, with_pieces=True, add_special=True)["tokens"]
    pieces = [each["piece"] for each in tokens]
    in_bytes = [each.encode() if isinstance(each, str) else bytes(each) for each in pieces]
    assert b"".join(in_bytes) == CODE.encode()
    assert any(isinstance(each, list) for each in pieces)  # parts of characters, as in llama.cpp's API
    assert bytes_of(tokens) == CODE.encode()
    assert post(spoken, "/detokenize", tokens=[each["id"] for each in tokens])["content"] == CODE


def test_parts_of_characters_and_special_tokens(serving: Serving) -> None:
    """Of the demo, whose tokens are bytes: as many of the likeliest as were asked for."""
    end = next(iter(serving.service.require_loaded().session.model.config.eos_token_ids))
    asked = {"regex": "😀é日本!", "temperature": 0, "max_tokens": 40, "logit_bias": {str(end): 0}}
    made = post(serving, "/v1/chat/completions", messages=USER, logprobs=True, top_logprobs=5, **asked)
    content = made["choices"][0]["logprobs"]["content"]
    assert content[0]["bytes"] == [240, 159]
    assert bytes_of(content).decode() == "😀é日本!"
    assert all(each["bytes"] for one in content for each in one["top_logprobs"])
    columns = post(serving, "/v1/completions", prompt="say", logprobs=5, **asked)["choices"][0]["logprobs"]
    assert "".join(columns["tokens"]) == "😀é日本!"
    assert max(columns["text_offset"]) == 4
    assert [len(top) for top in columns["top_logprobs"]] == [5] * len(columns["tokens"])
    assert any(name.startswith("bytes:\\x") for top in columns["top_logprobs"] for name in top)
    answered = post(
        serving, "/v1/chat/completions", messages=USER, logprobs=True, top_logprobs=20, temperature=0
    )
    names = {
        one["token"] for each in answered["choices"][0]["logprobs"]["content"] for one in each["top_logprobs"]
    }
    assert "<|eot_id|>" in names


def test_an_answer_cut_inside_a_character_has_its_last_tokens(serving: Serving) -> None:
    asked = {"prompt": "say", "regex": "😀", "temperature": 0, "max_tokens": 1, "logprobs": 2}
    made = post(serving, "/v1/completions", **asked)["choices"][0]
    assert made["text"] == "\N{REPLACEMENT CHARACTER}" == "".join(made["logprobs"]["tokens"])
    assert len(made["logprobs"]["top_logprobs"][0]) == 2


def test_garbage_does_not_hold_a_stream(serving: Serving) -> None:
    """Token 127 is the byte 0xC3, which begins a character: not before another of them."""
    asked = {"messages": USER, "temperature": 0, "max_tokens": 20, "logit_bias": {"127": 100}}
    events = streamed(serving, "/v1/chat/completions", **asked)
    texts = [text for each in events if (text := each["choices"][0]["delta"].get("content"))]
    assert "".join(texts) == "\N{REPLACEMENT CHARACTER}" * 20
    assert len(texts) > 10
    stopped = {**asked, "stop": "\N{REPLACEMENT CHARACTER}" * 3}
    assert post(serving, "/v1/chat/completions", **stopped)["usage"]["completion_tokens"] == 4


OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def test_values_for_the_chat_template(spoken: Serving) -> None:
    plain, thought = (post(spoken, "/apply-template", messages=USER, **more)["prompt"] for more in ({}, OFF))
    assert thought == plain + "<think></think>"
    counts = [
        [
            post(spoken, "/tokenize", messages=USER, **more)["count"],
            post(spoken, "/v1/messages/count_tokens", messages=USER, **more)["input_tokens"],
            post(spoken, "/v1/chat/completions/input_tokens", messages=USER, **more)["input_tokens"],
            post(spoken, "/v1/responses/input_tokens", input="the world", **more)["input_tokens"],
            post(spoken, "/v1/chat/completions", messages=USER, max_tokens=1, **more)["usage"][
                "prompt_tokens"
            ],
            post(spoken, "/v1/responses", input="the world", max_output_tokens=1, **more)["usage"][
                "input_tokens"
            ],
        ]
        for more in ({}, OFF)
    ]
    assert len({*counts[0]}) == len({*counts[1]}) == 1
    assert counts[1][0] > counts[0][0]
    response = post(
        spoken, "/apply-template", messages=USER, chat_template_kwargs={"more": "</s>é", "unknown": [1]}
    )
    assert response["prompt"] == plain + "</s>é"


def test_an_endless_template_blocks_no_other_chat(spoken: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not over before the other chat is answered, however busy the machine."""
    begun, is_answered, real = threading.Event(), threading.Event(), chat_template.RENDERING.call

    def call(function: str, template: Any, values: dict[str, Any]) -> Any:
        if "n" in values:
            begun.set()
            assert is_answered.wait(PATIENCE_S)
        return real(function, template, values)

    monkeypatch.setattr(chat_template.RENDERING, "call", call)
    endlessly: dict[str, Any] = {"messages": USER, "chat_template_kwargs": {"n": 90000}}
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(post, spoken, "/v1/chat/completions", **endlessly)
        assert begun.wait(PATIENCE_S)
        assert post(spoken, "/v1/chat/completions", messages=USER, max_tokens=1)["choices"]
        is_answered.set()
        message = refused.result()["error"]["message"]
    assert "refuses this conversation (it took more than 2 s of processor time); " in message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/apply-template", "/tokenize"])
def test_values_that_the_template_has_anyway(spoken: Serving, path: str) -> None:
    more = {"max_tokens": 1} if path.startswith("/v1") else {}
    with spoken.http as http:
        for name in ("messages", "tools", "bos_token", "add_generation_prompt"):
            given = {"chat_template_kwargs": {name: 1}, "messages": USER, **more}
            refused = http.post(path, json=given)
            assert refused.status_code == 400
            assert f"{name} cannot be given to the chat template" in refused.json()["error"]["message"]
    wrong = {"messages": USER, "chat_template_kwargs": {"more": "\ud800"}, **more}
    with spoken.http as http:
        refused = http.post(path, content=json.dumps(wrong), headers={"content-type": "application/json"})
    assert refused.status_code == 400
