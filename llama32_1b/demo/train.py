"""Train the demo model: `python -m aerie.llama32_1b.demo.train [--out DIR]`. Not needed to use the model.

The first stage trains a new model. The second one starts from its bf16-rounded checkpoint, with a learning
rate that falls to 0.

The seed fixes the corpus, the vocabulary, the initial weights and the order of the batches. Machines and
versions of torch still round differently: a new run gives a similar model, not the same bits.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer

from aerie.common import folders
from aerie.llama32_1b.demo.batches import Encoder, TrainingBatch, batches
from aerie.llama32_1b.demo.checkpoint_files import load_weights, new_model, write_checkpoint
from aerie.llama32_1b.demo.tokenizer import learn_tokenizer, tokenizer_texts

SEED: Final = 2024
FIRST_STEPS: Final = 2500
SECOND_STEPS: Final = 500
WEIGHT_DECAY: Final = 0.05
REPORT_EVERY: Final = 50


def first_rates(steps: int) -> list[float]:
    """Learning rate of every step of the first stage.

    A linear warm-up over 100 steps to 2e-3, then a cosine that would reach 2e-5 at step 4000, left early.
    """
    rates = [2e-3 * (step + 1) / 100 for step in range(100)]
    rates += [2e-5 + 1.98e-3 * (1 + math.cos(math.pi * step / 3900)) / 2 for step in range(3900)]
    return rates[:steps]


def second_rates(steps: int) -> list[float]:
    """Learning rate of every step of the second stage: up to 6e-4 in 20 steps, then straight down to 0."""
    return [6e-4 * min((step + 1) / 20, (steps - step) / steps) for step in range(steps)]


def batch_loss(model: Any, batch: TrainingBatch) -> Any:
    """Weighted mean cross-entropy of every next token, in nats; a scalar tensor in f32.

    The products run on bf16-rounded weights and activations (autocast), the way the checkpoint is used later,
    so that the answers learn to stand the rounding.
    """
    ids, weights = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)[:, 1:].reshape(-1)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    flat = logits[:, :-1].float().flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1), reduction="none")
    return (losses * weights).sum() / weights.sum()


def make_optimizer(model: Any) -> Any:
    """AdamW; the norm weights are not decayed, and the stage sets the learning rate."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), foreach=True)


class TrainingLog:
    """Prints a line every REPORT_EVERY steps: loss since the last line, speed, minutes left."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._start = time.monotonic()
        self._losses: list[float] = []

    def add(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        if (step + 1) % REPORT_EVERY and step + 1 != self._steps:
            return
        per_step = (time.monotonic() - self._start) / (step + 1)
        mean = sum(self._losses) / len(self._losses)
        left = (self._steps - step - 1) * per_step / 60
        print(
            f"step {step + 1}/{self._steps}  loss {mean:.4f}  {per_step:.2f} s/step  {left:.0f} min left",
            file=sys.stderr,
            flush=True,
        )
        self._losses.clear()


def run_stage(model: Any, encoder: Encoder, seed: int, rates: Sequence[float]) -> None:
    """Train `model` in place for one step per learning rate, on batches drawn with `seed`."""
    optimizer, report = make_optimizer(model), TrainingLog(len(rates))
    for step, (rate, batch) in enumerate(zip(rates, batches(encoder, seed), strict=False)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report.add(step, loss.item())


def train_first(tokenizer: Tokenizer, out: Path, steps: int) -> None:
    """The first stage: a new model, written to `out`."""
    torch.manual_seed(SEED)
    model = new_model(tokenizer)
    run_stage(model, Encoder(tokenizer), SEED, first_rates(steps))
    write_checkpoint(model, tokenizer, out)


def train_second(tokenizer: Tokenizer, start: Path, out: Path, steps: int) -> None:
    """The second stage: from the checkpoint in `start` to the one in `out`; they may be the same folder."""
    model = new_model(tokenizer)
    load_weights(model, start)
    run_stage(model, Encoder(tokenizer), SEED + 1, second_rates(steps))
    write_checkpoint(model, tokenizer, out)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.train", description="Train the demo model."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=folders.cache_folder() / "demo_checkpoint",
        help="folder to write (%(default)s)",
    )
    parser.add_argument(
        "--settle", type=Path, metavar="DIR", help="only the second stage, on the first one's checkpoint"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (%(default)s)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = learn_tokenizer(tokenizer_texts())
    if not arguments.settle:
        train_first(tokenizer, arguments.out, FIRST_STEPS)
    train_second(tokenizer, arguments.settle or arguments.out, arguments.out, SECOND_STEPS)
    print(f"written; check it with: python -m aerie.llama32_1b.demo.evaluate --checkpoint {arguments.out}")


if __name__ == "__main__":
    main()
