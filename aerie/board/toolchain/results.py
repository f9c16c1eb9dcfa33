"""What is asked of the texts that the compilers made: do placed texts compute what their sources do, and is
the code of the cores as it should be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aerie.board.toolchain.product_loops import product_loops
from aerie.board.toolchain.subjects import Subject
from aerie.runtime.npu.stages import Texts
from aerie.runtime.toolchain import KERNEL_SOURCES
from aerie.virtual_npu import BuildOptions, Program, ProgramError
from aerie.virtual_npu.arrays import Array, first_difference

MIB = 1 << 20
WATCHED = BuildOptions(checks=True)

CoreCheck = Callable[[str], Sequence[str]]
"""Takes the LLVM IR of the cores of one device, gives what is wrong with it, a sentence each."""


def chained_products(ir: str) -> list[str]:
    """Loops in which each product of blocks waits for the one before, as all go to one accumulator."""
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


class Bits(StrEnum):
    """How the placed text's results stand to the source's."""

    SAME = "same"
    DIFFER = "differ"
    FAILED = "failed"  # one of the two does not run
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Comparison:
    """Source and placed text on the virtual NPU, with checks, on the same arrays."""

    bits: Bits
    said: str = ""
    seconds: float = 0.0


NOT_COMPARED = Comparison(Bits.NOT_RUN)


def compare(subject: Subject, texts: Texts, most_mib: int) -> Comparison:
    """Run both on the same arrays, if the arguments take at most so many MiB, and compare all bits."""
    if not texts.placed.is_file():
        return Comparison(Bits.NOT_RUN, "there is no placed text")
    if subject.argument_bytes > most_mib * MIB:
        size = -(-subject.argument_bytes // MIB)
        return Comparison(Bits.NOT_RUN, f"its arguments take {size} MiB, and --run-up-to is {most_mib}")
    begin = time.monotonic()
    given = subject.arrays()
    try:
        program, wanted = _run(texts.source, given, "the source")
        _, found = _run(texts.placed, given, "the placed text")
    except _FailedError as error:
        return Comparison(Bits.FAILED, str(error), time.monotonic() - begin)
    difference = first_difference(program.entry().arguments, wanted, found)
    bits = Bits.DIFFER if difference else Bits.SAME
    return Comparison(bits, str(difference or ""), time.monotonic() - begin)


class _FailedError(Exception):
    pass


def _run(path: Path, given: Sequence[Array], what: str) -> tuple[Program, Sequence[Array]]:
    program = Program.from_file(path, (KERNEL_SOURCES,), WATCHED)
    try:
        return program, program.run(*given).outputs
    except ProgramError as error:
        raise _FailedError(f"{what} does not run on the virtual NPU: {error}") from error


def product_note(texts: Texts) -> str:
    """What the loops of all cores do that multiply blocks, in one line; "" where none does."""
    loops = [loop for path in texts.cores for loop in product_loops(path.read_text())]
    kinds = Counter((loop.products, loop.accumulators, loop.conversions_per_product) for loop in loops)
    return "; ".join(
        f"{count} loops with {products} products an iteration in {held} accumulators, {conversions:g} "
        "conversions per product"
        for (products, held, conversions), count in sorted(kinds.items())
    )


def core_findings(texts: Texts) -> list[str]:
    """What CORE_CHECKS find in the cores of every device."""
    return [
        f"{path.name}: {finding}"
        for path in texts.cores
        for check in CORE_CHECKS
        for finding in check(path.read_text())
    ]
