"""Layers with linear attention: against transformers, and the same however they are scheduled, taken back,
swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, prefill
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence
from aerie.engine.sampler import Sampler
from aerie.engine.saved_sequence import restore_sequence, save_sequence
from aerie.engine.session import Session
from tests.engine.scheduling import Family, Listening, session_of
from tests.engine.test_drawn_schedules import check as check_drawn_schedules
from tests.engine.test_layer_states import bits, together

QWEN = {
    "family": "Qwen3_5",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
    "vocab_size": 1500,
}


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(seed=7, **QWEN)


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return session_of(open_checkpoint(folder), "rows")


@pytest.fixture(scope="module")
def family(folder: Path) -> Family:
    return Family(session_of(open_checkpoint(folder), "rows"))


def test_logits_are_those_of_transformers(against: Any, folder: Path, session: Session) -> None:
    against.check(session.model, folder, 71, 8)


def test_a_prompt_in_parts_has_the_bits_of_the_whole(against: Any, session: Session) -> None:
    """Parts of one, two and three tokens too, whose convolutions reach back to more than one part."""
    tokens = against.random_tokens(session.model, 79)
    prompt, fed = tokens[:71], tokens[71:]
    assert bits(session.model, prompt, fed, [1, 2, 5, 35, 64]) == bits(session.model, prompt, fed, [])


def test_tokens_that_are_taken_back_leave_nothing(against: Any, session: Session) -> None:
    """Across the end of a page too, whose state is written anew."""
    tokens = against.random_tokens(session.model, 70)
    cache = session.model.new_cache(70)
    prefill(session.model, tokens[:66], cache)
    expected = [decode_step(session.model, token, cache).tobytes() for token in tokens[66:]]
    for length in (66, 63):
        cache.length = length
        for token in tokens[length:]:
            decode_step(session.model, (token + 1) % 500, cache)
        cache.length = min(length, 63)
        prefill(session.model, tokens[cache.length : 66], cache)
        found = [decode_step(session.model, token, cache).tobytes() for token in tokens[66:]]
        assert found == expected, length


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "spare"), [(40, 0), (8, 0), (8, 6)], ids=["room", "again", "swapped"])
def test_a_batch_has_the_bits_of_each_alone(family: Family, pages: int, spare: int) -> None:
    """Prompts that begin alike share pages; where pages run out, one is computed again or swapped out; two
    are stopped."""
    made, preemptions = together(family, pages, spare)
    for number, (found, alone) in enumerate(zip(made, family.alone, strict=True)):
        count = len(found[0])
        assert (found[0], found[1][:count]) == (alone[0][:count], alone[1][:count]), number
    assert bool(preemptions) == (pages < 40)


@pytest.mark.slow
def test_drafts_change_no_token(folder: Path) -> None:
    """Rejected drafts are forgotten, and their rows are written anew."""
    check_drawn_schedules(session_of(open_checkpoint(folder), "rows"), ["lookup"])


def test_a_prefix_is_found_with_its_state(against: Any, family: Family) -> None:
    """The next token starts from the state at the end of the page."""
    model, scheduler = family.session.model, family.scheduler(24)
    text = against.random_tokens(model, 2 * PAGE_SIZE + 1)
    first, again = (list(scheduler.add_request(text, 3, Sampler())) for _ in range(2))
    assert first == again
    other = [*text[: 2 * PAGE_SIZE], 7]
    longer, heard = scheduler.add_request(other, 3, found := Listening()), Listening()
    alone = list(family.scheduler(24).add_request(other, 3, heard))
    assert (list(longer), found.bits) == (alone, heard.bits)
    assert longer.cached_tokens == 2 * PAGE_SIZE


def test_a_saved_sequence_has_its_state(against: Any, session: Session, tmp_path: Path) -> None:
    model = session.model
    tokens = against.random_tokens(model, 80)
    cache = model.new_cache(80)
    prefill(model, tokens[:70], cache)
    save_sequence(cache, None, tmp_path / "saved", {"made by": "this"})
    expected = [decode_step(model, token, cache).tobytes() for token in tokens[70:]]
    pool = model.new_pool(4)
    PagedSequence(pool).reserve(1)  # so that pages are others
    restored, _ = restore_sequence(pool, tmp_path / "saved", {"made by": "this"}, session.grammar_compiler)
    other = model.new_cache(80)
    at, to = restored.pool_positions(0, 70), other.pool_positions(0, 70)
    for ours, theirs in zip(pool._arrays, other.pool._arrays, strict=True):
        theirs[:, :, to] = ours[:, :, at]
    other.advance(tokens[:70])
    assert [decode_step(model, token, other).tobytes() for token in tokens[70:]] == expected
