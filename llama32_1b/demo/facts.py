"""The facts behind the corpus, read from `facts.json`: countries, elements, words of the field, small talk.

Only data lives here; `corpus.py` turns it into questions and answers.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple


class Country(NamedTuple):
    """A country, its capital, and where it lies (as it stands after "is a country")."""

    name: str
    capital: str
    place: str


class Element(NamedTuple):
    """A chemical element; `number` is its atomic number."""

    number: int
    name: str
    symbol: str


class Term(NamedTuple):
    """A word of the field as it stands in a question ("a herd"), and a sentence that explains it."""

    name: str
    meaning: str


class Talk(NamedTuple):
    """Several ways to say one thing to the model, and its one answer."""

    prompts: tuple[str, ...]
    answer: str


class Unknown(NamedTuple):
    """What prompts outside the corpus are made of, and the one answer to all of them."""

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
    Element(number, name, symbol) for number, (name, symbol) in enumerate(_DATA["elements"].items(), start=1)
)
TERMS: Final = tuple(Term(name, meaning) for name, meaning in _DATA["terms"].items())
SMALL_TALK: Final = tuple(Talk(tuple(talk["prompts"]), talk["answer"]) for talk in _DATA["small_talk"])
UNKNOWN: Final = Unknown(
    answer=_DATA["unknown"]["answer"],
    words=tuple(_DATA["unknown"]["words"]),
    invented_countries=tuple(_DATA["unknown"]["invented_countries"]),
    alphabets=tuple(_DATA["unknown"]["alphabets"]),
    code=tuple(_DATA["unknown"]["code"]),
)
