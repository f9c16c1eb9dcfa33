"""`python -m benchmarks.drafts`: measure what prompt lookup saves on texts that a model is made to generate.

A model with random weights generates nothing that repeats. So a sampler replays a committed text: every
forward pass runs as usual, and the next token of the text is taken instead of the likeliest. The cost is that
of a real model that generates this text. Tokens are words and punctuation marks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from aerie.cli.arguments import int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import folders
from aerie.common.text_tables import compact_table, print_tables
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DEFAULT_DECODE_CONFIG, PROMPT_LOOKUP, DecodeConfig
from aerie.engine.variant_set import GUIDE, ROWS
from aerie.runtime import select_backend

TEXTS = Path(__file__).parent / "texts"
SEPARATOR = "=====\n"
"""Separates the question from the answer in a text file."""


class RecordedText(NamedTuple):
    """A question and its answer, as token ids from 3 on."""

    name: str
    prompt: list[int]
    answer: list[int]


def texts() -> list[RecordedText]:
    """The committed texts, by name."""
    return [_text(path) for path in sorted(TEXTS.glob("*.txt"))]


def _text(path: Path) -> RecordedText:
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    words = [re.findall(r"\w+|\s+|[^\w\s]", part) for part in parts]
    ids = {word: number for number, word in enumerate(dict.fromkeys(words[0] + words[1]), start=3)}
    prompt, answer = ([ids[word] for word in part] for part in words)
    return RecordedText(path.stem, prompt, answer)


@dataclass(frozen=True)
class ReplaySampler(Sampler):
    """Takes the next token of a text, whatever the logits are."""

    text: Sequence[int] = field(default=())

    def __call__(self, logits: Any, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()) -> int:
        super().__call__(logits, prompt_ids, token_ids)  # for its cost
        return self.text[len(token_ids)]


class DraftFigures(NamedTuple):
    """Seconds per token: in `guide`, in `rows`, and with prompt lookup; tokens per pass with it; the share of
    draft tokens that were accepted."""

    guide: float
    rows: float
    lookup: float
    per_pass: float
    share: float


def measure(session: Session, text: RecordedText, max_tokens: int) -> DraftFigures:
    """Measure all three in turn over the first `max_tokens` tokens of an answer."""
    answer = text.answer[:max_tokens]
    settings = (
        (DEFAULT_DECODE_CONFIG, GUIDE),
        (DEFAULT_DECODE_CONFIG, ROWS),
        (DecodeConfig(draft=PROMPT_LOOKUP), ROWS),
    )
    answers = [
        _replay(session, text.prompt, answer, decode_config, decode) for decode_config, decode in settings
    ]
    plain, rows, lookup = (1 / (each.figures.tokens_per_s or 1) for each in answers)
    passes = answers[-1].pass_counts
    assert passes is not None
    return DraftFigures(
        plain, rows, lookup, len(answer) / passes.passes, passes.accepted / max(1, passes.drafted)
    )


def texts_that_fit(config: ModelConfig, max_tokens: int) -> list[str]:
    """Names of the texts for which a model has enough positions and vocabulary."""
    return [
        text.name
        for text in texts()
        if len(text.prompt) + min(max_tokens, len(text.answer)) <= config.context
        and max(text.prompt + text.answer) < config.vocab_size
    ]


def _replay(
    session: Session, prompt: Sequence[int], answer: Sequence[int], decode_config: DecodeConfig, decode: str
) -> Request:
    """Generate the answer."""
    sampler = ReplaySampler(text=answer)
    if decode == GUIDE:
        generation = session.generate(prompt, len(answer), sampler)
        session.requests.clear_prefix_cache()  # so that the next one computes its prompt too
        list(generation)
        return generation
    maker = decode_config.strategy_factory(session.model.config, sampler)
    request = session.scheduler.add_request(prompt, len(answer), sampler, strategy=maker)
    session.scheduler.ensure_programs(len(prompt), len(answer))
    list(request)
    if request.token_ids != [*answer]:
        raise ValueError("the replayed answer is another")
    return request


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(prog="python -m benchmarks.drafts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="as of make run; its weights do not matter")
    parser.add_argument("--rounds", type=int_at_least(1), default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int_at_least(2), default=160, help="of each answer, at most (default: %(default)s)"
    )
    parser.set_defaults(command=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure all texts and print the table."""
    report = Reporter()
    options = RuntimeOptions(None, select_backend("virtual"), folders.programs_folder())
    session = prepare_runtime(open_checkpoint(find_checkpoint(arguments.model)), options, report)
    figures = ("guide ms", "rows ms", "lookup ms", "times rows", "times guide", "tokens a pass", "right")
    table = compact_table("a token, in the median of all rounds", ("text",), figures)
    for text in texts():
        rounds = [measure(session, text, arguments.tokens) for _ in range(arguments.rounds)]
        report.note(f"{text.name}: measured")
        figures_row = DraftFigures(*map(median, zip(*rounds, strict=True)))
        table.add_row(
            text.name,
            *(f"{1000 * each:.1f}" for each in (figures_row.guide, figures_row.rows, figures_row.lookup)),
            f"{figures_row.rows / figures_row.lookup:.2f}",
            f"{figures_row.guide / figures_row.lookup:.2f}",
            f"{figures_row.per_pass:.2f}",
            f"{figures_row.share:.0%}",
        )
    print_tables(Console(highlight=False), table)
    return 0


if __name__ == "__main__":
    setup_process()
    sys.exit(run_command(build_parser(), None))
