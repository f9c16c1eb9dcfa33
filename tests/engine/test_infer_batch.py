"""Flat batches: tokens of all requests at once, on KVs that the caller owns; each has the bits of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aerie import Model, load
from aerie.common.errors import UserError
from aerie.engine.errors import NotFiniteError, TooLittleMemoryError
from aerie.engine.page_manager import PoolFullError
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone

NEW = 5


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", decode="rows", variants="8,32x512", kv_pool=20 * 64) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_leaked(model: Model) -> Iterator[None]:
    yield
    gc.collect()
    pool = model._open().scheduler.pool
    pool.collect_released()
    pool.manager.check_invariants()
    assert pool.manager.free_count == 20


def prompts(model: Model) -> list[list[int]]:
    """Of a few tokens to several pages."""
    questions = [
        "Hello",
        "What is the capital of France?",
        "Who are you? " * 8,
        "What is the capital of Egypt? " * 16,
    ]
    return [model.encode(each) for each in questions]


SETTINGS: dict[str, list[Any]] = {
    "temperature": [0.0, 1.2, 0.7, 1.5],
    "top_k": [0, 0, 20, 5],
    "top_p": [1.0, 0.9, 1.0, 0.5],
}


def made_alone(model: Model, number: int) -> list[int]:
    """What a request gives by another way: one sequence, a KV cache of its own."""
    own = {name: values[number] for name, values in SETTINGS.items()}
    sampler = Sampler(**own, seed=number)
    return list(generate_alone(model._open().model, prompts(model)[number], NEW, sampler))


def test_a_token_each_until_they_have_what_they_have_alone(model: Model) -> None:
    """The prompts in one call, and then token by token, in another order each time."""
    kvs = [model.new_kv(seed=number) for number in range(4)]
    texts = prompts(model)
    made = [
        [token]
        for token in model.infer_batch(np.concatenate(texts), [*map(len, texts)], [0] * 4, kvs, **SETTINGS)
    ]
    for turn in range(NEW - 1):
        order = [int(n) for n in np.random.default_rng(turn).permutation(4)]
        settings = {name: [values[n] for n in order] for name, values in SETTINGS.items()}
        tokens = model.infer_batch(
            np.array([made[n][-1] for n in order]),
            [1] * 4,
            [kvs[n].length for n in order],
            [kvs[n] for n in order],
            **settings,
        )
        for n, token in zip(order, tokens, strict=True):
            made[n].append(token)
    wanted = [made_alone(model, number) for number in range(4)]
    assert [tokens[: len(whole)] for tokens, whole in zip(made, wanted, strict=True)] == wanted
    assert sum(map(len, wanted)) > 2 * len(wanted)
    assert kvs[1].token_ids == (*texts[1], *made[1][:-1])


def test_forks_share_pages_and_going_back_forgets(model: Model) -> None:
    text, other = prompts(model)[3][:130], prompts(model)[1][:10]
    pool = model._open().scheduler.pool
    with model.new_kv() as one:
        (whole,) = model.forward_batch(text, [130], [0], [one], every=True)
        used = pool.manager.free_count
        with one.fork() as two:
            assert pool.manager.free_count == used
            made = model.forward_batch([*other, *text[100:]], [10, 30], [100, 100], [one, two], every=True)
            assert (one.length, two.length) == (110, 130)
            assert made[1].tobytes() == whole[100:].tobytes()
        (anew,) = model.forward_batch(text[:100] + other, [110], every=True)
        assert made[0].tobytes() == anew[100:].tobytes()


def test_what_was_read_before_is_found_and_gives_the_same(model: Model) -> None:
    text = prompts(model)[3][:130]
    (whole,) = model.forward_batch(text, [130], every=True)
    profiler = model.profiler
    with model.new_kv() as kv:
        profiler.reset()
        (last,) = model.forward_batch(text, [130], [0], [kv])
        assert last.tobytes() == whole[-1:].tobytes()
        assert {each.calls for each in profiler.programs.values()} <= {6, 1}  # one step, of 2 of 130 tokens
        assert kv.length == 130


def test_a_kv_that_is_forgotten_gives_its_pages_back(model: Model) -> None:
    kv = model.new_kv()
    model.infer_batch([5] * 70, [70], [0], [kv])
    pool = model._open().scheduler.pool
    free = pool.manager.free_count
    del kv
    gc.collect()
    pool.collect_released()
    assert pool.manager.free_count == free + 2


def test_what_does_not_fit_together_is_reported_and_changes_nothing(model: Model) -> None:
    with model.new_kv() as one, model.new_kv() as two, load("demo", decode="rows", kv_pool=64) as another:
        model.infer_batch([5, 6, 7], [3], [0], [one])
        closed, foreign = model.new_kv(), another.new_kv()
        closed.close()

        def refused(match: str, *given: Any, **settings: Any) -> None:
            with pytest.raises(UserError, match=match):
                model.infer_batch(*given, **settings)
            assert (one.token_ids, two.length) == ((5, 6, 7), 0)

        both = [one, two]
        refused(r"the lengths \[1, 1\] add up to 2 and 3 tokens were given", [8, 9, 9], [1, 1], [3, 0], both)
        refused(r"the lengths are \[2, 0\]; give one of 1 or more", [8, 9], [2, 0], [3, 0], both)
        refused("2 lengths and 1 KVs were given", [8, 9], [1, 1], [3, 0], [one])
        refused("2 lengths and 1 positions were given", [8, 9], [1, 1], [3], both)
        refused("2 lengths and 3 of top_k were given", [8, 9], [1, 1], [3, 0], both, top_k=[1, 2, 3])
        refused(
            "request 1: temperature is -1; it must be 0", [8, 9], [1, 1], [3, 0], both, temperature=[0, -1]
        )
        refused("request 0 begins at position 4 and its KV holds 3", [8, 9], [1, 1], [4, 0], both)
        refused(
            "requests 0 and 1 have the same KV; give one of them a fork", [8, 9], [1, 1], [3, 3], [one, one]
        )
        refused("request 1: the prompt holds token 99999", [8, 99999], [1, 1], [0, 0], both)
        refused(
            "request 1: the prompt is 512 tokens long|request 1: .* 513", [8] * 514, [1, 513], [0, 0], both
        )
        refused("that of request 1 is a KV that was closed", [8, 9], [1, 1], [0, 0], [one, closed])
        refused("the KV of request 1 is of another model", [8, 9], [1, 1], [0, 0], [one, foreign])
        refused("2 lengths and 0 KVs were given", [8, 9], [1, 1], [0, 0], ())
        with pytest.raises(UserError, match="it is a KV that was closed"):
            closed.fork()
        with pytest.raises(UserError, match="seed is -1"):
            model.new_kv(seed=-1)


def test_kvs_hold_what_is_before_their_requests_where_a_call_fails(model: Model, monkeypatch: Any) -> None:
    with model.new_kv() as one, model.new_kv() as two, model.new_kv() as three:
        model.infer_batch([5] * 470, [70, 400], [0, 0], [one, two])
        with pytest.raises(PoolFullError, match="of its 20 pages of 64 positions free, and 1 are needed"):
            model.infer_batch([7] * 780, [380, 400], [60, 0], [one, three])
        assert (one.length, two.length, three.length) == (60, 400, 0)
        drawn, calls = one.sampler_state, iter([5])

        def failing(*_: Any) -> int:
            if token := next(calls, None):
                return token
            raise NotFiniteError

        monkeypatch.setattr(Sampler, "__call__", failing)
        with pytest.raises(UserError, match="request 1: the logits hold values that are not finite"):
            model.infer_batch([7, 7], [1, 1], [60, 400], [one, two])
        assert (one.length, two.length, one.sampler_state) == (60, 400, drawn)


def test_a_pool_that_is_full_queues_and_then_refuses(model: Model) -> None:
    """Queued as long as an answer is under way that may give pages; refused where nobody is."""
    scheduler = model._open().scheduler
    with model.new_kv() as one, model.new_kv() as two, model.new_kv() as three:
        model.infer_batch(
            [11] * 380 + [12] * 380 + [13] * 340, [380, 380, 340], [0] * 3, [one, two, three]
        )  # all but two pages of 20
        waiting = [scheduler.add_request([9] * 70, 3, Sampler()) for _ in range(2)]
        larger = scheduler.add_request([8] * 190, 3, Sampler())
        scheduler.step()
        assert [one.error for one in (*waiting, larger)] == [None] * 3
        while not all(one.is_finished for one in (*waiting, larger)):
            scheduler.step()
        assert [len(one.token_ids) for one in waiting] == [3, 3]
        (result,) = model.generate_batch([[4] * 190])
        for error in (str(larger.error), result.error):
            assert "has 2 of its 20 pages of 64 positions free, and 3 are needed; wait for other" in error
    (result,) = model.generate_batch([[4] * 190], max_tokens=2)
    assert result.token_ids


def test_a_pool_that_cannot_be_is_reported_when_the_model_is_loaded(monkeypatch: Any) -> None:
    with pytest.raises(UserError, match="kv_pool is 63 positions, and a page has 64; give 64 or more"):
        load("demo", kv_pool=63)
    with pytest.raises(TooLittleMemoryError, match=r"KV pool 3576\.3 GiB.*: give a smaller kv_pool, "):
        load("demo", kv_pool=10**9)


def test_what_is_not_built_is_refused_by_its_name(model: Model) -> None:
    with pytest.raises(UserError, match="num_beams is 4: beam search is not built"):
        model.generate("Hello", num_beams=4)
    (result,) = model.generate_batch([{"prompt": "Hello", "num_beams": 2}])
    assert result.error.startswith("num_beams is 2: beam search is not built")
    with pytest.raises(UserError, match="pipeline_parallel_size is 2: pipeline parallelism is not built"):
        load("demo", pipeline_parallel_size=2)
