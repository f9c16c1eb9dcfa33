"""MLIR's own dialects, as an AIR program uses them: xDSL's, with what it lacks added."""

from __future__ import annotations

from xdsl.dialects import (
    affine,
    arith,
    bufferization,
    builtin,
    cf,
    func,
    linalg,
    math,
    memref,
    ml_program,
    scf,
    tensor,
    ub,
    vector,
)
from xdsl.ir import Attribute, Dialect, Operation

from air_dialect import (
    upstream_affine,
    upstream_affine_linear,
    upstream_arith,
    upstream_bufferization,
    upstream_index,
    upstream_linalg,
    upstream_linalg_named,
    upstream_math,
    upstream_memref,
    upstream_memref_access,
    upstream_pack,
    upstream_scf,
    upstream_tensor,
    upstream_vector,
    upstream_vector_lanes,
    upstream_vector_mask,
)

ADDED: dict[str, type[Operation]] = {
    op.name: op
    for module in (
        upstream_affine,
        upstream_affine_linear,
        upstream_arith,
        upstream_bufferization,
        upstream_index,
        upstream_linalg,
        upstream_linalg_named,
        upstream_math,
        upstream_memref,
        upstream_memref_access,
        upstream_pack,
        upstream_scf,
        upstream_tensor,
        upstream_vector,
        upstream_vector_lanes,
        upstream_vector_mask,
    )
    for op in module.OPERATIONS
}
"""Operations this package defines in an upstream dialect, by name; they replace xDSL's of that name."""


_ADDED_ATTRIBUTES: tuple[type[Attribute], ...] = (
    upstream_linalg.TypeFnAttr,
    upstream_vector.IteratorTypeAttr,
)


def _extended(dialect: Dialect) -> Dialect:
    """The dialect with this package's operations in place of, or besides, xDSL's."""
    own = [op for name, op in ADDED.items() if name.split(".")[0] == dialect.name]
    kept = [op for op in dialect.operations if op.name not in ADDED]
    attributes = [attr for attr in _ADDED_ATTRIBUTES if attr.name.split(".")[0] == dialect.name]
    return Dialect(dialect.name, [*kept, *own], [*dialect.attributes, *attributes])


DIALECTS = tuple(
    _extended(dialect)
    for dialect in (
        affine.Affine,
        arith.Arith,
        bufferization.Bufferization,
        cf.Cf,
        func.Func,
        Dialect("index"),
        linalg.Linalg,
        math.Math,
        memref.MemRef,
        ml_program.MLProgram,
        scf.Scf,
        tensor.Tensor,
        ub.UB,
        vector.Vector,
    )
)
BUILTIN = builtin.Builtin


def operation_named(name: str) -> type[Operation]:
    """The class of an upstream operation. Raises KeyError where no dialect has it."""
    return {op.name: op for dialect in DIALECTS for op in dialect.operations}[name]
