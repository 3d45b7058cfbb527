"""Comparison of two decoders: of batches, native, and of single messages, which is the referee.

100,000 payloads of each format are drawn from `LAKESTREAM_FUZZ_SEED`, or five for each of `LAKESTREAM_FUZZ_ROUNDS`, if
these are more (`make chaos`: a million). `LAKESTREAM_TEST_NATIVE` names another build of the compiled module.
"""

from __future__ import annotations

import base64
import io
import json
import random
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from lakestream.schemas.codec import codec_of
from lakestream.schemas.columns import STRING, RecordType
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema
from lakestream_schemas import plan
from lakestream_schemas.avro.codec import AvroCodec
from lakestream_schemas.formats import prepared
from lakestream_schemas.json_schema.codec import JsonCodec
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.plan import ColumnNode
from lakestream_schemas.protobuf.codec import ProtobufCodec
from lakestream_schemas.protobuf.model import message_of
from tests.bench.bench_schemas import AVRO, JSON_SCHEMA, PROTO, compact, of_avro, order, protobuf_writer
from tests.fuzzing import ROUNDS, SEED, mutated
from tests.unit.native.test_native import fast
from tests.unit.schemas.batches_world import avro_record, avro_value, fill_proto, json_object, json_text, proto_file

pytestmark = pytest.mark.unit

BATCH = 500
BASES = 100
"""Payloads of a batch that are drawn; the others are changed ones."""


@pytest.fixture(autouse=True)
def _build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ColumnReader", fast.ColumnReader)


class OneByOne:
    """Mixin that makes a codec the referee."""

    def root(self) -> None:
        return None


class OneJson(OneByOne, JsonCodec): ...


class OneAvro(OneByOne, AvroCodec): ...


class OneProtobuf(OneByOne, ProtobufCodec): ...


def batch(rng: random.Random, draw: Callable[[], bytes], odd: float) -> list[bytes]:
    """Return payloads, of which a part was changed."""
    found = [draw() for _ in range(BASES)]
    while len(found) < BATCH:
        one = rng.choice(found[:BASES])
        found.append(mutated(rng, one, found[:BASES]) if rng.random() < odd else one)
    rng.shuffle(found)
    return found


def exact(columns: pa.RecordBatch, is_ordered: bool) -> list[str]:
    """Return rows that differ if two numbers do in any bit.

    Args:
        is_ordered: maps have an order. Those of Protobuf have none: its library's own depends on hashes.
    """
    return [repr(row if is_ordered else without_order(row)) for row in columns.to_pylist()]


def without_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_order(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    return sorted(value, key=repr) if value and isinstance(value[0], tuple) else list(map(without_order, value))


def compare(referee: PayloadCodec, codec: PayloadCodec, payloads: list[bytes]) -> int:
    """Compare two decoders; return how many rows fit."""
    wanted, found = referee.decode(payloads), codec.decode(payloads)
    assert found.misfits == wanted.misfits
    unfit = {each.row for each in found.misfits}
    assert [codec.fits(payload) is None for payload in payloads] == [row not in unfit for row in range(len(payloads))]
    found.columns.validate(full=True)
    assert found.columns.schema == wanted.columns.schema
    both = (exact(each.columns, codec.form != "protobuf") for each in (wanted, found))
    for payload, one, other in zip(payloads, *both, strict=True):
        assert other == one, payload
    return len(payloads) - len(wanted.misfits)


def json_codecs(rng: random.Random) -> Iterator[tuple[PayloadCodec, PayloadCodec, Callable[[], bytes]]]:
    while True:
        schema = json_object(rng)
        text = json.dumps(schema)
        try:
            yield OneJson(text), JsonCodec(text), lambda: json_text(rng, schema).encode()  # noqa: B023
        except BadSchema:
            continue


def avro_codecs(rng: random.Random) -> Iterator[tuple[PayloadCodec, PayloadCodec, Callable[[], bytes]]]:
    def draw() -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, avro_value(rng, schema))
        return out.getvalue()

    while True:
        schema = avro_record(rng, (f"N{number}" for number in count()))
        parsed = fastavro.parse_schema(schema)
        yield OneAvro(json.dumps(schema)), AvroCodec(json.dumps(schema)), draw


def protobuf_codecs(rng: random.Random) -> Iterator[tuple[PayloadCodec, PayloadCodec, Callable[[], bytes]]]:
    def draw() -> bytes:
        message = fill_proto(rng, kind())
        text: bytes = message.SerializePartialToString()
        return text if rng.random() < 0.95 else text + fill_proto(rng, kind()).SerializePartialToString()

    while True:
        files = FileDescriptorSet()
        for module in (timestamp_pb2, wrappers_pb2):
            module.DESCRIPTOR.CopyToProto(files.file.add())
        files.file.append(proto_file(rng))
        kind = message_factory.GetMessageClass(message_of(files, "random.Root"))
        text = base64.b64encode(files.SerializeToString()).decode()
        yield OneProtobuf(text), ProtobufCodec(text), draw


@pytest.mark.parametrize("count", [20_000, pytest.param(max(100_000, 5 * ROUNDS), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("codecs", [json_codecs, avro_codecs, protobuf_codecs], ids=["json", "avro", "protobuf"])
def test_a_batch_has_the_values_and_misfits_of_its_messages(
    codecs: Callable[[random.Random], Iterator[tuple[PayloadCodec, PayloadCodec, Callable[[], bytes]]]], count: int
) -> None:
    rng, fits = random.Random(SEED), 0
    rounds = count // BATCH
    for number, (referee, codec, draw) in zip(range(rounds), codecs(rng), strict=False):
        fits += compare(referee, codec, batch(rng, draw, (number % 3) * 0.3))
    assert fits > rounds * BATCH // 4


@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_no_usual_payload_is_odd(form: str) -> None:
    schema = prepared(Schema("o", 1, form, {"json": json.dumps(JSON_SCHEMA), "avro": AVRO}.get(form, PROTO)))
    write = {"json": compact, "avro": of_avro}.get(form) or protobuf_writer(schema)
    chance, codec = random.Random(1), codec_of(schema)
    root = codec.root()
    assert root is not None
    columns, odd = plan.ColumnPlan(codec.form, root, 100).read(pa.array([write(order(chance)) for _ in range(100)]))
    assert columns is not None
    assert odd == []


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_payloads_of_any_array_are_read(kind: pa.DataType) -> None:
    codec = JsonCodec('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    payloads = pa.array([b"{}", b'{"a": 1}', b'{"a": 1.0}', b'{"a": 7}', b"[]"], kind)
    decoded = codec.decode(payloads[1:])
    assert decoded.columns["a"].to_pylist() == [1, 1, 7, None]
    assert [misfit.row for misfit in decoded.misfits] == [3]
    assert len(codec.decode(payloads[:0]).columns) == 0
    assert len(codec.decode(pa.nulls(2, kind)).misfits) == 2


def test_a_plan_and_payloads_that_cannot_be_are_refused() -> None:
    node = ColumnNode(type=STRING, children=(ColumnNode(type=STRING),), first=0)
    for wrong in ([], [node], [msgspec.structs.replace(node, first=1)]):
        with pytest.raises(ValueError, match="plan"):
            fast.ColumnReader("json", wrong, 9)
    reader = fast.ColumnReader("json", [ColumnNode(type=RecordType(()), first=1)], 9)
    for ends in ([0, 3], [1, 0], [-1, 1]):
        with pytest.raises(IndexError):
            reader.read(memoryview(b"{}"), memoryview(array("i", ends)))
    assert reader.read(memoryview(b"{}{"), memoryview(array("i", [0, 2, 3]))) == ([(2, 1, b"\x01", b"", b"")], [1])
