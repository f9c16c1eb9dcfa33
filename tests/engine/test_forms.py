"""Forms of strangers: read within limits, held to exactly or refused, and each with an end."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine import grammar_emptiness, schema_emptiness
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.grammar import (
    MAX_REFUSED_CHARACTERS,
    GrammarCompiler,
    GrammarError,
    _characters,
    _LimitedCache,
)
from aerie.engine.grammar_process import (
    CompiledGrammar,
    GrammarInterruptedError,
    GrammarProcess,
    GrammarSource,
    _Compiler,
)
from aerie.engine.json_schema import FORMATS, RefusedError
from aerie.engine.tokenizer import load_tokenizer

LIMITS = "more than 1 s, 512 MiB or the depth that a form may have"


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(load_tokenizer(DEMO_FOLDER), load_config(DEMO_FOLDER))


@pytest.fixture(scope="module")
def reading() -> _Compiler:
    """What the process does, in this one."""
    return _Compiler(LLTokenizer((DEMO_FOLDER / "tokenizer.json").read_text()))


def chain(length: int) -> dict[str, Any]:
    links = {f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(length)}
    return {"$defs": {**links, f"d{length}": {}}, "$ref": "#/$defs/d0"}


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


LARK = "start: r0\n" + "\n".join(f'r{at}: "a" r{at + 1}' for at in range(3000)) + '\nr3000: "b"'


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("json", chain(1000), LIMITS),
        ("json", {"type": "integer", "multipleOf": 99999989}, LIMITS),
        ("lark", LARK, LIMITS),
        ("json", nested(5000), "it is nested too deeply|recursion limit exceeded"),
        ("json", nested(300), "recursion limit exceeded"),
        ("json", {"enum": [f"v{at}" for at in range(100_000)]}, "more than 262144 characters"),
        ("regex", "a" * 300_000, "it has 300000 characters, and 262144 is the limit"),
        ("json", {"type": "object", "properties": {f"p{at}": {} for at in range(2000)}}, "max is 2000"),
        ("json", {"$ref": "file:///etc/passwd"}, "does not fetch resources"),
        ("json", '{"const": NaN}', "NaN is no number of JSON"),
        ("lark", "start: x\n%import ..passwd (x)", "Expected name"),
    ],
)
def test_a_form_beyond_the_limits_is_refused_alone(
    grammars: GrammarCompiler, kind: str, given: Any, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        getattr(grammars, kind)(given)
    assert grammars.regex("a|b").text


def test_an_unreadable_vocabulary_is_reported() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer cannot be read for answers of a form \(.*Model"):
        GrammarProcess("{}", 5, [1]).read(GrammarSource("regex", "a"))


def test_a_defect_of_ours_is_no_refusal(grammars: GrammarCompiler) -> None:
    with pytest.raises(RuntimeError, match=r"^a form cannot be read: .*\nTraceback[^$]* in read\n"):
        grammars._process.read(GrammarSource("lark", ["start"]))  # type: ignore[arg-type]


def test_what_is_known_is_not_read_again(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"enum": ["once", "twice"]}
    grammars.json(schema)
    monkeypatch.setattr(grammars._process, "read", None)
    for _ in range(70):
        grammars.json(schema).start()


def test_what_is_refused_is_not_read_again(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GrammarError) as first:
        grammars.json(chain(900))
    monkeypatch.setattr(grammars._process, "read", None)
    for _ in range(3):
        with pytest.raises(GrammarError, match=LIMITS) as again:
            grammars.json(chain(900))
        assert str(again.value) == str(first.value)
        assert again.value is not first.value  # whose traceback would grow


class Counted:
    """In place of the process: refuses what has an r, is interrupted at an i, and reads all else."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, wanted: GrammarSource) -> CompiledGrammar:
        self.asked.append(wanted.text)
        time.sleep(0.002)
        if "r" in wanted.text:
            raise GrammarError("refused")
        if "i" in wanted.text:
            raise GrammarInterruptedError("interrupted")
        return CompiledGrammar("a")


@pytest.fixture
def counted(grammars: GrammarCompiler) -> tuple[GrammarCompiler, Counted]:
    fresh, process = GrammarCompiler(grammars.tokenizer, grammars._config), Counted()
    fresh.__dict__["_process"] = process
    return fresh, process


@pytest.mark.parametrize(("text", "times"), [("r", 1), ("a", 1), ("i", 24)])
def test_a_form_that_many_ask_for_at_once_is_read_once(
    counted: tuple[GrammarCompiler, Counted], text: str, times: int
) -> None:
    """Unless that was interrupted: then each has a try of its own."""

    def ask() -> None:
        with contextlib.suppress(GrammarError):
            fresh.compile(GrammarSource("regex", text))

    def ask_thrice() -> None:
        for _ in range(3):
            ask()

    fresh, process = counted
    threads = [threading.Thread(target=ask_thrice) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert process.asked == [text] * times


def test_refusals_that_are_kept_have_a_size(counted: tuple[GrammarCompiler, Counted]) -> None:
    """And take no room from what is read; one that is too long, whatever its length, takes none at all."""
    fresh, process = counted
    fresh.compile(GrammarSource("regex", "a"))
    forms = [GrammarSource("regex", f"r{at}" + "x" * 200_000) for at in range(40)]
    for wanted in [*forms, forms[-1], GrammarSource("regex", "r" * 10**7), forms[-1]]:
        with pytest.raises(GrammarError):
            fresh.compile(wanted)
    fresh.compile(GrammarSource("regex", "a"))
    assert process.asked == ["a", *(wanted.text for wanted in forms)]
    assert 10 < len(fresh._refused) < 40
    assert sum(map(_characters, fresh._refused, fresh._refused.values())) <= MAX_REFUSED_CHARACTERS


def test_what_is_kept_has_a_size() -> None:
    kept, draws = _LimitedCache[int, int](100, lambda _, size: size), random.Random(0)
    for _ in range(2000):
        size = draws.randrange(1, 40)
        kept.get_or_make(draws.randrange(20), partial(int, size))
        if draws.random() < 0.1:
            kept.drop(draws.randrange(20))
        assert sum(kept.values()) <= 100
    assert sum(kept.values()) > 50


def say(grammars: GrammarCompiler, grammar: str) -> None:
    """Tokens of an answer, drawn, until there are many."""
    follower, draws, ids = grammars.lark(grammar).start(), random.Random(0), list[int]()
    while len(ids) < 400:
        possible = np.flatnonzero(follower.token_mask(ids))
        ids.append(int(draws.choice([each for each in possible if each not in grammars.eos_ids])))


@pytest.mark.parametrize(
    ("grammar", "cpu_s", "message"),
    [
        (
            'start: e\ne: e e | e e e | "a" | "b"',
            0.05,
            r"it took \d\.\d s of the processor, and 0\.05 s, and",
        ),
        ('start: ((("a"{1,100}){1,100}){1,100}){1,100}', 60, "max is 2000"),
    ],
)
def test_a_form_that_takes_too_much_ends_its_answer_alone(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, grammar: str, cpu_s: float, message: str
) -> None:
    monkeypatch.setattr("aerie.engine.grammar.CPU_S", cpu_s)
    monkeypatch.setattr("aerie.engine.grammar.TOKEN_CPU_S", 0)
    with pytest.raises(
        UserError, match=rf"cannot be followed after \d+ tokens: .*{message}.*; ask for one that"
    ):
        say(grammars, grammar)


def takes(reading: _Compiler, read: CompiledGrammar, text: str) -> bool:
    matcher = reading._matcher(read.text)
    ids = reading._vocabulary.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def number(draws: random.Random) -> Decimal:
    whole = draws.randint(0, 10 ** draws.randint(1, 30))
    drawn = draws.choice(
        [
            Decimal(2 ** draws.randint(50, 70) + draws.randint(-4, 4)),
            Decimal(whole),
            Decimal(whole).scaleb(-draws.randint(0, 20)),
            Decimal(draws.randint(0, 20000)) / 100,
        ]
    )
    return draws.choice([drawn, -drawn])


FITS = {
    "const": Decimal.__eq__,
    "minimum": Decimal.__ge__,
    "maximum": Decimal.__le__,
    "exclusiveMinimum": Decimal.__gt__,
    "exclusiveMaximum": Decimal.__lt__,
}


def plain(value: Decimal) -> str:
    return format(value.normalize(), "f").replace("-0", "0") if not value else format(value.normalize(), "f")


def test_numbers_are_met_or_refused(reading: _Compiler) -> None:
    """Whatever is near the numbers of a schema, or near what f64 makes of them, is taken only where it fits;
    constants that are taken are taken exactly."""
    draws, taken = random.Random(5), 0
    with localcontext(prec=60):
        for _ in range(200):
            names = draws.choice([["const"], draws.sample([*FITS][1:], draws.randint(1, 2))])
            of = {name: number(draws) for name in names}
            bounds = ",".join(f'"{name}":{plain(value)}' for name, value in of.items())
            kind = "" if "const" in of else '"type":"number",'
            schema = f'{{"type":"array","items":{{{kind}{bounds}}},"minItems":1}}'
            try:
                read = reading.read(GrammarSource("schema", schema))
            except RefusedError:
                continue
            taken += 1
            steps = map(Decimal, ("0", "1", "-1", "1e-8", "-1e-8"))
            near = {value + step for value in of.values() for step in steps}
            near |= {Decimal(form(float(value))) for value in of.values() for form in (Decimal, repr)}
            for value in near:
                fits = all(FITS[name](value, bound) for name, bound in of.items())
                does = takes(reading, read, f"[{plain(value)}]")
                assert not does or fits, (schema, value)
                assert does or not (fits and names == ["const"]), (schema, value)
    assert taken > 50


@pytest.mark.parametrize(
    "schema",
    [
        '{"const": 9007199254740993}',
        '{"properties": {"a": {"enum": ["x", [{"b": 12345678901234567890123}]]}}}',
        '{"minimum": 9007199254740993, "maximum": 9007199254740993}',
        '{"exclusiveMinimum": 9007199254740992}',
        '{"minimum": 0.12345678901234567, "maximum": 0.12345678901234567}',
        '{"$ref": "#/else/where", "else": {"where": {"multipleOf": 0.12345678901234567}}}',
        '{"const": 1e-400}',
    ],
)
def test_numbers_that_are_not_taken(reading: _Compiler, schema: str) -> None:
    with pytest.raises(
        RefusedError, match=r"numbers beyond 2\*\*53, or of more than 15 digits, are not taken"
    ):
        reading.read(GrammarSource("schema", schema))


def test_a_count_may_be_written_as_a_decimal(reading: _Compiler) -> None:
    read = reading.read(GrammarSource("schema", '{"type": "string", "minLength": 2.0}'))
    assert takes(reading, read, '"ab"')
    assert not takes(reading, read, '"a"')


UNHELD: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "null"}}, "not"),
    ({"if": {"const": 1}, "then": {"const": 1}, "else": True}, "if"),
    ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"type": "array", "contains": {"const": 1}}, "contains"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"type": "string", "format": "path"}, "format path"),
    ({"type": "string", "pattern": "^(?!x)"}, "pattern"),
    ({"type": "object", "patternProperties": {"(?=a)": True}}, "patternProperties"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf, which is taken as anyOf"),
    ({"type": "object", "required": None}, "required null"),
    ({"$ref": "https://example.org/schema"}, "$ref to elsewhere"),
    ({"type": "object", "properties": {"b": {"$ref": "#/properties/a", "minProperties": 1}}}, "beside $ref"),
    ({"type": "number", "multipleOf": 123456.789}, "multipleOf"),
]


@pytest.mark.parametrize(("keyword", "note"), UNHELD, ids=[note for _, note in UNHELD])
def test_a_keyword_that_is_not_held_is_reported_or_refused(
    reading: _Compiler, keyword: dict[str, Any], note: str
) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": keyword}, "required": ["a"]})
    assert note in reading.read(GrammarSource("schema", schema, "known")).notes
    with pytest.raises(RefusedError):
        reading.read(GrammarSource("schema", schema, "all"))
    if "format" not in keyword:
        with pytest.raises(RefusedError):
            reading.read(GrammarSource("schema", schema, "meaning"))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_that_are_held(reading: _Compiler, name: str) -> None:
    read = reading.read(GrammarSource("schema", json.dumps({"type": "string", "format": name}), "all"))
    assert takes(reading, read, '"%"') == (name == "unknown")


def test_what_is_no_schema_is_refused_though_nothing_is_held_strictly(reading: _Compiler) -> None:
    for schema in ('{"type": "foo"}', '{"minLength": -1}', '{"type": "string", "enum": [1]}'):
        with pytest.raises(RefusedError):
            reading.read(GrammarSource("schema", schema, "known"))


def test_options_of_llguidance_are_ours(reading: _Compiler) -> None:
    with pytest.raises(RefusedError, match="Unimplemented keys"):
        reading.read(GrammarSource("schema", '{"x-guidance": {"lenient": true}, "not": {}}'))


RULES = ("start", "aa", "bb", "cc")


def drawn_rule(draws: random.Random, depth: int = 0) -> tuple[str, Any]:
    """Alternatives, as text, and as what is looked at without reading it."""
    ways = [
        [drawn_part(draws, depth) for _ in range(draws.randint(1, 3))] for _ in range(draws.choice([1, 1, 2]))
    ]
    return " | ".join(" ".join(text for text, _ in way) for way in ways), [
        [of for _, of in way] for way in ways
    ]


def drawn_part(draws: random.Random, depth: int) -> tuple[str, Any]:
    kind, times = draws.random(), draws.choice(["", "", "", "", "+", "*", "?", "{0,2}", "{1,2}"])
    if kind < 0.2 and depth < 2:
        text, of = drawn_rule(draws, depth + 1)
        text = f"({text})"
    elif kind < 0.6:
        text = of = draws.choice(RULES)
    else:
        text = draws.choice(['"x"', "/[a&&b]/", "/y+/", "DEAD", "LIVE"])
        of = text not in ("/[a&&b]/", "DEAD")
    return text + times, True if times in ("*", "?", "{0,2}") else of


def derives(of: Any, rules: dict[str, Any], depth: int) -> bool:
    """Whether a text is derived in so many steps, by trying all."""
    if isinstance(of, str):
        return depth > 0 and derives(rules[of], rules, depth - 1)
    return of if isinstance(of, bool) else any(all(derives(each, rules, depth) for each in way) for way in of)


def test_a_grammar_ends_where_one_of_its_texts_is_found(reading: _Compiler) -> None:
    draws, without = random.Random(3), 0
    for _ in range(800):
        drawn = {name: drawn_rule(draws) for name in RULES}
        text = "\n".join(
            ["DEAD: /[a&&b]/", "LIVE: /b/", *(f"{name}: {rule}" for name, (rule, _) in drawn.items())]
        )
        rules = {name: of for name, (_, of) in drawn.items()}
        found = grammar_emptiness.accepts_any_text(text, lambda terminal: terminal in ("/[a&&b]/", "DEAD"))
        assert found == derives("start", rules, len(RULES)), text
        without += not found
    assert 150 < without < 650


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("gbnf", 'root ::= "x" root'),
        ("gbnf", 'root ::= root "a"'),
        ("gbnf", 'root ::= a | b\na ::= "x" b\nb ::= "y" (a | b)+'),
        ("lark", 'start: "x" A\nA: /[a-z]+/ & ~/[a-z]*/'),
        ("lark", 'start: "x" (/[a&&b]/ | start)'),
        ("lark", 'start: a::0\na::_: "x" a::incr(_) %if lt(_, 5)'),
        ("regex", "[a&&b]"),
        ("regex", "a+[a&&b]"),
    ],
)
def test_a_grammar_without_end_is_refused(reading: _Compiler, kind: str, text: str) -> None:
    with pytest.raises(
        RefusedError, match=r"no rule of it comes to an end, so no answer would|no text is of it"
    ):
        reading.read(GrammarSource(kind, text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("gbnf", 'root ::= "x" root | "y"'),
        ("gbnf", 'root ::= root "a" | [0-9]+ # "a" comment\n'),
        (
            "lark",
            '%llguidance {}\nstart: "a" x? // none\n  | [start] %json {"const": "}"} B+\nx: start x\nB: /b/',
        ),
        ("lark", 'start[capture]: <|end_of_text|> | "q"i .. "z"\n'.replace(' | "q"i .. "z"', ' | "q"')),
        ("regex", ""),
        ("regex", "(a*)*"),
    ],
)
def test_a_grammar_with_an_end_is_taken(reading: _Compiler, kind: str, text: str) -> None:
    reading.read(GrammarSource(kind, text))


def drawn_schema(draws: random.Random, depth: int = 0) -> Any:
    if depth > 3 or draws.random() < 0.1:
        return draws.choice([True, False, {"type": "null"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}])
    types = ["object", "object", "array", ["object", "array"], ["array", "null"]]
    parts: dict[str, Any] = {
        "type": draws.choice(types),
        "$ref": draws.choice(["#", "#/$defs/a"]),
        "properties": {
            name: drawn_schema(draws, depth + 1) for name in draws.sample("pq", draws.randint(1, 2))
        },
        "required": draws.sample("pq", draws.randint(1, 2)),
        "additionalProperties": drawn_schema(draws, depth + 1),
        "minProperties": draws.randint(1, 2),
        "items": drawn_schema(draws, depth + 1),
        "prefixItems": [drawn_schema(draws, depth + 1)],
        "minItems": draws.randint(1, 2),
        "anyOf": [drawn_schema(draws, depth + 1) for _ in range(draws.randint(1, 2))],
        "allOf": [drawn_schema(draws, depth + 1) for _ in range(draws.randint(1, 2))],
    }
    often = {"type": 0.8, "properties": 0.5, "required": 0.5, "minItems": 0.5, "items": 0.4}
    return {name: part for name, part in parts.items() if draws.random() < often.get(name, 0.15)}


def valid(value: Any, schema: Any, root: Any, begun: tuple[tuple[int, int], ...] = ()) -> bool:
    """A validator; a schema that comes to itself at one place holds nowhere."""
    if isinstance(schema, bool):
        return schema
    if (id(schema), id(value)) in begun:
        return False
    here = (*begun, (id(schema), id(value)))
    kind = {dict: "object", tuple: "array", type(None): "null"}[type(value)]
    both = [*schema.get("allOf", ()), *_reference(schema, root)]
    return (
        kind in schema.get("type", kind)
        and all(valid(value, each, root, here) for each in both)
        and any(valid(value, each, root, here) for each in schema.get("anyOf", [True]))
        and (kind != "object" or valid_object(value, schema, root))
        and (kind != "array" or valid_array(value, schema, root))
    )


def _reference(schema: Any, root: Any) -> list[Any]:
    return [root if schema["$ref"] == "#" else root["$defs"]["a"]] if "$ref" in schema else []


def valid_object(value: Any, schema: Any, root: Any) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return (
        value.keys() >= {*schema.get("required", ())}
        and len(value) >= schema.get("minProperties", 0)
        and all(valid(each, known.get(name, others), root) for name, each in value.items())
    )


def valid_array(value: Any, schema: Any, root: Any) -> bool:
    first, rest = schema.get("prefixItems", []), schema.get("items", True)
    each = [*first, *[rest] * len(value)]
    return len(value) >= schema.get("minItems", 0) and all(
        valid(part, of, root) for part, of in zip(value, each, strict=False)
    )


def values(height: int) -> Iterator[Any]:
    """All JSON of so many levels, of few names."""
    yield None
    if height:
        parts = [*values(height - 1)]
        for names in ("", "p", "q", "pq", "pr", "qr", "r", "rs"):
            yield from (
                dict(zip(names, each, strict=True)) for each in itertools.product(parts, repeat=len(names))
            )
        yield from (each for count in range(3) for each in itertools.product(parts, repeat=count))


def test_a_schema_ends_where_an_instance_is_found() -> None:
    draws, small, every, without, unfound = random.Random(11), [*values(1)], [*values(2)], 0, 0
    for _ in range(150):
        root = drawn_schema(draws)
        if isinstance(root, bool):
            continue
        root["$defs"] = {"a": drawn_schema(draws, 1)}
        ends = schema_emptiness.has_finite_instance(root)
        found = any(valid(each, root, root) for each in itertools.chain(small, every))
        assert ends or not found, root
        unfound += ends and not found
        without += not ends
    assert without > 15
    assert unfound <= 5  # of more levels


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"anyOf": [{"$ref": "#"}]}, "minItems": 1},
        {
            "$defs": {"a~/b c": {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}},
            "$ref": "#/$defs/a~0~1b%20c",
        },
    ],
    ids=str,
)
def test_a_schema_without_end_is_refused(reading: _Compiler, schema: dict[str, Any]) -> None:
    for hold in ("all", "known"):
        with pytest.raises(RefusedError, match="no JSON is of it that comes to an end"):
            reading.read(GrammarSource("schema", json.dumps(schema), hold))
