"""One answer of a model with sliding windows, beyond its windows: the same bits in batches, with drafts,
where pages run out, from the prefix cache, from a file, and on several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aerie import Model, load
from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.saved_sequence import PagesFile, restore_sequence, save_sequence
from aerie.engine.scheduler import Scheduler, generate_alone
from aerie.engine.session import Session
from aerie.engine.strategies.speculative import SpeculativeStrategy
from aerie.runtime import select_backend
from tests.engine.scheduling import Arrival, Family, Listening, run, sampler, session_of
from tests.engine.test_speculative import Knowing, always

pytestmark = pytest.mark.slow

WINDOW = 40
MODELS: dict[str, dict[str, Any]] = {
    "all layers": {"family": "Mistral"},
    "some layers": {
        "family": "Qwen3",
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
SHARED: dict[str, Any] = {"seed": 7, "sliding_window": WINDOW, "max_position_embeddings": 512}
NEW = 70
"""Tokens of an answer: more than a window and a page."""


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(**SHARED, **MODELS[request.param])


@pytest.fixture(scope="module")
def family(folder: Path) -> Family:
    return Family(session_of(open_checkpoint(folder)))


def test_the_windows_are_shorter_than_the_texts(family: Family) -> None:
    config = family.session.model.config
    assert config.sliding_window == WINDOW < max(map(len, family.prompts)) / 2
    assert len(config.layers_with_window) in (1, 2)


@pytest.mark.parametrize("pages", [5, 40])
def test_in_company_and_where_pages_run_out(family: Family, pages: int) -> None:
    """All at once, in a pool that holds them and in one that holds the longest alone: swapped and anew."""
    scheduler = family.scheduler(pages, spare=pages)
    heard = [sampler(number) for number in range(len(family.prompts))]
    added = [
        partial(scheduler.add_request, prompt, 5, listening)
        for prompt, listening in zip(family.prompts, heard, strict=True)
    ]
    requests = run(scheduler, [Arrival(number // 3, add) for number, add in enumerate(added)])
    made = [(list(one.token_ids), listening.bits) for one, listening in zip(requests, heard, strict=True)]
    assert made == family.alone
    assert bool(scheduler.stats.preemptions) == (pages == 5)


def listener() -> Listening:
    return Listening(temperature=1.2, seed=5, logit_bias=dict.fromkeys((1, 2), -100.0))


def listened(add: Callable[[Listening], Iterable[int]]) -> tuple[list[int], list[bytes]]:
    return list(add(listening := listener())), listening.bits


def repeating(session: Session, count: int = 90) -> list[int]:
    """A prompt that lookup can guess from."""
    piece = np.random.default_rng(2).integers(3, session.model.config.vocab_size, 30).tolist()
    return (piece * (count // 30 + 1))[:count]


def test_an_answer_with_drafts_crosses_windows_and_pages(family: Family) -> None:
    """Many of them wrong: what a rejected draft wrote is behind no window."""
    session, prompt = family.session, repeating(family.session)
    plain = listened(lambda heard: generate_alone(session.model, prompt, NEW, heard))
    drafter, scheduler = Knowing(len(prompt), plain[0], 3), family.scheduler(12)
    requests: list[Request] = []

    def ask(heard: Listening) -> Request:
        strategy = partial(SpeculativeStrategy, drafter=drafter, length=always(7))
        requests.append(scheduler.add_request(prompt, NEW, heard, strategy=strategy))
        return requests[0]

    assert listened(ask) == plain
    assert 0 < requests[0].pass_counts.accepted < requests[0].pass_counts.drafted


def test_cached_pages_of_a_long_text_serve_a_part_of_it(family: Family) -> None:
    """A text that ends in the middle of another, of which pages behind the window may be gone."""
    session, text = family.session, repeating(family.session, 230)
    prompts = [text, text[:150], text[:128] + text[5:60], [*text, 9]]
    alone = [listened(partial(generate_alone, session.model, prompt, 5)) for prompt in prompts]
    scheduler = family.scheduler(24)
    again = [listened(partial(scheduler.add_request, prompt, 5)) for prompt in prompts]
    assert again == alone
    assert scheduler.stats.cached_tokens >= 64


def test_a_text_longer_than_its_pool(family: Family) -> None:
    """Where all layers have a window, pages behind it are released while the answer is made; where one has
    none, the answer ends with the pool, in one line."""
    session, prompt, pages = family.session, repeating(family.session, 200), 5
    plain = listened(lambda heard: generate_alone(session.model, prompt, 250, heard))
    scheduler = family.scheduler(pages)
    requests: list[Request] = []

    def ask(heard: Listening) -> Request:
        requests.append(scheduler.add_request(prompt, 250, heard))
        return requests[0]

    if scheduler.pool.window is None:
        with pytest.raises(PoolFullError, match="the KV pool has 0 of its 5 pages of 64 positions free"):
            listened(ask)
        return
    heard = listened(ask)
    assert heard == plain
    assert len(prompt) + 250 > pages * PAGE_SIZE
    scheduler.step()
    assert scheduler.pool.manager.free_count == pages


def test_preempted_behind_the_window(family: Family) -> None:
    """Swapped with the pages that are left, and computed anew where the swap space is too small."""
    session, prompts = family.session, [repeating(family.session, count) for count in (200, 170)]
    alone = [listened(partial(generate_alone, session.model, prompt, 90)) for prompt in prompts]
    for spare in (6, 0):
        scheduler = family.scheduler(7 if len(session.model.config.masks.windows) > 1 else 5, spare)
        heard = [listener() for _ in prompts]
        added = [
            partial(scheduler.add_request, prompt, 90, one)
            for prompt, one in zip(prompts, heard, strict=True)
        ]
        urgent = partial(scheduler.add_request, prompts[0][:150], 30, Listening(), 1)
        requests = run(scheduler, [*(Arrival(0, add) for add in added), Arrival(60, urgent)])
        assert [(list(one.token_ids), bits.bits) for one, bits in zip(requests, heard, strict=False)] == alone
        assert scheduler.stats.preemptions
        assert bool(scheduler.stats.swaps) == bool(spare)


@pytest.mark.parametrize("decode", ["guide", "rows"])
def test_a_dialog_goes_on_from_a_file(folder: Path, tmp_path: Path, decode: str) -> None:
    """And goes back to its beginning, where pages behind the window are needed again."""
    text = repeating(session_of(open_checkpoint(folder)), 180)

    def opened() -> Model:
        return load(folder, backend="virtual", variants="8,32x512", decode=decode)

    def goes_on(model: Model, answer: Sequence[int]) -> list[tuple[int, ...]]:
        return [
            model.generate([*text, *answer, 7, 8], 9).token_ids,
            model.generate(text[:100], 9).token_ids,
        ]

    with opened() as model:
        first = model.generate(text, NEW, logit_bias={1: -100.0, 2: -100.0})
        model.save(tmp_path / "dialog")
        expected = goes_on(model, first.token_ids)
    with opened() as other:
        assert other.restore(tmp_path / "dialog") > len(text)
        assert other.generate([*text, *first.token_ids, 7, 8], 9).usage.cached_tokens > WINDOW
        other.restore(tmp_path / "dialog")
        assert goes_on(other, first.token_ids) == expected
    with opened() as fresh:
        alone = [fresh.generate(prompt, 9).token_ids for prompt in ([*text, *first.token_ids, 7, 8],)]
        assert decode == "guide" or alone == expected[:1]


def test_on_two_devices(folder: Path, against: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to transformers as one device; alone, and behind the window in company, with the same bits."""
    monkeypatch.setenv("VNPU_DEVICES", "2")
    options = RuntimeOptions(
        None,
        select_backend("virtual"),
        default_cache_dir(),
        variants="8,32x512",
        decode="rows",
        devices=(0, 1),
    )
    session = prepare_runtime(open_checkpoint(folder), options, Reporter(quiet=True))
    against.check(session.model, folder, 150, 4)
    prompts = [repeating(session, count) for count in (200, 90)]
    alone = [listened(partial(generate_alone, session.model, prompt, NEW)) for prompt in prompts]
    pool = session.model.new_pool(8, b"this model")
    scheduler = Scheduler(session.model, pool)
    heard = [listener() for _ in prompts]
    added = [partial(scheduler.add_request, *each) for each in zip(prompts, [NEW] * 2, heard, strict=True)]
    requests = run(scheduler, [Arrival(0, add) for add in added])
    assert [(list(one.token_ids), bits.bits) for one, bits in zip(requests, heard, strict=True)] == alone
    assert (pool.window == WINDOW) == (len(session.model.config.masks.windows) == 1)


def test_a_file_that_lacks_what_a_model_sees_is_refused(family: Family, tmp_path: Path) -> None:
    """A sequence that was released behind its window, for a model that sees all."""
    config = family.session.model.config
    all_windows = replace(config, layers_with_window=frozenset([0, 1]))
    sequence = PagedSequence(PagePool(all_windows, 5))
    sequence.reserve(300)
    sequence.advance([7] * 300)
    sequence.release_behind_window()
    save_sequence(sequence, None, tmp_path / "text", {})
    grammars: Any = None
    restored, _ = restore_sequence(PagePool(all_windows, 5), tmp_path / "text", {}, grammars)
    assert (restored.first_held, restored.length, len(restored.held_pages)) == (192, 300, 2)
    full = replace(config, sliding_window=None, layers_with_window=frozenset())
    with pytest.raises(UserError, match="has no keys and values of its first 192 tokens, and this model"):
        restore_sequence(PagePool(full, 5), tmp_path / "text", {}, grammars)
    with pytest.raises(UserError, match="first 192 tokens, which no layer saw any more when it was saved"):
        PagesFile(tmp_path / "text", {})
