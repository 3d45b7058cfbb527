"""Bounds of the work that a JSON Schema can cause.

Belongs here: which keywords hold schemas, local references, and the number of schemas that one value is checked
against. A validator visits every branch, so references that meet again double the work at every level: a schema of
1 kB could ask for 2^50 visits. Here the visits are counted from the schema alone, before any payload is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from lakestream.schemas.errors import BadSchema

MAX_DEPTH = 100
"""Maximum nesting depth of a payload; a deeper one does not fit."""
MAX_VISITS = 1_000
"""Maximum number of schemas that one value of a payload is checked against. A recursive schema that exceeds it at some
depth limits payloads to the depth before."""
MAX_CHAIN = 200
"""Maximum number of references, and members of allOf and the like, that lead from one to the next for one value."""
LEAST_DEPTH = 4
"""A schema that exceeds MAX_VISITS before this depth is refused."""
MAX_SCHEMA_DEPTH = 60
"""Maximum nesting depth of a schema's text."""
_SAME_ONE = ("not", "if", "then", "else")
_SAME_LIST = ("allOf", "anyOf", "oneOf")
_SAME_MAP = ("dependentSchemas",)
_ITEMS_ONE = ("items", "additionalItems", "unevaluatedItems", "contains")
_ANY_PROPERTY = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_UNSUPPORTED = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary")
Node = dict[str, Any]


def resolve(root: Any, reference: Any, where: str) -> Any:
    """Return the part of the schema that a `$ref` points to.

    Raises:
        BadSchema: it is not in this schema. References to other documents are never fetched.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise BadSchema(f"$ref {str(reference)[:80]!r} is in another document", where, "copy it to $defs")
    node = root
    for token in unquote(reference[1:]).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and len(key) < 6 and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            raise BadSchema(f"$ref {reference[:80]!r} points to nothing", where)
    if not isinstance(node, dict | bool) or reference[1:2] not in ("", "/"):
        raise BadSchema(f"$ref {reference[:80]!r} points to no schema", where, "write it as #/$defs/name")
    return node


def _maps(node: Node, key: str) -> list[Any]:
    value = node.get(key)
    return list(value.values()) if isinstance(value, dict) else []


class Visits:
    """Counter of the schemas that a value is checked against, for one schema."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._nodes: dict[int, Node] = {}
        self._same: dict[int, Counter[int]] = {}
        self._open: set[int] = set()
        self._collect()
        for key in self._nodes:
            self._closure(key)

    def depth(self) -> int:
        """Return the depth up to which payloads may nest, at most MAX_DEPTH.

        Raises:
            BadSchema: LEAST_DEPTH levels need more than MAX_VISITS already.
        """
        visits = {key: self._at(key, {}) for key in self._nodes}
        for depth in range(1, MAX_DEPTH + 1):
            if visits[id(self._root)] > MAX_VISITS:
                if depth - 1 < LEAST_DEPTH:
                    raise BadSchema(
                        f"a value would be checked against more than {MAX_VISITS} schemas",
                        remedy="use fewer anyOf, oneOf and allOf inside of each other",
                    )
                return depth - 1
            above = {key: self._at(key, visits) for key in self._nodes}
            if above == visits:
                break
            visits = above
        self.most = visits[id(self._root)]
        return MAX_DEPTH

    most: int = MAX_VISITS
    """Upper bound of the visits of one value."""

    def _collect(self) -> None:
        """Find all schemas inside of the root, through references too."""
        pending: list[tuple[Any, str, int]] = [(self._root, "", 0)]
        while pending:
            node, where, depth = pending.pop()
            if not isinstance(node, dict) or id(node) in self._nodes:
                continue
            if depth > MAX_SCHEMA_DEPTH:
                raise BadSchema(f"schemas nest deeper than {MAX_SCHEMA_DEPTH}", where[:80], "use $ref to $defs")
            for key in _UNSUPPORTED:
                if key in node:
                    raise BadSchema(f"{key} is not supported", where, "use $ref to #/$defs/…")
            if depth and "$id" in node:
                raise BadSchema("$id inside of a schema is not supported", where, "use $ref to #/$defs/…")
            self._nodes[id(node)] = node
            pending += [(child, f"{where}/{key}", depth + 1) for key, child in _children(node)]
            if "$ref" in node:
                pending.append((resolve(self._root, node["$ref"], where), str(node["$ref"]), 1))

    def _closure(self, key: int) -> Counter[int]:
        """Return the schemas that check the same value as this one, with the number of ways to each."""
        if key in self._same:
            return self._same[key]
        if key in self._open:
            raise BadSchema("$ref leads back to itself without a step into the payload", remedy="remove the loop")
        if len(self._open) > MAX_CHAIN:
            raise BadSchema(f"more than {MAX_CHAIN} schemas refer to each other in a chain", remedy="shorten it")
        self._open.add(key)
        found: Counter[int] = Counter({key: 1})
        for child in self._inplace(self._nodes[key]):
            found.update(self._closure(id(child)))
        for node, ways in found.items():
            found[node] = min(ways, MAX_VISITS + 1)
        self._open.discard(key)
        self._same[key] = found
        return found

    def _inplace(self, node: Node) -> Iterator[Node]:
        children: list[Any] = [node[key] for key in _SAME_ONE if key in node]
        for key in _SAME_LIST:
            children += node[key] if isinstance(node.get(key), list) else []
        for key in (*_SAME_MAP, "dependencies"):
            children += _maps(node, key)
        if "$ref" in node:
            children.append(resolve(self._root, node["$ref"], ""))
        return (child for child in children if isinstance(child, dict))

    def _at(self, key: int, below: dict[int, int]) -> int:
        """Return the visits of a value and of the worst one inside, given those one level below ({}: none)."""
        closure = self._same[key]
        total = sum(closure.values())
        if below:
            items = wide = 0
            named: Counter[str] = Counter()
            for one, ways in closure.items():
                node = self._nodes[one]
                for name in (*_ITEMS_ONE, "prefixItems"):
                    items += ways * _sum(node.get(name), below)
                for name in _ANY_PROPERTY:
                    wide += ways * _sum(node.get(name), below)
                wide += ways * _sum(_maps(node, "patternProperties"), below)
                properties = node.get("properties")
                for name, child in properties.items() if isinstance(properties, dict) else ():
                    named[name] += ways * _sum(child, below)
            total += max(items, wide + max(named.values(), default=0))
        return min(total, MAX_VISITS + 1)


def _sum(child: Any, below: dict[int, int]) -> int:
    if isinstance(child, dict):
        return below.get(id(child), 0)
    return sum(below.get(id(each), 0) for each in child) if isinstance(child, list) else 0


def _children(node: Node) -> Iterator[tuple[str, Any]]:
    """Iterate over the schemas directly inside of a schema, as (place, schema)."""
    for key in (*_SAME_ONE, *_ITEMS_ONE, *_ANY_PROPERTY):
        value = node.get(key)
        if isinstance(value, list):  # `items` of draft 7
            yield from ((f"{key}/{at}", child) for at, child in enumerate(value))
        elif value is not None:
            yield key, value
    for key in (*_SAME_LIST, "prefixItems"):
        if isinstance(node.get(key), list):
            yield from ((f"{key}/{at}", child) for at, child in enumerate(node[key]))
    for key in ("properties", "patternProperties", "$defs", "definitions", "dependencies", *_SAME_MAP):
        if isinstance(node.get(key), dict):
            yield from ((f"{key}/{name}", child) for name, child in node[key].items())
