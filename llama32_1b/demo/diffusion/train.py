"""Trains the demo model that fills in blocks: `python -m aerie.llama32_1b.demo.diffusion.train [--out DIR]`.

Never needed to use the model. Facts, vocabulary and conversations are the demo's; what is learnt is to fill
masks in (noise.py). A new run gives a model like the shipped one, not its bits.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from aerie.common import folders
from aerie.llama32_1b.demo.batches import Encoder
from aerie.llama32_1b.demo.diffusion import MASK_TOKEN
from aerie.llama32_1b.demo.diffusion.checkpoint_files import (
    end_ids,
    new_model,
    new_tokenizer,
    write_checkpoint,
)
from aerie.llama32_1b.demo.diffusion.noise import NoisyBatch, noisy_batches
from aerie.llama32_1b.demo.tokenizer import special_id
from aerie.llama32_1b.demo.train import SEED, TrainingLog, make_optimizer

STEPS: Final = 1800
KEEP_EVERY: Final = 600


def hidden_rows(model: Any, batch: NoisyBatch) -> Any:
    """The last layer's output at the masks of a batch, (masks, hidden_size)."""
    made = model.model(
        input_ids=torch.from_numpy(batch.ids),
        attention_mask={"full_attention": torch.from_numpy(batch.attention_mask)[:, None]},
        position_ids=torch.from_numpy(batch.positions),
        use_cache=False,
    )
    width = batch.targets.shape[1]
    return made.last_hidden_state[:, :width][torch.from_numpy(batch.targets >= 0)]


def batch_loss(model: Any, batch: NoisyBatch) -> Any:
    """Mean cross-entropy of every mask, in nats; a scalar tensor in f32. Products are rounded as the
    checkpoint's will be."""
    targets = torch.from_numpy(batch.targets[batch.targets >= 0])
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.lm_head(hidden_rows(model, batch))
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def rates(steps: int) -> list[float]:
    """Learning rate of every step: up to 2e-3 in the first 100, then a cosine down to 0."""
    warm = [2e-3 * (step + 1) / 100 for step in range(min(100, steps))]
    rest = steps - len(warm)
    return warm + [1e-3 * (1 + math.cos(math.pi * step / rest)) for step in range(rest)]


def train(model: Any, drawn: Iterator[NoisyBatch], steps: int, keep: Callable[[], None]) -> None:
    """Train `model` in place; every KEEP_EVERY steps it is kept, so that a run that is ended leaves one."""
    optimizer, report = make_optimizer(model), TrainingLog(steps)
    for step, (rate, batch) in enumerate(zip(rates(steps), drawn, strict=False)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report.add(step, loss.item())
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == steps:
            keep()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.diffusion.train",
        description="Train the demo model that fills in blocks.",
    )
    default = folders.cache_folder() / "demo_diffusion_checkpoint"
    parser.add_argument("--out", type=Path, default=default, help="folder to write (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training (%(default)s)")
    threads = torch.get_num_threads()
    parser.add_argument("--threads", type=int, default=threads, help="CPU threads (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    tokenizer = new_tokenizer()
    ends, mask = end_ids(tokenizer), special_id(tokenizer, MASK_TOKEN)
    model = new_model(tokenizer)
    drawn = noisy_batches(Encoder(tokenizer), mask, ends, SEED)
    train(model, drawn, arguments.steps, partial(write_checkpoint, model, tokenizer, arguments.out))
    print(f"written to {arguments.out}; check it with python -m aerie.llama32_1b.demo.diffusion.evaluate")


if __name__ == "__main__":
    main()
