"""Layers with linear attention: against transformers, and the same however they are scheduled, taken back,
swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.admission import MAX_RUNNING_REQUESTS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.delta_states import NOT_A_PAGE, DeltaHistory, GateFactors, decays_and_rates, plan_delta
from aerie.engine.errors import ConfigError
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.memory_estimate import SessionNeeds, estimate_all_variants, footprint, gathered_bytes
from aerie.engine.numerics import bf16
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import page_bytes, pages_for, pool_bytes
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.runtime import select_backend
from tests.engine.scheduling import Family, session_of
from tests.engine.state_checks import (
    check_batch,
    check_parts,
    check_prefix,
    check_saved,
    check_taken_back,
)
from tests.engine.test_drawn_schedules import check as check_drawn_schedules
from tests.engine.test_quantised_model import in_bf16, open_session, passes

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
    return make_checkpoint(seed=8, **QWEN)


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
            {"context_end": "shift"},
            "context_end (CONTEXT_END) is 'shift', which drops tokens, and 2 layers of this model keep a "
            "state, not keys and values: pages keep it at their own ends alone, and end elsewhere when "
            "positions move: leave context_end out",
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


def test_a_step_is_cut_into_runs() -> None:
    """At the ends of pages, of programs, and of the tokens that stay; from the state on, over rows that are
    held."""
    history = DeltaHistory(1, DeltaHeads(1, 2, 16, 32), 4)
    history.state_at, history.stop = 60, 64
    sequence: Any = SimpleNamespace(pages=[3, 1, 2], history=history)
    plan = plan_delta([(sequence, range(62, 80), 66)], 8)
    cuts = [(run.first, run.stop, run.is_first, run.is_kept, run.page) for run in plan.runs]
    assert cuts == [
        (60, 64, True, False, 3),
        (64, 66, False, True, NOT_A_PAGE),
        (66, 74, False, False, NOT_A_PAGE),
        (74, 80, False, False, NOT_A_PAGE),
    ]
    assert not history.can_go_on_at(66)  # before all layers have run
    plan.finish()
    going = [at for at in range(85) if history.can_go_on_at(at)]
    assert going == [*range(66, 81)]
    history.forget_after(70)
    assert not history.can_go_on_at(71)
    copy = history.copy()
    assert copy.can_go_on_at(70)
    copy.states[...] = copy.rows[...] = 1
    assert not history.states.any()
    assert not history.rows.any()
    history.state_at, history.stop = 64, 128  # by whose last row that of position 63 is replaced
    assert [at for at in (64, 66, 67, 128) if history.can_go_on_at(at)] == [67, 128]


@pytest.mark.parametrize("positions", [640, 64 * 64])
def test_the_estimate_counts_what_each_sequence_keeps(session: Session, positions: int) -> None:
    """Once beside the pages of one prompt, and with a pool once for each sequence that runs at once."""
    config = session.model.config
    assert config.delta
    history = DeltaHistory(len(config.states.layers), config.delta, config.conv_taps)
    nbytes = history.states.nbytes + history.rows.nbytes
    assert footprint(config, SessionNeeds(0, (), 0)).kv_cache == nbytes
    options = RuntimeOptions(None, select_backend("virtual"), Path("unused"), kv_pool=positions)
    pages, contexts = positions // 64, options.variant_set(config).contexts
    running = min(pages, MAX_RUNNING_REQUESTS)
    in_pages = pool_bytes(config, pages) + gathered_bytes(config, contexts)
    assert estimate_all_variants(config, options).kv_pool == in_pages + (running - 1) * nbytes
    available = 5 * nbytes + 4 * 9 * page_bytes(config)
    assert pages_for(config, None, 5, available) == 9


def test_decays_and_rates_are_those_of_transformers() -> None:
    """At numbers so large that exp would overflow too."""
    torch = pytest.importorskip("torch")
    given = np.array([[0.5, -200, 90, 1, -120, 3, 7, 7]], np.float32).astype(bf16)
    a_log, dt_bias = np.array([0.3, -2, 1], bf16), np.array([1, 0.5, -1], bf16)
    found = decays_and_rates(given, GateFactors.of_layer(a_log, dt_bias))[0]
    a, b, log, bias = (
        torch.from_numpy(x.astype(np.float32)) for x in (given[0, :3], given[0, 3:6], a_log, dt_bias)
    )
    decay = (-log.exp() * torch.nn.functional.softplus(a + bias)).exp()
    np.testing.assert_allclose(found[:, 0], decay.numpy(), rtol=1e-6, atol=1e-30)
    assert found[:, 1].tolist() == b.bfloat16().sigmoid().float().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q4", "q8"])
def test_weights_in_blocks_give_the_bits_of_bf16(folder: Path, kind: str) -> None:
    """Queries and their gates, of each head one part of a matrix, too. Decays and rates stay bf16."""
    checkpoint = open_checkpoint(folder, kind)
    found, plain = (
        open_session(each, variants="8x512", decode="rows") for each in (checkpoint, in_bf16(checkpoint))
    )
    kinds = {f"rms_gemms_rope_ar8_{kind}", f"rms_gemms_delta_ar8_{kind}_{kind}_bf16", f"o_ffn_ar8_{kind}"}
    assert kinds <= set(found.model.programs)
    assert passes(found) == passes(plain)


def test_a_prompt_in_parts_has_the_bits_of_the_whole(against: Any, session: Session) -> None:
    check_parts(session, against.random_tokens(session.model, 79))


def test_tokens_that_are_taken_back_leave_nothing(against: Any, session: Session) -> None:
    """Across the end of a page too, whose state is written anew."""
    check_taken_back(session, against.random_tokens(session.model, 70), (66, 63))


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "spare"), [(40, 0), (8, 0), (8, 6)], ids=["room", "again", "swapped"])
def test_a_batch_has_the_bits_of_each_alone(family: Family, pages: int, spare: int) -> None:
    check_batch(family, pages, spare)


@pytest.mark.slow
def test_drafts_change_no_token(folder: Path) -> None:
    """Rejected drafts are forgotten, and their rows are written anew."""
    check_drawn_schedules(session_of(open_checkpoint(folder), "rows"), ["lookup"])


def test_a_prefix_is_found_with_its_state(against: Any, family: Family) -> None:
    check_prefix(family, against.random_tokens(family.session.model, 2 * PAGE_SIZE + 1))


def test_a_saved_sequence_has_its_state(against: Any, session: Session, tmp_path: Path) -> None:
    check_saved(session, against.random_tokens(session.model, 80), tmp_path / "saved")
