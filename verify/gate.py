"""The gate: takes each prompt through four parts, compares our results with the reference, and gives a
verdict.

1. Free-running: both answer greedily. At the first difference each side's token must be in the other's top k.
   The answers differ from there on, and part 2 continues.
2. Teacher-forced: both get the reference's tokens, all of them, and every step is compared.
3. Prompt positions: the logits after every position of the prompt, for one prompt.
4. Penalty: the same prompt once more, with tokens drawn under a repetition penalty, which must change the
logits
   of part 2 as transformers' penalty does.

A prompt that continues the first one's answer must have the same bits as when it runs alone. Then every layer
step is checked (`layer_check.py`), for a prompt that fills the context, of the model and of a random one of
its shape (`random_model.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.bit_identity import CONTINUATION_NAME, BitIdentity, identity_of_continuation, try_identity
from aerie.verify.bounds import (
    Bounds,
    GateFailure,
    LogitsDistance,
    compare,
    join,
    judge,
    judge_bias,
    kl_divergence,
    session_bounds,
    session_numerics,
    session_rounding,
    token_rank,
)
from aerie.verify.chunk_check import ChunkModeResult
from aerie.verify.conversation_check import ConversationResult
from aerie.verify.diffusion_check import DiffusionResult, no_choice_compared, try_blocks
from aerie.verify.gate_prompts import Prompt
from aerie.verify.layer_check import LayerReport
from aerie.verify.reference import (
    ExpectedAnswer,
    Note,
    Reference,
    ReferenceAnswer,
    apply_repetition_penalty,
    no_note,
)
from aerie.verify.subject import FORWARD_ERRORS, FreeRun, SessionUnderTest, one_line

FREE_RUNNING = "free-running"


def first_divergence(ours: Sequence[int], theirs: Sequence[int], eos: Collection[int]) -> int | None:
    """The first step at which the answers differ, up to the end of the reference's; None if there is none."""
    for step, (our_token, their_token) in enumerate(zip(ours, theirs, strict=False)):
        if our_token != their_token:
            return step
        if their_token in eos:
            return None
    return None


def judge_answer(
    prompt: str, ours: FreeRun, reference: ReferenceAnswer, forced: F32Array, eos: Collection[int], top_k: int
) -> Iterator[GateFailure]:
    """All rules of part 1. forced: our logits of part 2, (steps, vocab_size). Until the answers differ both
    runs have the same tokens, so their logits must be bit-identical.
    """
    parted = first_divergence(ours.token_ids, reference.token_ids, eos)
    yield from _judge_length(prompt, ours, len(reference.token_ids), eos)
    yield from _judge_sampling(prompt, ours)
    yield from _judge_repetition(prompt, ours, forced, parted)
    if parted is not None:
        yield from _judge_divergence(prompt, ours, reference, parted, top_k)


def _judge_length(prompt: str, run: FreeRun, steps: int, eos: Collection[int]) -> Iterator[GateFailure]:
    """An answer continues until its end token or for all `steps`, and no further."""
    tokens = run.token_ids
    if not tokens:
        yield GateFailure(FREE_RUNNING, prompt, 0, "our answer is empty")
        return
    if tokens[-1] not in eos and len(tokens) < steps:
        what = f"our answer stops after {len(tokens)} of {steps} tokens, without an end token"
        yield GateFailure(FREE_RUNNING, prompt, len(tokens), what)
    ended = next((step for step, token in enumerate(tokens[:-1]) if token in eos), None)
    if ended is not None:
        yield GateFailure(
            FREE_RUNNING, prompt, ended + 1, f"our answer goes on after end token {tokens[ended]}"
        )


def _judge_sampling(prompt: str, run: FreeRun) -> Iterator[GateFailure]:
    """The answer must be what was sampled; reports the first step where it is not."""
    sampled = [int(np.argmax(logits)) for logits in run.logits]
    for step, token in enumerate(run.token_ids):
        if sampled[step : step + 1] != [token]:
            likeliest = f"{sampled[step]} is the likeliest" if step < len(sampled) else "nothing was sampled"
            what = f"our answer has token {token} where {likeliest} of ours"
            yield GateFailure(FREE_RUNNING, prompt, step, what)
            return


def _judge_repetition(
    prompt: str, run: FreeRun, forced: F32Array, divergence_step: int | None
) -> Iterator[GateFailure]:
    until = len(forced) if divergence_step is None else divergence_step + 1
    for step, (free, again) in enumerate(zip(run.logits, forced[:until], strict=False)):
        if not np.array_equal(free, again, equal_nan=True):
            largest = float(np.abs(free - again).max())
            what = "the largest difference between our logits and those of the same tokens, forced,"
            yield GateFailure(FREE_RUNNING, prompt, step, what, largest, 0)
            return


def _judge_divergence(
    prompt: str, run: FreeRun, theirs: ReferenceAnswer, step: int, top_k: int
) -> Iterator[GateFailure]:
    for what, found in (
        (
            "the place of our token in the reference's order",
            token_rank(theirs.logits[step], run.token_ids[step]),
        ),
        (
            "the place of the reference's token in our order",
            token_rank(run.logits[step], theirs.token_ids[step]),
        ),
    ):
        if found > top_k:
            yield GateFailure(FREE_RUNNING, prompt, step, what, found, top_k)


STEPS = 32
"""Tokens that both sides generate, if the model's context has room."""

FORCED, POSITIONS, PENALTY = "teacher-forced", "prompt positions", "penalty"

REPETITION_PENALTY = 1.25
DRAWN = 8
"""Tokens that are drawn under the penalty."""
MIN_PENALTY_KL = 1e-8
"""Nats. Equal logits give equal probabilities but for rounding in float32, which leaves 1e-10."""


@dataclass
class Trial:
    """The results of one prompt. divergence: the step at which the answers differ, or None. Distances are
    None for a part that was not reached or not requested. penalty_kl: how far the distributions under a
    penalty are from transformers', in nats, for each drawn token.
    """

    prompt: Prompt
    expected: ExpectedAnswer
    free_run: FreeRun | None = None
    divergence: int | None = None
    forced_distance: LogitsDistance | None = None
    positions: LogitsDistance | None = None
    penalty_kl: list[float] = field(default_factory=list)
    failures: list[GateFailure] = field(default_factory=list)


@dataclass(frozen=True)
class GateRecord:
    """All results. overall: failures of all prompts together.

    On the virtual NPU `numerics` is exact or bfp16 and `rounding` conv_even or floor; else both are the
    backend's name.
    """

    backend: str
    numerics: str
    bounds: Bounds
    trials: list[Trial]
    overall: list[GateFailure]
    identities: list[BitIdentity] = field(default_factory=list)
    rounding: str = "conv_even"
    layer_reports: list[LayerReport] = field(default_factory=list)
    chunk_results: list[ChunkModeResult] = field(default_factory=list)
    diffusion_results: list[DiffusionResult] = field(default_factory=list)
    conversations: list[ConversationResult] = field(default_factory=list)

    @property
    def failures(self) -> list[GateFailure]:
        """All failures, in the order of what was run."""
        of_prompts = [failure for trial in self.trials for failure in trial.failures]
        of_prompts += [failure for talk in self.conversations for failure in talk.failures]
        of_steps = [failure for report in self.layer_reports for failure in report.failures]
        of_bits = [identity.failure for identity in self.identities if identity.failure]
        of_chunks = [failure for composed in self.chunk_results for failure in composed.failures]
        of_blocks = [failure for filled in self.diffusion_results for failure in filled.failures]
        return [*of_prompts, *self.overall, *of_steps, *of_bits, *of_chunks, *of_blocks]

    @property
    def verdict(self) -> str:
        return "FAIL" if self.failures else "PASS"

    def with_chunk_results(self, results: Sequence[ChunkModeResult]) -> GateRecord:
        return replace(self, chunk_results=list(results))

    def with_layer_reports(self, reports: Sequence[LayerReport]) -> GateRecord:
        return replace(self, layer_reports=list(reports))

    def with_identities(self, identities: Sequence[BitIdentity]) -> GateRecord:
        """The record with further identities."""
        return replace(self, identities=[*self.identities, *identities])


def verify(
    session: Session, reference: Reference, prompts: Sequence[Prompt], note: Note = no_note
) -> GateRecord:
    """Take the prompts through all parts, one after the other in the same session."""
    if not prompts:
        raise ValueError("there is no prompt, and a gate that looks at nothing must not pass")
    expected = reference.expected_answers(
        [(prompt, steps_for_prompt(session, prompt)) for prompt in prompts], note
    )
    subject, bounds = SessionUnderTest(session), session_bounds(session)
    trials = []
    for prompt, wanted in zip(prompts, expected, strict=True):
        note(f"{session.backend}: {prompt.name}, {len(prompt.token_ids)} tokens")
        trials.append(try_prompt(subject, prompt, wanted, bounds))
    overall = _overall(trials, bounds)
    same = [try_identity(CONTINUATION_NAME, lambda _: identity_of_continuation(subject, prompts[0]))]
    record = GateRecord(session.backend, session_numerics(session), bounds, trials, overall, same)
    return replace(record, rounding=session_rounding(session))


def verify_blocks(
    session: Session,
    reference: Reference,
    prompts: Sequence[Prompt],
    model_name: str,
    full: bool,
    note: Note = no_note,
) -> GateRecord:
    """Fill blocks after the prompts, in a block diffusion model."""
    filled = []
    for one in try_blocks(model_name, session, reference, prompts, full):
        note(f"{session.backend}: {model_name}, {one.prompt}, {one.how}: {one.passes} passes")
        filled.append(one)
    bounds, overall = session_bounds(session), no_choice_compared(filled)
    record = GateRecord(
        session.backend, session_numerics(session), bounds, [], overall, diffusion_results=filled
    )
    return replace(record, rounding=session_rounding(session))


def steps_for_prompt(session: Session, prompt: Prompt) -> int:
    """Tokens to generate: STEPS, or what the context has room for. The last one needs no position."""
    return min(STEPS, session.model.config.context - len(prompt.token_ids) + 1)


def try_prompt(subject: SessionUnderTest, prompt: Prompt, expected: ExpectedAnswer, bounds: Bounds) -> Trial:
    """Take one prompt through all parts. An error of the forward pass is a failure."""
    trial = Trial(prompt, expected)
    try:
        _run_parts(subject, trial, bounds)
    except FORWARD_ERRORS as error:
        part = (
            FREE_RUNNING if trial.free_run is None else FORCED if trial.forced_distance is None else POSITIONS
        )
        trial.failures.append(GateFailure(part, prompt.name, None, one_line(error)))
    return trial


def _run_parts(subject: SessionUnderTest, trial: Trial, bounds: Bounds) -> None:
    prompt, expected, eos = trial.prompt, trial.expected, subject.model.config.eos_token_ids
    theirs = expected.answer
    trial.free_run = _free_run(subject, prompt, len(theirs.token_ids))
    forced = subject.forced_run(prompt.token_ids, theirs.token_ids)
    trial.divergence = first_divergence(trial.free_run.token_ids, theirs.token_ids, eos)
    trial.failures += judge_answer(prompt.name, trial.free_run, theirs, forced.logits, eos, bounds.top_k)
    trial.forced_distance = _compare(trial, FORCED, theirs.logits, forced.logits, expected.rounding, bounds)
    if expected.positions is not None and expected.positions_rounding is not None:
        ours = subject.position_logits(forced.rows)
        trial.positions = _compare(
            trial, POSITIONS, expected.positions, ours, expected.positions_rounding, bounds
        )
        trial.failures += _draw(subject, trial)


def _draw(subject: SessionUnderTest, trial: Trial) -> Iterator[GateFailure]:
    """Part 4. The logits are those of the same tokens, forced."""
    ids = trial.prompt.token_ids
    steps = min(DRAWN, len(trial.expected.answer.token_ids))
    tokens, drawn = subject.sampled_run(ids, steps, REPETITION_PENALTY)
    if not tokens:
        yield GateFailure(PENALTY, trial.prompt.name, 0, "our answer is empty")
        return
    logits = subject.forced_run(ids, tokens).logits
    for step, (ours, row) in enumerate(zip(drawn, logits, strict=True)):
        theirs = apply_repetition_penalty(row, [*ids, *tokens[:step]], REPETITION_PENALTY)
        trial.penalty_kl.append(kl_divergence(theirs, np.log(np.maximum(ours, np.finfo(ours.dtype).tiny))))
    step, worst = int(np.argmax(trial.penalty_kl)), max(trial.penalty_kl)
    if not worst <= MIN_PENALTY_KL:
        what = "KL divergence of the distribution that a token is drawn from"
        yield GateFailure(PENALTY, trial.prompt.name, step, what, worst, MIN_PENALTY_KL)


def _free_run(subject: SessionUnderTest, prompt: Prompt, steps: int) -> FreeRun:
    if prompt.message is None:
        return subject.free_run(prompt.token_ids, steps)
    run = subject.chat([prompt.message], steps)
    return run[0] if run else FreeRun(prompt.token_ids, [], [], None)


def _compare(
    trial: Trial, part: str, theirs: F32Array, ours: F32Array, rounding: LogitsDistance, bounds: Bounds
) -> LogitsDistance | None:
    """Compare and check. Returns None if our logits are not finite, which is a failure of its own."""
    name = trial.prompt.name
    broken = np.flatnonzero(~np.isfinite(ours).all(axis=-1))
    if broken.size:
        trial.failures.append(GateFailure(part, name, int(broken[0]), "our logits are not all finite"))
        return None
    distance = compare(theirs, ours)
    trial.failures += judge(part, name, distance, rounding, bounds)
    return distance


def _overall(trials: Sequence[Trial], bounds: Bounds) -> list[GateFailure]:
    """The bias over all steps of all prompts, which has the tightest bound."""
    reached = [(trial.forced_distance, trial.expected.rounding) for trial in trials if trial.forced_distance]
    if not reached:
        return []
    ours, rounding = (join(list(distances)) for distances in zip(*reached, strict=True))
    return list(judge_bias(FORCED, "all prompts", ours, rounding, bounds, texts=len(reached)))
