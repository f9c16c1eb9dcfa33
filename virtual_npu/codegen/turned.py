"""Operands of a product that a function in C++ rearranges before they are multiplied.

A core may turn the blocks that a DMA brought, in place, before it multiplies them. The simulator need not do
so if it knows where each element ends up. vnpu/turned.h asks the function itself, with a buffer of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from air_dialect.readings import Linear
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.functions import callee
from virtual_npu.codegen.windows import Turn


@dataclass(frozen=True)
class Turned:
    """How blocks are read in a buffer that a function rearranged.

    `filled` are the steps in the source of each dimension of the buffer, before the call; `start` and `lanes`
    say where in the buffer, after the call, the first block begins, and the steps of a block's dimensions.
    """

    turn: Turn
    filled: tuple[int, ...]
    start: Linear
    lanes: tuple[int, ...]

    def declaration(self, body: Body, name: str, axes: Sequence[str]) -> str:
        """The C++ declaration of the vnpu::Turned; `axes`: of m or n, and of k, in the buffer."""
        call = self.turn.call
        function = callee(body.unit, call, call.callee.root_reference.data)
        pairs = zip(self.turn.shape, self.filled, strict=True)
        dims = ", ".join(f"{{{extent}, {step}, 0}}" for extent, step in pairs)
        buffer = f"{{{len(self.filled)}, {{{dims}}}}}"
        arguments = ", ".join([function, buffer, str(self.start.constant), *axes])
        return f"static const vnpu::Turned {name}({arguments});"
