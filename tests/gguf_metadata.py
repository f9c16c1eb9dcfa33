"""A tokenizer as the metadata of a GGUF file, as llama.cpp's converter writes it (conversion/base.py)."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer


def of_tokenizer(backend: Tokenizer, pre: str, rows: int | None = None, **further: Any) -> dict[str, Any]:
    """Of byte-level BPE. rows: of the weights, which may be more than the tokens. further: keys of
    tokenizer.ggml."""
    content = json.loads(backend.to_str())
    by_id = {number: token for token, number in backend.get_vocab(with_added_tokens=True).items()}
    added = dict(backend.get_added_tokens_decoder())
    count = max(rows or 0, max(by_id) + 1)
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(count)]
    merges = content["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_type(number, by_id, added) for number in range(count)],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        **{f"tokenizer.ggml.{key}": value for key, value in further.items()},
    }


def _type(number: int, by_id: dict[int, str], added: dict[int, Any]) -> int:
    if number not in by_id:
        return 5
    if number not in added:
        return 1
    return 3 if added[number].special or _looks_special(by_id[number]) else 4


def _looks_special(token: str) -> bool:
    return token in ("<pad>", "<mask>") or (token[:2], token[-2:]) in (("<|", "|>"), ("<｜", "｜>"))


def of_pieces(
    tokens: list[str],
    scores: list[float],
    types: list[int],
    added: dict[str, bool] | None = None,
    **further: Any,
) -> dict[str, Any]:
    """Of SentencePiece. added: the tokens that were defined beside the model, and whether each is a special
    one; what `tokens` lacks has the next id."""
    tokens, scores, types = [*tokens], [*scores], [*types]
    numbers = {token: number for number, token in enumerate(tokens)}
    for token, special in (added or {}).items():
        if token not in numbers:
            tokens.append(token)
            scores.append(0.0)
            types.append(1)
            numbers[token] = len(tokens) - 1
        at = numbers[token]
        scores[at], types[at] = -1000.0, 3 if special or _looks_special(token) else 4
        tokens[at] = token if types[at] == 3 else token.replace("▁", " ")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        **{f"tokenizer.ggml.{key}": value for key, value in further.items()},
    }
