"""Runs the probe's model in every mode of chunks, through the engine: `python -m aerie.verify.recall`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import folders
from aerie.common.text_tables import compact_table, print_tables
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.composed_prompt import ChunkMode, ComposedPrompt, parse_chunk_mode
from aerie.engine.logits import log_softmax
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.runtime import select_backend
from aerie.verify.recall.task import Question, questions

CHECKPOINT = Path(__file__).parent / "checkpoint"
MODES = ("prefix", "block", "block+link-1", "block+link-2", "block+link-4", "block+link-8")
SEED = 1
TOGETHER = 16
"""Questions that share forward passes."""


@dataclass(frozen=True)
class RecallScore:
    """The result of the questions with some number of hops in one mode: the share of right answers, and the
    mean Kullback-Leibler divergence, in nats, of the answer's distribution from that of one text.
    """

    mode: str
    hops: int
    accuracy: float
    from_causal: float


def scores(
    session: Session, questions: Sequence[Question], modes: Sequence[str] = MODES
) -> Iterator[RecallScore]:
    """The score of every mode; the first mode is the reference of the others. The questions have
    equal hops.
    """
    expected = np.array([question.answer for question in questions])
    causal = None
    for mode in modes:
        log_probabilities = answers(session, questions, parse_chunk_mode(mode))
        causal = log_probabilities if causal is None else causal
        right = float((log_probabilities.argmax(axis=1) == expected).mean())
        apart = float((np.exp(causal) * (causal - log_probabilities)).sum(axis=1).mean())
        yield RecallScore(mode, questions[0].hops, right, apart)


def answers(session: Session, questions: Sequence[Question], mode: ChunkMode) -> NDArray[np.float64]:
    """Log-probabilities of each token as the answer, (questions, vocabulary)."""
    registry, rows = session.chunk_registry(), []
    for first in range(0, len(questions), TOGETHER):
        some = questions[first : first + TOGETHER]
        parts = [[registry.chunk(registry.register(chunk)) for chunk in one.chunks] for one in some]
        made = session.scheduler.forward([ComposedPrompt(each, mode) for each in parts])
        rows += [log_softmax(row) for (row,) in made]
    return np.array(rows)


def opened(folder: Path, report: Reporter) -> Session:
    """A session of the model in a folder, with the programs that the probe needs."""
    options = RuntimeOptions(
        None, select_backend("auto"), folders.programs_folder(), variants="8,32x512", decode="rows"
    )
    return prepare_runtime(open_checkpoint(folder), options, report)


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m aerie.verify.recall", description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT, help="folder of the model (%(default)s)")
    parser.add_argument("--questions", type=int, default=200, help="of each kind (%(default)s)")
    parser.set_defaults(command=run_probe)
    return run_command(parser, argv)


def run_probe(arguments: argparse.Namespace) -> int:
    """Print the table."""
    report = Reporter()
    session = opened(arguments.model, report)
    table = compact_table(
        "answered right, and nats from one text", ("mode",), ("one hop", "nats", "two hops", "nats"), ()
    )
    kinds = []
    for hops in (1, 2):
        report.note(f"{arguments.questions} questions, hops: {hops}")
        kinds.append([*scores(session, questions(SEED, arguments.questions, hops))])
    for both in zip(*kinds, strict=True):
        numbers = [text for one in both for text in (f"{one.accuracy:.1%}", f"{one.from_causal:.2g}")]
        table.add_row(both[0].mode, *numbers)
    print_tables(Console(highlight=False, markup=False), table)
    return 0


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
