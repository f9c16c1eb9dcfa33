"""`--estimate`: the calls are those that the engine makes, and the figures are sums over them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.cli import estimate
from aerie.cli import estimate as board_estimate
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import main
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.variant_set import GUIDE, ROWS
from aerie.llama32_1b.synthetic.shape import SHAPES
from aerie.runtime import select_backend
from aerie.virtual_npu.timing import NOTE, TimingError

QUIET = Reporter(terminal=False, quiet=True)


def _options(tmp_path: Any, **changes: Any) -> RuntimeOptions:
    return replace(RuntimeOptions(None, select_backend("virtual", None), tmp_path), **changes)


def _json(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["compile", "--estimate", "--json", *flags]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


@pytest.mark.parametrize("decode", [GUIDE, pytest.param(ROWS, marks=pytest.mark.slow)])
def test_the_calls_are_those_of_an_answer(decode: str, tmp_path: Any) -> None:
    options = _options(tmp_path, decode=decode)
    checkpoint = open_checkpoint(find_checkpoint("demo"))
    session = prepare_runtime(checkpoint, options, QUIET)
    session.cache.profiler.reset()
    prompt, new = list(range(40, 140)), 2  # 128 rows, and 8 for the end of the last layer
    assert len([*session.generate(prompt, new, Sampler())]) == new
    made = {name: times.calls for name, times in session.cache.profiler.programs.items()}
    config, variant_set = checkpoint.config, options.variant_set(checkpoint.config)
    planned = Counter(estimate._prompt_programs(config, variant_set, len(prompt)))
    for position in range(new - 1):
        planned.update(estimate._token_programs(config, variant_set, len(prompt) + position))
    assert made == planned


def test_a_figure_is_the_sum_of_its_calls(tmp_path: Any) -> None:
    config = load_config(find_checkpoint("demo"))
    estimated = estimate.estimate(config, _options(tmp_path), QUIET)
    (length,) = estimated.lengths
    assert length.tokens == config.context == 512
    token = sum(
        count * estimated.programs[name].total_us
        for name, count in {"rms_gemv_rope": 6, "o_gemv_ffn": 6, "lm_head_gemv": 1}.items()
    )
    assert length.token.us == pytest.approx(token)
    assert length.tokens_per_s == pytest.approx(1e6 / token)
    # 512 tokens are four calls of 128 rows; the end of the last layer is that of one token, in 8 rows
    calls = length.prompt.calls
    assert (calls["rms_gemms_rope_ar128"], calls["o_ffn_ar128"], calls["o_ffn_ar8"]) == (24, 23, 1)
    prompt = sum(count * estimated.programs[name].total_us for name, count in calls.items())
    assert length.prompt.us == pytest.approx(prompt)


def test_attention_of_decode_is_counted_where_the_device_computes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_gemv, by_rows = (_json(capsys, "--decode", decode, "--variants", "8x512") for decode in (GUIDE, ROWS))
    assert (by_gemv["attention_of_decode_included"], by_rows["attention_of_decode_included"]) == (False, True)
    assert "rms_gemv_rope" in by_gemv["programs"]
    assert "rms_gemv_rope" not in by_rows["programs"]
    assert (by_gemv["measured"], by_gemv["note"]) == (False, NOTE)


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--estimate", "--seq-len", "64"]) == 0
    out = capsys.readouterr().out
    assert "flash_attn" in out
    assert "\n    64 " in out
    assert NOTE in out
    assert estimate.HOST_ATTENTION in out


@pytest.mark.parametrize(
    ("largest", "expected"), [(512, [512]), (8192, [1024, 8192]), (131072, [1024, 8192, 32768])]
)
def test_lengths_are_those_that_fit(largest: int, expected: list[int]) -> None:
    assert estimate._lengths(largest) == expected


def test_a_model_that_fills_in_blocks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--estimate", "--model", "demo-diffusion"]) == 2
    message = "--estimate predicts a token after a prompt, and this model fills in blocks of "
    assert message in capsys.readouterr().err


def test_a_program_that_the_model_cannot_follow_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(text: str, filename: str) -> None:
        raise TimingError("launch a is inside scf.for")

    monkeypatch.setattr(estimate, "predict", refuse)
    assert main(["compile", "--estimate", "--seq-len", "64"]) == 2
    error = capsys.readouterr().err
    assert "--estimate cannot time " in error
    assert "(launch a is inside scf.for): leave --estimate out" in error


def test_json_without_an_estimate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--json"]) == 2
    assert "--json prints what --estimate predicts: add --estimate" in capsys.readouterr().err


def test_the_calls_of_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "Hi", "--n-tokens", "2", "--estimate"]) == 0
    out = capsys.readouterr().out
    table = out[out.index("the same calls on npu2: ") :]
    assert NOTE in table
    rows = {
        line.split()[0]: line.split()[1:] for line in table.splitlines() if line.startswith(("o_", "rms_"))
    }
    calls, us, ms = (float(cell) for cell in rows["o_gemv_ffn"][:3])
    assert calls == 6
    assert ms == pytest.approx(calls * us / 1e3, rel=0.05)


def test_layers_with_a_convolution_have_programs_of_their_own():
    config = SHAPES["lfm2-350m"]
    variant_set = RuntimeOptions(None, select_backend("virtual"), Path("unused")).variant_set(config)
    assert Counter(board_estimate._token_programs(config, variant_set, 99)) == {
        "rms_gemv_gate": 10,
        "short_conv_row": 10,
        "rms_gemv_rope": 6,
        "o_gemv_ffn": 16,
        "lm_head_gemv": 1,
    }
    of_prompt = Counter(board_estimate._prompt_programs(config, variant_set, 100))
    assert (of_prompt["short_conv_ar128"], of_prompt["short_conv_ar8"], of_prompt["o_ffn_ar8"]) == (9, 1, 1)
