"""Vectors of texts, and scores of documents, of the Python API: prompts that share engine steps and generate
nothing."""

from __future__ import annotations

import asyncio
import reprlib
import threading
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from aerie.argument_types import RERANK_ARGUMENTS, VECTOR_ARGUMENTS, check_types
from aerie.common.errors import UserError
from aerie.engine.embedding_prompt import embedding_prompt
from aerie.engine.errors import PromptError
from aerie.engine.forward import check_prompt
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import F32Array
from aerie.engine.poolers import Pooler, ScorePooler, VectorPooler
from aerie.engine.pooling import DEFAULT_POOLING, check_dimensions, text_before
from aerie.engine.reranking import (
    RankedDocument,
    check_limit,
    check_query,
    check_reranker,
    ranked,
    rerank_prompt,
)
from aerie.engine.session import Session
from aerie.engine.tokenizer import check_text

TextOrIds: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"


class TextVectors:
    """Vectors of texts and scores of documents: a part of Model."""

    _lock: threading.Lock

    def _open(self) -> Session:
        raise NotImplementedError

    def embed(
        self,
        texts: TextOrIds | Sequence[TextOrIds],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        instruction: str | None = None,
        normalize: bool | None = None,
    ) -> F32Array:
        """The vectors of texts, (texts, dimensions) float32, or of one text, (dimensions,).

        A text goes through the tokenizer without the chat template; token ids are taken as they are. An
        embedding model pools as its checkpoint says it; any other model gives the mean of the last hidden
        states, scaled to length 1. dimensions: elements of a vector, the first ones; None means all, as many
        as the hidden states have. prompt_name: the prompt of the checkpoint that is put before each text.
        instruction: what the texts are compared for, put before each as "Instruct: ...\\nQuery:".
        normalize: whether vectors have length 1, after they are cut; None means as the checkpoint says.

        Raises PromptError for a text that cannot be run, and UserError for other values, before anything is
        computed; RunError where a device fails.
        """
        options = {"dimensions": dimensions, "prompt_name": prompt_name, "instruction": instruction}
        check_types(VECTOR_ARGUMENTS, {**options, "normalize": normalize})
        session = self._open()
        config = session.model.config
        check_dimensions(dimensions, config.hidden_size)
        before = text_before(config.roles.pooling or DEFAULT_POOLING, prompt_name, instruction)
        is_one = _is_one(texts)
        prompts = [_prompt(session, cast(TextOrIds, each), before) for each in ([texts] if is_one else texts)]
        vectors = self._pooled(prompts, lambda model: VectorPooler(model, dimensions, normalize))
        if is_one:
            return cast(F32Array, vectors[0])
        return np.array(vectors, np.float32).reshape(len(prompts), dimensions or config.hidden_size)

    async def aembed(
        self,
        texts: TextOrIds | Sequence[TextOrIds],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        instruction: str | None = None,
        normalize: bool | None = None,
    ) -> F32Array:
        """The vectors of texts, made in a worker thread; see embed."""
        options: Any = {"prompt_name": prompt_name, "instruction": instruction, "normalize": normalize}
        return await asyncio.to_thread(self.embed, texts, dimensions=dimensions, **options)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        max_tokens_per_doc: int | None = None,
    ) -> list[RankedDocument]:
        """The documents by how well they answer the query, the best first; those with equal scores in their
        order.

        Only a reranker does this (Qwen3-Reranker). top_n: how many are returned; None means all. instruction:
        what counts as an answer; None means passages for a web search. max_tokens_per_doc: a longer document
        is cut; None means that one which is too long is refused.

        Raises PromptError for a text that cannot be run, and UserError for other values and another model,
        before anything is computed; RunError where a device fails.
        """
        limits = {"top_n": top_n, "max_tokens_per_doc": max_tokens_per_doc}
        check_types(RERANK_ARGUMENTS, {"query": query, "instruction": instruction, **limits})
        session = self._open()
        check_reranker(session.model.config)
        check_query(query)
        check_text(query, "the query")
        _check_documents(documents)
        for name, limit in limits.items():
            check_limit(name, limit)
        most = session.model.max_prompt_tokens
        prompts = [
            rerank_prompt(session.tokenizer, query, document, most, instruction, max_tokens_per_doc)
            for document in documents
        ]
        return ranked(self._pooled(prompts, ScorePooler), documents, top_n)

    async def arerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        max_tokens_per_doc: int | None = None,
    ) -> list[RankedDocument]:
        """The documents by their scores, made in a worker thread; see rerank."""
        options: Any = {"instruction": instruction, "max_tokens_per_doc": max_tokens_per_doc}
        return await asyncio.to_thread(self.rerank, query, documents, top_n=top_n, **options)

    def _pooled(
        self, prompts: Sequence[Sequence[int]], make_pooler: Callable[[LoadedModel], Pooler]
    ) -> list[Any]:
        """The results of poolers over these prompts, in shared engine steps."""
        scheduler = self._open().scheduler
        poolers = [make_pooler(scheduler.model) for _ in prompts]
        with self._lock:
            requests = [
                scheduler.add_prefill_only(prompt, pooler.add_rows, pooler.wanted)
                for prompt, pooler in zip(prompts, poolers, strict=True)
            ]
        try:
            for request in requests:
                while not request.is_finished:
                    with self._lock:
                        request.advance()
                if request.error:
                    raise request.error
        finally:
            for request in requests:
                request.stop()
        return [pooler.result() for pooler in poolers]


def _is_one(texts: object) -> bool:
    """Whether it is one text or the token ids of one. Raises PromptError for what is no text."""
    if isinstance(texts, str):
        return True
    if not isinstance(texts, Sequence | np.ndarray):
        raise _no_text(texts)
    return len(texts) > 0 and isinstance(texts[0], Integral)


def _no_text(given: object) -> PromptError:
    return PromptError(
        f"a text to embed is a text or a list of token ids, and not {reprlib.repr(given)}; give one, or "
        "several in a list"
    )


def _prompt(session: Session, text: TextOrIds, before: str) -> list[int]:
    """The tokens of a text, or token ids. Raises PromptError."""
    model = session.model
    limit = (model.config.roles.pooling or DEFAULT_POOLING).max_tokens
    if isinstance(text, str):
        check_text(text, "the text")
        most = min(model.max_prompt_tokens, limit or model.max_prompt_tokens)
        return embedding_prompt(session.tokenizer, text, before, most)
    if not (isinstance(text, Sequence | np.ndarray) and all(isinstance(each, Integral) for each in text)):
        raise _no_text(text)
    ids = [int(each) for each in text]
    check_prompt(ids, model.config, model.seq_len)
    return ids


def _check_documents(documents: Sequence[str]) -> None:
    if isinstance(documents, str) or not all(isinstance(each, str) for each in documents):
        raise UserError(f"documents is {reprlib.repr(documents)}; give a list of texts")
    for document in documents:
        check_text(document, "a document")
