"""What tests of models with a state of layers share: the same bits however a sequence is scheduled, taken
back, swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from aerie.engine.forward import decode_step, prefill
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence
from aerie.engine.sampler import Sampler
from aerie.engine.saved_sequence import restore_sequence, save_sequence
from aerie.engine.session import Session
from tests.engine.scheduling import NEW, Arrival, Family, Listening, run, sampler


def bits(model: Any, prompt: list[int], fed: list[int], parts: list[int]) -> bytes:
    """Of the rows of a prompt in parts that end at these positions, and of tokens after it."""
    cache, rows = model.new_cache(len(prompt) + len(fed)), []
    for part in np.split(np.array(prompt), parts):
        rows += [*prefill(model, part.tolist(), cache)]
    rows += [decode_step(model, token, cache) for token in fed]
    return np.array(rows).tobytes()


def check_parts(session: Session, tokens: list[int]) -> None:
    """tokens: 79. Parts of one, two and three tokens too, which reach back to more than one part."""
    prompt, fed = tokens[:71], tokens[71:]
    assert bits(session.model, prompt, fed, [1, 2, 5, 35, 64]) == bits(session.model, prompt, fed, [])


def check_taken_back(session: Session, tokens: list[int], lengths: Iterable[int]) -> None:
    """tokens: 70, of which those after each of these lengths are others first, and are taken back."""
    cache = session.model.new_cache(70)
    prefill(session.model, tokens[:66], cache)
    expected = [decode_step(session.model, token, cache).tobytes() for token in tokens[66:]]
    for length in lengths:
        cache.length = length
        for token in tokens[length:]:
            decode_step(session.model, (token + 1) % 500, cache)
        cache.length = min(length, 63)
        prefill(session.model, tokens[cache.length : 66], cache)
        found = [decode_step(session.model, token, cache).tobytes() for token in tokens[66:]]
        assert found == expected, length


def together(family: Family, pages: int, spare: int) -> tuple[list[Any], int]:
    """All requests at once, two of them stopped on the way: their tokens and bits, and how often one gave
    way."""
    scheduler, heard = family.scheduler(pages, spare), []

    def arrival(number: int, prompt: list[int]) -> Arrival:
        listening = sampler(number)
        heard.append(listening)
        return Arrival(
            number // 3,
            lambda: scheduler.add_request(prompt, NEW, listening),
            lambda request, _: number in (4, 7) and len(request.token_ids) >= 2,
        )

    requests = run(scheduler, [arrival(*each) for each in enumerate(family.prompts)])
    assert [one.error for one in requests] == [None] * len(requests)
    made = [(list(one.token_ids), one_heard.bits) for one, one_heard in zip(requests, heard, strict=True)]
    return made, scheduler.stats.preemptions


def check_batch(family: Family, pages: int, spare: int) -> None:
    """Each has the bits that it has alone. Prompts that begin alike share pages; of 40 all have room, of
    fewer one is computed again or swapped out; two are stopped."""
    made, preemptions = together(family, pages, spare)
    for number, (found, alone) in enumerate(zip(made, family.alone, strict=True)):
        count = len(found[0])
        assert (found[0], found[1][:count]) == (alone[0][:count], alone[1][:count]), number
    assert bool(preemptions) == (pages < 40)


def check_prefix(family: Family, text: list[int]) -> None:
    """text: two pages and a token. The token after the pages starts from what they keep."""
    scheduler = family.scheduler(24)
    first, again = (list(scheduler.add_request(text, 3, Sampler())) for _ in range(2))
    assert first == again
    other = [*text[: 2 * PAGE_SIZE], 7]
    longer, heard = scheduler.add_request(other, 3, found := Listening()), Listening()
    alone = list(family.scheduler(24).add_request(other, 3, heard))
    assert (list(longer), found.bits) == (alone, heard.bits)
    assert longer.cached_tokens == 2 * PAGE_SIZE


def copy_page(array: Any, page: int, pages: int, to: Any, target: int, to_pages: int) -> None:
    """Between pools of so many pages."""
    rows = array.shape[2] // pages
    assert to.shape[2] == rows * to_pages
    to[:, :, target * rows : (target + 1) * rows] = array[:, :, page * rows : (page + 1) * rows]


def check_saved(session: Session, tokens: list[int], folder: Path) -> None:
    """tokens: 80. Restored in other pages, the sequence goes on with the same bits. folder: a new one."""
    model = session.model
    cache = model.new_cache(80)
    prefill(model, tokens[:70], cache)
    save_sequence(cache, None, folder, {"made by": "this"})
    expected = [decode_step(model, token, cache).tobytes() for token in tokens[70:]]
    pool = model.new_pool(4)
    PagedSequence(pool).reserve(1)  # so that pages are others
    restored, _ = restore_sequence(pool, folder, {"made by": "this"}, session.grammar_compiler)
    other = model.new_cache(80)
    for page, target in zip(restored.pages, other.pages, strict=False):
        for ours, theirs in zip(pool._arrays, other.pool._arrays, strict=True):
            copy_page(ours, page, 4, theirs, target, len(other.pages))
    other.advance(tokens[:70])
    assert [decode_step(model, token, other).tobytes() for token in tokens[70:]] == expected
