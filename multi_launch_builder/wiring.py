"""Checks one launch's wires: every kernel argument to one program argument of its type and shape."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.ir import Attribute

from aerie.kernel_builder.arguments import Argument, ArgumentTable
from aerie.multi_launch_builder.submodule import SubModule, WiringError

Wiring: TypeAlias = Mapping[str, str] | Mapping[int, str] | Mapping[str | int, str]
"""Kernel argument, by name or position, to program argument, by name."""


@dataclass(frozen=True)
class Wire:
    """Kernel argument `position` of a launch is bound to program argument `argument`, `reshaped` or not."""

    position: int
    kernel_argument: str
    argument: Argument
    reshaped: bool


def resolve_wiring(sub: SubModule, wiring: Wiring, arguments: ArgumentTable, *, reshape: bool) -> list[Wire]:
    """One wire per kernel argument, in kernel order.

    reshape: a program argument of the same element count may have another shape.
    Raises WiringError, naming both ends with shapes, if a wire is missing, doubled, to or from an unknown
    name, or between two types or shapes.
    """
    targets = _by_position(sub, wiring)
    wires = []
    for position, name in enumerate(sub.argument_names):
        if position not in targets:
            raise WiringError(
                f"launch '{sub.label}': argument '{name}' ({_type_text(sub, position)}) is wired to nothing, "
                "so the launch would have no buffer for it; wire it to one of: "
                f"{', '.join(arguments.names)}"
            )
        argument = _program_argument(sub, position, targets[position], arguments)
        reshaped = _check_type(sub, position, argument, reshape=reshape)
        wires.append(Wire(position, name, argument, reshaped))
    return wires


def _by_position(sub: SubModule, wiring: Wiring) -> dict[int, str]:
    targets: dict[int, str] = {}
    for key, target in wiring.items():
        position = _position(sub, key)
        if position in targets:
            raise WiringError(
                f"launch '{sub.label}': argument '{sub.argument_names[position]}' is wired twice, to "
                f"'{targets[position]}' and to '{target}' (once by name, once by position); keep one"
            )
        targets[position] = target
    return targets


def _position(sub: SubModule, key: str | int) -> int:
    names = sub.argument_names
    if isinstance(key, int):
        if not 0 <= key < len(names):
            raise WiringError(
                f"launch '{sub.label}': there is no argument {key}; the kernel has {len(names)}, "
                f"numbered from 0: {', '.join(names)}"
            )
        return key
    if key not in names:
        raise WiringError(
            f"launch '{sub.label}': there is no argument '{key}'; there are: {_near(key, names)}"
        )
    return names.index(key)


def _near(name: str, names: Iterable[str]) -> str:
    known_names = list(names)
    return ", ".join(difflib.get_close_matches(name, known_names, n=3) or known_names)


def _program_argument(sub: SubModule, position: int, target: str, arguments: ArgumentTable) -> Argument:
    if target not in arguments.names:
        raise WiringError(
            f"launch '{sub.label}': argument '{sub.argument_names[position]}' ({_type_text(sub, position)}) "
            f"is wired to program argument '{target}', which does not exist; there are: "
            f"{_near(target, arguments.names)}"
        )
    return arguments[target]


def _check_type(sub: SubModule, position: int, argument: Argument, *, reshape: bool) -> bool:
    """True if the two ends differ in shape and may. Raises WiringError if they must not differ."""
    kernel_type = sub.arguments[position].type
    ends = f"launch '{sub.label}': argument '{sub.argument_names[position]}' is {_describe(kernel_type)}"
    if not isinstance(kernel_type, MemRefType):
        raise WiringError(
            f"{ends}, program argument {argument} is a buffer; only buffers can be wired, "
            "so give the kernel the value as a constant"
        )
    _check_plain(ends, kernel_type, argument)
    if str(kernel_type.element_type) != argument.dtype.mlir:
        raise WiringError(
            f"{ends}, program argument {argument} has another element type: the launch would misread every "
            f"element; build the kernel for {argument.dtype} or declare '{argument.name}' as "
            f"{kernel_type.element_type}"
        )
    if kernel_type.get_shape() == argument.shape:
        return False
    _check_reshape(ends, kernel_type, argument, reshape=reshape)
    return True


def _check_plain(ends: str, kernel_type: MemRefType[Attribute], argument: Argument) -> None:
    if not (isinstance(kernel_type.memory_space, NoneAttr) and isinstance(kernel_type.layout, NoneAttr)):
        raise WiringError(
            f"{ends} ({kernel_type}), program argument {argument} is a contiguous buffer in L3 (a memref "
            "without layout and memory space); copy into L2 or L1, and stride, inside the kernel"
        )


def _check_reshape(ends: str, kind: MemRefType[Attribute], argument: Argument, *, reshape: bool) -> None:
    count, expected = math.prod(kind.get_shape()), math.prod(argument.shape)
    if count != expected:
        raise WiringError(
            f"{ends}, program argument {argument} has another shape ({count} elements against {expected}): "
            "the launch would leave its buffer; build the kernel at the program's shape"
        )
    if not reshape:
        raise WiringError(
            f"{ends}, program argument {argument} has another shape with the same {count} elements; "
            "pass reshape=True to keep the elements in row-major order"
        )


def _type_text(sub: SubModule, position: int) -> str:
    return _describe(sub.arguments[position].type)


def _describe(kernel_type: Attribute) -> str:
    if not isinstance(kernel_type, MemRefType):
        return str(kernel_type)
    shape = "x".join("?" if extent < 0 else str(extent) for extent in kernel_type.get_shape())
    return f"{shape} {kernel_type.element_type}"
