"""Comparison of the decoders of each format with its reference library: jsonschema, fastavro, protobuf.

100,000 random payloads of each format, or five for each of `LAKESTREAM_FUZZ_ROUNDS` if these are more (`make chaos`: a
million). A payload that fits has the library's values. One that does not is refused by the library too, for the same
rule where that is one of JSON Schema, unless the rule is about columns (`OWN`).
"""

from __future__ import annotations

import base64
import io
import json
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import count
from typing import Any

import fastavro
import jsonschema
import pytest
from google.protobuf import message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from lakestream.schemas.columns import List, Map, RecordType, Type
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.avro.codec import AvroCodec
from lakestream_schemas.json_schema.codec import JsonCodec
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.protobuf.codec import ProtobufCodec
from lakestream_schemas.protobuf.model import message_of
from tests.fuzzing import ROUNDS, SEED
from tests.unit.schemas.batches_world import avro_record, avro_value, fill_proto, json_object, json_text, proto_file
from tests.unit.schemas.test_batches import BATCH, batch

pytestmark = pytest.mark.unit

OWN = {"range", "format", "depth", "size"}
"""Rules that jsonschema does not have, or not by itself."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Refused(Exception):
    """Raised where a library refuses a payload; `rules`: the keywords that it breaks, if it is JSON."""

    def __init__(self, rules: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.rules = rules


Reader = Callable[[bytes], Any]
"""Function that returns the value of a payload in a library; raises Refused."""
World = Iterator[tuple[PayloadCodec, Reader, Callable[[], bytes]]]


# JSON


def json_world(rng: random.Random) -> World:
    while True:
        schema = json_object(rng)
        try:
            codec = JsonCodec(json.dumps(schema))
        except BadSchema:
            continue
        validator = jsonschema.Draft202012Validator(schema)

        def read(payload: bytes, validator: Any = validator) -> Any:
            try:
                value = exactly(payload.decode())
                if b"\\u" in payload:  # Python takes half of a surrogate pair
                    json.dumps(json.loads(payload, object_pairs_hook=list), ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                raise Refused from None
            broken = frozenset(str(each.validator) for each in _errors(validator.iter_errors(value)))
            if broken:
                raise Refused(broken)
            return value

        yield codec, read, lambda schema=schema: json_text(rng, schema).encode()  # type: ignore[misc]


def exactly(text: str) -> Any:
    """Return the value of a text, with numbers as they are, where Python's would be rounded to whole ones.

    One beyond a double is the greatest double, as the limits of a schema see it: no column can have it in any case.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_number)


def _number(text: str) -> int | float | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of more digits than Decimal takes
        value = float(text)
        return value if abs(value) <= sys.float_info.max else int(sys.float_info.max) * (-1 if value < 0 else 1)
    if number and number.adjusted() > 308:
        return int(sys.float_info.max) * (-1 if number < 0 else 1)
    if number.adjusted() < -500:
        return float(text)
    return int(number) if number == number.to_integral_value() else number


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _errors(found: Any) -> Iterator[Any]:
    for error in found:
        yield error
        yield from _errors(error.context)


def of_json(of: Type, found: Any, value: Any) -> bool:
    """Return True if a column's value is that of the payload."""
    if found is None or value is None:
        return found is None and value is None
    if isinstance(of, RecordType):
        return all(of_json(each.type, found[each.column], value.get(each.name)) for each in of.fields)
    if isinstance(of, List):
        return len(found) == len(value) and all(of_json(of.of, *pair) for pair in zip(found, value, strict=True))
    if isinstance(of, Map):
        return dict(found).keys() == value.keys() and all(of_json(of.of, each, value[key]) for key, each in found)
    match of.kind:
        case "json":
            return repr(exactly(found)) == repr(value)
        case "number":
            return bool(found == float(value))
        case "instant":
            moment = datetime.fromisoformat(f"{value[:19]}+00:00")  # to the second, in the zone that it is written in
            return bool(abs(found - moment) <= timedelta(days=1))
        case "date":
            return bool(found == date.fromisoformat(value))
        case "decimal":
            return bool(found == Decimal(value if isinstance(value, str) else repr(value)))
    return bool(found == value) and isinstance(found, bool) == isinstance(value, bool)


# Avro


def avro_world(rng: random.Random) -> World:
    while True:
        schema = avro_record(rng, (f"N{number}" for number in count()))
        plain = fastavro.parse_schema(_without_logical(schema))
        parsed = fastavro.parse_schema(schema)

        def read(payload: bytes, plain: Any = plain) -> Any:
            source = io.BytesIO(payload)
            try:
                value = fastavro.schemaless_reader(source, plain)
            except (EOFError, ValueError, IndexError, OverflowError, MemoryError, struct.error):
                raise Refused from None
            if source.read(1):
                raise Refused
            return value

        def draw(parsed: Any = parsed, schema: Any = schema) -> bytes:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, avro_value(rng, schema))
            return out.getvalue()

        yield AvroCodec(json.dumps(schema)), read, draw


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_logical(part)
            for key, part in schema.items()
            if key not in ("logicalType", "precision", "scale")
        }
    return [_without_logical(part) for part in schema] if isinstance(schema, list) else schema


def of_avro(of: Type, found: Any, value: Any) -> bool:
    """Return True if a column's value is what fastavro reads, without logical types."""
    if found is None or value is None:
        return found is None and value is None
    if isinstance(of, RecordType):
        return all(of_avro(each.type, found[each.column], value[each.name]) for each in of.fields)
    if isinstance(of, List):
        return len(found) == len(value) and all(of_avro(of.of, *pair) for pair in zip(found, value, strict=True))
    if isinstance(of, Map):
        return dict(found).keys() == value.keys() and all(
            of_avro(of.of, each, value[key]) for key, each in dict(found).items()
        )
    match of.kind:
        case "instant":
            micros = (found - EPOCH) // timedelta(microseconds=1)
            return any(abs(value * scale - micros * 1000) <= 1000 for scale in (10**6, 10**3, 1))
        case "date":
            return bool(found.toordinal() - EPOCH.toordinal() == value)
        case "decimal":
            return bool(found.scaleb(of.scale) == int.from_bytes(value, "big", signed=True))
    return repr(found) == repr(value)


# Protobuf


def protobuf_world(rng: random.Random) -> World:
    while True:
        files = FileDescriptorSet()
        for module in (timestamp_pb2, wrappers_pb2):
            module.DESCRIPTOR.CopyToProto(files.file.add())
        files.file.append(proto_file(rng))
        kind = message_factory.GetMessageClass(message_of(files, "random.Root"))

        def read(payload: bytes, kind: Any = kind) -> Any:
            message = kind()
            try:
                message.ParseFromString(payload)
            except DecodeError:
                raise Refused from None
            if not message.IsInitialized():
                raise Refused
            return message

        def draw(kind: Any = kind) -> bytes:
            text: bytes = fill_proto(rng, kind()).SerializePartialToString()
            return text

        yield ProtobufCodec(base64.b64encode(files.SerializeToString()).decode()), read, draw


def of_protobuf(of: Type, found: Any, message: Any) -> bool:
    """Return True if a row has the values of a message."""
    assert isinstance(of, RecordType)
    by_name = {field.name: field for field in message.DESCRIPTOR.fields}
    for each in of.fields:
        field, value = by_name[each.name], getattr(message, each.name)
        column = found[each.column]
        if field.has_presence and not message.HasField(each.name):
            if column is not None:
                return False
        elif isinstance(each.type, Map):
            entry = field.message_type.fields_by_name["value"]
            wanted = {str(key) if each.type.key.kind == "string" else key: value[key] for key in value}
            if dict(column).keys() != wanted.keys() or not all(
                _is_value(each.type.of, entry, part, wanted[key]) for key, part in column
            ):
                return False
        elif isinstance(each.type, List):
            if len(column) != len(value) or not all(
                _is_value(each.type.of, field, *pair) for pair in zip(column, value, strict=True)
            ):
                return False
        elif not _is_value(each.type, field, column, value):
            return False
    return True


def _is_value(of: Type, field: Any, found: Any, value: Any) -> bool:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == "google.protobuf.Timestamp":
            return bool(
                abs((found - EPOCH) // timedelta(microseconds=1) * 1000 - (value.seconds * 10**9 + value.nanos)) <= 1000
            )
        if not name.startswith("google."):
            return of_protobuf(of, found, value)
        value = value.value
    elif field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return bool(found == (str(value) if named is None else named.name))
    return bool(found == value) or repr(found) == repr(value)


def outcome(read: Reader, payload: bytes) -> tuple[Any, frozenset[str] | None]:
    """Return (the value, None), or None and the rules that the payload breaks."""
    try:
        return read(payload), None
    except Refused as error:
        return None, error.rules


LAX = {"json": set[str](), "avro": {"union", "enum", "encoding", "utf-8"}, "protobuf": {"utf-8"}}
"""Rules that a library does not check everywhere, as that an index is not negative: changed payloads may break them."""
WORLDS = {"json": (json_world, of_json), "avro": (avro_world, of_avro), "protobuf": (protobuf_world, of_protobuf)}


@pytest.mark.parametrize("rounds", [5_000, pytest.param(max(100_000, 5 * ROUNDS), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("form", WORLDS)
def test_payloads_fit_and_decode_as_in_the_reference_library(form: str, rounds: int) -> None:
    rng, fits, refused = random.Random(SEED), 0, 0
    world, is_equal = WORLDS[form]
    for number, (codec, read, draw) in zip(range(rounds // BATCH), world(rng), strict=False):
        drawn = set[bytes]()

        def noted(draw: Callable[[], bytes] = draw, drawn: set[bytes] = drawn) -> bytes:
            drawn.add(payload := draw())
            return payload

        payloads = batch(rng, noted, (number % 3) * 0.3)
        decoded = codec.decode(payloads)
        misfits = {each.row: each.misfit for each in decoded.misfits}
        for row, (payload, found) in enumerate(zip(payloads, decoded.columns.to_pylist(), strict=True)):
            if b"e-400" in payload:  # 0.0 as a double, and yet above 0: limits see the double, `integer` the text
                continue
            misfit = misfits.get(row)
            value, rules = outcome(read, payload)
            if rules is not None:
                assert misfit is not None, (payload, rules)
                assert not rules or misfit.rule in {*rules, *OWN}, (payload, misfit, rules)
                refused += 1
            elif misfit is None:
                assert is_equal(codec.record, found, value), (payload, found, value)
                fits += 1
            else:
                lax = LAX[form] if payload not in drawn else set[str]()
                # Of a number with more digits than a double has, the nearest double is divided.
                is_near = misfit.rule == "multipleOf" and re.match(r"-?\d{17}", misfit.text)
                assert is_near or misfit.rule in {*OWN, *lax}, (payload, misfit)
    assert fits > rounds // 4
    assert refused > rounds // 50
