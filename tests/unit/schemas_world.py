"""Random JSON Schemas and payloads, and the slow decoder that the fast ones are compared with."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import jsonschema
from hypothesis import strategies as st

NAMES = ["a", "b", "id", "Id", "time", "x y", "größe", "é", "a.b", "_", "token1"]
INSTANTS = ["2026-05-01T12:34:56Z", "2026-05-01T12:34:56.789Z", "1999-12-31T23:59:59.123456+00:00"]
INSTANTS += ["2026-05-01T12:34:56+02:00", "2026-05-01T12:34:56.7Z"]
TEXTS = st.sampled_from(["", "x", "Grüße", 'a"b\\c', "line\nend", "<a&b>", "😀", "null", "$", "\u2028", "\x01"])
INTEGERS = st.sampled_from([0, 1, -1, 100, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(-1000, 1000)
NUMBERS = st.sampled_from([0.5, -0.0, 1e16, 1e-7, 129.95, 1e300]) | st.integers(-5, 5) | st.just(3.0)
MISFITS = st.sampled_from([None, True, "misfit", 7, 2**70, 1.25, [], {}, [None], {"a": 1}, "2026-02-30", -1])


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of values without parts."""
    return st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "minLength": 1, "maxLength": 3},
            {"type": "string", "pattern": "^[a-z]*$"},
            {"enum": ["x", "null", "Grüße"]},
            {"type": ["string", "null"], "enum": ["x", None]},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "decimal(10,2)"},
            {"type": "string", "format": "uuid"},
            {"type": "integer"},
            {"type": "integer", "minimum": 0, "exclusiveMaximum": 100},
            {"type": "integer", "format": "uint64"},
            {"type": "integer", "multipleOf": 5},
            {"type": ["integer", "null"]},
            {"type": "number"},
            {"type": "number", "minimum": 0, "maximum": 1000},
            {"type": ["number", "integer"]},
            {"type": "boolean"},
            {"type": ["boolean", "null"]},
            {"const": 7},
            {"anyOf": [{"type": "null"}, {"type": "number"}]},
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"$ref": "#/$defs/text"},
            {},
            True,
            {"type": ["string", "integer"]},
        ]
    )


def nested(depth: int = 3) -> st.SearchStrategy[Any]:
    """Return schemas of any value."""
    if not depth:
        return scalars()
    inner = st.deferred(lambda: nested(depth - 1))
    arrays = st.builds(
        lambda items, least: {"type": "array", "items": items} | ({"minItems": 1} if least else {}),
        inner,
        st.booleans(),
    )
    maps = st.builds(lambda values: {"type": "object", "additionalProperties": values}, inner)
    return scalars() | arrays | maps | objects(inner)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Return schemas of objects."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    found: dict[str, Any] = {"type": "object", "properties": {name: draw(inner) for name in names}}
    required = [name for name in names if draw(st.booleans())]
    if required:
        found["required"] = required
    if draw(st.booleans()):
        found["additionalProperties"] = draw(st.sampled_from([False, True, {"type": "integer"}]))
    if draw(st.integers(0, 9)) == 0:
        found["minProperties"] = 1
    return found


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of payloads."""
    return objects(nested()).map(lambda schema: schema | {"$defs": {"text": {"type": "string"}}})


def _random_value(draw: st.DrawFn, schema: Any) -> Any:
    """Return a value that mostly fits."""
    if draw(st.integers(0, 30)) == 0:
        return draw(MISFITS)
    if not isinstance(schema, dict) or not schema:
        return draw(MISFITS)
    if "$ref" in schema:
        return draw(TEXTS)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _random_value(draw, draw(st.sampled_from(schema[key])))
    if "enum" in schema or "const" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    kind = schema["type"]
    if isinstance(kind, list):
        kind = draw(st.sampled_from(kind))
    if kind == "object":
        found = {
            name: _random_value(draw, part)
            for name, part in (schema.get("properties") or {}).items()
            if name in schema.get("required", ()) or draw(st.booleans())
        }
        more = schema.get("additionalProperties", True)
        if (more is not False and draw(st.integers(0, 3)) == 0) or (
            isinstance(more, dict) and "properties" not in schema
        ):
            for name in draw(st.lists(st.sampled_from(["m1", "m2", "ö"]), unique=True)):
                found[name] = _random_value(draw, more)
        return found
    if kind == "array":
        return [_random_value(draw, schema["items"]) for _ in range(draw(st.integers(0, 3)))]
    if kind == "string":
        return draw(_texts(schema))
    values: dict[str, st.SearchStrategy[Any]] = {
        "integer": INTEGERS,
        "number": NUMBERS,
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return draw(values[kind])


def _texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    form = schema.get("format", "")
    if form == "date-time":
        return st.sampled_from(INSTANTS)
    if form == "date":
        return st.dates().map(str)
    if form.startswith("decimal"):
        return st.sampled_from(["0.00", "-1.50", "12345678.90", "1", "1.234", "1e2", "-0.00", "+1", ".5", "123456789"])
    return TEXTS


def _spaced(value: Any) -> str:
    return json.dumps(value)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _go(value: Any) -> str:
    text = _compact(value)
    for char in "<>&\u2028":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _odd(value: Any) -> str:
    return "\n" + json.dumps(value, sort_keys=True).replace("1", "1.0", 1) + " "


def _twice(value: Any) -> str:
    text = json.dumps(value)
    return '{"a": 1, ' + text[1:] if text.startswith('{"') else text


def _broken(value: Any) -> str:
    return json.dumps(value)[:-1]


@st.composite
def payloads(draw: st.DrawFn, schema: dict[str, Any]) -> bytes:
    """Return a payload that mostly fits, in one of several spellings."""
    value = _random_value(draw, schema)
    spelling = draw(st.sampled_from([_compact, _compact, _spaced, _spaced, _pretty, _go, _odd, _twice, _broken]))
    text: str = spelling(value)
    return text.encode()


# The reference
class Misfit(Exception):
    """Raised for a payload that does not fit."""


def expected(schema: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Return the fields of a payload, by name; values of no single type as parsed JSON in a tuple.

    Raises:
        Misfit: it does not fit.
    """
    try:
        value = json.loads(payload.decode(), parse_constant=_refuse)
        exact = json.loads(payload.decode(), parse_float=Decimal)
    except (ValueError, RecursionError):
        raise Misfit from None
    if not jsonschema.Draft202012Validator(schema).is_valid(value):
        raise Misfit
    found: dict[str, Any] = _expected(schema, schema, exact)
    return found


def _refuse(text: str) -> None:
    raise ValueError(text)


def _expected(root: dict[str, Any], schema: Any, value: Any) -> Any:
    if schema is True or not schema:
        return None if value is None else (value,)
    if "$ref" in schema:
        return _expected(root, root["$defs"]["text"], value)
    if "anyOf" in schema:
        return None if value is None else _expected(root, {"type": "number"}, value)
    if "oneOf" in schema or schema.get("type") == ["string", "integer"]:
        return None if value is None else (value,)
    kind = schema.get("type") or ("integer" if "const" in schema else "string")
    if isinstance(kind, list):
        if value is None:
            return None
        kinds = [each for each in kind if each != "null"]
        kind = "number" if "number" in kinds else kinds[0]
    if kind == "object":
        return _object(root, schema, value)
    if kind == "array":
        if schema["items"] in (True, {}):
            return (value,)
        return [_expected(root, schema["items"], part) for part in value]
    if kind == "integer":
        low, high = (0, 2**64 - 1) if schema.get("format") == "uint64" else (-(2**63), 2**63 - 1)
        if not low <= value <= high:
            raise Misfit
        return Decimal(int(value)) if low == 0 else int(value)
    if kind == "number":
        return float(value)
    form = schema.get("format", "")
    if form == "date-time":
        return _instant(value)
    if form == "date":
        if re.fullmatch(r"\d{4}-\d\d-\d\d", value) is None:
            raise Misfit
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise Misfit from None
    if form.startswith("decimal"):
        match = re.fullmatch(r"-?(\d+)(?:\.(\d+))?", value)
        if match is None or len(match[1].lstrip("0")) > 8 or len((match[2] or "").rstrip("0")) > 2:
            raise Misfit
        return Decimal(value)
    return value


def _object(root: dict[str, Any], schema: dict[str, Any], value: Any) -> Any:
    properties = schema.get("properties")
    more = schema.get("additionalProperties", True)
    if not properties and schema is not root:
        if isinstance(more, dict) and more and not schema.get("required") and "minProperties" not in schema:
            return {name: _expected(root, more, part) for name, part in value.items()}
        if isinstance(more, dict) and more:
            return {name: _expected(root, more, part) for name, part in value.items()}
        return (value,)
    return {
        name: _expected(root, part, value[name]) if name in value else None
        for name, part in _properties(schema).items()
    }


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema.get("properties") or {}
    return found


def _instant(text: str) -> datetime:
    pattern = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?"
    if re.fullmatch(pattern, text) is None:
        raise Misfit
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise Misfit from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
