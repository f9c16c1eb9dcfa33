"""Where registers lie in a tile, and what those of a buffer descriptor say.

The layouts are those of AIE-ML (aie-rt, xaiemlgbl_params.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aerie.virtual_npu.aie.design import MEMTILE, SHIM, Place

WORDS = 8
"""Registers from one descriptor to the next; a core's tile uses six of them."""


@dataclass
class RegisterBd:
    """A descriptor as its registers say it: counts in words of 32 bits."""

    length: int = 0
    dimensions: list[tuple[int, int]] = field(default_factory=list)
    """Sizes and strides, outermost first."""
    padding: list[tuple[int, int]] = field(default_factory=list)
    """Zeros before and after, in the order of the dimensions; empty: none."""
    iteration: tuple[int, int, int] | None = None
    packet: tuple[int, int] | None = None
    acquire: tuple[int, int] | None = None
    """Lock and value of it; a negative value: at least as many."""
    release: tuple[int, int] | None = None
    next: int | None = None
    address: int = 0
    """Bytes, in the memory of its tile."""


@dataclass(frozen=True)
class Layout:
    """The registers of a kind of tile."""

    descriptors: int
    most_descriptors: int
    locks: int
    most_locks: int
    receive_queue: int
    send_queue: int
    channels: int
    memory: int
    """Bytes of data memory, which begins at 0."""
    decode: Callable[[Sequence[int]], RegisterBd]

    def queue(self, offset: int) -> tuple[bool, int] | None:
        """The direction (whether it sends) and channel of a task queue's register."""
        for sends, first in ((False, self.receive_queue), (True, self.send_queue)):
            if first <= offset < first + 8 * self.channels and (offset - first) % 8 == 0:
                return sends, (offset - first) // 8
        return None

    def control(self, offset: int) -> tuple[bool, int] | None:
        """The direction and channel of a channel's control register."""
        return self.queue(offset + 4)

    def descriptor(self, offset: int) -> tuple[int, int] | None:
        """The descriptor that a register belongs to, and which of its words it is."""
        number, word = divmod((offset - self.descriptors) // 4, WORDS)
        return (number, word) if 0 <= number < self.most_descriptors else None


CORE_CONTROL = 0x32000
"""Bit 0 lets a core run, bit 1 holds it in reset."""
CONTROLLER = 0xFF00
"""The bits of a channel's control register that say where its tokens go."""
RESET = 2
"""The bit of a channel's or a core's control register that resets it."""
IGNORED = (
    (0x34000, 0x35000),
    (0x14500, 0x14600),
    (0x94000, 0x96000),
    (0x140A0, 0x14300),
    (0x31500, 0x31600),
    (0x32038, 0x3203C),
    (0x3FF00, 0x3FF40),
    (0xB0F00, 0xB0F40),
)
"""Registers of events, traces, performance counters and of a core's way to its registers, which change no
data."""


def _bits(word: int, high: int, low: int) -> int:
    return word >> low & (1 << high - low + 1) - 1


def dimensions(length: int, wraps: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides, outermost first: a wrap of 0 does not end, and steps are one less."""
    inner: list[tuple[int, int]] = []
    remaining = length
    for wrap, step in zip([*wraps, 0], steps, strict=True):
        if wrap == 0 or wrap >= remaining:
            return [(remaining, step + 1), *inner]
        inner.insert(0, (wrap, step + 1))
        remaining = -(-remaining // wrap)
    return inner


def _iteration(size: int, step: int, current: int) -> tuple[int, int, int] | None:
    return (size + 1, step + 1, current) if size or step or current else None


def signed(value: int, bits: int = 7) -> int:
    """The two's complement of so many bits: how much an acquire takes, negative for at least."""
    return value - (1 << bits) if value >> bits - 1 else value


def _locks(bd: RegisterBd, acquire: tuple[int, int, int], release: tuple[int, int]) -> None:
    """acquire: whether there is one, lock, value; release: lock, value."""
    if acquire[0]:
        bd.acquire = acquire[1], signed(acquire[2])
    if release[1]:
        bd.release = release[0], signed(release[1])


def _decode_shim(words: Sequence[int]) -> RegisterBd:
    wraps = _bits(words[3], 29, 20), _bits(words[4], 29, 20)
    bd = RegisterBd(words[0], dimensions(words[0], wraps, [_bits(word, 19, 0) for word in words[3:6]]))
    if _bits(words[2], 30, 30):
        bd.packet = _bits(words[2], 23, 19), _bits(words[2], 18, 16)
    bd.iteration = _iteration(_bits(words[6], 25, 20), _bits(words[6], 19, 0), _bits(words[6], 31, 26))
    bd.next = _bits(words[7], 30, 27) if _bits(words[7], 26, 26) else None
    _locks(bd, _fields(words[7], (12, 12), (3, 0), (11, 5)), _fields(words[7], (16, 13), (24, 18)))  # type: ignore[arg-type]
    return bd


def _fields(word: int, *ranges: tuple[int, int]) -> tuple[int, ...]:
    return tuple(_bits(word, high, low) for high, low in ranges)


def _decode_core(words: Sequence[int]) -> RegisterBd:
    length = _bits(words[0], 13, 0)
    steps = _bits(words[2], 12, 0), _bits(words[2], 25, 13), _bits(words[3], 12, 0)
    bd = RegisterBd(length, dimensions(length, (_bits(words[3], 20, 13), _bits(words[3], 28, 21)), steps))
    bd.address = 4 * _bits(words[0], 27, 14)
    if _bits(words[1], 30, 30):
        bd.packet = _bits(words[1], 23, 19), _bits(words[1], 18, 16)
    bd.iteration = _iteration(*_fields(words[4], (18, 13), (12, 0), (24, 19)))
    bd.next = _bits(words[5], 30, 27) if _bits(words[5], 26, 26) else None
    _locks(bd, _fields(words[5], (12, 12), (3, 0), (11, 5)), _fields(words[5], (16, 13), (24, 18)))  # type: ignore[arg-type]
    return bd


_OWN_LOCKS = 64
"""A memtile's own locks are 64 to 127 in its descriptors, its own memory begins at 0x80000."""
_OWN_MEMORY = 0x80000


def _decode_memtile(words: Sequence[int]) -> RegisterBd:
    length = _bits(words[0], 16, 0)
    steps = [_bits(word, 16, 0) for word in words[2:6]]
    bd = RegisterBd(length, dimensions(length, [_bits(word, 26, 17) for word in words[2:5]], steps))
    before = _bits(words[1], 31, 26), _bits(words[3], 31, 27), _bits(words[4], 30, 27)
    after = _fields(words[5], (22, 17), (27, 23), (31, 28))
    if any((*before, *after)):
        bd.padding = [(0, 0), *zip(before[::-1], after[::-1], strict=True)][-len(bd.dimensions) :]
    # mlir-aie's own designs write addresses below that of the tile's memory, and mean it.
    bd.address = 4 * _bits(words[1], 18, 0) % _OWN_MEMORY
    if _bits(words[0], 31, 31):
        bd.packet = _bits(words[0], 27, 23), _bits(words[0], 30, 28)
    bd.iteration = _iteration(*_fields(words[6], (22, 17), (16, 0), (28, 23)))
    bd.next = _bits(words[1], 25, 20) if _bits(words[1], 19, 19) else None
    _locks(bd, _fields(words[7], (15, 15), (7, 0), (14, 8)), _fields(words[7], (23, 16), (30, 24)))  # type: ignore[arg-type]
    return bd


_SHIM = Layout(0x1D000, 16, 0x14000, 16, 0x1D204, 0x1D214, 2, 0, _decode_shim)
_MEMTILE = Layout(0xA0000, 48, 0xC0000, 64, 0xA0604, 0xA0634, 6, 0x80000, _decode_memtile)
_CORE = Layout(0x1D000, 16, 0x1F000, 16, 0x1DE04, 0x1DE14, 2, 0x10000, _decode_core)


def layout_of(place: Place) -> Layout:
    """The registers of a tile."""
    return {SHIM: _SHIM, MEMTILE: _MEMTILE}.get(place[1], _CORE)


def own_lock(place: Place, number: int) -> int:
    """The number of a lock in its own tile."""
    return number % _OWN_LOCKS if place[1] == MEMTILE else number
