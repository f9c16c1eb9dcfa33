"""Layers with linear attention: against transformers, and the same however they are scheduled, taken back,
swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.delta_states import DeltaStates, decays_and_rates, delta_states
from aerie.engine.errors import ConfigError
from aerie.engine.forward import decode_step, prefill
from aerie.engine.layer_states import BEFORE_START, DeltaHeads
from aerie.engine.numerics import bf16
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.saved_sequence import restore_sequence, save_sequence
from aerie.engine.session import Session
from aerie.kernel_builder.delta_rows import state_shape
from aerie.runtime import select_backend
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"seq_len": 64},
            "--seq-len (SEQ_LEN) asks for programs of 64 tokens, and linear attention has programs of rows "
            "alone, which go on from a state in pages: leave it out",
        ),
        (
            {"weights": "q4"},
            "--weights (WEIGHTS) is 'q4', and linear attention has no programs of weights in blocks: leave "
            "it out, for bf16",
        ),
        (
            {"context_end": "shift"},
            "context_end (CONTEXT_END) is 'shift', which drops tokens, and 2 layers of this model keep a "
            "state, not keys and values: what these keep does not move with the positions behind: leave "
            "context_end out",
        ),
        (
            {"devices": (0, 1)},
            "2 devices cannot share this model (4 query heads, 2 key/value heads, FFN width 512): it has "
            "linear attention, whose heads are not divided among devices; what works: 1",
        ),
    ],
)
def test_what_is_not_built_is_refused(folder: Path, options: Any, message: str) -> None:
    chosen = RuntimeOptions(
        **{"seq_len": None, "backend": select_backend("virtual"), "cache_dir": default_cache_dir()} | options
    )
    with pytest.raises(UserError) as caught:
        prepare_runtime(open_checkpoint(folder), chosen, Reporter())
    assert str(caught.value) == message


def test_a_wide_value_that_the_output_projection_has_not(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint(seed=7, **QWEN | {"linear_value_head_dim": 32})
    chosen = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    message = r"linear_num_value_heads \* linear_value_head_dim=128 is not .*=256, and la"
    with pytest.raises(ConfigError, match=message):
        prepare_runtime(open_checkpoint(folder), chosen, Reporter())


def test_the_state_of_a_page_comes_back_from_its_rows() -> None:
    """And the rows of a call are cut at the ends of pages."""
    heads = DeltaHeads(1, 2, 16, 32)
    layers = delta_states((0,), heads)
    states = DeltaStates([np.zeros((1, 3 * PAGE_SIZE, layers.width), bf16)], heads, 4)
    at = np.arange(PAGE_SIZE - 1, PAGE_SIZE + 2)[:, None] + np.arange(-PAGE_SIZE, 1)
    states.set_positions(np.where(at < 0, BEFORE_START, at + PAGE_SIZE))
    first, second = states.runs
    assert first == (0, 1, 1, PAGE_SIZE - 1, BEFORE_START)
    assert second == (1, 3, 2, 0, 1)
    assert not states.state_before(0, first).any()
    state = np.random.default_rng(0).standard_normal(state_shape(2, 16, 32)).astype(np.float32)
    states.store_state(0, second, 2 * state)  # which is not at the end of its page
    states.store_state(0, first, state)
    assert states.state_before(0, second).tobytes() == state.tobytes()
    with pytest.raises(IndexError, match=r"positions 0..192 in a pool of 192"):
        states.set_positions(np.full((1, PAGE_SIZE + 1), 192) * (np.arange(PAGE_SIZE + 1) > 0))


def test_decays_and_rates_are_those_of_transformers() -> None:
    """At numbers so large that exp would overflow too."""
    torch = pytest.importorskip("torch")
    given = np.array([[0.5, -200, 90, 1, -120, 3, 7, 7]], np.float32).astype(bf16)
    a_log, dt_bias = np.array([0.3, -2, 1], bf16), np.array([1, 0.5, -1], bf16)
    found = decays_and_rates(given, 3, a_log, dt_bias)[0]
    a, b, log, bias = (
        torch.from_numpy(x.astype(np.float32)) for x in (given[0, :3], given[0, 3:6], a_log, dt_bias)
    )
    decay = (-log.exp() * torch.nn.functional.softplus(a + bias)).exp()
    np.testing.assert_allclose(found[:, 0], decay.numpy(), rtol=1e-6, atol=1e-30)
    assert found[:, 1].tolist() == b.bfloat16().sigmoid().float().tolist()


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
