"""The command line arguments of `aerie serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from aerie.cli.arguments import add_max_model_len, add_template, add_weights, finite_float, int_at_least
from aerie.common.knobs import Knob
from aerie.serve.model_names import byte_count, seconds
from aerie.serve.service import ServerLimits

KEY = Knob("AERIE_API_KEY", "", "what clients of aerie serve have to send; empty: nothing, or --api-key")
"""Unlike the value of a flag, a variable does not show in lists of processes."""
STANDARD = ServerLimits()


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `aerie serve` to a parser."""
    _add_models(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int_at_least(0), default=8000, help="0: any that is free (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key", help=f"what clients have to send (default: {KEY.name}, else none is wanted)"
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow requests from pages of this site; repeatable; *: all sites, with an API key",
    )
    _add_limits(parser)
    _add_storage(parser)
    _add_runtime(parser)
    _add_replicas(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]MODEL",
        help=(
            "as for `aerie run`: demo, smollm2, a folder, a GGUF file, a Hugging Face id; repeatable: the "
            "first is loaded at the start, the others on their first request (default: demo)"
        ),
    )
    parser.add_argument(
        "--models-dir",
        type=Path,
        metavar="FOLDER",
        help="each folder in it with a config.json is a model, and each GGUF file",
    )
    parser.add_argument(
        "--name", help="what clients call the model (default: the folder's or file's name, or the id)"
    )
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="ALIAS[=NAME]",
        help="another name for the first model, or for the one of this name; several times",
    )
    parser.add_argument(
        "--memory",
        type=byte_count,
        metavar="BYTES",
        help=(
            "maximum memory of all models together, such as 6G; the longest idle models are unloaded "
            "first (default: with several models, the memory available at the start)"
        ),
    )
    parser.add_argument("--preload", action="store_true", help="load all models at the start")
    parser.add_argument(
        "--idle-unload",
        type=seconds,
        metavar="SECONDS",
        help="unload a model after this many seconds without a request (default: never)",
    )
    parser.add_argument(
        "--load-wait",
        type=seconds,
        default=STANDARD.load_wait_s,
        metavar="SECONDS",
        help="that a request waits for its model to be loaded (default: %(default)s)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        type=int_at_least(0),
        default=STANDARD.queue,
        help="answers that may wait while 32 run; further requests get 503 (default: %(default)s)",
    )
    for name, default, description in (
        ("--time-limit", STANDARD.time_limit_s, "seconds that a request has"),
        ("--drain", STANDARD.drain_s, "seconds that running answers have when the server stops"),
    ):
        parser.add_argument(
            name, type=finite_float, default=default, help=f"{description} (default: %(default)s)"
        )
    parser.add_argument(
        "--thinking-budget",
        type=int_at_least(0),
        metavar="TOKENS",
        help="of thinking, after which the answer begins, for requests that set none (default: no limit)",
    )
    parser.add_argument(
        "--max-body",
        type=int_at_least(1),
        default=STANDARD.body_bytes,
        help="bytes of a request's body, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--connections",
        type=int_at_least(1),
        default=STANDARD.connections,
        help="connections at once; fewer where the process may have fewer descriptors (default: %(default)s)",
    )
    for name, default, description in (
        ("--head-time", STANDARD.head_s, "the head of a request has"),
        ("--body-time", STANDARD.body_s, "its body has"),
        ("--send-time", STANDARD.send_s, "a reader has to take some of what was sent"),
    ):
        parser.add_argument(
            name,
            type=int_at_least(1),
            default=round(default),
            metavar="SECONDS",
            help=f"that {description} (default: %(default)s)",
        )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-responses",
        type=int_at_least(0),
        metavar="COUNT",
        help=(
            "stored responses and conversations that clients can continue; the oldest are dropped "
            f"first, 0 stores none (default: {STANDARD.max_stored})"
        ),
    )
    parser.add_argument(
        "--keep-bytes",
        type=byte_count,
        default=STANDARD.max_stored_bytes,
        metavar="BYTES",
        help="of all of them, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--slot-save-path", type=Path, metavar="FOLDER", help="where slots are saved (default: nowhere)"
    )
    parser.add_argument(
        "--slot-save-bytes",
        type=int_at_least(1),
        default=16 * 2**30,
        help="bytes of all files there, at most (default: %(default)s)",
    )


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="auto", help="auto, virtual or npu (default: %(default)s)")
    parser.add_argument("--numerics", help="of the virtual NPU: exact or bfp16 (default: exact)")
    parser.add_argument("--variants", help="as for `aerie run` (default: a set for the model's size)")
    parser.add_argument(
        "--kv-pool",
        type=int_at_least(1),
        help="positions in the KV cache (default: as many as a quarter of the memory holds)",
    )
    add_max_model_len(parser)
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        metavar="[NAME=]DRAFT",
        help="as for `aerie run`: lookup, or a smaller model with the same tokenizer, of all models or of "
        "one; no token changes (default: no drafts)",
    )
    add_weights(parser)
    add_template(parser)
    parser.add_argument(
        "--warm",
        action="store_true",
        help="compile and load every program before a model is ready, so that no answer waits for one "
        "(default: each when it is first needed)",
    )
    parser.add_argument("--cache-dir", type=Path, help="folder of the compiled programs")


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    more_than_none = int_at_least(1)
    parser.add_argument(
        "--replicas",
        type=more_than_none,
        help="engines that share the requests, by Ray (pip install 'ray[serve]')",
    )
    parser.add_argument(
        "--max-replicas",
        type=more_than_none,
        help="maximum number of replicas under load (default: --replicas)",
    )
    parser.add_argument(
        "--cluster", help="of Ray: HEAD:6379, or auto for this machine's (default: one for this command)"
    )
