"""What a checkpoint says of texts that are computed and not answered: how a text becomes a vector, and how a
document is scored.

An embedding model has a PoolingConfig, from the files of sentence-transformers (`sentence_files.py`) or from
the metadata of a GGUF file. A model without one has DEFAULT_POOLING, and answers too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aerie.common.errors import UserError

LAST, MEAN = "last token", "mean"
LM_HEAD_ROWS = "lm_head.weight"
SCORE_ROWS = "score.weight"
"""The tensor of a head that only scores, by transformers' name."""


@dataclass(frozen=True)
class PoolingConfig:
    """How a text becomes a vector, as `source` says it, a file or an entry.

    pooling: LAST or MEAN, of the hidden states after the final RMSNorm. is_normalised: vectors have length 1.
    prompts: texts that are put before a text, by name. default_prompt: the name of the one that counts where
    none is named. max_tokens: of a text, with what is put before it; None means the context.
    """

    source: str
    pooling: str
    is_normalised: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    default_prompt: str | None = None
    max_tokens: int | None = None


DEFAULT_POOLING = PoolingConfig("", MEAN)
"""Of a model that was trained to predict the next token. It separates meanings less well than a model that
was trained for embeddings."""


@dataclass(frozen=True)
class ScoringConfig:
    """The head that scores a document for a query, as `source` says it.

    tensor: rows of (rows, hidden_size). yes, no: which of them; with the LM head, None means the rows of the
    tokens "yes" and "no". Without `no` the score is the sigmoid of one logit, else the softmax of two.
    """

    source: str
    tensor: str
    yes: int | None = None
    no: int | None = None


class TextRoles(NamedTuple):
    """What a checkpoint is beside, or in place of, a model that answers."""

    pooling: PoolingConfig | None = None
    scoring: ScoringConfig | None = None

    @property
    def reason_against_answers(self) -> str:
        """Why the model answers nothing; "" if it does."""
        if self.pooling:
            return (
                f"{self.pooling.source} says that this is an embedding model, which makes vectors of texts "
                "and no answers; send texts to /v1/embeddings of `aerie serve`, or to embed() in Python"
            )
        if self.scoring and self.scoring.tensor == SCORE_ROWS:
            return (
                f"{self.scoring.source} says that this is a reranker, which scores documents and makes no "
                "answers; send them to /v1/rerank of `aerie serve`, or to rerank() in Python"
            )
        return ""

    def check_answers(self) -> None:
        """Raises UserError for a model that answers nothing."""
        if reason := self.reason_against_answers:
            raise UserError(reason)


INSTRUCTION = ("Instruct: ", "\nQuery:")
"""What stands before and after an instruction, as Qwen3-Embedding's page on Hugging Face has it."""


def text_before(pooling: PoolingConfig, prompt_name: str | None, instruction: str | None) -> str:
    """What is put before a text: the prompt of this name, or this instruction. Raises UserError for both
    together, and for a name that the model does not have."""
    if prompt_name is not None and instruction is not None:
        raise UserError("prompt_name and instruction are given and exclude each other; give one")
    if instruction is not None:
        return instruction.join(_around_instruction(pooling))
    name = pooling.default_prompt if prompt_name is None else prompt_name
    if name is None:
        return ""
    if name not in pooling.prompts:
        known = ", ".join(map(repr, pooling.prompts))
        raise UserError(
            f"prompt_name is {name!r}, and this model has "
            + (f"the prompts {known}; give one of them" if known else "no prompts; leave it out")
        )
    return pooling.prompts[name]


def _around_instruction(pooling: PoolingConfig) -> tuple[str, str]:
    """What the model's own prompts have around an instruction. They differ in the blank at the end."""
    before, after = INSTRUCTION
    for prompt in pooling.prompts.values():
        end = prompt.rfind(after)
        if prompt.startswith(before) and end >= len(before) and not prompt[end + len(after) :].strip(" "):
            return before, prompt[end:]
    return INSTRUCTION


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Raises UserError for a vector that the model cannot be cut to."""
    if dimensions is not None and not 1 <= dimensions <= hidden_size:
        raise UserError(
            f"dimensions is {dimensions}, and the vectors of this model have {hidden_size}; give 1 to "
            f"{hidden_size}, or leave it out"
        )
