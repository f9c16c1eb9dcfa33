"""Whether a JSON schema has a finite instance, so that an answer of it can end.

Two least fixpoints. Schemas that apply together at one place of the JSON, by $ref, allOf, anyOf and oneOf,
form sets (`_SchemaSets`); a schema that refers to itself without going deeper applies nowhere. A set of
schemas
has an instance if one of its types has: an object whose required properties have instances, an array whose
first items have, or anything without parts. For patterns, constants and unknown keywords the answer is yes:
llguidance refuses most schemas that are empty for those reasons.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from aerie.engine.json_schema import Node, resolve_reference

MAX_SETS: Final = 256
"""In which schemas can hold at one place; where there are more, the answer is yes."""
MAX_KEYS: Final = 5000
PLAIN: Final = frozenset({"null", "boolean", "number", "integer", "string"})
TYPES: Final = PLAIN | {"array", "object"}

SchemaSet = frozenset[int]
"""Schemas that apply together, by their ids."""


class _TooManyError(Exception):
    pass


def has_finite_instance(root: Any) -> bool:
    """Whether a parsed schema has a finite instance."""
    try:
        return _Instances(root).has(root)
    except _TooManyError:
        return True


@dataclass
class _SchemaSets:
    """The sets of schemas that can apply with a schema."""

    root: Any
    nodes: dict[int, Node] = field(default_factory=dict)
    sets: dict[int, set[SchemaSet]] = field(default_factory=dict)

    def get(self, schemas: Iterable[Any]) -> set[SchemaSet]:
        """The sets for schemas that apply together."""
        together = [*schemas]
        objects = [each for each in together if isinstance(each, dict)]
        self._find(objects)
        return set() if False in together else _all_of([self.sets[id(each)] for each in objects])

    def _find(self, schemas: list[Node]) -> None:
        new: list[Node] = []
        left = [each for each in schemas if id(each) not in self.nodes]
        while left:
            node = left.pop()
            if id(node) not in self.nodes:
                self.nodes[id(node)], self.sets[id(node)] = node, set()
                new.append(node)
                left += [each for group in self._groups(node) for each in group if isinstance(each, dict)]
        changed = True
        while changed:
            changed = False
            for node in reversed(new):
                made = self._sets_of(node)
                changed |= made != self.sets[id(node)]
                self.sets[id(node)] = made

    def _groups(self, node: Node) -> list[list[Any]]:
        """Schemas that apply with the node: one of each list."""
        groups = [[each] for each in _listed(node, "allOf")]
        groups += [_listed(node, name) for name in ("anyOf", "oneOf") if isinstance(node.get(name), list)]
        if isinstance(reference := node.get("$ref"), str):
            groups.append([_target(self.root, reference)])
        return groups

    def _sets_of(self, node: Node) -> set[SchemaSet]:
        either = [set().union(*map(self._current_sets, group)) for group in self._groups(node)]
        return _all_of([{frozenset([id(node)])}, *either])

    def _current_sets(self, schema: Any) -> set[SchemaSet]:
        if isinstance(schema, dict):
            return self.sets[id(schema)]
        return set() if schema is False else {frozenset()}


def _target(root: Any, reference: str) -> Any:
    try:
        return resolve_reference(root, reference)
    except (LookupError, TypeError, ValueError):
        return True


def _listed(node: Node, name: str) -> list[Any]:
    given = node.get(name)
    return given if isinstance(given, list) else []


def _all_of(each: list[set[SchemaSet]]) -> set[SchemaSet]:
    product = {frozenset[int]()}
    for sets in each:
        product = {one | other for one, other in itertools.product(product, sets)}
        if len(product) > MAX_SETS:
            raise _TooManyError
    return product


@dataclass(frozen=True)
class _Need:
    """What an instance needs: parts that must have instances, and at least `least` of `among`."""

    parts: tuple[SchemaSet, ...] = ()
    least: int = 0
    among: tuple[SchemaSet, ...] = ()


class _Instances:
    """Which sets of schemas have instances. A set has alternatives, each with its needs; a need names a
    part's alternatives by their own key."""

    def __init__(self, root: Any) -> None:
        self._schema_sets = _SchemaSets(root)
        self._needs: dict[SchemaSet, list[_Need]] = {}
        self._true: set[SchemaSet] = set()

    def has(self, root: Any) -> bool:
        first = self._key([root])
        remaining = [first]
        while remaining:
            key = remaining.pop()
            if key not in self._needs:
                if len(self._needs) > MAX_KEYS:
                    raise _TooManyError
                self._needs[key] = [*self._needs_of(key)]
                remaining += [part for need in self._needs[key] for part in (*need.parts, *need.among)]
        changed = True
        while changed and first not in self._true:
            new = {key for key in self._needs.keys() - self._true if any(map(self._is_met, self._needs[key]))}
            self._true |= new
            changed = bool(new)
        return first in self._true

    def _key(self, schemas: Iterable[Any]) -> SchemaSet:
        """Schemas that apply at one place. False, which applies nowhere, is 0."""
        given = [each for each in schemas if each is not True]
        for each in given:
            if isinstance(each, dict):
                self._schema_sets.get([each])
        return frozenset(id(each) if isinstance(each, dict) else 0 for each in given)

    def _is_met(self, need: _Need) -> bool:
        have = sum(1 for part in need.among if part in self._true)
        return have >= need.least and all(part in self._true for part in need.parts)

    def _needs_of(self, key: SchemaSet) -> Iterator[_Need]:
        if 0 in key:
            return
        for way in self._schema_sets.get(self._schema_sets.nodes[each] for each in key):
            held = [self._schema_sets.nodes[each] for each in way]
            types = frozenset.intersection(TYPES, *map(_types, held))
            if any("const" in node or "enum" in node for node in held):
                yield from [_Need()] if all(node.get("enum", True) for node in held) else []
            elif types & PLAIN:
                yield _Need()
            else:
                if "array" in types:
                    yield self._array(held)
                if "object" in types:
                    yield self._object(held)

    def _array(self, held: list[Node]) -> _Need:
        least = max((_count(node, "minItems") for node in held), default=0)
        first = max((len(_first(node)) for node in held), default=0)
        parts = [self._key(_item(node, at) for node in held) for at in range(min(least, first + 1))]
        return _Need(tuple(parts))

    def _object(self, held: list[Node]) -> _Need:
        required = {each for node in held for each in _listed(node, "required") if isinstance(each, str)}
        parts = tuple(self._key(_property(node, name) for node in held) for name in required)
        least = max((_count(node, "minProperties") for node in held), default=0) - len(required)
        if least <= 0 or any(node.get("patternProperties") for node in held):
            return _Need(parts)
        known = {name for node in held for name in _properties(node)}
        others = self._key(node.get("additionalProperties", True) for node in held)
        among = tuple(self._key(_property(node, name) for node in held) for name in known - required)
        return _Need(parts, least, among + (others,) * least)


def _types(node: Node) -> frozenset[str]:
    given = node.get("type")
    if isinstance(given, str):
        return frozenset([given]) | (frozenset(["integer"]) if given == "number" else frozenset())
    if isinstance(given, list):
        return frozenset().union(*(_types({"type": each}) for each in given if isinstance(each, str)))
    return TYPES


def _count(node: Node, name: str) -> int:
    given = node.get(name)
    return given if isinstance(given, int) else 0


def _first(node: Node) -> list[Any]:
    return _listed(node, "prefixItems") or _listed(node, "items")


def _item(node: Node, at: int) -> Any:
    first = _first(node)
    if at < len(first):
        return first[at]
    rest = node.get("additionalItems" if isinstance(node.get("items"), list) else "items", True)
    return rest if isinstance(rest, dict | bool) else True


def _properties(node: Node) -> dict[str, Any]:
    given = node.get("properties")
    return given if isinstance(given, dict) else {}


def _property(node: Node, name: str) -> Any:
    known = _properties(node)
    if name in known:
        return known[name]
    rest = True if node.get("patternProperties") else node.get("additionalProperties", True)
    return rest if isinstance(rest, dict | bool) else True
