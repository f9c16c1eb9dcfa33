"""What attention with a window reads: a cache of the context that the window needs, with the bits of one of
all positions, and the bytes that the programs of that context move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.engine import variant_set, window_cache
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, prefill
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.layer_masks import aligned, positions_needed
from aerie.engine.model import LoadedModel
from aerie.engine.open_session import prepare_runtime
from aerie.engine.planner import VariantCall
from aerie.engine.program_library import RuntimeOptions, all_program_names, variant_set_for
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.engine.window_cache import WindowCache
from aerie.multi_launch_builder import program_store
from aerie.runtime import select_backend
from aerie.virtual_npu.timing import predict

WINDOW = 40
SMALL: dict[str, Any] = {
    "seed": 7,
    "family": "Qwen3",
    "max_position_embeddings": 2048,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(**SMALL)


def opened(folder: Path) -> Session:
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,128x2048", decode="rows"
    )
    return prepare_runtime(open_checkpoint(folder), options, Reporter())


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return opened(folder)


def contexts(cache: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = cache.executor._cache.contexts
    return found


@pytest.mark.slow
def test_logits_far_behind_the_window_are_those_of_transformers(
    against: ModuleType, folder: Path, session: Session
) -> None:
    against.check(session.model, folder, 700, 6)


def bits(model: LoadedModel, tokens: list[int], chunk: int) -> tuple[bytes, tuple[int, ...]]:
    """Of rows in chunks, then of 40 tokens one by one, and the contexts of the caches at the end."""
    cache, rows = model.new_cache(len(tokens)), []
    fed = len(tokens) - 40
    for first in range(0, fed, chunk):
        rows += [*prefill(model, tokens[first : min(fed, first + chunk)], cache)]
    rows += [decode_step(model, token, cache) for token in tokens[fed:]]
    return np.array(rows).tobytes(), contexts(cache)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "length", "own", "all_positions"), [(WINDOW, 600, 512, 768), (500, 900, 768, 1024)]
)
def test_the_bits_are_those_of_a_cache_of_all_positions(
    against: ModuleType,
    make_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    length: int,
    own: int,
    all_positions: int,
) -> None:
    """However the text is cut, at whatever position a span begins, and where it moves on."""
    session = opened(make_checkpoint(**SMALL | {"sliding_window": window}))
    tokens = against.random_tokens(session.model, length)
    with monkeypatch.context() as patch:
        for module in (variant_set, window_cache):
            patch.setattr(module, "positions_needed", lambda window, new: aligned(new.stop))
        patch.setattr(WindowCache, "_origin", lambda self, new: 0)
        expected, whole = bits(session.model, tokens, length - 40)
    assert whole == (all_positions, 2048)
    for chunk in (length - 40, 128, 77):
        assert bits(session.model, tokens, chunk) == (expected, (own, 2048))


def test_what_a_window_needs() -> None:
    """The same for each token of an answer, and never more than all positions."""
    assert [positions_needed(None, range(end)) for end in (1, 256, 257)] == [256, 256, 512]
    assert {positions_needed(512, range(end - 1, end)) for end in range(800, 9000, 7)} == {768}
    assert positions_needed(512, range(8192 - 128, 8192)) == 1024
    assert positions_needed(512, range(100)) == 256
    for end in range(300, 900, 13):
        first = max(0, end - 8 - 40 + 1)
        assert end - first // 256 * 256 <= positions_needed(40, range(end - 8, end))


@pytest.fixture(scope="module")
def gemma_1b(make_checkpoint: Callable[..., Path]) -> Any:
    """The config of Gemma 3 1B's heads and windows, in 6 layers."""
    config = load_config(make_checkpoint(**SMALL))
    return replace(
        config,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        layers_with_window=frozenset(range(5)),
        max_position_embeddings=8192,
    )


def moved(config: Any, rows: int, end: int, tokens: int) -> int:
    """Bytes of DDR that attention of all layers moves for `tokens` up to position `end`, in `rows`."""
    blocks = variant_set_for(config, f"{rows}x8192")
    own = blocks.contexts_of(VariantCall(rows, 8192, end - tokens, 0, tokens, 0, 0))
    names = [blocks.attention_programs(rows, own[number])[1] for number in config.masks.of_layer]
    nbytes = {
        one.name: sum(launch.ddr_bytes for launch in predict(one.text).launches)
        for one in program_store.load_programs_by_name(config.shape, [*dict.fromkeys(names)])
    }
    return sum(nbytes[name] for name in names)


@pytest.mark.slow
def test_tiles_that_no_row_sees_are_not_moved(gemma_1b: Any) -> None:
    """At 8192 tokens, with windows of 512 in five of six layers: as counted for the programs that run."""
    full = replace(gemma_1b, sliding_window=None, layers_with_window=frozenset())
    assert moved(gemma_1b, 8, 8192, 1) < 0.25 * moved(full, 8, 8192, 1)
    assert moved(gemma_1b, 128, 8192, 128) < 0.28 * moved(full, 128, 8192, 128)


def test_a_context_holds_the_rows_of_its_program(gemma_1b: Any) -> None:
    """Also where few of them are tokens: there is no program of more rows than positions."""
    blocks = variant_set_for(gemma_1b, None)
    for tokens in (1, 33, 129, 513, 600, 2048):
        for past in (0, 500, 4000):
            for call in blocks.plan(tokens, past):
                assert all(call.variant <= context <= call.context for context in blocks.contexts_of(call))
    windows, more = gemma_1b.masks.windows, blocks.window_contexts
    cache = GatheredCache(cast(Any, None), blocks.gathered_contexts, windows, more)
    assert cache.contexts_for([range(4000, 4513)], 2048) == (2048, 8192)
    assert cache.contexts_for([range(4000, 4513)]) == (1536, 8192)
    assert cache.contexts_for([range(4000, 4001)]) == (768, 4096)


def test_programs_of_windows_are_compiled_with_all_variants(gemma_1b: Any) -> None:
    """And named before a call, so that none is compiled while an answer is made."""
    blocks = variant_set_for(gemma_1b, "8,1024x8192")
    names = {name for name in all_program_names(gemma_1b, blocks) if "attn" in name}
    assert names == {
        *(f"cached_attn_ar8_cl{context}" for context in (768, 1024, 8192)),
        *(f"cached_attn_ar1024_cl{context}" for context in (1024, 1536, 2048, 8192)),
    }
    calls = blocks.plan(1024, 4000)
    assert {name for name in blocks.programs_for_calls(calls, last_only=True) if "attn" in name} == {
        "cached_attn_ar8_cl8192",
        "cached_attn_ar1024_cl2048",
        "cached_attn_ar1024_cl8192",
    }
