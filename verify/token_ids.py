"""Checks the model's token ids against those that independent code computes from the same files.

A tokenizer that is read wrongly gives both sides of the gate the same wrong ids, and the same answers. So
texts are tokenized again by the library of tokenizer.json, and conversations by the transformers class that
uses tokenizer.json directly, whatever other class the checkpoint names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aerie.engine.tokenizer import Tokenizer
from aerie.verify.bit_identity import BitIdentity, compare
from aerie.verify.gate_prompts import CODE, CONVERSATION, EMOJI, LANGUAGES, LONG, QUESTION, SHORT
from aerie.verify.subject import one_line

READ_APART = "token ids, and tokenizer.json's"
TEXTS = (QUESTION, SHORT, LONG, CODE, LANGUAGES, EMOJI)
CHATS = (CONVERSATION[:1], CONVERSATION)


def compare_token_ids(tokenizer: Tokenizer, folder: Path) -> BitIdentity:
    """Compare the ids of all texts of the gate. Counts ids, and texts or chats in which one differs."""
    if not (folder / "tokenizer.json").is_file():
        why = "there is no tokenizer.json" if folder.is_dir() else "a GGUF file has no tokenizer.json"
        return BitIdentity(READ_APART, skipped=why)
    ours = [tokenizer.encode(text) for text in TEXTS]
    theirs = _texts(folder)
    if tokenizer.has_chat_template:
        ours += [tokenizer.encode_chat(messages) for messages in CHATS]
        try:
            theirs += _chats(folder)
        except Exception as error:  # transformers, tokenizers and jinja raise many unrelated types
            return BitIdentity(READ_APART, broken=f"transformers failed: {one_line(error)}")
    return compare(READ_APART, *([np.array(ids) for ids in side] for side in (ours, theirs)))


def _texts(folder: Path) -> list[list[int]]:
    from tokenizers import Tokenizer as Inner

    inner = Inner.from_file(str(folder / "tokenizer.json"))
    inner.no_truncation()
    inner.no_padding()
    return [inner.encode(text).ids for text in TEXTS]


def _chats(folder: Path) -> list[list[int]]:
    from transformers import PreTrainedTokenizerFast

    reader = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return [
        reader.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        for messages in CHATS
    ]
