"""pyxrt.ext: the constructors of the ELF flow."""

from virtual_npu.pyxrt.buffers import ExtBufferObject as bo  # noqa: N813  pyxrt's own spelling
from virtual_npu.pyxrt.objects import ExtKernel as kernel  # noqa: N813

__all__ = ["bo", "kernel"]
