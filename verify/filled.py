"""Block diffusion against transformers with the staircase mask: every pass, and what is chosen in it.

1. Forced: the reference fills blocks in, greedily, by its own loop and its own rule in PyTorch, and every
   pass of it reads the whole text anew. Ours fills the same prompt in by the strategy that answers, but is
   told the reference's choices; so its cache holds what its own passes wrote. The logits of every pass are
   compared, the masks that are left, and, where the reference's choice is sure enough to stand rounding,
   what ours would have chosen.
2. Free: ours fills in at temperature 1 with top-k and a seed. The reference reads what ours saw in every
   pass; what was drawn must be among the k likeliest, what a sampler alone draws from these logits, as sure
   as the softmax of all logits says, and what the rule keeps by that.
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
from aerie.verify.subject import BROKEN, one_line

PART = "blocks"
TOKENS = 24
"""That are filled in after each prompt, in whole blocks, where the context has room for them."""
TOP_K, SEED = 20, 3
SURE = 3.0
"""How far a logit may be off, in multiples of what rounding does, without another choice: half as much as an
rms at one position may be (rules.py)."""
CONFIDENCE_ERROR = 1e-6
"""How far a told confidence may be from the reference's softmax of the same logits."""

F64 = NDArray[np.float64]


class Pass(NamedTuple):
    """What a pass saw and what came of it.

    tokens: all up to the end of the block, masks among them. masked: the positions in the block that could
    be filled in. positions, token_ids: those that were. logits: of the masked ones, (masked, vocab_size).
    """

    tokens: tuple[int, ...]
    masked: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: F32Array


@dataclass(frozen=True)
class Filled:
    """What a prompt gave under a rule: passes and blocks; `distance` of our logits from the reference's,
    `rounding` of the reference itself; of all choices those that were sure enough to be compared."""

    whose: str
    prompt: str
    how: str
    passes: int = 0
    blocks: int = 0
    sure: int = 0
    distance: LogitsDistance | None = None
    rounding: LogitsDistance | None = None
    failures: list[GateFailure] = field(default_factory=list)


def staircase(tokens: int, block: int) -> NDArray[np.bool_]:
    """What each position sees, (tokens, tokens): its own block and those before it."""
    number = np.arange(tokens) // block
    return number[:, None] >= number


def read(
    reference: Reference, tokens: Sequence[int], blocks: DiffusionConfig, masked: Sequence[int]
) -> F32Array:
    """The reference's logits for these positions of the last block, (masked, vocab_size)."""
    size, shift = blocks.block_size, int(blocks.shifted)
    count = min(len(tokens), size + shift)
    seen = staircase(len(tokens), size)
    rows = reference.masked(tokens, range(len(tokens)), seen, count)
    return rows[[count - size + at - shift for at in masked]]


class Choice(NamedTuple):
    """Tokens at all masked positions, how sure each is, and the entropies in nats; (masked,) each."""

    token_ids: NDArray[np.int64]
    sure: F64
    entropy: F64


def _unmasked(logits: F32Array, mask: int) -> F32Array:
    others = logits.copy()
    others[:, mask] = -math.inf
    return others


def likeliest(logits: F32Array, mask: int, drawn: NDArray[np.int64] | None = None) -> Choice:
    """The likeliest token but the mask, or the one that was drawn, by PyTorch in float64."""
    torch = import_torch()
    tokens = torch.from_numpy(_unmasked(logits, mask).argmax(-1) if drawn is None else drawn)
    log = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    sure, entropy = log.exp().gather(-1, tokens[:, None])[:, 0], -(log.exp() * log).sum(-1)
    return Choice(tokens.numpy(), sure.numpy(), entropy.numpy())


def filled_by(rule: UnmaskingRule, block: int, step: int, sure: F64, entropy: F64) -> list[int]:
    """Which of the masked positions a step fills in, counted from the left, by PyTorch."""
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


def walk(
    reference: Reference,
    blocks: DiffusionConfig,
    prompt: Sequence[int],
    rule: UnmaskingRule,
    most: int,
    eos: Collection[int],
) -> Iterator[Pass]:
    """The reference's passes, until blocks with `most` tokens after the prompt are full, or one has a token
    that ends an answer."""
    tokens, size, part = list(prompt), blocks.block_size, blocks.sub_block or blocks.block_size
    while len(tokens) < len(prompt) + most:
        if blocks.shifted and len(tokens) % size == 0:
            row = reference.masked(tokens, range(len(tokens)), staircase(len(tokens), size), 1)
            tokens.append(int(np.argmax(row[-1])))
        start = len(tokens) // size * size
        given = len(tokens) - start
        tokens += [blocks.mask_token_id] * (size - given)
        for first in range(0, size, part):
            left = [at for at in range(first, first + part) if at >= given]
            for step in itertools.count():
                if not left:
                    break
                made = _passed(reference, blocks, tokens, left, rule, part, step)
                yield made
                for at, token in zip(made.positions, made.token_ids, strict=True):
                    tokens[start + at] = token
                left = [at for at in left if at not in made.positions]
        if not {*eos}.isdisjoint(tokens[max(start, len(prompt)) :]):
            return


def _passed(
    reference: Reference,
    blocks: DiffusionConfig,
    tokens: Sequence[int],
    left: Sequence[int],
    rule: UnmaskingRule,
    part: int,
    step: int,
) -> Pass:
    logits = read(reference, tokens, blocks, left)
    choice = likeliest(logits, blocks.mask_token_id)
    places = filled_by(rule, part, step, choice.sure, choice.entropy)
    positions = tuple(left[at] for at in places)
    return Pass(
        tuple(tokens), tuple(left), positions, tuple(int(choice.token_ids[at]) for at in places), logits
    )


class _Told:
    """A chooser that remembers what it was given, and says what `forced` has; without, what its own says."""

    def __init__(self, own: Choose, forced: Sequence[Pass] = ()) -> None:
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
        told = self._forced[min(number, len(self._forced) - 1)]
        if told.masked != tuple(masked):
            raise UserError(
                f"pass {number}: {list(masked)} are masked, and in the reference {list(told.masked)}"
            )
        return UnmaskedTokens(
            told.positions, told.token_ids, (0.0,) * len(told.positions), (0.0,) * len(told.positions)
        )


def try_forced(
    whose: str, session: Session, reference: Reference, prompt: Prompt, rule: UnmaskingRule
) -> Filled:
    """Part 1. What breaks a pass is a failure."""
    blocks, bounds = _blocks(session), session_bounds(session)
    most, eos = _most(session, prompt), session.model.config.eos_token_ids
    passes = [*walk(reference, blocks, prompt.token_ids, rule, most, eos)]
    sampler = Sampler()
    told = _Told(Unmasker(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id), passes)
    found = Filled(whose, prompt.name, rule.name, len(passes), len({len(one.tokens) for one in passes}))
    failures, name = found.failures, f"{whose}, {prompt.name}, {rule.name}"
    failures += [GateFailure(PART, name, None, line) for line in _run(session, prompt, told, sampler, passes)]
    if failures:
        return found
    theirs = np.concatenate([one.logits for one in passes])
    exact = np.concatenate([read(reference.exact, one.tokens, blocks, one.masked) for one in passes])
    distance, rounding = compare(theirs, np.concatenate(told.logits)), compare(theirs, exact)
    failures += judge(PART, name, distance, rounding, bounds)
    noise = SURE * rounding.total_rms
    sure = [*_sure(passes, rule, blocks, noise)]
    failures += _judge_choices(name, passes, told, sure)
    return replace(found, distance=distance, rounding=rounding, sure=len(sure))


def _blocks(session: Session) -> DiffusionConfig:
    blocks = session.model.config.diffusion
    if blocks is None:
        raise ValueError("a model without blocks")
    return blocks


def _most(session: Session, prompt: Prompt) -> int:
    """Tokens that fill whole blocks after a prompt, TOKENS or the next full block, within the context."""
    size, length = _blocks(session).block_size, len(prompt.token_ids)
    end = min(-(-(length + TOKENS) // size) * size, session.model.positions // size * size)
    return max(1, end - length)


def _run(
    session: Session, prompt: Prompt, told: _Told, sampler: Sampler, passes: Sequence[Pass] = ()
) -> Iterator[str]:
    """Have our engine fill in; what was wrong, each as a line."""
    maker = partial(BlockDiffusionStrategy, diffusion=_blocks(session), choose=told)
    try:
        made = [
            *session.scheduler.add_request(prompt.token_ids, _most(session, prompt), sampler, strategy=maker)
        ]
    except BROKEN as error:
        yield one_line(error)
        return
    if not made:
        yield "our answer is empty"
    if passes and len(told.masked) != len(passes):
        yield f"ours took {len(told.masked)} passes, and the reference {len(passes)}"


def _steps(masked: Sequence[Sequence[int]], made: Sequence[Pass | UnmaskedTokens]) -> Iterator[int]:
    """The number of each pass in its block, or part of a block."""
    step = left = 0
    for at, one in zip(masked, made, strict=True):
        step = step + 1 if len(at) == left else 0
        left = len(at) - len(one.positions)
        yield step


def _said(made: Pass | UnmaskedTokens) -> dict[int, int]:
    tokens = made.tokens if isinstance(made, UnmaskedTokens) else made.token_ids
    return dict(zip(made.positions, tokens, strict=True))


def _sure(
    passes: Sequence[Pass], rule: UnmaskingRule, blocks: DiffusionConfig, noise: float
) -> Iterator[int]:
    """The numbers of the passes whose choice is the same if every logit is off by so much."""
    part, steps = blocks.sub_block or blocks.block_size, _steps([one.masked for one in passes], passes)
    for number, (step, one) in enumerate(zip(steps, passes, strict=True)):
        choice = likeliest(one.logits, blocks.mask_token_id)
        is_chosen = np.isin(one.masked, one.positions)
        off = np.where(is_chosen, -2 * noise, 2 * noise)
        sure = np.minimum(choice.sure * np.exp(off), 1.0)
        same = filled_by(rule, part, step, sure, np.maximum(choice.entropy - off, 0))
        two = np.sort(_unmasked(one.logits, blocks.mask_token_id).astype(np.float64), axis=-1)[:, -2:]
        is_clear = two[is_chosen, 1] - two[is_chosen, 0] > 2 * noise
        if [one.masked[at] for at in same] == [*one.positions] and is_clear.all():
            yield number


def _judge_choices(
    name: str, passes: Sequence[Pass], told: _Told, sure: Sequence[int]
) -> Iterator[GateFailure]:
    for number in sure:
        ours, theirs = told.chosen[number], passes[number]
        if _said(ours) != _said(theirs):
            what = f"ours fills in {_said(ours)} and the reference {_said(theirs)}"
            return (yield GateFailure(PART, name, number, what))


def _drawing() -> Sampler:
    return Sampler(temperature=1.0, top_k=TOP_K, seed=SEED)


def try_free(
    whose: str, session: Session, reference: Reference, prompt: Prompt, rule: UnmaskingRule
) -> Filled:
    """Part 2."""
    blocks, bounds = _blocks(session), session_bounds(session)
    sampler = _drawing()
    told = _Told(Unmasker(rule, blocks.sub_block or blocks.block_size, sampler, blocks.mask_token_id))
    name, how = f"{whose}, {prompt.name}, drawn", f"{rule.name}, drawn"
    failures = [GateFailure(PART, name, None, line) for line in _run(session, prompt, told, sampler)]
    states = [*_states(blocks, prompt.token_ids, told, reference)]
    found = Filled(whose, prompt.name, how, len(states), len({*map(len, states)}), failures=failures)
    if failures or not states:
        return found
    failures += _judge_drawn(name, told, blocks, rule)
    asked = [*zip(states, told.masked, strict=True)]
    theirs, exact = (
        np.concatenate([read(each, tokens, blocks, masked) for tokens, masked in asked])
        for each in (reference, reference.exact)
    )
    distance, rounding = compare(theirs, np.concatenate(told.logits)), compare(theirs, exact)
    failures += judge(PART, name, distance, rounding, bounds)
    return replace(found, distance=distance, rounding=rounding, sure=len(states))


def _states(
    blocks: DiffusionConfig, prompt: Sequence[int], told: _Told, reference: Reference
) -> Iterator[tuple[int, ...]]:
    """The tokens that each pass had to see, by what was chosen in those before it."""
    tokens, size = list(prompt), blocks.block_size
    left = 0
    for chosen in told.chosen:
        if not left:
            if blocks.shifted and len(tokens) % size == 0:
                row = reference.masked(tokens, range(len(tokens)), staircase(len(tokens), size), 1)
                tokens.append(int(np.argmax(row[-1])))
            left = size - len(tokens) % size
            tokens += [blocks.mask_token_id] * left
        yield tuple(tokens)
        for at, token in zip(chosen.positions, chosen.tokens, strict=True):
            tokens[len(tokens) - size + at] = token
        left -= len(chosen.positions)


def _judge_drawn(
    name: str, told: _Told, blocks: DiffusionConfig, rule: UnmaskingRule
) -> Iterator[GateFailure]:
    """The sampler alone, with the same seed and our logits, draws the same tokens, each of the k likeliest;
    PyTorch says how sure they are by all logits, and the rule keeps those that ours kept."""
    sampler, part = _drawing().excluding(blocks.mask_token_id), blocks.sub_block or blocks.block_size
    steps = _steps(told.masked, told.chosen)
    passes = zip(steps, told.logits, told.masked, told.chosen, strict=True)
    for number, (step, logits, masked, chosen) in enumerate(passes):
        tokens = np.array([sampler(row) for row in logits])
        drawn = likeliest(logits, blocks.mask_token_id, tokens)
        places = filled_by(rule, part, step, drawn.sure, drawn.entropy)
        if _said(chosen) != (kept := {masked[at]: int(tokens[at]) for at in places}):
            what = f"ours fills in {_said(chosen)}, and by what was drawn the rule keeps {kept}"
            yield GateFailure(PART, name, number, what)
            return
        for at, sure in zip(places, chosen.confidences, strict=True):
            token, off = int(tokens[at]), abs(float(drawn.sure[at]) - sure)
            if token_rank(_unmasked(logits, blocks.mask_token_id)[at], token) > TOP_K:
                yield GateFailure(
                    PART, name, number, f"token {token} was drawn, not of the {TOP_K} likeliest"
                )
            if not off <= CONFIDENCE_ERROR:
                what = f"how sure token {token} is, {sure:.4g}, less the softmax of all logits"
                yield GateFailure(PART, name, number, what, off, CONFIDENCE_ERROR)


def rules(full: bool) -> list[UnmaskingRule]:
    """Those that a gate tries: the default one, or all."""
    return [UnmaskingRule(name) for name in (RULE_NAMES if full else (DYNAMIC, STATIC))]


def try_blocks(
    whose: str, session: Session, reference: Reference, prompts: Sequence[Prompt], full: bool = False
) -> Iterator[Filled]:
    """Every prompt under every rule, and one that is drawn."""
    for prompt in prompts:
        for rule in rules(full):
            yield try_forced(whose, session, reference, prompt, rule)
    yield try_free(whose, session, reference, prompts[0], UnmaskingRule())


def nothing_sure(found: Sequence[Filled]) -> list[GateFailure]:
    """A gate that compared no choice must not pass."""
    if any(one.sure for one in found if not one.how.endswith("drawn")) or any(one.failures for one in found):
        return []
    return [GateFailure(PART, "all prompts", None, "no choice was sure enough to be compared")]
