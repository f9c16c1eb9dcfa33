"""The gate: each prompt through three parts, ours against the reference, and a verdict.

1. Free-running: both answer greedily. Where they first differ, each side's token must be in the other's
   top k. After that they say different things, and part 2 goes on.
2. Teacher-forced: both are fed the reference's tokens, all of them, and every step is compared.
3. Prompt positions: the logits after every position of the prompt, for one prompt.
4. Penalty: that prompt once more, with tokens that are drawn under a repetition penalty, which has to change
   the logits of part 2 as transformers' does.

And a prompt that goes on from the first one's answer has the logits that it has alone, to the bit. Then the
ladder (`ladder.py`): every step of every layer, for a prompt that fills the context, of the model and of a
random one of its shape (`companion.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.composed import Composed
from aerie.verify.filled import Filled, nothing_sure, try_blocks
from aerie.verify.identity import GOES_ON, Identity, going_on, try_identity
from aerie.verify.ladder import Ladder
from aerie.verify.prompts import Prompt
from aerie.verify.reference import Answer, Expected, Note, Reference, penalised, silent
from aerie.verify.rules import (
    Bounds,
    Distance,
    Failure,
    bounds_of,
    compare,
    join,
    judge,
    judge_bias,
    kl_divergence,
    numerics_of,
    place,
    rounding_of,
)
from aerie.verify.subject import BROKEN, Said, Subject, one_line

FREE_RUNNING = "free-running"


def divergence(ours: Sequence[int], theirs: Sequence[int], eos: Collection[int]) -> int | None:
    """The first step at which the answers differ, looking no further than the end of theirs."""
    for step, (our_token, their_token) in enumerate(zip(ours, theirs, strict=False)):
        if our_token != their_token:
            return step
        if their_token in eos:
            return None
    return None


def judge_answer(
    prompt: str, said: Said, theirs: Answer, forced: F32Array, eos: Collection[int], top_k: int
) -> Iterator[Failure]:
    """All rules of part 1. `forced` are our logits of part 2, (steps, vocab_size): up to where the answers
    part both runs have seen the same tokens, so their logits must be the same to the bit."""
    parted = divergence(said.token_ids, theirs.token_ids, eos)
    yield from _judge_length(prompt, said, len(theirs.token_ids), eos)
    yield from _judge_sampling(prompt, said)
    yield from _judge_repetition(prompt, said, forced, parted)
    if parted is not None:
        yield from _judge_parting(prompt, said, theirs, parted, top_k)


def _judge_length(prompt: str, said: Said, steps: int, eos: Collection[int]) -> Iterator[Failure]:
    """An answer goes on until its end token or for all `steps`, and no further."""
    tokens = said.token_ids
    if not tokens:
        yield Failure(FREE_RUNNING, prompt, 0, "our answer is empty")
        return
    if tokens[-1] not in eos and len(tokens) < steps:
        what = f"our answer stops after {len(tokens)} of {steps} tokens, without an end token"
        yield Failure(FREE_RUNNING, prompt, len(tokens), what)
    ended = next((step for step, token in enumerate(tokens[:-1]) if token in eos), None)
    if ended is not None:
        yield Failure(FREE_RUNNING, prompt, ended + 1, f"our answer goes on after end token {tokens[ended]}")


def _judge_sampling(prompt: str, said: Said) -> Iterator[Failure]:
    """What is said is what was sampled; told for the first step where it is not."""
    sampled = [int(np.argmax(logits)) for logits in said.logits]
    for step, token in enumerate(said.token_ids):
        if sampled[step : step + 1] != [token]:
            likeliest = f"{sampled[step]} is the likeliest" if step < len(sampled) else "nothing was sampled"
            what = f"our answer says token {token} where {likeliest} of ours"
            yield Failure(FREE_RUNNING, prompt, step, what)
            return


def _judge_repetition(prompt: str, said: Said, forced: F32Array, parted: int | None) -> Iterator[Failure]:
    until = len(forced) if parted is None else parted + 1
    for step, (free, again) in enumerate(zip(said.logits, forced[:until], strict=False)):
        if not np.array_equal(free, again, equal_nan=True):
            largest = float(np.abs(free - again).max())
            what = "the largest difference between our logits and those of the same tokens, forced,"
            yield Failure(FREE_RUNNING, prompt, step, what, largest, 0)
            return


def _judge_parting(prompt: str, said: Said, theirs: Answer, step: int, top_k: int) -> Iterator[Failure]:
    for what, found in (
        ("the place of our token in the reference's order", place(theirs.logits[step], said.token_ids[step])),
        ("the place of the reference's token in our order", place(said.logits[step], theirs.token_ids[step])),
    ):
        if found > top_k:
            yield Failure(FREE_RUNNING, prompt, step, what, found, top_k)


STEPS = 32
"""Tokens that both sides make, where the model's context has room for as many."""

FORCED, POSITIONS, PENALTY = "teacher-forced", "prompt positions", "penalty"

REPETITION_PENALTY = 1.25
DRAWN = 8
"""Tokens that are drawn under it."""
PENALTY_KL = 1e-8
"""Nats. The same logits make the same probabilities but for rounding in float32, which leaves 1e-10."""


@dataclass
class Trial:
    """What one prompt gave. `divergence` is the step at which the answers part, None where they do not;
    distances are None for a part that was not reached or not asked for. `penalty_kl`: how far the
    distributions under a penalty are from transformers', in nats, of each token drawn."""

    prompt: Prompt
    expected: Expected
    said: Said | None = None
    divergence: int | None = None
    forced: Distance | None = None
    positions: Distance | None = None
    penalty_kl: list[float] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Record:
    """Everything that was found. `overall` is what is wrong with all prompts together.

    On the virtual NPU `numerics` is exact or bfp16 and `rounding` conv_even or floor; else both are the
    backend's name."""

    backend: str
    numerics: str
    bounds: Bounds
    trials: list[Trial]
    overall: list[Failure]
    identities: list[Identity] = field(default_factory=list)
    rounding: str = "conv_even"
    ladders: list[Ladder] = field(default_factory=list)
    composed: list[Composed] = field(default_factory=list)
    filled: list[Filled] = field(default_factory=list)

    @property
    def failures(self) -> list[Failure]:
        """In the order of what was run."""
        of_prompts = [failure for trial in self.trials for failure in trial.failures]
        of_steps = [failure for ladder in self.ladders for failure in ladder.failures]
        of_bits = [identity.failure for identity in self.identities if identity.failure]
        of_chunks = [failure for composed in self.composed for failure in composed.failures]
        of_blocks = [failure for filled in self.filled for failure in filled.failures]
        return [*of_prompts, *self.overall, *of_steps, *of_bits, *of_chunks, *of_blocks]

    @property
    def verdict(self) -> str:
        return "FAIL" if self.failures else "PASS"

    def with_composed(self, composed: Sequence[Composed]) -> Record:
        return replace(self, composed=list(composed))

    def with_ladders(self, ladders: Sequence[Ladder]) -> Record:
        return replace(self, ladders=list(ladders))

    def with_identities(self, identities: Sequence[Identity]) -> Record:
        """Those that it has, and these."""
        return replace(self, identities=[*self.identities, *identities])


def verify(session: Session, reference: Reference, prompts: Sequence[Prompt], note: Note = silent) -> Record:
    """Take the prompts through the three parts, one after the other in the same session."""
    if not prompts:
        raise ValueError("there is no prompt, and a gate that looks at nothing must not pass")
    expected = reference.expect([(prompt, steps_of(session, prompt)) for prompt in prompts], note)
    subject, bounds = Subject(session), bounds_of(session)
    trials = []
    for prompt, wanted in zip(prompts, expected, strict=True):
        note(f"{session.backend}: {prompt.name}, {len(prompt.token_ids)} tokens")
        trials.append(try_prompt(subject, prompt, wanted, bounds))
    overall = _overall(trials, bounds)
    same = [try_identity(GOES_ON, lambda _: going_on(subject, prompts[0]))]
    record = Record(session.backend, numerics_of(session), bounds, trials, overall, same)
    return replace(record, rounding=rounding_of(session))


def verify_blocks(
    session: Session,
    reference: Reference,
    prompts: Sequence[Prompt],
    whose: str,
    full: bool,
    note: Note = silent,
) -> Record:
    """Fill blocks in after the prompts, in a model of block diffusion."""
    filled = []
    for one in try_blocks(whose, session, reference, prompts, full):
        note(f"{session.backend}: {whose}, {one.prompt}, {one.how}: {one.passes} passes")
        filled.append(one)
    bounds, overall = bounds_of(session), nothing_sure(filled)
    record = Record(session.backend, numerics_of(session), bounds, [], overall, filled=filled)
    return replace(record, rounding=rounding_of(session))


def steps_of(session: Session, prompt: Prompt) -> int:
    """Tokens to make: STEPS, or what the context has room for. The last one made needs no position."""
    return min(STEPS, session.model.config.context - len(prompt.token_ids) + 1)


def try_prompt(subject: Subject, prompt: Prompt, expected: Expected, bounds: Bounds) -> Trial:
    """One prompt through all parts. What breaks the forward pass is a failure like any other."""
    trial = Trial(prompt, expected)
    try:
        _run_parts(subject, trial, bounds)
    except BROKEN as error:
        part = FREE_RUNNING if trial.said is None else FORCED if trial.forced is None else POSITIONS
        trial.failures.append(Failure(part, prompt.name, None, one_line(error)))
    return trial


def _run_parts(subject: Subject, trial: Trial, bounds: Bounds) -> None:
    prompt, expected, eos = trial.prompt, trial.expected, subject.model.config.eos_token_ids
    theirs = expected.answer
    trial.said = _ask(subject, prompt, len(theirs.token_ids))
    forced = subject.forced(prompt.token_ids, theirs.token_ids)
    trial.divergence = divergence(trial.said.token_ids, theirs.token_ids, eos)
    trial.failures += judge_answer(prompt.name, trial.said, theirs, forced.logits, eos, bounds.top_k)
    trial.forced = _compare(trial, FORCED, theirs.logits, forced.logits, expected.rounding, bounds)
    if expected.positions is not None and expected.positions_rounding is not None:
        ours = subject.position_logits(forced.rows)
        trial.positions = _compare(
            trial, POSITIONS, expected.positions, ours, expected.positions_rounding, bounds
        )
        trial.failures += _draw(subject, trial)


def _draw(subject: Subject, trial: Trial) -> Iterator[Failure]:
    """Part 4. The logits are those of the same tokens, forced."""
    ids = trial.prompt.token_ids
    steps = min(DRAWN, len(trial.expected.answer.token_ids))
    tokens, drawn = subject.drawn(ids, steps, REPETITION_PENALTY)
    if not tokens:
        yield Failure(PENALTY, trial.prompt.name, 0, "our answer is empty")
        return
    logits = subject.forced(ids, tokens).logits
    for step, (ours, row) in enumerate(zip(drawn, logits, strict=True)):
        theirs = penalised(row, [*ids, *tokens[:step]], REPETITION_PENALTY)
        trial.penalty_kl.append(kl_divergence(theirs, np.log(np.maximum(ours, np.finfo(ours.dtype).tiny))))
    step, worst = int(np.argmax(trial.penalty_kl)), max(trial.penalty_kl)
    if not worst <= PENALTY_KL:
        what = "KL divergence of the distribution that a token is drawn from"
        yield Failure(PENALTY, trial.prompt.name, step, what, worst, PENALTY_KL)


def _ask(subject: Subject, prompt: Prompt, steps: int) -> Said:
    if prompt.message is None:
        return subject.answer(prompt.token_ids, steps)
    said = subject.chat([prompt.message], steps)
    return said[0] if said else Said(prompt.token_ids, [], [], None)


def _compare(
    trial: Trial, part: str, theirs: F32Array, ours: F32Array, rounding: Distance, bounds: Bounds
) -> Distance | None:
    """Compare and judge; None where ours are no numbers, which is a failure of its own."""
    name = trial.prompt.name
    broken = np.flatnonzero(~np.isfinite(ours).all(axis=-1))
    if broken.size:
        trial.failures.append(Failure(part, name, int(broken[0]), "our logits are not all finite"))
        return None
    distance = compare(theirs, ours)
    trial.failures += judge(part, name, distance, rounding, bounds)
    return distance


def _overall(trials: Sequence[Trial], bounds: Bounds) -> list[Failure]:
    """The bias over all steps of all prompts, which has the tightest bound."""
    reached = [(trial.forced, trial.expected.rounding) for trial in trials if trial.forced]
    if not reached:
        return []
    ours, rounding = (join(list(distances)) for distances in zip(*reached, strict=True))
    return list(judge_bias(FORCED, "all prompts", ours, rounding, bounds))
