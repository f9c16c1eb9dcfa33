"""The stages of a program before C++ is made of it, and the passes that lead from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from aerie.virtual_npu.codegen.passes.borrowed import borrow_buffers
from aerie.virtual_npu.codegen.passes.handover import hand_over
from aerie.virtual_npu.codegen.passes.inlined import inline_program
from aerie.virtual_npu.codegen.passes.issue import mark_nests, mark_tasks
from aerie.virtual_npu.codegen.passes.lasting import keep_buffers
from aerie.virtual_npu.codegen.passes.products import find_products
from aerie.virtual_npu.codegen.passes.relayed import relay_buffers
from aerie.virtual_npu.codegen.passes.repeated import repeat_relays
from aerie.virtual_npu.options import STAGES, BuildOptions


def advance(
    module: ModuleOp, options: BuildOptions, kernel_dirs: Sequence[Path] = (), stage: str = STAGES[-1]
) -> None:
    """Bring a parsed module to a stage (one of STAGES), in place. Raises UnsupportedOpError where that cannot
    be.

    `kernel_dirs` are folders with the sources of external kernels, of which the signatures are read.
    """
    if stage == "parsed":
        return
    inline_program(module)
    repeat_relays(module)
    hand_over(module)
    keep_buffers(module)
    if stage == "inlined":
        return
    if options.is_fast:
        # It follows elements by numpy, which a program that only lists operations need not load.
        from aerie.virtual_npu.codegen.passes.launches import find_rounded_products

        find_products(module, options)
        find_rounded_products(module, options)
        relay_buffers(module, options)
        borrow_buffers(module, options, kernel_dirs)
    mark_nests(module, options)
    mark_tasks(module, options)
