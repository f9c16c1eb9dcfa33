"""Writes routed designs of the AIE level in few words, for the tests of who holds what in the switches.

A tile is its column and row, such as "02". A buffer NAME has the locks NAME_p (room) and NAME_c (full).
Routes are lines such as `02: S1|31,0>1.0 D0=1.0 D0>S0` of a switch, `x00: D0>N3` of a shim's multiplexer: a
rule (port, mask, id, arbiter and msel), a master port with what it listens to (`h` keeps headers), a
connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 128
"""Words of a block."""
_PORTS = {"S": "South", "N": "North", "E": "East", "W": "West", "D": "DMA", "T": "TileControl"}


def _port(text: str) -> str:
    return f"{_PORTS[text[0]]} : {text[1:]}"


@dataclass
class Routed:
    """A design: `in` goes to the array and `out` comes back, by the shim channels that `host` names."""

    name: str
    parts: list[str] = field(default_factory=list)
    programs: dict[str, list[str]] = field(default_factory=dict)
    locks: dict[str, int] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)

    def buffer(
        self, name: str, tile: str, blocks: int = 1, more: int = 0, credits: int | None = None, full: int = 0
    ) -> Routed:
        """A buffer of as many blocks and `more` words, with its locks. credits: of room, else blocks; full:
        how often it can be sent at once."""
        self.words[name] = BLOCK * blocks + more
        self.parts.append(
            f'%{name} = aie.buffer(%t{tile}) {{sym_name = "{name}"}} : memref<{self.words[name]}xi32>'
        )
        for suffix, init in (("p", blocks if credits is None else credits), ("c", full)):
            self.lock(f"{name}_{suffix}", tile, init)
        return self

    def lock(self, name: str, tile: str, init: int) -> None:
        """A lock, of the next number of its tile."""
        number = self.locks[tile] = self.locks.get(tile, -1) + 1
        self.parts.append(
            f'%{name} = aie.lock(%t{tile}, {number}) {{init = {init} : i32, sym_name = "{name}"}}'
        )

    def channel(
        self,
        tile: str,
        channel: str,
        buffers: Sequence[str],
        blocks: int = 1,
        packet: int | None = None,
        loops: bool = True,
    ) -> Routed:
        """`S0` fills the buffers, `M0` sends them, a descriptor for each block; for ever, or once."""
        words = f"memref<{self.words[buffers[0]]}xi32>"
        programs, sends = self.programs.setdefault(tile, []), channel[0] == "M"
        number, bds = len(programs), [(name, i) for name in buffers for i in range(blocks)]
        text = [f"aie.dma_start({'MM2S' if sends else 'S2MM'}, {channel[1:]}, ^c{number}b0, ^NEXT)"]
        attribute = (
            "" if packet is None else f" {{packet = #aie.packet_info<pkt_type = 0, pkt_id = {packet}>}}"
        )
        for at, (name, i) in enumerate(bds):
            length, acquire, release = self.words[name] // blocks, *(("c", "p") if sends else ("p", "c"))
            following = f"^c{number}b{at + 1}" if at + 1 < len(bds) else f"^c{number}b0" if loops else "^end"
            text += [
                f"^c{number}b{at}:",
                f"aie.use_lock(%{name}_{acquire}, AcquireGreaterEqual, %one)",
                f"aie.dma_bd(%{name} : {words} offset = {i * length} len = {length}){attribute}",
                f"aie.use_lock(%{name}_{release}, Release, %one)",
                f"aie.next_bd {following}",
            ]
        programs.append("\n".join(text))
        return self

    def ring(self, name: str, tile: str, number: int, packet: int, blocks: int = 4, more: int = 0) -> Routed:
        """A buffer of a memtile that S2MM fills and MM2S of the same number sends in packets."""
        once = blocks == 1
        self.buffer(name, tile, blocks, more)
        self.channel(tile, f"S{number}", [name], blocks, loops=not once)
        return self.channel(tile, f"M{number}", [name], blocks, packet, loops=not once)

    def core(
        self, tile: str, rounds: int, inputs: Sequence[str], output: str, spins: int = 0, early: bool = False
    ) -> Routed:
        """A core that sums a block of each input. It goes round a lock `spins` times before it gives back the
        output; with `early`, after it has given back the inputs."""
        spin = f"spin{tile}"
        self.lock(spin, tile, 1)
        take = [f"aie.use_lock(%{name}_c, AcquireGreaterEqual, %one)" for name in inputs]
        back = [f"aie.use_lock(%{name}_p, Release, %one)" for name in inputs]
        turn = f"""scf.for %s = %c0 to %spins step %c1 {{
          aie.use_lock(%{spin}, AcquireGreaterEqual, %one)
          aie.use_lock(%{spin}, Release, %one)
        }}"""
        sums, last = [], "%zero"
        for n, name in enumerate(inputs):
            sums += [
                f"%x{n} = memref.load %{name}[%i] : memref<{self.words[name]}xi32>",
                f"%s{n} = arith.addi {last}, %x{n} : i32",
            ]
            last = f"%s{n}"
        self.parts.append(f"""aie.core(%t{tile}) {{
          %one = arith.constant 1 : i32
          %zero = arith.constant 0 : i32
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %rounds = arith.constant {rounds} : index
          %block = arith.constant {BLOCK} : index
          %spins = arith.constant {spins} : index
          scf.for %r = %c0 to %rounds step %c1 {{
            {_lines(take)}
            aie.use_lock(%{output}_p, AcquireGreaterEqual, %one)
            scf.for %i = %c0 to %block step %c1 {{
              {_lines(sums)}
              memref.store {last}, %{output}[%i] : memref<{self.words[output]}xi32>
            }}
            {_lines([*back, turn] if early else [turn, *back])}
            aie.use_lock(%{output}_c, Release, %one)
          }}
          aie.end
        }}""")
        return self

    def routes(self, text: str) -> Routed:
        """The switches of the design."""
        for line in text.strip().splitlines():
            tile, words = line.strip().split(":", 1)
            kind = "shim_mux" if tile.startswith("x") else "switchbox"
            self.parts.append(f"aie.{kind}(%t{tile[-2:]}) {{\n{_lines(_switch(words.split()))}\n}}")
        return self

    def host(self, channels: Mapping[str, str], sequence: str, out_words: int) -> str:
        """The text of the device. channels: `{"a": "00M0"}`. sequence: `a+0,128#3` moves 128 words
        from word 0 on, with packet id 3; `w:a` waits."""
        for tile, programs in self.programs.items():
            kind = "memtile_dma" if tile[1] == "1" else "mem"
            body = [
                text.replace("^NEXT", f"^p{n + 1}" if n + 1 < len(programs) else "^end")
                for n, text in enumerate(programs)
            ]
            joined = "".join(f"^p{n}:\n{text}\n" if n else f"{text}\n" for n, text in enumerate(body))
            self.parts.append(
                f"aie.{kind}(%t{tile}) {{\n%one = arith.constant 1 : i32\n{joined}^end:\naie.end\n}}"
            )
        for name, at in channels.items():
            self.parts.append(
                f"aie.shim_dma_allocation @{name}(%t{at[:2]}, {'MM2S' if at[2] == 'M' else 'S2MM'}, {at[3:]})"
            )
        moves = [_move(word, number, out_words) for number, word in enumerate(sequence.split())]
        tiles = sorted(set(re.findall(r"%t(\d\d)", "\n".join(self.parts))))
        declared = [f"%t{tile} = aie.tile({tile[0]}, {tile[1]})" for tile in tiles]
        parameters = f"%in: memref<{IN_WORDS}xi32>, %out: memref<{out_words}xi32>"
        entry = f"aie.runtime_sequence @{self.name}({parameters}) {{\n{_lines(moves)}\n}}"
        return f"aie.device(npu2) @{self.name}_device {{\n{_lines([*declared, *self.parts, entry])}\n}}"


IN_WORDS = 16 * BLOCK
"""Words of the first argument of each design."""


def _lines(parts: Sequence[str]) -> str:
    return "\n".join(parts)


def _groups(pattern: str, word: str) -> tuple[Any, ...]:
    found = re.fullmatch(pattern, word)
    assert found, word
    return found.groups()


def _move(word: str, number: int, out_words: int) -> str:
    if word.startswith("w:"):
        return f"aiex.npu.dma_wait {{symbol = @{word[2:]}}}"
    name, start, length, packet = _groups(r"(\w+)\+(\d+),(\d+)(?:#(\d+))?", word)
    argument, words = ("out", out_words) if name.startswith("out") else ("in", IN_WORDS)
    with_packet = f", packet = <pkt_id = {packet}, pkt_type = 0>" if packet else ""
    return (
        f"aiex.npu.dma_memcpy_nd(%{argument}[0, 0, 0, {start}][1, 1, 1, {length}][0, 0, 0, 1]{with_packet}) "
        f"{{id = {number} : i64, issue_token = true, metadata = @{name}}} : memref<{words}xi32>"
    )


def _switch(words: Sequence[str]) -> list[str]:
    selects: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    connections: list[str] = []
    masters: list[str] = []

    def select(name: str) -> str:
        return selects.setdefault(name, f"%a{len(selects)}")

    for word in words:
        if "|" in word:
            port, mask, packet, name = _groups(r"(\w+)\|(\d+),(\d+)>(.*)", word)
            rules.setdefault(port, []).append(f"aie.rule({mask}, {packet}, {select(name)})")
        elif "=" in word:
            port, names = word.rstrip("h").split("=")
            keeps = " {keep_pkt_header = true}" if word.endswith("h") else ""
            listened = ", ".join(select(name) for name in names.split(","))
            masters.append(f"%m{len(masters)} = aie.masterset({_port(port)}, {listened}){keeps}")
        else:
            source, dest = word.split(">")
            connections.append(f"aie.connect<{_port(source)}, {_port(dest)}>")
    arbiters = [
        f"{value} = aie.amsel<{name.split('.')[0]}> ({name.split('.')[1]})" for name, value in selects.items()
    ]
    return [
        *connections,
        *arbiters,
        *masters,
        *(f"aie.packet_rules({_port(port)}) {{\n{_lines(own)}\n}}" for port, own in rules.items()),
    ]
