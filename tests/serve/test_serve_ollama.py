"""Ollama's API: chats and prompts as lines of JSON and whole, embeddings, models, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import pytest

from aerie import Model
from aerie.engine.call_reader import ToolCallDelta
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import error_event
from aerie.serve.metrics import RequestLog
from aerie.serve.model_middleware import StreamedResponse
from aerie.serve.ollama_fields import OllamaChatRequest
from aerie.serve.ollama_format import OllamaWriter
from aerie.serve.output_processor import LENGTH, FinishInfo, OutputDelta

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
USER: Any = [{"role": "user", "content": FRANCE}]
GREEDY: dict[str, Any] = {"temperature": 0}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris"]}},
            "required": ["city"],
        },
    },
}


CALL = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}


def post(serving: Any, path: str, status: int = 200, **fields: Any) -> Any:
    with serving.http as http:
        done = http.post(path, json={"model": "demo", **fields})
    assert done.status_code == status, done.text
    return done.json()


def lines(serving: Any, path: str, **fields: Any) -> list[dict[str, Any]]:
    with serving.http as http:
        done = http.post(path, json={"model": "demo", **fields})
    assert done.status_code == 200, done.text
    assert done.headers["content-type"].startswith("application/x-ndjson")
    assert done.text.endswith("\n")
    return [json.loads(line) for line in done.text.splitlines()]


def test_a_chat_is_what_the_model_alone_says(serving: Any, alone: Model) -> None:
    made = post(serving, "/api/chat", messages=USER, options=GREEDY, stream=False)
    own = alone.generate(FRANCE)
    assert made["message"] == {"role": "assistant", "content": PARIS}
    assert (made["model"], made["done"], made["done_reason"]) == ("demo", True, "stop")
    assert (made["prompt_eval_count"], made["eval_count"]) == (len(own.prompt_token_ids), len(own.token_ids))
    parts = made["prompt_eval_duration"] + made["eval_duration"]
    assert 0 < parts <= made["total_duration"] < 60e9
    assert made["load_duration"] == 0
    assert datetime.datetime.fromisoformat(made["created_at"]).utcoffset() == datetime.timedelta()


def test_a_chat_is_streamed_unless_the_request_says_otherwise(serving: Any) -> None:
    *texts, last = lines(serving, "/api/chat", messages=USER, options=GREEDY)
    assert "".join(line["message"]["content"] for line in texts) == PARIS
    assert len(texts) > 2
    assert {line["done"] for line in texts} == {False}
    assert (last["message"]["content"], last["done"], last["done_reason"]) == ("", True, "stop")
    assert last["eval_count"] == 9


def test_a_tag_for_the_only_version_is_taken(serving: Any) -> None:
    body: dict[str, Any] = {"messages": USER, "stream": False, "options": {"num_predict": 1}}
    assert post(serving, "/api/chat", **body | {"model": "demo:latest"})["model"] == "demo:latest"
    problem = post(serving, "/api/chat", 404, **body | {"model": "demo:135m"})
    assert problem == {"error": "there is no model 'demo:135m' here; there is 'demo'"}
    assert "model is missing" in post(serving, "/api/chat", 400, **body | {"model": None})["error"]


def test_a_prompt_with_and_without_the_template(serving: Any, alone: Model) -> None:
    made = post(serving, "/api/generate", prompt=FRANCE, options=GREEDY, stream=False)
    assert made["response"] == PARIS
    assert "message" not in made
    system = post(
        serving,
        "/api/generate",
        prompt=FRANCE,
        system="Be brief.",
        options=GREEDY | {"num_predict": 5},
        stream=False,
    )
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    assert system["response"] == alone.generate(messages, 5).text
    assert system["done_reason"] == "length"
    raw = lines(
        serving, "/api/generate", prompt="The capital of", raw=True, options=GREEDY | {"num_predict": 6}
    )
    assert "".join(line["response"] for line in raw) == alone.generate("The capital of", 6, raw=True).text


def test_options_are_those_of_the_other_apis(serving: Any) -> None:
    options: dict[str, Any] = {
        "temperature": 1.2,
        "top_k": 30.0,
        "top_p": 0.9,
        "min_p": 0.01,
        "seed": 7,
        "num_predict": 12,
    }
    options |= {"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["zzz"]}
    made = post(serving, "/api/generate", prompt="The", raw=True, options=options, stream=False)
    names = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
    fields = {names.get(name, name): value for name, value in options.items()} | {"top_k": 30}
    with serving.http as http:
        other = http.post("/v1/completions", json={"prompt": "The", **fields}).json()
    assert made["response"] == other["choices"][0]["text"]
    stopped = post(serving, "/api/chat", messages=USER, options=GREEDY | {"stop": ["Par"]}, stream=False)
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("The capital of France is ", "stop")
    for unlimited in (-2, -1, 0):
        given: Any = {"num_predict": unlimited}
        request = OllamaChatRequest(model="demo", options=given)
        assert request.max_new_tokens is None


def test_an_answer_is_held_to_a_format(serving: Any) -> None:
    city = {"city": {"enum": ["Paris"]}}
    schema = {"type": "object", "properties": city, "required": ["city"], "additionalProperties": False}
    body: dict[str, Any] = {"messages": USER, "stream": False, "options": GREEDY | {"num_predict": 60}}
    made = post(serving, "/api/chat", format=schema, **body)
    assert json.loads(made["message"]["content"]) == {"city": "Paris"}
    short = body | {"options": GREEDY | {"num_predict": 4}}
    text = post(serving, "/api/chat", format="json", **short)["message"]["content"]
    assert text.startswith("{")
    assert "format" in post(serving, "/api/chat", 400, format="yaml", **body)["error"]
    bad = post(serving, "/api/chat", 400, format={"type": "nothing"}, **body)["error"]
    assert "nothing" in bad


def test_logprobs(serving: Any) -> None:
    body: dict[str, Any] = {
        "messages": USER,
        "options": GREEDY | {"num_predict": 3},
        "logprobs": True,
        "top_logprobs": 2,
    }
    made = post(serving, "/api/chat", stream=False, **body)
    assert len(made["logprobs"]) == 3
    first = made["logprobs"][0]
    assert (first["token"], len(first["top_logprobs"])) == ("The", 2)
    assert first["logprob"] == first["top_logprobs"][0]["logprob"] <= 0
    streamed = [each for line in lines(serving, "/api/chat", **body) for each in line.get("logprobs", ())]
    assert streamed == made["logprobs"]


def test_tools_are_called_and_their_results_taken(serving: Any) -> None:
    body: dict[str, Any] = {"tools": [WEATHER], "stream": False, "options": GREEDY | {"num_predict": 4}}
    asked = [{"role": "user", "content": "Is it raining in Paris?"}]
    assert post(serving, "/api/chat", messages=asked, **body)["done"]
    history = [*asked, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]
    results = [{"role": "tool", "tool_name": "weather", "content": text} for text in ("rain", "sun")]
    assert post(serving, "/api/chat", messages=[*history, *results], **body)["done"]
    problem = post(serving, "/api/chat", 400, messages=[*asked, results[0]], **body)
    assert "no call is before it" in problem["error"]
    named = {**WEATHER, "function": {**WEATHER["function"], "name": "a b"}}
    assert (
        "tools[0].function.name is 'a b'"
        in post(serving, "/api/chat", 400, messages=asked, tools=[named])["error"]
    )


def test_the_tool_calls_of_history_get_ids() -> None:
    other = {"id": "own", "function": {"name": "time", "arguments": {}}}
    messages: Any = [
        {"role": "assistant", "tool_calls": [CALL, other]},
        {"role": "tool", "tool_name": "time", "content": "noon"},
        {"role": "tool", "content": "rain"},
    ]
    _, time, rain = OllamaChatRequest(model="demo", messages=messages).chat.messages
    assert (time["tool_call_id"], rain["tool_call_id"]) == ("own", "call_0_0")


def test_a_streamed_call_is_one_object() -> None:
    writer = OllamaWriter("demo", True, RequestLog("POST", "/api/chat", "-"))
    finish = FinishInfo("tool_calls", 5, 9, 0)
    deltas = [
        OutputDelta(0, "So: ", tool_calls=(ToolCallDelta(0, "weather", '{"ci'),)),
        OutputDelta(0, tool_calls=(ToolCallDelta(0, None, 'ty": "Paris"}'), ToolCallDelta(1, "time", ""))),
        OutputDelta(0, tool_calls=(ToolCallDelta(1, None, "{}"),), finish=finish),
    ]
    made = [json.loads(line) for delta in deltas for line in writer.delta_events(delta)]
    assert [line["message"]["content"] for line in made] == ["So: ", "", "", ""]
    calls = [call["function"] for line in made for call in line["message"].get("tool_calls", ())]
    assert calls == [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]
    assert (made[-1]["done_reason"], made[-1]["eval_count"]) == ("stop", 9)


def test_a_truncated_call_is_left_out() -> None:
    writer = OllamaWriter("demo", True, RequestLog("POST", "/api/chat", "-"))
    delta = OutputDelta(0, tool_calls=(ToolCallDelta(0, "time", '{"a'),), finish=FinishInfo(LENGTH, 5, 9, 0))
    made = [json.loads(line) for line in writer.delta_events(delta)]
    assert "tool_calls" not in made[0]["message"]
    assert made[-1]["done_reason"] == "length"


def test_thinking_is_for_the_template() -> None:
    def arguments(think: Any) -> Any:
        return OllamaChatRequest(model="demo", messages=USER, think=think).template_arguments

    assert arguments(None) is None
    assert arguments(False) == {"enable_thinking": False}
    assert arguments("low") == {"enable_thinking": True, "reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/api/chat", {"messages": [{**USER[0], "images": ["aGk="]}]}, "models here read text; take out the"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "models here read text; take out the images"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, "no model here fills in a gap"),
        (
            "/api/generate",
            {"prompt": "x", "template": "{{ .Prompt }}"},
            "the model's own chat template is used",
        ),
        (
            "/api/generate",
            {"prompt": "x", "context": [1, 2]},
            "send the conversation as messages to /api/chat",
        ),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "raw has no chat template"),
        (
            "/api/chat",
            {"messages": USER, "options": {"mirostat": 2}},
            "options.mirostat is 2: Mirostat is not",
        ),
        ("/api/chat", {"messages": USER, "options": {"typical_p": 0.5}}, "typical sampling is not built"),
        ("/api/chat", {"messages": USER, "options": {"tfs_z": 0.5}}, "tail-free sampling is not built"),
        (
            "/api/chat",
            {"messages": USER, "options": {"penalize_newline": False}},
            "penalties are for all",
        ),
        ("/api/chat", {"messages": USER, "options": {"heat": 1}}, "options.heat is not a field"),
        (
            "/api/chat",
            {"messages": USER, "options": {"repeat_last_n": 64, "repeat_penalty": 1.1}},
            "penalties look at the whole text here; give -1",
        ),
        ("/api/chat", {"messages": USER, "options": {"top_k": -2}}, "top-k is -2"),
        ("/api/chat", {"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role is 'bot'"),
        (
            "/api/chat",
            {"messages": [{**USER[0], "tool_calls": [CALL]}]},
            "the assistant's",
        ),
        (
            "/api/embed",
            {"input": "x", "dimensions": 257},
            "dimensions is 257, and the vectors of this model have 256",
        ),
    ],
)
def test_what_is_refused_by_name(serving: Any, path: str, fields: dict[str, Any], words: str) -> None:
    problem = post(serving, path, 400, **fields)
    assert list(problem) == ["error"]
    assert words in problem["error"]


def test_ignored_fields_are_named(serving: Any) -> None:
    options = {"num_ctx": 4096, "num_thread": 4, "num_predict": 1}
    with serving.http as http:
        body: dict[str, Any] = {
            "model": "demo",
            "messages": USER,
            "keep_alive": "5m",
            "options": options,
            "stream": False,
        }
        done = http.post("/api/chat", json=body)
        assert done.headers["x-aerie-note"] == "ignored: keep_alive, options.num_ctx, options.num_thread"
        plain = http.post("/api/chat", json={**body, "keep_alive": None, "options": {"num_predict": 1}})
        assert "x-aerie-note" not in plain.headers


def test_embeddings_are_those_of_openai_s_api(serving: Any) -> None:
    texts = ["The capital of France is Paris.", "Oslo"]
    made = post(serving, "/api/embed", input=texts)
    with serving.http as http:
        other = http.post("/v1/embeddings", json={"input": texts}).json()
    assert made["embeddings"] == [each["embedding"] for each in other["data"]]
    assert made["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    assert made["total_duration"] > 0
    assert post(serving, "/api/embed", input="Oslo")["embeddings"] == made["embeddings"][1:]
    assert post(serving, "/api/embed", input="")["embeddings"] == []
    assert post(serving, "/api/embeddings", prompt="Oslo") == {"embedding": made["embeddings"][1]}


def test_models(serving: Any) -> None:
    with serving.http as http:
        (listed,) = http.get("/api/tags").json()["models"]
        (loaded,) = http.get("/api/ps").json()["models"]
        version = http.get("/api/version").json()
        assert [http.head(path).status_code for path in ("/", "/api/version", "/api/tags")] == [200] * 3
    assert listed["name"] == listed["model"] == loaded["name"] == "demo:latest"
    assert (listed["details"]["family"], len(listed["digest"])) == ("llama", 64)
    assert version["version"] == "0.9.0"
    expiry = datetime.datetime.fromisoformat(loaded["expires_at"])
    assert expiry - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=20 * 366)
    shown = post(serving, "/api/show", verbose=True)
    info = shown["model_info"]
    assert info["llama.context_length"] == loaded["context_length"] == serving.service.positions
    assert info["general.parameter_count"] > 10**5
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["template"]
    assert post(serving, "/api/show", name="demo")["details"] == shown["details"]  # Open WebUI sends both
    assert "no model 'x'" in post(serving, "/api/show", 404, model="x")["error"]


def test_a_request_without_a_prompt_loads_the_model(serving: Any) -> None:
    chat = post(serving, "/api/chat")
    assert (chat["message"]["content"], chat["done"], chat["done_reason"]) == ("", True, "load")
    assert post(serving, "/api/generate", keep_alive=-1)["done_reason"] == "load"
    unloaded = post(serving, "/api/generate", keep_alive=0)
    assert (unloaded["response"], unloaded["done_reason"]) == ("", "unload")
    with serving.http as http:
        assert http.get("/api/ps").json() == {"models": []}
        assert http.get("/api/tags").json()["models"][0]["details"]["family"] == ""
    assert post(serving, "/api/show")["model_info"] == {}
    assert post(serving, "/api/generate", keep_alive="0")["done_reason"] == "unload"
    *_, last = lines(serving, "/api/chat", messages=USER, options=GREEDY | {"num_predict": 1})
    assert last["load_duration"] > 0


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/api/create", "models are not made here"),
        ("POST", "/api/push", "models are not published here"),
        ("POST", "/api/copy", "--alias OTHER=NAME"),
        ("DELETE", "/api/delete", "POST /v1/unload"),
        (
            "POST",
            "/api/pull",
            "there is no model 'other' here; there is 'demo'; nothing is fetched here: aerie pull",
        ),
    ],
)
def test_models_are_not_changed(serving: Any, method: str, path: str, words: str) -> None:
    with serving.http as http:
        done = http.request(method, path, json={"model": "other"})
    assert done.status_code == 501
    assert words in done.json()["error"]


def test_a_model_that_is_here_is_pulled_at_once(serving: Any) -> None:
    assert post(serving, "/api/pull", stream=False) == {"status": "success"}
    assert lines(serving, "/api/pull") == [{"status": "success"}]


def test_errors_have_ollama_s_form(serving: Any) -> None:
    with serving.http as http:
        assert list(http.get("/api/nothing").json()) == ["error"]
        assert http.get("/api/chat").json()["error"].startswith("this method is not allowed")
        broken = http.post("/api/chat", content=b"{", headers={"Content-Type": "application/json"})
        assert broken.json()["error"].startswith("the body is no JSON")


def test_a_silent_stream_has_white_space_between_its_lines(serving: Any, limit: Any) -> None:
    limit(heartbeat_s=0.002)
    body: dict[str, Any] = {"model": "demo", "messages": USER, "options": GREEDY}
    with serving.http as http:
        text = http.post("/api/chat", json=body).text
    assert text.startswith(" ") or "\n " in text
    made = [json.loads(line) for line in text.splitlines()]
    assert "".join(line["message"]["content"] for line in made) == PARIS


def test_an_error_in_a_stream_is_its_last_line() -> None:
    """Also where the stream began with white space while the model was being loaded."""
    error = ApiError(503, "it is over", code="stopped")
    writer = OllamaWriter("demo", False, RequestLog("POST", "/api/generate", "-"))
    line = b'{"error": "it is over"}\n'
    assert writer.error_event(error) == error_event("/api/generate", error, 0) == line
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def fail() -> None:
        response = StreamedResponse("/api/chat", send, streams=True)
        await response.send_heartbeat()
        await response.send({"type": "http.response.start", "status": 503, "headers": []})
        await response.send({"type": "http.response.body", "body": json.dumps(error.ollama_body).encode()})

    asyncio.run(fail())
    assert (b"content-type", b"application/x-ndjson; charset=utf-8") in sent[0]["headers"]
    assert [each["body"] for each in sent[1:]] == [b" ", line]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/octet-stream"])
def test_the_body_of_a_client_that_names_no_type_is_json(serving: Any, kind: str) -> None:
    """Ollama's documentation shows curl -d without a header, and LiteLLM sends bytes; pages are refused."""
    form = {"Content-Type": kind}
    with serving.http as http:
        assert http.post("/api/show", content=b'{"model": "demo"}', headers=form).status_code == 200
        for name in ("Origin", "Referer"):
            page = http.post("/api/show", content=b"{}", headers={**form, name: serving.url})
            assert (page.status_code, list(page.json())) == (415, ["error"])
        assert http.post("/v1/completions", content=b"{}", headers=form).status_code == 415


def test_the_official_client(serving: Any) -> None:
    ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")
    with ollama.Client(host=serving.url) as client:
        made = client.chat("demo", messages=USER, options=GREEDY)
        assert (made.message.content, made.done_reason) == (PARIS, "stop")
        parts = client.generate("demo", FRANCE, options=GREEDY, stream=True)
        assert "".join(part.response for part in parts) == PARIS
        assert len(client.embed("demo", ["a", "b"]).embeddings) == 2
        assert [each.model for each in client.list().models] == ["demo:latest"]
        assert client.show("demo").capabilities == ["completion", "tools"]
        assert [each.model for each in client.ps().models] == ["demo:latest"]
        assert client.pull("demo").status == "success"
        with pytest.raises(ollama.ResponseError, match="models are not deleted here") as problem:
            client.delete("demo")
        assert problem.value.status_code == 501
