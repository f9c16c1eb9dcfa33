"""The prompts of Qwen3-Reranker, and the rows of its head.

The model reads an instruction, a query and a document between fixed texts, and the next token would be yes or
no. Both texts are those of Qwen's page on Hugging Face (Qwen/Qwen3-Reranker-0.6B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.errors import CheckpointError, PromptTooLongError
from aerie.engine.numerics import BF16Array
from aerie.engine.pooling import LM_HEAD_ROWS, ScoringConfig
from aerie.engine.tensors import Rows
from aerie.engine.text_roles import HOW_TO_SAY_SO
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.weights import Weights

BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
YES, NO = "yes", "no"


def check_reranker(config: ModelConfig) -> None:
    """Raises UserError for a model that scores no documents."""
    if config.roles.scoring is None:
        raise UserError(
            f"this model ({config.family.name}) is no reranker: it was not trained to score documents, and "
            f"only Qwen3-Reranker is computed; {HOW_TO_SAY_SO}. Without one, embed the query and the "
            "documents, and rank by the products of their vectors"
        )


def rerank_prompt(
    tokenizer: Tokenizer,
    query: str,
    document: str,
    most: int,
    instruction: str | None = None,
    max_document_tokens: int | None = None,
) -> list[int]:
    """The token ids of the prompt that has a query and a document. A longer document is cut after
    `max_document_tokens`. Control tokens in the texts are text. most: tokens of the prompt; raises
    PromptTooLongError for more.
    """
    question = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: "
    whole = most if max_document_tokens is None else None
    middle = tokenizer.encode(question + document, special=False, most=whole)
    if max_document_tokens is not None:
        middle = middle[: len(tokenizer.encode(question, special=False, most=most)) + max_document_tokens]
    before, after = (tokenizer.encode(text, control_tokens=True, special=False) for text in (BEFORE, AFTER))
    prompt = [*before, *middle, *after]
    if len(prompt) > most:
        raise PromptTooLongError(len(prompt), most, None)
    return prompt


def check_query(query: str) -> None:
    """Raises UserError for an empty query. A document may be empty: it answers nothing."""
    if not query:
        raise UserError("query is empty, so no document can answer it; give it some text")


def check_limit(name: str, value: int | None) -> None:
    """Raises UserError for a number of documents or tokens below 1."""
    if value is not None and value < 1:
        raise UserError(f"{name} is {value}; give 1 or more, or leave it out")


@dataclass(frozen=True)
class RankedDocument:
    """A document with its score. index: its place among those that were given. relevance_score: from 0 to 1;
    the higher, the better it answers the query."""

    index: int
    relevance_score: float
    document: str


def ranked(scores: Sequence[float], documents: Sequence[str], top_n: int | None) -> list[RankedDocument]:
    """The documents with their scores, the best first, those with equal scores in their order; at most
    `top_n`."""
    pairs = zip(scores, documents, strict=True)
    found = [RankedDocument(index, score, text) for index, (score, text) in enumerate(pairs)]
    return sorted(found, key=lambda each: -each.relevance_score)[:top_n]


def check_score_tokens(scoring: ScoringConfig, tokenizer: Tokenizer) -> None:
    """Raises CheckpointError where yes and no are not one token each, or the checkpoint compares others."""
    if scoring.tensor != LM_HEAD_ROWS:
        return
    yes, no = (tokenizer.encode(text, special=False) for text in (YES, NO))
    if len(yes) != 1 or len(no) != 1:
        raise CheckpointError(
            f"{scoring.source} says that this is a reranker, and its tokenizer cuts {YES!r} into {len(yes)} "
            f"tokens and {NO!r} into {len(no)}, whose logits cannot be compared; fetch Qwen3-Reranker again"
        )
    if (scoring.yes, scoring.no) not in ((None, None), (yes[0], no[0])):
        raise CheckpointError(
            f"{scoring.source} compares the tokens {scoring.yes} and {scoring.no}, and only {YES!r} "
            f"({yes[0]}) and {NO!r} ({no[0]}) of Qwen3-Reranker are compared, in its prompt; take that"
        )


def score_rows(scoring: ScoringConfig, tokenizer: Tokenizer, weights: Weights) -> BF16Array:
    """The rows of the head that give the logits of yes and no, or of the one label: (2 or 1, hidden_size)."""
    if scoring.tensor == LM_HEAD_ROWS:
        ids = [tokenizer.encode(text, special=False)[0] for text in (YES, NO)]
        return Rows(weights.lm_head)[ids]
    assert weights.score_head is not None
    return weights.score_head.read()
