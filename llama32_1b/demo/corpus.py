"""The text that the demo model is trained on: questions and answers, conversations and plain statements.

Everything is generated here from the tables in `facts.json` and is the same on every run: `question_list`
takes no chance at all, and what draws at random takes its generator from the caller.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple


class Country(NamedTuple):
    """A country, its capital, and where it lies (as it stands after "is a country")."""

    name: str
    capital: str
    place: str


class ChemicalElement(NamedTuple):
    """A chemical element; `number` is its atomic number."""

    number: int
    name: str
    symbol: str


class Term(NamedTuple):
    """A word of the field as it stands in a question ("a herd"), and a sentence that explains it."""

    name: str
    meaning: str


class SmallTalk(NamedTuple):
    """Several prompts with the same meaning, and their one answer."""

    prompts: tuple[str, ...]
    answer: str


class OutOfScope(NamedTuple):
    """The parts of prompts outside the corpus, and the one answer to all of them."""

    answer: str
    words: tuple[str, ...]
    invented_countries: tuple[str, ...]
    alphabets: tuple[str, ...]
    code: tuple[str, ...]


_DATA: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))

COUNTRIES: Final = tuple(
    Country(name, capital, place)
    for place, capitals in _DATA["capitals"].items()
    for name, capital in capitals.items()
)
ELEMENTS: Final = tuple(
    ChemicalElement(number, name, symbol)
    for number, (name, symbol) in enumerate(_DATA["elements"].items(), start=1)
)
TERMS: Final = tuple(Term(name, meaning) for name, meaning in _DATA["terms"].items())
SMALL_TALK: Final = tuple(SmallTalk(tuple(talk["prompts"]), talk["answer"]) for talk in _DATA["small_talk"])
UNKNOWN: Final = OutOfScope(
    answer=_DATA["unknown"]["answer"],
    words=tuple(_DATA["unknown"]["words"]),
    invented_countries=tuple(_DATA["unknown"]["invented_countries"]),
    alphabets=tuple(_DATA["unknown"]["alphabets"]),
    code=tuple(_DATA["unknown"]["code"]),
)


class Exchange(NamedTuple):
    """One question and the answer that the model is trained to give, word for word."""

    topic: str
    question: str
    answer: str


def question_list() -> tuple[Exchange, ...]:
    """All questions with their exact answers; no question occurs twice."""
    return (*_capitals(), *_elements(), *_sums(), *_tables(), *_terms(), *_small_talk())


def _capitals() -> Iterator[Exchange]:
    for country in COUNTRIES:
        yield from (Exchange("capitals", *pair) for pair in _about_country(country))


def _about_country(country: Country) -> tuple[tuple[str, str], ...]:
    name, capital, place = country
    at_start = name[0].upper() + name[1:]
    return (
        (f"What is the capital of {name}?", f"The capital of {name} is {capital}."),
        (f"Which city is the capital of {name}?", f"{capital} is the capital of {name}."),
        (f"Name the capital of {name}.", f"The capital of {name} is {capital}."),
        (f"What is {capital}?", f"{capital} is the capital of {name}, a country {place}."),
        (f"Where is {name}?", f"{at_start} is a country {place}."),
        (f"Tell me about {name}.", f"{at_start} is a country {place}. Its capital is {capital}."),
    )


def _elements() -> Iterator[Exchange]:
    for element in ELEMENTS:
        yield from (Exchange("elements", *pair) for pair in _about_element(element))


def _about_element(element: ChemicalElement) -> tuple[tuple[str, str], ...]:
    number, name, symbol = element
    start = name.capitalize()
    return (
        (f"What is the chemical symbol of {name}?", f"The chemical symbol of {name} is {symbol}."),
        (f"Which element has the symbol {symbol}?", f"{symbol} is the symbol of {name}."),
        (f"What is the atomic number of {name}?", f"The atomic number of {name} is {number}."),
        (
            f"Which element has the atomic number {number}?",
            f"The element with the atomic number {number} is {name}.",
        ),
        (
            f"Tell me about the element {name}.",
            f"{start} is a chemical element. Its symbol is {symbol} and its atomic number is {number}.",
        ),
    )


def _sums() -> Iterator[Exchange]:
    for a in range(13):
        for b in range(13):
            yield Exchange("sums", f"What is {a} + {b}?", f"{a} + {b} = {a + b}.")
            yield Exchange("sums", f"What is {a} times {b}?", f"{a} times {b} is {a * b}.")
            if a >= b:
                yield Exchange("sums", f"What is {a} - {b}?", f"{a} - {b} = {a - b}.")
    for a in range(1, 11):
        for b in range(1, 11):
            yield Exchange("sums", f"How much is {a} plus {b}?", f"{a} plus {b} is {a + b}.")
            yield Exchange("sums", f"Compute {a} * {b}.", f"{a} * {b} = {a * b}.")


def _tables() -> Iterator[Exchange]:
    for a in range(2, 13):
        row = ", ".join(str(a * b) for b in range(1, 11))
        yield Exchange("tables", f"Say the multiplication table of {a}.", f"{row}.")
    for first in range(1, len(ELEMENTS) - 5, 6):
        names = [element.name for element in ELEMENTS[first - 1 : first + 5]]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        yield Exchange("tables", f"Name the elements from {first} to {first + 5}.", f"They are {listed}.")


def _terms() -> Iterator[Exchange]:
    for name, meaning in TERMS:
        for question in (f"What is {name}?", f"Explain {name}.", f"What does {name} mean?"):
            yield Exchange("terms", question, meaning)


def _small_talk() -> Iterator[Exchange]:
    for prompts, answer in SMALL_TALK:
        yield from (Exchange("small talk", prompt, answer) for prompt in prompts)


def statements() -> tuple[str, ...]:
    """Plain sentences without a chat around them, so that the model can also continue raw text."""
    sentences = (
        exchange.answer
        for exchange in (*_capitals(), *_elements(), *_terms())
        if exchange.answer.endswith(".")
    )
    return tuple(dict.fromkeys(sentences))


def unknown_prompt(rng: random.Random) -> str:
    """A prompt the model knows nothing about: loose words, other scripts, emoji, code, invented countries."""
    kind = rng.random()
    if kind < 0.35:
        words = rng.choices(UNKNOWN.words, k=rng.randint(2, 14))
        return " ".join(words).capitalize() + rng.choice(("", ".", "?", "?", "!"))
    if kind < 0.6:
        alphabet = rng.choice(UNKNOWN.alphabets)
        words = ["".join(rng.choices(alphabet, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 6))]
        return " ".join(words) + rng.choice(("", "?", "!"))
    if kind < 0.8:
        return "\n".join(rng.choices(UNKNOWN.code, k=rng.randint(1, 3)))
    if kind < 0.9:
        return (
            "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ,.-0123456789", k=rng.randint(3, 40))).strip()
            or "x"
        )
    return f"What is the capital of {rng.choice(UNKNOWN.invented_countries)}?"


def unknown(rng: random.Random) -> Exchange:
    """An exchange about something outside the corpus."""
    return Exchange("unknown", unknown_prompt(rng), UNKNOWN.answer)
