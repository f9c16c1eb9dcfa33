"""One buffer object, the host's view on it, and who shares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from kernel_builder.arguments import STATIC_ROLES, Argument
from runtime.errors import ArrayError
from virtual_npu.knobs import is_plain

Array: TypeAlias = npt.NDArray[Any]

Sharing: TypeAlias = Mapping[tuple[str, str], str]
"""Which arguments lie in one buffer object: (bo_key, argument name) -> the buffer object's name.

Arguments that are not in it have a buffer object of their own. What one program writes to a shared one is
where the next program reads it: nothing passes through the host.
"""

NOTHING_SHARED: Sharing = {}

Static: TypeAlias = Array | Callable[[Array], None]
"""What a weight or table is filled with: an array, or a function that is given the buffer and fills it."""


def in_force(sharing: Sharing) -> Sharing:
    """The table, or nothing where AERIE_PLAIN holds buffers."""
    return NOTHING_SHARED if is_plain("buffers") else sharing


class Buffer:
    """A buffer object that holds one argument, of one set or of several that share it.

    `label` names the set it was made for. `view` is what the host writes through; `result` is the same
    memory, read-only, which is handed out. `written` says that the host has filled it, through whichever set,
    `lent` that it may do so at any time, `shared` that programs of other sets may read what is in it.
    """

    def __init__(self, label: str, bo: Any, argument: Argument, shared: bool = False) -> None:
        self.label, self.bo, self.argument, self.shared = label, bo, argument, shared
        self.view = _view(bo, argument)
        self.result = self.view.view()
        self.result.flags.writeable = False
        self.written = self.lent = False


class Buffers:
    """The buffers of one device: new ones from `buffer_object`, shared ones while a set holds them.

    `buffer_object(label, argument)` gives a buffer object for an argument of the set `label`. Nothing is
    shared where AERIE_PLAIN holds buffers.
    """

    def __init__(self, buffer_object: Callable[[str, Argument], Any], sharing: Sharing) -> None:
        self._buffer_object = buffer_object
        self._sharing = in_force(sharing)
        self._shared: WeakValueDictionary[str, Buffer] = WeakValueDictionary()

    def of(self, label: str, bo_key: str, argument: Argument) -> Buffer:
        """The buffer for an argument of the set `bo_key`; `label` names the set in errors.

        Raises RunError where there is none to be had, ArrayError where two that differ would share one.
        """
        name = self._sharing.get((bo_key, argument.name))
        if name is None:
            return Buffer(label, self._buffer_object(label, argument), argument)
        found = self._shared.get(name)
        if found is None:
            bo = self._buffer_object(label, argument)
            found = self._shared[name] = Buffer(label, bo, argument, shared=True)
        _check_alike(found, label, argument, name)
        return found


def _check_alike(found: Buffer, label: str, argument: Argument, name: str) -> None:
    """Refuse what cannot share: other shapes, or one filled once and one written in every call."""
    other = found.argument
    if (other.shape, other.dtype) != (argument.shape, argument.dtype):
        differs = "shapes and dtypes differ"
    elif (other.role in STATIC_ROLES) != (argument.role in STATIC_ROLES):
        differs = f"{argument.role.value} and {other.role.value} differ in when they are written"
    else:
        return
    raise ArrayError(
        f"{label}: {argument} cannot share buffer '{name}' with {other} of {found.label}: {differs}; "
        "mend the table of shared buffers"
    )


def _view(bo: Any, argument: Argument) -> Array:
    data = np.frombuffer(bo.map(), dtype=np.uint8)[: argument.nbytes]
    typed: Array = data.view(argument.dtype.numpy)
    return typed.reshape(argument.shape)
