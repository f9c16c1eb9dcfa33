"""Counts what the loops of a core that multiply 8x8 blocks do, in the LLVM IR that the tools make (stage 7).

A bf16 block reaches the matrix unit of AIE2P in four steps, and each is counted: it is loaded, widened to
f32 in an accumulator, converted to block floats, and multiplied. A block of b is transposed before, by two
shuffles (mlir-aie AIEVecToLLVM.cpp, performBFP16_8x8MatMul). A core issues one instruction per slot and cycle
(llvm-aie AIE2PSlots.td): products go through the vector slot; widening and shuffles, two instructions each
per block, through the slot for moves; conversions through the one for stores; loads through two slots of 64
bytes.
The busiest slot gives the minimum cycles of an iteration. Latencies are not counted, and neither is what the
cores' compiler does with the loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PRODUCT = "@llvm.aie2p.BFP576.BFP576.ACC2048.mac.conf("
CONVERSION = "@llvm.aie2p.v64accfloat.to.v64bfp16ebs8("
WIDENING = "@llvm.aie2p.v32bf16.to.v32accfloat("
SHUFFLE = "@llvm.aie2p.vshuffle("
BLOCK_LOAD = re.compile(r"= load <64 x bfloat>")
ACCUMULATOR = re.compile(r"= phi <64 x (?:float|i32)>")
CORE = re.compile(r"^define void @(core_\w+)\(.*?^}", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"^(\d+):", re.MULTILINE)
NEXT = re.compile(r"br label %(\d+)")
BOUND = re.compile(r"icmp slt i(?:32|64) %\d+, (\d+)")
LOADS_OF_A_BLOCK = 2
"""A block of bf16 is 128 bytes."""


@dataclass(frozen=True)
class ProductLoop:
    """One iteration of an innermost loop over K, and the number of iterations."""

    core: str
    products: int
    conversions: int
    accumulators: int
    widenings: int
    shuffles: int
    loads: int
    trips: int

    @property
    def conversions_per_product(self) -> float:
        """Blocks that are converted to block floats, per product of two."""
        return self.conversions / self.products

    @property
    def min_cycles(self) -> int:
        """Cycles that the busiest slot needs for an iteration, if nothing waits."""
        loads = -(-self.loads * LOADS_OF_A_BLOCK // 2)
        return max(self.products, self.conversions, self.widenings + self.shuffles, loads)


def product_loops(ir: str) -> list[ProductLoop]:
    """All loops in a module of LLVM IR that multiply blocks in block floats, in order."""
    return [loop for core in CORE.finditer(ir) for loop in _core_loops(core[1], core[0])]


def _core_loops(core: str, text: str) -> Iterator[ProductLoop]:
    blocks = _basic_blocks(text)
    for body in blocks.values():
        if PRODUCT not in body:
            continue
        # The block ends with a jump to the head of its loop, which has the values it carries and its bound.
        head = blocks[NEXT.findall(body)[-1]]
        bound = BOUND.search(head)
        yield ProductLoop(
            core,
            products=body.count(PRODUCT),
            conversions=body.count(CONVERSION),
            accumulators=len(ACCUMULATOR.findall(head)),
            widenings=body.count(WIDENING),
            shuffles=body.count(SHUFFLE),
            loads=len(BLOCK_LOAD.findall(body)),
            trips=int(bound[1]) if bound else 1,
        )


def _basic_blocks(text: str) -> dict[str, str]:
    """The text of every labelled block of a function, by its label."""
    labels = list(LABEL.finditer(text))
    ends = [*(label.start() for label in labels[1:]), len(text)]
    blocks = zip(labels, ends, strict=False)  # without a label there is one end too many
    return {label[1]: text[label.end() : end] for label, end in blocks}
