"""Mapping of JSON Schema to columns, and to the types by which msgspec decodes and checks in one step.

Belongs here: one walk over a schema that makes both. A keyword that msgspec cannot check is checked by jsonschema-rs:
for a single value (`check` of a shape), or, if it concerns more than that, for the whole payload (`Shapes.whole`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec

from lakestream.schemas import columns, scalars
from lakestream.schemas.columns import INSTANT, JSON, List, Map, Scalar, Type
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.json_schema.bounds import Node, resolve
from lakestream_schemas.records import MAX_FIELDS, MAX_NESTING, record_of

Check = Callable[[Any], bool]
MAX_PATTERN = 1 << 20
"""Maximum size of a compiled regular expression, in bytes."""
PATTERNS = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN, dfa_size_limit=2 * MAX_PATTERN)
"""The engine without backtracking, which refuses look-around and back-references."""
_ASSERTIONS = frozenset(
    {
        *("type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "contains", "maxContains"),
        *("minContains", "items", "prefixItems", "additionalItems", "unevaluatedItems", "maxProperties", "required"),
        *("minProperties", "properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not"),
        *("if", "then", "else", "$ref"),
    }
)
UNNAMEABLE = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""Characters that msgspec does not take in names."""
_BOUNDS = frozenset({"type", "enum", "const", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"})


class Shape(msgspec.Struct, frozen=True):
    """A part of a payload. `type`: its column; `nullable`: may be null; `python`: type for msgspec; `fields`: shapes of
    a record's fields or of elements; `check`: further test of a decoded value that is not null, None for none;
    `struct`: class of a record's values; `of_numbers`: a decimal that is a number in JSON, not a string."""

    type: Type
    nullable: bool
    python: Any
    fields: tuple[Shape, ...] = ()
    check: Check | None = None
    struct: Any = None
    of_numbers: bool = False


class Shapes:
    """Shapes of one schema. `root`: shape of the payload; `whole`: jsonschema-rs has to check each payload too."""

    def __init__(self, schema: Node) -> None:
        self.whole = False
        self._schema = schema
        self._count = 0
        self.root = self._object(schema, "", (id(schema),), root=True)

    def _shape(self, node: Any, where: str, stack: tuple[int, ...]) -> Shape:
        self._count += 1
        if self._count > MAX_FIELDS:
            raise BadSchema(f"there are more than {MAX_FIELDS} fields", where[:80], "make rare parts free-form")
        if node is True or node == {}:
            return self._free()
        if not isinstance(node, dict):
            return self._text()
        if "$ref" in node:
            target = resolve(self._schema, node["$ref"], where)
            if not isinstance(target, dict):
                return self._text()
            if id(target) in stack:
                return self._text()
            if node.keys() & _ASSERTIONS - {"$ref"}:
                self.whole = True
            return self._shape(target, where, (*stack, id(target)))
        if len(stack) + where.count("/") > 2 * MAX_NESTING or where.count("/") >= MAX_NESTING - 1:
            return self._text()
        kind, nullable = self._kind(node)
        if kind == "union":
            return self._union(node, where, stack)
        shape = self._typed(kind, node, where, stack)
        if nullable and not shape.nullable:
            return msgspec.structs.replace(shape, nullable=True, python=shape.python | None)
        return shape

    def _free(self) -> Shape:
        """Return the shape of any value, kept as JSON text."""
        return Shape(JSON, True, msgspec.Raw)

    def _text(self) -> Shape:
        """Return the same for a value that jsonschema-rs checks."""
        self.whole = True
        return self._free()

    def _kind(self, node: Node) -> tuple[str, bool]:
        """Return (type of the values, may be null); type "": none is known."""
        allowed = node.get("type")
        if allowed is None:
            if node.keys() & {"properties", "additionalProperties"}:
                self.whole = True
                return "object", False
            values = node.get("enum", [node["const"]] if "const" in node else [])
            kinds = {_kind_of(value) for value in values}
            if kinds - {"null"}:
                nullable = "null" in kinds
                kinds.discard("null")
                return (kinds.pop() if len(kinds) == 1 else ""), nullable
            return ("union" if node.keys() & {"anyOf", "oneOf"} else "allOf" if "allOf" in node else ""), False
        names = [allowed] if isinstance(allowed, str) else list(allowed)
        nullable = "null" in names and None in node.get("enum", [None]) and node.get("const") is None
        kinds = {name for name in names if name != "null"}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        return (kinds.pop() if len(kinds) == 1 else ""), nullable

    def _union(self, node: Node, where: str, stack: tuple[int, ...]) -> Shape:
        """Return the shape of `anyOf` and `oneOf`: of X for "X or null", else JSON text."""
        (key,) = (node.keys() & {"anyOf", "oneOf"}) if len(node.keys() & {"anyOf", "oneOf"}) == 1 else ("",)
        members = node.get(key, [])
        others = [member for member in members if member != {"type": "null"}]
        if len(others) != 1 or node.keys() & _ASSERTIONS - {key}:
            return self._text()
        shape = self._shape(others[0], where, stack)
        if shape.nullable:
            if shape.type != JSON and key == "oneOf" and len(members) > 1:
                self.whole = True  # null would match twice
            return shape
        return msgspec.structs.replace(shape, nullable=True, python=shape.python | None) if len(members) > 1 else shape

    def _typed(self, kind: str, node: Node, where: str, stack: tuple[int, ...]) -> Shape:
        if kind == "string":
            return self._string(node, where)
        if kind == "integer":
            return self._integer(node)
        if kind == "number":
            return self._number(node)
        if kind == "boolean":
            self._handled(node, {"type"})
            return Shape(columns.BOOLEAN, False, bool)
        if kind == "array":
            return self._list(node, where, stack)
        if kind == "object":
            return self._object(node, where, stack)
        if kind == "allOf":
            merged = self._merged(node)
            if merged is not None:
                return self._object(merged, where, stack)
        return self._text()

    def _handled(self, node: Node, keywords: set[str] | frozenset[str]) -> None:
        """Ask for checks of the whole payload if a node has other keywords than these."""
        if node.keys() & _ASSERTIONS - keywords:
            self.whole = True

    def _string(self, node: Node, where: str) -> Shape:
        values = node.get("enum", [node["const"]] if "const" in node else None)
        special = _format(node.get("format"), where)
        if special is not None:
            self._handled(node, {"type"})
            return special
        self._handled(node, {"type", "enum", "const", "minLength", "maxLength", "pattern"})
        if values is not None:
            names = [value for value in values if isinstance(value, str)]
            if node.keys() & {"minLength", "maxLength", "pattern"} or {"enum", "const"} <= node.keys() or not names:
                self.whole = True
                return Shape(columns.STRING, False, str)
            return Shape(columns.STRING, False, Literal.__getitem__(tuple(names)))
        limits = {"min_length": node.get("minLength"), "max_length": node.get("maxLength")}
        limits = {key: int(limit) for key, limit in limits.items() if limit is not None}
        python: Any = Annotated[str, msgspec.Meta(**limits)] if limits else str
        check = None
        if "pattern" in node:
            check = jsonschema_rs.Draft202012Validator(
                {"pattern": node["pattern"]}, pattern_options=PATTERNS, offline=True
            ).is_valid
        return Shape(columns.STRING, False, python, check=check)

    def _integer(self, node: Node) -> Shape:
        self._handled(node, _BOUNDS)
        if node.keys() & {"enum", "const"}:
            self.whole = True
        low, high = _integer_bounds(node)
        if node.get("format") == "uint64" or (low >= 0 and node.get("maximum", 0) > scalars.INT64_MAX):
            if low > 0 or high < scalars.UINT64_MAX:
                self.whole = True
            check = lambda value: 0 <= value <= scalars.UINT64_MAX  # noqa: E731
            return Shape(columns.UINT64, False, int, check=check, of_numbers=True)
        low, high = max(low, scalars.INT64_MIN), min(high, scalars.INT64_MAX)
        if low > high:
            return self._text()
        return Shape(columns.INTEGER, False, Annotated[int, msgspec.Meta(ge=low, le=high)])

    def _number(self, node: Node) -> Shape:
        self._handled(node, _BOUNDS)
        if node.keys() & {"enum", "const"}:
            self.whole = True
        limits: dict[str, Any] = {}
        for keyword, name in (
            ("minimum", "ge"),
            ("exclusiveMinimum", "gt"),
            ("maximum", "le"),
            ("exclusiveMaximum", "lt"),
        ):
            if keyword in node:
                limit = node[keyword]
                if isinstance(limit, bool) or abs(limit) > 2**53:
                    self.whole = True  # not exact as a double
                else:
                    limits[name] = float(limit)
        if {"ge", "gt"} <= limits.keys() or {"le", "lt"} <= limits.keys():
            limits.clear()
            self.whole = True
        return Shape(columns.NUMBER, False, Annotated[float, msgspec.Meta(**limits)] if limits else float)

    def _list(self, node: Node, where: str, stack: tuple[int, ...]) -> Shape:
        items = node.get("items")
        if not isinstance(items, dict) or items == {} or "prefixItems" in node:
            return self._text()
        self._handled(node, {"type", "items", "minItems", "maxItems"})
        of = self._shape(items, f"{where}/[]", stack)
        limits = {"min_length": node.get("minItems"), "max_length": node.get("maxItems")}
        limits = {key: int(limit) for key, limit in limits.items() if limit is not None}
        python: Any = GenericAlias(list, (of.python,))
        if limits:
            python = Annotated[python, msgspec.Meta(**limits)]
        return Shape(List(of.type), False, python, (of,), _each(of))

    def _object(self, node: Node, where: str, stack: tuple[int, ...], root: bool = False) -> Shape:
        if "allOf" in node:
            merged = self._merged(node)
            if merged is None:
                return self._text()
            node = merged
        self._handled(node, {"type", "properties", "required", "additionalProperties"})
        properties = node.get("properties") or {}
        required = node.get("required") or []
        more = node.get("additionalProperties", True)
        if not properties and not root:
            return self._map(node, more, required, where, stack)
        if set(required) - properties.keys() or more not in (True, False, {}):
            self.whole = True
        for name in properties:
            if UNNAMEABLE.search(name):
                reason = f"the property {name[:40]!r} has a quote, a backslash or a control character"
                raise BadSchema(reason, where[:80], "leave it out of the schema")
        shapes = tuple(self._shape(child, f"{where}/{name}", stack) for name, child in properties.items())
        record = record_of(
            (
                (name, shape.type, name not in required or shape.nullable, _comment(properties[name]))
                for name, shape in zip(properties, shapes, strict=True)
            ),
            root,
        )
        keys: list[Any] = []
        for at, (name, shape) in enumerate(zip(properties, shapes, strict=True)):
            key = f"f{at}"
            keys.append((key, shape.python) if name in required else (key, shape.python, None))
        python = msgspec.defstruct(
            "Object",
            keys,
            rename={f"f{at}": name for at, name in enumerate(properties)},
            kw_only=True,
            gc=False,
            forbid_unknown_fields=more is False and "patternProperties" not in node,
        )
        return Shape(record, False, python, shapes, _all(shapes), python)

    def _map(self, node: Node, more: Any, required: list[str], where: str, stack: tuple[int, ...]) -> Shape:
        """Return the shape of an object without properties: a map if its values have a schema, else JSON text."""
        if required or not isinstance(more, dict) or not more or "patternProperties" in node:
            return self._text()
        of = self._shape(more, f"{where}/{{}}", stack)
        check = _each(of)
        return Shape(
            Map(columns.STRING, of.type),
            False,
            GenericAlias(dict, (str, of.python)),
            (of,),
            None if check is None else lambda value: check(value.values()),
        )

    def _merged(self, node: Node) -> Node | None:
        """Return an object's schema with the properties of its `allOf`; None if they are not all of objects, or
        describe the same one. The whole payload is checked as well."""
        self.whole = True
        found: Node = {key: value for key, value in node.items() if key != "allOf"}
        found["properties"] = dict(found.get("properties") or {})
        found["required"] = list(found.get("required") or [])
        found["type"] = "object"
        pending = list(node["allOf"])
        for _ in range(MAX_FIELDS):
            if not pending:
                return found
            member = pending.pop(0)
            if isinstance(member, dict) and "$ref" in member:
                member = resolve(self._schema, member["$ref"], "")
            if not isinstance(member, dict) or member.get("type", "object") != "object":
                return None
            pending += member.get("allOf", [])
            properties = member.get("properties") or {}
            if any(found["properties"].get(name, child) != child for name, child in properties.items()):
                return None
            found["properties"].update(properties)
            found["required"] += member.get("required") or []
        return None


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return ""


def _comment(node: Any) -> str:
    text = node.get("description") if isinstance(node, dict) else None
    return text[:500] if isinstance(text, str) else ""


def _format(name: Any, where: str) -> Shape | None:
    """Return the shape of a string whose format decides the column's type."""
    if name == "date-time":
        return Shape(INSTANT, False, datetime, check=is_instant)
    if name == "date":
        return Shape(columns.DATE, False, date)
    if isinstance(name, str) and name.startswith("decimal"):
        of = decimal_of(name, where)
        return Shape(of, False, str, check=lambda text: decimal_text(text, of) is not None)
    return None


def decimal_of(name: str, where: str) -> Scalar:
    """Return the type of `decimal(p,s)`."""
    parts = name.removeprefix("decimal").strip("()").split(",")
    if len(parts) == 2 and all(part.strip().isdecimal() and len(part) < 4 for part in parts):
        precision, scale = (int(part) for part in parts)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return Scalar("decimal", precision, scale)
    raise BadSchema(f"format {name[:40]!r}", where, "write it as decimal(10,2), with 1 to 38 digits")


def decimal_text(text: str, of: Scalar) -> Decimal | None:
    """Return the number of a text of digits with an optional sign and point, None if it is not exactly of the type."""
    digits = text.removeprefix("-").replace(".", "", 1)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 80 or text.endswith(".") or "-." in text[:2]:
        return None
    if text.startswith("."):
        return None
    return scalars.exact_decimal(Decimal(text), of.precision, of.scale)


def is_instant(value: datetime) -> bool:
    """Return True if an instant is within the years 1 to 9999 in UTC."""
    if value.tzinfo is None or 1 < value.year < 9999:
        return True
    try:
        scalars.utc(value)
    except OverflowError:
        return False
    return True


def _integer_bounds(node: Node) -> tuple[float, float]:
    low: float = -math.inf
    high: float = math.inf
    if "minimum" in node:
        low = math.ceil(node["minimum"])
    if "exclusiveMinimum" in node:
        low = max(low, math.floor(node["exclusiveMinimum"]) + 1)
    if "maximum" in node:
        high = math.floor(node["maximum"])
    if "exclusiveMaximum" in node:
        high = min(high, math.ceil(node["exclusiveMaximum"]) - 1)
    return low, high


def _each(of: Shape) -> Check | None:
    check = of.check
    if check is None:
        return None
    return lambda values: all(value is None or check(value) for value in values)


def _all(shapes: tuple[Shape, ...]) -> Check | None:
    """Return the check of a record: that of each field which has one."""
    steps = tuple((f"f{at}", shape.check) for at, shape in enumerate(shapes) if shape.check is not None)
    if not steps:
        return None

    def check(value: Any) -> bool:
        for name, step in steps:
            part = getattr(value, name)
            if part is not None and not step(part):
                return False
        return True

    return check
