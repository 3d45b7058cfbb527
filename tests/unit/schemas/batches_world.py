"""Random schemas and payloads of each format, for comparing the decoder of batches with that of single messages.

Belongs here: schemas, and payloads of them that fit or nearly do. Drawn by `random`, because hypothesis takes a hundred
times as long for a payload.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

TEXTS = [
    "",
    "x",
    "Grüße",
    'a"b\\c',
    "line\nend",
    "😀😀",
    "null",
    "a" * 40,
    "\u0000",
    "\u2028",
    "ab\u07ffcd\uffff",
    "DE",
    "abc",
]
INSTANTS = [
    "2026-05-01T12:34:56Z",
    "2026-05-01T12:34:56.789Z",
    "1999-12-31T23:59:59.123456+00:00",
    "0001-01-01T00:00:00Z",
]
INSTANTS += [
    "2026-05-01T12:34:56+02:00",
    "2026-05-01 12:34:56.7",
    "2024-02-29T00:00:00.999999500Z",
    "2026-02-29T00:00:00Z",
]
INSTANTS += [
    "2026-05-01T12:34:56.123456789-05:30",
    "9999-12-31T23:59:59.9999996Z",
    "2026-05-01T24:00:00Z",
    "2026-05-01T12:34:60Z",
]
INSTANTS += [
    "2026-05-01t12:34:56z",
    "2026-05-01T12:34Z",
    "2026-05-01T12:34:56.0000005Z",
    "2026-05-01T23:59:59.9999995Z",
]
DATES = ["2026-05-01", "2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31", "0000-01-01", "2026-5-1", "1969-12-31"]
DECIMALS = [
    "0.00",
    "-1.50",
    "12345678.90",
    "1",
    "007",
    "1.234",
    "1e2",
    "-0.00",
    "+1",
    ".5",
    "5.",
    "123456789",
    "-",
    "1.500",
    "",
]
NUMBERS = [
    "7",
    "129.95",
    "1.5",
    "0",
    "60",
    "1e3",
    "1E-7",
    "0.1",
    "3.0",
    "1e22",
    "123456789012345678",
    "9007199254740993",
]
NUMBERS += [
    "0.30000000000000004",
    "1.7976931348623157e308",
    "5e-324",
    "1e400",
    "2.2250738585072011e-308",
    "12345678901234567890",
]
NUMBERS += [
    "123456789012345678901234567890",
    "01",
    "1.",
    "-",
    "+1",
    "1e",
    "9007199254740992.5",
    "8.41e21",
    "1e-400",
    "100",
    "-7",
    "-0",
    "-0.0",
]
INTEGERS = [
    "7",
    "1",
    "50",
    "0",
    "99",
    "-1",
    "100",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
]
INTEGERS += ["18446744073709551616", "-0", "1.0", "1e2", "1.5", "00", "123456789012345678", "12345678901234567890123"]
ANYTHING = [
    *NUMBERS,
    *INTEGERS,
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    '[1,{"a":[null]}]',
    '{"a":"\\u00e9"}',
    '"\\ud83d\\ude00"',
]
ANYTHING += [
    '"\\ud800"',
    '"\\x"',
    "nul",
    '"\\',
    "[1,]",
    '{"a":1,}',
    "[" * 30 + "]" * 30,
    "[" * 130 + "]" * 130,
    '"\t"',
    " 1 ",
    "",
]
NAMES = ["a", "b", "id", "Id", "time", "x y", "größe", "a.b", "token1", "", "long_name_of_a_field"]


def pick(rng: random.Random, values: Sequence[T]) -> T:
    """Return one of the values, of which the first ones are usual."""
    return values[min(int(rng.expovariate(0.3)), len(values) - 1)]


def json_schema(rng: random.Random, depth: int = 3) -> Any:
    """Return a schema of any value."""
    kinds = (
        ["text"] * 3
        + ["number", "integer", "instant", "other"] * 2
        + ["object", "object", "array", "map"] * bool(depth)
    )
    kind = rng.choice(kinds)
    found: dict[str, Any]
    if kind == "text":
        plain: Any = {"type": "string"}
        return rng.choice([plain, plain, {**plain, "minLength": 2, "maxLength": 4}, {"enum": ["DE", "Grüße", "x"]}])
    if kind == "number":
        found = {"type": "number"} | rng.choice([{}, {"minimum": 0}, {"exclusiveMinimum": 0, "maximum": 150}])
    elif kind == "integer":
        found = {"type": "integer"} | rng.choice([{}, {"minimum": 1, "exclusiveMaximum": 100}, {"format": "uint64"}])
    elif kind == "instant":
        found = {
            "type": "string",
            "format": rng.choice(["date-time", "date-time", "date", "decimal(10,2)", "decimal(38,5)"]),
        }
    elif kind == "array":
        found = {"type": "array", "items": json_schema(rng, depth - 1)} | rng.choice(
            [{}, {}, {"minItems": 1, "maxItems": 2}]
        )
    elif kind == "map":
        found = {"type": "object", "additionalProperties": json_schema(rng, depth - 1)}
    elif kind == "object":
        found = json_object(rng, depth - 1)
    else:
        found = rng.choice([{"type": "boolean"}, {"type": "boolean"}, {}, {"type": "string", "pattern": "^[a-z]*$"}])
        found = rng.choice([found] * 7 + [{"type": "integer", "multipleOf": 5}])
    if rng.random() < 0.25 and "type" in found:
        found["type"] = [found["type"], "null"]
    return found


def json_object(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a schema of objects."""
    names = rng.sample(NAMES, rng.randrange(1, 7))
    found: dict[str, Any] = {"type": "object", "properties": {name: json_schema(rng, depth) for name in names}}
    found["required"] = [name for name in names if rng.random() < 0.3]
    return found | rng.choice([{}, {}, {}, {"additionalProperties": False}])


def json_text(rng: random.Random, schema: Any) -> str:
    """Return the text of a value that mostly fits."""
    odds = rng.random()
    if odds < 0.01:
        return rng.choice(ANYTHING)
    if not schema:
        return rng.choice(ANYTHING[:-12])
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = "null" if odds < 0.3 else kind[0]
    if kind == "object":
        pairs = [
            (name, json_text(rng, part))
            for name, part in schema.get("properties", {}).items()
            if name in schema["required"] or rng.random() < 0.8
        ]
        if "properties" not in schema:
            pairs = [
                (rng.choice(TEXTS), json_text(rng, schema["additionalProperties"])) for _ in range(rng.randrange(4))
            ]
        elif odds < 0.1:
            pairs.append((rng.choice(NAMES), rng.choice(ANYTHING[:-12])))
        if odds > 0.8:
            rng.shuffle(pairs)
        ascii_only = rng.random() < 0.3
        colon, comma = rng.choice([(":", ",")] * 3 + [(": ", ", "), (" :\t", "\r\n,")])
        return "{" + comma.join(json.dumps(name, ensure_ascii=ascii_only) + colon + text for name, text in pairs) + "}"
    if kind == "array":
        return "[" + ",".join(json_text(rng, schema["items"]) for _ in range(rng.randrange(4))) + "]"
    if kind in ("number", "integer", "boolean", "null"):
        return pick(rng, {"number": NUMBERS, "integer": INTEGERS, "boolean": ["true", "false"], "null": ["null"]}[kind])
    form = schema.get("format", "")
    texts = (
        INSTANTS
        if form == "date-time"
        else DATES
        if form == "date"
        else DECIMALS
        if form
        else schema.get("enum", TEXTS)
    )
    return json.dumps(pick(rng, texts), ensure_ascii=rng.random() < 0.3)
