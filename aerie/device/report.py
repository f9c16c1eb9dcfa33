"""The result of the static check: use against limit, and what cannot be built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from aerie.common.text_tables import text_table
from aerie.device.errors import ResourceError
from aerie.device.npu2 import DeviceModel

HEADER = ("where", "resource", "used", "limit", "", "source of the limit")


def line_of(op: Operation) -> int | None:
    """The line of an operation in its text, None for one made in Python."""
    return op.location.line.data if isinstance(op.location, FileLineColLoc) else None


@dataclass(frozen=True)
class ResourceUsage:
    """One line of the report: `used` of `limit`, in the units that the resource names.

    limit: None if no limit is known. source: the upstream file of the limit. alternative: what to do instead.
    """

    place: str
    resource: str
    used: int
    limit: int | None
    source: str
    alternative: str
    operation: Operation = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the limit holds."""
        return self.limit is None or self.used <= self.limit

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as text, one cell per column of HEADER."""
        limit = "none known" if self.limit is None else str(self.limit)
        return (
            self.place,
            self.resource,
            str(self.used),
            limit,
            "ok" if self.fits else "TOO MUCH",
            self.source,
        )

    def to_fault(self, device: DeviceModel) -> Fault:
        """The fault of a limit that does not hold."""
        message = f"{self.resource} takes {self.used}, {device.name} has {self.limit}; {self.alternative}"
        return Fault("limit", self.place, message, self.source, self.operation)

    def to_json(self) -> dict[str, object]:
        """The line as JSON values."""
        return {
            "place": self.place,
            "resource": self.resource,
            "used": self.used,
            "limit": self.limit,
            "ok": self.fits,
            "source": self.source,
            "op": self.operation.name,
            "line": line_of(self.operation),
        }


@dataclass(frozen=True)
class Fault:
    """Something that cannot be built: what was given, the limit, and what to do instead.

    kind: the rule, in one word. place: function/launch/segment/herd. certain: False for a warning, which
    holds only under conditions that the text does not show.
    """

    kind: str
    place: str
    message: str
    source: str
    operation: Operation = field(repr=False, compare=False)
    certain: bool = True

    @property
    def op(self) -> str:
        """The name of the operation."""
        return self.operation.name

    @property
    def line(self) -> int | None:
        """The line of the operation in the text; None for one made in Python."""
        return line_of(self.operation)

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        return f"{line}{self.op}: {self.place}: {self.message} ({self.source})"

    def to_json(self) -> dict[str, object]:
        """The fault as JSON values."""
        return {
            "kind": self.kind,
            "place": self.place,
            "op": self.op,
            "line": self.line,
            "message": self.message,
            "source": self.source,
        }


Finding = ResourceUsage | Fault


@dataclass(frozen=True)
class CheckReport:
    """The use of a device by a module, and everything in the module that cannot be built."""

    device: DeviceModel
    findings: tuple[Finding, ...]

    @property
    def usages(self) -> tuple[ResourceUsage, ...]:
        """Use against limit, one line per resource of each function, launch, segment and herd."""
        return tuple(finding for finding in self.findings if isinstance(finding, ResourceUsage))

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that cannot be built, exceeded limits included, in the order of the text."""
        return self._select(certain=True)

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """Faults that depend on conditions that the text does not show, such as a flag of aircc."""
        return self._select(certain=False)

    def _select(self, certain: bool) -> tuple[Fault, ...]:
        chosen = {str(fault): fault for fault in self._all_faults() if fault.certain is certain}
        return tuple(sorted(chosen.values(), key=lambda fault: fault.line or 0))

    def _all_faults(self) -> Iterator[Fault]:
        for finding in self.findings:
            if isinstance(finding, Fault):
                yield finding
            elif not finding.fits:
                yield finding.to_fault(self.device)

    @property
    def ok(self) -> bool:
        """Whether the check found no fault."""
        return not self.faults

    def raise_faults(self) -> None:
        """Raises ResourceError with one line per fault."""
        if not self.ok:
            raise ResourceError("\n".join(map(str, self.faults)))

    def rows(self) -> list[tuple[str, ...]]:
        """The usages as text, a cell per column of HEADER."""
        return [usage.cells for usage in self.usages]

    def table(self) -> str:
        """The usages as plain text, a line per resource."""
        return text_table([HEADER, *self.rows()], "<<>><<")

    def to_json(self) -> dict[str, object]:
        """The report as JSON values: device, ok, usages, faults, warnings."""
        return {
            "device": self.device.name,
            "ok": self.ok,
            "usages": [usage.to_json() for usage in self.usages],
            "faults": [fault.to_json() for fault in self.faults],
            "warnings": [warning.to_json() for warning in self.warnings],
        }
