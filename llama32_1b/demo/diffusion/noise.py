"""From the demo's conversations to batches for block diffusion: blocks with masks beside the whole text.

Every text stands in a row twice, noisy and clean (arXiv 2503.09573, section 3.2): a noisy block sees itself
and the clean blocks before it, a clean block itself and those before it. So all blocks of a text are learnt
in one pass, each from what it will see when it is filled in. Of the noisy text there are only the blocks in
which the model says something.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aerie.llama32_1b.demo.batches import Encoder, Sample, epoch
from aerie.llama32_1b.demo.diffusion import BLOCK

TOKENS_PER_BATCH: Final = 1800
"""Of the clean texts of a batch, padding included."""
SPOKEN: Final = 0.5
"""Loss weight from which a token is one that the model says; what users say is never masked."""


class Noisy(NamedTuple):
    """A batch of rows, each with so many noisy positions and then the clean ones.

    ids, positions: (rows, noisy + clean) int64. targets: (rows, noisy) int64, -1 where there is no mask.
    seen: what each position sees, (rows, noisy + clean, noisy + clean).
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    seen: npt.NDArray[np.bool_]


class Text(NamedTuple):
    """A text in whole blocks: what is read, and what the model is to say in each block: the token, or -1.

    After the token that ends an answer its block is filled up with the same: when a block is filled in, what
    comes after the end is not there yet.
    """

    clean: list[int]
    said: list[int]


def text_of(sample: Sample, ends: Sequence[int]) -> Text:
    """`ends`: the tokens that end an answer."""
    clean = [*sample.ids, *[sample.ids[-1]] * (-len(sample.ids) % BLOCK)]
    weights = [*sample.weights, *[0.0] * (len(clean) - len(sample.ids))]
    said = [token if weight >= SPOKEN else -1 for token, weight in zip(clean, weights, strict=True)]
    for at, token in enumerate(said):
        if token in ends:
            rest = range(at + 1, at // BLOCK * BLOCK + BLOCK)
            said[rest.start : rest.stop] = [token] * len(rest)
    return Text(clean, said)


def noisy(text: Text, mask: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Position, id and target of the blocks in which something is said: of these tokens some are masked, from
    one to all of them, or, as when the block is begun, all."""
    for first in range(0, len(text.clean), BLOCK):
        spoken = [at for at in range(first, first + BLOCK) if text.said[at] >= 0]
        if not spoken:
            continue
        count = len(spoken) if rng.random() < 0.4 else rng.randint(1, len(spoken))
        masked = set(rng.sample(spoken, count))
        for at in range(first, first + BLOCK):
            token = text.said[at] if at in spoken else text.clean[at]
            yield at, *((mask, token) if at in masked else (token, -1))


def noisy_batches(encoder: Encoder, mask: int, ends: Sequence[int], seed: int) -> Iterator[Noisy]:
    """Batches without end; texts of like length share one, and the order is shuffled."""
    rng = random.Random(seed)
    while True:
        texts = [text_of(sample, ends) for sample in epoch(encoder, rng)]
        packed = [*_pack(sorted(texts, key=lambda text: (len(text.clean), rng.random())))]
        rng.shuffle(packed)
        for rows in packed:
            yield batch_of(rows, mask, rng)


def _pack(texts: Sequence[Text]) -> Iterator[list[Text]]:
    rows: list[Text] = []
    for text in texts:
        if rows and (len(rows) + 1) * len(text.clean) > TOKENS_PER_BATCH:
            yield rows
            rows = []
        rows.append(text)
    yield rows


def batch_of(rows: Sequence[Text], mask: int, rng: random.Random) -> Noisy:
    """Texts side by side, the shorter ones padded."""
    drawn = [[*noisy(text, mask, rng)] for text in rows]
    width, length = max(map(len, drawn)), max(len(text.clean) for text in rows)
    ids, positions = (np.zeros((len(rows), width + length), np.int64) for _ in range(2))
    targets, is_there = np.full((len(rows), width), -1, np.int64), np.zeros((len(rows), width), bool)
    positions[:, width:] = np.arange(length)
    for row, (text, own) in enumerate(zip(rows, drawn, strict=True)):
        ids[row, width : width + len(text.clean)] = text.clean
        count = len(own)
        positions[row, :count], ids[row, :count], targets[row, :count] = np.array(own).T
        is_there[row, :count] = True
    return Noisy(ids, positions, targets, seen(positions // BLOCK, is_there))


def seen(blocks: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """What each position sees: blocks, (rows, noisy + clean), of all; is_there, (rows, noisy), which of the
    noisy ones are no padding. Padding sees itself."""
    width = is_there.shape[1]
    same, before = blocks[:, :, None] == blocks[:, None, :], blocks[:, :, None] > blocks[:, None, :]
    seen = np.zeros(same.shape, bool)
    seen[:, :, width:] = before[:, :, width:]
    seen[:, width:, width:] |= same[:, width:, width:]
    seen[:, :width, :width] = same[:, :width, :width] & is_there[:, None, :]
    return seen | np.eye(seen.shape[1], dtype=bool)
