"""Comparison of two JSON Schemas: does the second allow all that the first allows?

Belongs here: the rules, named as in Confluent's registry. They are cautious: what cannot be decided by looking at both
schemas side by side counts as incompatible.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from lakestream.schemas.errors import BadSchema
from lakestream_schemas.differences import Differences
from lakestream_schemas.json_schema.bounds import Node, resolve
from lakestream_schemas.json_schema.codec import parse_schema

MAX_COMPARISONS = 20_000
"""Maximum number of pairs of schemas that are compared."""
_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_UPPER = {
    "maximum": "maximum",
    "exclusiveMaximum": "exclusive_maximum",
    "maxLength": "max_length",
    "maxItems": "max_items",
    "maxProperties": "max_properties",
}
_LOWER = {
    "minimum": "minimum",
    "exclusiveMinimum": "exclusive_minimum",
    "minLength": "min_length",
    "minItems": "min_items",
    "minProperties": "min_properties",
}
_OPAQUE = (
    *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "contains", "minContains"),
    *("maxContains", "dependentRequired", "dependentSchemas", "dependencies", "if", "then", "else"),
)
"""Keywords that have to stay as they are, or go."""
_TYPED_FORMATS = re.compile(r"date|date-time|decimal.*|uint64")
_COMBINED = ("anyOf", "oneOf")


def compare(writer: str, reader: str, found: Differences, strict: bool) -> None:
    """Add the differences of a reader's schema to a writer's.

    Args:
        writer: text of the schema of the payloads.
        reader: text of the schema that has to allow them.
        found: gets the differences.
        strict: see `compatibility.find_conflicts`.

    Raises:
        BadSchema: one of them cannot be read.
    """
    old, new = parse_schema(writer), parse_schema(reader)
    try:
        _Comparison(old, new, strict).compare(old, new, found)
    except (TypeError, AttributeError, RecursionError) as error:
        raise BadSchema(f"it is not a JSON Schema: {error}") from None


class _Comparison:
    def __init__(self, old: Node, new: Node, strict: bool) -> None:
        self._old, self._new, self._strict = old, new, strict
        self._open: set[tuple[int, int]] = set()
        self._count = 0

    def compare(self, old: Any, new: Any, found: Differences) -> None:
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise BadSchema("the schemas are too large to be compared", remedy="use fewer anyOf, oneOf and allOf")
        old, new = self._resolved(old, self._old), self._resolved(new, self._new)
        if old is False or new is True or new == {}:
            if old != new:
                found.add("schema_removed", "any value is allowed now", True)
            return
        if new is False:
            found.add("type_changed", "no value is allowed any more")
            return
        old = {} if old is True else old
        key = (id(old), id(new))
        if key in self._open:
            return
        self._open.add(key)
        try:
            self._both(old, new, found)
        finally:
            self._open.discard(key)

    def _resolved(self, node: Any, root: Node) -> Any:
        for _ in range(100):
            if not isinstance(node, dict) or "$ref" not in node:
                return node
            target = resolve(root, node["$ref"], "")
            rest = {key: value for key, value in node.items() if key != "$ref"}
            node = {**target, **rest} if rest and isinstance(target, dict) else target
        raise BadSchema("$ref leads back to itself")

    def _tried(self, old: Any, new: Any, found: Differences) -> Differences:
        trial = found.trial()
        self.compare(old, new, trial)
        return trial

    def _both(self, old: Node, new: Node, found: Differences) -> None:
        for part in _members(old, _COMBINED):
            if not _members(new, _COMBINED) and not self._tried(part, new, found).is_compatible:
                found.add("combined_type_narrowed", "one of the alternatives is not allowed any more")
                return
        if _members(new, _COMBINED):
            self._alternatives(old, new, found)
        elif not _members(old, _COMBINED):
            self._types(old, new, found)
        for part in new.get("allOf", []):
            # A property that another member describes is not new to the object.
            if part not in old.get("allOf", []):
                trial = self._tried({**_without(old, "allOf"), **_merged(old)}, part, found)
                if not trial.is_compatible:
                    found.add("product_type_extended", "a schema of allOf came, and excludes payloads")
                    found.extend(trial)
        if len(old.get("allOf", [])) > len(new.get("allOf", [])):
            found.add("product_type_narrowed", "a schema of allOf went", True)
        if "not" in new and new.get("not") != old.get("not"):
            if "not" not in old:
                found.add("not_type_extended", "`not` came")
            elif not self._tried(new["not"], old["not"], found).is_compatible:
                found.add("not_type_extended", "`not` excludes more")
        self._values(old, new, found)
        self._limits(old, new, found)
        if "object" in _types(old) & _types(new):
            self._objects(old, new, found)
        if "array" in _types(old) & _types(new):
            self._arrays(old, new, found)
        for keyword in _OPAQUE:
            if old.get(keyword) != new.get(keyword):
                rule = _snake(keyword)
                if keyword not in new:
                    found.add(f"{rule}_removed", f"{keyword} went", True)
                else:
                    found.add(f"{rule}_changed", f"{keyword} {'changed' if keyword in old else 'came'}")

    def _alternatives(self, old: Node, new: Node, found: Differences) -> None:
        """Compare with the members of `anyOf` or `oneOf` of the reader: each of the writer needs one."""
        members = _members(new, _COMBINED)
        before = _members(old, _COMBINED) or [_without(old, "allOf")]
        for part in before:
            trials = [self._tried(part, member, found) for member in members]
            if not any(trial.is_compatible for trial in trials):
                found.add("combined_type_changed", "an alternative is missing that payloads may have")
                if len(trials) == 1:
                    found.extend(trials[0])
                return
        if len(members) > len(before):
            found.add("sum_type_extended", "there are more alternatives", True)
        if "oneOf" in new and "oneOf" not in old and _members(old, ("anyOf",)):
            found.add("combined_type_changed", "anyOf became oneOf, which refuses what two of them allow")

    def _types(self, old: Node, new: Node, found: Differences) -> None:
        before, after = _types(old), _types(new)
        if missing := before - after:
            rule = "type_narrowed" if before & after else "type_changed"
            found.add(rule, f"{', '.join(sorted(missing))} is not allowed any more")
        elif after - before:
            found.add("type_extended", f"{', '.join(sorted(after - before))} is allowed too", True)

    def _values(self, old: Node, new: Node, found: Differences) -> None:
        before, after = _enum(old), _enum(new)
        if after is None:
            if before is not None:
                found.add("enum_array_removed", "any value is allowed now", True)
        elif before is None:
            found.add("enum_array_added", "only listed values are allowed now")
        elif missing := before - after:
            found.add("enum_array_narrowed", f"{', '.join(sorted(missing))[:200]} is not allowed any more")
        elif after - before:
            found.add("enum_array_extended", f"{', '.join(sorted(after - before))[:200]} is allowed too", True)

    def _limits(self, old: Node, new: Node, found: Differences) -> None:
        for table, is_upper in ((_UPPER, True), (_LOWER, False)):
            for keyword, rule in table.items():
                self._limit(old.get(keyword), new.get(keyword), keyword, rule, is_upper, found)
        before, after = old.get("pattern"), new.get("pattern")
        if before != after:
            kind = "removed" if after is None else "added" if before is None else "changed"
            found.add(f"pattern_{kind}", f"the pattern was {kind}", after is None)
        before, after = old.get("format"), new.get("format")
        if before != after and any(_TYPED_FORMATS.fullmatch(str(each)) for each in (before, after)):
            kind = "removed" if after is None else "added" if before is None else "changed"
            found.add(f"format_{kind}", f"the format, and so the type of the column, was {kind}", after is None)
        before, after = old.get("multipleOf"), new.get("multipleOf")
        if before != after:
            divides = before is not None and after is not None and not before % after
            kind = "removed" if after is None else "added" if before is None else "reduced" if divides else "expanded"
            found.add(f"multiple_of_{kind}", f"multipleOf was {kind}", kind in ("removed", "reduced"))
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            found.add("unique_items_added", "elements have to differ now")
        elif old.get("uniqueItems") and not new.get("uniqueItems"):
            found.add("unique_items_removed", "elements may be equal now", True)

    @staticmethod
    def _limit(before: Any, after: Any, keyword: str, rule: str, is_upper: bool, found: Differences) -> None:
        if before == after:
            return
        if after is None or before is None:
            kind = "removed" if after is None else "added"
            found.add(f"{rule}_{kind}", f"{keyword} {after if before is None else before} was {kind}", after is None)
            return
        kind = "increased" if after > before else "decreased"
        found.add(f"{rule}_{kind}", f"{keyword} went from {before} to {after}", (kind == "increased") == is_upper)

    def _objects(self, old: Node, new: Node, found: Differences) -> None:
        before, after = _merged(old)["properties"], _merged(new)["properties"]
        must_before, must_after = set(_merged(old)["required"]), set(_merged(new)["required"])
        for name in (*before, *(name for name in after if name not in before)):
            part = found.inside(name)
            if name not in after:
                self._property_removed(name, before[name], new, part)
            elif name not in before:
                self._property_added(name, after[name], old, name in must_after, part)
            else:
                self.compare(before[name], after[name], part)
                if name in must_after - must_before:
                    has_default = isinstance(after[name], dict) and "default" in after[name]
                    rule = "required_attribute_with_default_added" if has_default else "required_attribute_added"
                    part.add(rule, "it is required now", has_default)
                elif name in must_before - must_after:
                    part.add("required_attribute_removed", "it may be missing now", True)
        for name in sorted(must_after - must_before - after.keys()):
            found.inside(name).add("required_attribute_added", "it is required now")
        self._additional(old, new, found)

    def _property_removed(self, name: str, before: Any, new: Node, found: Differences) -> None:
        if _is_open(new):
            found.add("property_removed_from_open_content_model", "it is not described any more", True)
            return
        rest = _rest_for(name, new)
        if rest is None or rest is False:
            if before is False:
                found.add("property_with_false_removed_from_closed_content_model", "it was never allowed", True)
            else:
                found.add("property_removed_from_closed_content_model", "it is not allowed any more")
            return
        trial = self._tried(before, rest, found)
        found.extend(trial)
        kind = "is" if trial.is_compatible else "not"
        text = "additional properties allow it" if trial.is_compatible else "additional properties do not allow it"
        found.add(f"property_removed_{kind}_covered_by_partially_open_content_model", text, trial.is_compatible)

    def _property_added(self, name: str, after: Any, old: Node, is_required: bool, found: Differences) -> None:
        has_default = isinstance(after, dict) and "default" in after
        if _is_open(old):
            if (after is True or after == {}) and not is_required:
                found.add("property_with_empty_schema_added_to_open_content_model", "it came, with any value", True)
            elif is_required and not has_default:
                found.add("required_property_added_to_open_content_model", "it came, and is required")
            else:
                text = "it came; older payloads may have it with another type"
                found.add("property_added_to_open_content_model", text, not self._strict)
            return
        rest = _rest_for(name, old)
        if rest is not None and rest is not False:
            trial = self._tried(rest, after, found)
            found.extend(trial)
            kind = "is" if trial.is_compatible else "not"
            verb = "allows" if trial.is_compatible else "refuses"
            text = f"older payloads may have it as an additional property, which it {verb}"
            found.add(f"property_added_{kind}_covered_by_partially_open_content_model", text, trial.is_compatible)
        if is_required and not has_default:
            found.add("required_property_added_to_unopen_content_model", "it came, and is required")
        elif is_required:
            found.add("required_property_with_default_added_to_unopen_content_model", "it came, with a default", True)
        else:
            found.add("optional_property_added_to_unopen_content_model", "it came, and may be missing", True)

    def _additional(self, old: Node, new: Node, found: Differences) -> None:
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        before, after = (True if each == {} else each for each in (before, after))
        if before == after:
            return
        if after is False:
            found.add("additional_properties_removed", "additional properties are not allowed any more")
        elif before is False:
            found.add("additional_properties_added", "additional properties are allowed now", True)
        elif after is True:
            found.add("additional_properties_extended", "additional properties may be anything now", True)
        elif before is True:
            found.add("additional_properties_narrowed", "additional properties have a schema now")
        else:
            self.compare(before, after, found.inside("{}"))

    def _arrays(self, old: Node, new: Node, found: Differences) -> None:
        before, after = _tuple(old), _tuple(new)
        if before[0] or after[0]:
            if len(before[0]) != len(after[0]):
                # An element at a place that only one of them describes.
                longer = max(len(before[0]), len(after[0]))
                for at in range(min(len(before[0]), len(after[0])), longer):
                    one = before[0][at] if at < len(before[0]) else before[1]
                    two = after[0][at] if at < len(after[0]) else after[1]
                    self.compare(one, two, found.inside(f"[{at}]"))
            for at, (one, two) in enumerate(zip(before[0], after[0], strict=False)):
                self.compare(one, two, found.inside(f"[{at}]"))
        self.compare(before[1], after[1], found.inside("[]"))


def _members(node: Node, keywords: tuple[str, ...]) -> list[Any]:
    return [member for keyword in keywords for member in node.get(keyword, [])]


def _without(node: Node, key: str) -> Node:
    return {name: value for name, value in node.items() if name != key}


def _merged(node: Node) -> Node:
    """Return `properties` and `required` of an object, with those of plain members of `allOf`."""
    properties, required = dict(node.get("properties") or {}), list(node.get("required") or [])
    for member in node.get("allOf", []):
        if isinstance(member, dict):
            properties = {**(member.get("properties") or {}), **properties}
            required += member.get("required") or []
    return {"properties": properties, "required": required}


def _types(node: Node) -> frozenset[str]:
    """Return the types that a schema allows; `number` includes `integer`."""
    named = node.get("type")
    if named is None:
        return _ALL
    found = {named} if isinstance(named, str) else set(named)
    return frozenset(found | {"integer"}) if "number" in found else frozenset(found)


def _enum(node: Node) -> set[str] | None:
    """Return the allowed values as JSON texts, None for any."""
    values = [node["const"]] if "const" in node else node.get("enum")
    return None if values is None else {msgspec.json.encode(value, order="sorted").decode() for value in values}


def _is_open(node: Node) -> bool:
    return not node.get("patternProperties") and node.get("additionalProperties", True) in (True, {})


def _rest_for(name: str, node: Node) -> Any:
    """Return the schema that an undescribed property has in an object which is not open, None for none."""
    for pattern, schema in (node.get("patternProperties") or {}).items():
        if pattern in (".*", "^.*$", "") or pattern == f"^{re.escape(name)}$":
            return schema
    if node.get("patternProperties"):
        # The pattern might match: no regular expression of a schema is run with backtracking.
        return None
    return node.get("additionalProperties", True)


def _tuple(node: Node) -> tuple[list[Any], Any]:
    """Return (schemas of the first elements, of the others)."""
    items = node.get("items", True)
    if isinstance(items, list):
        return items, node.get("additionalItems", True)
    return node.get("prefixItems", []), items


def _snake(keyword: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match.group().lower()}", keyword)
