"""A model's programs, as texts in the content store: a second start builds nothing and does not import xDSL.

The keys are of a program's plan, xDSL's version, and all sources that a program's text depends on. Where
VNPU_CACHE says that nothing is kept, or the store cannot be written, it is built each time.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerie.common.fingerprint import hash_key, package_digest, package_version
from aerie.common.store import programs_store
from aerie.multi_launch_builder.program import CompileOption, ExternalObject, Program, ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP, ModelShape
from aerie.multi_launch_builder.variants import Variant, plan_named, plan_variant_programs

SOURCES = ("air_dialect", "common", "device", "virtual_npu", "kernel_builder", "multi_launch_builder")
"""Our own folders that shape a program's text, as `package_digest` hashes them."""


def programs(shape: ModelShape, seq_len: int) -> dict[str, Program]:
    """As `build_programs`, with its results and errors, from the store where they are in it."""

    def check() -> None:
        from aerie.multi_launch_builder import limits  # xDSL comes with it

        limits.check_shape(shape)
        limits.check_seq_len(seq_len)

    return _programs(plan_programs(shape, seq_len), check)


def variant_programs(shape: ModelShape, variants: Iterable[Variant]) -> dict[str, Program]:
    """As `build_variant_programs`, with its results and errors, from the store where they are in it."""
    return _programs(plan_variant_programs(shape, variants), lambda: check_shape(shape))


def named_programs(shape: ModelShape, names: Iterable[str]) -> list[Program]:
    """The programs of these names, of variants or for one token, as `variant_programs` has them.

    Raises ValueError for a name that is no program.
    """
    plans = {plan.name: plan for plan in named_plans(shape, names)}
    return [*_programs(plans, lambda: check_shape(shape)).values()]


def named_plans(shape: ModelShape, names: Iterable[str]) -> list[ProgramPlan]:
    """As `named_programs`, their plans alone."""
    return [plan_named(shape, name) or _for_one_token(shape, name) for name in names]


def _for_one_token(shape: ModelShape, name: str) -> ProgramPlan:
    return plan_programs(shape, SEQ_LEN_STEP, [name])[name]


def _programs(plans: Mapping[str, ProgramPlan], check: Callable[[], None]) -> dict[str, Program]:
    """The programs of these plans. Each is kept by itself, so that another set of them builds what is new in
    it; `check`, which raises for what no program is built for, is asked where one is built."""

    def build(plan: ProgramPlan) -> dict[str, Any]:
        from aerie.multi_launch_builder.building import build_program  # xDSL comes with it

        check()
        return _without_arguments(build_program(plan))

    return {name: _with_arguments(plan, _kept_text(plan, build)) for name, plan in plans.items()}


def _kept_text(plan: ProgramPlan, build: Callable[[ProgramPlan], dict[str, Any]]) -> dict[str, Any]:
    steps, options = map(asdict, plan.steps), map(asdict, plan.options)
    arguments = [[a.name, a.shape, a.dtype.name, a.role.value] for a in plan.arguments]
    of = {"name": plan.name, "arguments": arguments, "steps": [*steps], "options": [*options]}
    kept: dict[str, Any] = _kept("text", lambda: build(plan), **of)
    return kept


def check_shape(shape: ModelShape) -> None:
    """As `limits.check_shape`; that a shape is accepted is kept in the store."""

    def check() -> bool:
        from aerie.multi_launch_builder import limits  # xDSL comes with it

        limits.check_shape(shape)
        return True

    _kept("shape", check, shape=asdict(shape))


def _without_arguments(program: Program) -> dict[str, Any]:
    """A program for JSON. Its arguments are its plan's, which costs nothing to make."""
    objects, options = map(asdict, program.objects), map(asdict, program.options)
    return {"text": program.text, "launches": program.launches, "objects": [*objects], "options": [*options]}


def _with_arguments(plan: ProgramPlan, kept: dict[str, Any]) -> Program:
    objects = tuple(
        ExternalObject(**{**fields, "defines": tuple(fields["defines"]), "symbols": tuple(fields["symbols"])})
        for fields in kept["objects"]
    )
    options = tuple(CompileOption(**fields) for fields in kept["options"])
    launches = tuple(kept["launches"])
    return Program(plan.name, kept["text"], plan.arguments, launches, objects, options).of(plan)


def _kept(kind: str, make: Callable[[], Any], **of: Any) -> Any:
    """What `make` gives, ready for JSON: found in the store, or made and put there."""
    store = programs_store()
    if store is None:
        return make()
    name = f"{kind}-{hash_key({**_sources(), 'of': json.dumps(of, sort_keys=True)})}.json"
    content = store.read(name)
    if content is not None:
        return json.loads(content)
    made = make()
    with contextlib.suppress(OSError):  # a full disk: it is made again the next time
        store.get_or_make(name, lambda work: _written(work / name, made))
    return made


def _written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@functools.cache
def _sources() -> dict[str, str]:
    """All that shapes a program's text, by name, as hashes or short texts."""
    return {**{folder: package_digest(folder) for folder in SOURCES}, "xdsl": package_version("xdsl")}
