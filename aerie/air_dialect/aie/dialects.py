"""The dialects of what the compiler makes of AIR, as xDSL has them."""

from __future__ import annotations

from xdsl.ir import Attribute, Dialect

from aerie.air_dialect.aie import (
    airrt,
    array,
    attributes,
    dma,
    object_fifos,
    routing,
    scratchpads,
    sequence,
    traces,
    vectors,
)
from aerie.air_dialect.assembly import op_classes

_MODULES = (array, dma, object_fifos, routing, scratchpads, sequence, traces)
_OPS = [op for module in _MODULES for op in op_classes(module)]
_ATTRIBUTES: list[type[Attribute]] = [
    attributes.BdDimLayoutAttr,
    attributes.BdIterationAttr,
    attributes.BdPadLayoutArrayAttr,
    attributes.BdPadLayoutAttr,
    attributes.ObjectFifoSubviewType,
    attributes.ObjectFifoType,
    attributes.PacketInfoAttr,
]

AIE = Dialect("aie", [op for op in _OPS if op.name.startswith("aie.")], _ATTRIBUTES)
AIEX = Dialect("aiex", [op for op in _OPS if op.name.startswith("aiex.")])
AIEVEC = Dialect("aievec", list(vectors.TABLE_OPS))
AIRRT = Dialect("airrt", op_classes(airrt), [airrt.EventType])
