"""Tests of republishing and tracing between socket and disk: the times of messages, and messages without either."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.config.account_options import TraceOptions
from lakestream.net.interest.subscription import Subscription
from lakestream.net.tracing import Tracing, encoded, parsed
from lakestream.ports import ClientInfo, Single
from lakestream.protocol import headers
from lakestream.stream.core.config import SubjectTransformConfig
from lakestream.stream.core.operations import Purge, UpdateStream
from tests.unit.stream_world import CLIENT, Inbox, World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]
AGAIN = {"src": ">", "dest": "again.>"}


class Taken(Inbox):
    """Inbox that also keeps headers."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[bytes, bytes, bytes]] = []

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.frames.append((message.subject, message.header, message.payload))

    def numbers(self) -> list[tuple[int, int]]:
        """Return (sequence, last sequence) of every republished message."""
        fields = [dict(headers.parse(header)) for _, header, _ in self.frames]
        return [(int(each[b"Nats-Sequence"]), int(each[b"Nats-Last-Sequence"])) for each in fields]


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(**options: Any) -> World:
        return World(str(tmp_path / "S"), **options)

    return build


def listen(world: World, subject: bytes) -> Taken:
    taken = Taken()
    world.hub.join(Subscription(taken, subject, b"", b"9"))
    return taken


def test_it_comes_again_when_it_is_durable_and_before_its_ack(make: MakeWorld) -> None:
    world = make(republish=AGAIN)
    again = listen(world, b"again.>")
    order: list[bytes] = []
    again.receive = lambda sub, message, client: order.append(message.subject)  # type: ignore[method-assign]
    world.inbox.receive = lambda sub, message, client: order.append(message.subject)  # type: ignore[method-assign]
    reply = world.publish("s.a", b"x")
    world.clock.turn()
    assert order == [], "the write is under way"
    world.settle()
    assert order == [b"again.s.a", reply]


def test_last_sequences_see_what_is_in_flight(make: MakeWorld) -> None:
    world = make(republish=AGAIN, allow_rollup_hdrs=True)
    again = listen(world, b"again.>")
    for subject in ("s.a", "s.b", "s.a"):
        world.publish(subject)
    world.publish("s.b", Nats_Rollup="all")
    world.publish("s.a")
    world.publish("s.b", Nats_Rollup="sub")
    world.publish("s.b")
    world.settle()
    assert again.numbers() == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 0), (6, 4), (7, 6)]


def test_last_sequences_see_what_a_rollup_with_a_wildcard_in_flight_replaces(make: MakeWorld) -> None:
    world = make(republish=AGAIN, allow_rollup_hdrs=True)
    again = listen(world, b"again.>")
    world.publish("s.a")
    world.publish("s.b.c")
    world.publish("s.*", Nats_Rollup="sub")  # not published again: its subject is no literal
    world.publish("s.a")
    world.publish("s.b.c")
    world.settle()
    assert again.numbers() == [(1, 0), (2, 0), (4, 0), (5, 2)]


def test_what_a_restart_finds_in_the_log_does_not_come_again(make: MakeWorld) -> None:
    world = make(republish=AGAIN)
    world.acked("s.a")
    world.stream.stop()
    world.stream.store.close(world.stream.dump())
    world = make(republish=AGAIN)
    again = listen(world, b"again.>")
    world.settle()
    assert again.frames == []
    world.acked("s.a")
    assert again.numbers() == [(2, 1)]


def test_a_subject_that_no_line_can_carry_is_not_published(make: MakeWorld) -> None:
    world = make(republish={"src": "s.*", "dest": "again.x y.$1"})
    again = listen(world, b"again.>")
    world.acked("s.a")
    assert again.frames == []


def test_a_restart_keeps_what_subjects_become(make: MakeWorld) -> None:
    change = {"src": "s.*", "dest": "t.$1"}
    world = make(subject_transform=change)
    world.acked("s.a")
    world.stream.stop()
    world.stream.store.close(world.stream.dump())
    world = make()
    world.acked("s.a", Nats_Expected_Last_Subject_Sequence="1")
    assert [subject for _, subject, _ in world.content()] == [b"t.a", b"t.a"]


def test_a_publish_behind_an_update_is_renamed_as_that_says(make: MakeWorld) -> None:
    world = make(subject_transform={"src": "s.*", "dest": "t.$1"}, allow_atomic=True)
    taken = traced(world)
    change = SubjectTransformConfig(src="s.*", dest="u.$1")
    world.publish("s.before")
    changed = msgspec.structs.replace(world.stream.config, subject_transform=change)
    world.stream.propose(UpdateStream(msgspec.json.encode(changed)))
    world.publish("s.after")
    world.publish("s.one", Nats_Batch_Id="b", Nats_Batch_Sequence="1")
    world.publish("s.two", Nats_Batch_Id="b", Nats_Batch_Sequence="2", Nats_Batch_Commit="1")
    route(world, b"s.last", Nats_Trace_Dest="trace")
    world.settle()
    assert [subject for _, subject, _ in world.content()] == [b"t.before", b"u.after", b"u.one", b"u.two", b"u.last"]
    assert [each[0]["subject"] for each in events(taken)] == ["u.last"]


def test_a_failed_write_sends_nothing(make: MakeWorld) -> None:
    world = make(republish=AGAIN)
    again = listen(world, b"again.>")
    world.publish("s.a")
    world.stream.failure(OSError("disk"))
    assert again.frames == []


@pytest.mark.parametrize("to", ["$JS.API.STREAM.DELETE.S", "$JS.hub.API.INFO", "$JS.ACK.S.c.1.1.1.1.0", "_R_.x"])
def test_nothing_is_republished_as_a_request_or_an_ack(make: MakeWorld, to: str) -> None:
    world = make(republish={"src": "s.a", "dest": to})
    asked = listen(world, b">")
    world.acked("s.a")
    assert to.encode() not in [subject for subject, _, _ in asked.frames]


# ------------------------------------------------------------------------------------------------ traces
def traced(world: World) -> Taken:
    """Enable tracing; return an inbox of the traces."""
    world.hub.tracing = Tracing(world.hub, world.clock, lambda: {"name": "n"})
    return listen(world, b"trace")


def route(world: World, subject: bytes, reply: bytes = b"", client: ClientInfo = CLIENT, **fields: str) -> bool:
    block = headers.build((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
    assert world.hub.tracing is not None
    return world.hub.tracing.route(world.inbox, client, Single(subject, reply, block, b""))


def events(taken: Taken) -> list[Any]:
    return [json.loads(payload)["events"][1:] for _, _, payload in taken.frames]


def test_a_trace_leaves_when_the_message_is_stored(make: MakeWorld) -> None:
    world = make()
    taken = traced(world)
    route(world, b"s.a", Nats_Trace_Dest="trace")
    world.clock.turn()
    assert taken.frames == []
    world.settle()
    (event,) = events(taken)[0]
    assert (event["stream"], event["subject"]) == ("S", "s.a")
    record = world.stream.store.read(1)
    assert record is not None
    assert headers.get(record.header, b"Nats-Trace-Dest") == b"trace disabled"


def test_a_publish_that_waits_keeps_its_trace(make: MakeWorld) -> None:
    world = make()
    taken = traced(world)
    world.acked("s.a")
    world.stream.propose(Purge())
    route(world, b"s.a", Nats_Trace_Dest="trace", Nats_Expected_Last_Sequence="7")
    route(world, b"s.b", Nats_Trace_Dest="trace", Nats_Trace_Only="1")
    assert taken.frames == []
    world.settle()
    assert [each[0].get("error") for each in events(taken)] == ["last sequence mismatch: 7 vs 1", None]
    assert world.content() == []


def test_what_is_only_traced_joins_no_batch(make: MakeWorld) -> None:
    world = make(allow_atomic=True)
    taken = traced(world)
    route(world, b"s.a", Nats_Trace_Dest="trace", Nats_Trace_Only="1", Nats_Batch_Id="b", Nats_Batch_Sequence="1")
    world.settle()
    assert len(taken.frames) == 1
    answer = world.acked("s.a", Nats_Batch_Id="b", Nats_Batch_Sequence="2", Nats_Batch_Commit="1")
    assert answer["error"]["err_code"] == 10176
    assert world.content() == []


def test_a_failing_disk_ends_traces_without_a_word(make: MakeWorld) -> None:
    world = make()
    taken = traced(world)
    route(world, b"s.a", Nats_Trace_Dest="trace")
    world.stream.failure(OSError("disk"))
    world.clock.turn()
    assert taken.frames == []


def test_a_trace_tells_of_the_domain_s_prefix(make: MakeWorld) -> None:
    world = make(name="KV_b", subjects=["$KV.b.>"])
    taken = traced(world)
    world.hub.tracing = Tracing(world.hub, world.clock, lambda: {"name": "n"}, "hub")
    assert route(world, b"$JS.hub.API.$KV.b.x", Nats_Trace_Dest="trace")
    assert not route(world, b"$JS.hub.API.STREAM.INFO.S", Nats_Trace_Dest="trace")
    assert not route(world, b"$JS.hub.API.NOPE", Nats_Trace_Dest="trace")
    world.settle()
    told = sorted(([(each["type"], each.get("to")) for each in one] for one in events(taken)), key=len)
    info = "$JS.API.STREAM.INFO.S"
    assert told == [[], [("sm", info), ("si", info)], [("sm", "$KV.b.x"), ("js", None)]]


def test_a_sample_of_the_messages_with_traceparent_is_traced(make: MakeWorld) -> None:
    world = make()
    taken, sent = listen(world, b"trace"), listen(world, b"core")
    follows = TraceOptions(destination="trace", percent=30)
    world.hub.tracing = Tracing(world.hub, world.clock, lambda: {"name": "n"}, external=lambda: follows)
    for _ in range(400):
        route(world, b"core", traceparent="00-1-2-01")
    world.clock.turn()
    assert 60 < len(taken.frames) < 180  # 120 of them; less or more once in a hundred million runs
    marked = [header for _, header, _ in sent.frames if b"Nats-Trace-Dest: trace disabled" in header]
    assert (len(sent.frames), len(marked)) == (400, 400 - len(taken.frames))
    for _ in range(50):  # of another server, which has chosen
        route(world, b"core", client=msgspec.structs.replace(CLIENT, kind="Leafnode"), traceparent="00-1-2-01")
    before = len(taken.frames)
    world.clock.turn()
    assert len(taken.frames) == before + 50


def test_headers_of_a_trace_are_read_as_nats_server_reads_them() -> None:
    block = b"NATS/1.0\r\nA:x\r\nA: y \r\nnocolon\r\nE: 1\r\n:x\r\nF:\r\n\r\n"
    assert parsed(block) == {"A": ["x", "y"], "nocolon\r\nE": ["1"]}
    assert parsed(b"NATS/1.0\r\n\r\n") == {}
    assert parsed(b"NATS/1.0\r\nA: \xff\r\n\r\n") == {"A": ["\ufffd"]}


def test_a_trace_is_packed_as_the_publisher_accepts_it() -> None:
    assert encoded(b"{}", "") == (b"", b"{}")
    header, body = encoded(b"{}" * 100_000, "Snappy")
    assert header == b"NATS/1.0\r\nContent-Encoding: snappy\r\n\r\n"
    assert body.startswith(b"\xff\x06\x00\x00sNaPpY\x01")
