"""Comparison of two decoders: of batches, native, and of single messages, which is the referee.

100,000 payloads of each format are drawn from `LAKESTREAM_FUZZ_SEED`, or five for each of `LAKESTREAM_FUZZ_ROUNDS`, if
these are more (`make chaos`: a million). `LAKESTREAM_TEST_NATIVE` names another build of the compiled module.
"""

from __future__ import annotations

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

from lakestream.schemas import plan
from lakestream.schemas.avro.codec import AvroCodec
from lakestream.schemas.columns import STRING, RecordType
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.json_schema.codec import JsonCodec
from lakestream.schemas.payloads import Codec
from lakestream.schemas.plan import ColumnNode
from tests.bench.bench_schemas import AVRO, JSON_SCHEMA, compact, of_avro, order
from tests.fuzzing import ROUNDS, SEED, mutated
from tests.unit.native.test_native import fast
from tests.unit.schemas.batches_world import avro_record, avro_value, json_object, json_text

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


def batch(rng: random.Random, draw: Callable[[], bytes], odd: float) -> list[bytes]:
    """Return payloads, of which a part was changed."""
    found = [draw() for _ in range(BASES)]
    while len(found) < BATCH:
        one = rng.choice(found[:BASES])
        found.append(mutated(rng, one, found[:BASES]) if rng.random() < odd else one)
    rng.shuffle(found)
    return found


def exact(columns: pa.RecordBatch) -> list[Any]:
    """Return rows that differ if two numbers do in any bit."""
    return [repr(row) for row in columns.to_pylist()]


def compare(referee: Codec, codec: Codec, payloads: list[bytes]) -> int:
    """Compare two decoders; return how many rows fit."""
    wanted, found = referee.decode(payloads), codec.decode(payloads)
    assert found.misfits == wanted.misfits
    found.columns.validate(full=True)
    assert found.columns.schema == wanted.columns.schema
    for payload, one, other in zip(payloads, exact(wanted.columns), exact(found.columns), strict=True):
        assert other == one, payload
    return len(payloads) - len(wanted.misfits)


def json_codecs(rng: random.Random) -> Iterator[tuple[Codec, Codec, Callable[[], bytes]]]:
    while True:
        schema = json_object(rng)
        text = json.dumps(schema)
        try:
            yield OneJson(text), JsonCodec(text), lambda: json_text(rng, schema).encode()  # noqa: B023
        except BadSchema:
            continue


def avro_codecs(rng: random.Random) -> Iterator[tuple[Codec, Codec, Callable[[], bytes]]]:
    def draw() -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, avro_value(rng, schema))
        return out.getvalue()

    while True:
        schema = avro_record(rng, (f"N{number}" for number in count()))
        parsed = fastavro.parse_schema(schema)
        yield OneAvro(json.dumps(schema)), AvroCodec(json.dumps(schema)), draw


@pytest.mark.parametrize("codecs", [json_codecs, avro_codecs], ids=["json", "avro"])
def test_a_batch_has_the_values_and_misfits_of_its_messages(
    codecs: Callable[[random.Random], Iterator[tuple[Codec, Codec, Callable[[], bytes]]]],
) -> None:
    rng, fits = random.Random(SEED), 0
    rounds = max(100_000, 5 * ROUNDS) // BATCH
    for number, (referee, codec, draw) in zip(range(rounds), codecs(rng), strict=False):
        fits += compare(referee, codec, batch(rng, draw, (number % 3) * 0.3))
    assert fits > rounds * BATCH // 4


@pytest.mark.parametrize(
    ("codec", "write"),
    [(JsonCodec(json.dumps(JSON_SCHEMA)), compact), (AvroCodec(AVRO), of_avro)],
    ids=["json", "avro"],
)
def test_no_usual_payload_is_odd(codec: Codec, write: Callable[[dict[str, Any]], bytes]) -> None:
    chance = random.Random(1)
    root = codec.root()
    assert root is not None
    columns, odd = plan.ColumnPlan(codec.form, root, 100).read(pa.array([write(order(chance)) for _ in range(100)]))
    assert columns is not None
    assert odd == []


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
