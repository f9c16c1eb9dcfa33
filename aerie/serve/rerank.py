"""POST /v1/rerank: documents by how well they answer a query, as clients of Cohere, Jina and vLLM ask for it.

Each document is a prefill-only request: they share engine steps with others, and the pages of what they have
in common, the instruction and the query, are computed once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import Field

from aerie.engine.poolers import ScorePooler
from aerie.engine.reranking import (
    RankedDocument,
    check_limit,
    check_query,
    check_reranker,
    ranked,
    rerank_prompt,
)
from aerie.engine.session import Session
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.common_fields import RequestFields, Text
from aerie.serve.embeddings import MAX_INPUTS
from aerie.serve.errors import errors_of
from aerie.serve.model_middleware import LoadedService
from aerie.serve.prompt_scoring import pool_prompts


class RerankDocument(RequestFields):
    """A document as an object; Jina and Cohere take both forms."""

    text: Text


class RerankRequest(RequestFields):
    """top_n: how many documents are returned; None means all. max_tokens_per_doc: a longer one is cut.
    instruction: what counts as an answer."""

    model: str | None = None
    query: Text
    documents: Annotated[list[Text | RerankDocument], Field(min_length=1, max_length=MAX_INPUTS)]
    top_n: int | None = None
    return_documents: bool = False
    max_tokens_per_doc: int | None = None
    instruction: Text | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


def add_rerank_route(app: FastAPI) -> None:
    """Add /v1/rerank."""

    @app.post("/v1/rerank")
    async def rerank(body: RerankRequest, request: Request, service: LoadedService) -> Mapping[str, Any]:
        with errors_of("model"):
            check_reranker(service.require_loaded().session.model.config)
        for name in ("top_n", "max_tokens_per_doc"):
            with errors_of(name):
                check_limit(name, getattr(body, name))
        with errors_of("query"):
            check_query(body.query)
        most = service.require_loaded().session.model.positions
        encode = partial(_encode, body=body, most=most)
        prompts = await service.run_with_tokenizer(encode, lambda _: "documents")
        scores = await pool_prompts(service, request, prompts, [_pooler] * len(prompts))
        found = ranked(scores, body.texts, body.top_n)
        tokens = request.state.request_log.prompt_tokens
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "object": "list",
            "model": service.name,
            "results": [_result(each, body.return_documents) for each in found],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


def _pooler(session: Session) -> ScorePooler:
    return ScorePooler(session.model)


def _encode(tokenizer: Tokenizer, body: RerankRequest, most: int) -> list[list[int]]:
    limit = body.max_tokens_per_doc
    return [rerank_prompt(tokenizer, body.query, text, most, body.instruction, limit) for text in body.texts]


def _result(ranked: RankedDocument, with_text: bool) -> dict[str, Any]:
    result = {"index": ranked.index, "relevance_score": ranked.relevance_score}
    return result | ({"document": {"text": ranked.document}} if with_text else {})
