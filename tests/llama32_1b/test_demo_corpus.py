"""The demo corpus: the same on every run, no question twice, and nothing known among the unknown."""

import os
import random
import subprocess
import sys
from collections import Counter

from aerie.llama32_1b.demo.corpus import (
    COUNTRIES,
    ELEMENTS,
    TERMS,
    UNKNOWN,
    question_list,
    statements,
    unknown,
    unknown_prompt,
)

_DIGEST = """
import hashlib, random
from aerie.llama32_1b.demo.corpus import question_list, statements, unknown
rng = random.Random(7)
text = repr((question_list(), statements(), [unknown(rng) for _ in range(50)]))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def _digest(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_corpus_does_not_depend_on_the_process() -> None:
    assert _digest("1") == _digest("2")


def test_no_question_occurs_twice() -> None:
    counts = Counter(exchange.question for exchange in question_list())
    assert [question for question, count in counts.items() if count > 1] == []


def test_tables_are_of_the_documented_size_and_without_repeats() -> None:
    assert len(COUNTRIES) >= 100
    assert len({country.capital for country in COUNTRIES}) == len(COUNTRIES)
    assert len({element.symbol for element in ELEMENTS}) == len(ELEMENTS) == 94
    assert len({term.name for term in TERMS}) == len(TERMS) == 40


def test_known_facts() -> None:
    answers = {exchange.question: exchange.answer for exchange in question_list()}
    assert answers["What is the capital of France?"] == "The capital of France is Paris."
    assert answers["What is the chemical symbol of gold?"] == "The chemical symbol of gold is Au."
    assert answers["What is the atomic number of uranium?"] == "The atomic number of uranium is 92."
    assert answers["What is 7 + 8?"] == "7 + 8 = 15."
    assert answers["What is 12 times 12?"] == "12 times 12 is 144."
    assert answers["What is a herd?"].startswith("A herd is a grid of tiles")


def test_the_demo_model_says_what_it_is() -> None:
    answers = {exchange.question: exchange.answer for exchange in question_list()}
    assert "tiny demo model" in answers["Who are you?"]
    assert "generates itself" in answers["Who are you?"]


def test_unknown_prompts_are_not_in_the_question_list_and_share_one_answer() -> None:
    rng = random.Random(1)
    known = {exchange.question for exchange in question_list()}
    exchanges = [unknown(rng) for _ in range(2000)]
    assert known.isdisjoint(exchange.question for exchange in exchanges)
    assert {exchange.answer for exchange in exchanges} == {UNKNOWN.answer}
    assert all(exchange.question.strip() for exchange in exchanges)


def test_unknown_prompts_follow_their_generator() -> None:
    first, second = random.Random(3), random.Random(3)
    assert [unknown_prompt(first) for _ in range(100)] == [unknown_prompt(second) for _ in range(100)]


def test_statements_are_sentences_that_occur_once() -> None:
    sentences = statements()
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)
