"""Tests of copies in the lake: gaps, sequences and times survive compaction, and origins are read from their tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage import paths
from tests.chaos.copies import contents
from tests.lake import tables
from tests.lake.test_end_to_end import Compaction, eventually
from tests.servers import Kind, Server
from tests.wire import Frame, Wire, header_block, pub

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
MESSAGES = 400
SOON_S = 240.0
COPIES: dict[str, dict[str, Any]] = {
    "M": {"mirror": {"name": "O"}},
    "F": {"mirror": {"name": "O", "subject_transforms": [{"src": "o.b", "dest": "f.b"}]}},
    "S": {"subjects": ["s.*"], "sources": [{"name": "O", "filter_subject": "o.a"}]},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


def create(wire: Wire, name: str, **config: Any) -> None:
    """Create a stream."""
    answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, "allow_direct": True, **config})
    assert "error" not in answer, answer


def fill(wire: Wire, rng: random.Random, first: int) -> None:
    """Publish messages, and delete some."""
    for number in range(first, first + MESSAGES):
        reply = wire.new_reply()
        wire.send(pub(f"o.{rng.choice('aabbcd')}", b"%d " % number * rng.randint(0, 90), reply, {"N": str(number)}))
        assert b'"seq"' in wire.message(reply).data
        if rng.random() < 0.1:
            wire.api("STREAM.MSG.DELETE.O", {"seq": rng.randint(1, number)})
    wire.api("STREAM.PURGE.O", {"filter": "o.d"})


def stored(frame: Frame) -> tuple[str, str, bytes]:
    """Return the parts of a message that a copy keeps unchanged."""
    fields = frame.headers
    return fields["Nats-Time-Stamp"], fields["N"], frame.data


def has_all(wire: Wire, copies: list[str]) -> bool:
    """Return True if these copies have every message of their origin."""
    infos = [wire.api(f"STREAM.INFO.{name}") for name in copies]
    origins = [info.get("mirror") or info["sources"][0] for info in infos]
    return all(origin["active"] >= 0 and origin["lag"] == 0 for origin in origins)


def compare(origin: dict[int, Frame], wire: Wire) -> None:
    """Assert that the copies hold the messages that they must."""
    whole, filtered, sums = (contents(wire, name) for name in COPIES)
    assert {seq: stored(frame) for seq, frame in origin.items()}.items() <= {
        seq: stored(frame) for seq, frame in whole.items()
    }.items()
    assert {seq: frame.headers["Nats-Subject"] for seq, frame in filtered.items()} == {
        seq: "f.b" for seq, frame in whole.items() if frame.headers["Nats-Subject"] == "o.b"
    }
    assert {seq: stored(frame) for seq, frame in filtered.items()}.items() <= {
        seq: stored(frame) for seq, frame in whole.items()
    }.items()
    assert [frame.data for frame in sums.values()] == [
        frame.data for frame in whole.values() if frame.headers["Nats-Subject"] == "o.a"
    ]


async def test_copies_are_in_the_lake_as_they_are(spark: Any, server: Server) -> None:
    rng = random.Random(9)
    compaction = Compaction(spark, server)
    with Wire(server.address, timeout=30) as wire:
        create(wire, "O", subjects=["o.*"])
        fill(wire, rng, 1)
        await compaction.until_caught_up("O", within_s=SOON_S)
        # The messages that they begin with are only in the origin's table.
        for name, config in COPIES.items():
            create(wire, name, **config)
    server.kill()
    server.start()
    with Wire(server.address, timeout=30) as wire:
        fill(wire, rng, MESSAGES + 1)

        async def copied() -> bool:
            return has_all(wire, list(COPIES))

        await eventually(copied)
        compare(contents(wire, "O"), wire)
        for name in COPIES:
            await compaction.until_caught_up(name, within_s=SOON_S)
        compare(contents(wire, "O"), wire)
        for name in COPIES:
            rows = tables.records(paths.table(compaction.lake, name))
            shown = contents(wire, name)
            assert [row.seq for row in rows] == list(shown), name
            for row in rows:
                fields = shown[row.seq].headers
                assert (row.subject.decode(), row.data) == (fields["Nats-Subject"], shown[row.seq].data)
                assert b"\r\nN: %b\r\n" % fields["N"].encode() in row.header
                source = fields.get("Nats-Stream-Source", "")
                assert (
                    header_block({"N": fields["N"]} | ({"Nats-Stream-Source": source} if source else {})) == row.header
                )
    compaction.stop()
