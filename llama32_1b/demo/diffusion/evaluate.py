"""Ask the block diffusion demo every question of its list, with the engine of this project.

`python -m aerie.llama32_1b.demo.diffusion.evaluate [--checkpoint DIR]`, greedy, under each unmasking rule.
Exits with 1 if too few answers are correct under the static or the dynamic rule, or a pass gives too few
tokens under the dynamic one.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aerie.common import folders
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.unmasking import DYNAMIC, RULE_NAMES, STATIC
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.diffusion import CHECKPOINT
from aerie.runtime import select_backend

REQUIRED_SHARE: Final = 0.9
"""Required share of correct answers under the static rule."""
MAX_SHARE_LOST: Final = 0.02
"""How much smaller that share may be under the dynamic rule."""
REQUIRED_TOKENS_PER_PASS: Final = 1.6
"""Under the dynamic rule, if every block took an extra pass to commit it."""
MAX_NEW_TOKENS: Final = 96


class DiffusionScore(NamedTuple):
    """The score of all answers under a rule. correct: exact answers, by topic. committed: blocks whose keys
    and values were written, each by the first pass of the next block."""

    questions: Counter[str]
    correct: Counter[str]
    tokens: int
    passes: int
    blocks: int
    committed: int

    @property
    def share(self) -> float:
        return self.correct.total() / self.questions.total()

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass, with an extra pass for each committed block."""
        return self.tokens / (self.passes + self.committed)

    def __str__(self) -> str:
        return (
            f"{self.correct.total()} of {self.questions.total()} right ({self.share:.2%}); "
            f"{self.tokens / self.passes:.2f} tokens a pass, {self.tokens_per_pass:.2f} with commits in "
            f"passes of their own; {self.passes / self.blocks:.2f} passes a block"
        )


def evaluate(session: Session, exchanges: Sequence[Exchange], rule: str) -> DiffusionScore:
    """The greedy answers of the model to all questions, submitted together."""
    sampler, config = Sampler(), session.model.config
    strategy = DecodeConfig(rule=rule).strategy_factory(config, sampler)
    prompts = [
        session.tokenizer.encode_chat([{"role": "user", "content": exchange.question}])
        for exchange in exchanges
    ]
    requests = [
        session.scheduler.add_request(ids, MAX_NEW_TOKENS, sampler, strategy=strategy) for ids in prompts
    ]
    while not all(request.is_finished for request in requests):
        session.scheduler.step()
    passes = [request.strategy.pass_counts for request in requests]
    return DiffusionScore(
        Counter(exchange.topic for exchange in exchanges),
        Counter(
            exchange.topic
            for exchange, request in zip(exchanges, requests, strict=True)
            if _is_correct(session, exchange, request)
        ),
        sum(len(request.token_ids) for request in requests),
        *(sum(getattr(request, name) for request in passes) for name in ("passes", "blocks", "committed")),
    )


def _is_correct(session: Session, exchange: Exchange, request: Request) -> bool:
    return session.tokenizer.decode(request.token_ids) == exchange.answer


def open_session(checkpoint: Path) -> Session:
    options = RuntimeOptions(None, select_backend("virtual"), folders.programs_folder())
    return prepare_runtime(open_checkpoint(checkpoint), options, Reporter())


def is_good_enough(static: DiffusionScore, dynamic: DiffusionScore) -> bool:
    """Whether the checkpoint meets the requirements."""
    is_right = static.share >= REQUIRED_SHARE and dynamic.share >= static.share - MAX_SHARE_LOST
    return is_right and dynamic.tokens_per_pass >= REQUIRED_TOKENS_PER_PASS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aerie.llama32_1b.demo.diffusion.evaluate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="folder to load (the shipped one)"
    )
    session, questions = open_session(parser.parse_args().checkpoint), question_list()
    figures = {}
    for rule in RULE_NAMES:
        score = figures[rule] = evaluate(session, questions, rule)
        print(f"{rule}: {score}", flush=True)
        for topic, count in sorted(score.questions.items()):
            print(f"  {topic:12} {score.correct[topic]:5} of {count:5} right")
    return 0 if is_good_enough(figures[STATIC], figures[DYNAMIC]) else 1


if __name__ == "__main__":
    sys.exit(main())
