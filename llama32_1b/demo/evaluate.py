"""Asks the demo model every question of its list.

`python -m aerie.llama32_1b.demo.evaluate [--checkpoint DIR]`, with
Hugging Face transformers in bf16 on the CPU, greedy. Exits with 1 where under 95 % of the answers are exact.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from aerie.llama32_1b.demo import CHECKPOINT
from aerie.llama32_1b.demo.corpus import Exchange, question_list

REQUIRED_SHARE: Final = 0.95
MAX_NEW_TOKENS: Final = 96
"""The longest answer of the list has 70 tokens."""
MAX_BATCH_ROWS: Final = 128
"""At most so many questions of one length are asked at once."""


class EvaluatedAnswer(NamedTuple):
    """What the model answered to one question.

    `margin` is the smallest lead, over the answer's tokens, of the best logit over the second: how much
    rounding the answer can stand.
    """

    exchange: Exchange
    answer: str
    margin: float

    @property
    def exact(self) -> bool:
        return self.answer == self.exchange.answer


class DemoReference:
    """The demo checkpoint in Hugging Face transformers, bf16 on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.bfloat16, trust_remote_code=False
        ).eval()

    def prompt_ids(self, question: str) -> list[int]:
        """Token ids of a chat with this one question, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answers(self, exchanges: Sequence[Exchange]) -> Iterator[EvaluatedAnswer]:
        """Greedy, shortest prompts first; questions of one length share a batch, so none is padded."""
        by_length: defaultdict[int, list[tuple[Exchange, list[int]]]] = defaultdict(list)
        for exchange in exchanges:
            ids = self.prompt_ids(exchange.question)
            by_length[len(ids)].append((exchange, ids))
        for _, prompts in sorted(by_length.items()):
            for start in range(0, len(prompts), MAX_BATCH_ROWS):
                yield from self._batch(prompts[start : start + MAX_BATCH_ROWS])

    def _batch(self, exchanges: Sequence[tuple[Exchange, list[int]]]) -> Iterator[EvaluatedAnswer]:
        prompts = torch.tensor([ids for _, ids in exchanges])
        with torch.inference_mode():
            generated = self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=MAX_NEW_TOKENS,
                pad_token_id=self.tokenizer.eos_token_id,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(generated.logits).float().topk(2).values
        leads = (best[..., 0] - best[..., 1]).T.tolist()
        tokens = generated.sequences[:, prompts.shape[1] :].tolist()
        for (exchange, _), row, lead in zip(exchanges, tokens, leads, strict=True):
            length = (
                row.index(self.tokenizer.eos_token_id) + 1 if self.tokenizer.eos_token_id in row else len(row)
            )
            yield EvaluatedAnswer(exchange, self.tokenizer.decode(row[: length - 1]), min(lead[:length]))


def print_report(results: Sequence[EvaluatedAnswer]) -> float:
    """Print the misses, a table by topic, and the share of exact answers, which is returned."""
    for result in results:
        if not result.exact:
            question, expected = result.exchange.question, result.exchange.answer
            print(f"miss: {question!r}\n  wanted {expected!r}\n  got    {result.answer!r}")
    questions = Counter(result.exchange.topic for result in results)
    exact = Counter(result.exchange.topic for result in results if result.exact)
    for topic, count in sorted(questions.items()):
        print(f"{topic:12} {exact[topic]:5} of {count:5} exact")
    margins = sorted(result.margin for result in results)
    print("smallest lead in logits of a chosen token over the next best, answer by answer:")
    for name, share in (("worst", 0.0), ("1 in 100", 0.01), ("1 in 10", 0.1), ("median", 0.5)):
        print(f"{name:12} {margins[int(share * len(margins))]:6.2f}")
    correct = sum(exact.values())
    print(f"exact: {correct} of {len(results)} ({correct / len(results):.2%}), wanted {REQUIRED_SHARE:.0%}")
    return correct / len(results)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.evaluate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="folder to load (the shipped one)"
    )
    checkpoint: Path = parser.parse_args().checkpoint
    if not (checkpoint / "config.json").is_file():
        parser.error(
            f"no checkpoint in {checkpoint}: config.json is missing; train one with llama32_1b.demo.train"
        )
    reference, exchanges = DemoReference(checkpoint), question_list()
    results = []
    for result in reference.answers(exchanges):
        results.append(result)
        if len(results) % 200 == 0:
            print(f"{len(results)} of {len(exchanges)} asked", file=sys.stderr, flush=True)
    return 0 if print_report(results) >= REQUIRED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
