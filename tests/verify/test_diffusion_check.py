"""The gate of block diffusion: what is healthy passes, and faults in masks, commits and choices are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.executor import Executor
from aerie.engine.families import FAMILIES
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies import unmasking
from aerie.engine.strategies.block_diffusion import BlockDiffusionStrategy
from aerie.engine.strategies.strategy import PassInput
from aerie.engine.strategies.unmasking import UnmaskingRule
from aerie.llama32_1b.demo.diffusion import CHECKPOINT
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.runtime import select_backend
from aerie.verify import diffusion_check
from aerie.verify.diffusion_check import (
    DiffusionResult,
    block_causal_mask,
    no_choice_compared,
    reference_passes,
    try_blocks,
    try_free,
)
from aerie.verify.gate import verify_blocks
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.random_model import random_checkpoint, random_model_config, with_longer_context
from aerie.verify.reference import Reference
from aerie.verify.report import as_json, print_record

NEXT_INPUT, UPDATE, START_BLOCK, INITIALISE = (
    BlockDiffusionStrategy.next_input,
    BlockDiffusionStrategy.update,
    BlockDiffusionStrategy._start_block,
    BlockDiffusionStrategy.__init__,
)


def opened(checkpoint: Checkpoint, variants: str = "8,32x512") -> tuple[Session, Reference]:
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), variants=variants)
    return prepare_runtime(checkpoint, options, Reporter()), Reference.open(checkpoint.folder)


@pytest.fixture(scope="module")
def demo() -> tuple[Session, Reference]:
    return opened(open_checkpoint(CHECKPOINT))


def tried(both: tuple[Session, Reference]) -> list[DiffusionResult]:
    """By a scheduler of its own: no fault leaves pages to another."""
    session, reference = both
    vars(session).pop("requests", None)
    return [*try_blocks("the model", session, reference, choose_prompts(session, full=False)[:1])]


def causal(self: Executor, positions: Any, keys: range, masks: Any, window: int) -> Any:
    return np.arange(keys.start, keys.stop) <= positions[:, None]


def shifted_by_one(self: Executor, positions: Any, keys: range, masks: Any, window: int) -> Any:
    block, all_keys = self.diffusion_block, np.arange(keys.start, keys.stop)
    return (all_keys + 1) // block <= (positions[:, None] + 1) // block


def written_while_filling(self: BlockDiffusionStrategy, due: PassInput, rows: Sequence[Any]) -> int:
    """The keys and values of a block are those of the pass that filled its last mask in."""
    before = self.pass_counts.blocks
    UPDATE(self, due, rows)
    return len(due.tentative_tokens) if self.pass_counts.blocks > before else 0


def not_committed(self: BlockDiffusionStrategy, length: int) -> PassInput:
    due = NEXT_INPUT(self, length)
    is_first = not self.pass_counts.blocks
    return due if is_first else due._replace(tokens=due.tentative_tokens, kept_count=0)


def with_a_mask_left(self: BlockDiffusionStrategy, length: int) -> PassInput:
    due = NEXT_INPUT(self, length)
    tokens = [*due.tokens]
    if due.kept_count and self.pass_counts.blocks:
        tokens[due.kept_count - 1] = self._diffusion.mask_token_id
    return due._replace(tokens=tokens)


def as_if_shifted(self: BlockDiffusionStrategy, request: Any, diffusion: Any, choose: Any) -> None:
    INITIALISE(self, request, replace(diffusion, shifted=True), choose)


def over_the_prompt(self: BlockDiffusionStrategy, start: int) -> None:
    START_BLOCK(self, start)
    if self._prompt_count > 0 and not self.pass_counts.blocks:
        self._masked.insert(0, 0)


def as_filtered(row: Any, token: int) -> tuple[float, float]:
    tokens, shares = Sampler(temperature=1.0, top_k=20).distribution(row)
    return float(shares[tokens == token].sum()), 0.0


CALL, SCORE = unmasking.Unmasker.__call__, unmasking._confidence_and_entropy

FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "causal inside the block": (Executor, "_seen", causal),
    "staircase shifted by one": (Executor, "_seen", shifted_by_one),
    "KV of a pass with masks": (BlockDiffusionStrategy, "update", written_while_filling),
    "commit skipped": (BlockDiffusionStrategy, "next_input", not_committed),
    "a mask is seen after the commit": (BlockDiffusionStrategy, "next_input", with_a_mask_left),
    "a shift where there is none": (BlockDiffusionStrategy, "__init__", as_if_shifted),
    "a token of the prompt is filled in": (BlockDiffusionStrategy, "_start_block", over_the_prompt),
    "confidence after the filters": (unmasking, "_confidence_and_entropy", as_filtered),
}


def kept_as_filtered(self: Any, logits: Any, masked: Any, step: int, *ids: Any) -> unmasking.UnmaskedTokens:
    """Report the right confidences, but choose positions by the confidence after the sampler's filters."""

    def filtered(row: Any, token: int) -> tuple[float, float]:
        tokens, shares = self._sampler.distribution(row)
        return float(shares[tokens == token].sum()), 0.0

    with pytest.MonkeyPatch.context() as patch:
        if self._sampler.temperature:
            patch.setattr(unmasking, "_confidence_and_entropy", filtered)
        chosen = CALL(self, logits, masked, step, *ids)
    rows = dict(zip(masked, logits, strict=True))
    scores = [SCORE(rows[at], token) for at, token in zip(chosen.positions, chosen.tokens, strict=True)]
    confidences, entropies = zip(*scores, strict=True)
    return chosen._replace(confidences=confidences, entropies=entropies)


def drawn_twice(self: Any, logits: Any, masked: Any, step: int, *ids: Any) -> unmasking.UnmaskedTokens:
    """A number more is drawn in each step than there are masks."""
    if self._sampler.temperature:
        self._sampler(logits[0], *ids)
    return CALL(self, logits, masked, step, *ids)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, demo: tuple[Session, Reference], monkeypatch: Any) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    failures = [failure for found in tried(demo) for failure in found.failures]
    assert failures, fault


def test_a_healthy_model_passes_and_is_printed(demo: tuple[Session, Reference], capsys: Any) -> None:
    session, reference = demo
    vars(session).pop("requests", None)
    prompts = choose_prompts(session, full=False)
    record = verify_blocks(session, reference, prompts, "the model", full=False)
    assert (record.verdict, record.failures) == ("PASS", [])
    assert all(found.passes and found.distance for found in record.diffusion_results)
    assert sum(found.sure for found in record.diffusion_results) > 5
    print_record(record)
    output = capsys.readouterr().out
    assert "blocks filled in (virtual, exact products) against transformers bf16" in output
    assert output.endswith("[verify] PASS\n")
    assert [one["how"] for one in as_json(record, "it")["blocks"]] == [
        found.how for found in record.diffusion_results
    ]


def test_a_gate_that_compared_no_choice_does_not_pass() -> None:
    (failure,) = no_choice_compared([DiffusionResult("the model", "a", "sequential", 3, 1)])
    assert "no choice was sure enough to be compared" in str(failure)


@pytest.fixture(scope="module", params=["a2d-qwen2", "Fast_dLLM_Qwen"])
def other(request: pytest.FixtureRequest) -> Iterator[tuple[Session, Reference]]:
    """Random weights, with blocks of 8 and a bias; and with shifted logits and parts of 4."""
    config = with_longer_context(random_model_config(open_checkpoint(CHECKPOINT).config))
    made = in_family(config, FAMILIES[request.param])
    assert made.diffusion
    blocks = replace(made.diffusion, block_size=8, sub_block=made.diffusion.sub_block and 4)
    with random_checkpoint(replace(made, diffusion=blocks), Reporter()) as checkpoint:
        yield opened(replace(checkpoint, config=replace(checkpoint.config, diffusion=blocks)), "8x512")


def test_other_families_pass(other: tuple[Session, Reference]) -> None:
    assert [failure for found in tried(other) for failure in found.failures] == []


@pytest.mark.parametrize("fault", [kept_as_filtered, drawn_twice])
def test_a_fault_of_drawing_alone_is_found(
    fault: Any, other: tuple[Session, Reference], monkeypatch: Any
) -> None:
    """Random weights are sure of nothing: draws are seldom alike, and one token that is left seems sure."""
    monkeypatch.setattr(diffusion_check, "TOP_K", 1 if fault is kept_as_filtered else 20)
    session, reference = other
    vars(session).pop("requests", None)
    prompt = choose_prompts(session, full=False)[0]
    assert try_free("the model", session, reference, prompt, UnmaskingRule()).failures == []
    monkeypatch.setattr(unmasking.Unmasker, "__call__", fault)
    vars(session).pop("requests", None)
    (failure, *_) = try_free("the model", session, reference, prompt, UnmaskingRule()).failures
    assert "of what the sampler alone draws, the rule keeps" in str(failure)


def test_the_references_loop_by_hand() -> None:
    """What it reads, in a model that says of each position how often it was asked."""
    assert block_causal_mask(5, 2).sum(axis=1).tolist() == [2, 2, 4, 4, 5]

    class Counting:
        def masked(self, tokens: Sequence[int], positions: Any, seen: Any, count: int) -> Any:
            assert np.array_equal(seen, block_causal_mask(len(tokens), 4))
            rows = np.zeros((len(tokens), 12), np.float32)
            rows[np.arange(len(tokens)), np.arange(len(tokens)) % 7] = np.arange(len(tokens), 0, -1)
            return rows[-count:]

    blocks = FAMILIES["sdar"].diffusion
    assert blocks
    counting: Any = Counting()
    rule = UnmaskingRule(steps=2)
    passes = [*reference_passes(counting, blocks.with_mask_token(11), [1, 2, 3, 4, 5], rule, 5, ())]
    assert [one.tokens[4:] for one in passes] == [
        (5, 11, 11, 11), (5, 5, 6, 11), (5, 5, 6, 0, 11, 11, 11, 11), (5, 5, 6, 0, 1, 2, 11, 11)
    ]  # fmt: skip
    assert [one.positions for one in passes] == [(1, 2), (3,), (0, 1), (2, 3)]
