"""The Python API: arguments of wrong types, answers in asyncio, progress, and what a model says of itself."""

from __future__ import annotations

import asyncio
import copy
import importlib
import logging
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aerie
from aerie import AerieError, AsyncStream, FinishReason, Model, load
from aerie.common.errors import UserError
from aerie.engine.chat_template import TemplateArgumentError
from aerie.engine.errors import PromptTooLongError
from aerie.loading import CallbackReporter

FRANCE = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", backend="virtual") as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_tokens", "9", "'9', of the type str; give a whole number"),
        ("max_tokens", 1.5, "1.5, of the type float; give a whole number"),
        ("max_tokens", True, "True, of the type bool; give a whole number"),
        ("max_tokens", None, "None, of the type NoneType; give a whole number"),
        ("temperature", "hot", "'hot', of the type str; give a number"),
        ("top_k", [1], r"\[1\], of the type list; give a whole number"),
        ("seed", "7", "'7', of the type str; give a whole number, or None"),
        ("logit_bias", [1], r"\[1\], of the type list; give a dict of token ids and numbers"),
        ("raw", "yes", "'yes', of the type str; give True or False"),
        ("steps", 1.5, "1.5, of the type float; give a whole number, or None"),
        ("tools", "f", "'f', of the type str; give a list of dicts"),
        ("json_schema", 5, "5, of the type int; give a JSON schema, as a dict or a text"),
        ("chat_template_kwargs", [1], r"\[1\]; give a dict of what the chat template"),
        ("on_event", 3, "3, of the type int; give a function, or None"),
    ],
)
def test_wrong_types_of_an_answer(model: Model, name: str, value: Any, wanted: str) -> None:
    """In a batch, too, where the other answers go on."""
    with pytest.raises(UserError, match=f"^{name} is {wanted}"):
        model.stream(FRANCE, **{name: value})
    if name != "on_event":
        wrong, _ = model.generate_batch([{"prompt": FRANCE, name: value}, "hi"], 1)
        assert wrong.error.startswith(f"{name} is ")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("model", 5, "5, of the type int; give a text or a path"),
        ("backend", None, "None, of the type NoneType; give a text"),
        ("variants", 8, "8, of the type int; give a text, or None"),
        ("weights", "q5", "'q5'; give one of auto, bf16, q8, q4"),
        ("seq_len", "128", "'128', of the type str; give a whole number, or None"),
        ("devices", None, "None, of the type NoneType; give the index of a device"),
        ("max_model_len", "128", "'128', of the type str; give a whole number, or None"),
        ("max_model_len", 0, "0; give 1 or more positions, or None for the model's own"),
        ("kv_pool", 1.5, "1.5, of the type float; give a whole number, or None"),
        ("cache_dir", 5, "5, of the type int; give a text or a path, or None"),
        ("progress", "print", "'print', of the type str; give a function, or None"),
    ],
)
def test_wrong_types_of_load(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(UserError, match=f"^{name} is {wanted}"):
        load(**{name: value})


def test_a_name_of_transformers_is_pointed_on(model: Model) -> None:
    words = r"no option 'max_new_tokens' \(did you mean max_tokens\?\); there are max_tokens, temperature"
    with pytest.raises(UserError, match=words):
        model.stream(FRANCE, max_new_tokens=5)  # type: ignore[call-arg]


def test_numbers_of_numpy_are_numbers(model: Model) -> None:
    options: dict[str, Any] = {"temperature": np.float32(0), "top_k": np.int64(3), "seed": np.uint8(7)}
    most: Any = np.int32(20)
    assert model.generate(FRANCE, most, **options).text == ANSWER


def test_pieces_in_asyncio_are_those_of_a_stream(model: Model) -> None:
    """And the event loop goes on between them."""

    async def answer() -> tuple[list[str], int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        pieces = [piece async for piece in model.astream(FRANCE)]
        task.cancel()
        return pieces, turns

    pieces, turns = asyncio.run(answer())
    assert pieces == list(model.stream(FRANCE))
    assert turns > len(pieces)


def test_the_whole_answer_in_asyncio(model: Model) -> None:
    async def answers() -> list[str]:
        return [str(each) for each in await asyncio.gather(*(model.agenerate(FRANCE) for _ in range(2)))]

    assert asyncio.run(answers()) == [ANSWER] * 2


def test_an_answer_in_asyncio_that_is_ended(model: Model) -> None:
    """By leaving its block, by closing it before it began, and by cancelling its task."""

    async def leave() -> AsyncStream:
        async with model.astream(FRANCE) as stream:
            with pytest.raises(UserError, match="the answer has not begun; ask for its first piece before"):
                _ = stream.stream
            async for _ in stream:
                break
        assert [piece async for piece in stream] == []
        return stream

    async def close_at_once() -> list[str]:
        stream = model.astream(FRANCE)
        await stream.aclose()
        return [piece async for piece in stream]

    async def cancel() -> AsyncStream:
        stream = model.astream(FRANCE)
        begun = asyncio.Event()

        async def follow() -> None:
            async for _ in stream:
                begun.set()
                stream.stream.pause()

        task = asyncio.create_task(follow())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    left, cancelled = asyncio.run(leave()), asyncio.run(cancel())
    for stream in (left, cancelled):
        assert stream.text == "The"
        assert stream.stream.finish_reason is FinishReason.INTERRUPTED
    assert asyncio.run(close_at_once()) == []
    assert model.generate(FRANCE).text == ANSWER


def test_what_is_wrong_comes_with_the_first_piece(model: Model) -> None:
    async def ask() -> None:
        await anext(model.astream(FRANCE, temperature="hot"))  # type: ignore[arg-type]

    with pytest.raises(UserError, match="temperature is 'hot'"):
        asyncio.run(ask())


def test_a_model_says_what_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Its profiler prints on standard error."""
    with load("demo", backend="virtual", variants="8x512") as opened:
        assert repr(opened) == (
            "<aerie.Model 'demo', family llama, AR-8xCL-512, decode guide, backend virtual>"
        )
        opened.generate("hi", 2)
        opened.profiler.print()
    out, err = capfd.readouterr()
    assert (out, err.startswith("where the time went (milliseconds)")) == ("", True)
    assert "rms_gemv_rope" in err
    assert repr(opened) == "<aerie.Model 'demo', closed>"


def test_the_logger_has_the_lines_of_progress(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with caplog.at_level(logging.INFO, "aerie"), load("demo", backend="virtual", progress=lines.append):
        pass
    assert [record.message for record in caplog.records] == lines
    assert {record.name for record in caplog.records} == {"aerie"}
    assert any(line.startswith("weights: 6 layers loaded") for line in lines)


def test_a_bar_is_a_line_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock = iter([0.0, 0.5, 1.2, 1.2, 1.9, 2.3, 2.3])
    monkeypatch.setattr("aerie.loading.time.monotonic", lambda: next(clock))
    with CallbackReporter(lines.append).bar("compiling", 4) as step:
        step("a", 1)
        step("b", 2)
        step("c", 3)
        step("", 4)
    assert lines == ["compiling: 2 of 4, b", "compiling: 4 of 4"]


def all_errors() -> list[type[AerieError]]:
    """Every error of every module of the package."""
    for room in ("common", "device", "engine", "kernel_builder", "multi_launch_builder", "runtime", "serve"):
        package = importlib.import_module(f"aerie.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and "errors" in module.name:
                importlib.import_module(module.name)
    found, left = [], [AerieError]
    while left:
        error = left.pop()
        found.append(error)
        left += error.__subclasses__()
    return sorted(set(found), key=lambda error: error.__qualname__)


def test_every_error_can_be_pickled() -> None:
    """Whatever its constructor takes."""
    errors = all_errors()
    assert len(errors) > 30
    for kind in errors:
        error = kind.__new__(kind, "what")
        error.__dict__["detail"] = [1]
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (kind, str(error), {"detail": [1]})


@pytest.mark.parametrize(
    "error", [PromptTooLongError(9, 3, 4), TemplateArgumentError("tools", "tools cannot be given")]
)
def test_an_error_keeps_its_message_and_attributes(error: AerieError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert vars(error)


def test_the_names_of_the_package(model: Model) -> None:
    assert aerie.AsyncStream is AsyncStream
    assert isinstance(model.astream(FRANCE), AsyncStream)
