"""The stages of a program before C++ is made of it, and the passes that lead from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from aerie.virtual_npu.codegen.passes.divide_tiles import divide_tiles
from aerie.virtual_npu.codegen.passes.elide_l1_copies import elide_l1_copies
from aerie.virtual_npu.codegen.passes.elide_l2_copies import elide_l2_copies
from aerie.virtual_npu.codegen.passes.hoist_l1_buffers import hoist_l1_buffers
from aerie.virtual_npu.codegen.passes.inline import inline_program
from aerie.virtual_npu.codegen.passes.mark_outlined import mark_nests, mark_tasks
from aerie.virtual_npu.codegen.passes.products import find_products
from aerie.virtual_npu.codegen.passes.repeat_memtile_transfers import repeat_memtile_transfers
from aerie.virtual_npu.codegen.passes.shared_l1_locks import add_shared_l1_locks
from aerie.virtual_npu.codegen.passes.start_before_transfers import start_before_transfers
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
    repeat_memtile_transfers(module)
    add_shared_l1_locks(module)
    hoist_l1_buffers(module)
    if stage == "inlined":
        return
    if options.is_fast:
        # It follows elements by numpy, which a program that only lists operations need not load.
        from aerie.virtual_npu.codegen.passes.launch_products import find_rounded_products

        find_products(module, options)
        find_rounded_products(module, options)
        elide_l2_copies(module, options)
        elide_l1_copies(module, options, kernel_dirs)
        divide_tiles(module, options, kernel_dirs)
    if options.checks:
        start_before_transfers(module)
    mark_nests(module, options)
    mark_tasks(module, options)
