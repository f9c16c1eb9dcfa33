"""Programs as the engine uses them: their names and kinds, the buffers they share, and the runner that runs
them by name.

A program is one of the six, built for one prompt length and for one token, or of a variant AR-n x CL-m
(multi_launch_builder/variants.py). Its `kind` says what it computes, for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, byte
from aerie.kernel_builder.weight_blocks import BLOCK_COLUMNS, BLOCK_ROWS
from aerie.multi_launch_builder import Program
from aerie.multi_launch_builder.weight_kinds import WeightKinds, split_name
from aerie.runtime import Recording, Static

PREFILL_PROGRAMS = ("rms_gemms_rope", "flash_attn", "o_ffn")
DECODE_PROGRAMS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PROGRAMS = PREFILL_PROGRAMS + DECODE_PROGRAMS
CONV_PROGRAMS = ("rms_gemms_gate", "short_conv", "rms_gemv_gate", "short_conv_row")
"""Kinds of the programs of layers with a short convolution, which those with attention have not."""
DELTA_PROGRAMS = ("rms_gemms_delta", "delta_conv", "delta_rule", "delta_gate")
"""The same of layers with linear attention."""
ATTENTION_PROGRAMS = (
    "rms_gemms_rope",
    "rms_gemv_rope",
    "rms_gemms",
    "norm_rope",
    "flash_attn",
    "cached_attn",
    "attn_gate",
)
"""Kinds of the programs of layers with attention, which others have not."""
WITHOUT_WEIGHTS = frozenset({"flash_attn", "cached_attn", "delta_rule", "attn_gate"})
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
    """Whether its arguments include weights of a layer."""
    return program.kind not in WITHOUT_WEIGHTS | HEADS


class LayerConfig(Protocol):
    """What a config says of its layers."""

    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def layers_with_conv(self) -> frozenset[int]: ...
    @property
    def weight_kinds(self) -> WeightKinds: ...


def is_for_layer(config: LayerConfig, program: ProgramInfo, layer: int) -> bool:
    """Whether a program is for a layer: for attention or a convolution, as it has, and for weights of its
    kinds."""
    base = split_name(program.name)[0]
    return layer in layers_of(config, base) and config.weight_kinds.name(base, layer) == program.name


def layers_of(config: LayerConfig, program: str) -> list[int]:
    """The layers that a program without kinds is for, by its name; the LM head counts as of layer 0."""
    kind = program.partition("_ar")[0]
    if kind in HEADS:
        return [0]
    other = ATTENTION_PROGRAMS if config.layers_with_conv else ()
    return [
        layer
        for layer in range(config.num_hidden_layers)
        if kind not in (other if layer in config.layers_with_conv else CONV_PROGRAMS + DELTA_PROGRAMS)
    ]


def buffer_set(program: ProgramInfo, layer: int, slot: str = "") -> str:
    """The key of the buffer objects a call uses: each layer's weights stay in a set of their own, and so does
    each layer of the KV cache in `slot`.

    Programs with neither have one set.
    """
    name = f"{program.name}_{slot}" if slot else program.name
    return name if program.kind in WITHOUT_LAYERS else f"{name}_L{layer}"


class SharedBufferNames(dict[tuple[str, str], str]):
    """The buffers that the programs of a layer share, by (bo_key, argument).

    A layer's weights have one buffer for all programs, in Hugging Face's layout. All other arguments have one
    buffer for each number of rows, in all layers, since these run one after the other; RoPE's have one for
    each table besides. A layer of a KV cache has its buffers for all programs that attend to it.

    rope_of_layer: of each layer the number of its table.
    """

    def __init__(self, programs: Iterable[ProgramInfo], rope_of_layer: Sequence[int]) -> None:
        super().__init__()
        self._rope_of_layer = rope_of_layer
        for program in programs:
            self.add(program)

    def add(self, program: ProgramInfo) -> None:
        """Add the buffer names of a program's arguments in every layer."""
        for layer in range(1 if program.kind in WITHOUT_LAYERS else len(self._rope_of_layer)):
            self._add(program, layer, "")

    def key(self, program: ProgramInfo, layer: int, slot: str) -> str:
        """The buffer set of a program that attends to the KV cache `slot`. Adds its buffer names at the first
        use."""
        key = buffer_set(program, layer, slot)
        if (key, program.arguments[0].name) not in self:
            self._add(program, layer, slot)
        return key

    def _add(self, program: ProgramInfo, layer: int, slot: str) -> None:
        for argument in program.arguments:
            place = _place(program, argument, layer, slot)
            if argument.name in ROPE_ARGUMENTS and self._rope_of_layer[layer]:
                place += f".{self._rope_of_layer[layer]}"
            self[buffer_set(program, layer, slot), argument.name] = place


def kv_buffer_name(slot: str, layer: int, name: str) -> str:
    """The buffer's name of a layer's keys, or values, in the KV cache `slot`."""
    return f"{slot}.L{layer}.{name}"


def _place(program: ProgramInfo, argument: Argument, layer: int, slot: str) -> str:
    """A buffer's name. A layer's `x_next` is the next layer's `x`: they alternate from layer to layer. A
    state and what the delta rule makes of it have one buffer: a core reads its part before it writes that."""
    stage = f"AR-{program.rows}"
    if argument.role is Role.WEIGHT:
        return f"head.{argument.name}" if program.kind in HEADS else f"L{layer}.{argument.name}"
    if argument.name in CACHE:
        return kv_buffer_name(slot or program.name, layer if slot else 0, argument.name)
    if program.kind in HEADS or argument.name == "mask":
        return f"{program.name}.{argument.name}"
    parity = {"x": layer % 2, "x_next": (layer + 1) % 2}
    name = f"x{parity[argument.name]}" if argument.name in parity else argument.name
    name = "state" if name == "state_out" else name
    return f"{stage}.{name}"


ROPE_ARGUMENTS = ("rope_lut", "rope_rows", "rope_row")
"""Arguments that hold rows of a layer's RoPE table."""
CACHE = ("keys", "values")
"""Arguments that hold a layer of a KV cache."""


def outputs_with_raw_keys(program: Program) -> tuple[str, Collection[str]]:
    """The argument with a program's keys before RoPE, and all outputs of the program with it."""
    keys_before_rope = "k_normed" if "k_normed" in program.arguments.names else "k"
    outputs = (one.name for one in program.arguments if one.role is Role.OUTPUT)
    return keys_before_rope, (*outputs, keys_before_rope)


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
    return 2.0 * rows * sum(_elements(a) for a in program.arguments if a.role is Role.WEIGHT)


def _elements(weight: Argument) -> int:
    """Elements of a matrix, with the padding of one in blocks; 0 for a vector."""
    if weight.dtype is byte:
        rows, columns, _ = weight.shape
        return rows * BLOCK_ROWS * columns * BLOCK_COLUMNS
    return math.prod(weight.shape) if len(weight.shape) == 2 else 0


def _causal_attention_flops(rows: int, width: int) -> float:
    """q k^T and p v over the rows * (rows + 1) / 2 visible pairs; width is heads * head_dim."""
    return 4.0 * width * rows * (rows + 1) / 2


class ProgramRunner(Protocol):
    """Runs programs on its buffers, with arguments by name. runtime.KernelCache is one."""

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
        """The weights and look-up tables of the set `bo_key` that no set has filled yet."""

    def preload(self, program: Program, /, *, bo_key: str, **static: Static) -> None:
        """Fill weights and look-up tables of the buffer-object set `bo_key`, once."""

    def shared_array(self, name: str, argument: Argument) -> NDArray[Any]:
        """A writable array of the argument's shape and dtype, which programs that take it read in place."""

    def record(self) -> Recording | None:
        """A recording for calls that repeat; None if the runner cannot record."""
