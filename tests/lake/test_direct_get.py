"""Tests of direct gets over log and table: the answers are those of nats-server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lake.test_end_to_end import CONFIG, Compaction
from tests.servers import Kind, Server
from tests.wire import Frame, Wire, pub

pytestmark = pytest.mark.lake

SUBJECTS = [f"dg.{name}" for name in ("a", "b", "c.x", "c.y", "d")]
OLD, NEW = 260, 40
DELETED = (1, 2, 77, 130, 259, 260, 263, 299)
STEP = 29
_STAMP = re.compile(rb"Nats-Time-Stamp: \S+")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Yield nats-server and a lakestream with a lake."""
    pair = Server(Kind.REAL, tmp_path / "nats"), Server(Kind.OURS, tmp_path / "ours", config=CONFIG)
    for server in pair:
        server.start()
    yield pair
    for server in pair:
        server.kill()


def publish(wire: Wire, first: int, count: int) -> None:
    """Publish numbered messages, every third with headers; assert that each is acked."""
    for number in range(first, first + count):
        headers = {"N": str(number)} if number % 3 == 0 else None
        reply = wire.new_reply()
        wire.send(
            pub(SUBJECTS[number * 7919 % 31 % len(SUBJECTS)], b"%d:" % number + b"x" * (number % 400), reply, headers)
        )
        assert wire.message(reply).json()["seq"] == number


def answers(wire: Wire, body: Any, *, several: bool) -> list[Any]:
    """Return all answers without the store times, which differ between two servers."""
    reply = wire.new_reply()
    wire.publish("$JS.API.DIRECT.GET.HIST", json.dumps(body).encode(), reply)
    frames: list[Frame] = [wire.message(reply)]
    while several and not frames[-1].status:
        frames.append(wire.message(reply))
    return [(_STAMP.sub(b"", frame.header), frame.data) for frame in frames]


def moved(text: str, ns: int) -> str:
    """Return an API time moved by `ns`."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    seconds, ns = divmod(seconds * 10**9 + int(fraction.ljust(9, "0")) + ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def by_sequence(seq: int) -> list[tuple[Any, bool]]:
    """Return (body, True for several answers) of requests for a sequence."""
    return [
        ({"seq": seq}, False),
        ({"next_by_subj": "dg.c.*", "seq": seq}, False),
        ({"seq": seq, "batch": 25}, True),
        ({"seq": seq, "batch": 400, "next_by_subj": "dg.b"}, True),
        ({"seq": seq, "batch": 400, "max_bytes": 3000}, True),
        ({"multi_last": ["dg.>"], "up_to_seq": seq}, True),
        ({"multi_last": ["dg.a", "dg.c.*"], "up_to_seq": seq, "batch": 2}, True),
    ]


def by_time(at: str) -> list[tuple[Any, bool]]:
    """Return (body, True for several answers) of requests for a time."""
    return [
        ({"start_time": at}, False),
        ({"start_time": at, "next_by_subj": "dg.d"}, False),
        ({"start_time": at, "batch": 20}, True),
        ({"multi_last": ["dg.>"], "up_to_time": at}, True),
    ]


async def test_the_border_of_log_and_table_is_not_seen(spark: Any, servers: tuple[Server, Server]) -> None:
    """The boundary between log and table does not affect answers.

    By sequence and by nanosecond, before the first message and after the last, and at deleted messages.
    """
    wires = [Wire(server.address, {}, 30.0) for server in servers]
    config = {"name": "HIST", "subjects": ["dg.>"], "allow_direct": True}
    for wire in wires:
        assert "error" not in wire.api("STREAM.CREATE.HIST", config)
        publish(wire, 1, OLD)
    times = [stored_times(wire, range(1, OLD + 1)) for wire in wires]
    compaction = Compaction(spark, servers[1])
    await compaction.until_caught_up("HIST", within_s=240.0)
    for wire, known in zip(wires, times, strict=True):
        publish(wire, OLD + 1, NEW)
        known |= stored_times(wire, range(OLD + 1, OLD + NEW + 1))
        for seq in DELETED:
            assert wire.api("STREAM.MSG.DELETE.HIST", {"seq": seq})["success"]
    outlines = list((servers[1].store / "jetstream/$G/streams/HIST/log").glob("*.outline"))
    assert outlines, "nothing has left the log"
    last = OLD + NEW
    for seq in sorted({*range(1, last + 2, STEP), *DELETED, 3, 258, 261, last, last + 1}):
        for body, several in by_sequence(seq):
            real, ours = (answers(wire, body, several=several) for wire in wires)
            assert ours == real, body
    for seq in sorted({*range(1, last + 1, 5 * STEP), *DELETED, OLD + 1, last}):
        for ns in (-1, 0, 1):
            theirs, mine = (by_time(moved(known[seq], ns)) for known in times)
            for (asked, several), (body, _) in zip(theirs, mine, strict=True):
                real, ours = answers(wires[0], asked, several=several), answers(wires[1], body, several=several)
                assert ours == real, f"{body} at {seq}{ns:+d}"
    for at in ("2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        for body, several in by_time(at):
            real, ours = (answers(wire, body, several=several) for wire in wires)
            assert ours == real, body
    for subject in SUBJECTS:
        newest = [wire.request(f"$JS.API.DIRECT.GET.HIST.{subject}", b"") for wire in wires]
        assert newest[0].headers["Nats-Sequence"] == newest[1].headers["Nats-Sequence"]
        assert newest[0].data == newest[1].data


def stored_times(wire: Wire, seqs: range) -> dict[int, str]:
    """Return the store times of those messages that exist."""
    found = {seq: wire.api("STREAM.MSG.GET.HIST", {"seq": seq}) for seq in seqs}
    return {seq: answer["message"]["time"] for seq, answer in found.items() if "message" in answer}
