"""What the engine asks of the rooms below: a model's programs, what each costs, and what runs them by name.

A program is one of the six, built for one prompt length and for one token, or of a graph variant AR-n x CL-m
(multi_launch_builder/variants.py). What it does is its `kind`, which is the same for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from numpy.typing import NDArray

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role
from aerie.multi_launch_builder import Program
from aerie.runtime import Recording, Static

PREFILL_PROGRAMS = ("rms_gemms_rope", "flash_attn", "o_ffn")
DECODE_PROGRAMS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PROGRAMS = PREFILL_PROGRAMS + DECODE_PROGRAMS
WITHOUT_WEIGHTS = frozenset({"flash_attn", "cached_attn"})
HEADS = frozenset({"lm_head_gemv", "lm_head"})
WITHOUT_LAYERS = frozenset({"flash_attn", *HEADS})
"""Kinds whose calls all use one set of buffers."""


class ProgramInfo(Protocol):
    """A program, or the plan of one."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> ArgumentTable: ...
    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...


def has_layer_weights(program: ProgramInfo) -> bool:
    """Whether weights of a layer are among its arguments."""
    return program.kind not in WITHOUT_WEIGHTS | HEADS


def buffer_set(program: ProgramInfo, layer: int, slot: str = "") -> str:
    """The key of the buffer objects a call uses: each layer's weights stay in a set of their own, and so does
    each layer of the KV cache in `slot`.

    Programs with neither have one set.
    """
    name = f"{program.name}_{slot}" if slot else program.name
    return name if program.kind in WITHOUT_LAYERS else f"{name}_L{layer}"


class SharedBufferNames(dict[tuple[str, str], str]):
    """Where the programs of a layer find what others made, and what they read alike: by (bo_key, argument).

    A layer's weights have one place for all programs: they read Hugging Face's layout, under one name. All
    else has one place for each number of rows, in all layers, since these run one after the other. A layer of
    a KV cache has its place for all programs that attend to it.
    """

    def __init__(self, programs: Iterable[ProgramInfo], layers: int) -> None:
        super().__init__()
        for program in programs:
            self.add(program, layers)

    def add(self, program: ProgramInfo, layers: int) -> None:
        """The places of a program's arguments in every layer."""
        for layer in range(1 if program.kind in WITHOUT_LAYERS else layers):
            self._add(program, layer, "")

    def key(self, program: ProgramInfo, layer: int, slot: str) -> str:
        """As buffer_set, for a program that attends to the KV cache in `slot`, whose place it is told."""
        key = buffer_set(program, layer, slot)
        if (key, program.arguments[0].name) not in self:
            self._add(program, layer, slot)
        return key

    def _add(self, program: ProgramInfo, layer: int, slot: str) -> None:
        for argument in program.arguments:
            self[buffer_set(program, layer, slot), argument.name] = _place(program, argument, layer, slot)


def kv_buffer_name(slot: str, layer: int, name: str) -> str:
    """The buffer's name of a layer's keys, or values, in the KV cache that is in `slot`."""
    return f"{slot}.L{layer}.{name}"


def _place(program: ProgramInfo, argument: Argument, layer: int, slot: str) -> str:
    """A buffer's name. A layer's `x_next` is the next one's `x`: they change places from layer to layer."""
    stage = f"AR-{program.rows}"
    if argument.role is Role.WEIGHT:
        return f"head.{argument.name}" if program.kind in HEADS else f"L{layer}.{argument.name}"
    if argument.name in CACHE:
        return kv_buffer_name(slot or program.name, layer if slot else 0, argument.name)
    if program.kind in HEADS or argument.name == "mask":
        return f"{program.name}.{argument.name}"
    handed_on = {"x": layer % 2, "x_next": (layer + 1) % 2}
    place = f"x{handed_on[argument.name]}" if argument.name in handed_on else argument.name
    return f"{stage}.{place}"


CACHE = ("keys", "values")
"""Arguments that hold a layer of a KV cache."""


def outputs_with_raw_keys(program: Program) -> tuple[str, Collection[str]]:
    """What RoPE makes a program's keys of, by its argument's name, and all that it gives with them."""
    unturned = "k_normed" if "k_normed" in program.arguments.names else "k"
    outputs = (one.name for one in program.arguments if one.role is Role.OUTPUT)
    return unturned, (*outputs, unturned)


def program_flops(program: Program) -> float:
    """Floating-point operations of one call: two per multiply-add of every matrix product.

    Norms, RoPE, SwiGLU, softmax and additions are not counted; they are below one percent in prefill.
    """
    if program.kind == "flash_attn":
        return _causal_attention_flops(*program.arguments["q_roped"].shape)
    if program.kind == "cached_attn":
        return 0.0  # as many as there are positions to see, which each call says
    shape = program.arguments[0].shape
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

    def unfilled_weights(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        """The weights and look-up tables of the set `bo_key` that are not filled yet, through any set."""

    def preload(self, program: Program, /, *, bo_key: str, **static: Static) -> None:
        """Fill weights and look-up tables of the buffer-object set `bo_key`, once."""

    def shared_array(self, name: str, argument: Argument) -> NDArray[Any]:
        """A writable array of the argument's shape and dtype, which programs that take it read in place."""

    def record(self) -> Recording | None:
        """Where to note calls that are made again and again; None where each is to be made by itself."""
