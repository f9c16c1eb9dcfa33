"""Prompts that are read and not answered: for embeddings, and for how likely their tokens are.

They are requests like others: they share the model's steps, have the time of a request, wait in the queue,
and are cancelled where the client goes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request

from aerie.common.errors import UserError
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.strategy import Row
from aerie.serve.common_fields import MOST_MARKED
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.output_processor import Ask, Mark, Reads, likeliest, mark_of
from aerie.serve.request_outputs import unless_gone
from aerie.serve.service import Service


class Marks:
    """See Reads. How likely each token of a prompt is after those before it, with the `top` likeliest."""

    hidden = False

    def __init__(self, session: Session, prompt: Sequence[int], top: int) -> None:
        self._stream, self._prompt, self._top = session.tokenizer.stream(), prompt, top
        self._marks = [mark_of(self._stream, prompt[0], None, ())]

    def take(self, rows: Sequence[Row]) -> None:
        for row, token in zip(rows, self._prompt[len(self._marks) :], strict=False):
            self._marks.append(mark_of(self._stream, token, *likeliest(row, token, self._top)))

    def made(self) -> list[Mark]:
        return self._marks


async def read(
    service: Service,
    request: Request,
    prompts: Sequence[Sequence[int]],
    reads: Sequence[Callable[[Session], Reads]],
) -> list[Any]:
    """What is made of each prompt. ApiError for what cannot be run, where too many wait, where the time is
    up, and where the client went away."""
    opened, limit_s = service.ready(), service.limits.time_limit_s
    given = enumerate(zip(prompts, reads, strict=True))
    asks = [
        Ask(prompt, 1, Sampler(), time_limit_s=limit_s, index=at, reads=how) for at, (prompt, how) in given
    ]
    try:
        for ask in asks:
            opened.check(ask)
    except UserError as error:
        raise of_engine(error) from error
    asking = service.asking(asks, request.state.line)
    try:
        return [whole.made for whole in await unless_gone(request.receive, asking.wholes())]
    finally:
        asking.close()


async def marked(
    service: Service, request: Request, prompts: Sequence[Sequence[int]], top: int | None
) -> list[list[Mark]]:
    """How likely the tokens of each prompt are, with the `top` likeliest of each; none where top is None.
    Raises as read, and ApiError for a prompt of more than MOST_MARKED tokens."""
    if top is None:
        return []
    if (longest := max(map(len, prompts))) > MOST_MARKED:
        raise ApiError(
            400,
            f"a prompt has {longest} tokens; of {MOST_MARKED} at most it is told how likely each is; "
            "shorten it, or leave out prompt_logprobs, or echo with logprobs",
            "prompt_logprobs",
            "invalid_value",
        )
    return await read(service, request, prompts, [partial(Marks, prompt=one, top=top) for one in prompts])
