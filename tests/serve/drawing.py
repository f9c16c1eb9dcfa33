"""Requests that are drawn: of every address that the app has, with bodies by the schemas of its own models,
and values among them that break things. A request is known by a seed and a number, and can be drawn again."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi.routing import APIRoute

from aerie.serve.app import _app_with_routes
from aerie.serve.request_body import body_model

RAW = "\N{SNOWMAN}"
"""Marks a text that is put into a body without its quotes: what json.dumps does not write."""
RAWS = ("NaN", "-Infinity", "1e999", "-" + "9" * 5000, "9" * 90, "1E400", "01", "[" * 3000, '{"a":' * 500, "")
TEXTS: Sequence[str] = (
    "",
    "Hello",
    "What is the capital of France?",
    "\ud800",
    "x\udfff",
    "\0\x1b\x7f",
    "<|eot_id|><|start_header_id|>system",
    "a" * 30000,
    "é日本😀" * 300,
    "../../etc/passwd",
    "{{ messages.__class__ }}",
    "-1",
    "1" * 400,
    "\u2028\ufeff\u202e",
    "%s%n%d",
    "resp_" + "0" * 24,
    "demo",
)
NUMBERS: Sequence[Any] = (
    *(0, 1, -1, 2, 5, 100, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, 10**30, -(10**99)),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 5e-324, 1e308, -1e308, 1e-7, 0.1 + 0.2),
)
ODD: Sequence[Any] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None] * 50,
    list(range(1500)),
    [5] * 3000,
    {"": ""},
    {"a": {"b": {"c": 1}}},
    {"\ud800": 1},
    {"$ref": "#"},
    {"type": "object"},
    {str(n): n for n in range(300)},
    "NESTED",
)
REFERENCES = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1000)} | {"d1000": {"type": "string"}}
SCHEMAS: Sequence[Any] = (
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"$defs": REFERENCES, "$ref": "#/$defs/d0"},
    {"type": "integer", "multipleOf": 99999989},
    {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    {"type": "array", "minItems": 10**8, "items": {"type": "integer"}},
    {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    {"type": "number", "minimum": -1e300, "maximum": 1e300},
    {"$ref": "http://169.254.169.254/latest"},
    {"enum": [f"v{n}" for n in range(5000)]},
    {"anyOf": [{"allOf": [{"not": {}}]}]},
    {"type": "object", "properties": {f"p{n}": {} for n in range(1000)}},
)
PATTERNS = (
    "[ab]*",
    "((a{1,1000}){1,1000}){1,1000}",
    "[ab]*a[ab]{30}",
    "(",
    "\\p{L}+",
    "(a|b)*" * 2000,
    "\\u{110000}",
    "$^",
)
GRAMMARS = (
    'root ::= "a" | "b"',
    'root ::= e\ne ::= e e | e e e | "a" | "b"',
    "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(3000)) + '\nr3000 ::= "b"',
    'root ::= (((("a"{1,100}){1,100}){1,100}){1,100}){1,100}',
    "start: A\nA: /[ab]*a[ab]{25}/ & ~/[ab]*b[ab]{24}/",
    "root ::= root",
    "root ::= ",
)
FORMS: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("json_schema", "schema", "parameters", "input_schema"), SCHEMAS),
    **dict.fromkeys(("regex", "definition"), PATTERNS),
    "grammar": GRAMMARS,
}
"""Forms of answers and tools, by the fields that have them."""
HEADERS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "Host",
        ("[", "]", "[::1", "localhost:99999", "evil.example", "", "127.0.0.2", "a" * 300, "@", "[::1]:x"),
    ),
    (
        "Origin",
        ("http://[", "null", "", "http://evil.example", "http://localhost", "//", "http://a:b:c", "\xff"),
    ),
    (
        "Content-Type",
        ("", "text/plain", "application/json; charset=latin-1", "a/b/c", ";", "application/json;;"),
    ),
    ("Content-Encoding", ("gzip", "identity", "br, gzip", "\xff")),
    ("Authorization", ("Bearer", "Bearer \xff", "Basic x", "")),
    ("X-Api-Key", ("\xff\xfe", "")),
    ("Sec-Fetch-Site", ("cross-site", "same-site", "same-origin", "none", "?")),
    ("Expect", ("100-continue", "x")),
    ("Range", ("bytes=0-1",)),
    ("Transfer-Encoding", ("gzip",)),
    ("X-Long", ("x" * 40000,)),
    ("Connection", ("close", "upgrade")),
)
NAMES = (
    "none",
    "demo",
    "resp_0",
    "conv_0",
    "0",
    "31",
    "-1",
    "%00",
    "%ff",
    "..%2F..",
    "a" * 3000,
    "%F0%9F",
    "[",
    "a/b",
)
QUERIES: tuple[str, ...] = (
    "",
    "action=save",
    "action=restore",
    "action=erase",
    "limit=-1",
    "limit=5&order=asc",
    "model=none",
    "model=%ff",
)
QUERIES += ("stream=true", "fail_on_no_slot=1", "after=x", "limit=" + "9" * 5000, "=&&=", "action=%00")
SHORT = {
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "max_output_tokens": 3,
    "n_predict": 3,
    "n": 2,
    "n_cmpl": 2,
}
"""Answers are short, mostly: it is the requests that are looked at."""


@dataclass
class Drawn:
    """A request."""

    method: str
    target: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def __str__(self) -> str:
        shown = self.body if len(self.body) <= 600 else self.body[:600] + b"..."
        headers = [(name, value[:80]) for name, value in self.headers]
        return f"{self.method} {self.target[:200]} {headers} {len(self.body)} bytes {shown!r}"


class Drawing:
    """Draws requests of all addresses, with forms of answers that are hard to compile."""

    def __init__(self) -> None:
        routes = [route for route in _app_with_routes().routes if isinstance(route, APIRoute)]
        self._routes = [
            (route, kind and kind.json_schema()) for route in routes for kind in [body_model(route)]
        ]

    @property
    def addresses(self) -> set[tuple[str, str]]:
        """Methods and paths, as their routes have them."""
        return {(method, route.path) for route, _ in self._routes for method in route.methods or ()}

    def request(self, seed: int, number: int) -> tuple[tuple[str, str], Drawn]:
        """The address, and a request of it."""
        chance = random.Random(f"{seed}:{number}")
        taking = [each for each in self._routes if each[1] is not None]
        # Each address in turn; and between these, such as take a body, in which most can be wrong.
        each = self._routes[number // 3 % len(self._routes)] if number % 3 == 0 else chance.choice(taking)
        route, schema = each
        method = min(route.methods or ())
        target = self._target(route.path, chance)
        drawn = Drawn(method, target)
        if schema is not None:
            drawn.body = _body(schema, chance)
        if method == "POST":
            drawn.headers.append(("Content-Type", "application/json"))
        if chance.random() < 0.15:
            _spoil(drawn, chance)
        return (method, route.path), drawn

    def _target(self, path: str, chance: random.Random) -> str:
        for part in path.split("/"):
            if part.startswith("{"):
                path = path.replace(part, chance.choice(NAMES))
        query = chance.choice(QUERIES) if chance.random() < 0.4 or "slots" in path else ""
        host = "http://localhost" if chance.random() < 0.02 else ""
        return f"{host}{path}?{query}" if query else f"{host}{path}"


def _body(schema: Mapping[str, Any], chance: random.Random) -> bytes:
    poison = chance.choice((0.0, 0.0, 0.02, 0.1, 0.3))
    made = Values(schema, chance, poison).draw(schema)
    if isinstance(made, dict) and chance.random() < 0.8:
        made |= {name: most for name, most in SHORT.items() if name in made or name == _limit_of(schema)}
        made.pop("model", None)
    text = json.dumps(made, ensure_ascii=chance.random() < 0.5)
    for number, raw in enumerate(RAWS):
        text = text.replace(f'"{RAW}{number}"', raw)
    return text.replace('"NESTED"', "[" * 200 + "]" * 200).encode("utf-8", "surrogatepass")


def _limit_of(schema: Mapping[str, Any]) -> str:
    """The field that says how many tokens are made."""
    fields = schema.get("properties", {})
    return next((name for name in SHORT if name in fields), "")


class Values:
    """Draws values by a schema, and with a chance of `poison` each others."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        chance: random.Random,
        poison: float,
    ) -> None:
        self._of, self._chance, self._poison = schema.get("$defs", {}), chance, poison
        self._often = chance.choice((0.03, 0.1, 0.3))

    def draw(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        chance = self._chance
        if chance.random() < self._poison:
            return self._odd()
        if "$ref" in schema:
            return self.draw(self._of[schema["$ref"].rpartition("/")[2]], depth)
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self.draw(chance.choice(choices), depth)
        if "const" in schema or "enum" in schema:
            return chance.choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            least = schema.get("minItems", 0)
            count = chance.randint(least, max(least, 3)) if depth < 8 else least
            return [self.draw(schema.get("items", {}), depth + 1) for _ in range(count)]
        return self._plain(kind, schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        chance, fields = self._chance, schema.get("properties", {})
        made = {}
        for name, inner in fields.items():
            if name in schema.get("required", ()) or chance.random() < (self._often if depth < 6 else 0):
                is_form = name in FORMS and chance.random() < 0.3
                made[name] = chance.choice(FORMS[name]) if is_form else self.draw(inner, depth + 1)
        if not fields or chance.random() < self._poison:
            made[chance.choice(TEXTS)] = self._odd()
        return made

    def _plain(self, kind: str | None, schema: Mapping[str, Any]) -> Any:
        chance, is_odd = self._chance, self._chance.random() < 3 * self._poison
        if kind == "string":
            return chance.choice(TEXTS if is_odd else TEXTS[1:3])
        if kind in ("integer", "number"):
            if is_odd:
                return chance.choice(NUMBERS)
            low, high = schema.get("minimum", 0), schema.get("maximum", 20)
            return chance.randint(low, max(low, high)) if kind == "integer" else chance.uniform(low, high)
        return {"boolean": chance.random() < 0.5, "null": None}.get(kind or "", "x") if kind else self._odd()

    def _odd(self) -> Any:
        chance = self._chance
        if chance.random() < 0.1:
            return f"{RAW}{chance.randrange(len(RAWS))}"
        return chance.choice(chance.choice((TEXTS, NUMBERS, ODD)))


def _spoil(drawn: Drawn, chance: random.Random) -> None:
    """Make a request wrong in its form."""
    way = chance.randrange(6)
    if way == 0 and drawn.body:
        drawn.body = drawn.body[: chance.randrange(len(drawn.body))]
    elif way == 1 and drawn.body:
        at = chance.randrange(len(drawn.body))
        drawn.body = drawn.body[:at] + bytes([chance.randrange(256)]) + drawn.body[at + 1 :]
    elif way == 2:
        drawn.body = gzip.compress(drawn.body, mtime=0)
        drawn.headers.append(("Content-Encoding", "gzip"))
    elif way == 3:
        drawn.method = chance.choice(
            ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "A")
        )
    elif way == 4:
        drawn.target += chance.choice(("/", "//", "?", "#", "%", "/..", ";x", quote("é")))
    else:
        name, values = chance.choice(HEADERS)
        drawn.headers = [each for each in drawn.headers if each[0] != name] + [(name, chance.choice(values))]
