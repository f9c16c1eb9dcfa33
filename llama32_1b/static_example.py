"""Runs the static step in this folder on the virtual NPU: a prompt, block by block, then what follows it.

    python example.py [TEXT]

`aerie export` wrote this file beside static_step.mlir, the program, and static_step.args.json, its arguments.
Everything that changes from pass to pass is an input, in numpy arrays of bf16: the cache, and the masks that
say what of it is seen, and where a block is written. The first pass compiles the program, which takes about a
second for a launch; after that it is in the cache of compiled programs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.cli.checkpoints import find_checkpoint
from aerie.common import folders
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.static_form import empty_cache, inputs, results, static_weights
from aerie.multi_launch_builder.builder import read_program
from aerie.multi_launch_builder.static_step import STATIC_STEP_KIND, StaticSizes
from aerie.runtime import KernelCache, select_backend

HERE = Path(__file__).parent


def main(text: str) -> None:
    """Continue `text` by the rest of its last block, or by a block if that one is full."""
    table = json.loads((HERE / f"{STATIC_STEP_KIND}.args.json").read_text())
    sizes = StaticSizes(**table["sizes"])
    program = read_program(HERE, STATIC_STEP_KIND)
    checkpoint = open_checkpoint(find_checkpoint(table["model"]))
    diffusion, vocab_size = checkpoint.config.diffusion, checkpoint.config.vocab_size
    assert diffusion is not None
    mask, block = diffusion.mask_token_id, sizes.block
    prompt = checkpoint.tokenizer.encode(text)
    ids = np.array(prompt + [mask] * (block - len(prompt) % block))
    with KernelCache(folders.programs_folder(), select_backend("virtual")) as cache:
        cache.compile_and_cache(program)
        weights: dict[str, Any] = static_weights(checkpoint.weights, program)
        cache.preload(program, **weights)

        def step(start: int, kv_cache: Any, commit: bool) -> tuple[Any, Any]:
            """Logits of the block that begins at `start`, (block, vocab_size), and the updated cache."""
            tokens = np.tile(ids[start : start + block], (sizes.batch, 1))
            inputs_ = inputs(checkpoint, program, sizes, tokens, [start] * sizes.batch, kv_cache, commit)
            arrays: dict[str, Any] = dict(inputs_)
            logits, updated = results(program, sizes, vocab_size, cache.run(program, **arrays))
            return logits[0], updated

        kv_cache, last, passes = empty_cache(sizes), np.zeros((1, vocab_size), np.float32), 0
        for start in range(0, len(ids), block):
            block_ids = ids[start : start + block]
            while (block_ids == mask).any():  # iteration: the cache stays as it is
                logits, _ = step(start, kv_cache, commit=False)
                if diffusion.shifted:  # logits at a position say the token at the next one
                    logits = np.concatenate([last, logits[:-1]])
                fill_in(block_ids, logits, mask)
                passes += 1
            logits, kv_cache = step(start, kv_cache, commit=True)
            last, passes = logits[-1:], passes + 1
    print(f"{passes} passes of {len(program.launches)} launches; a cache of {kv_cache.nbytes} bytes")
    print(f"{len(ids) - len(prompt)} tokens: {ids[len(prompt) :].tolist()}")
    print(text + checkpoint.tokenizer.decode(ids[len(prompt) :].tolist()))


def fill_in(block_ids: Any, logits: Any, mask: int) -> None:
    """Write the likeliest token at the masked position with the highest probability."""
    logits = np.array(logits)
    logits[:, mask] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    confidence = np.where(block_ids == mask, weights.max(axis=1) / weights.sum(axis=1), -1.0)
    position = int(confidence.argmax())
    block_ids[position] = logits[position].argmax()


def read_prompt(arguments: Sequence[str]) -> str:
    """The text to continue."""
    return " ".join(arguments) or "The capital of France is"


if __name__ == "__main__":
    main(read_prompt(sys.argv[1:]))
