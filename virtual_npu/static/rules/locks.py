"""Values of locks: how often a buffer is sent per fill, by attribute or by a loop that becomes one.

Nothing in the tools refuses a lock value that is too large: a memtile's lock with `init = 74`, acquired by
74, comes out of air-to-aie (e972f294), and mlir-aie (7e00b579) has no check of it. The register has 6 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from aerie.air_dialect.ops import ChannelPutOp
from aerie.air_dialect.refeeds import REFEED_COUNT, Refeed, refeeds
from aerie.air_dialect.types import attribute_text
from aerie.virtual_npu.static.device import REFEED_PASS, TARGET_MODEL, Device
from aerie.virtual_npu.static.report import Fault, Finding
from aerie.virtual_npu.static.scopes import Program, place_of
from aerie.virtual_npu.static.transfers import space_of


def refeed_counts(program: Program) -> Iterator[Finding]:
    """Buffers that are sent more often per fill than a lock counts, or whose loop aircc takes away."""
    for found in refeeds(program.module):
        if found.count > program.device.max_lock_value:
            message = beyond_the_lock(found, program.device)
            yield Fault("refeed", place_of(found.carrier), message, TARGET_MODEL, _at(found))
        if found.in_loop and found.put is not None and found.carrier is found.put:
            yield from _lost(found, found.put)


def beyond_the_lock(found: Refeed, device: Device) -> str:
    """What to say of a buffer that is sent more often per fill than a lock counts."""
    limit, wrapped = device.max_lock_value, found.count % (device.max_lock_value + 1)
    what = f"{REFEED_COUNT} = {found.count}"
    if found.in_loop:
        what = f"a loop that puts the same {found.count} times, which becomes {what}"
    return (
        f"{what}; a lock counts to {limit}, so {found.count} wraps to {wrapped} and the array waits for "
        f"ever; send the buffer at most {limit} times per fill"
    )


def _at(found: Refeed) -> Operation:
    return found.carrier if found.put is None else found.put


def _lost(found: Refeed, put: ChannelPutOp) -> Iterator[Fault]:
    """Loops over puts of L3, or of L2 that is allocated elsewhere: no lock would count their puts."""
    space = space_of(put.memref.type)
    if space == 0:
        message = (
            f"a loop that puts the same part of L3 {found.count} times; aircc's first pass makes one put of "
            "it, and the shim sends that once, so who gets the others waits for ever; write one put whose "
            f"outermost dimension has size {found.count} and stride 0"
        )
        yield Fault("refeed", place_of(put), message, REFEED_PASS, put, certain=False)
    elif space == 1:
        message = (
            f"a loop that puts the same part of {attribute_text(put.memref.type)} {found.count} times, whose "
            "memref.alloc cannot be seen; air-annotate-refeed refuses it, so put the buffer itself"
        )
        yield Fault("refeed", place_of(put), message, REFEED_PASS, put)
