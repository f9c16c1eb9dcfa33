"""From the corpus to batches of token ids and loss weights: chats of one and many turns, plain statements."""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from aerie.llama32_1b.demo.corpus import Exchange, question_list, statements, unknown
from aerie.llama32_1b.demo.tokenizer import (
    BEGIN_OF_TEXT,
    END_HEADER,
    END_OF_TEXT,
    END_OF_TURN,
    MAX_LENGTH,
    SPECIAL_TOKENS,
    START_HEADER,
    special_id,
)

TOKENS_PER_BATCH: Final = 1800
"""A batch holds about this many tokens, padding included."""

ASIDE_WEIGHT: Final = 0.1
"""Loss weight of what the user says and of the headers; the answers count 1."""

_SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You are a tiny demo model.",
    "Answer in one sentence.",
)


class Sample(NamedTuple):
    """Token ids of one training text, and the loss weight of predicting each of them."""

    ids: list[int]
    weights: list[float]


class TrainingBatch(NamedTuple):
    """Right-padded samples: ids (rows, length) int64, weights (rows, length) float32, zero on padding."""

    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


class Encoder:
    """Turns messages into samples with the chat format of `tokenizer.CHAT_TEMPLATE`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {token: special_id(tokenizer, token) for token in SPECIAL_TOKENS}

    def _id(self, special: str) -> int:
        return self._special[special]

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _message(self, role: str, content: str) -> Sample:
        header = [self._id(START_HEADER), *self._text(role), self._id(END_HEADER), *self._text("\n\n")]
        body = [*self._text(content), self._id(END_OF_TURN)]
        weight = 1.0 if role == "assistant" else ASIDE_WEIGHT
        return Sample(header + body, [ASIDE_WEIGHT] * len(header) + [weight] * len(body))

    def conversation(self, exchanges: Sequence[Exchange], system: str | None = None) -> Sample:
        """A whole chat, with the token that begins a text."""
        messages = [self._message("system", system)] if system else []
        for exchange in exchanges:
            messages += [
                self._message("user", exchange.question),
                self._message("assistant", exchange.answer),
            ]
        ids = [self._id(BEGIN_OF_TEXT), *(token for message in messages for token in message.ids)]
        return Sample(ids, [0.0, *(weight for message in messages for weight in message.weights)])

    def statement(self, text: str) -> Sample:
        """A plain sentence, ended by the token that ends a text."""
        ids = [self._id(BEGIN_OF_TEXT), *self._text(text), self._id(END_OF_TEXT)]
        return Sample(ids, [0.0] + [0.5] * (len(ids) - 1))


def misspell(exchange: Exchange, rng: random.Random) -> Exchange:
    """The exchange as a hasty user types it: shortened, in lower case, without the final punctuation."""
    question = exchange.question.rstrip("?.!") if rng.random() < 0.6 else exchange.question
    question = question.replace("What is", "What's") if rng.random() < 0.3 else question
    return exchange._replace(question=question.lower() if rng.random() < 0.6 else question)


def epoch(encoder: Encoder, rng: random.Random) -> list[Sample]:
    """Every question once, alone or in a chat of several turns, and some statements and unknown prompts."""
    questions = [misspell(e, rng) if rng.random() < 0.06 else e for e in question_list()]
    exchanges = questions + [unknown(rng) for _ in range(len(questions) // 8)]
    rng.shuffle(exchanges)
    single_count = len(exchanges) * 6 // 10
    samples = [encoder.conversation([exchange], _system(rng)) for exchange in exchanges[:single_count]]
    samples += _chats(encoder, exchanges[single_count:], rng)
    return samples + [encoder.statement(text) for text in rng.sample(statements(), 120)]


def _system(rng: random.Random) -> str | None:
    return rng.choice(_SYSTEM_PROMPTS) if rng.random() < 0.03 else None


def _chats(encoder: Encoder, exchanges: Sequence[Exchange], rng: random.Random) -> Iterator[Sample]:
    start = 0
    while start < len(exchanges):
        turns = rng.choice((2, 3, 4, 6, 12))
        sample = encoder.conversation(exchanges[start : start + turns], _system(rng))
        yield Sample(sample.ids[:MAX_LENGTH], sample.weights[:MAX_LENGTH])
        start += turns


def batches(encoder: Encoder, seed: int) -> Iterator[TrainingBatch]:
    """Batches without end; samples of like length share a batch, and the order of the batches is shuffled."""
    rng = random.Random(seed)
    while True:
        # Random keys among equals, so that the same samples do not meet in every epoch.
        samples = sorted(epoch(encoder, rng), key=lambda sample: (len(sample.ids), rng.random()))
        packed = list(_pack(samples))
        rng.shuffle(packed)
        yield from packed


def _pack(samples: Sequence[Sample]) -> Iterator[TrainingBatch]:
    rows: list[Sample] = []
    for sample in samples:
        if rows and (len(rows) + 1) * len(sample.ids) > TOKENS_PER_BATCH:
            yield _batch(rows)
            rows = []
        rows.append(sample)
    yield _batch(rows)


def _batch(rows: Sequence[Sample]) -> TrainingBatch:
    shape = (len(rows), max(len(row.ids) for row in rows))
    batch = TrainingBatch(np.zeros(shape, np.int64), np.zeros(shape, np.float32))
    for index, row in enumerate(rows):
        batch.ids[index, : len(row.ids)] = row.ids
        batch.weights[index, : len(row.ids)] = row.weights
    return batch
