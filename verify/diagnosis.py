"""Diagnosis: one prompt up the ladder and on to the answer, and the first step that does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerie.engine.forward import check_prompt
from aerie.engine.session import Session
from aerie.verify.ladder import Row, climb
from aerie.verify.reference import Reference
from aerie.verify.subject import Subject

ANSWER_TOKENS = 4
"""Enough to see that an answer goes on after its first token."""


@dataclass(frozen=True)
class Diagnosis:
    """Every step of prefill, then every step of decode, then the answer, in the order they run."""

    token_ids: list[int]
    rows: list[Row]

    @property
    def first(self) -> Row | None:
        """The first step at fault; without one, the first that is too far from transformers' run."""
        guilty = next((row for row in self.rows if row.problem), None)
        return guilty or next((row for row in self.rows if row.drift), None)

    @property
    def phases(self) -> tuple[str, ...]:
        """Those with layers, in the order they run."""
        return tuple(dict.fromkeys(row.phase for row in self.rows if row.layer is not None))

    @property
    def focus(self) -> tuple[str, int]:
        """The phase and layer to look into: of the first step at fault, else of the one nearest its bound."""
        first = self.first
        if first is not None and first.layer is not None:
            return first.phase, first.layer
        inside = [row for row in self.rows if row.layer is not None]
        nearest = max(inside, key=lambda row: row.used)
        return nearest.phase, nearest.layer or 0

    def steps(self, phase: str, layer: int | None) -> list[Row]:
        """Every step of a layer; None: those after the layers."""
        return [row for row in self.rows if (row.phase, row.layer) == (phase, layer)]

    def outputs(self, phase: str) -> Iterator[tuple[str, Row, list[Row]]]:
        """What comes out: of each layer, with all steps in it, then of each step after the layers."""
        layers = dict.fromkeys(row.layer for row in self.rows if row.phase == phase)
        for layer in layers:
            inside = self.steps(phase, layer)
            if layer is not None:
                yield f"layer {layer}", inside[-1], inside
            else:
                yield from ((row.step, row, [row]) for row in inside)


def diagnose(session: Session, reference: Reference, token_ids: Sequence[int]) -> Diagnosis:
    """Climb the ladder with one prompt, and look at its answer.

    A prompt of one token gets the reference's next one, to be decoded. Raises PromptError for a prompt that
    cannot be run.
    """
    ids = list(token_ids)
    check_prompt(ids, session.model.config, session.model.seq_len)
    if len(ids) == 1:
        ids += reference.greedy(ids, 1).token_ids
    return Diagnosis(ids, [*climb(session, reference, ids), _answer(Subject(session), ids)])


def _answer(subject: Subject, ids: Sequence[int]) -> Row:
    """What the session answers has to be what its own logits say, token by token, and as long as asked."""
    tokens = subject.answer(ids, ANSWER_TOKENS).token_ids
    return Row("answer", None, "answer", remark=_answer_problem(subject, ids, tokens))


def _answer_problem(subject: Subject, ids: Sequence[int], tokens: Sequence[int]) -> str:
    if not tokens:
        return "the answer is empty"
    config = subject.model.config
    likeliest = subject.forced(ids, tokens).logits.argmax(axis=-1).tolist()
    for index, (token, likely) in enumerate(zip(tokens, likeliest, strict=True)):
        if token != likely:
            return f"token {index} of the answer is {token}, and the logits say {likely}"
    whole = min(ANSWER_TOKENS, config.context - len(ids) + 1)
    if len(tokens) < whole and tokens[-1] not in config.eos_token_ids:
        return f"the answer ends after {len(tokens)} of {whole} tokens, and not with an end-of-sequence token"
    return ""
