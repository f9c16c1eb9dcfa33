"""Stops before the operations of chosen lines (include/vnpu/stop.h), in builds with checks only."""

from __future__ import annotations

from xdsl.ir import Operation

from aerie.virtual_npu.codegen.body import Body, CppFile, before_emitter
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.op_errors import line_of
from aerie.virtual_npu.errors import OptionError

_ISSUED = frozenset([
    "air.channel.put", "air.channel.get", "air.dma_memcpy_nd", "air.launch", "air.segment", "air.herd",
    "memref.dealloc",
])  # fmt: skip
"""What a launch or segment hands to an engine: it begins when what it depends on is done, not where it
stands."""
_NEAR_LINES = 3


@before_emitter
def stop_before(body: Body, op: Operation) -> None:
    """Emit a stop before an operation of a chosen line.

    An air.execute of a launch or segment has none: what is in it begins one by one.
    """
    is_sequencer = body.mode is BodyMode.SEQUENCER
    if not body.checked or op.name.startswith("vnpu.") or (is_sequencer and op.name == "air.execute"):
        return
    body.file.lines.add(line_of(op))
    if line_of(op) not in body.file.options.stop_lines:
        return
    if is_sequencer and op.name in _ISSUED:
        body.emit_line("sequencer.stop_before_next();")
    else:
        body.emit_line(f"vnpu::stop_before({body.site(op)});")


def check_stop_lines(file: CppFile) -> None:
    """Raises OptionError for a chosen line without such an operation; it names the lines around that have
    one."""
    for line in file.options.stop_lines:
        if line in file.lines:
            continue
        near = sorted(sorted(file.lines - {0}, key=lambda other: abs(other - line))[:_NEAR_LINES])
        raise OptionError(
            f"line {line} has no operation at which a run can stop (the text has {len(file.source)} lines): "
            f"the nearest lines with one are {', '.join(map(str, near))}"
        )
