"""`aerie synthetic DIR`: write a checkpoint with random weights."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aerie.cli.arguments import int_at_least
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.config_layers import MAX_LAYERS
from aerie.engine.families import FAMILIES
from aerie.engine.reporter import Reporter
from aerie.llama32_1b.synthetic.shape import SHAPES, in_family, with_vocabulary
from aerie.llama32_1b.synthetic.tokenizer import MAX_VOCABULARY, MIN_VOCABULARY
from aerie.llama32_1b.synthetic.writer import weight_bytes, write_checkpoint
from aerie.runtime.memory import format_bytes


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="aerie synthetic",
        description="Write a model with random weights in Hugging Face format, for measuring.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; it must not be there")
    parser.add_argument(
        "--shape", choices=SHAPES, default="llama-3.2-1b", help="the sizes (default: %(default)s)"
    )
    parser.add_argument("--family", choices=FAMILIES, help="another family than that of the shape")
    parser.add_argument("--layers", type=int_at_least(1), help="another number of layers")
    parser.add_argument("--vocab-size", type=int_at_least(1), help="another vocabulary, in tokens")
    parser.add_argument("--seed", type=int_at_least(0), default=0, help="what to draw (default: %(default)s)")
    parser.set_defaults(command=write)
    return parser


def write(arguments: argparse.Namespace) -> int:
    """Write the checkpoint and say how large it is."""
    report, started = Reporter(), time.perf_counter()
    config = chosen_config(arguments)
    write_checkpoint(config, arguments.folder, arguments.seed, report)
    spent = time.perf_counter() - started
    report.note(f"{arguments.folder}: {format_bytes(weight_bytes(config))} of random weights, {spent:.1f} s")
    return 0


def chosen_config(arguments: argparse.Namespace) -> ModelConfig:
    """The shape asked for, changed as asked. Raises UserError for what cannot be had."""
    config = SHAPES[arguments.shape]
    family = FAMILIES[arguments.family] if arguments.family else config.family
    layers = arguments.layers or config.num_hidden_layers
    vocabulary = arguments.vocab_size or config.vocab_size
    if layers > MAX_LAYERS:
        raise UserError(f"--layers {layers} cannot be had; ask for at most {MAX_LAYERS}")
    if not MIN_VOCABULARY <= vocabulary <= MAX_VOCABULARY:
        raise UserError(
            f"--vocab-size {vocabulary} cannot be had: the tokenizer has 256 bytes and 256 special tokens, "
            f"and no more than {MAX_VOCABULARY} tokens; ask for {MIN_VOCABULARY} to "
            f"{MAX_VOCABULARY}"
        )
    changed = with_vocabulary(in_family(config, family), vocabulary)
    return changed.with_layers(layers)


def main(argv: Sequence[str] | None = None) -> int:
    """Write what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
