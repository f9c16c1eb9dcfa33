"""llama.cpp's own API: whole and as a stream, with its settings, its counts and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerie import Model
from aerie.engine.sampler import Sampler
from aerie.serve.output_processor import OutputProcessor, OutputRequest

FRANCE = "What is the capital of France?"
PROMPT = "The capital of"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "n_predict": 6}


def post(serving: Any, path: str = "/completion", **fields: Any) -> Any:
    with serving.http as http:
        done = http.post(path, json=fields)
    assert done.status_code == 200, done.text
    return done.json()


def events(serving: Any, path: str = "/completion", **fields: Any) -> list[dict[str, Any]]:
    with serving.http as http:
        lines = http.post(path, json={**fields, "stream": True}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_a_completion_is_what_the_model_alone_says(serving: Any, alone: Model) -> None:
    made = post(serving, **GREEDY, return_tokens=True)
    own = alone.generate(PROMPT, 6, raw=True)
    assert (made["content"], made["tokens"]) == (own.text, [*own.token_ids])
    assert (made["tokens_predicted"], made["tokens_evaluated"]) == (6, len(own.prompt_token_ids))
    assert (made["stop"], made["stop_type"], made["stopping_word"]) == (True, "limit", "")
    assert (made["truncated"], made["has_new_line"], made["prompt"]) == (False, False, PROMPT)
    assert made["generation_settings"]["n_predict"] == 6
    times = made["timings"]
    assert (times["prompt_n"] + times["cache_n"], times["predicted_n"]) == (len(own.prompt_token_ids), 6)
    assert times["predicted_per_token_ms"] == pytest.approx(times["predicted_ms"] / 5)
    assert 0 < times["prompt_ms"] < 1e4
    assert post(serving, **GREEDY)["tokens"] == []


def test_a_stream_is_the_whole_in_parts(serving: Any) -> None:
    whole = post(serving, **GREEDY, return_tokens=True)
    *parts, last = events(serving, **GREEDY, timings_per_token=True)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert [part["timings"]["predicted_n"] for part in parts] == [1, 2, 3, 4, 5, 6]
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert last["tokens_predicted"] == 6


def test_how_an_answer_ends(serving: Any) -> None:
    chat = post(serving, "/apply-template", messages=[{"role": "user", "content": FRANCE}])["prompt"]
    made = post(serving, prompt=chat, temperature=0)
    assert (made["content"], made["stop_type"]) == ("The capital of France is Paris.", "eos")
    read = post(serving, "/tokenize", messages=[{"role": "user", "content": FRANCE}])["tokens"]
    assert made["tokens_evaluated"] == len(read)  # control tokens are such, and BOS is there once
    made = post(serving, prompt=chat, temperature=0, stop=["France"])
    assert (made["content"], made["stop_type"], made["stopping_word"]) == (
        "The capital of ",
        "word",
        "France",
    )
    assert post(serving, prompt=chat, temperature=0, ignore_eos=True, n_predict=30)["tokens_predicted"] == 30


def test_a_prompt_that_is_only_read(serving: Any) -> None:
    made = post(serving, prompt=PROMPT, n_predict=0)
    assert (made["content"], made["tokens_predicted"], made["tokens"]) == ("", 0, [])
    (last,) = events(serving, prompt=PROMPT, n_predict=0)
    assert (last["stop"], last["tokens_predicted"]) == (True, 0)


def test_several_prompts_and_ids(serving: Any) -> None:
    ids = post(serving, "/tokenize", content=PROMPT, add_special=True)["tokens"]
    settings: dict[str, Any] = {"temperature": 0, "n_predict": 4}
    one = post(serving, prompt=PROMPT, **settings)["content"]
    for prompt in (ids, {"prompt_string": PROMPT}, [*ids[:-1], " of"], [ids[0], "The capital of"]):
        assert post(serving, prompt=prompt, **settings)["content"] == one
    several = post(serving, prompt=[PROMPT, ids, {"prompt_string": PROMPT}], **settings)
    assert [(made["index"], made["content"]) for made in several] == [(0, one), (1, one), (2, one)]
    drawn = post(serving, prompt=PROMPT, n_cmpl=2, seed=3, n_predict=3)
    assert [made["index"] for made in drawn] == [0, 1]


def test_how_likely_tokens_are(serving: Any) -> None:
    made = post(serving, **GREEDY, n_probs=3)["completion_probabilities"]
    assert len(made) == 6
    for mark in made:
        assert mark["logprob"] == mark["top_logprobs"][0]["logprob"] <= 0
        assert len(mark["top_logprobs"]) == 3
        assert mark["bytes"] == list(mark["token"].encode())
    drawn: dict[str, Any] = {
        "prompt": "The",
        "temperature": 2.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "n_predict": 2,
        "seed": 1,
    }
    (one, _) = post(serving, **drawn, top_k=2, n_probs=3, post_sampling_probs=True)[
        "completion_probabilities"
    ]
    assert sum(each["prob"] for each in one["top_probs"]) == pytest.approx(1)
    assert one["prob"] in [each["prob"] for each in one["top_probs"]]
    *parts, _ = events(serving, **GREEDY, n_probs=3)
    assert [part["completion_probabilities"][0]["id"] for part in parts] == [mark["id"] for mark in made]


def test_biases_by_ids_and_texts(serving: Any) -> None:
    first = post(serving, **GREEDY, return_tokens=True)["tokens"][0]
    text = post(serving, "/detokenize", tokens=[first])["content"]
    for bias in ([[first, False]], {str(first): -100}, [[text, -100.0]], {text: False}):
        assert first not in post(serving, **GREEDY, return_tokens=True, logit_bias=bias)["tokens"]


def test_forms(serving: Any) -> None:
    five: dict[str, Any] = {"temperature": 1.5, "grammar": 'root ::= "a"{5,5}'}
    assert post(serving, prompt="The", **five)["content"] == "aaaaa"
    assert post(serving, prompt="The", json_schema={"const": 42})["content"] == "42"
    chat = {"messages": [{"role": "user", "content": FRANCE}]}
    for form, text in ((five, "aaaaa"), ({"json_schema": {"const": "x"}}, '"x"')):
        made = post(serving, "/v1/chat/completions", **chat, **form)
        assert made["choices"][0]["message"]["content"] == text


def test_fields_that_are_picked(serving: Any) -> None:
    made = post(serving, **GREEDY, response_fields=["content", "generation_settings/n_predict", "no/such"])
    assert made == {"content": made["content"], "generation_settings/n_predict": 6}


def test_timings_of_a_chat(serving: Any) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0}
    made = post(serving, "/v1/chat/completions", **chat)
    assert made["timings"]["predicted_n"] == made["usage"]["completion_tokens"]
    begun, *parts, last = events(serving, "/v1/chat/completions", **chat)
    assert "timings" not in begun
    assert not any("timings" in part for part in parts)
    assert last["timings"]["predicted_n"] == made["timings"]["predicted_n"]
    chat["stream_options"] = {"include_usage": True}
    begun, *parts = events(serving, "/v1/chat/completions", **chat, timings_per_token=True)
    assert "timings" not in begun
    assert all(part["timings"]["predicted_n"] for part in parts)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_how_much_of_a_prompt_is_read(serving: Any, path: str) -> None:
    text = f"{path} " + "one two three " * 40
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "return_progress": True}
    asked |= {"prompt": text} if path == "/completion" else {"messages": [{"role": "user", "content": text}]}
    for is_known in (False, True):
        every = events(serving, path, **asked)
        progress = [each["prompt_progress"] for each in every if "prompt_progress" in each]
        first, *_, last = progress
        processed = [each["processed"] for each in progress]
        assert processed == sorted({*processed})
        assert every[: len(progress)] == [each for each in every if "prompt_progress" in each]
        assert (first["cache"], last["cache"]) == (first["processed"], first["processed"])
        assert (first["processed"] >= 64) == is_known
        assert last["processed"] == last["total"] == first["total"] > 100
        assert 0 == first["time_ms"] < last["time_ms"]
        assert len(every) > len(progress) + 1
    with serving.http as http:
        whole = http.post(path, json=asked)
    assert (whole.status_code, "prompt_progress" in whole.text) == (200, False)


def test_a_prompt_that_is_read_in_steps(alone: Model) -> None:
    tokenizer = alone._open().tokenizer
    request = SimpleNamespace(prompt=range(200), prompt_ids=range(200), token_ids=[], prefilled_tokens=0)
    request.cached_tokens, request.is_finished, request.phase_times_s = 0, False, (0.0, 0.0)
    ask = OutputRequest(range(200), 5, Sampler(temperature=0), shows_progress=True)
    answer = OutputProcessor(ask, cast(Any, request), Sampler(temperature=0), tokenizer, ())
    assert answer.next_delta() is None
    processed = []
    for request.prefilled_tokens, request.cached_tokens in ((100, 64), (100, 64), (150, 64)):
        piece = answer.next_delta()
        processed += [to for to, _ in piece.progress] if piece else []
    request.token_ids.append(5)
    piece = answer.next_delta()
    assert piece
    assert [*processed, *(to for to, _ in piece.progress)] == [64, 100, 150, 200]
    request.token_ids.append(6)
    assert not (later := answer.next_delta()) or not later.progress


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "prompt is missing"),
        ({"prompt": []}, "at least 1 item"),
        ({"prompt": [-1]}, "greater than or equal to 0"),
        ({"prompt": [1500]}, "1500"),
        ({"prompt": "x", "n_predict": -2}, "greater than or equal to -1"),
        ({"prompt": "x", "n_probs": 21}, "less than or equal to 20"),
        ({"prompt": "x", "mirostat": 2}, "mirostat is 2: Mirostat is not built; leave it out"),
        ({"prompt": "x", "lora": [{"id": 0}]}, "adapters are not built; leave it out"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["iVBO"]}}, "prompts are text; leave it out"),
        ({"prompt": "x", "grammar": "root ::= (", "json_schema": {}}, "are two forms; give one of them"),
        ({"prompt": "x", "grammar": "root ::= ("}, "the grammar cannot be taken: "),
        ({"prompt": "x", "repeat_last_n": 64, "repeat_penalty": 1.1}, "the whole text here; give -1"),
        ({"prompt": ["x"] * 33}, "33 answers were requested, and 32 is the limit; send several requests"),
        ({"prompt": "x", "logit_bias": [[5, "much"]]}, "logit_bias has 'much'; give a number, or false"),
        ({"prompt": "x", "logit_bias": {"a": ""}}, "logit_bias has ''; give a number, or false"),
        ({"prompt": "x", "logit_bias": [[5, 101]]}, "it must be from -100 to 100"),
        ({"prompt": "x", "speed": 1}, "speed is not a field that is taken here; leave it out"),
    ],
)
def test_what_is_refused(serving: Any, fields: dict[str, Any], message: str) -> None:
    with serving.http as http:
        done = http.post("/completion", json=fields)
    assert done.status_code == 400
    assert message in done.json()["error"]["message"]


def test_two_forms_of_a_chat(serving: Any) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= [a]", "json_schema": {}}
    with serving.http as http:
        done = http.post("/v1/chat/completions", json=asked)
    assert "give one of response_format, json_schema, grammar and regex" in done.json()["error"]["message"]


def test_other_names_of_addresses(serving: Any) -> None:
    chat = {"messages": [{"role": "user", "content": FRANCE}]}
    with serving.http as http:
        for path in ("/v1/models", "/models", "/api/v1/models"):
            (model,) = http.get(path).json()["data"]
            assert (model["id"], model["meta"]["n_vocab"], model["max_model_len"]) == ("demo", 1500, 512)
        assert http.get("/v1/health").json()["status"] == http.get("/api/v1/health").json()["status"] == "ok"
        props = http.get("/props").json()
        assert (props["model_path"], props["default_generation_settings"]["n_ctx"]) == ("demo", 512)
        assert props["default_generation_settings"]["params"]["temperature"] == 0.8
        counted = http.post("/chat/completions/input_tokens", json=chat).json()
        made = http.post("/chat/completions", json=chat).json()
        assert made["usage"]["prompt_tokens"] == counted["input_tokens"]
        assert http.post("/completions", json=GREEDY).json()["content"]
        assert http.post("/api/v1/tokenize", json={"content": "x"}).json()["count"] == 1
        assert len(http.get("/api/v1/slots").json()) == 32
        assert http.post("/chat/completions", json={**chat, "repeat_penalty": 1.5}).status_code == 200
        assert http.post("/responses", json={"input": "x", "max_output_tokens": 1}).status_code == 200
        assert http.post("/embeddings", json={"input": "x"}).status_code == 200
        counts = http.get("/metrics").text
    assert 'path="/v1/models"' in counts
    assert 'path="/models"' not in counts


def test_other_names_of_the_model(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.service, "aliases", ("gpt-4o",))
    assert post(serving, **GREEDY, model="gpt-4o")["model"] == "demo"
    with serving.http as http:
        assert http.get("/v1/models").json()["data"][0]["aliases"] == ["gpt-4o"]
        assert http.post("/completion", json={**GREEDY, "model": "gpt-5"}).status_code == 404
