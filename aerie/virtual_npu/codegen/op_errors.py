"""Errors about operations: their line in the text, and why the virtual NPU does not execute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Attribute, Operation

from aerie.common.errors import ProgramError
from aerie.virtual_npu.errors import UnsupportedOpError, UnsupportedTypeError

_TENSORS = "tensors are not supported: bufferize the module to memrefs first (one-shot-bufferize)"
_BLOCKS = "branches between blocks are not supported: write scf.if, scf.for or scf.while"
_HEAP = "this belongs to systems of several GPUs with a symmetric heap, which an NPU does not have"

_REASONS = {
    "tensor": _TENSORS,
    "bufferization": _TENSORS,
    "cf.br": _BLOCKS,
    "cf.cond_br": _BLOCKS,
    "cf.switch": _BLOCKS,
    "air.translate": _HEAP,
    "air.custom": "this is a placeholder for a latency model, without a meaning that could be run",
    "memref.dma_start": "write air.dma_memcpy_nd: the memref dialect's DMA is not the NPU's",
    "memref.dma_wait": "write air.wait_all: the memref dialect's DMA is not the NPU's",
    "ml_program": "globals of ml_program are not supported: write memref.global",
}
_DEFAULT = "the virtual NPU does not execute this operation; `aerie vnpu ops` lists the ones it does"


def unsupported_reason(operation: str) -> str:
    """Why the virtual NPU does not execute an operation without an emitter, by its name or that of its
    dialect."""
    return _REASONS.get(operation) or _REASONS.get(operation.split(".")[0], _DEFAULT)


def line_of(op: Operation) -> int:
    """The line of an operation in its source text, 0 for one that was built in Python."""
    return op.location.line.data if isinstance(op.location, FileLineColLoc) else 0


def attribute(op: Operation, name: str) -> Attribute | None:
    """A property or discardable attribute by name."""
    return op.properties.get(name, op.attributes.get(name))


def unsupported(op: Operation, what: str) -> UnsupportedOpError:
    """An UnsupportedOpError that names the operation and its line."""
    return UnsupportedOpError(f"line {line_of(op)}: {op.name}: {what}")


_OVERSIGHTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def with_op_in_errors(op: Operation) -> Iterator[None]:
    """Make every error inside of this context name the operation and its line, also a bug of its emitter."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise unsupported(op, str(error)) from error
    except ProgramError:
        raise
    except _OVERSIGHTS as error:
        reason = " ".join(str(error).split()) or "no reason given"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise unsupported(op, f"this form is not supported: {kind}{reason}") from error
