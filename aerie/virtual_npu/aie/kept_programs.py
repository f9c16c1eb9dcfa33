"""Cores that keep their program when another configuration is loaded.

mlir-air resets the array between two points of a launch by loading a copy of the device whose cores are
empty: there is no ELF for them, so a core begins again with the program that it has (mlir-air
AIRRtToNpuPass.cpp, createLightweightResetDevice). An empty core that a sequence loads later on is that of the
device before. The firmware passes over a load of what is loaded already; but aircc has aiecc put an empty
device before each of these (`--expand-load-pdis`), so that each load of such a copy resets the array.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Operation

from aerie.air_dialect.aie import array, sequence
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie.design import Device, place_of
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported


def keep_programs(devices: Sequence[Device]) -> None:
    """Give empty cores of devices that `aiex.npu.load_pdi` loads the programs of the device before.

    Raises UnsupportedOpError where the two devices have other buffers or locks.
    """
    by_name = {device.name: device for device in devices}
    for device in devices:
        for op in device.op.body.block.ops:
            if isinstance(op, sequence.RuntimeSequenceOp):
                _follow(op, device, by_name)


def _follow(runtime_sequence: Operation, device: Device, by_name: dict[str, Device]) -> None:
    """Follow what a sequence loads, in order. device: what is loaded at its begin."""
    for op in runtime_sequence.walk():
        reference = attribute(op, "device_ref") if op.name == "aiex.npu.load_pdi" else None
        if not isinstance(reference, SymbolRefAttr):
            continue
        loaded = by_name.get(reference.root_reference.data)
        if loaded is not None and loaded is not device:
            _keep(op, device, loaded)
            device = loaded


def _keep(op: Operation, before: Device, loaded: Device) -> None:
    for number, core in enumerate(loaded.cores):
        own = before.core_at(place_of(core.tile)) if _is_empty(core) else None
        if own is None or _is_empty(before.cores[own]):
            continue
        if why := _first_difference(before, loaded):
            raise unsupported(op, f"cores keep the programs of {symbol_name(before.name)}, {why}")
        loaded.is_reset = True
        loaded.buffer_of |= before.buffer_of
        loaded.lock_of |= before.lock_of
        loaded.cores[number] = before.cores[own].clone()


def _first_difference(before: Device, loaded: Device) -> str:
    """How buffers or locks differ; "" if a program of the one runs in the other."""
    for one, other in zip(before.buffers, loaded.buffers, strict=False):
        if (one.place, one.address) != (other.place, other.address):
            return (
                f"which have {one.name} of tile {one.place} at address {one.address}, and DMAs then "
                f"write to {other.address}: results would be wrong; cores of both need one stack size, and "
                "such a copy has 1024 (--stack-size=1024)"
            )
    same = len(before.buffers) == len(loaded.buffers) and _locks(before) == _locks(loaded)
    return "" if same else f"and {symbol_name(loaded.name)} has other buffers or locks"


def _is_empty(core: array.CoreOp) -> bool:
    inner = (op.name for op in core.walk() if op is not core)
    return attribute(core, "elf_file") is None and all(name == "aie.end" for name in inner)


def _locks(device: Device) -> list[tuple[object, int]]:
    return [(lock.place, lock.number) for lock in device.locks]
