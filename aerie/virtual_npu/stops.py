"""Stops before an operation: where, and what the buffers hold there (include/vnpu/stop.h)."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.virtual_npu.element_types import NUMPY_NAMES, numbers_of
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.options import StopPoint

ALL = "all"
"""The `--show` that names every buffer."""


class _StopPoint(ctypes.Structure):
    """vnpu::StopPoint."""

    _fields_ = (
        ("line", ctypes.c_int32),
        ("has_tile", ctypes.c_int32),
        ("x", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("hit", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class _StoppedBuffer(ctypes.Structure):
    """vnpu::StoppedBuffer."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("how", ctypes.c_char_p),
        ("place", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("written", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
        ("x", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("line", ctypes.c_int32),
        ("element", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("level", ctypes.c_int32),
        ("is_here", ctypes.c_int32),
    )


_LOOK = ctypes.CFUNCTYPE(None, ctypes.POINTER(_StoppedBuffer), ctypes.c_int64)


class _Stops(ctypes.Structure):
    """vnpu::Stops."""

    _fields_ = (
        ("points", ctypes.POINTER(_StopPoint)),
        ("count", ctypes.c_int32),
        ("reached", ctypes.c_int32),
        ("look", _LOOK),
    )


@dataclass(frozen=True)
class StoppedBuffer:
    """A buffer where a run stopped.

    name: `%acc`, or empty. type: its MLIR type. memory: `L1`, `L2` or `L3`. place: the tile or body that
    allocated it, `herd @h (1, 0)`; empty for arguments and globals. how: `allocated`, or what it is. line: of
    its allocation. data: a copy, with one more dimension in front where tiles have one each; bf16 as bits in
    uint16. written: of the same shape, which elements anything has written; None: all.
    """

    name: str
    type: str
    memory: str
    place: str
    how: str
    line: int
    data: NDArray[Any]
    written: NDArray[np.bool_] | None

    @property
    def dtype(self) -> str:
        """The MLIR element type."""
        return _dtype(self.type)

    @property
    def numbers(self) -> np.ma.MaskedArray[Any, Any]:
        """The elements as numbers: bf16 widened to float32, and what nothing has written masked."""
        data = numbers_of(self.data, self.dtype)
        return np.ma.masked_array(data, mask=False if self.written is None else ~self.written)


@dataclass(frozen=True)
class Stop:
    """Where a run stopped.

    point: the one that was reached. message: the operation, and where every core, DMA and channel stands.
    buffers: those that were asked for.
    """

    point: StopPoint
    message: str
    buffers: tuple[StoppedBuffer, ...]


def stop_points(given: object) -> tuple[StopPoint, ...]:
    """Points from a line, a text `LINE[:HIT][@X,Y]`, a StopPoint, or several of these.

    Raises OptionError.
    """
    if isinstance(given, StopPoint):
        return (given,)
    if isinstance(given, int | str):
        return (StopPoint.of(str(given)),)
    if isinstance(given, Sequence):
        return tuple(point for one in given for point in stop_points(one))
    raise OptionError(f"{given!r} is no place to stop: give a line, or 'LINE:HIT@X,Y'")


class StopCall:
    """The stops of one call: the C structure that it is given, and what was seen at one."""

    def __init__(self, points: Sequence[StopPoint], show: Sequence[str]) -> None:
        self._points = points
        self._patterns = [_BufferPattern.of(text) for text in show]
        self._buffers: tuple[StoppedBuffer, ...] = ()
        self._error: BaseException | None = None
        structures = [_StopPoint(p.line, p.tile is not None, *(p.tile or (0, 0)), p.hit, 0) for p in points]
        self._array = (_StopPoint * len(points))(*structures)
        self.structure = _Stops(self._array, len(points), -1, _LOOK(self._look))

    def stop(self, message: str) -> Stop:
        """What was seen, once a point was reached. Raises OptionError for a buffer that was not there."""
        if self._error is not None:
            raise self._error
        return Stop(self._points[self.structure.reached], message, self._buffers)

    def hits(self) -> str:
        """How often each point came up: `line 24 was reached 16 times, and 20 would stop it`."""
        pairs = zip(self._points, self._array, strict=True)
        return "; ".join(
            f"line {point.line} was reached {found.count} times{_on_tile(point)}, "
            f"and {point.hit} would stop it"
            for point, found in pairs
        )

    def _look(self, views: Any, count: int) -> None:
        try:
            self._buffers = tuple(
                _matching_buffers([views[number] for number in reversed(range(count))], self._patterns)
            )
        except BaseException as error:
            self._error = error


def _on_tile(point: StopPoint) -> str:
    return f" on ({point.tile[0]}, {point.tile[1]})" if point.tile else ""


_WANTED = re.compile(r"(?P<name>[^\[\]]+?)(?:@(?P<x>\d+)(?:,(?P<y>\d+))?)?(?P<slice>\[[-\d:, ]*\])?")


@dataclass(frozen=True)
class _BufferPattern:
    """A `--show`: `NAME`, `NAME@X,Y` or `NAME[0:4, :]`; a number names the buffers allocated at that line."""

    text: str
    name: str
    tile: tuple[int, int] | None
    index: tuple[slice | int, ...]

    @classmethod
    def of(cls, text: str) -> _BufferPattern:
        found = _WANTED.fullmatch(text)
        if found is None:
            raise OptionError(
                f"'{text}' names no buffer: write NAME, NAME@X,Y for that of tile (X, Y), NAME[0:4, :] for a "
                f"part, a line for what is allocated there, or {ALL}"
            )
        tile = (int(found["x"]), int(found["y"] or 0)) if found["x"] else None
        try:
            index = tuple(
                _one_index(part) for part in (found["slice"] or "[]")[1:-1].split(",") if part.strip()
            )
        except ValueError as error:
            raise OptionError(
                f"'{text}' has no index or slice in its brackets: write NAME[0:4, :]"
            ) from error
        return cls(text, found["name"].strip().lstrip("%@"), tile, index)

    def names(self, view: _StoppedBuffer) -> bool:
        """Whether it names a buffer."""
        if self.name == ALL:
            return True
        if self.tile is not None and (not view.place or self.tile != (view.x, view.y)):
            return False
        if self.name.isdecimal() and self.text[0] not in "%@":
            return int(self.name) == int(view.line)
        return self.name == _text(view.name).lstrip("%@")


def _one_index(text: str) -> slice | int:
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    if len(parts) > 3:
        raise ValueError(text)
    if len(parts) > 1:
        return slice(*parts)
    if parts[0] is None:
        raise ValueError(text)
    return parts[0]


def _matching_buffers(views: Sequence[Any], patterns: Sequence[_BufferPattern]) -> list[StoppedBuffer]:
    """The buffers that were asked for, in order; one of the stopped tile hides those of others."""
    ordered = sorted(views, key=lambda view: (view.level, _text(view.place), view.line))
    buffers: list[StoppedBuffer] = []
    for pattern in patterns:
        found = [view for view in ordered if pattern.names(view)]
        if not found:
            raise OptionError(
                f"no buffer '{pattern.text}' is there where the run stopped: {_listed(ordered)}"
            )
        own = [view for view in found if view.is_here]
        if own and pattern.tile is None and pattern.name != ALL:
            found = own
        buffers += [_buffer(view, pattern) for view in found]
    return buffers


def _listed(views: Sequence[Any], most: int = 20) -> str:
    names = dict.fromkeys(_text(view.name) or f"line {view.line}" for view in views)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (
        f"there are {', '.join(list(names)[:most])}{more}; --show {ALL} lists them"
        if names
        else "there is none"
    )


def _buffer(view: Any, pattern: _BufferPattern) -> StoppedBuffer:
    sizes = tuple(view.sizes[: view.rank])
    of_one = math.prod(sizes)
    shape = sizes if of_one == view.count else (view.count // max(of_one, 1), *sizes)
    type_ = _text(view.type)
    dtype = NUMPY_NAMES.get(_dtype(type_), f"uint{8 * view.element}")
    data = np.frombuffer(ctypes.string_at(view.data, view.count * view.element), dtype).reshape(shape)
    written = None
    if view.written:
        written = np.frombuffer(ctypes.string_at(view.written, view.count), np.bool_).reshape(shape)
    if pattern.index:
        try:
            data, written = data[pattern.index], None if written is None else written[pattern.index]
        except IndexError as error:
            raise OptionError(
                f"'{pattern.text}' is outside of the buffer, which has shape {shape}"
            ) from error
    how = _text(view.how)
    place = "" if how != "allocated" else _text(view.place).removeprefix(" in ")
    return StoppedBuffer(
        _text(view.name), type_, f"L{view.level}", place, how, view.line, np.asarray(data),
        None if written is None else np.asarray(written),
    )  # fmt: skip


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


_ELEMENT = re.compile(r"memref<(?:(?:\d+|\?)x)*([A-Za-z]\w*)")


def _dtype(type_: str) -> str:
    """The element type of a memref type."""
    found = _ELEMENT.match(type_)
    return found[1] if found else type_
