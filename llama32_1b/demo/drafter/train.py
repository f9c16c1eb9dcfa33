"""Trains the demo's draft model: `python -m aerie.llama32_1b.demo.drafter.train [--out DIR]`.

Never needed to use the model. It begins as the demo without its inner layers, and learns the demo's own
conversations, which the demo knows by heart: so what it says is what the demo will. A new run gives a model
like the shipped one, not its bits.
"""

import argparse
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer

from aerie.common import folders
from aerie.llama32_1b.demo import CHECKPOINT
from aerie.llama32_1b.demo.batches import Encoder
from aerie.llama32_1b.demo.checkpoint_files import LAYERS, load_weights, new_model, write_checkpoint
from aerie.llama32_1b.demo.train import SEED, run_stage, second_rates

KEPT: Final = (0, LAYERS - 1)
"""Layers of the demo that the draft model begins with. Of the pairs with the first, this one says most
before any training: 1.1 to 1.6 nats on three batches, and with the second, fourth or fifth 1.5 to 2.2."""
STEPS: Final = 800


def new_drafter(tokenizer: Tokenizer) -> Any:
    """The demo in f32, of whose layers there are only those of KEPT."""
    whole, draft = new_model(tokenizer), new_model(tokenizer, len(KEPT))
    load_weights(whole, CHECKPOINT)
    for own, kept in enumerate(KEPT):
        draft.model.layers[own].load_state_dict(whole.model.layers[kept].state_dict())
    draft.model.norm.load_state_dict(whole.model.norm.state_dict())
    draft.model.embed_tokens.load_state_dict(whole.model.embed_tokens.state_dict())
    return draft


def rates(steps: int) -> list[float]:
    """Learning rate of every step: up to 1.2e-3 in 20 steps, then straight down to 0."""
    return [2 * rate for rate in second_rates(steps)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.drafter.train", description="Train the demo's draft model."
    )
    default, threads = folders.cache_folder() / "demo_drafter_checkpoint", torch.get_num_threads()
    parser.add_argument("--out", type=Path, default=default, help="folder to write (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training (%(default)s)")
    parser.add_argument("--threads", type=int, default=threads, help="CPU threads (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    model = new_drafter(tokenizer)
    run_stage(model, Encoder(tokenizer), SEED, rates(arguments.steps))
    write_checkpoint(model, tokenizer, arguments.out)
    check = f"python -m aerie.llama32_1b.demo.drafter.evaluate --checkpoint {arguments.out}"
    print(f"written; check it with: {check}")


if __name__ == "__main__":
    main()
