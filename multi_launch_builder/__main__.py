"""`aerie programs mlir OUT`: every kernel and program of a model as MLIR text."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.common.cli_parser import OneLineParser
from aerie.common.progress import working
from aerie.multi_launch_builder.builder import write_mlir
from aerie.multi_launch_builder.shapes import (
    DEMO,
    DEMO_SEQ_LEN,
    ModelShape,
    UnsupportedShapeError,
)
from aerie.multi_launch_builder.variants import Variant

SHAPE_HELP = {
    "emb_dim": "hidden_size of config.json",
    "n_heads": "query heads",
    "n_kv_heads": "key and value heads",
    "head_dim": "elements of a head",
    "hidden_dim": "intermediate_size of config.json",
    "vocab_size": "tokens of the vocabulary",
    "rms_norm_eps": "epsilon of the RMSNorms",
    "qkv_bias": "queries, keys and values have biases, as in Qwen2",
    "qk_norm": "heads of queries and keys are normalised, as in Qwen3",
    "attention_scale": "what scores are multiplied with, as in Granite; None: 1 / sqrt(head_dim)",
    "residual_scale": "what is multiplied with it before it is added to the residual, as in Granite",
    "rotary_dim": "elements of a head that RoPE turns, as in Phi-4; None: all",
    "activation": "of the FFN's gate: silu, or gelu_pytorch_tanh as in Gemma",
    "norm_before": "attention and the FFN read a normed residual",
    "norm_after": "what attention and the FFN give is normed before it is added, as in OLMo 2",
    "qk_norm_spans_heads": "queries and keys are normalised over all heads together, as in OLMo 2",
    "norm_round_once": "RMSNorms round after the product with the weight alone, as in OLMo 2",
    "norm_weight_offset": "what RMSNorms add to their weights, 0 or 1",
    "conv_taps": "rows that a short convolution reads, in layers that have one; 0: none has",
    "delta_key_heads": "key heads of linear attention, in layers that have it; 0: none has",
    "delta_value_heads": "its value heads",
    "delta_key_dim": "elements of its key heads",
    "delta_value_dim": "elements of its value heads",
    "attention_gate": "what attention gives is multiplied with a gate, as in Qwen3.5",
    "all_heads": "query heads of all devices, where these are of one of several; 0: n_heads",
    "all_kv_heads": "the same of key and value heads; 0: n_kv_heads",
}
"""What each field of a ModelShape is, for the help."""


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="aerie programs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    mlir = commands.add_parser("mlir", help="write kernels, programs and their argument tables")
    mlir.add_argument("out", type=Path, help="folder to write kernels/ and programs/ into")
    mlir.add_argument(
        "--seq-len", type=int, default=DEMO_SEQ_LEN, help=f"compiled prompt length (default {DEMO_SEQ_LEN})"
    )
    mlir.add_argument(
        "--variants",
        nargs="+",
        default=(),
        metavar="AR-nxCL-m",
        help="write the programs of these variants too, such as AR-8xCL-512",
    )
    for field in dataclasses.fields(ModelShape):
        flag = "--" + field.name.replace("_", "-")
        if field.type == "bool":
            mlir.add_argument(flag, action=argparse.BooleanOptionalAction, help=SHAPE_HELP[field.name])
        else:
            kind = float if str(field.type).startswith("float") else int
            default = getattr(DEMO, field.name)
            mlir.add_argument(flag, type=kind, help=f"{SHAPE_HELP[field.name]} (default: {default})")
    return parser


def _shape(options: argparse.Namespace) -> ModelShape:
    """The demo's shape, with the options' changes."""
    names = [field.name for field in dataclasses.fields(ModelShape)]
    overrides = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return dataclasses.replace(DEMO, **overrides)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0, or 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        variants = [Variant.parse(name) for name in options.variants]
        with working(f"writing MLIR to {options.out}"):
            paths = write_mlir(_shape(options), options.seq_len, options.out, variants)
    except UnsupportedShapeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot write to {options.out}: {error.strerror}; name another folder", file=sys.stderr)
        return 2
    print(f"{len(paths)} files in {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
