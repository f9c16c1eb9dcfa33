"""`aerie quality`: what quantised weights cost, in perplexity and KL divergence, on a text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aerie import rooms
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.prompts import read_text
from aerie.common.errors import UserError
from aerie.common.progress import working
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.memory_estimate import require
from aerie.engine.quantised import KINDS
from aerie.engine.reporter import Reporter
from aerie.verify.quality import MIN_TOKENS, WINDOW, Quality, measure_quality, with_weights
from aerie.verify.reference import Reference, import_torch, reference_bytes

DONE = 0
OWN_TEXTS = "docs"
MAX_TOKENS = 8192
"""Of a text that are read: enough for 4096 that are scored."""


def add_quality(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model, named as for `aerie run --model`")
    parser.add_argument(
        "--weights",
        choices=KINDS[1:],
        default=KINDS[-1],
        help="what its weights are on the device, as for `aerie run` (default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        metavar="ORIGINAL",
        help="the model that it was quantised from (default: MODEL itself, before its weights are changed)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help=f"a text of {MIN_TOKENS} tokens or more, of which the first {MAX_TOKENS} count (default: the "
        "project's documentation, in a checkout)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def quality(arguments: argparse.Namespace) -> int:
    """Measure what quantised weights cost: perplexity and KL divergence on a text."""
    report = Reporter()
    with working("loading torch"):
        import_torch()
    checkpoint = open_checkpoint(find_checkpoint(arguments.model), arguments.weights)
    checkpoint.config.roles.check_answers()
    original = open_checkpoint(find_checkpoint(arguments.against or arguments.model), "bf16")
    _check_same(checkpoint, original)
    token_ids = original.tokenizer.encode(_text(arguments.text))[:MAX_TOKENS]
    require(reference_bytes(original.config, 4, 4), "two models in float32", ["take a smaller model"])
    with working("opening the models in transformers"):
        reference = with_weights(Reference.open(original.folder, "float32"), original.weights)
        quantised = with_weights(reference, checkpoint.weights)
    with report.bar("reading the text", len(token_ids) // WINDOW) as step:
        found = measure_quality(reference, quantised, token_ids, step)
    if arguments.json:
        about = {"model": arguments.model, "weights": arguments.weights, "against": arguments.against}
        print(json.dumps({**about, **found.to_json()}, allow_nan=False))
    else:
        _print(found)
    return DONE


def _check_same(checkpoint: Checkpoint, original: Checkpoint) -> None:
    """Raises UserError for models that cannot be compared."""
    if checkpoint.config.shape != original.config.shape:
        raise UserError(
            f"{checkpoint.folder.name} and {original.folder.name} have other sizes, so that one is not the "
            "other quantised; name its original with --against"
        )


def _text(file: str | None) -> str:
    if file is not None:
        return read_text(file, f"the file {file} of --text")
    pages = sorted((rooms.SEARCH_PATH / OWN_TEXTS).glob("*/*.md")) if rooms.CHECKOUT else []
    if not pages:
        raise UserError(f"there is no text to read; give one of {MIN_TOKENS} tokens with --text")
    return "\n".join(Path(page).read_text(encoding="utf-8") for page in pages)


def _print(found: Quality) -> None:
    print(f"perplexity {found.perplexity:.4f}, of the original {found.original_perplexity:.4f}")
    print(f"KL divergence {found.kl:.5f} nats, 99 % of positions below {found.kl_large:.4f}")
    print(f"same likeliest token: {100 * found.same_top:.2f} %")
    print(f"{found.scored} positions of a text of {found.tokens} tokens")
