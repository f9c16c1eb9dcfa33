"""What tests of models that pass share: the gate and the diagnosis find nothing."""

from __future__ import annotations

from aerie.engine.session import Session
from aerie.verify.diagnosis import diagnose
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts
from aerie.verify.reference import Reference

SEQ_LEN = 64
"""Tokens of the six programs of random models."""


def check(session: Session, reference: Reference, full: bool) -> None:
    prompts = choose_prompts(session, full)
    record = verify(session, reference, prompts)
    failures = [str(failure) for failure in record.failures]
    assert failures == [], "\n".join(failures)
    assert record.verdict == "PASS"
    assert len(record.trials) == len(prompts) >= (8 if full else 2)
    found = diagnose(session, reference, prompts[0].token_ids).first
    assert found is None, f"{found.place}: {found.problem or found.drift}"
