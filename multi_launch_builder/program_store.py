"""A model's programs, as texts in the content store: a second start builds nothing and does not import xDSL.

A key is the hash of the program's plan, xDSL's version, and all sources that the program's text depends on.
If VNPU_CACHE turns the store off, or the store cannot be written, programs are built each time.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerie.common.fingerprint import hash_key, package_digest, package_version
from aerie.common.store import programs_store
from aerie.multi_launch_builder.program import CompileOption, ExternalObject, Program, ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP, ModelShape
from aerie.multi_launch_builder.variants import Variant, plan_by_name, plan_variant_programs
from aerie.multi_launch_builder.weight_kinds import plan_with_kinds, split_name

SOURCES = ("air_dialect", "common", "device", "virtual_npu", "kernel_builder", "multi_launch_builder")
"""Our own folders that determine a program's text, as `package_digest` hashes them."""


def load_programs(
    shape: ModelShape, seq_len: int, names: Collection[str] | None = None
) -> dict[str, Program]:
    """As `build_programs`, with its results and errors, from the store if it has them.

    names: those of the six, also with kinds of weights; None means the six for weights in bf16.
    """

    def check() -> None:
        from aerie.multi_launch_builder import shape_limits  # xDSL comes with it

        shape_limits.check_shape(shape)
        shape_limits.check_seq_len(seq_len)

    return _programs(plan_six(shape, seq_len, names), check)


def plan_six(shape: ModelShape, seq_len: int, names: Collection[str] | None = None) -> dict[str, ProgramPlan]:
    """As `plan_programs`; names may have kinds of weights."""
    if names is None:
        return plan_programs(shape, seq_len)
    split = {name: split_name(name) for name in names}
    plans = plan_programs(shape, seq_len, {base for base, _ in split.values()})
    return {name: plan_with_kinds(plans[base], kinds) for name, (base, kinds) in split.items()}


def load_variant_programs(shape: ModelShape, variants: Iterable[Variant]) -> dict[str, Program]:
    """As `build_variant_programs`, with its results and errors, from the store if it has them."""
    return _programs(plan_variant_programs(shape, variants), lambda: check_shape(shape))


def load_programs_by_name(shape: ModelShape, names: Iterable[str]) -> list[Program]:
    """The programs of these names, of variants or for one token, as `load_variant_programs` returns them.

    Raises ValueError for an unknown name.
    """
    plans = {plan.name: plan for plan in load_plans_by_name(shape, names)}
    return [*_programs(plans, lambda: check_shape(shape)).values()]


def load_plans_by_name(shape: ModelShape, names: Iterable[str]) -> list[ProgramPlan]:
    """As `load_programs_by_name`, the plans only."""
    return [_plan(shape, name) for name in names]


def _plan(shape: ModelShape, name: str) -> ProgramPlan:
    base, kinds = split_name(name)
    plan = plan_by_name(shape, base) or plan_programs(shape, SEQ_LEN_STEP, [base])[base]
    return plan_with_kinds(plan, kinds)


def _programs(plans: Mapping[str, ProgramPlan], check: Callable[[], None]) -> dict[str, Program]:
    """The programs of these plans. Each is stored separately, so that another set of them builds only the new
    ones.
    check: raises if no program can be built; called before the first one is built.
    """

    built: dict[str, Program] = {}

    def build(plan: ProgramPlan) -> dict[str, Any]:
        from aerie.multi_launch_builder.builder import build_program  # xDSL comes with it

        check()
        built[plan.name] = build_program(plan)
        return _without_arguments(built[plan.name])

    texts = {name: _stored_text(plan, build) for name, plan in plans.items()}
    return {name: built.get(plan.name) or _with_arguments(plan, texts[name]) for name, plan in plans.items()}


def _stored_text(plan: ProgramPlan, build: Callable[[ProgramPlan], dict[str, Any]]) -> dict[str, Any]:
    steps, options = map(asdict, plan.launches), map(asdict, plan.options)
    arguments = [[a.name, a.shape, a.dtype.name, a.role.value] for a in plan.arguments]
    of = {"name": plan.name, "arguments": arguments, "steps": [*steps], "options": [*options]}
    content: dict[str, Any] = _stored("text", lambda: build(plan), **of)
    return content


def check_shape(shape: ModelShape) -> None:
    """As `shape_limits.check_shape`; an accepted shape is remembered in the store."""

    def check() -> bool:
        from aerie.multi_launch_builder import shape_limits  # xDSL comes with it

        shape_limits.check_shape(shape)
        return True

    _stored("shape", check, shape=asdict(shape))


def _without_arguments(program: Program) -> dict[str, Any]:
    """A program as JSON values. Its arguments come from its plan, which is cheap to make."""
    objects, options = map(asdict, program.objects), map(asdict, program.options)
    return {"text": program.text, "launches": program.launches, "objects": [*objects], "options": [*options]}


def _with_arguments(plan: ProgramPlan, content: dict[str, Any]) -> Program:
    objects = tuple(
        ExternalObject(**{**fields, "defines": tuple(fields["defines"]), "symbols": tuple(fields["symbols"])})
        for fields in content["objects"]
    )
    options = tuple(CompileOption(**fields) for fields in content["options"])
    launches = tuple(content["launches"])
    return Program(plan.name, content["text"], plan.arguments, launches, objects, options).with_plan(plan)


def _stored(kind: str, make: Callable[[], Any], **of: Any) -> Any:
    """The result of `make`, as JSON values: from the store, or computed and stored."""
    store = programs_store()
    if store is None:
        return make()
    name = f"{kind}-{hash_key({**_sources(), 'of': json.dumps(of, sort_keys=True)})}.json"
    content = store.read(name)
    if content is not None:
        return json.loads(content)
    result = make()
    with contextlib.suppress(OSError):  # a full disk: it is made again the next time
        store.get_or_make(name, lambda work: _written(work / name, result))
    return result


def _written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@functools.cache
def _sources() -> dict[str, str]:
    """Everything that determines a program's text, by name, as hashes or short texts."""
    return {**{folder: package_digest(folder) for folder in SOURCES}, "xdsl": package_version("xdsl")}
