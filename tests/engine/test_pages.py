"""Pages of a pool: every one free or held, whatever is done; found again by what they hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.layer_masks import layer_masks
from aerie.engine.layer_states import LayerStates
from aerie.engine.numerics import bf16
from aerie.engine.page_manager import PAGE_SIZE, PageManager, PoolFullError
from aerie.engine.page_pool import PagedSequence, PagePool, page_bytes, pages_for

SIZES: dict[str, Any] = {
    "layers_with_attention": (0, 1),
    "states": LayerStates((), 0, 0),
    "num_key_value_heads": 2,
    "head_dim": 4,
    "context": 512,
}
CONFIG = cast(ModelConfig, SimpleNamespace(**SIZES, masks=layer_masks(2, None, frozenset())))


def pool_of(pages: int, first_key: bytes = b"model", window: int | None = None) -> PagePool:
    masks = layer_masks(2, window, frozenset(range(2)))
    return PagePool(cast(ModelConfig, SimpleNamespace(**SIZES, masks=masks)), pages, first_key)


def write(sequence: PagedSequence, tokens: list[int]) -> None:
    """Run tokens: what is written depends on the token and its position."""
    first = sequence.length
    sequence.reserve(len(tokens))
    for array in (array for layer in sequence.pool.layers for array in layer):
        array[:, sequence.pool_positions(first, len(tokens))] = np.array(tokens)[:, None] + first
    sequence.advance(tokens)


def held(sequence: PagedSequence) -> Any:
    """What the sequence reads, of one head of the first layer."""
    return sequence.pool.layers[0][0][0, sequence.pool_positions(0, sequence.length), 0].astype(np.float32)


@pytest.mark.parametrize(("seed", "window"), [*((seed, None) for seed in range(6)), (6, 30), (7, 50)])
def test_the_books_agree_after_every_operation(seed: int, window: int | None) -> None:
    """Sequences that begin alike, grow, fork, go back and end, in a pool that is often full; and release what
    is behind their window."""
    rng, pool = np.random.default_rng(seed), pool_of(12, window=window)
    texts = [[int(each) for each in rng.integers(0, 3, 400)] for _ in range(2)]
    texts.append(texts[0][:200] + texts[1][200:])
    living: dict[PagedSequence, list[Any]] = {}
    happened = dict.fromkeys(("found", "full", "copied", "forked", *(("released",) if window else ())), 0)
    for _ in range(400):
        what = rng.choice(["begin", "grow", "grow", "fork", "back", "end"])
        one = list(living)[rng.integers(len(living))] if living else None
        try:
            if what == "begin":
                text = texts[rng.integers(3)]
                new = PagedSequence(pool)
                happened["found"] += new.match_prefix(text)
                living[new] = text
            elif one is None:
                continue
            elif what == "grow":
                if window:
                    one.release_behind_window()
                    happened["released"] += one.first_held
                shared = one._shared_pages(one.length)
                write(one, living[one][one.length : one.length + int(rng.integers(1, 100))] or [7])
                happened["copied"] += len(shared)
            elif what == "fork":
                living[one.fork()] = [*one.token_ids, *map(int, rng.integers(0, 3, 100))]
                happened["forked"] += 1
            elif what == "back":
                one.truncate(int(rng.integers(one.length + 1)))
            else:
                del living[one]
                one.release()
        except PoolFullError:
            happened["full"] += 1
        pool.manager.check_invariants()
        holders = [sum(page in each.pages for each in living) for page in range(12)]
        assert pool.manager._ref_counts == holders
        assert pool.manager.free_count == holders.count(0)
    assert all(happened.values()), happened
    for one in living:
        one.release()
    assert pool.manager.free_count == 12


def test_pages_behind_the_window_are_released_and_found_again() -> None:
    """All but one that a truncation may need; farther back there is nothing to go on from."""
    pool, tokens = pool_of(12, window=70), list(range(10 * PAGE_SIZE))
    one = PagedSequence(pool)
    write(one, tokens)
    one.release_behind_window()
    assert (one.first_held, pool.manager.free_count) == (7 * PAGE_SIZE, 9)
    with pytest.raises(IndexError):
        held(one)
    write(one, [5] * 3)
    copy = one.fork()
    copy.truncate(7 * PAGE_SIZE + 69)
    assert (copy.length, copy.held_pages) == (7 * PAGE_SIZE + 69, one.pages[7:9])
    assert one.common_prefix([*tokens[:600], 9, 9]) == 600
    assert one.common_prefix([*tokens[: 7 * PAGE_SIZE + 68], 900, 9]) == 0
    copy.truncate(7 * PAGE_SIZE + 68)
    assert (copy.length, copy.pages, copy.first_held) == (0, [], 0)
    assert copy.match_prefix([*tokens[:300], 9]) == 4 * PAGE_SIZE
    np.testing.assert_array_equal(held(copy), np.arange(4 * PAGE_SIZE).astype(bf16).astype(np.float32))
    copy.release()
    one.release()
    assert pool.manager.free_count == 12


def test_a_copy_is_made_before_a_shared_page_is_written() -> None:
    pool = pool_of(4)
    one = PagedSequence(pool)
    write(one, [1] * 70)
    other = one.fork()
    before = held(one)
    write(other, [2] * 10)
    write(one, [3] * 4)
    assert one.pages[0] == other.pages[0]
    assert one.pages[1] != other.pages[1]
    np.testing.assert_array_equal(held(one)[:70], before)
    np.testing.assert_array_equal(held(other)[:70], before)
    assert (held(one)[70], held(other)[70]) == (73, 72)


def test_full_and_computed_pages_are_found_but_never_the_last_token() -> None:
    pool = pool_of(8)
    tokens = list(range(2 * PAGE_SIZE))
    one = PagedSequence(pool)
    one.reserve(len(tokens))
    assert PagedSequence(pool).match_prefix([*tokens, 1]) == 0  # not computed yet
    one.advance(tokens)
    assert PagedSequence(pool).match_prefix([*tokens, 1]) == 2 * PAGE_SIZE
    assert PagedSequence(pool).match_prefix(tokens) == PAGE_SIZE
    assert PagedSequence(pool).match_prefix([5, *tokens]) == 0
    assert (
        PagedSequence(pool).match_prefix(tokens[PAGE_SIZE:] + tokens) == 0
    )  # the same page after another beginning
    pages = one.pages[:]
    one.release()
    found = PagedSequence(pool)
    assert found.match_prefix([*tokens, 1]) == 2 * PAGE_SIZE
    assert found.pages == pages


def test_a_page_that_is_written_anew_is_not_found_by_what_it_had() -> None:
    """Not before the new tokens are computed either, and a page that others hold goes on being found."""
    pool = pool_of(4)
    one = PagedSequence(pool)
    write(one, [1] * PAGE_SIZE)
    one.truncate(10)
    one.reserve(5)
    assert PagedSequence(pool).match_prefix([1] * 100) == 0
    one.advance([2] * 54)
    other = one.fork()
    other.truncate(20)
    write(other, [3] * 44)
    assert PagedSequence(pool).match_prefix([1] * 10 + [2] * 54 + [0]) == PAGE_SIZE
    assert held(one)[63] != held(other)[63]


def test_pages_with_or_after_a_token_that_was_not_made_by_blocks_are_not_found() -> None:
    pool = pool_of(8)
    tokens = list(range(3 * PAGE_SIZE))
    one = PagedSequence(pool)
    one.reserve(len(tokens))
    one.advance(tokens[:PAGE_SIZE])
    one.advance(tokens[PAGE_SIZE : PAGE_SIZE + 1], reusable=False)
    one.advance(tokens[PAGE_SIZE + 1 :])
    assert PagedSequence(pool).match_prefix([*tokens, 1]) == PAGE_SIZE


def test_what_was_left_is_free_after_the_next_look() -> None:
    pool = pool_of(4)
    one = PagedSequence(pool)
    write(one, [1] * 70)
    pool.release_later(one)
    assert pool.manager.free_count == 2
    pool.collect_released()
    assert pool.manager.free_count == 4


def test_what_was_let_go_longest_ago_is_taken_first_and_its_end_before_its_beginning() -> None:
    pool = pool_of(4)
    old, new = (PagedSequence(pool) for _ in range(2))
    write(old, [1] * 2 * PAGE_SIZE)
    write(new, [2] * 2 * PAGE_SIZE)
    old.release()
    new.release()
    write(PagedSequence(pool), [3])
    assert PagedSequence(pool).match_prefix([1] * 200) == PAGE_SIZE
    assert PagedSequence(pool).match_prefix([2] * 200) == 2 * PAGE_SIZE


def test_pools_of_other_models_have_other_keys() -> None:
    keys = [list(pool_of(1).page_keys([1] * PAGE_SIZE, first)) for first in (b"a", b"b")]
    assert keys[0] != keys[1]


def test_embeddings_have_no_key() -> None:
    tokens: Any = [*range(PAGE_SIZE), np.zeros(4), *range(PAGE_SIZE)]
    assert len(list(pool_of(1).page_keys(tokens, b"first"))) == 1


def test_a_full_pool_is_reported_and_changes_nothing() -> None:
    manager = PageManager(3)
    manager.allocate(1)
    with pytest.raises(
        PoolFullError, match=r"has 2 of its 3 pages of 64 positions free, and 3 are needed; wait"
    ):
        manager.allocate(3)
    assert manager.free_count == 2
    with pytest.raises(ValueError, match="held by nobody"):
        manager.release([2])


@pytest.mark.parametrize(
    ("positions", "available", "pages"),
    [(640, None, 10), (None, None, 32), (None, 40 * page_bytes(CONFIG), 10), (None, 1, 8)],
)
def test_how_large_a_pool_is(positions: int | None, available: int | None, pages: int) -> None:
    assert pages_for(CONFIG, positions, 4, available) == pages


def test_a_pool_of_less_than_a_page_is_refused() -> None:
    with pytest.raises(UserError, match="kv_pool is 63 positions, and a page has 64; give 64 or more"):
        pages_for(CONFIG, 63, 4, None)
