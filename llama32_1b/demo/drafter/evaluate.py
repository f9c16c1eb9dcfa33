"""Asks the demo model every question of its list, and its draft model what the demo will say.

`python -m aerie.llama32_1b.demo.drafter.evaluate [--checkpoint DIR]`, with Hugging Face transformers in bf16
on the CPU, greedy. Exits with 1 where fewer guesses are right than is wanted.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from aerie.llama32_1b.demo import CHECKPOINT as TARGET
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.drafter import CHECKPOINT
from aerie.llama32_1b.demo.evaluate import Reference

DRAFTED: Final = 4
"""Guesses at a time."""
REQUIRED: Final = 3.6
"""Of DRAFTED, how many are to be right."""


class Figures(NamedTuple):
    """Of all answers. said: tokens of the demo, ends included. alike: those that the draft model says too,
    after the same text. drafted, accepted: as decoding would count them. passes: of the demo, each of which
    takes the guesses that are right and adds a token of its own."""

    said: int
    alike: int
    drafted: int
    accepted: int
    passes: int

    def __str__(self) -> str:
        return (
            f"alike: {self.alike} of {self.said} tokens ({self.alike / self.said:.2%})\n"
            f"accepted: {self.accepted} of {self.drafted} guesses, {DRAFTED * self.share:.2f} of {DRAFTED}, "
            f"wanted {REQUIRED}\n"
            f"tokens per pass of the demo: {self.said / self.passes:.2f}"
        )

    @property
    def share(self) -> float:
        return self.accepted / self.drafted


def count(alike: Sequence[bool]) -> Figures:
    """What decoding with DRAFTED guesses at a time counts over an answer.

    alike: for every token of it, whether the draft model, after the tokens before it, says the same. So where
    a guess is right the next is made after the same text as here, and no guess behind a wrong one counts:
    this is what guesses made one after the other give. Guesses past the end are not made.
    """
    at, drafted, accepted, passes = 0, 0, 0, 0
    while at < len(alike):
        guesses = alike[at : at + DRAFTED]
        right = guesses.index(False) if False in guesses else len(guesses)
        at, passes = at + right + 1, passes + 1
        drafted, accepted = drafted + len(guesses), accepted + right
    return Figures(len(alike), sum(alike), drafted, accepted, passes)


def together(answers: Iterable[Figures]) -> Figures:
    """The figures of several answers, added up."""
    return Figures(*map(sum, zip(*answers, strict=True)))


def said(target: Reference, exchanges: Sequence[Exchange]) -> Iterator[tuple[list[int], list[int]]]:
    """Of every question the ids of the prompt and of the demo's greedy answer, its end included.

    The answer is its text, tokenized; one that was cut at the demo's MAX_NEW_TOKENS is taken to end there.
    """
    end = target.tokenizer.eos_token_id
    for result in target.answers(exchanges):
        answer = target.tokenizer(result.answer, add_special_tokens=False)["input_ids"]
        yield target.prompt_ids(result.exchange.question), [*answer, end]


def alike(draft: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
    """For every token of the answer, whether it is the draft model's best one there."""
    with torch.inference_mode():
        logits = draft(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    same: list[bool] = (logits.argmax(-1) == torch.tensor(answer)).tolist()
    return same


def evaluate(target: Reference, draft: Any, exchanges: Sequence[Exchange]) -> Figures:
    """See Figures. draft: a causal model of transformers."""
    figures: list[Figures] = []
    for prompt, answer in said(target, exchanges):
        figures.append(count(alike(draft, prompt, answer)))
        if len(figures) % 500 == 0:
            print(f"{len(figures)} of {len(exchanges)} asked", file=sys.stderr, flush=True)
    return together(figures)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.drafter.evaluate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="folder to load (the shipped one)"
    )
    checkpoint: Path = parser.parse_args().checkpoint
    if not (checkpoint / "config.json").is_file():
        parser.error(
            f"no checkpoint in {checkpoint}: config.json is missing; train one with "
            "llama32_1b.demo.drafter.train"
        )
    figures = evaluate(Reference(TARGET), Reference(checkpoint).model, question_list())
    print(figures)
    return 0 if DRAFTED * figures.share >= REQUIRED else 1


if __name__ == "__main__":
    sys.exit(main())
