"""Tests of a lake written by an earlier release: tables, staged segments, a clone and deleted streams are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage import paths
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.maintainer import Maintainer
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.stored import encrypted
from tests.stored import lake as stored
from tests.stored.recordings import unpack
from tests.stored.standalone import Filler, wait_copied
from tests.wire import Wire

pytestmark = pytest.mark.lake


@pytest.fixture
def compactor(spark: Any, tmp_path: Path) -> Iterator[Compactor]:
    lake = tmp_path / "recorded" / "data" / "store" / "lake"
    compactor = Compactor(spark, str(lake))
    yield compactor
    compactor.stop()
    compactor.release()


def test_a_recorded_lake_is_read_and_goes_on(
    spark: Any, compactor: Compactor, start_server: StartServer, tmp_path: Path
) -> None:
    root, recorded = unpack("lake", tmp_path / "recorded")
    lake = root / "store" / "lake"
    lake_file = (lake / "_lake.json").read_bytes()
    owing = [path.name for path in (root / "store" / "jetstream" / "$G" / "streams").glob("OWED.deleted-*-owing")]
    assert len(owing) == 1
    server = start_server(of=Kind.OURS, store=root / "store", config=stored.CONFIG)
    found = stored.facts(server, lake)  # before anything is compacted
    assert found["tables"] == recorded["tables"]
    assert stored.past(server) == recorded["past"]
    same(found["streams"], recorded["streams"])
    assert stored.prices(lake) == recorded["prices"]
    assert (lake / "_lake.json").read_bytes() == lake_file, "it is the same lake"

    # Staged segments and the pending deletions of streams are applied to the tables.
    stored.until(lambda: not list(root.rglob("OWED.deleted-*")), "a deletion that was not over")
    assert compactor.acquire()
    catch_up(compactor, server, lake)
    for stream, deleted in (("KEPT", 190), ("OWED", 190)):
        assert [row[0] for row in stored.rows(lake, stream)] == list(range(1, deleted + 1)), stream
    tables_hold_streams(server, lake)
    same(stored.facts(server, lake)["streams"], recorded["streams"])

    # The server continues to work.
    with Wire(server.address, timeout=60) as wire:
        filler = Filler(wire)
        for name in ("KEPT", "OWED"):  # their tables are moved aside
            filler.stream(name, **stored.STREAMS[name])
        stored.change(filler, 6)
        stored.store(filler, 20)
        wait_copied(wire, *stored.COPIES)
    catch_up(compactor, server, lake)
    assert stored.past(server) == recorded["past"]
    done = Maintainer(spark, str(lake)).once()  # versions that contain a securely deleted message are removed here
    assert [each.failure for each in done] == [None] * len(done)
    tables_hold_streams(server, lake)
    now = stored.facts(server, lake)
    server.stop()
    server.start()
    assert stored.facts(server, lake) == now


@pytest.mark.heavy
def test_a_recorded_encrypted_lake_is_read_and_goes_on(
    spark: Any, compactor: Compactor, start_server: StartServer, tmp_path: Path
) -> None:
    root, _ = unpack("encrypted", tmp_path / "recorded")
    lake = root / "store" / "lake"
    server = start_server(of=Kind.OURS, store=root / "store", config=encrypted.CONFIG)
    assert encrypted.found(server) == encrypted.expected()
    assert encrypted.rows(lake) == encrypted.expected()
    assert encrypted.staged(lake)
    assert compactor.acquire()
    stored.until(lambda: compactor.once() and not encrypted.staged(lake), "everything in the table")
    assert encrypted.rows(lake) == encrypted.found(server) == encrypted.expected()


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that all streams are as they were recorded."""
    assert found.keys() == expected.keys()
    for stream, facts in expected.items():
        assert found[stream] == facts, stream


def catch_up(compactor: Compactor, server: Server, lake: Path) -> None:
    """Compact until tables hold everything and no deletion of a stream is pending."""

    def done() -> bool:
        assert compactor.once().failures == {}
        return stored.settled(server, lake)

    stored.until(done, "everything in the tables")


def tables_hold_streams(server: Server, lake: Path) -> None:
    """Assert that each table holds the messages of its stream; an archive also those that limits have removed."""
    streams = stored.facts(server, lake)["streams"]
    for name in stored.TABLES:
        held = [(seq, subject) for seq, _, subject, _, _ in streams[name]["messages"]]
        rows = [(row[0], row[2]) for row in stored.rows(lake, name)]
        if name == "ARCHIVE":
            assert rows[-len(held) :] == held, name
            assert rows[0][0] == 1
        else:
            assert rows == held, (name, paths.table(str(lake), name))
