"""Ask the demo model every question of its list, and compare the draft model with its answers.

`python -m aerie.llama32_1b.demo.drafter.evaluate [--checkpoint DIR]`, with Hugging Face transformers in bf16
on the CPU, greedy. Exits with 1 if too few draft tokens are accepted.
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
from aerie.llama32_1b.demo.evaluate import DemoReference

DRAFTED: Final = 4
"""Draft tokens per pass."""
REQUIRED: Final = 3.6
"""How many of DRAFTED must be accepted on average."""


class DraftScore(NamedTuple):
    """The score of all answers. tokens: of the demo, end tokens included. matching: those that the draft
    model predicts too after the same text. drafted, accepted: as decode counts them. passes: of the demo;
    each accepts the matching drafts and adds one token."""

    tokens: int
    matching: int
    drafted: int
    accepted: int
    passes: int

    def __str__(self) -> str:
        return (
            f"alike: {self.matching} of {self.tokens} tokens ({self.matching / self.tokens:.2%})\n"
            f"accepted: {self.accepted} of {self.drafted} draft tokens, "
            f"{DRAFTED * self.share:.2f} of {DRAFTED}, wanted {REQUIRED}\n"
            f"tokens per pass of the demo: {self.tokens / self.passes:.2f}"
        )

    @property
    def share(self) -> float:
        return self.accepted / self.drafted


def count_drafts(matching: Sequence[bool]) -> DraftScore:
    """Count what decode with DRAFTED draft tokens per pass does over an answer.

    matching: for each token, whether the draft model predicts it after the tokens before it. Drafts after a
    wrong one do not count, and none are made past the end.
    """
    at, drafted, accepted, passes = 0, 0, 0, 0
    while at < len(matching):
        drafts = matching[at : at + DRAFTED]
        correct = drafts.index(False) if False in drafts else len(drafts)
        at, passes = at + correct + 1, passes + 1
        drafted, accepted = drafted + len(drafts), accepted + correct
    return DraftScore(len(matching), sum(matching), drafted, accepted, passes)


def sum_scores(answers: Iterable[DraftScore]) -> DraftScore:
    """The sum of the scores of several answers."""
    return DraftScore(*map(sum, zip(*answers, strict=True)))


def target_answers(
    target: DemoReference, exchanges: Sequence[Exchange]
) -> Iterator[tuple[list[int], list[int]]]:
    """For each question, the ids of the prompt and of the demo's greedy answer with its end token.

    The answer is its text, tokenized; one that was cut at MAX_NEW_TOKENS counts as ending there.
    """
    end = target.tokenizer.eos_token_id
    for result in target.answers(exchanges):
        answer = target.tokenizer(result.answer, add_special_tokens=False)["input_ids"]
        yield target.prompt_ids(result.exchange.question), [*answer, end]


def matching_tokens(draft: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
    """For each token of the answer, whether it is the draft model's likeliest one."""
    with torch.inference_mode():
        logits = draft(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    matching: list[bool] = (logits.argmax(-1) == torch.tensor(answer)).tolist()
    return matching


def evaluate(target: DemoReference, draft: Any, exchanges: Sequence[Exchange]) -> DraftScore:
    """The score over all questions. draft: a causal model of transformers."""
    figures: list[DraftScore] = []
    for prompt, answer in target_answers(target, exchanges):
        figures.append(count_drafts(matching_tokens(draft, prompt, answer)))
        if len(figures) % 500 == 0:
            print(f"{len(figures)} of {len(exchanges)} asked", file=sys.stderr, flush=True)
    return sum_scores(figures)


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
    figures = evaluate(DemoReference(TARGET), DemoReference(checkpoint).model, question_list())
    print(figures)
    return 0 if DRAFTED * figures.share >= REQUIRED else 1


if __name__ == "__main__":
    sys.exit(main())
