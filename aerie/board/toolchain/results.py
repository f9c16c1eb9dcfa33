"""Checks of the texts that the compilers made: placed texts compute what their sources do, and the code of
the cores has no known fault.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aerie.board.toolchain.product_loops import product_loops
from aerie.board.toolchain.subjects import ToolchainSubject
from aerie.runtime.npu.stages import StageFiles
from aerie.runtime.toolchain import KERNEL_SOURCES
from aerie.virtual_npu import BuildOptions, Program, ProgramError
from aerie.virtual_npu.arrays import Array, first_difference

MIB = 1 << 20
WITH_CHECKS = BuildOptions(checks=True)

CoreCheck = Callable[[str], Sequence[str]]
"""Takes the LLVM IR of the cores of one device. Returns what is wrong with it, a sentence each."""


def chained_products(ir: str) -> list[str]:
    """Loops in which each product of blocks waits for the previous one, because all use one accumulator."""
    loops = product_loops(ir)
    chained = [loop for loop in loops if loop.products > loop.accumulators or loop.accumulators == 1]
    if not chained:
        return []
    worst = max(chained, key=lambda loop: loop.products / max(1, loop.accumulators))
    return [
        f"{len(chained)} of {len(loops)} loops of products wait for their own sums: {worst.products} "
        f"products of 8x8 blocks an iteration go to {worst.accumulators} accumulators in {worst.core}; let a "
        "core hold a product's sums for 2x2 blocks or more"
    ]


CORE_CHECKS: tuple[CoreCheck, ...] = (chained_products,)


class BitComparison(StrEnum):
    """How the bits of the placed text's results compare with the source's."""

    SAME = "same"
    DIFFER = "differ"
    FAILED = "failed"  # one of the two does not run
    NOT_RUN = "not run"


@dataclass(frozen=True)
class PlacedComparison:
    """The source and the placed text on the virtual NPU, with checks, on the same arrays."""

    bits: BitComparison
    message: str = ""
    seconds: float = 0.0


NOT_COMPARED = PlacedComparison(BitComparison.NOT_RUN)


def compare(subject: ToolchainSubject, texts: StageFiles, most_mib: int) -> PlacedComparison:
    """Run both on the same arrays and compare all bits, unless the arguments take more than
    `most_mib` MiB.
    """
    if not texts.placed.is_file():
        return PlacedComparison(BitComparison.NOT_RUN, "there is no placed text")
    if subject.argument_bytes > most_mib * MIB:
        size = -(-subject.argument_bytes // MIB)
        return PlacedComparison(
            BitComparison.NOT_RUN, f"its arguments take {size} MiB, and --run-up-to is {most_mib}"
        )
    begin = time.monotonic()
    arrays = subject.arrays()
    try:
        program, expected = _run(texts.source, arrays, "the source")
        _, actual = _run(texts.placed, arrays, "the placed text")
    except _FailedError as error:
        return PlacedComparison(BitComparison.FAILED, str(error), time.monotonic() - begin)
    difference = first_difference(program.entry().arguments, expected, actual)
    bits = BitComparison.DIFFER if difference else BitComparison.SAME
    return PlacedComparison(bits, str(difference or ""), time.monotonic() - begin)


class _FailedError(Exception):
    pass


def _run(path: Path, arrays: Sequence[Array], description: str) -> tuple[Program, Sequence[Array]]:
    program = Program.from_file(path, (KERNEL_SOURCES,), WITH_CHECKS)
    try:
        return program, program.run(*arrays).outputs
    except ProgramError as error:
        raise _FailedError(f"{description} does not run on the virtual NPU: {error}") from error


def product_note(texts: StageFiles) -> str:
    """What the loops of all cores that multiply blocks do, in one line; "" if there are none."""
    loops = [loop for path in texts.cores for loop in product_loops(path.read_text())]
    kinds = Counter((loop.products, loop.accumulators, loop.conversions_per_product) for loop in loops)
    return "; ".join(
        f"{count} loops with {products} products an iteration in {held} accumulators, {conversions:g} "
        "conversions per product"
        for (products, held, conversions), count in sorted(kinds.items())
    )


def core_findings(texts: StageFiles) -> list[str]:
    """What CORE_CHECKS find in the cores of every device."""
    return [
        f"{path.name}: {finding}"
        for path in texts.cores
        for check in CORE_CHECKS
        for finding in check(path.read_text())
    ]
