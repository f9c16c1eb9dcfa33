"""Writes kernels and programs as MLIR text, for reading and for toolchains of one's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernel_builder.arguments import ArgumentTable
from kernel_builder.kernels import registry
from multi_launch_builder.plan import build_kernel
from multi_launch_builder.program import Program
from multi_launch_builder.programs import build_programs, plan_programs
from multi_launch_builder.shapes import ModelShape


def write_mlir(shape: ModelShape, seq_len: int, out: Path) -> list[Path]:
    """Writes kernels/NAME.mlir, programs/NAME.mlir and programs/NAME.args.json under `out`; their paths.

    A kernel used at several shapes gets kernels/NAME.mlir for the first one and
    kernels/NAME-PROGRAM-LAUNCH.mlir for each further one; one that no program uses is written at the
    first shape that it is tested at. Everything is built before anything is written. Raises
    UnsupportedShapeError, and OSError where `out` cannot be written.
    """
    files = {Path("kernels") / f"{name}.mlir": text for name, text in _kernels(shape, seq_len).items()}
    for name, program in build_programs(shape, seq_len).items():
        files[Path("programs") / f"{name}.mlir"] = program.text
        files[Path("programs") / f"{name}.args.json"] = json.dumps(describe(program), indent=2) + "\n"
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    return [out / path for path in files]


def _kernels(shape: ModelShape, seq_len: int) -> dict[str, str]:
    """The text of every kernel at every shape the programs use it at, else at one, by file name."""
    seen: set[tuple[Any, ...]] = set()
    texts: dict[str, str] = {}
    for plan in plan_programs(shape, seq_len).values():
        for step in plan.steps:
            use = (step.kernel, *sorted(step.parameters.items()))
            if use in seen:
                continue
            seen.add(use)
            name = f"{step.kernel}-{plan.name}-{step.label}" if step.kernel in texts else step.kernel
            texts[name] = build_kernel(step, plan.name).text
    unused = {name: spec for name, spec in registry().items() if name not in texts}
    return texts | {name: spec.build(**spec.cases[0]).text for name, spec in unused.items()}


def describe(program: Program) -> dict[str, Any]:
    """The program's argument table and build needs, ready for JSON."""
    return {
        "name": program.name,
        "arguments": _describe_arguments(program.arguments),
        "launches": list(program.launches),
        "objects": [asdict(external) for external in program.objects],
        "options": [asdict(option) for option in program.options],
    }


def _describe_arguments(arguments: ArgumentTable) -> list[dict[str, Any]]:
    return [
        {"slot": slot, "name": a.name, "shape": list(a.shape), "dtype": a.dtype.name, "role": a.role.value}
        for slot, a in enumerate(arguments)
    ]
