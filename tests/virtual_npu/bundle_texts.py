"""A channel of a bundle that a loop chooses, in a launch, a segment and a herd: y = x, two halves."""

from __future__ import annotations

NUMBERS = "\n".join(f"%c{n} = arith.constant {n} : index" for n in (0, 1, 2, 16))
L3, L2, L1 = "memref<32xf32>", "memref<32xf32, 1>", "memref<16xf32, 2>"
LOOP = "scf.for %i = %c0 to %c2 step %c1"
FORALL = "scf.parallel (%i) = (%c0) to (%c2) step (%c1)"
OTHER = "%j = arith.subi %c1, %i : index"
"""The other one of two: an index made from that of a loop."""


def loop(transfer: str, index: str, head: str = LOOP) -> str:
    """A transfer of half %j of a buffer, in a loop over the halves."""
    made = "" if index == "%i" else f"{OTHER}\n"
    return (
        f"{head} {{\n{made}%at = arith.muli {index}, %c16 : index\n{transfer.replace('INDEX', index)}\n"
        + ("scf.reduce\n}" if head == FORALL else "}")
    )


def bundle(
    launch: str = "", segment: str = "", herd: str = "", tiles: str = "%c2", declared: str = ""
) -> str:
    """AIR text with the bodies of its levels; a herd of one row."""
    return f"""
{declared}
func.func @bundle(%x: {L3}, %y: {L3}) {{
air.launch () in () args(%a=%x, %b=%y) : {L3}, {L3} {{
{NUMBERS}
{launch}
air.segment @s args(%e=%a, %f=%b) : {L3}, {L3} {{
{NUMBERS}
%m = memref.alloc() : {L2}
%n = memref.alloc() : {L2}
{segment}
air.herd @h tile (%tx, %ty) in (%sx={tiles}, %sy=%c1) {{
{NUMBERS}
{herd}
}}
memref.dealloc %m : {L2}
memref.dealloc %n : {L2}
}}
}}
return
}}
"""


def passing(index: str, out: str, around: str = "") -> str:
    """A tile that takes half %j of the bundle and gives it on, in a loop or as it stands."""
    body = f"""
%l = memref.alloc() : {L1}
air.channel.get @to[{index}] (%l[] [] []) : ({L1})
air.channel.put @from[{out}] (%l[] [] []) : ({L1})
memref.dealloc %l : {L1}"""
    return f"{around} {{\n{OTHER}\n{body}\n}}" if around else body


TWO = "air.channel @to [2]\nair.channel @from [2]"
PUT = f"air.channel.put @to[INDEX] (%a[%at] [%c16] [%c1]) : ({L3})"
GET = f"air.channel.get @from[INDEX] (%b[%at] [%c16] [%c1]) : ({L3})"


def of_launch(index: str = "%j", head: str = LOOP) -> str:
    """The launch sends halves to two tiles and takes them back."""
    halves = "\n".join(loop(transfer, index, head) for transfer in (PUT, GET))
    return bundle(halves, herd=passing("%tx", "%tx"), declared=TWO)


def of_segment() -> str:
    """The segment does so, through L2."""
    fill = f"air.dma_memcpy_nd (%m[] [] [], %e[] [] []) : ({L2}, {L3})"
    drain = f"air.dma_memcpy_nd (%f[] [] [], %n[] [] []) : ({L3}, {L2})"
    put = f"air.channel.put @to[INDEX] (%m[%at] [%c16] [%c1]) : ({L2})"
    get = f"air.channel.get @from[INDEX] (%n[%at] [%c16] [%c1]) : ({L2})"
    steps = [fill, loop(put, "%j"), loop(get, "%j"), drain]
    return bundle(segment="\n".join(steps), herd=passing("%tx", "%tx"), declared=TWO)


def of_herd(trips: str = "%c2") -> str:
    """One tile takes the halves from the two members, in a loop."""
    sends = [f"air.channel.put @to[%c{1 - n}] (%a[%c{16 * n}] [%c16] [%c1]) : ({L3})" for n in range(2)]
    takes = [f"air.channel.get @from[] (%b[%c{16 * n}] [%c16] [%c1]) : ({L3})" for n in range(2)]
    body = passing("%j", "", f"scf.for %i = %c0 to {trips} step %c1")
    declared = "air.channel @to [2]\nair.channel @from [1]"
    return bundle("\n".join(sends + takes), herd=body, tiles="%c1", declared=declared)
