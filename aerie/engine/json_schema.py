"""A JSON schema as llguidance can hold answers to it: what it would pass over, or take for another number.

llguidance keeps numbers as f64, of which ranges are met up to 2**53 alone, and texts of 15 digits come back
as they were (DBL_DIG of C). So a constant of more is refused, and a bound is moved inwards: what it leaves
fits the schema. Keywords that llguidance has not are told by it (its option `lenient`), and left out; all of
them (`not`, `uniqueItems`, `contains` and so on) only make a schema narrower, so an answer may then be one
that the schema does not describe, and none is lost.

Only in the process of form_process.py: a schema is a stranger's, and may be large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

MOST: Final = 2**53
DIGITS: Final = 15
FORMATS: Final = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
)
"""Those that llguidance has; JSON Schema passes over all others (2020-12 Validation, 7.2.1)."""
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
"""Where schemas have schemas: by itself, in a list, by names."""
MOST_COUNT: Final = 10**9
"""No answer has as many parts: a limit of more is none."""
COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LOWS: Final = ("minimum", "exclusiveMinimum")
HIGHS: Final = ("maximum", "exclusiveMaximum")
NULLS: Final = frozenset({"const", "default", "example"})
"""Where null is a value, and not what a client writes for a keyword that is not there."""

Node = dict[str, Any]


class RefusedError(Exception):
    """A form that cannot be taken: why, in words that go on from "the JSON schema cannot be taken: "."""


def parse_schema(text: str) -> Any:
    """JSON with its numbers as they are written. RefusedError for none."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, ArithmeticError) as error:
        raise RefusedError(str(error)) from None
    except RecursionError:
        raise RefusedError("it is nested too deeply") from None


def _no_number(text: str) -> None:
    raise RefusedError(f"{text} is no number of JSON")


def dump_schema(schema: Any) -> str:
    """As JSON again; numbers that are no constants and no bounds may have lost digits."""
    return json.dumps(schema, default=float)


def resolve_reference(root: Any, reference: str) -> Any:
    """What a reference of this document is to: a JSON pointer (RFC 6901) behind #. LookupError for none."""
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
    """All schemas of a document that are objects, each once, those that only references lead to as well."""
    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            yield node
            left += children(node)
            if isinstance(node.get("$ref"), str):
                left += _found(root, node["$ref"])


def children(node: Node) -> Iterator[Any]:
    for name in ONE:
        yield node.get(name)
    for name in LISTS:
        if isinstance(node.get(name), list):
            yield from node[name]
    for name in MAPS:
        if isinstance(node.get(name), dict):
            yield from node[name].values()


def _found(root: Any, reference: str) -> list[Any]:
    try:
        return [resolve_reference(root, reference)]
    except (LookupError, TypeError, ValueError):
        return []


def normalize_numbers(root: Any) -> None:
    """In place: all numbers as llguidance has them. RefusedError where it has not."""
    for node in schema_nodes(root):
        for name in COUNTS:
            given = node.get(name)
            if isinstance(given, Decimal) and given == given.to_integral_value():
                node[name] = int(given)
            if name.startswith("max") and is_number(given) and given > MOST_COUNT:
                del node[name]
        for place in ("const", "enum"):
            if place in node:
                _check_constants(node[place], place)
        if (step := _number(node, "multipleOf")) is not None and not is_exact_f64(step):
            raise RefusedError(_lost("multipleOf", step))
        _move_bounds(node)


def _number(node: Node, name: str) -> int | Decimal | None:
    given = node.get(name)
    return given if is_number(given) else None


def is_number(given: Any) -> TypeGuard[int | Decimal]:
    return isinstance(given, int | Decimal) and not isinstance(given, bool)


def is_exact_f64(number: int | Decimal) -> bool:
    """Whether it comes back from f64 as it is."""
    if not -MOST <= number <= MOST:
        return False
    if number == int(number):
        return True
    return Context(DIGITS).create_decimal(number) == number == Decimal(repr(float(number)))


def _lost(place: str, number: int | Decimal) -> str:
    return (
        f"its {place} has {str(number)[:40]}, and numbers beyond 2**53, or of more than {DIGITS} digits, are "
        "not taken; give it as a text"
    )


def _check_constants(given: Any, place: str) -> None:
    left = [given]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif is_number(value) and not is_exact_f64(value):
            raise RefusedError(_lost(place, value))


def _move_bounds(node: Node) -> None:
    """To the next numbers inwards that are held, within -MOST and MOST."""
    given = {name: bound for name in (*LOWS, *HIGHS) if (bound := _number(node, name)) is not None}
    lost = [name for name, bound in given.items() if not is_exact_f64(bound) or _is_past(name, bound)]
    for name in lost:
        if _is_past(name, given[name]):
            raise RefusedError(_lost(name, given[name]))
        to, bound = _moved(name, given[name])
        del node[name]
        others = [each for each in (_number(node, to),) if each is not None]
        node[to] = max([bound, *others]) if name in LOWS else min([bound, *others])
    lows, highs = (
        [bound for name in names if (bound := _number(node, name)) is not None] for names in (LOWS, HIGHS)
    )
    if lost and lows and highs and max(lows) > min(highs):
        raise RefusedError(_lost(lost[0], given[lost[0]]))


def _is_past(name: str, bound: int | Decimal) -> bool:
    """Whether it leaves no number that is held."""
    far = bound if name in LOWS else -bound
    return far > MOST or (far == MOST and name.startswith("exclusive"))


def _moved(name: str, bound: int | Decimal) -> tuple[str, int | Decimal]:
    """The keyword and the bound in its place. RefusedError where there is none so near to 0."""
    if not -MOST <= bound <= MOST:
        return ("minimum", -MOST) if name in LOWS else ("maximum", MOST)
    rounds = ROUND_CEILING if name in LOWS else ROUND_FLOOR
    made = Context(DIGITS, rounding=rounds).create_decimal(bound)
    if not is_exact_f64(made):
        raise RefusedError(_lost(name, bound))
    return name, made


def without_formats(root: Any) -> None:
    """In place: without the formats that llguidance has not."""
    for node in schema_nodes(root):
        if isinstance(given := node.get("format"), str) and given not in FORMATS:
            del node["format"]


def drop_unsupported(root: Any, is_pattern: Callable[[str], bool]) -> list[str]:
    """In place: without keywords that are null, patterns that are none to llguidance, and references that
    lead nowhere; which these are."""
    told: dict[str, None] = {}
    for node in schema_nodes(root):
        for name in [name for name, value in node.items() if value is None and name not in NULLS]:
            del node[name]
            told[f"{name} null"] = None
        if isinstance(given := node.get("pattern"), str) and not is_pattern(given):
            del node["pattern"]
            told["pattern"] = None
        if isinstance(named := node.get("patternProperties"), dict):
            for each in [each for each in named if not is_pattern(each)]:
                del named[each]
                told["patternProperties"] = None
        if isinstance(given := node.get("$ref"), str) and not _leads(root, given):
            del node["$ref"]
            told["$ref to elsewhere"] = None
    return [*told]


REMEDIES: Final = {
    "circular references with sibling keys": "beside $ref",
    "has too many digits": "multipleOf",
    "Failed to generate regex for": "bounds",
}
"""What llguidance says of a schema that it cannot take, and what is left out of it then."""


def drop_after_error(root: Any, error: str) -> str | None:
    """In place: without what an error of llguidance is about; what that is, or None where it is no schema."""
    remedy = next((what for begins, what in REMEDIES.items() if begins in error), None)
    for node in schema_nodes(root):
        for name in _left_out(node, remedy):
            node.pop(name, None)
    return remedy


def _left_out(node: Node, remedy: str | None) -> Iterable[str]:
    if remedy == "beside $ref":
        kept = {"$ref", *MAPS, "$id", "$schema"} if "$ref" in node else node.keys()
        return node.keys() - kept
    return {"multipleOf": ("multipleOf",), "bounds": (*LOWS, *HIGHS)}.get(remedy or "", ())


def _leads(root: Any, reference: str) -> bool:
    return bool(_found(root, reference)) or (reference.startswith("#") and "/" not in reference)


def dropped_keywords(warning: str) -> list[str]:
    """What llguidance says that it passes over, as keywords."""
    if warning.startswith("Unimplemented keys: "):
        return [str(each) for each in json.loads(warning.partition(": ")[2])]
    if warning.startswith("Unknown format: "):
        return [f"format {warning.partition(': ')[2]}"]
    return ["oneOf, which is taken as anyOf"] if warning.startswith("oneOf") else [warning]


def check_schema(given: Any) -> Node:
    """An object. RefusedError for what is no schema."""
    if given is True:
        return {}
    if given is False:
        raise RefusedError("it is false, which describes no JSON")
    if not isinstance(given, dict):
        raise RefusedError(f"it is {dump_schema(given)[:100]}, and no object")
    return given
