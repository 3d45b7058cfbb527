"""Random schemas and payloads of each format, for comparing the decoder of batches with that of single messages.

Belongs here: schemas, and payloads of them that fit or nearly do. Drawn by `random`, because hypothesis takes a hundred
times as long for a payload.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

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


def avro_schema(rng: random.Random, names: Iterator[str], depth: int = 3) -> Any:
    """Return a schema of any value."""
    texts = ["string", "string", "string", "bytes", "boolean", "int", "long", "float", "double"]
    logical = [("long", name) for name in ("timestamp-millis", "timestamp-micros", "timestamp-nanos", "time-micros")]
    logical += [("int", "date"), ("string", "uuid")]
    kind = rng.choice(
        texts + ["logical"] * 2 + ["enum", "fixed", "decimal"] + ["record", "record", "array", "map"] * bool(depth)
    )
    found: Any = kind
    if kind == "logical":
        found = dict(zip(("type", "logicalType"), rng.choice(logical), strict=True))
    elif kind == "enum":
        found = {"type": "enum", "name": next(names), "symbols": ["DE", "FR", "US"]}
    elif kind in ("fixed", "decimal"):
        fixed = {"type": "fixed", "name": next(names), "size": rng.choice([1, 4, 12])}
        found = rng.choice([fixed, {"type": "bytes"}] if kind == "decimal" else [fixed])
        if kind == "decimal":
            precision = {1: 2, 4: 9}.get(found.get("size", 0), rng.choice([5, 18]))
            found = found | {"logicalType": "decimal", "precision": precision, "scale": 2}
    elif kind == "record":
        found = avro_record(rng, names, depth - 1)
    elif kind in ("array", "map"):
        found = {"type": kind, "items" if kind == "array" else "values": avro_schema(rng, names, depth - 1)}
    return found if rng.random() > 0.3 else rng.choice([["null", found], [found, "null"]])


def avro_record(rng: random.Random, names: Iterator[str], depth: int = 3) -> dict[str, Any]:
    """Return a schema of records."""
    fields = [{"name": f"f{at}", "type": avro_schema(rng, names, depth)} for at in range(rng.randrange(1, 7))]
    return {"type": "record", "name": next(names), "fields": fields}


def avro_value(rng: random.Random, schema: Any) -> Any:
    """Return a value, as fastavro takes it."""
    if isinstance(schema, list):
        return None if rng.random() < 0.4 else avro_value(rng, next(each for each in schema if each != "null"))
    if isinstance(schema, str):
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind == "record":
        return {field["name"]: avro_value(rng, field["type"]) for field in schema["fields"]}
    if kind == "array":
        return [avro_value(rng, schema["items"]) for _ in range(rng.randrange(4))]
    if kind == "map":
        return {rng.choice(TEXTS): avro_value(rng, schema["values"]) for _ in range(rng.randrange(4))}
    if logical == "decimal":
        return Decimal(rng.randrange(-(10 ** schema["precision"]) + 1, 10 ** schema["precision"])).scaleb(-2)
    if logical.startswith("timestamp") or logical == "date":
        scale = {"timestamp-millis": 10**3, "timestamp-micros": 10**6, "timestamp-nanos": 10**9}.get(logical, 1)
        return rng.choice([0, -1, 1, 7, rng.randrange(-9999, 99999)]) * (1 if rng.random() < 0.3 else scale)
    if kind == "uuid" or logical == "uuid":
        return str(UUID(int=rng.getrandbits(128)))
    if kind in ("float", "double"):
        return rng.choice([0.0, -0.0, 1.5, 0.1, float("nan"), float("-inf"), 3e38])
    if kind in ("int", "long"):
        most = 2**31 if kind == "int" else 2**63
        return rng.choice([0, 1, -1, 63, 64, -65, most - 1, -most, rng.randrange(-most, most)])
    values = {"string": lambda: rng.choice(TEXTS), "boolean": lambda: rng.random() < 0.5}
    values |= {"bytes": lambda: rng.randbytes(rng.randrange(5)), "enum": lambda: rng.choice(schema["symbols"])}
    return values[kind]() if kind in values else rng.randbytes(schema["size"])
