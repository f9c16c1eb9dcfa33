"""Follows a program's buffers from launch to launch, and refuses uses that must be mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerie.kernel_builder.arguments import WRITTEN_ROLES, Argument, ArgumentTable, Role
from aerie.multi_launch_builder.buffer_access import BufferAccess
from aerie.multi_launch_builder.submodule import DataflowError
from aerie.multi_launch_builder.wiring import Wire


@dataclass
class BufferFlow:
    """Which program arguments the launches have read and written. Launches run in the order they
    are added.
    """

    arguments: ArgumentTable
    _wired: set[str] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)

    def add_launch(self, label: str, wires: list[Wire], accesses: Mapping[str, BufferAccess]) -> None:
        """Add one launch. Raises DataflowError, naming both ends, if it writes an argument that the host
        fills, reads one that no launch has written, or writes one that it receives twice.
        """
        _check_aliases(label, wires, accesses)
        for wire in wires:
            access = accesses[wire.kernel_argument]
            self._check_write(label, wire, access)
            self._check_read(label, wire, access)
        for wire in wires:
            access = accesses[wire.kernel_argument]
            name = wire.argument.name
            self._wired.add(name)
            self._read |= {name} if access.may_read else set()
            self._written |= {name} if access.may_write else set()

    def _check_write(self, label: str, wire: Wire, access: BufferAccess) -> None:
        argument = wire.argument
        if access.must_write and argument.role not in WRITTEN_ROLES:
            raise DataflowError(
                f"launch '{label}' writes its argument '{wire.kernel_argument}', which is program argument "
                f"{argument} of role '{argument.role.value}': the next run would start from the overwritten "
                "buffer; wire it to an intermediate or an output"
            )

    def _check_read(self, label: str, wire: Wire, access: BufferAccess) -> None:
        argument = wire.argument
        unwritten = argument.role in WRITTEN_ROLES and argument.name not in self._written
        if unwritten and access.reads_before_write:
            raise DataflowError(
                f"launch '{label}' reads its argument '{wire.kernel_argument}', which is program argument "
                f"{argument} of role '{argument.role.value}', before any launch has written it: it would "
                "read whatever the buffer held; add the launch that writes it first, or make it an input"
            )

    def finish(self) -> None:
        """Raise DataflowError if no launch uses an argument as its role says."""
        for argument in self.arguments:
            self._check_used(argument)

    def _check_used(self, argument: Argument) -> None:
        name = argument.name
        described = f"program argument {argument} of role '{argument.role.value}'"
        if name not in self._wired:
            raise DataflowError(
                f"{described} is never used: no launch is wired to it, and its {argument.nbytes} bytes would "
                "be allocated for nothing; wire it or take it out"
            )
        if argument.role in WRITTEN_ROLES and name not in self._written:
            raise DataflowError(
                f"{described} is never written: a reader would get the buffer's old content; "
                "wire it to an argument that a launch writes"
            )
        if argument.role is not Role.OUTPUT and name not in self._read:
            raise DataflowError(
                f"{described} is never read by any launch, so its {argument.nbytes} bytes are moved for "
                "nothing; take it out, or make it an output if the caller wants it"
            )


def _check_aliases(label: str, wires: list[Wire], accesses: Mapping[str, BufferAccess]) -> None:
    first: dict[str, Wire] = {}
    for wire in wires:
        earlier = first.setdefault(wire.argument.name, wire)
        if earlier is wire:
            continue
        written = [w.kernel_argument for w in (earlier, wire) if accesses[w.kernel_argument].may_write]
        if written:
            raise DataflowError(
                f"launch '{label}': its arguments '{earlier.kernel_argument}' and '{wire.kernel_argument}' "
                f"are both program argument {wire.argument}, and it writes '{written[0]}': the kernel was "
                "built for buffers that do not overlap; give the result a buffer of its own"
            )
