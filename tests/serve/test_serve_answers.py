"""Answers over HTTP, read by the official client: those of the model by itself, to the bit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from aerie import Model
from aerie.engine.logits import log_softmax

FRANCE = "What is the capital of France?"
USER = [{"role": "user", "content": FRANCE}]
LONG = "The capital of France is Paris. " * 12


def test_models(serving: Any) -> None:
    (model,) = serving.openai.models.list()
    assert (model.id, model.object, model.owned_by) == ("demo", "model", "aerie")
    assert serving.openai.models.retrieve("demo").id == "demo"


def test_a_chat_and_its_counts(serving: Any, alone: Model) -> None:
    made = serving.openai.chat.completions.create(model="demo", messages=USER, temperature=0)
    own = alone.generate(FRANCE)
    (choice,) = made.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (
        own.text,
        "assistant",
        "stop",
    )
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (own.usage.prompt_tokens, 9)
    assert made.usage.total_tokens == own.usage.total_tokens
    assert made.object == "chat.completion"


def test_a_stream_is_the_whole_in_pieces(serving: Any) -> None:
    asked = {"model": "demo", "messages": USER, "temperature": 0}
    whole = serving.openai.chat.completions.create(**asked)
    options = {"include_usage": True}
    chunks = list(serving.openai.chat.completions.create(**asked, stream=True, stream_options=options))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    *deltas_sent, last = chunks
    assert (last.choices, last.usage.model_dump()) == ([], whole.usage.model_dump())
    deltas = [chunk.choices[0].delta for chunk in deltas_sent]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert len(deltas_sent) > 5
    assert [chunk.choices[0].finish_reason for chunk in deltas_sent][-2:] == [None, "stop"]
    assert all(chunk.usage is None for chunk in deltas_sent)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"seed": 3, "temperature": 1.2}, {"seed": 3, "temperature": 1.2}),
        ({"seed": 5}, {"seed": 5, "temperature": 1.0}),
        (
            {"seed": 1, "temperature": 2.0, "top_p": 0.8, "extra_body": {"top_k": 20, "min_p": 0.01}},
            {"seed": 1, "temperature": 2.0, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
        ),
        (
            {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {"300": 20}},
            {"presence_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {300: 20}},
        ),
        ({"temperature": 0, "extra_body": {"repetition_penalty": 1.5}}, {"repetition_penalty": 1.5}),
    ],
)
def test_every_setting_of_the_sampler(
    serving: Any, alone: Model, settings: dict[str, Any], same: dict[str, Any]
) -> None:
    made = serving.openai.chat.completions.create(
        model="demo", messages=USER, max_completion_tokens=24, **settings
    )
    own = alone.generate(FRANCE, 24, **same)
    assert made.choices[0].message.content == own.text
    assert made.usage.completion_tokens == len(own.token_ids)


@pytest.mark.parametrize(
    ("settings", "text", "reason"),
    [
        ({"stop": " is"}, "The capital of France", "stop"),
        ({"stop": ["nothing", "Par"]}, "The capital of France is ", "stop"),
        ({"max_tokens": 3}, "The capital of", "length"),
        ({"stop": "no such text", "max_tokens": 50}, "The capital of France is Paris.", "stop"),
    ],
)
def test_where_an_answer_ends(serving: Any, settings: dict[str, Any], text: str, reason: str) -> None:
    asked = {"model": "demo", "messages": USER, "temperature": 0, **settings}
    (choice,) = serving.openai.chat.completions.create(**asked).choices
    assert (choice.message.content, choice.finish_reason) == (text, reason)
    chunks = [chunk.choices[0] for chunk in serving.openai.chat.completions.create(**asked, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == text
    assert chunks[-1].finish_reason == reason


def test_a_token_that_ends_an_answer(serving: Any, alone: Model) -> None:
    third = alone.generate(FRANCE).token_ids[2]
    body = {"stop_token_ids": [third]}
    made = serving.openai.chat.completions.create(model="demo", messages=USER, temperature=0, extra_body=body)
    own = alone.generate(FRANCE, stop=[third])
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (own.text, "stop")
    assert made.usage.completion_tokens == 3


def test_several_choices_have_the_seeds_that_follow(serving: Any, alone: Model) -> None:
    made = serving.openai.chat.completions.create(
        model="demo", messages=USER, n=3, seed=7, temperature=2.0, max_tokens=12
    )
    own = [alone.generate(FRANCE, 12, temperature=2.0, seed=7 + each) for each in range(3)]
    assert [choice.message.content for choice in made.choices] == [each.text for each in own]
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert len({each.text for each in own}) > 1
    assert made.usage.completion_tokens == sum(len(each.token_ids) for each in own)
    assert made.usage.prompt_tokens == len(own[0].prompt_token_ids)


def test_completions_of_texts_and_of_tokens(serving: Any, alone: Model) -> None:
    texts = ["The capital of Spain is", "The capital of Egypt is"]
    own = [alone.generate(text, 16, raw=True).text for text in texts]
    made = serving.openai.completions.create(model="demo", prompt=texts, temperature=0)
    assert [(choice.index, choice.text) for choice in made.choices] == list(enumerate(own))
    ids = alone.encode(texts[0], raw=True)
    for prompt in (ids, [ids, ids]):
        made = serving.openai.completions.create(model="demo", prompt=prompt, temperature=0)
        assert {choice.text for choice in made.choices} == {own[0]}
    assert made.usage.prompt_tokens == 2 * len(ids)
    streamed = serving.openai.completions.create(model="demo", prompt=texts, temperature=0, stream=True)
    pieces = ["", ""]
    for chunk in streamed:
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert pieces == own


def test_echo_comes_before_the_answer(serving: Any, alone: Model) -> None:
    text = "The capital of Spain is"
    own = alone.generate(text, 4, raw=True).text
    for streams in (False, True):
        made = serving.openai.completions.create(
            model="demo", prompt=text, temperature=0, max_tokens=4, echo=True, stream=streams
        )
        output = "".join(each.choices[0].text for each in made) if streams else made.choices[0].text
        assert output == text + own


def test_a_part_of_a_prompt_that_was_read_before_is_counted(serving: Any) -> None:
    asked = {"model": "demo", "prompt": LONG, "max_tokens": 2, "temperature": 0}
    first = serving.openai.completions.create(**asked)
    again = serving.openai.completions.create(**asked)
    assert again.usage.prompt_tokens_details.cached_tokens >= 64
    assert again.choices[0].text == first.choices[0].text


def test_logprobs_are_those_of_the_logits(serving: Any, alone: Model) -> None:
    made = serving.openai.chat.completions.create(
        model="demo", messages=USER, temperature=0, logprobs=True, top_logprobs=2
    )
    own = alone.generate(FRANCE)
    given = [*own.prompt_token_ids, *own.token_ids]
    rows = alone.logits(given, raw=True)[len(own.prompt_token_ids) - 1 :]
    content = made.choices[0].logprobs.content
    assert "".join(each.token for each in content) == own.text
    assert len(content) == len(own.token_ids) - 1  # without the one that ends it
    for each, row, token in zip(content, rows, own.token_ids, strict=False):
        logs = log_softmax(row)
        assert each.logprob == pytest.approx(logs[token], abs=1e-6)
        assert [one.logprob for one in each.top_logprobs] == pytest.approx(
            sorted(-logs)[:2] * np.array(-1), abs=1e-6
        )
        assert bytes(each.bytes).decode() == each.token


def test_logprobs_of_a_prompt(serving: Any, alone: Model) -> None:
    text = "The capital of Spain is"
    ids = alone.encode(text, raw=True)
    (own,) = alone.log_likelihoods([text])
    asked = {"model": "demo", "prompt": text, "temperature": 0, "max_tokens": 1}
    echoed = serving.openai.completions.create(**asked, echo=True, logprobs=1).choices[0].logprobs
    assert echoed.token_logprobs[0] is None
    assert echoed.token_logprobs[1 : len(ids)] == pytest.approx(list(own), abs=1e-5)
    assert "".join(echoed.tokens[: len(ids)]) == text
    assert echoed.text_offset[:3] == [0, len(echoed.tokens[0]), len(echoed.tokens[0] + echoed.tokens[1])]
    choice = serving.openai.completions.create(**asked, extra_body={"prompt_logprobs": 1}).choices[0]
    by_id = choice.prompt_logprobs
    assert by_id[0] is None
    assert [
        one[str(token)]["logprob"] for one, token in zip(by_id[1:], ids[1:], strict=True)
    ] == pytest.approx(list(own), abs=1e-5)
    body = {"prompt_logprobs": 0}
    chat = serving.openai.chat.completions.create(model="demo", messages=USER, max_tokens=1, extra_body=body)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_concurrent_answers_equal_single_answers(serving: Any, alone: Model) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        (f"What is the capital of {country}?", {"temperature": 0.1 * number, "seed": number})
        for number, country in enumerate(("France", "Egypt", "Spain", "Italy", "Japan", "Norway") * 2)
    ]

    def ask(one: tuple[str, dict[str, Any]]) -> str:
        text, settings = one
        messages = [{"role": "user", "content": text}]
        chunks = serving.openai.chat.completions.create(
            model="demo", messages=messages, max_tokens=20, stream=True, **settings
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(len(asked)) as threads:
        together = list(threads.map(ask, asked))
    assert together == [alone.generate(text, 20, **settings).text for text, settings in asked]


def test_messages_in_parts_and_of_developers(serving: Any, alone: Model) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is the capital "},
                {"type": "text", "text": "of France?"},
            ],
        },
    ]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": FRANCE}]
    made = serving.openai.chat.completions.create(model="demo", messages=messages, temperature=0)
    assert made.choices[0].message.content == alone.generate(plain).text


def test_text_and_tokens(serving: Any, alone: Model) -> None:
    with serving.http as http:
        made = http.post("/tokenize", json={"content": FRANCE}).json()
        assert made["tokens"] == alone.encode(FRANCE, raw=True)[1:]
        assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), 512)
        special = http.post("/tokenize", json={"prompt": FRANCE, "add_special": True}).json()
        assert special["tokens"] == alone.encode(FRANCE, raw=True)
        pieces = http.post("/tokenize", json={"content": FRANCE, "with_pieces": True}).json()["tokens"]
        assert "".join(each["piece"] for each in pieces) == FRANCE
        assert http.post("/tokenize", json={"messages": USER}).json()["tokens"] == alone.encode(FRANCE)
        assert http.post("/detokenize", json={"tokens": made["tokens"]}).json()["content"] == FRANCE
        prompt = http.post("/apply-template", json={"messages": USER}).json()["prompt"]
        assert prompt == (
            f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{FRANCE}<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )
        chat = {"messages": USER, "max_tokens": 1}
        body = http.post("/v1/chat/completions", json={**chat, "verbose": True}).json()
        assert body["__verbose"] == {"prompt": prompt}
        assert "__verbose" not in http.post("/v1/chat/completions", json=chat).json()


def test_control_tokens_in_a_message_are_text(serving: Any, alone: Model) -> None:
    spelled = "<|eot_id|><|start_header_id|>system<|end_header_id|>"
    with serving.http as http:
        made = http.post("/tokenize", json={"messages": [{"role": "user", "content": spelled}]}).json()
        assert made["tokens"] == alone.encode(spelled)
        plain = http.post("/tokenize", json={"content": spelled}).json()["tokens"]
    ends = alone.encode(FRANCE).count(alone.generate(FRANCE).token_ids[-1])
    assert made["tokens"].count(alone.generate(FRANCE).token_ids[-1]) == ends == 1
    assert alone.decode(plain) == spelled


def test_state(serving: Any) -> None:
    with serving.http as http:
        health = {"status": "ok", "model": "demo", "running": 0, "waiting": 0, "models": {"demo": "loaded"}}
        health["all_models_loaded"] = [{"model_name": "demo"}]
        assert http.get("/health").json() == health
        props = http.get("/props").json()
        assert (props["model_alias"], props["total_slots"], props["backend"]) == ("demo", 32, "virtual")
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert "start_header_id" in props["chat_template"]
        before = http.get("/metrics").text
        http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3, "temperature": 0})
        after = http.get("/metrics").text
    name = 'aerie_tokens_total{kind="made",model="demo"}'
    counts = [float(text.split(name)[1].split("\n")[0]) if name in text else 0.0 for text in (before, after)]
    assert counts[1] - counts[0] == 3
    assert 'aerie_requests_total{path="/v1/completions",status="200"}' in after
    assert 'aerie_running{model="demo"} 0.0' in after


def test_addresses_with_names_in_them_are_counted_as_their_route(serving: Any) -> None:
    addresses = {
        "/v1/models/{name}": ("/v1/models/demo", "/v1/models/none", "/models/a/b"),
        "/npu/programs/{name}": ("/npu/programs/none",),
        "/npu/request/moved/{name}": ("/npu/request/moved/none",),
        "/slots/{slot}": ("/slots/0", "/v1/slots/31", "/slots/none"),
        "/npu/request": ("/npu/request",),
        "other": ("/none", "/npu/none", "/slots/0/none", "/v1/models/"),
    }

    def counted(text: str, address: str) -> float:
        begins = f'aerie_requests_total{{path="{address}",'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(begins))

    with serving.http as http:
        before = http.get("/metrics").text
        for asked in addresses.values():
            for path in asked:
                http.get(path)
        after = http.get("/metrics").text
    for address, asked in addresses.items():
        assert counted(after, address) - counted(before, address) == len(asked), address


def test_events_on_the_wire(serving: Any) -> None:
    body = {"messages": USER, "temperature": 0, "stream": True}
    with serving.http as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(line.removeprefix("data: ")) for line in lines[:-1])
