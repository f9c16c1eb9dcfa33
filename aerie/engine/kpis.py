"""Speed figures of answers, and events while an answer is generated; both as in the seed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from aerie.engine.strategies.strategy import PassCounts

MICROSECONDS = 1e6
"""Microseconds in a second."""


@dataclass
class Kpi:
    """Times of one phase in microseconds: their number, their mean, and the last one."""

    samples: int = 0
    mean: float = 0.0
    last: float = 0.0

    def add(self, seconds: float) -> None:
        self.last = seconds * MICROSECONDS
        self.samples += 1
        self.mean += (self.last - self.mean) / self.samples


@dataclass
class Tps:
    """Tokens of the last answer, and rates in tokens/s.

    n_prompt: computed tokens of its prompt. n_generate: generated tokens, the first included. prompt: rate of
    n_prompt. generate: rate of the tokens after the first, which comes with the prompt; 0 if there are none.
    tokenAcceptance: tokens after the first per pass that gave some: 1 if each takes a pass, more with
    accepted drafts or diffusion blocks. n_drafted, n_accepted: draft tokens, and those that were accepted.
    """

    n_prompt: int = 0
    n_generate: int = 0
    prompt: float = 0.0
    generate: float = 0.0
    tokenAcceptance: float = 0.0  # noqa: N815 (the seed's name)
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass
class Kpis:
    """Figures of the answers so far, updated once per answer.

    prompt: time from an answer's start to its first token. generate: time from there to its last token; no
    sample for one token.
    """

    prompt: Kpi = field(default_factory=Kpi)
    generate: Kpi = field(default_factory=Kpi)
    tps: Tps = field(default_factory=Tps)

    def record_prompt(self, tokens: int, seconds: float, first: int = 1) -> None:
        """Record the first token, or block, after a prompt of which `tokens` were computed."""
        self.prompt.add(seconds)
        self.tps = Tps(n_prompt=tokens, n_generate=first, prompt=_rate(tokens, seconds))

    def record_generated(self, tokens: int, seconds: float, passes: PassCounts | None = None) -> None:
        """Record the tokens after the first, in these passes; None means one pass for each token."""
        if tokens:
            self.generate.add(seconds)
            self.tps.n_generate += tokens
            self.tps.generate = _rate(tokens, seconds)
            self.tps.tokenAcceptance = tokens / max(1, passes.passes - 1) if passes else 1.0
        if passes:
            self.tps.n_drafted, self.tps.n_accepted = passes.drafted, passes.accepted

    def dump(self, sep: str = " ") -> str:
        """The last answer in one line: times in milliseconds, rates in tokens/s."""
        return sep.join(
            (
                f"prompt:{self.prompt.last / 1000:.2f}ms",
                f"generate:{self.generate.last / 1000:.2f}ms",
                f"tps:prompt={self.tps.prompt:.2f}",
                f"tps:generate={self.tps.generate:.2f}",
            )
        )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


class EventKind(enum.Enum):
    """What happened to an answer. Every BEGIN is followed by one END or one ABORT."""

    BEGIN = "begin"  # it is about to be computed
    CONTINUE = "continue"  # a piece of its text has come, or a part of the prompt, not the last, was read
    END = "end"  # it is complete, for whatever reason
    ABORT = "abort"  # it was stopped: by the caller, or by an error


@dataclass(frozen=True)
class Event:
    """text: new text; empty unless `kind` is CONTINUE, and for a part of the prompt. token_ids: tokens
    generated since the event before. thinking: new thinking, before the text."""

    kind: EventKind
    text: str = ""
    token_ids: tuple[int, ...] = ()
    thinking: str = ""
