"""From the demo's conversations to batches for block diffusion: noisy blocks beside the whole text.

Every text is in a row twice, noisy and clean (arXiv 2503.09573, section 3.2). A noisy block attends to itself
and the clean blocks before it, a clean block to itself and those before it. So all blocks of a text are
learnt in one pass, each from what it will see when it is unmasked. The noisy text has only the blocks with
targets.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aerie.llama32_1b.demo.batches import Encoder, Sample, epoch
from aerie.llama32_1b.demo.diffusion import BLOCK

TOKENS_PER_BATCH: Final = 1800
"""Tokens of the clean texts of a batch, padding included."""
MIN_TARGET_WEIGHT: Final = 0.5
"""Loss weight from which a token is a target; text of the user is never masked."""


class NoisyBatch(NamedTuple):
    """A batch of rows, each with its noisy positions and then its clean ones.

    ids, positions: (rows, noisy + clean) int64. targets: (rows, noisy) int64, -1 without a mask.
    attention_mask: (rows, noisy + clean, noisy + clean) bool.
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.bool_]


class BlockText(NamedTuple):
    """A text in whole blocks. clean: its ids. targets: the id the model has to predict at each position, or
    -1.

    After an end token its block is filled with the same token: when a block is unmasked, nothing follows yet.
    """

    clean: list[int]
    targets: list[int]


def block_text(sample: Sample, end_ids: Sequence[int]) -> BlockText:
    """The text of a sample. end_ids: tokens that end an answer."""
    clean = [*sample.ids, *[sample.ids[-1]] * (-len(sample.ids) % BLOCK)]
    weights = [*sample.weights, *[0.0] * (len(clean) - len(sample.ids))]
    targets = [
        token if weight >= MIN_TARGET_WEIGHT else -1 for token, weight in zip(clean, weights, strict=True)
    ]
    for position, token in enumerate(targets):
        if token in end_ids:
            rest = range(position + 1, position // BLOCK * BLOCK + BLOCK)
            targets[rest.start : rest.stop] = [token] * len(rest)
    return BlockText(clean, targets)


def add_noise(text: BlockText, mask: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield position, id and target for the blocks with targets. From one to all of the targets are masked,
    and often all, as at the start of a block."""
    for first in range(0, len(text.clean), BLOCK):
        spoken = [position for position in range(first, first + BLOCK) if text.targets[position] >= 0]
        if not spoken:
            continue
        count = len(spoken) if rng.random() < 0.4 else rng.randint(1, len(spoken))
        masked = set(rng.sample(spoken, count))
        for position in range(first, first + BLOCK):
            token = text.targets[position] if position in spoken else text.clean[position]
            yield position, *((mask, token) if position in masked else (token, -1))


def noisy_batches(encoder: Encoder, mask: int, end_ids: Sequence[int], seed: int) -> Iterator[NoisyBatch]:
    """Endless batches in random order; texts of similar length share one."""
    rng = random.Random(seed)
    while True:
        texts = [block_text(sample, end_ids) for sample in epoch(encoder, rng)]
        packed = [*_pack(sorted(texts, key=lambda text: (len(text.clean), rng.random())))]
        rng.shuffle(packed)
        for rows in packed:
            yield batch_of(rows, mask, rng)


def _pack(texts: Sequence[BlockText]) -> Iterator[list[BlockText]]:
    rows: list[BlockText] = []
    for text in texts:
        if rows and (len(rows) + 1) * len(text.clean) > TOKENS_PER_BATCH:
            yield rows
            rows = []
        rows.append(text)
    yield rows


def batch_of(rows: Sequence[BlockText], mask: int, rng: random.Random) -> NoisyBatch:
    """Texts side by side, the shorter ones padded."""
    noised = [[*add_noise(text, mask, rng)] for text in rows]
    width, length = max(map(len, noised)), max(len(text.clean) for text in rows)
    ids, positions = (np.zeros((len(rows), width + length), np.int64) for _ in range(2))
    targets, is_there = np.full((len(rows), width), -1, np.int64), np.zeros((len(rows), width), bool)
    positions[:, width:] = np.arange(length)
    for row, (text, rows_of_text) in enumerate(zip(rows, noised, strict=True)):
        ids[row, width : width + len(text.clean)] = text.clean
        count = len(rows_of_text)
        positions[row, :count], ids[row, :count], targets[row, :count] = np.array(rows_of_text).T
        is_there[row, :count] = True
    return NoisyBatch(ids, positions, targets, attention_mask(positions // BLOCK, is_there))


def attention_mask(blocks: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """What each position attends to. blocks: (rows, noisy + clean), of all positions. is_there: (rows,
    noisy), False for padding. Padding attends to itself."""
    width = is_there.shape[1]
    same, before = blocks[:, :, None] == blocks[:, None, :], blocks[:, :, None] > blocks[:, None, :]
    mask = np.zeros(same.shape, bool)
    mask[:, :, width:] = before[:, :, width:]
    mask[:, width:, width:] |= same[:, width:, width:]
    mask[:, :width, :width] = same[:, :width, :width] & is_there[:, None, :]
    return mask | np.eye(mask.shape[1], dtype=bool)
