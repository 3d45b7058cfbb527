"""Tests of Delta Sharing over tables that the compactor has written: typed columns, removals, erasure, changes."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delta_sharing
import pandas
import pyarrow.parquet as pq
import pytest

from tests.lake.model import StreamModel
from tests.lake.test_erasure import WEEK
from tests.lake.test_foreign_readers import messages
from tests.lake.test_maintenance import KEEP, compact, maintain
from tests.lake.test_typed_compaction import DROP, Stream
from tests.sharing_world import DELTA, World

pytestmark = pytest.mark.lake


@pytest.fixture
def world(lake: Path) -> Iterator[World]:
    world = World(lake)
    world.now_ns = time.time_ns()
    yield world
    world.close()


def url(world: World, directory: Path, stream: str = "ORDERS") -> str:
    """Return the URL of a shared table, with its history."""
    return f"{world.profile(directory, world.token(stream, history=True))}#sales.streams.{stream}"


def rows(found: pandas.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(zip(*(found[column] for column in ("seq", *columns)), strict=True))


@pytest.mark.parametrize("layout", ["subject", "tokens:1,2", "bucket:3"])
def test_recipients_see_the_stream_after_every_step(
    spark: Any, lake: Path, tmp_path: Path, world: World, layout: str
) -> None:
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.partition": layout, "lakestream.properties.delta.enableChangeDataFeed": "true"})
    shared = url(world, tmp_path)

    def check() -> None:
        found = delta_sharing.load_as_pandas(shared, use_delta_format=True)
        wanted = [(each.seq, each.time_ns, each.data) for each in model.expected()]
        assert rows(found, "time_ns", "data") == wanted
        whole = [each for each in model.expected() if b"\xff" not in each.subject]
        named = dict(rows(found, "subject"))
        assert [named[each.seq] for each in whole] == [each.subject.decode() for each in whole]

    model.publish(messages(30))
    model.stage(lake)
    compact(spark, lake, model)
    check()
    plain = delta_sharing.load_as_pandas(shared, use_delta_format=False)
    assert len(plain) == len(model.expected()), "as long as no row is deleted"
    before = delta_sharing.get_table_version(shared)
    model.remove([2, 3, 17], erase=True)
    model.publish(messages(5))
    model.stage(lake)
    compact(spark, lake, model)
    check()
    assert world.query("ORDERS", world.token("ORDERS")).error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    assert len(delta_sharing.load_as_pandas(shared, version=before)) == 31
    changes = delta_sharing.load_table_changes_as_pandas(shared, starting_version=before + 1, use_delta_format=True)
    kinds = sorted(zip(changes["_change_type"], changes["seq"], strict=True))
    assert [seq for kind, seq in kinds if kind == "delete"] == [2, 3, 17]
    assert [seq for kind, seq in kinds if kind == "insert"] == list(range(32, 38))
    spark.sql(f"OPTIMIZE delta.`{model.table(lake)}`")
    check()


def test_typed_columns_are_shared_and_dropped_payloads_are_null(
    spark: Any, lake: Path, tmp_path: Path, world: World
) -> None:
    stream = Stream(spark, lake, tmp_path / "log", DROP)
    inner = {"type": "object", "properties": {"zip": {"type": "string"}}}
    stream.register(1, {"n": {"type": "integer"}, "when": {"type": "string", "format": "date-time"}, "at": inner})
    good = {"n": 7, "when": "2026-05-01T12:00:00Z", "at": {"zip": "1"}}
    stream.publish(good, b'{"n": 8.0}')
    stream.compact()
    shared = url(world, tmp_path)
    found = delta_sharing.load_as_pandas(shared).sort_values("seq")
    assert found["n"].tolist() == [7, 8]
    assert found["when"].tolist()[0] == pandas.Timestamp("2026-05-01 12:00", tz="UTC")
    assert found["at"].tolist()[0] == {"zip": "1"}
    assert found["data"].tolist() == [None, b'{"n": 8.0}'], "payloads that the columns give back are not kept"
    assert found["schema"].tolist()[0] == "orders@1"


def test_no_answer_leads_to_a_message_that_was_deleted_securely(
    spark: Any, lake: Path, tmp_path: Path, world: World
) -> None:
    model = StreamModel(tmp_path / "log")
    payloads = [b"secret %d" % number for number in range(40)]
    for start in (0, 20):
        model.publish([(b"s", b"", payload) for payload in payloads[start : start + 20]])
        model.stage(lake)
        compact(spark, lake, model)
    maintain(spark, lake, KEEP)
    token = world.token("ORDERS", history=True)
    versions = range(int(delta_sharing.get_table_version(url(world, tmp_path))) + 1)
    old = {each for version in versions for each in urls(world, token, version)}
    assert any(payloads[4] in payloads_of(world, each) for each in old)
    model.remove([5], shred=True)
    model.stage(lake)
    compact(spark, lake, model)
    maintain(spark, lake, WEEK)
    assert rows(delta_sharing.load_as_pandas(url(world, tmp_path))) == [(seq,) for seq in range(1, 41) if seq != 5]
    newest = int(delta_sharing.get_table_version(url(world, tmp_path)))
    anew = {each for version in range(newest + 1) for each in urls(world, token, version)}
    for each in old | anew:
        assert payloads[4] not in payloads_of(world, each)
    assert all(world.ask(each).status == 200 for each in urls(world, token, newest))


def urls(world: World, token: str, version: int) -> list[str]:
    """Return the URLs of the data files of a version; none of one that is not kept."""
    answer = world.query("ORDERS", token, DELTA, version=version)
    if answer.status == 400:
        return []
    return [line["file"]["deltaSingleAction"]["add"]["path"] for line in answer.lines[2:]]


def payloads_of(world: World, file: str) -> list[bytes]:
    """Return the payloads in a file, deleted ones too; none if it is gone."""
    answer = world.ask(file)
    if answer.status == 404:
        return []
    return list(pq.read_table(io.BytesIO(answer.body), columns=["data"])["data"].to_pylist())
