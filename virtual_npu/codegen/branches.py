"""Emitters of cf, as far as a program without branches between blocks has it."""

from __future__ import annotations

import json

from xdsl.dialects import cf
from xdsl.ir import Operation

from virtual_npu.codegen.body import Body, emits


@emits("cf.assert")
def _assert(body: Body, op: Operation) -> None:
    """Ends the run with the message of the assertion where it does not hold."""
    assert isinstance(op, cf.AssertOp)
    message = json.dumps(f"the assertion does not hold: {op.msg.data}")
    body.put(f'if (!{body.text(op.arg)}) vnpu::fail({body.site(op)}, "%s", {message});')
