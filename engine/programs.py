"""What the driver asks of the rooms below: the six programs, what each costs, and what runs them by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role
from aerie.multi_launch_builder import Program
from aerie.runtime import Recording, Sharing, Static

PREFILL_PROGRAMS = ("rms_gemms_rope", "flash_attn", "o_ffn")
DECODE_PROGRAMS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PROGRAMS = PREFILL_PROGRAMS + DECODE_PROGRAMS
WITHOUT_LAYERS = frozenset({"flash_attn", "lm_head_gemv"})  # no weights of a layer in these
LAYER_PROGRAMS = tuple(name for name in PROGRAMS if name not in WITHOUT_LAYERS)


def buffer_set(name: str, layer: int) -> str:
    """The key of the buffer objects a call uses: each layer's weights stay in a set of their own.

    Programs without weights of a layer have one set.
    """
    return name if name in WITHOUT_LAYERS else f"{name}_L{layer}"


class HasArguments(Protocol):
    """A program, or the plan of one."""

    @property
    def arguments(self) -> ArgumentTable: ...


def sharing(programs: Mapping[str, HasArguments], layers: int) -> Sharing:
    """Where the programs of a layer find what others made, and what they read alike.

    A layer's weights have one place for prefill and decode: both read Hugging Face's layout, under one name.
    All else has one place per pass, in all layers, since these run one after the other.
    """
    return {
        (buffer_set(name, layer), argument.name): _place(stage, argument, layer)
        for stage, names in (("prefill", PREFILL_PROGRAMS), ("decode", ("rms_gemv_rope", "o_gemv_ffn")))
        for name in names
        for layer in range(layers)
        for argument in programs[name].arguments
    }


def _place(stage: str, argument: Argument, layer: int) -> str:
    """A buffer's name. A layer's `x_next` is the next one's `x`: they change places from layer to layer."""
    if argument.role is Role.WEIGHT:
        return f"L{layer}.{argument.name}"
    handed_on = {"x": layer % 2, "x_next": (layer + 1) % 2}
    place = f"x{handed_on[argument.name]}" if argument.name in handed_on else argument.name
    return f"{stage}.{place}"


def program_flops(program: Program) -> float:
    """Floating-point operations of one call: two per multiply-add of every matrix product.

    Norms, RoPE, SwiGLU, softmax and additions are not counted; they are below one percent in prefill.
    """
    if program.name == "flash_attn":
        return _causal_attention_flops(*program.arguments["q_roped"].shape)
    shape = program.arguments["x"].shape
    rows = shape[0] if len(shape) == 2 else 1
    matrices = [a.shape for a in program.arguments if a.role is Role.WEIGHT and len(a.shape) == 2]
    return 2.0 * rows * sum(math.prod(matrix) for matrix in matrices)


def _causal_attention_flops(rows: int, width: int) -> float:
    """q k^T and p v over the rows * (rows + 1) / 2 visible pairs; width is heads * head_dim."""
    return 4.0 * width * rows * (rows + 1) / 2


class ProgramRunner(Protocol):
    """Runs programs on buffers that it holds, with arguments given by name. runtime.KernelCache is one."""

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        on_device: Collection[str] = (),
        **arrays: NDArray[Any],
    ) -> dict[str, NDArray[Any]]:
        """Call `program` on the buffer-object set `bo_key`; returns `outputs` (default: every OUTPUT).

        With `copy=False` the results are views that the next call on the same set overwrites, and the
        contents of those in `on_device` need not come to the host: they are passed on to another program.
        """

    def unfilled(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        """The weights and look-up tables of the set `bo_key` that are not filled yet, through any set."""

    def preload(self, program: Program, /, *, bo_key: str, **static: Static) -> None:
        """Fill weights and look-up tables of the buffer-object set `bo_key`, once."""

    def record(self) -> Recording | None:
        """Where to note calls that are made again and again; None where each is to be made by itself."""
