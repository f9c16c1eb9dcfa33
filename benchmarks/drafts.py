"""`python -m benchmarks.drafts`: what guesses by lookup save, on texts that a model is made to say.

A model of full size and random weights says nothing that repeats itself. So a committed text stands in for
its choices: every pass is computed as for any answer, and then the text's next token is taken in place of
the likeliest. That costs what a real model costs that says this text. Tokens are words and marks.
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

from aerie.cli.arguments import Parser, begin_process, run_command, whole_number
from aerie.cli.checkpoints import find_checkpoint
from aerie.common import folders
from aerie.common.text_tables import compact_table, print_tables
from aerie.engine.blocks import GUIDE, ROWS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.config import ModelConfig
from aerie.engine.progress import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session, prepare_runtime
from aerie.engine.strategies.decode_config import LOOKUP, PLAIN, DecodeConfig
from aerie.runtime import select_backend

TEXTS = Path(__file__).parent / "texts"
BETWEEN = "=====\n"
"""In a text's file, what separates the question from the answer."""


class Text(NamedTuple):
    """A question and its answer, as token ids from 3 on."""

    name: str
    prompt: list[int]
    answer: list[int]


def texts() -> list[Text]:
    """Those that are committed, by name."""
    return [_text(path) for path in sorted(TEXTS.glob("*.txt"))]


def _text(path: Path) -> Text:
    parts = path.read_text(encoding="utf-8").split(BETWEEN)
    words = [re.findall(r"\w+|\s+|[^\w\s]", part) for part in parts]
    ids = {word: number for number, word in enumerate(dict.fromkeys(words[0] + words[1]), start=3)}
    prompt, answer = ([ids[word] for word in part] for part in words)
    return Text(path.stem, prompt, answer)


@dataclass(frozen=True)
class Replayed(Sampler):
    """Takes a text's next token, whatever the logits are."""

    text: Sequence[int] = field(default=())

    def __call__(self, logits: Any, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()) -> int:
        super().__call__(logits, prompt_ids, token_ids)  # which takes its time
        return self.text[len(token_ids)]


class Row(NamedTuple):
    """Seconds of a token: plain in the family guide, in rows, and with lookup; tokens a pass with it; the
    share of the guesses that was right."""

    guide: float
    rows: float
    lookup: float
    per_pass: float
    share: float


def measure(session: Session, text: Text, most: int) -> Row:
    """All three in turn, of an answer's first tokens, so many at most."""
    answer = text.answer[:most]
    ways = ((PLAIN, GUIDE), (PLAIN, ROWS), (DecodeConfig(draft=LOOKUP), ROWS))
    made = [_answered(session, text.prompt, answer, decode_config, decode) for decode_config, decode in ways]
    plain, rows, lookup = (1 / (each.figures.tokens_per_s or 1) for each in made)
    passes = made[-1].passes
    assert passes is not None
    return Row(plain, rows, lookup, len(answer) / passes.passes, passes.accepted / max(1, passes.drafted))


def fitting(config: ModelConfig, most: int) -> list[str]:
    """Names of the texts which a model has positions and tokens for, with so many tokens of the answer."""
    return [
        text.name
        for text in texts()
        if len(text.prompt) + min(most, len(text.answer)) <= config.context
        and max(text.prompt + text.answer) < config.vocab_size
    ]


def _answered(
    session: Session, prompt: Sequence[int], answer: Sequence[int], decode_config: DecodeConfig, decode: str
) -> Request:
    """A whole answer that is this one."""
    sampler = Replayed(text=answer)
    if decode == GUIDE:
        made = session.generate(prompt, len(answer), sampler)
        session.requests.forget()  # so that the next one reads its prompt too
        list(made)
        return made
    maker = decode_config.maker(session.model.config, sampler)
    request = session.scheduler.submit(prompt, len(answer), sampler, strategy=maker)
    session.scheduler.make_room(len(prompt), len(answer))
    list(request)
    if request.token_ids != [*answer]:
        raise ValueError("the replayed answer is another")
    return request


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.drafts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="as of make run; its weights do not matter")
    parser.add_argument("--rounds", type=whole_number(1), default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--tokens", type=whole_number(2), default=160, help="of each answer, at most (default: %(default)s)"
    )
    parser.set_defaults(command=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    report = Reporter()
    options = RuntimeOptions(None, select_backend("virtual"), folders.programs_folder())
    session = prepare_runtime(open_checkpoint(find_checkpoint(arguments.model)), options, report)
    figures = ("guide ms", "rows ms", "lookup ms", "times rows", "times guide", "tokens a pass", "right")
    table = compact_table("a token, in the median of all rounds", ("text",), figures)
    for text in texts():
        found = [measure(session, text, arguments.tokens) for _ in range(arguments.rounds)]
        report.note(f"{text.name}: measured")
        row = Row(*map(median, zip(*found, strict=True)))
        table.add_row(
            text.name,
            *(f"{1000 * each:.1f}" for each in (row.guide, row.rows, row.lookup)),
            f"{row.rows / row.lookup:.2f}",
            f"{row.guide / row.lookup:.2f}",
            f"{row.per_pass:.2f}",
            f"{row.share:.0%}",
        )
    print_tables(Console(highlight=False), table)
    return 0


if __name__ == "__main__":
    begin_process()
    sys.exit(run_command(build_parser(), None))
