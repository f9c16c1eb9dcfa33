"""MLIR's own dialects, as an AIR program uses them: xDSL's, with what it lacks added."""

from __future__ import annotations

from xdsl.dialects.affine import Affine
from xdsl.dialects.arith import Arith
from xdsl.dialects.bufferization import Bufferization
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.cf import Cf
from xdsl.dialects.func import Func
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.math import Math
from xdsl.dialects.memref import MemRef
from xdsl.dialects.ml_program import MLProgram
from xdsl.dialects.scf import Scf
from xdsl.dialects.tensor import Tensor
from xdsl.dialects.ub import UB
from xdsl.dialects.vector import Vector
from xdsl.ir import Attribute, Dialect, Operation

from aerie.air_dialect.assembly import op_classes
from aerie.air_dialect.upstream import (
    affine,
    arith,
    bufferization,
    index,
    linalg,
    linalg_named,
    math,
    memref,
    scf,
    tensor,
    transform,
    vector,
    vector_memory,
    vector_sums,
)

_MODULES = (
    affine, arith, bufferization, index, linalg, linalg_named, math, memref, scf, tensor, transform, vector,
    vector_memory, vector_sums,
)  # fmt: skip


ADDED: dict[str, type[Operation]] = {op.name: op for module in _MODULES for op in op_classes(module)}
"""Operations this package defines in an upstream dialect, by name; they replace xDSL's of that name."""
_ADDED_ATTRIBUTES: tuple[type[Attribute], ...] = (linalg.TypeFnAttr, vector_sums.IteratorTypeAttr)


def _extended(dialect: Dialect) -> Dialect:
    """The dialect with this package's operations in place of, or besides, xDSL's."""
    own = [op for name, op in ADDED.items() if name.split(".")[0] == dialect.name]
    remaining = [op for op in dialect.operations if op.name not in ADDED]
    attributes = [attr for attr in _ADDED_ATTRIBUTES if attr.name.split(".")[0] == dialect.name]
    return Dialect(dialect.name, [*remaining, *own], [*dialect.attributes, *attributes])


_DIALECTS = (
    Affine, Arith, Bufferization, Builtin, Cf, Func, Dialect("index"), Linalg, Math, MemRef, MLProgram, Scf,
    Tensor, Dialect("transform"), UB, Vector,
)  # fmt: skip
DIALECTS = tuple(map(_extended, _DIALECTS))
