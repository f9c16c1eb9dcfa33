"""AIR's async tokens in C++, by the mode of the body (execution.py).

In a sequencer a token is a task. A tile runs in program order, so there every token is done when it is made.
With checks the token is a snapshot of the vector clock of its operation (include/vnpu/happens_before.h): the
race check needs it to find an access that does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import AsyncTokenType, ChannelTransferOp
from aerie.virtual_npu.codegen.body import Body, Scalar
from aerie.virtual_npu.codegen.execution import BodyMode


def has_mark_tokens(body: Body) -> bool:
    """Whether the tokens of a body are marks."""
    return body.mode is BodyMode.PROCESS and body.file.options.checks


def token_type(body: Body) -> str:
    """The C++ type of a token."""
    if body.mode is BodyMode.SEQUENCER:
        return "vnpu::Token"
    return "vnpu::ClockSnapshot" if has_mark_tokens(body) else "vnpu::DoneToken"


def join(body: Body, tokens: Sequence[SSAValue]) -> str:
    """C++ text of a token that is done when all given ones are."""
    texts = body.texts(tokens)
    if len(texts) == 1:
        return texts[0]
    return f"vnpu::{'all_marks' if has_mark_tokens(body) else 'all'}({', '.join(texts)})"


def wait_list(body: Body, op: Operation, dependencies: Sequence[SSAValue]) -> str:
    """C++ text of the tokens that an operation of a sequencer waits for; `async` where it has a token
    itself."""
    return f"vnpu::{'async' if token_of(op) is not None else 'blocking'}({join(body, dependencies)})"


def token_of(op: Operation) -> SSAValue | None:
    """The token that is a result of an operation, None where there is none."""
    return next((result for result in op.results if isinstance(result.type, AsyncTokenType)), None)


def define_token(body: Body, token: SSAValue | None, expression: str) -> None:
    """Emit the expression that issues an operation, assigned to its token where it has one."""
    if token is None:
        body.emit_line(f"{expression};")
        return
    name = body.name_for(token)
    body.emit_line(f"const {token_type(body)} {name} = {expression};")
    body.values[token] = Scalar(name)


@contextmanager
def emit_in_order(
    body: Body, op: Operation, dependencies: Sequence[SSAValue], uses: str = ""
) -> Iterator[None]:
    """Emit, around an operation of a tile or of a plain function, what its tokens need.

    uses: C++ text of the `vnpu::Use`s of everything in it, for an operation with a region.
    """
    token = token_of(op)
    if not has_mark_tokens(body):
        yield
        if token is not None:
            body.values[token] = Scalar("vnpu::DoneToken()")
        return
    texts = body.texts(dependencies)
    if token is None:
        if texts:
            body.emit_line(f"vnpu::await({', '.join(texts)});")
        yield
        return
    fork = body.fresh("fork")
    body.emit_line(f"vnpu::AsyncStrand {fork}({', '.join([body.site(op), *texts])});")
    if uses:
        body.emit_line(f"{fork}.covers({body.site(op)}, {{{uses}}});")
    yield
    define_token(body, token, f"{fork}.end()")


def suspend(body: Body, awaitable: str) -> None:
    """Emit a wait of a coroutine. The awaitable gets a name: compilers mishandle temporaries in co_await."""
    name = body.fresh("pause")
    body.emit_line(f"auto {name} = {awaitable};")
    body.emit_line(f"co_await {name};")


def await_transfer(body: Body, op: ChannelTransferOp, *arguments: str) -> None:
    """Emit a put or get of a tile, given its C++ arguments, and the wait for it."""
    body.uses_transfer = True
    body.emit_line(f"transfer.{op.name.removeprefix('air.channel.')}({', '.join(arguments)});")
    body.emit_line("co_await transfer;")
