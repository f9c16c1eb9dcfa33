"""Asks the demo model that fills in blocks every question of its list, by this project's own engine.

`python -m aerie.llama32_1b.demo.diffusion.evaluate [--checkpoint DIR]`, greedy, under each rule. Exits with
1 where fewer answers are right under the static and the dynamic one, or a pass gives fewer tokens under the
dynamic one, than is wanted.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aerie.common import folders
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.progress import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session, prepare_runtime
from aerie.engine.strategies.choosing import DYNAMIC, NAMES, STATIC
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.diffusion import CHECKPOINT
from aerie.runtime import select_backend

RIGHT: Final = 0.9
"""Share of the answers that is to be right under the static rule."""
MOST_LOST: Final = 0.02
"""Of that share, under the dynamic rule."""
TOKENS_PER_PASS: Final = 1.6
"""Under the dynamic rule, were every block committed in a pass of its own."""
MOST_TOKENS: Final = 96


class Figures(NamedTuple):
    """Of all answers under a rule. right: those that are exact, by topic. committed: blocks whose keys and
    values were written, each by the first pass of the next block."""

    asked: Counter[str]
    right: Counter[str]
    tokens: int
    passes: int
    blocks: int
    committed: int

    @property
    def share(self) -> float:
        return self.right.total() / self.asked.total()

    @property
    def tokens_per_pass(self) -> float:
        """With a pass more for every block that was committed."""
        return self.tokens / (self.passes + self.committed)

    def __str__(self) -> str:
        return (
            f"{self.right.total()} of {self.asked.total()} right ({self.share:.2%}); "
            f"{self.tokens / self.passes:.2f} tokens a pass, {self.tokens_per_pass:.2f} with commits in "
            f"passes of their own; {self.passes / self.blocks:.2f} passes a block"
        )


def evaluate(session: Session, exchanges: Sequence[Exchange], rule: str) -> Figures:
    """What the model answers, greedily, to all of these at once."""
    sampler, config = Sampler(), session.model.config
    maker = DecodeConfig(rule=rule).maker(config, sampler)
    prompts = [
        session.tokenizer.encode_chat([{"role": "user", "content": each.question}]) for each in exchanges
    ]
    requests = [session.scheduler.submit(ids, MOST_TOKENS, sampler, strategy=maker) for ids in prompts]
    while not all(one.is_over for one in requests):
        session.scheduler.step()
    passes = [one.strategy.passes for one in requests]
    return Figures(
        Counter(each.topic for each in exchanges),
        Counter(
            each.topic for each, one in zip(exchanges, requests, strict=True) if _is_right(session, each, one)
        ),
        sum(len(one.token_ids) for one in requests),
        *(sum(getattr(one, name) for one in passes) for name in ("passes", "blocks", "committed")),
    )


def _is_right(session: Session, exchange: Exchange, request: Request) -> bool:
    return session.tokenizer.decode(request.token_ids) == exchange.answer


def open_session(checkpoint: Path) -> Session:
    options = RuntimeOptions(None, select_backend("virtual"), folders.programs_folder())
    return prepare_runtime(open_checkpoint(checkpoint), options, Reporter())


def is_enough(static: Figures, dynamic: Figures) -> bool:
    """Whether the checkpoint is as good as the one that ships has to be."""
    is_right = static.share >= RIGHT and dynamic.share >= static.share - MOST_LOST
    return is_right and dynamic.tokens_per_pass >= TOKENS_PER_PASS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.diffusion.evaluate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="folder to load (the shipped one)"
    )
    session, questions = open_session(parser.parse_args().checkpoint), question_list()
    figures = {}
    for rule in NAMES:
        made = figures[rule] = evaluate(session, questions, rule)
        print(f"{rule}: {made}", flush=True)
        for topic, count in sorted(made.asked.items()):
            print(f"  {topic:12} {made.right[topic]:5} of {count:5} right")
    return 0 if is_enough(figures[STATIC], figures[DYNAMIC]) else 1


if __name__ == "__main__":
    sys.exit(main())
