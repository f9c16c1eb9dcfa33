"""Opening a model: what `aerie.load` takes, and how it reports its progress to a caller in Python."""

from __future__ import annotations

import logging
import reprlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path

from aerie.answer_options import check_supported_option
from aerie.api import Model
from aerie.argument_types import LOAD_ARGUMENTS, check_callable, check_types
from aerie.cli.checkpoints import find_checkpoint
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint, with_block_size
from aerie.engine.communication import Communicator, SingleRank
from aerie.engine.context_end import STOP
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.quantised import check_kind
from aerie.engine.reporter import OnProgress, Reporter
from aerie.engine.variant_set import GUIDE, check_decode_path
from aerie.runtime import select_backend

LOG = logging.getLogger("aerie")

PROGRESS_INTERVAL_S = 1.0
"""Seconds between two lines of one bar."""


class CallbackReporter(Reporter):
    """The reporter of a caller in Python: each line goes to the caller's function, if there is one, and to
    the logger `aerie`, at the level INFO. A bar is a line a second."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        super().__init__(terminal=False)
        self._progress = progress

    def note(self, message: str) -> None:
        LOG.info("%s", message)
        if self._progress:
            self._progress(message)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[OnProgress]:
        last_s = time.monotonic()

        def step(what: str, done: int) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= PROGRESS_INTERVAL_S:
                last_s = time.monotonic()
                self.note(f"{title}: {done} of {total}{f', {what}' if what else ''}")

        yield step


def load(
    model: str | Path = "demo",
    *,
    backend: str = "auto",
    numerics: str | None = None,
    variants: str | None = None,
    decode: str = GUIDE,
    seq_len: int | None = None,
    weights: str = "auto",
    max_model_len: int | None = None,
    fallback: str | None = None,
    context_end: str = STOP,
    devices: int | Sequence[int] = 0,
    pipeline_parallel_size: int = 1,
    group: Communicator | None = None,
    kv_pool: int | None = None,
    block_size: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Open a model: compile what is not yet compiled, and load the weights.

    model: "demo", a folder with a checkpoint, a GGUF file, a Hugging Face id, or "base" or "instruct" for
    Llama-3.2-1B.
    backend: auto, virtual or npu. numerics: exact or bfp16, on the virtual NPU. variants: programs of n
    tokens against m positions, as "8,128x512,2048"; None: a set for the model's size. decode: "guide", GEMVs
    and attention on the CPU, or "rows", blocks as for prompts. seq_len: one prompt length, in tokens, in
    place of variants. weights: what they are on the device: "bf16"; "q8" or "q4", where blocks of the files
    stay blocks, and what they have in 16 or 32 bits is quantised; "auto", which is bf16 for now.
    max_model_len: positions of a prompt and its answer together, at most; None: as many as the model has.
    fallback: "virtual", where answers go on when the NPU fails. context_end: what happens where a sequence
    comes to the end of the largest context: "stop", or tokens are dropped by "shift" or "sink"
    (engine/context_end.py).
    devices: on which one programs run, by its index in pyxrt; or several that share the model, as [0, 1],
    with decode="rows". group: this process among several that share it, with one device each
    (`between_processes`). pipeline_parallel_size: 1 alone, as layers are not shared out over devices.
    kv_pool: positions of which many requests' keys and values are kept; None: as many as a quarter of the
    memory holds. block_size: tokens of a block, of a model that fills blocks in and was trained with others,
    which is noted. cache_dir: of compiled programs. progress: called with each line of what is going on, then
    and at the first use of further programs; the logger `aerie` has the same lines. Nothing is printed.
    Raises AerieError.
    """
    check_types(
        LOAD_ARGUMENTS,
        {
            "model": model, "backend": backend, "numerics": numerics, "variants": variants,
            "decode": decode, "seq_len": seq_len, "weights": weights, "max_model_len": max_model_len,
            "fallback": fallback, "context_end": context_end, "devices": devices, "kv_pool": kv_pool,
            "block_size": block_size, "cache_dir": cache_dir,
        },
    )  # fmt: skip
    check_callable("progress", progress)
    check_supported_option("pipeline_parallel_size", pipeline_parallel_size)
    check_decode_path(decode)
    check_kind(weights)
    _check_max_model_len(max_model_len)
    chosen_devices = _indices(devices, group)
    backend_ = replace(select_backend(backend, numerics), device=chosen_devices[0])
    fallback_backend = select_backend(fallback) if fallback and fallback != backend_.name else None
    reporter = CallbackReporter(progress)
    checkpoint = open_checkpoint(find_checkpoint(str(model)), weights)
    checkpoint = with_block_size(checkpoint, block_size, reporter.note)
    checkpoint = checkpoint.limited(max_model_len)
    folder = Path(cache_dir) if cache_dir else folders.programs_folder()
    options = RuntimeOptions(
        seq_len, backend_, folder, fallback_backend, variants=variants, decode=decode,
        context_end=context_end, devices=chosen_devices, group=group or SingleRank(), kv_pool=kv_pool,
        compile_ahead=True, weights=weights,
    )  # fmt: skip
    return Model(prepare_runtime(checkpoint, options, reporter), str(model))


def _check_max_model_len(positions: int | None) -> None:
    if positions is not None and positions < 1:
        raise UserError(
            f"max_model_len is {positions}; give 1 or more positions, or None for the model's own"
        )


def _indices(devices: int | Sequence[int], group: Communicator | None) -> tuple[int, ...]:
    """The device indices. Raises UserError if there is none, one is named twice or invalid, or a process of a
    group names several."""
    indices = [devices] if isinstance(devices, int) else [*devices]
    if not indices or any(not isinstance(index, Integral) or index < 0 for index in indices):
        raise UserError(
            f"devices is {reprlib.repr(devices)}; give the index of a device, as 0, or of several, as [0, 1]"
        )
    if len(set(indices)) < len(indices):
        raise UserError(f"devices is {reprlib.repr(devices)}; name each device once")
    if group is not None and len(indices) > 1:
        raise UserError(
            f"devices is {reprlib.repr(devices)}, and a process among several has one device; give one "
            "index, or leave group out"
        )
    return tuple(int(index) for index in indices)
