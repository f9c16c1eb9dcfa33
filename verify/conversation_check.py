"""A long conversation, as `make chat` holds it, whose answers are compared with the reference.

Turn after turn goes through the KV cache of the turn before. The reference gets all tokens in one forward
pass, so what our cache loses, moves or mixes up shows in the logits of the turns that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.session import Session
from aerie.verify.bounds import (
    Bounds,
    GateFailure,
    LogitsDistance,
    compare,
    join,
    judge,
    session_bounds,
)
from aerie.verify.gate_prompts import QUESTIONS
from aerie.verify.reference import Reference
from aerie.verify.subject import FORWARD_ERRORS, FreeRun, SessionUnderTest, one_line

CONVERSATION = "conversation"
STEPS = 32
"""Tokens of an answer, at most."""
MAX_TURN_TOKENS = 48
"""Tokens that a message and what the template puts around it take, at most."""


@dataclass
class ConversationResult:
    """tokens: of the whole conversation. distance, rounding: of the answers' logits, None if there are none;
    rounding is the reference's own distance between bf16 and float32.
    """

    turns: int = 0
    tokens: int = 0
    distance: LogitsDistance | None = None
    rounding: LogitsDistance | None = None
    failures: list[GateFailure] = field(default_factory=list)


def check_fits(session: Session, tokens: int) -> None:
    """Raises UserError if a conversation of so many tokens does not fit, or the model has no template."""
    longest = session.model.config.context - MAX_TURN_TOKENS
    if not session.tokenizer.has_chat_template:
        raise UserError(
            f"--conversation {tokens} (CONVERSATION) needs a chat template, which this model does not have; "
            "leave it out"
        )
    if not 1 <= tokens <= longest:
        raise UserError(
            f"--conversation is {tokens} tokens (CONVERSATION), and in this model's context of "
            f"{session.model.config.context} positions it can have 1 to {longest}"
        )


def try_conversation(session: Session, reference: Reference, tokens: int) -> ConversationResult:
    """Talk until the conversation has `tokens` tokens. An error of the forward pass is a failure. Raises as
    check_fits."""
    check_fits(session, tokens)
    result = ConversationResult()
    try:
        runs = SessionUnderTest(session).chat(
            cycle(QUESTIONS), STEPS, lambda answers: bool(answers) and _length(answers[-1]) >= tokens
        )
    except FORWARD_ERRORS as error:
        result.failures.append(_failure(None, one_line(error)))
        return result
    result.turns, result.tokens = len(runs), max(map(_length, runs), default=0)
    if result.tokens < tokens:
        what = f"the conversation ends after {result.tokens} of {tokens} tokens"
        result.failures.append(_failure(result.turns, what))
    result.failures += _judge_sampling(runs)
    if not result.failures:
        _compare(result, runs, reference, session_bounds(session))
    return result


def _length(run: FreeRun) -> int:
    return len(run.prompt_ids) + len(run.token_ids)


def _judge_sampling(runs: Sequence[FreeRun]) -> Iterator[GateFailure]:
    """Each answer has tokens, each the likeliest of finite logits."""
    for turn, run in enumerate(runs):
        if not run.token_ids:
            yield _failure(turn, "our answer is empty")
        elif not np.isfinite(run.logits).all():
            yield _failure(turn, "our logits are not all finite")
        elif [int(np.argmax(row)) for row in run.logits] != run.token_ids:
            yield _failure(turn, "our answer is not what is the likeliest of ours")


def _compare(
    result: ConversationResult, runs: Sequence[FreeRun], reference: Reference, bounds: Bounds
) -> None:
    """Compare the logits before each token of each answer."""
    distances, roundings = [], []
    for ids, answers in passes(runs):
        positions = [step for run in answers for step in _steps(run)]
        theirs, exact = (each.logits_at(ids, positions) for each in (reference, reference.exact))
        distances.append(compare(theirs, np.concatenate([run.logits for run in answers])))
        roundings.append(compare(theirs, exact))
    result.distance, result.rounding = join(distances), join(roundings)
    # All turns attend to the same rounded keys and values: they are one text (bounds.py).
    result.failures += judge(CONVERSATION, "all turns", result.distance, result.rounding, bounds)


def _steps(run: FreeRun) -> range:
    """The positions after which an answer's tokens were chosen."""
    first = len(run.prompt_ids) - 1
    return range(first, first + len(run.token_ids))


def passes(runs: Sequence[FreeRun]) -> list[tuple[list[int], list[FreeRun]]]:
    """The forward passes that have all answers, each with its token ids and its answers.

    A prompt has the answers before it as text, whose token ids may be others than those generated; an answer
    is in the pass of a later one if all its tokens are.
    """
    found: list[tuple[list[int], list[FreeRun]]] = []
    for run in reversed(runs):
        ids = [*run.prompt_ids, *run.token_ids[:-1]]
        home = next((answers for whole, answers in found if whole[: len(ids)] == ids), None)
        if home is None:
            found.append((ids, [run]))
        else:
            home.insert(0, run)
    return found


def _failure(turn: int | None, what: str) -> GateFailure:
    return GateFailure(CONVERSATION, "all turns", turn, what)
