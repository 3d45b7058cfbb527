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

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

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


def proto_file(rng: random.Random) -> FileDescriptorProto:
    """Return a file with a message `Root`."""
    file = FileDescriptorProto(name="random.proto", package="random", syntax=rng.choice(["proto2", "proto3", "proto3"]))
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    for name, number in (("DE", 0), ("FR", 1), ("FAR", 70_000), ("NEGATIVE", -1)):
        kind.value.add(name=name, number=number)
    _proto_fields(rng, file.message_type.add(name="Root"), ".random.Root", file.syntax, 2)
    return file


def _proto_fields(rng: random.Random, message: DescriptorProto, path: str, syntax: str, depth: int) -> None:
    names = ["Timestamp", "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value"]
    names += ["BoolValue", "StringValue", "BytesValue"]
    scalars = [number for number in range(1, 19) if number not in (10, 11, 14)]
    for at in range(rng.randrange(1, 8)):
        field = message.field.add(name=f"f{at}", number=rng.choice([at + 1, 40 + at, 3000 + at]), label=1)
        odds = rng.random()
        if odds < 0.15 and depth:
            field.type, field.type_name = 11, f"{path}.M{at}"
            _proto_fields(rng, message.nested_type.add(name=f"M{at}"), field.type_name, syntax, depth - 1)
        elif odds < 0.3:
            field.type, field.type_name = 11, f".google.protobuf.{rng.choice(names)}"
        elif odds < 0.4:
            field.type, field.type_name = 14, ".random.Kind"
        elif odds < 0.5:
            entry = message.nested_type.add(name=f"F{at}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=rng.choice([3, 4, 5, 8, 9, 9, 13, 17]))
            value = entry.field.add(name="value", number=2, label=1, type=rng.choice([*scalars, 11, 14]))
            if value.type in (11, 14):
                value.type_name = ".google.protobuf.Timestamp" if value.type == 11 else ".random.Kind"
            field.label, field.type, field.type_name = 3, 11, f"{path}.F{at}Entry"
        else:
            field.type = rng.choice([*scalars, 9, 9])
        if field.label == 1 and rng.random() < 0.2:
            field.label = 3
            if field.type not in (9, 11, 12):
                field.options.packed = rng.random() < 0.5
        elif field.label == 1 and rng.random() < 0.1 and syntax == "proto2":
            field.label = 2
        elif field.label == 1 and rng.random() < 0.2:
            if not message.oneof_decl:
                message.oneof_decl.add(name="one")
            field.oneof_index = 0


def fill_proto(rng: random.Random, message: Any) -> Any:
    """Return the message with values in most of its fields."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < (0 if field.is_required else 0.2) or (field.containing_oneof and rng.random() < 0.5):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry, target = field.message_type.fields_by_name, getattr(message, field.name)
            for _ in range(rng.randrange(3)):
                key = _proto_scalar(rng, entry["key"])
                if entry["value"].message_type is None:
                    target[key] = _proto_scalar(rng, entry["value"])
                else:
                    fill_proto(rng, target[key])
        elif field.is_repeated:
            for _ in range(rng.randrange(3)):
                if field.message_type is None:
                    getattr(message, field.name).append(_proto_scalar(rng, field))
                else:
                    fill_proto(rng, getattr(message, field.name).add())
        elif field.message_type is None:
            setattr(message, field.name, _proto_scalar(rng, field))
        else:
            getattr(message, field.name).SetInParent()
            fill_proto(rng, getattr(message, field.name))
    return message


def _proto_scalar(rng: random.Random, field: Any) -> Any:
    inner = field.containing_type.full_name == "google.protobuf.Timestamp"
    if inner:
        most = 253_402_300_799 if field.name == "seconds" else 999_999_999
        return rng.choice([0, 1, 7, most, most + (rng.random() < 0.1), rng.randrange(most)])
    match field.cpp_type:
        case 1 | 2 | 3 | 4:
            signed, bits = field.cpp_type < 3, 32 if field.cpp_type in (1, 3) else 64
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
            return rng.choice([0, 1, 127, 128, low, high, rng.randrange(low, high)])
        case 5 | 6:
            return rng.choice([0.0, -0.0, 1.5, 0.1, float("nan"), float("-inf"), 3e38])
        case 7:
            return rng.random() < 0.5
        case 8:
            unknown = [5] if not field.enum_type.is_closed and rng.random() < 0.1 else []
            return rng.choice(unknown or [0, 1, 70_000, -1])
    return rng.choice(TEXTS) if field.type == 9 else rng.randbytes(rng.randrange(5))
