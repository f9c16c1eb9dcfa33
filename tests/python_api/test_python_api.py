"""The Python API beyond docs/how-to/python.md: where answers end, and what goes on between them."""

from __future__ import annotations

import importlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aerie import AerieError, Event, EventKind, FinishReason, Model, Result, Stream, load, rooms
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.detokenizer import IncrementalDetokenizer
from aerie.engine.errors import PromptError, RequestError
from aerie.runtime import RunError
from aerie.runtime.buffers import BufferSet
from tests.spm import llama_2

FRANCE, EGYPT = "What is the capital of France?", "What is the capital of Egypt?"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", backend="virtual") as opened:
        yield opened


def test_fewer_positions_than_the_model_has(model: Model) -> None:
    with load("demo", backend="virtual", max_model_len=24) as short:
        whole, result = model.generate(FRANCE), short.generate(FRANCE)
    assert result.token_ids == whole.token_ids[: len(result.token_ids)]
    assert len(result.token_ids) < len(whole.token_ids)
    assert result.finish_reason.value == "context"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with load("demo", backend="virtual", progress=lines.append):
        pass
    with load("demo", backend="virtual") as opened:
        assert str(opened.generate(FRANCE)) == "The capital of France is Paris."
    assert capfd.readouterr() == ("", "")
    assert lines[0] == "backend virtual: requested"
    assert any(line.startswith("weights: 6 layers loaded") for line in lines)


def test_a_stream_and_the_whole_are_the_same(model: Model) -> None:
    with model.stream(FRANCE) as stream:
        assert stream.finish_reason is None
        assert stream.token_ids == ()
        pieces = list(stream)
    answer = model.generate(FRANCE)
    assert "".join(pieces) == answer.text == stream.text
    assert stream.token_ids == answer.token_ids
    assert answer.finish_reason is stream.finish_reason is FinishReason.STOP
    assert answer.prompt_token_ids == tuple(model.encode(FRANCE))
    assert stream.result().text == answer.text


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("France", "The capital of "),
        (["xyz", "l of Fr"], "The capita"),  # begins in one token and ends in another
        (["Paris.", "Paris"], "The capital of France is "),
        ("Parisian", "The capital of France is Paris."),  # held back, and given out at the end
        ("T", ""),
        ((), "The capital of France is Paris."),
    ],
)
def test_stop_texts(model: Model, stop: Any, text: str) -> None:
    answer = model.generate(FRANCE, stop=stop)
    assert answer.text == text
    assert answer.finish_reason is FinishReason.STOP
    full = model.generate(FRANCE)
    assert answer.token_ids == full.token_ids[: len(answer.token_ids)]
    assert (len(answer.token_ids) < len(full.token_ids)) == (text != full.text)


def test_a_stop_token(model: Model) -> None:
    (*_, token), whole = model.encode(" France", raw=True), model.generate(FRANCE)
    answer = model.generate(FRANCE, stop=[token])
    assert (answer.text, answer.finish_reason) == ("The capital of", FinishReason.STOP)
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    assert answer.token_ids[-1] == token


def test_an_answer_cut_or_closed(model: Model) -> None:
    assert model.generate(FRANCE, max_tokens=2).finish_reason is FinishReason.LENGTH
    stream = model.stream(FRANCE)
    next(stream)
    stream.close()
    assert stream.finish_reason is FinishReason.INTERRUPTED
    assert list(stream) == []
    assert stream.result().text == "The"
    unbegun = model.stream(FRANCE)
    unbegun.close()
    assert unbegun.result().text == ""
    assert model.generate(FRANCE).text == "The capital of France is Paris."


def test_ctrl_c_in_the_middle_of_a_token(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = model.stream(FRANCE)
    next(stream)
    with monkeypatch.context() as patch:

        def interrupt(*_: Any) -> str:
            raise KeyboardInterrupt

        patch.setattr(IncrementalDetokenizer, "feed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert (stream.text, stream.finish_reason) == ("The", FinishReason.INTERRUPTED)
    assert model.generate(FRANCE).text == "The capital of France is Paris."


def test_closed_by_another_thread(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the prompt is read, as its first program begins: that is the last."""
    begun: list[str] = []
    events: list[EventKind] = []
    stream = model.stream(FRANCE, on_event=lambda event: events.append(event.kind))
    closing, real = threading.Thread(target=stream.close), BufferSet.execute

    def execute(buffers: BufferSet) -> None:
        begun.append(buffers.label)
        if len(begun) == 1:
            closing.start()
            while not stream._request._stopping.is_set:
                time.sleep(0.001)
        real(buffers)

    with monkeypatch.context() as patch:
        patch.setattr(BufferSet, "execute", execute)
        assert list(stream) == []
    closing.join()
    assert len(begun) == 1
    assert (stream.text, stream.finish_reason) == ("", FinishReason.INTERRUPTED)
    assert events == [EventKind.BEGIN, EventKind.ABORT]
    assert model.generate(FRANCE).text == "The capital of France is Paris."


def test_answers_in_turn_are_those_that_each_has_alone(model: Model) -> None:
    prompts = (FRANCE, EGYPT, FRANCE)
    alone = [model.generate(prompt).token_ids for prompt in prompts]
    streams = [model.stream(prompt) for prompt in prompts]
    under_way: list[Stream] = list(streams)
    while under_way:
        under_way = [stream for stream in under_way if next(stream, None) is not None]
    assert [stream.token_ids for stream in streams] == alone


def test_threads_take_turns(model: Model) -> None:
    alone, found = {prompt: model.generate(prompt).text for prompt in (FRANCE, EGYPT)}, []
    threads = [
        threading.Thread(target=lambda p=prompt: found.append((p, model.generate(p).text)))
        for prompt in (FRANCE, EGYPT) * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([(FRANCE, alone[FRANCE]), (EGYPT, alone[EGYPT])] * 3)


def test_logits_are_those_that_the_answer_is_taken_from(model: Model) -> None:
    ids = model.encode(FRANCE)
    logits = model.logits(ids)
    assert (logits.shape, logits.dtype) == ((len(ids), 1500), np.dtype(np.float32))
    assert int(np.argmax(logits[-1])) == model.generate(FRANCE, max_tokens=1).token_ids[0]
    assert int(np.argmax(logits[7])) == model.generate(ids[:8], max_tokens=1).token_ids[0]
    kept = logits.copy()
    model.generate(EGYPT)
    np.testing.assert_array_equal(logits, kept)


def test_the_fields_of_a_result(model: Model) -> None:
    before = model.kpis.prompt.samples
    result = model.generate(FRANCE, seed=None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (
        22,
        9,
        31,
    )
    assert result.prompt_token_ids == tuple(model.encode(FRANCE))
    tps = result.kpis.tps
    assert (tps.n_prompt, tps.n_generate, tps.tokenAcceptance) == (22, 9, 1.0)
    assert tps.prompt == pytest.approx(22e6 / result.kpis.prompt.last)
    assert tps.generate == pytest.approx(8e6 / result.kpis.generate.last)
    assert (result.kpis.prompt.samples, result.kpis.generate.samples) == (1, 1)
    assert model.kpis.prompt.samples == before + 1
    assert model.kpis.tps == tps


def events_of(model: Model, stops_at: Any = None, **options: Any) -> tuple[list[Event], Result]:
    events: list[Event] = []

    def hear(event: Event) -> bool:
        events.append(event)
        return event.kind is not stops_at

    result = model.generate(FRANCE, on_event=hear, **options)
    return events, result


@pytest.mark.parametrize("options", [{}, {"max_tokens": 2}, {"stop": "of"}], ids=str)
def test_events_of_an_answer(model: Model, options: Any) -> None:
    events, result = events_of(model, **options)
    assert [event.kind for event in events[:2]] == [EventKind.BEGIN, EventKind.CONTINUE]
    assert {event.kind for event in events[1:-1]} == {EventKind.CONTINUE}
    assert events[-1].kind is EventKind.END
    assert "".join(event.text for event in events) == result.text
    assert sum((event.token_ids for event in events), ()) == result.token_ids
    assert result.token_ids == model.generate(FRANCE, **options).token_ids


@pytest.mark.parametrize(("kind", "text"), [(EventKind.BEGIN, ""), (EventKind.CONTINUE, "The")])
def test_a_callback_that_gives_false_stops_the_answer(model: Model, kind: EventKind, text: str) -> None:
    events, result = events_of(model, kind)
    assert (result.text, result.finish_reason) == (text, FinishReason.INTERRUPTED)
    assert len(result.token_ids) == len(text) // 3
    assert [event.kind for event in events][-2:] == [kind, EventKind.ABORT]
    assert model.generate(FRANCE).text == "The capital of France is Paris."


def test_false_at_the_end_changes_nothing(model: Model) -> None:
    events, result = events_of(model, EventKind.END)
    assert (events[-1].kind, result.finish_reason) == (EventKind.END, FinishReason.STOP)


def test_one_end_for_every_beginning(model: Model) -> None:
    """Whether a stream is closed in its middle, after its last piece, twice, before it begins, or fails."""
    kinds: list[EventKind] = []

    def stream(**options: Any) -> Stream:
        kinds.clear()
        return model.stream(FRANCE, on_event=lambda event: kinds.append(event.kind), **options)

    with stream() as unbegun:
        pass
    assert (kinds, unbegun.finish_reason) == ([], FinishReason.INTERRUPTED)
    with stream() as begun:
        next(begun)
    begun.close()
    assert kinds == [EventKind.BEGIN, EventKind.CONTINUE, EventKind.ABORT]
    with stream(stop=" capital") as stopped:
        assert next(stopped) == "The"
        assert next(stopped, None) is None
    assert (kinds[-1], stopped.finish_reason) == (EventKind.END, FinishReason.STOP)
    with stream(max_tokens=1) as whole:
        assert list(whole) == ["The"]
    assert kinds == [EventKind.BEGIN, EventKind.CONTINUE, EventKind.END]
    failing = stream()
    next(failing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncrementalDetokenizer, "feed", lambda *_: 1 / 0)
        with pytest.raises(RequestError, match="this answer failed"):
            next(failing)
    failing.close()
    assert kinds == [EventKind.BEGIN, EventKind.CONTINUE, EventKind.ABORT]


LONG = "What is the capital of France? " * 12
"""More tokens than the programs of 32 rows take at once."""


@pytest.fixture(scope="module")
def in_steps() -> Iterator[Model]:
    with load("demo", variants="8,32x512", decode="rows") as model:
        yield model


def test_a_long_prompt_reports_progress_and_stops_between_its_steps(in_steps: Model) -> None:
    events: list[Event] = []
    whole = in_steps.generate(LONG, max_tokens=4, on_event=events.append)
    read = [event for event in events if event.kind is EventKind.CONTINUE and not event.text]
    assert len(read) > 1
    assert not any(event.token_ids for event in read)
    assert events[len(read) + 1].token_ids == whole.token_ids[:1]

    def stops(event: Event) -> bool:
        return event.kind is EventKind.BEGIN

    in_steps.generate("Hello", max_tokens=1)  # of which LONG has little
    stopped = in_steps.generate(LONG, max_tokens=4, on_event=stops)
    assert (stopped.token_ids, stopped.finish_reason) == ((), FinishReason.INTERRUPTED)
    again = in_steps.generate(LONG, max_tokens=4)
    assert again.usage.cached_tokens >= 32
    assert again.token_ids == whole.token_ids


@pytest.mark.parametrize("after", [1, 4], ids=["in the prompt", "between tokens"])
def test_an_answer_rests_and_goes_on_with_the_same_tokens(in_steps: Model, after: int) -> None:
    """After so many events, while another answer is made whole; a seeded sampler draws what it would have."""
    options: Any = {"max_tokens": 8, "temperature": 1.5, "seed": 5}
    wanted = in_steps.generate(LONG, **options)
    events: list[Event] = []

    def record_event(event: Event) -> None:
        events.append(event)
        if len(events) == after + 1:
            stream.pause()

    stream = in_steps.stream(LONG, on_event=record_event, **options)
    in_steps.generate("Hello", max_tokens=1)  # what is kept is of this now: LONG is read anew
    results: list[Result] = []
    making = threading.Thread(target=lambda: results.append(stream.result()))
    making.start()
    while len(events) <= after:
        time.sleep(0.01)
    assert in_steps.generate(FRANCE).text == "The capital of France is Paris."
    assert len(events) == after + 1
    assert making.is_alive()
    assert bool(stream.token_ids) == (after == 4)
    stream.resume()
    making.join()
    assert results[0].token_ids == wanted.token_ids


def test_a_resting_answer_can_be_closed(in_steps: Model) -> None:
    stream = in_steps.stream(LONG, max_tokens=4)
    stream.pause()
    waiting = threading.Thread(target=lambda: list(stream))
    waiting.start()
    stream.close()
    waiting.join()
    assert (stream.text, stream.finish_reason) == ("", FinishReason.INTERRUPTED)


def test_penalties_and_bias_reach_the_sampler(model: Model) -> None:
    first = model.generate(FRANCE).token_ids[0]
    assert model.generate(FRANCE, max_tokens=1, logit_bias={first: -100}).token_ids != (first,)
    twice: Any = {"max_tokens": 2, "logit_bias": {13: 100}}
    assert model.generate(FRANCE, **twice).token_ids == (13, 13)
    assert model.generate(FRANCE, **twice, repetition_penalty=100.0).token_ids[1] != 13
    assert model.generate(FRANCE, temperature=3.0, min_p=1.0, seed=1).text == model.generate(FRANCE).text


def test_prompts_of_each_kind(model: Model) -> None:
    ids = model.encode(FRANCE)
    assert model.encode([{"role": "user", "content": FRANCE}]) == ids
    assert model.encode(np.array(ids)) == ids
    assert model.encode(FRANCE, raw=True) != ids
    assert not {ids[-1], 1496, 1499} & set(model.encode("<|eot_id|>", raw=True))  # text, and no control
    with pytest.raises(PromptError, match="the prompt is not valid UTF-8"):
        model.encode("\udcff", raw=True)


@pytest.mark.parametrize("dtype", [bfloat16, np.float32])
def test_embeddings_are_answered_as_the_tokens_that_they_are_of(model: Model, dtype: Any) -> None:
    """And others as others: the first rows of another prompt's make another answer."""
    ids, wanted = model.encode(FRANCE), model.generate(FRANCE)
    embeddings = model.embed_tokens(ids).astype(dtype)
    assert embeddings.shape == (len(ids), 256)
    result = model.generate(embeddings)
    assert (result.text, result.token_ids) == (wanted.text, wanted.token_ids)
    assert (result.prompt_token_ids, result.usage) == ((), replace(wanted.usage, cached_tokens=0))
    assert result.kpis.tps.n_prompt == len(ids)
    np.testing.assert_array_equal(model.logits(embeddings), model.logits(ids))
    np.testing.assert_array_equal(model.embed_tokens(embeddings), model.embed_tokens(ids))
    assert model.generate(model.embed_tokens(EGYPT).astype(dtype)).text == "The capital of Egypt is Cairo."


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (np.zeros((3, 7), np.float32), r"embeddings is \(tokens, 256\) for this model, and not \(3, 7\)"),
        (np.zeros((1, 3, 256), np.float32), r"is \(tokens, 256\) for this model, and not \(1, 3, 256\)"),
        (np.zeros((3, 256), np.float64), "embeddings is bfloat16 or float32, not float64; cast it"),
        (np.full((3, 256), 3.4e38, np.float32), "holds values that are not finite in bfloat16; mend them"),
        (np.full((3, 256), np.nan, bfloat16), "holds values that are not finite in bfloat16; mend them"),
        (np.zeros((0, 256), np.float32), "the prompt is empty"),
    ],
    ids=["width", "dimensions", "float64", "too large", "nan", "empty"],
)
def test_embeddings_that_cannot_be_run(model: Model, embeddings: Any, message: str) -> None:
    for ask in (model.stream, model.logits, model.embed_tokens):
        with pytest.raises(PromptError, match=message):
            ask(embeddings)


@pytest.mark.parametrize(
    "prompt", [{"role": "user", "content": "x"}, ["text"], [{"role": "user"}], [1, {}], [None], 7]
)
def test_a_prompt_that_is_none(model: Model, prompt: Any) -> None:
    with pytest.raises(PromptError, match="a prompt is a text, a list of messages, each a"):
        model.generate(prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": ["a", 1.5]}, "stop takes texts and token ids, and not 1.5; leave it out"),
        ({"stop": None}, "stop takes texts and token ids, and not None; leave it out"),
        ({"stop": ["a", ""]}, "stop holds an empty text, at which every answer would end; leave it out"),
        ({"max_tokens": 0}, "0 tokens were asked for; ask for 1 or more"),
        ({"temperature": -1}, "temperature is -1; it must be 0"),
        ({"min_p": 2}, "min-p is 2; it must be from 0"),
        ({"logit_bias": {1500: 1}}, "logit-bias names token 1500, and the model's vocabulary has 0 to 1499"),
    ],
)
def test_a_value_out_of_range_is_refused_at_once(model: Model, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.stream(FRANCE, **options)


def test_an_answer_goes_on_when_another_prompt_has_longer_programs_compiled() -> None:
    with load("demo", backend="virtual") as opened:
        begun, unbegun = opened.stream(FRANCE), opened.stream(EGYPT)
        next(begun)
        long = [{"role": "user", "content": f"{'Hello! ' * 60}{FRANCE}"}]
        assert len(opened.encode(long)) > 128
        opened.generate(long, max_tokens=1)
        assert begun.result().text == "The capital of France is Paris."
        assert unbegun.result().text == "The capital of Egypt is Cairo."


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        *((each, "give the index of a device, as 0, or of several, as") for each in ((), -1, "0", (0, None))),
        ((1, 1), r"devices is \(1, 1\); name each device once"),
    ],
)
def test_devices_that_are_none(devices: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load("demo", backend="virtual", devices=devices)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(
        RunError, match="could not open device 1: there is no device 1; the virtual NPU has device 0"
    ):
        load("demo", backend="virtual", devices=1)


def test_a_closed_model() -> None:
    opened = load("demo", backend="virtual")
    stream = opened.stream(FRANCE)
    next(stream)
    opened.close()
    opened.close()
    with pytest.raises(UserError, match="this model is closed; load it again"):
        opened.generate(FRANCE)
    with pytest.raises(UserError, match="this model is closed; load it again"):
        next(stream)


OF_OTHERS = {
    "XrtError",
    "StepError",
    "RunFailedError",
    "ChildFailedError",
    "OutputError",
    "TimeLimitError",
    "StageFailedError",
    "_FailedError",
    "ApiError",
    "_InvalidNumberError",
    "_TooManyError",
    "_EnoughError",
    "_DependentError",
    "_UnknownError",
    "RefusedError",
}
"""As pyxrt raises them; and what never leaves its room."""


def test_all_that_a_caller_can_mend_is_one_kind_of_error() -> None:
    folders = {f"aerie.{room}": rooms.folder(room) for room in rooms.AT_THE_TOP} | {"aerie": rooms.PACKAGE}
    sources = {path: (name, folder) for name, folder in folders.items() for path in folder.rglob("*.py")}
    found = 0
    for source, (package, folder) in sources.items():
        module = ".".join((package, *source.relative_to(folder).with_suffix("").parts))
        for name in re.findall(r"^class (\w+Error)\(", source.read_text(), re.MULTILINE):
            kind = getattr(importlib.import_module(module), name)
            assert issubclass(kind, AerieError) != (name in OF_OTHERS), name
            found += 1
    assert found > 40


def test_a_token_id_of_numpy_ends_an_answer_too(model: Model) -> None:
    first, second, *_ = model.generate(FRANCE).token_ids
    stop: Any = np.int64(second)
    assert model.generate(FRANCE, stop=stop).token_ids == (first, second)


def test_values_for_the_chat_template(model: Model) -> None:
    """The demo's template asks for none, and passes over those that it does not know."""
    given = {"enable_thinking": False}
    assert model.encode(FRANCE, chat_template_kwargs=given) == model.encode(FRANCE)
    assert model.generate(FRANCE, 3, chat_template_kwargs=given).text == model.generate(FRANCE, 3).text
    wrong: Any = ["x"]
    for options, message in (
        ({"chat_template_kwargs": {"bos_token": ""}}, "bos_token cannot be given to the chat template"),
        (
            {"chat_template_kwargs": {"x": object()}},
            "a value that JSON cannot represent: Object of type object",
        ),
        ({"chat_template_kwargs": wrong}, r"chat_template_kwargs is \['x'\]; give a dict of what"),
        ({"chat_template_kwargs": given, "raw": True}, "for the chat template, which raw leaves out"),
    ):
        with pytest.raises(UserError, match=message):
            model.generate(FRANCE, 3, **cast(Any, options))


def test_words_of_a_sentencepiece_model_keep_their_blanks(tmp_path: Path) -> None:
    """From the first on, piece by piece, and where an answer goes on."""
    folder, tokenizer = shutil.copytree(DEMO_FOLDER, tmp_path / "model"), llama_2()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    tile = tokenizer.token_to_id("▁tile")
    assert tile
    only = {tile: 100.0}
    with load(folder, backend="virtual") as spoken:
        assert list(spoken.stream("the world", 3, raw=True, logit_bias=only)) == [" tile"] * 3
        assert list(spoken.continue_answer(2)) == list(spoken.continue_answer(1)) * 2 == [" tile"] * 2
        (batched,) = spoken.generate_batch(["the world"], 2, raw=True, logit_bias=only)
        assert batched.text == " tile tile"
