"""References of Avro and JSON schemas: one text that needs no other.

Belongs here: putting the schemas that a definition refers to into its text, since a schema of lakestream refers to no
other document. protobuf.py does the same with files.

    Avro    the first use of a type of another schema becomes the type's definition
    JSON    the other schema comes into `$defs`, and `$ref` leads there
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from lakestream_registry.errors import bad_schema

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = ("record", "error", "enum", "fixed")
MAX_DEPTH = 120
"""Maximum nesting of a definition's JSON, with its references."""


def parsed(text: str) -> Any:
    """Return the values of a JSON text. Raises RegistryError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_schema(f"it is not JSON: {error}") from None


def compact(value: Any) -> str:
    """Return the JSON text by which equal definitions are found: without white space, in the given order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def plain_avro(value: Any) -> Any:
    """Return the values of an Avro schema with `"string"` in the place of `{"type": "string"}`, which are the same."""
    if isinstance(value, list):
        return list(map(plain_avro, value))
    if isinstance(value, dict):
        return plain_avro(value["type"]) if value.keys() == {"type"} else {key: plain_avro(value[key]) for key in value}
    return value


def of_avro(text: str, others: Mapping[str, str]) -> str:
    """Return an Avro schema with the types of other schemas inside.

    Args:
        text: the schema.
        others: texts, self-contained, of the schemas that it refers to, by the name of the reference.
    """
    types: dict[str, Any] = {}
    for other in others.values():
        _collect(parsed(other), "", types)
    return compact(_Inlined(types).walk(parsed(text), "", 0))


def _collect(schema: Any, space: str, types: dict[str, Any]) -> None:
    """Find the definitions of named types, by full name, with their namespaces written out."""
    if isinstance(schema, list):
        for each in schema:
            _collect(each, space, types)
    elif isinstance(schema, dict):
        if schema.get("type") in _NAMED:
            full, space = _full(schema, space)
            types.setdefault(full, {**schema, "name": full.rpartition(".")[2], "namespace": space})
        for each in _parts(schema):
            _collect(each, space, types)


def _full(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return (full name, namespace) of a definition."""
    name = str(schema.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    space = str(schema.get("namespace", space) or "")
    return (f"{space}.{name}" if space else name), space


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    fields = schema.get("fields")
    found = [each.get("type") for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
    return (
        found
        + [schema[key] for key in ("items", "values") if key in schema]
        + ([schema["type"]] if isinstance(schema.get("type"), dict | list) else [])
    )


class _Inlined:
    def __init__(self, types: dict[str, Any]) -> None:
        self._types, self._defined = types, set[str]()

    def walk(self, schema: Any, space: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise bad_schema(f"with its references it nests deeper than {MAX_DEPTH}")
        if isinstance(schema, list):
            return [self.walk(each, space, depth + 1) for each in schema]
        if isinstance(schema, str):
            return self._named(schema, space, depth)
        if not isinstance(schema, dict):
            return schema
        found = dict(schema)
        if found.get("type") in _NAMED:
            full, space = _full(found, space)
            if full in self._defined and full in self._types:
                return full
            self._defined.add(full)
        elif "type" in found:
            found["type"] = self.walk(found["type"], space, depth + 1)
        if isinstance(found.get("fields"), list):
            found["fields"] = [
                {**each, "type": self.walk(each.get("type"), space, depth + 1)} if isinstance(each, dict) else each
                for each in found["fields"]
            ]
        for key in ("items", "values"):
            if key in found:
                found[key] = self.walk(found[key], space, depth + 1)
        return found

    def _named(self, name: str, space: str, depth: int) -> Any:
        full = name if "." in name or not space or name in _PRIMITIVES else f"{space}.{name}"
        if full not in self._types and name in self._types and name not in _PRIMITIVES:
            full = name
        if full in self._types and full not in self._defined:
            return self.walk(copy.deepcopy(self._types[full]), "", depth + 1)
        return full if full in self._types else name


def of_json(text: str, others: Mapping[str, str]) -> str:
    """Return a JSON Schema with other schemas in its `$defs`.

    Args:
        text: the schema.
        others: texts, self-contained, of the schemas that it refers to, by the name of the reference.
    """
    root = parsed(text)
    if not isinstance(root, dict):
        return compact(root)
    base = str(root.get("$id", ""))
    places = {name: f"reference_{number}" for number, name in enumerate(others)}
    root = _redirected(root, base, places, "", 0)
    definitions = root.setdefault("$defs", {})
    for name, other in others.items():
        inner = parsed(other)
        if isinstance(inner, dict):
            inner = {key: value for key, value in inner.items() if key not in ("$schema", "$id", "id")}
            inner = _redirected(inner, "", {}, f"#/$defs/{places[name]}", 0)
        definitions[places[name]] = inner
    return compact(root)


def _redirected(node: Any, base: str, places: Mapping[str, str], root: str, depth: int) -> Any:
    """Return a schema whose references to others lead into `$defs`, and those to itself below `root`."""
    if depth > 2 * MAX_DEPTH:
        raise bad_schema(f"it nests deeper than {2 * MAX_DEPTH}")
    if isinstance(node, list):
        return [_redirected(each, base, places, root, depth + 1) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: _redirected(value, base, places, root, depth + 1) for key, value in node.items()}
    if isinstance(ref := node.get("$ref"), str):
        document, _, fragment = ref.partition("#")
        if not document:
            found["$ref"] = f"{root or '#'}{fragment}" if root else ref
        else:
            name = next((each for each in (document, urljoin(base, document)) if each in places), None)
            if name is None:
                raise bad_schema(f"$ref {ref[:200]!r} is none of its references")
            found["$ref"] = f"#/$defs/{places[name]}{fragment}"
    return found
