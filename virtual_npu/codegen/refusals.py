"""Why the virtual NPU does not execute an operation that an AIR module may hold."""

from __future__ import annotations

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
_DEFAULT = (
    "the virtual NPU does not execute this operation; `python -m virtual_npu ops` lists the ones it does"
)


def reason(operation: str) -> str:
    """What to say about an operation without an emitter, by its name or that of its dialect."""
    return _REASONS.get(operation) or _REASONS.get(operation.split(".")[0], _DEFAULT)
