"""Trains the probe's model: `python -m aerie.verify.recall.train [--out DIR]`. Never needed to use it.

A Llama of four layers reads texts in one piece, as any causal model is trained: it has never seen the masks
that it is probed with. The loss is of answers alone. It learns one hop with one fact in a chunk, then with
more, then two hops: each step of that order when the one before is answered, as nothing is learned from
questions that are too hard.

Texts, first weights and their order are fixed by the seed. Two machines or two versions of torch still round
differently: a new run gives a model like the one that is committed, not its bits.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from aerie.common import folders
from aerie.verify.recall import task

SEED: Final = 2026
RATE: Final = 1e-3
WARM_UP: Final = 100
"""Steps in which the learning rate rises."""
QUESTIONS: Final = 10
"""Questions per text: each is answered at its own position, with the earlier ones visible."""
EVERY: Final = 100
"""Steps between two reports of the share of right answers, after which the next lesson may start."""


class Lesson(NamedTuple):
    """A lesson ends when this share of the questions with the most hops is answered right. one_hop: their
    share.
    """

    facts: int
    one_hop: float
    right: float


LESSONS: Final = (
    *(Lesson(facts, 1.0, 0.95) for facts in (1, 2, 3, 4)),
    *(Lesson(facts, 0.4, 0.95) for facts in (2, 3)),
    Lesson(4, 0.4, 0.995),
)
"""Two hops start with two facts in a chunk: a single one could be found by its position, which is useless
later.
"""
MAX_STEPS: Final = 12_000


def config() -> dict[str, Any]:
    """The contents of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": task.VOCABULARY.index(task.BEGIN),
        "eos_token_id": task.VOCABULARY.index(task.END),
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "max_position_embeddings": 512,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": len(task.VOCABULARY),
    }


def tokenizer() -> Tokenizer:
    """A tokenizer in which a word is a token."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(task.VOCABULARY)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return words


class RecallBatch(NamedTuple):
    """Texts with questions and answers, (texts, tokens); the number of hops of each, (texts, QUESTIONS)."""

    ids: torch.Tensor
    hops: np.ndarray[Any, Any]


def make_batch(rng: np.random.Generator, lesson: Lesson) -> RecallBatch:
    count = 64 if lesson.facts < 3 else 32
    names = task.chains(rng, count, lesson.facts)
    hops = np.where(rng.random((count, QUESTIONS)) < lesson.one_hop, 1, 2)
    questions = task.make_questions(rng, names, hops).reshape(count, -1)
    return RecallBatch(
        torch.from_numpy(np.concatenate([*task.statements(rng, names), questions], axis=1)), hops
    )


def answers(model: Any, batch: RecallBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of every answer, (texts, QUESTIONS, vocabulary), and the answers."""
    first = batch.ids.shape[1] - 3 * QUESTIONS
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch.ids, use_cache=False).logits
    return logits[:, first + 1 :: 3].float(), batch.ids[:, first + 2 :: 3]


def steps(
    model: Any, rng: np.random.Generator, lesson: Lesson, optimizer: Any, first: int
) -> Iterator[float]:
    """Train in place. Yields after every EVERY steps the share of right answers to the hardest questions."""
    hardest, right, seen = (1 if lesson.one_hop == 1 else 2), 0, 0
    for step in range(first, MAX_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
        batch = make_batch(rng, lesson)
        logits, correct = answers(model, batch)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), correct.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        hard = batch.hops == hardest
        right += int((logits.argmax(-1) == correct).numpy()[hard].sum())
        seen += int(hard.sum())
        if (step + 1) % EVERY == 0:
            yield right / seen
            right = seen = 0


def learn(model: Any) -> None:
    """Train all lessons, in order."""
    rng, step, started = np.random.default_rng(SEED), 0, time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.02)
    for lesson in LESSONS:
        for right in steps(model, rng, lesson, optimizer, step):
            step += EVERY
            minutes = (time.monotonic() - started) / 60
            print(f"step {step}, {lesson}: {right:.1%} right, {minutes:.1f} min", file=sys.stderr, flush=True)
            if right >= lesson.right:
                break


def write_checkpoint(model: Any, folder: Path) -> None:
    """Write the model in Hugging Face format, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.detach() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    stored = {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": task.BEGIN, "eos_token": task.END}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.verify.recall.train", description="Train the model of the recall probe."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=folders.cache_folder() / "recall_checkpoint",
        help="folder to write (%(default)s)",
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (%(default)s)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**config())).float()
    learn(model)
    write_checkpoint(model, arguments.out)
    print(f"written; probe it with: python -m aerie.verify.recall --model {arguments.out}")


if __name__ == "__main__":
    main()
