"""Checks of the texts that the compilers made: placed texts and modules of the device compute what their
sources do, and the code of the cores has no known fault.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aerie.board.toolchain.product_loops import product_loops
from aerie.board.toolchain.subjects import ToolchainSubject
from aerie.runtime.npu.stages import RESOURCES, ROUTE, StageFiles
from aerie.runtime.toolchain import KERNEL_SOURCES
from aerie.virtual_npu import ArgumentType, BuildOptions, Program, ProgramError
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
    """How the bits of a compiled text's results compare with the source's."""

    SAME = "same"
    DIFFER = "differ"
    FAILED = "failed"  # one of the two does not run
    NOT_RUN = "not run"


@dataclass(frozen=True)
class TextComparison:
    """The source and a text that was compiled from it, on the virtual NPU and on the same arrays."""

    bits: BitComparison
    message: str = ""
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """Whether the text ran and has other bits, or does not run."""
        return self.bits in (BitComparison.DIFFER, BitComparison.FAILED)


NOT_COMPARED = TextComparison(BitComparison.NOT_RUN)


@dataclass(frozen=True)
class BitComparisons:
    """placed: of the text after placement, run with checks as AIR. device: of the modules with `aie.device`
    before routing and after it, one result for both.
    """

    placed: TextComparison = NOT_COMPARED
    device: TextComparison = NOT_COMPARED


NOTHING_COMPARED = BitComparisons()


def compare(subject: ToolchainSubject, texts: StageFiles, most_mib: int) -> BitComparisons:
    """Run the source and what was compiled from it on the same arrays and compare all bits, unless the
    arguments take more than `most_mib` MiB.
    """
    if not texts.placed.is_file():
        nothing = TextComparison(BitComparison.NOT_RUN, "there is no placed text")
        return BitComparisons(nothing, nothing)
    if subject.argument_bytes > most_mib * MIB:
        size = -(-subject.argument_bytes // MIB)
        reason = f"its arguments take {size} MiB, and --run-up-to is {most_mib}"
        return BitComparisons(*[TextComparison(BitComparison.NOT_RUN, reason)] * 2)
    arrays = subject.arrays()
    try:
        program, expected = _run(texts.source, arrays, "the source", WITH_CHECKS)
    except _FailedError as error:
        return BitComparisons(*[TextComparison(BitComparison.FAILED, str(error))] * 2)
    named = program.entry().arguments
    placed = {texts.placed: "the placed text"}
    return BitComparisons(
        _compare_texts(placed, arrays, expected, named, WITH_CHECKS),
        _compare_texts(_device_texts(texts), arrays, expected, named, BuildOptions()),
    )


def _device_texts(texts: StageFiles) -> dict[Path, str]:
    """The modules with `aie.device` that exist, with what messages call them."""
    named = {
        texts.module_after(RESOURCES): "the device's module before routing",
        texts.module_after(ROUTE): "the device's module after routing",
    }
    return {path: name for path, name in named.items() if path.is_file()}


def _compare_texts(
    texts: Mapping[Path, str],
    arrays: Sequence[Array],
    expected: Sequence[Array],
    arguments: Sequence[ArgumentType],
    options: BuildOptions,
) -> TextComparison:
    """The first text that differs or does not run decides."""
    if not texts:
        return TextComparison(BitComparison.NOT_RUN, "no module of the device was made")
    begin = time.monotonic()
    try:
        for path, name in texts.items():
            _, actual = _run(path, arrays, name, options)
            if difference := first_difference(arguments, expected, actual):
                message = f"{name}: {difference}"
                return TextComparison(BitComparison.DIFFER, message, time.monotonic() - begin)
    except _FailedError as error:
        return TextComparison(BitComparison.FAILED, str(error), time.monotonic() - begin)
    return TextComparison(BitComparison.SAME, seconds=time.monotonic() - begin)


class _FailedError(Exception):
    pass


def _run(
    path: Path, arrays: Sequence[Array], description: str, options: BuildOptions
) -> tuple[Program, Sequence[Array]]:
    program = Program.from_file(path, (KERNEL_SOURCES,), options)
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
