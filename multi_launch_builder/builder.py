"""Builds programs and kernels of a model from their plans, and writes them as MLIR text for other
toolchains.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.air_dialect.parser_printer import ONE_AT_A_TIME
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import DTYPES, Argument, ArgumentTable, IllegalShapeError, Role
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import KernelModule
from aerie.multi_launch_builder.program import CompileOption, ExternalObject, LaunchPlan, Program, ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shape_limits import check_seq_len, check_shape
from aerie.multi_launch_builder.shapes import ModelShape, UnsupportedShapeError
from aerie.multi_launch_builder.stitcher import Stitcher
from aerie.multi_launch_builder.variants import Variant, plan_variant_programs
from aerie.multi_launch_builder.weight_kinds import plans_with_kinds

RESET_KERNELS = frozenset({"cached_attention", "cache_update"})
"""Kernels whose queues of transfers repeat: mlir-air resets the array after each point of their launches."""


def stack_option(device: DeviceModel, kernels: Collection[str]) -> CompileOption:
    """How much of a core's memory is its stack: what the kernels leave free."""
    if RESET_KERNELS & set(kernels):
        return CompileOption(
            f"--stack-size={device.reset_stack_bytes}",
            "between two points of a launch the array is reset by a copy of the device whose cores have the "
            "stack that mlir-aie gives by default: with another size buffers beside the stack would lie at "
            "other addresses there, and transfers would miss those that the cores read",
            "mlir-air AIRRtToNpuPass.cpp, createLightweightResetDevice",
        )
    return CompileOption(
        f"--stack-size={device.program_stack_bytes}",
        "the stack lies right below a core's buffers, and one that outgrows its size spoils them without a "
        "word: 1024 bytes, aircc's default until September 2026, were too few for upstream's own attention "
        "and matrix product with Peano 22, whose NaN came from there; 2048 is the default since",
        "mlir-air pull requests 1547 and 1980, programming_examples/matrix_multiplication/bf16/run.py",
    )


def build_kernel(step: LaunchPlan, program: str, device: DeviceModel = NPU2) -> KernelModule:
    """The kernel of one launch. Raises UnsupportedShapeError if the kernel does not accept the parameters."""
    try:
        return all_kernels()[step.kernel].build(**step.parameters, device=device)
    except IllegalShapeError as error:
        raise UnsupportedShapeError(f"program {program}, launch {step.label}: {error}") from error


def build_program(plan: ProgramPlan, device: DeviceModel = NPU2) -> Program:
    """Build every kernel of the plan and stitch them. Threads may call this; they take turns.

    Raises StitchError for wrong wiring, UnsupportedShapeError if a kernel does not accept a shape.
    """
    kernels: dict[object, KernelModule] = {}
    with ONE_AT_A_TIME:
        stitcher = Stitcher(plan.name, plan.arguments)
        for step in plan.launches:
            key = step.kernel, *sorted(step.parameters.items())
            kernel = kernels[key] = kernels.get(key) or build_kernel(step, plan.name, device)
            stitcher.add(kernel, step.wiring, label=step.label)
        options = (stack_option(device, [step.kernel for step in plan.launches]), *plan.options)
        return Program.from_module(stitcher.finish(), plan.arguments, plan.name, options).with_plan(plan)


def build_programs(
    shape: ModelShape, seq_len: int, only: Collection[str] | None = None, device: DeviceModel = NPU2
) -> dict[str, Program]:
    """The programs of a model for prompts of `seq_len` tokens, by name. only: names of a subset.

    Raises UnsupportedShapeError, naming the nearest legal value, if the kernels do not accept a shape, and
    ValueError for an unknown name in `only`.
    """
    plans = plan_programs(shape, seq_len, only)
    check_shape(shape, device)
    check_seq_len(seq_len, device)
    return {name: build_program(plan, device) for name, plan in plans.items()}


def build_variant_programs(
    shape: ModelShape, variants: Iterable[Variant], device: DeviceModel = NPU2
) -> dict[str, Program]:
    """The programs of a model that these variants need, by name.

    Raises UnsupportedShapeError, naming what does not fit, if the kernels do not accept a shape.
    """
    check_shape(shape, device)
    plans = plan_variant_programs(shape, variants)
    return {name: build_program(plan, device) for name, plan in plans.items()}


def write_mlir(shape: ModelShape, seq_len: int, out: Path, variants: Iterable[Variant] = ()) -> list[Path]:
    """Write kernels/NAME.mlir, programs/NAME.mlir and programs/NAME.args.json under `out`. Returns their
    paths.

    Writes the six programs, and those of `variants`.

    A kernel used at several shapes is written as kernels/NAME.mlir for the first one and as
    kernels/NAME-PROGRAM-LAUNCH.mlir for each further one. `kernel_uses` decides the shape of a kernel that
    none of the six uses. Everything is built before anything is written. Raises UnsupportedShapeError, and
    OSError if `out` cannot be written.
    """
    files = {}
    wanted = list(variants)
    plan_variant_programs(shape, wanted)  # what is no variant is refused before anything is built
    programs = build_programs(shape, seq_len) | build_variant_programs(shape, wanted)
    for name, program in programs.items():
        files[Path("programs") / f"{name}.mlir"] = program.text
        files[Path("programs") / f"{name}.args.json"] = json.dumps(program_to_json(program), indent=2) + "\n"
    kernels = {name: use.build().text for name, use in kernel_uses(shape, seq_len).items()}
    files = {Path("kernels") / f"{name}.mlir": text for name, text in kernels.items()} | files
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    return [out / path for path in files]


@dataclass(frozen=True)
class KernelUse:
    """A kernel at one shape: the launch that uses it, and its program; None if no program uses it."""

    step: LaunchPlan
    plan: ProgramPlan | None = None

    def build(self) -> KernelModule:
        """Build the kernel alone. Raises UnsupportedShapeError if it does not accept the parameters."""
        return build_kernel(self.step, self.plan.name if self.plan else self.step.label)

    def program(self, name: str, device: DeviceModel = NPU2) -> Program:
        """The kernel as a program of one launch, with the options of the program that uses it."""
        kernel = self.build()
        options = (stack_option(device, [self.step.kernel]), *(self.plan.options if self.plan else ()))
        return Program.from_module(kernel.module, kernel.arguments, name, options)


SMALLEST = Variant(8, 512)
"""The variant whose programs show a kernel that none of the six uses."""


def kernel_uses(shape: ModelShape, seq_len: int, kinds: Sequence[str] = ()) -> dict[str, KernelUse]:
    """Every kernel at every shape of the six programs, by the name of its file (`write_mlir`).

    A kernel that none of them uses is listed once: as the smallest variant first uses it, else at the first
    shape that it is tested at. kinds: of the programs' weights, as `plan_with_kinds` takes them.
    """
    uses: dict[str, KernelUse] = {}
    for step, plan in _uses(plans_with_kinds(plan_programs(shape, seq_len), kinds).values()):
        name = f"{step.kernel}-{plan.name}-{step.label}" if step.kernel in uses else step.kernel
        uses[name] = KernelUse(step, plan)
    for step, plan in _uses(plans_with_kinds(plan_variant_programs(shape, [SMALLEST]), kinds).values()):
        uses.setdefault(step.kernel, KernelUse(step, plan))
    unused = {name: spec for name, spec in all_kernels().items() if name not in uses}
    return uses | {
        name: KernelUse(LaunchPlan(name, name, spec.cases[0], {})) for name, spec in unused.items()
    }


def _uses(plans: Iterable[ProgramPlan]) -> Iterator[tuple[LaunchPlan, ProgramPlan]]:
    """The launches of these plans, each kernel at each shape once."""
    seen: set[tuple[Any, ...]] = set()
    for plan in plans:
        for step in plan.launches:
            if (use := (step.kernel, *sorted(step.parameters.items()))) not in seen:
                seen.add(use)
                yield step, plan


def program_to_json(program: Program) -> dict[str, Any]:
    """The program's argument table and build needs, as JSON values."""
    return {
        "name": program.name,
        "kind": program.kind,
        "rows": program.rows,
        "context": program.context,
        "arguments": _describe_arguments(program.arguments),
        "launches": list(program.launches),
        "objects": [asdict(external) for external in program.objects],
        "options": [asdict(option) for option in program.options],
    }


def read_program(folder: Path, name: str) -> Program:
    """The program of NAME.mlir and NAME.args.json in a folder, the latter written by `program_to_json`.

    Raises OSError if they cannot be read, and ValueError or KeyError if their content is something else.
    """
    record = json.loads((folder / f"{name}.args.json").read_text())
    arguments = ArgumentTable(
        Argument(a["name"], tuple(a["shape"]), _DTYPES[a["dtype"]], Role(a["role"]), a.get("scale"))
        for a in record["arguments"]
    )
    objects = tuple(
        ExternalObject(o["name"], o["source"], tuple(o["defines"]), tuple(o["symbols"]), o["optimize"])
        for o in record["objects"]
    )
    options = tuple(CompileOption(**option) for option in record["options"])
    text, launches = (folder / f"{name}.mlir").read_text(), tuple(record["launches"])
    about = (record["kind"], record["rows"], record["context"])
    return Program(record["name"], text, arguments, launches, objects, options, *about)


_DTYPES = {dtype.name: dtype for dtype in DTYPES}


def _describe_arguments(arguments: ArgumentTable) -> list[dict[str, Any]]:
    return [
        {"slot": slot, "name": a.name, "shape": list(a.shape), "dtype": a.dtype.name, "role": a.role.value}
        | ({} if a.scale is None else {"scale": a.scale, "offset": a.offset})
        for slot, a in enumerate(arguments)
    ]
