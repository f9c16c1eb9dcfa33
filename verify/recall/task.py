"""Facts and questions. A fact is two names: the first one's partner is the second.

Three chunks have four facts each, in any order. A chunk's second names are the next chunk's first names, so
a chain of partners goes through all of them. A question has the name where it begins, and asks for the
partner (one hop, a fact in one chunk) or for the partner's partner (two hops, facts in two chunks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NAMES = """
Ann Bob Cid Dan Eva Fay Gus Hal Ida Jan Kim Lea Max Ned Ola Pam
Quin Ray Sam Tom Una Val Wes Xia Yan Zoe Amy Ben Cal Dot Eli Flo
"""
NAMES = tuple(_NAMES.split())
BEGIN, END, ONE_HOP, TWO_HOPS = "<begin>", ".", "partner:", "partner's-partner:"
WORDS = (BEGIN, END, ONE_HOP, TWO_HOPS, *(f"<unused-{n}>" for n in range(4, 8)), *NAMES)
VOCABULARY = WORDS + tuple(f"<unused-{n}>" for n in range(len(WORDS), 64))
FIRST_NAME = WORDS.index(NAMES[0])
ASKS = {1: VOCABULARY.index(ONE_HOP), 2: VOCABULARY.index(TWO_HOPS)}
"""The token of a question by its number of hops."""

CHUNKS, FACTS = 3, 4

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """Token ids of each chunk, the last of which has the question, and of the answer."""

    chunks: tuple[tuple[int, ...], ...]
    answer: int
    hops: int


def chains(rng: np.random.Generator, count: int, facts: int = FACTS) -> Ids:
    """Names of `count` texts, (count, CHUNKS + 1, facts), all different in a text: the partner of [c, f] is
    [c + 1, f].
    """
    names = np.argsort(rng.random((count, len(NAMES))), axis=1)[:, : (CHUNKS + 1) * facts]
    return names.reshape(count, CHUNKS + 1, facts) + FIRST_NAME


def statements(rng: np.random.Generator, names: Ids) -> list[Ids]:
    """The chunks of each text, (count, 2 * facts + 1) tokens; the first chunk begins the text and has one
    more.
    """
    count, _, facts = names.shape
    chunks = []
    for chunk in range(CHUNKS):
        order = np.argsort(rng.random((count, facts)), axis=1)
        pair = [np.take_along_axis(names[:, each], order, axis=1) for each in (chunk, chunk + 1)]
        begin = np.full((count, int(chunk == 0)), VOCABULARY.index(BEGIN))
        end = np.full((count, 1), VOCABULARY.index(END))
        chunks.append(np.concatenate([begin, np.stack(pair, axis=-1).reshape(count, -1), end], axis=1))
    return chunks


def make_questions(rng: np.random.Generator, names: Ids, hops: Ids) -> Ids:
    """Questions about each text, and their answers: (count, questions, 3) tokens, by hops of (count,
    questions).
    """
    text = np.arange(len(names))[:, None]
    chunk = (rng.random(hops.shape) * (CHUNKS + 1 - hops)).astype(np.int64)
    fact = rng.integers(names.shape[2], size=hops.shape)
    words = np.vectorize(ASKS.get)(hops)
    return np.stack([words, names[text, chunk, fact], names[text, chunk + hops, fact]], axis=-1)


def questions(seed: int, count: int, hops: int) -> list[Question]:
    """`count` questions, each about a text of its own."""
    rng = np.random.default_rng(seed)
    names = chains(rng, count)
    chunks = statements(rng, names)
    question_tokens = make_questions(rng, names, np.full((count, 1), hops))[:, 0]
    return [
        Question(
            (*(tuple(chunk[n].tolist()) for chunk in chunks), tuple(question_tokens[n, :2].tolist())),
            int(question_tokens[n, 2]),
            hops,
        )
        for n in range(count)
    ]
