"""Checks block diffusion against transformers with the block-causal mask: every forward pass and its choices.

1. Forced: the reference unmasks blocks greedily, by its own loop and rule in PyTorch, and computes the whole
text
   in every pass. Our engine answers the same prompt with the strategy of the product, but takes the
   reference's choices, so its KV cache holds what its own passes wrote. Compared are the logits of every
   pass, the masks that remain, and our own choice, if no rounding could change the reference's choice.
2. Sampled: our engine answers at temperature 1 with top-k and a seed. The reference computes the same passes.
   A sampled token must be one of the k likeliest and the one that the sampler alone draws from these logits;
   its confidence must be the softmax of all logits; the rule must keep the same positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.model_family import DiffusionConfig
from aerie.engine.numerics import F32Array
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.block_diffusion import BlockDiffusionStrategy, Choose
from aerie.engine.strategies.strategy import Row
from aerie.engine.strategies.unmasking import (
    DYNAMIC,
    ENTROPY,
    RULE_NAMES,
    SEQUENTIAL,
    STATIC,
    UnmaskedTokens,
    Unmasker,
    UnmaskingRule,
)
from aerie.verify.bounds import GateFailure, LogitsDistance, compare, judge, session_bounds, token_rank
from aerie.verify.gate_prompts import Prompt
from aerie.verify.reference import Reference, import_torch
from aerie.verify.subject import FORWARD_ERRORS, one_line

PART_NAME = "blocks"
NEW_TOKENS = 24
"""Tokens generated after each prompt, rounded up to whole blocks, at most to the end of the context."""
TOP_K, SEED = 20, 3
ROUNDING_MARGIN = 3.0
"""A choice is compared if it stays the same when each logit changes by this multiple of the rounding's rms:
half of what the gate allows at one position (bounds.py)."""
CONFIDENCE_ERROR = 1e-6
"""Maximum difference of a reported confidence from the reference's softmax of the same logits."""

F64 = NDArray[np.float64]


class DiffusionPass(NamedTuple):
    """One forward pass over a diffusion block, and the tokens that it unmasked.

    tokens: all up to the end of the block, with masks. masked: the masked positions in the block. positions,
    token_ids: those that the pass unmasked. logits: of the masked positions, (masked, vocab_size).
    """

    tokens: tuple[int, ...]
    masked: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: F32Array


@dataclass(frozen=True)
class DiffusionResult:
    """The result of one prompt under one unmasking rule.

    distance: of our logits from the reference's. rounding: of the reference in bf16 from itself in float32.
    sure: how many passes had choices that could be compared.
    """

    whose: str
    prompt: str
    how: str
    passes: int = 0
    blocks: int = 0
    sure: int = 0
    distance: LogitsDistance | None = None
    rounding: LogitsDistance | None = None
    failures: list[GateFailure] = field(default_factory=list)


def block_causal_mask(tokens: int, block: int) -> NDArray[np.bool_]:
    """Return the attention mask, (tokens, tokens) bool: each position sees its own block and all before
    it."""
    number = np.arange(tokens) // block
    return number[:, None] >= number


def reference_logits(
    reference: Reference, tokens: Sequence[int], blocks: DiffusionConfig, masked: Sequence[int]
) -> F32Array:
    """Return the reference's logits for the masked positions of the last block, (masked, vocab_size)."""
    size, shift = blocks.block_size, int(blocks.shifted)
    count = min(len(tokens), size + shift)
    seen = block_causal_mask(len(tokens), size)
    rows = reference.masked(tokens, range(len(tokens)), seen, count)
    return rows[[count - size + at - shift for at in masked]]


class MaskChoice(NamedTuple):
    """Tokens at all masked positions, their confidences and entropies in nats; (masked,) each."""

    token_ids: NDArray[np.int64]
    confidence: F64
    entropy: F64


def _without_mask(logits: F32Array, mask: int) -> F32Array:
    others = logits.copy()
    others[:, mask] = -math.inf
    return others


def choose_tokens(logits: F32Array, mask: int, drawn: NDArray[np.int64] | None = None) -> MaskChoice:
    """Choose the likeliest token except the mask, or take `drawn`. PyTorch computes confidences in
    float64."""
    torch = import_torch()
    tokens = torch.from_numpy(_without_mask(logits, mask).argmax(-1) if drawn is None else drawn)
    log = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    sure, entropy = log.exp().gather(-1, tokens[:, None])[:, 0], -(log.exp() * log).sum(-1)
    return MaskChoice(tokens.numpy(), sure.numpy(), entropy.numpy())


def unmasked_by(rule: UnmaskingRule, block: int, step: int, sure: F64, entropy: F64) -> list[int]:
    """Return the masked positions that a step unmasks, counted from the left, by PyTorch."""
    torch = import_torch()
    sure_, left = torch.from_numpy(np.ascontiguousarray(sure)), len(sure)
    steps = rule.steps or block
    least = min(left, block // steps + (1 if step < block % steps else 0))
    if rule.name == SEQUENTIAL:
        return list(range(least))
    if rule.name == ENTROPY:
        values, order = torch.sort(torch.from_numpy(np.ascontiguousarray(entropy)), stable=True)
        count = max(1, int((values.cumsum(0) < rule.entropy).sum()))
        return sorted(order[:count].tolist())
    above: list[int] = (sure_ > rule.threshold).nonzero()[:, 0].tolist()
    if rule.name == DYNAMIC and len(above) >= least:
        return above
    return sorted(torch.sort(sure_, descending=True, stable=True).indices[:least].tolist())


def reference_passes(
    reference: Reference,
    blocks: DiffusionConfig,
    prompt: Sequence[int],
    rule: UnmaskingRule,
    most: int,
    eos: Collection[int],
) -> Iterator[DiffusionPass]:
    """Run the reference until blocks with `most` tokens after the prompt are full, or a block has an
    end-of-sequence token."""
    tokens, size, part = list(prompt), blocks.block_size, blocks.sub_block or blocks.block_size
    while len(tokens) < len(prompt) + most:
        if blocks.shifted and len(tokens) % size == 0:
            row = reference.masked(tokens, range(len(tokens)), block_causal_mask(len(tokens), size), 1)
            tokens.append(int(np.argmax(row[-1])))
        start = len(tokens) // size * size
        given = len(tokens) - start
        tokens += [blocks.mask_token_id] * (size - given)
        for first in range(0, size, part):
            left = [at for at in range(first, first + part) if at >= given]
            for step in itertools.count():
                if not left:
                    break
                made = _reference_pass(reference, blocks, tokens, left, rule, part, step)
                yield made
                for at, token in zip(made.positions, made.token_ids, strict=True):
                    tokens[start + at] = token
                left = [at for at in left if at not in made.positions]
        if not {*eos}.isdisjoint(tokens[max(start, len(prompt)) :]):
            return


def _reference_pass(
    reference: Reference,
    blocks: DiffusionConfig,
    tokens: Sequence[int],
    masked: Sequence[int],
    rule: UnmaskingRule,
    part: int,
    step: int,
) -> DiffusionPass:
    logits = reference_logits(reference, tokens, blocks, masked)
    choice = choose_tokens(logits, blocks.mask_token_id)
    places = unmasked_by(rule, part, step, choice.confidence, choice.entropy)
    positions = tuple(masked[at] for at in places)
    return DiffusionPass(
        tuple(tokens), tuple(masked), positions, tuple(int(choice.token_ids[at]) for at in places), logits
    )


class _ScriptedChooser:
    """A chooser that records its inputs and returns the choices of `forced`; without `forced`, its own
    ones."""

    def __init__(self, own: Choose, forced: Sequence[DiffusionPass] = ()) -> None:
        self.masked: list[tuple[int, ...]] = []
        self.logits: list[F32Array] = []
        self.chosen: list[UnmaskedTokens] = []
        self._own, self._forced = own, forced

    def __call__(
        self,
        logits: Sequence[Row],
        masked: Sequence[int],
        step: int,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
    ) -> UnmaskedTokens:
        number = len(self.masked)
        self.masked.append(tuple(masked))
        self.logits.append(np.array([np.asarray(row, np.float32) for row in logits]))
        self.chosen.append(self._own(logits, masked, step, prompt_ids, token_ids))
        if not self._forced:
            return self.chosen[-1]
        scripted = self._forced[min(number, len(self._forced) - 1)]
        if scripted.masked != tuple(masked):
            raise UserError(
                f"pass {number}: {list(masked)} are masked, and in the reference {list(scripted.masked)}"
            )
        return UnmaskedTokens(
            scripted.positions,
            scripted.token_ids,
            (0.0,) * len(scripted.positions),
            (0.0,) * len(scripted.positions),
        )


def try_forced(
    model_name: str, session: Session, reference: Reference, prompt: Prompt, rule: UnmaskingRule
) -> DiffusionResult:
    """Check the forced part. An error of a forward pass is a failure."""
    blocks, bounds = _blocks(session), session_bounds(session)
    most, eos = _max_new_tokens(session, prompt), session.model.config.eos_token_ids
    passes = [*reference_passes(reference, blocks, prompt.token_ids, rule, most, eos)]
    sampler = Sampler()
    chooser = _ScriptedChooser(
        Unmasker(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id), passes
    )
    result = DiffusionResult(
        model_name, prompt.name, rule.name, len(passes), len({len(one.tokens) for one in passes})
    )
    failures, name = result.failures, f"{model_name}, {prompt.name}, {rule.name}"
    failures += [
        GateFailure(PART_NAME, name, None, line)
        for line in _run_ours(session, prompt, chooser, sampler, passes)
    ]
    if failures:
        return result
    theirs = np.concatenate([one.logits for one in passes])
    exact = np.concatenate(
        [reference_logits(reference.exact, one.tokens, blocks, one.masked) for one in passes]
    )
    distance, rounding = compare(theirs, np.concatenate(chooser.logits)), compare(theirs, exact)
    failures += judge(PART_NAME, name, distance, rounding, bounds)
    noise = ROUNDING_MARGIN * rounding.total_rms
    sure = [*_certain_passes(passes, rule, blocks, noise)]
    failures += _judge_choices(name, passes, chooser, sure)
    return replace(result, distance=distance, rounding=rounding, sure=len(sure))


def _blocks(session: Session) -> DiffusionConfig:
    blocks = session.model.config.diffusion
    if blocks is None:
        raise ValueError("not a block diffusion model")
    return blocks


def _max_new_tokens(session: Session, prompt: Prompt) -> int:
    """Return how many tokens fill whole blocks after a prompt: NEW_TOKENS or more, within the context."""
    size, length = _blocks(session).block_size, len(prompt.token_ids)
    end = min(-(-(length + NEW_TOKENS) // size) * size, session.model.positions // size * size)
    return max(1, end - length)


def _run_ours(
    session: Session,
    prompt: Prompt,
    chooser: _ScriptedChooser,
    sampler: Sampler,
    passes: Sequence[DiffusionPass] = (),
) -> Iterator[str]:
    """Run our engine. Yields each problem as a line."""
    maker = partial(BlockDiffusionStrategy, diffusion=_blocks(session), choose=chooser)
    try:
        made = [
            *session.scheduler.add_request(
                prompt.token_ids, _max_new_tokens(session, prompt), sampler, strategy=maker
            )
        ]
    except FORWARD_ERRORS as error:
        yield one_line(error)
        return
    if not made:
        yield "our answer is empty"
    if passes and len(chooser.masked) != len(passes):
        yield f"ours took {len(chooser.masked)} passes, and the reference {len(passes)}"


def _step_numbers(
    masked: Sequence[Sequence[int]], passes: Sequence[DiffusionPass | UnmaskedTokens]
) -> Iterator[int]:
    """Yield the step number of each pass in its block or sub-block."""
    step = left = 0
    for at, one in zip(masked, passes, strict=True):
        step = step + 1 if len(at) == left else 0
        left = len(at) - len(one.positions)
        yield step


def _tokens_by_position(choice: DiffusionPass | UnmaskedTokens) -> dict[int, int]:
    tokens = choice.tokens if isinstance(choice, UnmaskedTokens) else choice.token_ids
    return dict(zip(choice.positions, tokens, strict=True))


def _certain_passes(
    passes: Sequence[DiffusionPass], rule: UnmaskingRule, blocks: DiffusionConfig, noise: float
) -> Iterator[int]:
    """Yield the numbers of the passes whose choice stays the same if each logit changes by `noise`."""
    part, steps = blocks.sub_block or blocks.block_size, _step_numbers([one.masked for one in passes], passes)
    for number, (step, one) in enumerate(zip(steps, passes, strict=True)):
        choice = choose_tokens(one.logits, blocks.mask_token_id)
        is_chosen = np.isin(one.masked, one.positions)
        off = np.where(is_chosen, -2 * noise, 2 * noise)
        sure = np.minimum(choice.confidence * np.exp(off), 1.0)
        same = unmasked_by(rule, part, step, sure, np.maximum(choice.entropy - off, 0))
        two = np.sort(_without_mask(one.logits, blocks.mask_token_id).astype(np.float64), axis=-1)[:, -2:]
        is_clear = two[is_chosen, 1] - two[is_chosen, 0] > 2 * noise
        if [one.masked[at] for at in same] == [*one.positions] and is_clear.all():
            yield number


def _judge_choices(
    name: str, passes: Sequence[DiffusionPass], chooser: _ScriptedChooser, sure: Sequence[int]
) -> Iterator[GateFailure]:
    for number in sure:
        ours, theirs = chooser.chosen[number], passes[number]
        if _tokens_by_position(ours) != _tokens_by_position(theirs):
            what = (
                f"ours fills in {_tokens_by_position(ours)} and the reference {_tokens_by_position(theirs)}"
            )
            return (yield GateFailure(PART_NAME, name, number, what))


def _sampler() -> Sampler:
    return Sampler(temperature=1.0, top_k=TOP_K, seed=SEED)


def try_free(
    model_name: str, session: Session, reference: Reference, prompt: Prompt, rule: UnmaskingRule
) -> DiffusionResult:
    """Check the sampled part."""
    blocks, bounds = _blocks(session), session_bounds(session)
    sampler = _sampler()
    chooser = _ScriptedChooser(
        Unmasker(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id)
    )
    name, how = f"{model_name}, {prompt.name}, drawn", f"{rule.name}, drawn"
    failures = [
        GateFailure(PART_NAME, name, None, line) for line in _run_ours(session, prompt, chooser, sampler)
    ]
    states = [*_states_before_passes(blocks, prompt.token_ids, chooser, reference)]
    result = DiffusionResult(
        model_name, prompt.name, how, len(states), len({*map(len, states)}), failures=failures
    )
    if failures or not states:
        return result
    failures += _judge_sampled(name, chooser, blocks, rule)
    passes = [*zip(states, chooser.masked, strict=True)]
    theirs, exact = (
        np.concatenate([reference_logits(each, tokens, blocks, masked) for tokens, masked in passes])
        for each in (reference, reference.exact)
    )
    distance, rounding = compare(theirs, np.concatenate(chooser.logits)), compare(theirs, exact)
    failures += judge(PART_NAME, name, distance, rounding, bounds)
    return replace(result, distance=distance, rounding=rounding, sure=len(states))


def _states_before_passes(
    blocks: DiffusionConfig, prompt: Sequence[int], chooser: _ScriptedChooser, reference: Reference
) -> Iterator[tuple[int, ...]]:
    """Yield the tokens that each pass must have had as its input, by the choices of the passes before it."""
    tokens, size = list(prompt), blocks.block_size
    left = 0
    for chosen in chooser.chosen:
        if not left:
            if blocks.shifted and len(tokens) % size == 0:
                row = reference.masked(tokens, range(len(tokens)), block_causal_mask(len(tokens), size), 1)
                tokens.append(int(np.argmax(row[-1])))
            left = size - len(tokens) % size
            tokens += [blocks.mask_token_id] * left
        yield tuple(tokens)
        for at, token in zip(chosen.positions, chosen.tokens, strict=True):
            tokens[len(tokens) - size + at] = token
        left -= len(chosen.positions)


def _judge_sampled(
    name: str, chooser: _ScriptedChooser, blocks: DiffusionConfig, rule: UnmaskingRule
) -> Iterator[GateFailure]:
    """Check what our engine sampled.

    The sampler alone must draw the same tokens from our logits with the same seed, each one of the k
    likeliest. PyTorch computes their confidences from all logits, and by these the rule must keep the same
    positions.
    """
    sampler, part = _sampler().excluding(blocks.mask_token_id), blocks.sub_block or blocks.block_size
    steps = _step_numbers(chooser.masked, chooser.chosen)
    passes = zip(steps, chooser.logits, chooser.masked, chooser.chosen, strict=True)
    for number, (step, logits, masked, chosen) in enumerate(passes):
        tokens = np.array([sampler(row) for row in logits])
        drawn = choose_tokens(logits, blocks.mask_token_id, tokens)
        places = unmasked_by(rule, part, step, drawn.confidence, drawn.entropy)
        expected = {masked[at]: int(tokens[at]) for at in places}
        if (ours := _tokens_by_position(chosen)) != expected:
            what = f"ours fills in {ours}; of what the sampler alone draws, the rule keeps {expected}"
            yield GateFailure(PART_NAME, name, number, what)
            return
        for at, sure in zip(places, chosen.confidences, strict=True):
            token, off = int(tokens[at]), abs(float(drawn.confidence[at]) - sure)
            if token_rank(_without_mask(logits, blocks.mask_token_id)[at], token) > TOP_K:
                yield GateFailure(
                    PART_NAME,
                    name,
                    number,
                    f"token {token} was sampled, which is not one of the {TOP_K} likeliest",
                )
            if not off <= CONFIDENCE_ERROR:
                what = f"the confidence of token {token}, {sure:.4g}, minus its softmax over all logits"
                yield GateFailure(PART_NAME, name, number, what, off, CONFIDENCE_ERROR)


def rules(full: bool) -> list[UnmaskingRule]:
    """Return the unmasking rules that a gate checks: `dynamic` and `static`, or all of them."""
    return [UnmaskingRule(name) for name in (RULE_NAMES if full else (DYNAMIC, STATIC))]


def try_blocks(
    model_name: str, session: Session, reference: Reference, prompts: Sequence[Prompt], full: bool = False
) -> Iterator[DiffusionResult]:
    """Check every prompt under every rule, and the first one sampled."""
    for prompt in prompts:
        for rule in rules(full):
            yield try_forced(model_name, session, reference, prompt, rule)
    yield try_free(model_name, session, reference, prompts[0], UnmaskingRule())


def no_choice_compared(results: Sequence[DiffusionResult]) -> list[GateFailure]:
    """Return a failure if no choice was compared: such a gate must not pass."""
    if any(one.sure for one in results if not one.how.endswith("drawn")) or any(
        one.failures for one in results
    ):
        return []
    return [GateFailure(PART_NAME, "all prompts", None, "no choice was sure enough to be compared")]
