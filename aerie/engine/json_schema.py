"""Adapts a JSON schema to llguidance, which ignores some keywords and keeps numbers as f64.

In f64 integers are exact up to 2**53, and numbers of 15 digits come back unchanged (DBL_DIG of C). So a
constant beyond that is refused, and a bound is moved inwards: the remaining range fits the schema. Keywords
that llguidance does not support are reported by it (its option `lenient`) and dropped. All of them (`not`,
`uniqueItems`, `contains` and so on) only make a schema narrower, so an answer may then not match the schema,
and no valid answer is lost.

Runs in the child of grammar_process.py only: a client's schema may be large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

MAX_EXACT: Final = 2**53
MAX_DIGITS: Final = 15
FORMATS: Final = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
)
"""The formats that llguidance supports. JSON Schema ignores all others (2020-12 Validation, 7.2.1)."""
ONE: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with subschemas: one, a list, or by name."""
MAX_COUNT: Final = 10**9
"""No answer has this number of parts. A larger limit is dropped."""
COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LOWS: Final = ("minimum", "exclusiveMinimum")
HIGHS: Final = ("maximum", "exclusiveMaximum")
NULLS: Final = frozenset({"const", "default", "example"})
"""Keywords whose null is a value, not a client's way to leave the keyword out."""

Node = dict[str, Any]


class RefusedError(Exception):
    """A refused grammar. The message continues "the JSON schema cannot be taken: "."""


def parse_schema(text: str) -> Any:
    """Parse JSON, with numbers as Decimal. Raises RefusedError if it is invalid."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, ArithmeticError) as error:
        raise RefusedError(str(error)) from None
    except RecursionError:
        raise RefusedError("it is nested too deeply") from None


def _no_number(text: str) -> None:
    raise RefusedError(f"{text} is no number of JSON")


def dump_schema(schema: Any) -> str:
    """The schema as JSON text. Numbers other than constants and bounds may have lost digits."""
    return json.dumps(schema, default=float)


def resolve_reference(root: Any, reference: str) -> Any:
    """The schema that a reference within this document names: a JSON pointer (RFC 6901) behind #. Raises
    LookupError if there is none."""
    at = root
    if reference not in ("#", ""):
        head, _, pointer = reference.partition("#/")
        if head or not pointer:
            raise LookupError(reference)
        for part in unquote(pointer).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            at = at[int(name)] if isinstance(at, list) and name.isdecimal() else at[name]
    if not isinstance(at, dict | bool):
        raise LookupError(reference)
    return at


def schema_nodes(root: Any) -> Iterator[Node]:
    """All schemas of a document that are objects, each once, also those behind references only."""
    seen: set[int] = set()
    remaining = [root]
    while remaining:
        node = remaining.pop()
        if isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            yield node
            remaining += children(node)
            if isinstance(node.get("$ref"), str):
                remaining += _referenced(root, node["$ref"])


def children(node: Node) -> Iterator[Any]:
    for name in ONE:
        yield node.get(name)
    for name in LISTS:
        if isinstance(node.get(name), list):
            yield from node[name]
    for name in MAPS:
        if isinstance(node.get(name), dict):
            yield from node[name].values()


def _referenced(root: Any, reference: str) -> list[Any]:
    try:
        return [resolve_reference(root, reference)]
    except (LookupError, TypeError, ValueError):
        return []


def normalize_numbers(root: Any) -> None:
    """Change all numbers, in place, to those that llguidance supports. Raises RefusedError if that is not
    possible."""
    for node in schema_nodes(root):
        for name in COUNTS:
            value = node.get(name)
            if isinstance(value, Decimal) and value == value.to_integral_value():
                node[name] = int(value)
            if name.startswith("max") and is_number(value) and value > MAX_COUNT:
                del node[name]
        for keyword in ("const", "enum"):
            if keyword in node:
                _check_constants(node[keyword], keyword)
        if (step := _number(node, "multipleOf")) is not None and not is_exact_f64(step):
            raise RefusedError(_lost("multipleOf", step))
        _move_bounds(node)


def _number(node: Node, name: str) -> int | Decimal | None:
    value = node.get(name)
    return value if is_number(value) else None


def is_number(value: Any) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def is_exact_f64(number: int | Decimal) -> bool:
    """Whether the number is unchanged by f64."""
    if not -MAX_EXACT <= number <= MAX_EXACT:
        return False
    if number == int(number):
        return True
    return Context(MAX_DIGITS).create_decimal(number) == number == Decimal(repr(float(number)))


def _lost(place: str, number: int | Decimal) -> str:
    return (
        f"its {place} has {str(number)[:40]}, and numbers beyond 2**53, or of more than {MAX_DIGITS} "
        "digits, are not taken; give it as a text"
    )


def _check_constants(constants: Any, place: str) -> None:
    remaining = [constants]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            remaining += value.values()
        elif isinstance(value, list):
            remaining += value
        elif is_number(value) and not is_exact_f64(value):
            raise RefusedError(_lost(place, value))


def _move_bounds(node: Node) -> None:
    """Move bounds inwards to the next exact numbers, within -MAX_EXACT and MAX_EXACT."""
    bounds = {name: bound for name in (*LOWS, *HIGHS) if (bound := _number(node, name)) is not None}
    lost = [name for name, bound in bounds.items() if not is_exact_f64(bound) or _is_past(name, bound)]
    for name in lost:
        if _is_past(name, bounds[name]):
            raise RefusedError(_lost(name, bounds[name]))
        keyword, bound = _moved(name, bounds[name])
        del node[name]
        others = [each for each in (_number(node, keyword),) if each is not None]
        node[keyword] = max([bound, *others]) if name in LOWS else min([bound, *others])
    lows, highs = (
        [bound for name in names if (bound := _number(node, name)) is not None] for names in (LOWS, HIGHS)
    )
    if lost and lows and highs and max(lows) > min(highs):
        raise RefusedError(_lost(lost[0], bounds[lost[0]]))


def _is_past(name: str, bound: int | Decimal) -> bool:
    """Whether the bound leaves no exact number."""
    far = bound if name in LOWS else -bound
    return far > MAX_EXACT or (far == MAX_EXACT and name.startswith("exclusive"))


def _moved(name: str, bound: int | Decimal) -> tuple[str, int | Decimal]:
    """The replacing keyword and bound. Raises RefusedError if there is no exact number so near to 0."""
    if not -MAX_EXACT <= bound <= MAX_EXACT:
        return ("minimum", -MAX_EXACT) if name in LOWS else ("maximum", MAX_EXACT)
    rounds = ROUND_CEILING if name in LOWS else ROUND_FLOOR
    made = Context(MAX_DIGITS, rounding=rounds).create_decimal(bound)
    if not is_exact_f64(made):
        raise RefusedError(_lost(name, bound))
    return name, made


def without_formats(root: Any) -> None:
    """Drop, in place, the formats that llguidance does not support."""
    for node in schema_nodes(root):
        if isinstance(given := node.get("format"), str) and given not in FORMATS:
            del node["format"]


def drop_unsupported(root: Any, is_pattern: Callable[[str], bool]) -> list[str]:
    """Drop, in place, keywords that are null, invalid patterns, and references that lead nowhere. Returns
    their names."""
    dropped: dict[str, None] = {}
    for node in schema_nodes(root):
        for name in [name for name, value in node.items() if value is None and name not in NULLS]:
            del node[name]
            dropped[f"{name} null"] = None
        if isinstance(given := node.get("pattern"), str) and not is_pattern(given):
            del node["pattern"]
            dropped["pattern"] = None
        if isinstance(named := node.get("patternProperties"), dict):
            for each in [each for each in named if not is_pattern(each)]:
                del named[each]
                dropped["patternProperties"] = None
        if isinstance(given := node.get("$ref"), str) and not _leads(root, given):
            del node["$ref"]
            dropped["$ref to elsewhere"] = None
    return [*dropped]


REMEDIES: Final = {
    "circular references with sibling keys": "beside $ref",
    "has too many digits": "multipleOf",
    "Failed to generate regex for": "bounds",
}
"""Errors of llguidance, and what is dropped after each."""


def drop_after_error(root: Any, error: str) -> str | None:
    """Drop, in place, what an error of llguidance is about. Returns its name; None if the schema itself is
    wrong."""
    remedy = next((dropped for message, dropped in REMEDIES.items() if message in error), None)
    for node in schema_nodes(root):
        for name in _left_out(node, remedy):
            node.pop(name, None)
    return remedy


def _left_out(node: Node, remedy: str | None) -> Iterable[str]:
    if remedy == "beside $ref":
        retained = {"$ref", *MAPS, "$id", "$schema"} if "$ref" in node else node.keys()
        return node.keys() - retained
    return {"multipleOf": ("multipleOf",), "bounds": (*LOWS, *HIGHS)}.get(remedy or "", ())


def _leads(root: Any, reference: str) -> bool:
    return bool(_referenced(root, reference)) or (reference.startswith("#") and "/" not in reference)


def dropped_keywords(warning: str) -> list[str]:
    """The keywords that a warning of llguidance says it ignores."""
    if warning.startswith("Unimplemented keys: "):
        return [str(each) for each in json.loads(warning.partition(": ")[2])]
    if warning.startswith("Unknown format: "):
        return [f"format {warning.partition(': ')[2]}"]
    return ["oneOf, which is taken as anyOf"] if warning.startswith("oneOf") else [warning]


def check_schema(schema: Any) -> Node:
    """The schema as an object. Raises RefusedError if it is no schema."""
    if schema is True:
        return {}
    if schema is False:
        raise RefusedError("it is false, which describes no JSON")
    if not isinstance(schema, dict):
        raise RefusedError(f"it is {dump_schema(schema)[:100]}, and no object")
    return schema
