"""Answers of a form: always of it, and the same tokens however they are scheduled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import Model, load
from aerie.common.errors import UserError
from aerie.engine.grammar import GrammarCompiler, GrammarError, GrammarMatcher
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ASKED = ("What is the capital of France?", "Hi", "List three numbers.")
MOST = 160


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", decode="rows") as model:
        yield model


@pytest.fixture(scope="module")
def session(model: Model) -> Session:
    return model.session_state.session()


def check(text: str) -> None:
    made = json.loads(text)
    assert [*made] == ["name", "age", "tags"]
    assert isinstance(made["name"], str)
    assert len(made["name"]) <= 20
    assert isinstance(made["age"], int)
    assert 0 <= made["age"] <= 150
    assert set(made["tags"]) <= {"a", "b", "c"}
    assert len(made["tags"]) <= 3


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.0}, {"temperature": 2.0, "top_k": 20, "top_p": 0.9}, {"frequency_penalty": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_has_the_form(model: Model, settings: dict[str, Any], seed: int) -> None:
    made = model.generate(ASKED[seed], MOST, json_schema=SCHEMA, seed=seed, **settings)
    assert made.finish_reason.value == "stop"
    check(made.text)


def test_the_form_is_what_makes_it_so(model: Model) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(model.generate(ASKED[0], MOST).text)


@pytest.mark.parametrize("schema", [True, '{"enum": ["yes", "no"]}', {"const": 5}], ids=str)
def test_other_forms(model: Model, schema: Any) -> None:
    json.loads(model.generate("Hi", MOST, json_schema=schema).text)


def test_company_and_guesses_change_no_token(model: Model) -> None:
    alone = [model.generate(asked, MOST, json_schema=SCHEMA).token_ids for asked in ASKED]
    together = model.generate_batch([*ASKED, "Who are you?"], MOST, json_schema=SCHEMA)
    assert [one.token_ids for one in together[:3]] == alone
    guessed = [model.generate(asked, MOST, json_schema=SCHEMA, draft="lookup") for asked in ASKED]
    assert [one.token_ids for one in guessed] == alone
    assert sum(one.kpis.tps.n_drafted for one in guessed) > 0


def test_guesses_with_draws_keep_the_form(model: Model) -> None:
    for seed in range(4):
        made = model.generate(ASKED[0], MOST, json_schema=SCHEMA, draft="lookup", temperature=1.2, seed=seed)
        check(made.text)


def test_a_form_that_takes_no_token_back_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is asked about other tokens than those before, and does not go back."""
    grammar = model.session_state.session().grammar_compiler.json(SCHEMA)
    ids = model.session_state.session().tokenizer.encode('{"name": "x"', special=False)
    other = model.session_state.session().tokenizer.encode('{ "name": "yy"', special=False)
    follower, fresh = grammar.start(), grammar.start()
    follower.token_mask(ids)
    assert np.array_equal(follower.token_mask(other), fresh.token_mask(other))
    monkeypatch.setattr("aerie.engine.grammar._same", lambda one, other: len(one))
    stuck = grammar.start()
    stuck.token_mask(ids)
    with pytest.raises(UserError, match="does not match the grammar"):
        stuck.token_mask(other)


def test_an_answer_goes_on_from_a_file_in_its_form(model: Model, tmp_path: Path) -> None:
    whole = model.generate(ASKED[0], MOST, json_schema=SCHEMA, temperature=1.0, seed=5)
    model.generate(ASKED[0], 7, json_schema=SCHEMA, temperature=1.0, seed=5)
    model.save(tmp_path / "answer")
    model.generate("Something else", 4)
    model.restore(tmp_path / "answer")
    rest = model.continue_answer(MOST).result()
    assert (*whole.token_ids[:7], *rest.token_ids) == whole.token_ids


def test_an_answer_that_left_its_grammar_is_reported(session: Session) -> None:
    follower = session.grammar_compiler.json(SCHEMA).start()
    ids = session.tokenizer.encode('{"name": 5', special=False)
    with pytest.raises(UserError, match=r"token \d+, number \d+ of the answer, does not match the grammar"):
        follower.token_mask(ids)
    check_goes_on(follower, session)


def check_goes_on(follower: GrammarMatcher, session: Session) -> None:
    """What was refused leaves no trace."""
    ids = session.tokenizer.encode('{"name": "x"', special=False)
    fresh = session.grammar_compiler.json(SCHEMA).start()
    assert np.array_equal(follower.token_mask(ids), fresh.token_mask(ids))


def test_only_the_end_may_follow_what_is_complete(session: Session) -> None:
    ids = session.tokenizer.encode("5", special=False)
    possible = session.grammar_compiler.json({"const": 5}).start().token_mask(ids)
    assert {*np.flatnonzero(possible)} == {*session.model.config.eos_token_ids}


def test_a_grammar_of_text(session: Session) -> None:
    lark, gbnf = 'start: "yes" | "no"', 'root ::= "yes" | "no"'
    for grammar in (
        session.grammar_compiler.lark(lark),
        session.grammar_compiler.gbnf(lark),
        session.grammar_compiler.gbnf(gbnf),
    ):
        made = session.generate(session.tokenizer.encode("Is it?"), 8, Sampler(grammar=grammar))
        assert "".join(session.text(made)) in ("yes", "no")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "it is false, which describes no JSON"),
        ({"type": "foo"}, "Invalid type: foo"),
        ("{", "Expecting property name enclosed in double quotes"),
        ("3", "it is 3, and no object"),
        ({"x": {1, 2}}, "Object of type set is not JSON serializable"),
        ({"enum": ["x" * 300], "type": "y" * 300}, r"\.\.\.; change it"),
    ],
    ids=str,
)
def test_a_schema_that_is_none(model: Model, schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as refused:
        model.generate("Hi", 5, json_schema=schema)
    assert str(refused.value).startswith("the JSON schema cannot be taken: ")
    assert str(refused.value).endswith("; change it, or ask for an answer of any form")


def test_a_grammar_that_is_none(session: Session) -> None:
    asked: list[Callable[[], object]] = [
        lambda: session.grammar_compiler.lark("start: nowhere"),
        lambda: session.grammar_compiler.recompile("{}"),
        lambda: session.grammar_compiler.gbnf("root ::= ("),
        lambda: session.grammar_compiler.gbnf("root ::= nowhere"),
    ]
    for each in asked:
        with pytest.raises(GrammarError, match="the grammar cannot be taken: "):
            each()


def test_the_vocabulary_is_read_once(session: Session) -> None:
    grammars = GrammarCompiler(session.tokenizer, session.model.config)
    assert grammars.vocabulary is grammars.vocabulary
