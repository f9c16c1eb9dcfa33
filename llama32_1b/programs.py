"""What the driver asks of the rooms below: the six programs, and something that runs them by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from numpy.typing import NDArray

from multi_launch_builder import Program

PREFILL_PROGRAMS = ("rms_gemms_rope", "flash_attn", "o_ffn")
DECODE_PROGRAMS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PROGRAMS = PREFILL_PROGRAMS + DECODE_PROGRAMS
SHARED_BUFFERS = frozenset({"flash_attn", "lm_head_gemv"})  # no weights of a layer in these
LM_HEAD_PARTITIONS = 8


class ProgramRunner(Protocol):
    """Runs programs with arguments given by name. runtime.KernelCache is one."""

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        **arrays: NDArray[Any],
    ) -> dict[str, NDArray[Any]]:
        """Call `program` on the buffer-object set `bo_key`; returns `outputs` (default: every OUTPUT).

        With `copy=False` the results are views that the next call on the same set overwrites.
        """

    def preload(self, program: Program, /, *, bo_key: str, **static: NDArray[Any]) -> None:
        """Fill the weights and look-up tables of the buffer-object set `bo_key`, once."""
