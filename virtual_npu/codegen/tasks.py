"""Memory work in a sequencer: operations beside transfers and herds that read or write buffers."""

from __future__ import annotations

from xdsl.ir import Operation

from air_dialect.effects import accesses
from virtual_npu.codegen.body import Body, Emit
from virtual_npu.codegen.memory import uses_of
from virtual_npu.codegen.tokens import suspend


def is_memory_work(op: Operation) -> bool:
    """Whether an operation that is no AIR operation reads or writes buffers itself."""
    return not op.name.startswith("air.") and bool(accesses(op))


def issue(body: Body, op: Operation, emit: Emit) -> None:
    """Emit such an operation in a sequencer: as a task, or, where it has results, after a wait."""
    uses = ", ".join(uses_of(body, op))
    if op.results:
        suspend(body, f"sequencer.settle({{{uses}}})")
        with body.straight():
            emit(body, op)
        return
    head = f"sequencer.run({body.site(op)}, vnpu::blocking(vnpu::Token()), {{{uses}}}, [=]"
    with body.block(head, "});"), body.straight():
        emit(body, op)
