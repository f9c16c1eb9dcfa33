"""What layers without attention keep of a sequence: against transformers, and the same however it is
scheduled, taken back, swapped out, found again or saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine import layer_states
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import ConfigError
from aerie.engine.layer_states import BEFORE_START, LayerStates, StateRows, read_positions
from aerie.engine.native import native_attention
from aerie.engine.numerics import bf16
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import page_bytes
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.engine.static_form import static_sizes
from aerie.runtime import select_backend
from tests.engine.checkpoints import edit_json
from tests.engine.scheduling import Family, session_of
from tests.engine.state_checks import (
    check_batch,
    check_parts,
    check_prefix,
    check_saved,
    check_taken_back,
    together,
)
from tests.engine.test_drawn_schedules import check as check_drawn_schedules

KINDS = ["conv", "full_attention", "conv"]
LFM2 = {
    "family": "Lfm2",
    "num_hidden_layers": 3,
    "layer_types": KINDS,
    "block_auto_adjust_ff_dim": False,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
    "vocab_size": 1500,
}
REACH = 2


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(seed=7, **LFM2)


def opened(folder: Path, decode: str = "rows") -> Session:
    return session_of(open_checkpoint(folder), decode)


@pytest.fixture(scope="module", params=["guide", "rows"])
def session(request: pytest.FixtureRequest, folder: Path) -> Session:
    return opened(folder, request.param)


@pytest.fixture(scope="module")
def family(folder: Path) -> Family:
    return Family(opened(folder))


def test_logits_are_those_of_transformers(against: Any, folder: Path, session: Session) -> None:
    against.check(session.model, folder, 71, 8)


def test_a_prompt_in_parts_has_the_bits_of_the_whole(against: Any, session: Session) -> None:
    check_parts(session, against.random_tokens(session.model, 79))


def test_tokens_that_are_taken_back_leave_nothing(against: Any, session: Session) -> None:
    check_taken_back(session, against.random_tokens(session.model, 70), (66, 65, 64, 63))


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "spare"), [(40, 0), (8, 0), (8, 6)], ids=["room", "again", "swapped"])
def test_a_batch_has_the_bits_of_each_alone(family: Family, pages: int, spare: int) -> None:
    check_batch(family, pages, spare)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda positions: np.roll(positions, 1, axis=0),
        lambda positions: np.where(positions % PAGE_SIZE == PAGE_SIZE - 1, BEFORE_START, positions),
    ],
    ids=["of another row", "nothing of the page before"],
)
@pytest.mark.slow
def test_a_wrong_state_would_be_seen(family: Family, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = StateRows.set_positions

    def faulty(self: StateRows, positions: Any) -> None:
        other = wrong(positions)
        other[:, -1] = positions[:, -1]
        right(self, other)

    monkeypatch.setattr(StateRows, "set_positions", faulty)
    made, _ = together(family, 24, 0)
    assert [found[1][:1] for found in made] != [alone[1][:1] for alone in family.alone]


@pytest.mark.slow
def test_drafts_change_no_token(folder: Path) -> None:
    """Rejected drafts are forgotten, and their rows are written anew."""
    check_drawn_schedules(opened(folder), ["lookup"])


def test_a_prefix_is_found_with_its_state(against: Any, family: Family) -> None:
    check_prefix(family, against.random_tokens(family.session.model, 2 * PAGE_SIZE + 1))


def test_a_saved_sequence_has_its_state(against: Any, session: Session, tmp_path: Path) -> None:
    check_saved(session, against.random_tokens(session.model, 80), tmp_path / "saved")


# The parts by themselves.


def test_which_rows_are_read() -> None:
    assert read_positions(0, 3, 2).tolist() == [[-2, -1, 0], [-1, 0, 1], [0, 1, 2]]
    assert read_positions(7, 1, 0).tolist() == [[7]]


@pytest.mark.parametrize("is_native", [False, True])
def test_rows_are_stored_and_gathered(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over pages that lie apart, with zeros before the start and behind the tokens."""
    if not is_native:
        monkeypatch.setattr(layer_states, "native_attention", lambda: None)
    elif native_attention() is None:
        pytest.skip("there is no C++ compiler")
    state = np.zeros((1, 12, 4), bf16)
    rows = StateRows([state])
    new, out = np.arange(1, 17).reshape(4, 4).astype(bf16), np.full((3, 3, 4), 9, bf16)
    rows.set_positions(np.array([[BEFORE_START, BEFORE_START, 8], [BEFORE_START, 8, 9]]))
    rows.store(0, new).run()
    assert state[0, 8:10].tolist() == new[:2].tolist()
    rows.gather(0, out).run()
    zero = [0.0] * 4
    first, second = new[:2].tolist()
    assert out.tolist() == [[zero, zero, first], [zero, first, second], [zero, zero, zero]]
    with pytest.raises(IndexError, match=r"positions 3..12 in a pool of 12"):
        rows.set_positions(np.array([[3, 12]]))
    with pytest.raises(IndexError, match=r"positions -2..3 in a pool of 12"):
        rows.set_positions(np.array([[-2, 3]]))


def test_what_a_page_takes(folder: Path) -> None:
    """Keys and values of one layer, and a row of two others."""
    config = load_config(folder)
    assert config.states == LayerStates((0, 2), 256, REACH)
    assert page_bytes(config) == PAGE_SIZE * (2 * 2 * 64 + 2 * 256) * 2
    assert config.with_layers(1).layers_with_conv == frozenset()
    assert config.with_layers(7).layers_with_conv == {0, 2, 3, 5, 6}


# What is refused.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"context_end": "sink:2"},
            "context-end is 'sink:2' (CONTEXT_END), and its number must be from 3 to 508: of the 512 "
            "positions of the context some must be left to drop, and the last 2 stay, which short "
            "convolutions read; give another",
        ),
    ],
)
def test_what_is_not_built_is_refused(folder: Path, options: Any, message: str) -> None:
    chosen = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), **options)
    with pytest.raises(UserError) as caught:
        prepare_runtime(open_checkpoint(folder), chosen, Reporter())
    assert str(caught.value) == message


def test_chunks_and_the_static_form_are_refused(folder: Path, family: Family) -> None:
    with pytest.raises(
        UserError, match=r"^chunks are .*, and 2 .*: behind a chunk it depends on .* are computed once$"
    ):
        family.session.chunk_registry()
    with pytest.raises(
        UserError,
        match=r"^a Lfm2ForCausalLM is exported as one program, and 2 .* no state among .* aerie run$",
    ):
        static_sizes(load_config(folder), 1, 1, 8, 64)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"layer_types": ["conv"] * 3},
            "layer_types has 3 entries for 3 layers, 3 of them 'conv'; each layer",
        ),
        ({"layer_types": KINDS[:2]}, "layer_types has 2 entries for 3 layers, 1 of them 'conv'; each layer"),
        (
            {"layer_types": ["conv", "full_attention", "mamba"]},
            "layer_types has 'mamba'; only 'full_attention'",
        ),
        ({"conv_L_cache": 0}, "conv_L_cache is 0; it must be a whole number, 1 or more"),
        ({"conv_L_cache": 65}, "conv_L_cache is 65; no more than 64 are supported"),
        ({"conv_bias": True}, "conv_bias is True: no launch adds a bias there"),
        ({"block_use_swiglu": False}, "block_use_swiglu is False: the FFN's launch computes SwiGLU"),
        ({"use_pos_enc": False}, "use_pos_enc is False: attention turns heads by their positions"),
        (
            {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1e9},
            "the FFN's width, from intermediate_size and block_ffn_dim_multiplier, is 341000000000; it must",
        ),
    ],
)
def test_a_config_that_says_another_model(folder: Path, entries: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    edit_json(tmp_path / "config.json", **entries)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert message in str(caught.value)


def test_the_entries_of_released_files(folder: Path, tmp_path: Path) -> None:
    """LFM2-350M's: the FFN's width by its first name, which layers attend, and tied embeddings by theirs."""
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    edit_json(
        tmp_path / "config.json",
        layer_types=None,
        full_attn_idxs=[2],
        block_ff_dim=6656,
        block_auto_adjust_ff_dim=True,
        tie_word_embeddings=None,
        tie_embedding=False,
    )
    config = load_config(tmp_path)
    assert (config.intermediate_size, config.layers_with_conv) == (4608, frozenset({0, 1}))
    assert not config.tie_word_embeddings


def test_heads_that_are_not_as_wide_as_the_model(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint(seed=7, **LFM2 | {"head_dim": 32})
    chosen = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    with pytest.raises(
        ConfigError, match=r"num_attention_heads \* head_dim=128 is not hidden_size=256, and la"
    ):
        prepare_runtime(open_checkpoint(folder), chosen, Reporter())
