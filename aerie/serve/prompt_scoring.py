"""Encode prompts, and run them without generating: for embeddings and for the logprobs of prompt tokens.

These are requests like others: they share engine steps, have the time limit of a request, wait in the queue,
and are cancelled when the client disconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request

from aerie.common.errors import UserError
from aerie.engine.poolers import Pooler
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.prefill_only import WantedRows
from aerie.engine.strategies.strategy import Row
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.errors import ApiError, from_engine_error
from aerie.serve.output_processor import OutputRequest, TokenLogprob, token_logprob, top_logprobs
from aerie.serve.preprocess import check_ids
from aerie.serve.request_outputs import run_unless_disconnected
from aerie.serve.service import ModelService

MAX_SCORED_TOKENS = 1024
"""Tokens of a prompt with logprobs, whose logits are in memory together."""


class PromptLogprobs:
    """Logprob of each prompt token given the tokens before it, with the `top` likeliest alternatives. A
    Pooler."""

    wanted = WantedRows.LOGITS

    def __init__(self, session: Session, prompt: Sequence[int], top: int) -> None:
        self._stream, self._prompt, self._top = session.tokenizer.incremental_detokenizer(), prompt, top
        self._logprobs = [token_logprob(self._stream, prompt[0], None, ())]

    def add_rows(self, rows: Sequence[Row]) -> None:
        for row, token in zip(rows, self._prompt[len(self._logprobs) :], strict=False):
            self._logprobs.append(token_logprob(self._stream, token, *top_logprobs(row, token, self._top)))

    def result(self) -> list[TokenLogprob]:
        return self._logprobs


async def encode_prompts(
    service: ModelService, prompts: Sequence[str | list[int]], param: str
) -> list[list[int]]:
    """Encode texts, and check the token ids of a client. Raises ApiError."""
    opened = service.require_loaded()
    for prompt in prompts:
        if isinstance(prompt, list):
            check_ids(opened, prompt, param)
    most = opened.session.model.positions
    return [
        prompt
        if isinstance(prompt, list)
        else await service.run_with_tokenizer(partial(_encode, prompt, most))
        for prompt in prompts
    ]


def _encode(text: str, most: int, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, most=most)


async def pool_prompts(
    service: ModelService,
    request: Request,
    prompts: Sequence[Sequence[int]],
    poolers: Sequence[Callable[[Session], Pooler]],
) -> list[Any]:
    """Run each prompt and return the result of its pooler. Raises ApiError if a prompt cannot run, the queue
    is full, the time limit passes or the client disconnects."""
    opened, limit_s = service.require_loaded(), service.limits.time_limit_s
    numbered = enumerate(zip(prompts, poolers, strict=True))
    requests = [
        OutputRequest(prompt, 1, Sampler(), time_limit_s=limit_s, index=index, make_pooler=make_pooler)
        for index, (prompt, make_pooler) in numbered
    ]
    try:
        for output_request in requests:
            opened.check(output_request)
    except UserError as error:
        raise from_engine_error(error) from error
    outputs = service.submit(requests, request.state.request_log)
    try:
        return [output.pooled for output in await run_unless_disconnected(request.receive, outputs.collect())]
    finally:
        outputs.close()


async def score_prompts(
    service: ModelService, request: Request, prompts: Sequence[Sequence[int]], top: int | None
) -> list[list[TokenLogprob]]:
    """Return the logprobs of the tokens of each prompt, with the `top` likeliest of each; an empty list if
    top is None. Raises ApiError as pool_prompts does, and if a prompt has more than MAX_SCORED_TOKENS tokens.
    """
    if top is None:
        return []
    if (longest := max(map(len, prompts))) > MAX_SCORED_TOKENS:
        raise ApiError(
            400,
            f"a prompt has {longest} tokens, and its logprobs are for {MAX_SCORED_TOKENS} tokens at most; "
            "shorten it, or leave out prompt_logprobs, or echo with logprobs",
            "prompt_logprobs",
            "invalid_value",
        )
    return await pool_prompts(
        service, request, prompts, [partial(PromptLogprobs, prompt=prompt, top=top) for prompt in prompts]
    )
