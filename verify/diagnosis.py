"""Diagnosis: checks every layer step of one prompt, then its answer, and finds the first step at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerie.engine.forward import check_prompt
from aerie.engine.session import Session
from aerie.verify.layer_check import LayerStepResult, check_layers
from aerie.verify.reference import Reference
from aerie.verify.subject import SessionUnderTest

ANSWER_TOKENS = 4
"""Enough to see that an answer continues after its first token."""


@dataclass(frozen=True)
class Diagnosis:
    """Every step of prefill, then every step of decode, then the answer, in order."""

    token_ids: list[int]
    rows: list[LayerStepResult]

    @property
    def first(self) -> LayerStepResult | None:
        """The first step at fault; without one, the first that is too far from transformers' run."""
        guilty = next((row for row in self.rows if row.problem), None)
        return guilty or next((row for row in self.rows if row.drift), None)

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that have layers, in order."""
        return tuple(dict.fromkeys(row.phase for row in self.rows if row.layer is not None))

    @property
    def focus(self) -> tuple[str, int]:
        """The phase and layer to look at: of the first step at fault, else of the one nearest its bound."""
        first = self.first
        if first is not None and first.layer is not None:
            return first.phase, first.layer
        inside = [row for row in self.rows if row.layer is not None]
        nearest = max(inside, key=lambda row: row.used)
        return nearest.phase, nearest.layer or 0

    def steps(self, phase: str, layer: int | None) -> list[LayerStepResult]:
        """Every step of a layer; layer None: the steps after the layers."""
        return [row for row in self.rows if (row.phase, row.layer) == (phase, layer)]

    def phase_outputs(self, phase: str) -> Iterator[tuple[str, LayerStepResult, list[LayerStepResult]]]:
        """The outputs of a phase: of each layer, with all its steps, then of each step after the layers."""
        layers = dict.fromkeys(row.layer for row in self.rows if row.phase == phase)
        for layer in layers:
            inside = self.steps(phase, layer)
            if layer is not None:
                yield f"layer {layer}", inside[-1], inside
            else:
                yield from ((row.step, row, [row]) for row in inside)


def diagnose(session: Session, reference: Reference, token_ids: Sequence[int]) -> Diagnosis:
    """Check every layer step for one prompt, and its answer.

    A prompt of one token gets the reference's next one, so that there is a token to decode. Raises
    PromptError if the prompt cannot run.
    """
    ids = list(token_ids)
    check_prompt(ids, session.model.config, session.model.seq_len)
    if len(ids) == 1:
        ids += reference.greedy(ids, 1).token_ids
    return Diagnosis(ids, [*check_layers(session, reference, ids), _answer(SessionUnderTest(session), ids)])


def _answer(subject: SessionUnderTest, ids: Sequence[int]) -> LayerStepResult:
    """Check the answer: each token must follow from its own logits, and it must be as long as requested."""
    tokens = subject.free_run(ids, ANSWER_TOKENS).token_ids
    return LayerStepResult("answer", None, "answer", remark=_answer_problem(subject, ids, tokens))


def _answer_problem(subject: SessionUnderTest, ids: Sequence[int], tokens: Sequence[int]) -> str:
    if not tokens:
        return "the answer is empty"
    config = subject.model.config
    likeliest = subject.forced_run(ids, tokens).logits.argmax(axis=-1).tolist()
    for index, (token, likely) in enumerate(zip(tokens, likeliest, strict=True)):
        if token != likely:
            return f"token {index} of the answer is {token}, and the logits give {likely}"
    whole = min(ANSWER_TOKENS, config.context - len(ids) + 1)
    if len(tokens) < whole and tokens[-1] not in config.eos_token_ids:
        return f"the answer ends after {len(tokens)} of {whole} tokens, and not with an end-of-sequence token"
    return ""
