"""A model with sliding windows passes the gate's layer check, and a window off by one does not."""

import pytest

from aerie.engine import config
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.layer_masks import layer_masks
from aerie.verify.layer_check import try_layers
from aerie.verify.reference import Reference

WINDOW = 20


@pytest.fixture(scope="module")
def windowed(write_llama, open_session):
    folder = write_llama(
        family="Qwen3",
        num_hidden_layers=2,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"],
    )
    return open_session(open_checkpoint(folder), variants="8,128x512"), Reference.open(folder)


def failures(windowed):
    session, reference = windowed
    report = try_layers("windows", session, reference, [*range(3, 73)])
    return [str(failure) for failure in report.failures]


@pytest.mark.slow
def test_windows_pass(windowed):
    assert failures(windowed) == []


@pytest.mark.slow
@pytest.mark.parametrize("by", [-1, 1])
def test_a_window_off_by_one_is_found(windowed, monkeypatch, by):
    def off_by_one(layers, window, layers_with_window):
        return layer_masks(layers, window + by, layers_with_window)

    monkeypatch.setattr(config, "layer_masks", off_by_one)
    assert any("layer 1, step attention" in failure for failure in failures(windowed))
