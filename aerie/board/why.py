"""`aerie why`: what the status registers of an NPU that hangs say, in the words of the virtual NPU.

Addresses and bits: aie-rt 1ad203de0, xaiemlgbl_params.h. What tells faults apart is our reading of them; no
board was at hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aerie.common.errors import UserError

SHIM, MEMTILE = 0, 1
CORE_STATUS = 0x32004
_SIDES = ("the tile south of it", "the tile west of it", "the tile north of it", "its own tile")
_CORE_WAITS = {
    10: "waits for a word at its port Core",
    12: "waits for room in its port Core",
    14: "waits for the cascade, which is empty",
    15: "waits for the cascade, which is full",
    16: "is halted by a debugger",
    19: "is halted by an error",
    21: "waits for the processor bus",
}
_ERRORS = {
    8: "a lock of a tile that the partition lacks",
    9: "memory of a tile that the partition lacks",
    10: "a descriptor that is not there",
    11: "a descriptor that is not valid",
    12: "more words than its descriptor has: a packet did not end with it",
    13: "too many descriptors in a task",
    16: "an address that nothing answers to",
    17: "a memory that refused the access",
}
_OVERFLOW = 18


@dataclass(frozen=True)
class Register:
    """The value of a register, by its tile and its address in that."""

    column: int
    row: int
    address: int
    value: int


@dataclass(frozen=True)
class Status:
    """What one register says: of whom, and what. kind: core, S2MM or MM2S; lock: with the value of one."""

    kind: str
    place: tuple[int, int]
    name: str
    waits: str
    text: str


_NAMED = re.compile(
    r"(?:tile|core) \((\d+), (\d+)\).*?(0x[0-9a-f]+)\s*[=:]\s*(0x[0-9a-f]+|\d+)", re.IGNORECASE
)
_NUMBERS = re.compile(r"(0x[0-9a-f]+|\d+)", re.IGNORECASE)


def read_registers(text: str) -> Iterator[Register]:
    """Registers from lines such as `tile (0, 2) NAME 0x1df00 = 0x80013`, or `0 2 0x1df00 0x80013` (column,
    row, address, value), or `0x21df00 0x80013` (address in the array, value). Raises UserError at others."""
    for number, line in enumerate(text.splitlines(), 1):
        named = _NAMED.search(line)
        words = [int(word, 0) for word in (named.groups() if named else _NUMBERS.findall(line))]
        if named is None and len(words) == 2:
            words = [words[0] >> 25, words[0] >> 20 & 0x1F, words[0] & 0xFFFFF, words[1]]
        if not line.strip() or line.startswith(("#", "registers of")):
            continue
        if len(words) != 4:
            raise UserError(
                f"line {number}: '{line.strip()[:60]}' is no register: write column, row, address and value, "
                "as in '0 2 0x1df00 0x80013', or an address of the array and a value"
            )
        yield Register(*words)


def _channels(row: int) -> dict[str, tuple[int, int]]:
    """Of each direction: the address of its first channel's status, and how many channels there are."""
    if row == SHIM:
        return {"S2MM": (0x1D220, 2), "MM2S": (0x1D228, 2)}
    if row == MEMTILE:
        return {"S2MM": (0xA0660, 6), "MM2S": (0xA0680, 6)}
    return {"S2MM": (0x1DF00, 2), "MM2S": (0x1DF10, 2)}


def _locks(row: int) -> tuple[int, int]:
    return {SHIM: (0x14000, 16), MEMTILE: (0xC0000, 64)}.get(row, (0x1F000, 16))


def tile_name(column: int, row: int) -> str:
    """A tile as the virtual NPU calls it."""
    kind = "shim" if row == SHIM else "memtile" if row == MEMTILE else "core tile"
    return f"{kind} ({column}, {row})"


def status_of(register: Register) -> Status | None:
    """What a register says; None for one that is no status and no lock."""
    column, row, address = register.column, register.row, register.address
    if address == CORE_STATUS and row > MEMTILE:
        return _core(register)
    for direction, (first, count) in _channels(row).items():
        if first <= address < first + 4 * count:
            return _channel(register, direction, (address - first) // 4)
    first, count = _locks(row)
    if first <= address < first + 16 * count:
        name = f"lock {(address - first) // 16} of tile ({column}, {row})"
        return Status("lock", (column, row), name, "", f"{name} is {register.value & 0x3F}")
    return None


def _core(register: Register) -> Status:
    bits = {bit for bit in range(32) if register.value >> bit & 1}
    name = f"core ({register.column}, {register.row})"
    said = [f"waits for a lock of {side}" for bit, side in enumerate(_SIDES, 6) if bit in bits]
    said += [f"waits for memory of {side}" for bit, side in enumerate(_SIDES, 2) if bit in bits]
    said += [text for bit, text in _CORE_WAITS.items() if bit in bits]
    if 20 in bits:
        said = ["has ended"]
    elif 1 in bits or 0 not in bits:
        said = ["is held in reset" if 1 in bits else "is not enabled"]
    waits = "lock" if any("lock" in one for one in said) else "goes on" if not said else ""
    return Status(
        "core", (register.column, register.row), name, waits, f"{name} {', '.join(said or ['goes on'])}"
    )


def _channel(register: Register, direction: str, number: int) -> Status:
    value, place = register.value, (register.column, register.row)
    name = f"{direction} {number} of {tile_name(*place)}"
    waits, text = "", "goes on" if value & 3 or value >> 19 & 1 else "has no task"
    if value >> 2 & 1:
        waits, text = "lock", "waits for a lock"
    elif value >> 4 & 1:
        waits, text = "stream", "waits for words" if direction == "S2MM" else "waits for room in the stream"
    elif value >> 5 & 1:
        waits, text = "token", "waits for its token to go out"
    elif text == "has no task":
        waits = "task"
    parts = [f"{name} {text}"]
    if waits != "task":
        parts.append(f"in descriptor {value >> 24 & (0x3F if place[1] == MEMTILE else 0xF)}")
    if queued := value >> 20 & 7:
        parts.append(f"with {queued} in its queue")
    errors = [what for bit, what in _ERRORS.items() if value >> bit & 1]
    if errors:
        parts.append(f"after an error: {'; '.join(errors)}")
    if value >> _OVERFLOW & 1:
        waits = "overflow"
        parts.append("and its queue was full when a task came, which is lost")
    return Status(direction, place, name, waits, ", ".join(parts))


# ---- what it may be ----

_ADVICE = {
    "arbiter": "words wait at a sender while a receiver waits for words: a packet may hold an arbiter or a "
    "link that another one needs. `aerie vnpu run` on the design names it",
    "host": "cores wait for locks, and a shim has no task: the host has not started one, or waits for a "
    "token of another",
    "credits": "a channel waits for a lock of a core that does not wait for one: the core did not give its "
    "buffer back",
    "overflow": "a queue takes four tasks beside the one that runs: wait for a token before the next one",
}


def advice(found: Iterable[Status]) -> list[str]:
    """What the registers together may mean."""
    every = list(found)

    def any_of(kind: str, waits: str) -> bool:
        return any(one.kind == kind and one.waits == waits for one in every)

    cores = {one.place: one.waits for one in every if one.kind == "core"}
    own = [
        one for one in every if one.kind in ("S2MM", "MM2S") and one.place in cores and one.waits == "lock"
    ]
    said = []
    if any_of("MM2S", "stream") and any_of("S2MM", "stream"):
        said.append("arbiter")
    if any_of("core", "lock") and any(one.waits == "task" and one.place[1] == SHIM for one in every):
        said.append("host")
    if any(cores[one.place] != "lock" for one in own):
        said.append("credits")
    if any(one.waits == "overflow" for one in every):
        said.append("overflow")
    return [_ADVICE[name] for name in said]


def explain(text: str) -> list[str]:
    """The lines that `aerie why` prints for a dump of registers. Raises UserError."""
    registers = list(read_registers(text))
    found = [status for register in registers if (status := status_of(register)) is not None]
    if not found:
        raise UserError(
            f"none of the {len(registers)} registers is the status of a core or a channel, or a lock: read "
            "0x32004 of core tiles, and 0x1df00 to 0x1df14 (0x1d220 to 0x1d22c of shims)"
        )
    hints = [f"perhaps: {one}" for one in advice(found)]
    return [*(one.text for one in found), *hints]


def add_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="a dump of registers, one in a line; - for standard input"
    )


def why(arguments: argparse.Namespace) -> int:
    """Say what the status registers of an NPU that hangs mean."""
    if arguments.file == "-":
        text = sys.stdin.read()
    else:
        try:
            text = Path(arguments.file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{arguments.file} cannot be read: {error.strerror}") from error
    print("\n".join(explain(text)))
    return 0
