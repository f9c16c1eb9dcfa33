"""Opening a session: compile the missing programs, build the model on its devices, load its weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from aerie.engine.checkpoint import Checkpoint
from aerie.engine.communication import thread_group
from aerie.engine.memory_estimate import check_memory
from aerie.engine.model import (
    LayerWeights,
    LoadedModel,
    build_model,
    preload,
    preload_steps,
    split_over_devices,
)
from aerie.engine.packed_weights import packed_folder, prepare_weights
from aerie.engine.program_library import (
    ProgramLibrary,
    RuntimeOptions,
    compile_for_other_devices,
    compile_into,
    compile_programs,
)
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.engine.tensor_parallel import RankWeights
from aerie.engine.weights_fingerprint import Fingerprint
from aerie.runtime import Backend, KernelCache, RunError


def prepare_runtime(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter) -> Session:
    """Compile the missing programs, then fill each layer's buffer objects with its weights.

    While programs are compiled, the weight files are read into the system's cache. After this, a call writes
    activations only. With `options.fallback`, a device that fails, now or later, is replaced by that backend,
    whose programs are compiled only then. Raises TooLittleMemoryError before anything else, what
    compile_programs raises, and RunError if a device fails without a fallback.
    """
    config = checkpoint.config
    options.context_end_policy(config)  # which may refuse
    check_memory(config, options)
    mark = Fingerprint(checkpoint.weights.files, options.cache_dir)
    prepare_weights(
        checkpoint.weights, checkpoint.folder.stem, packed_folder(options.cache_dir), mark, report
    )
    with checkpoint.weights.reading_ahead():
        programs = compile_programs(config, options, report)
    devices = [programs, *compile_for_other_devices(config, options, programs)]
    model, filled = _assemble(checkpoint, options, devices)

    def fall_back(to: Backend) -> tuple[KernelCache, LoadedModel]:
        programs.cache = programs.open_cache(to, programs.cache.profiler)
        compile_into(programs.cache, [*programs.by_name.values()], report)
        on_other, filled = _assemble(checkpoint, options, [programs])
        _preload(filled, checkpoint, report)
        return programs.cache, on_other

    fallback = partial(fall_back, options.fallback) if options.fallback else None
    bar = partial(report.bar, "reading the prompt")
    note = report.note
    session = Session(
        model,
        checkpoint.tokenizer,
        programs.cache,
        note,
        fallback,
        bar=bar,
        fingerprint=mark,
        kv_pool=options.kv_pool,
    )
    session.other_caches = [each.cache for each in devices[1:]]
    session.compile_ahead = programs.ahead
    try:
        _preload(filled, checkpoint, report)
    except RunError as error:
        session.recover(error, "while weights were loaded")
    session.cache.profiler.reset()
    return session


class FilledModel(NamedTuple):
    """The model on one device, or its part, and the weights that fill its buffers."""

    model: LoadedModel
    weights: LayerWeights


def _assemble(
    checkpoint: Checkpoint, options: RuntimeOptions, devices: Sequence[ProgramLibrary]
) -> tuple[LoadedModel, Sequence[FilledModel]]:
    """The model on these devices, and the part of each. Programs that are needed later are compiled then, and
    filled with weights."""

    def supply(names: Iterable[str]) -> None:
        names = list(names)
        for programs, (model, weights) in zip(devices, filled, strict=True):
            if new := programs.ensure_compiled(names):
                for _ in preload(model, weights, new):
                    pass

    config, first = checkpoint.config, devices[0]
    whole = build_model(
        checkpoint,
        first.by_name,
        first.cache,
        options.variant_set(config),
        first.cache.profiler.span,
        buffer_names=first.buffer_names,
        ensure_programs=supply,
        context_end=options.context_end_policy(config),
    )
    whole = replace(whole, compile_ahead=first.compile_ahead)
    if options.world_size == 1:
        filled = [FilledModel(whole, checkpoint.weights)]
        return whole, filled
    shared = _split_over_devices(whole, options, devices)
    parts = shared.devices.parts if shared.devices else ()
    filled = [
        FilledModel(part, RankWeights(checkpoint.weights, config, part.group.rank, options.world_size))
        for part in parts
    ]
    return shared, filled


def _split_over_devices(
    model: LoadedModel, options: RuntimeOptions, devices: Sequence[ProgramLibrary]
) -> LoadedModel:
    """The model on the devices of this process: all devices that share it, or one of several processes'
    devices."""
    part, group = options.part_config(model.config), options.group
    if group.world_size > 1:
        return split_over_devices(model, part, devices, [group], [f"rank {group.rank} of {group.world_size}"])
    names = [f"device {device}" for device in options.devices]
    ranks = thread_group(names)
    groups = [ranks.member(rank) for rank in range(len(names))]
    return split_over_devices(model, part, devices, groups, names, ranks.reset)


def _preload(filled: Sequence[FilledModel], checkpoint: Checkpoint, report: Reporter) -> None:
    for line in checkpoint.weights.notes:
        report.note(line)
    started, layers = time.perf_counter(), checkpoint.config.num_hidden_layers
    total = len(filled) * preload_steps(checkpoint.config)
    with report.bar("loading weights", total) as step:
        steps = (description for part in filled for description in preload(*part))
        for done, description in enumerate(steps, start=1):
            step(description, done)
    spent = time.perf_counter() - started
    shared = f" on {len(filled)} devices" if len(filled) > 1 else ""
    report.note(f"weights: {layers} layers loaded{shared}, {spent:.1f} s")
    if rounding := str(checkpoint.weights.rounding):
        report.note(rounding)
