"""Target: the JetStream API, pulls, direct gets, acks, publishes with headers, and the lake's requests.

Belongs here: the requests that there are, and a world in which a stream that no request names must stay as it is. One
input is one request: the first byte chooses the subject, the second the header block, the rest is the body (of a
publish: the header block).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import msgspec

from lakestream.account.api import consumers, messages, streams, transfer
from lakestream.account.backup.restores import RestoreRequest
from lakestream.account.backup.snapshots import SnapshotRequest
from lakestream.account.get.query import MsgGetRequest
from lakestream.server.lake.api import FlushApi
from lakestream.stream.consumer.config import ConsumerConfig, CreateConsumerRequest
from lakestream.stream.core.config import StreamConfig, StreamConfigRequest
from tests.fuzz.target import Target
from tests.unit.api_world import ApiWorld
from tests.unit.odd_bodies import BODIES, HEADERS, ODD


class Asked(NamedTuple):
    """API subject, and the record as which its body is decoded."""

    subject: str
    record: type[msgspec.Struct] | None = None


REQUESTS = (
    Asked("INFO"),
    Asked("STREAM.CREATE.F", StreamConfigRequest),
    Asked("STREAM.UPDATE.A", StreamConfigRequest),
    Asked("STREAM.INFO.A", streams.StreamInfoRequest),
    Asked("STREAM.NAMES", streams.StreamNamesRequest),
    Asked("STREAM.LIST", streams.StreamNamesRequest),
    Asked("STREAM.DELETE.F"),
    Asked("STREAM.PURGE.A", messages.StreamPurgeRequest),
    Asked("STREAM.MSG.GET.A", MsgGetRequest),
    Asked("STREAM.MSG.DELETE.A", messages.MsgDeleteRequest),
    Asked("STREAM.SNAPSHOT.A", SnapshotRequest),
    Asked("STREAM.RESTORE.R", RestoreRequest),
    *(Asked(f"STREAM.{verb}.A") for verb in ("LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE", "CANCEL_MOVE")),
    Asked("CONSUMER.CREATE.A", CreateConsumerRequest),
    Asked("CONSUMER.CREATE.A.n", CreateConsumerRequest),
    Asked("CONSUMER.CREATE.A.n.a.>", CreateConsumerRequest),
    Asked("CONSUMER.DURABLE.CREATE.A.n", CreateConsumerRequest),
    Asked("CONSUMER.NAMES.A", consumers.PageRequest),
    Asked("CONSUMER.LIST.A", consumers.PageRequest),
    Asked("CONSUMER.INFO.A.c"),
    Asked("CONSUMER.DELETE.A.n"),
    Asked("CONSUMER.PAUSE.A.c", consumers.PauseRequest),
    Asked("CONSUMER.RESET.A.c", consumers.ResetRequest),
    Asked("CONSUMER.UNPIN.A.c", consumers.UnpinRequest),
    *(Asked(f"CONSUMER.{verb}.A.c") for verb in ("LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE")),
)
"""Subjects under `$JS.API.`: each is answered once, in JSON."""

GIVEN: dict[str, dict[str, Any]] = {
    "STREAM.CREATE": {"name": "F", "subjects": ["f"]},
    "STREAM.UPDATE": {"name": "A", "subjects": ["a.>"], "allow_direct": True},
    "STREAM.RESTORE": {"config": {"name": "R", "subjects": ["r"]}, "state": {"messages": 1, "last_seq": 1}},
    "CONSUMER.CREATE": {"stream_name": "A", "config": {"ack_policy": "explicit"}},
    "CONSUMER.DURABLE": {"stream_name": "A", "config": {"ack_policy": "explicit", "durable_name": "n"}},
    "CONSUMER.UNPIN": {"group": "g"},
    "STREAM.MSG": {"seq": 1},
    "STREAM.SNAPSHOT": {"deliver_subject": "away"},
}
"""Required fields of a request, without which its other fields are not checked; by the first two tokens."""


RULES = (
    *("Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Sequence"),
    *("Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Rollup", "Nats-TTL"),
    *(
        "Nats-Batch-Id",
        "Nats-Batch-Sequence",
        "Nats-Batch-Commit",
        "Nats-Incr",
        "Nats-Schedule",
        "Nats-Schedule-Target",
    ),
    *("Nats-Schedule-Source", "Nats-Schedule-TTL", "Nats-Schedule-Time-Zone", "Nats-Schedule-Next", "Nats-Scheduler"),
    *("Nats-Marker-Reason", "Nats-Stream-Source", "Nats-Trace-Dest", "Nats-Schedule-Rollup", "Nats-Last-Stream"),
)


def given_for(subject: str) -> dict[str, Any]:
    return GIVEN.get(".".join(subject.split(".")[:2]), {})


class Fuzzed:
    """World with stream A, which requests are about, and stream GOOD, which none names."""

    def __init__(self) -> None:
        self.world = world = ApiWorld()
        self.flush, self.transfer = FlushApi(world.engine, None), transfer.TransferApi(world.engine)
        world.fill(10)
        world.create("GOOD", subjects=["good"])
        world.publish("good", b"x")
        for stream, name in (("A", "c"), ("GOOD", "g")):
            config = {
                "durable_name": name,
                "ack_policy": "explicit",
                "priority_policy": "pinned_client",
                "priority_groups": ["g"],
            }
            made = world.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
            assert "error" not in made, made
        self._tasks: list[asyncio.Future[Any]] = []
        self.before = self.good()

    def good(self) -> list[Any]:
        """Return all answers about stream GOOD."""
        ask = self.world.ask
        answers = [ask("STREAM.INFO.GOOD", {"subjects_filter": ">"}), ask("CONSUMER.INFO.GOOD.g")]
        answers.append(ask("STREAM.MSG.GET.GOOD", {"seq": 1}))
        for answer in answers:
            answer.pop("ts", None)
        return answers

    async def settle(self) -> None:
        """Run until only clients and the clock are awaited."""
        world, quiet = self.world, 0
        while quiet < 4:
            quiet = 0 if world.clock.soon or world.io.waiting or world.clock.spawned else quiet + 1
            world.settle()
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks += [asyncio.ensure_future(work) for work in world.clock.spawned]
            world.clock.spawned.clear()
            if self._tasks:
                await asyncio.sleep(0)
            else:
                break

    async def answers(self, subject: str, body: bytes, header: bytes = b"") -> list[bytes]:
        reply = self.world.send(subject, body, header)
        await self.settle()
        found = [payload for _, payload in self.world.answers(reply)]
        self.world.client.got.clear()
        return found

    async def end(self) -> None:
        """Assert that nothing waits any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, subject: str, body: bytes, header: bytes = b"") -> dict[str, Any]:
        """Send a request; assert that it gets exactly one answer in JSON and logs no error."""
        answers = await self.answers(f"$JS.API.{subject}", body, header)
        assert len(answers) == 1, (subject, body[:300], header[:300], answers)
        answer = json.loads(answers[0])
        assert isinstance(answer, dict), answer
        assert answer["type"].startswith("io.nats.jetstream.api.v1."), answer
        self.unharmed(subject, body, header)
        return answer

    def unharmed(self, subject: str, body: bytes, header: bytes = b"") -> None:
        assert not self.world.log.errors, (subject, body[:300], header[:300], self.world.log.errors)
        assert not self.world.api.internal_errors

    def tidy(self, *kept: str) -> None:
        """Remove what requests have created, except the streams `kept`, so that each request finds the same state."""
        engine = self.world.engine
        for name in [name for name in engine.streams if name not in ("A", "GOOD", *kept)]:
            assert "error" not in self.world.ask(f"STREAM.DELETE.{name}")
        for name in [name for name in engine.streams["A"].consumers if name != "c"]:
            assert "error" not in self.world.ask(f"CONSUMER.DELETE.A.{name}")


ACKS = ("$JS.ACK.A.c.1.1.1.1.1", "$JS.ACK.dom.acc.A.c.1.2.3.4.5", "$JS.FC.A.c.x", "$JS.ACK.A.c.9.99.999.9999.0")
OTHERS = (
    *("$JS.API.CONSUMER.MSG.NEXT.A.c", "$JS.API.DIRECT.GET.A", "$JS.API.DIRECT.GET.A.a.1", "$JS.API.DIRECT.GET.A.>"),
    *("$LAKE.API.EXPORT.A", "$LAKE.API.IMPORT.A", "$LAKE.API.FLUSH.A", "$LAKE.API.IMPORT1.A.1.5.1.a.1"),
)
"""Subjects with at most one answer, which need not be JSON. Direct gets always have one."""
PUBLISHES = ("p.1", "p.2", "c", "a.1")
"""Subjects of messages whose header block is the input."""
ALLOWED = ("allow_msg_ttl", "allow_atomic", "allow_msg_schedules", "allow_rollup_hdrs")
CONFIGS = (StreamConfig, ConsumerConfig)
"""Records inside of requests, whose fields are words, too."""
WORLD_INPUTS = 200
"""Number of inputs to one world; then the other stream is compared, and a new world begins."""


class _Worlds:
    """The world that takes inputs, on an event loop of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fuzzed: Fuzzed | None = None
        self._left = 0

    def run(self, data: bytes) -> None:
        if len(data) < 2:
            return
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._one(data))
        except BaseException:
            self._fuzzed = None
            raise

    async def _one(self, data: bytes) -> None:
        fuzzed = self._fuzzed
        if fuzzed is None:
            self._fuzzed = fuzzed = Fuzzed()
            config = dict.fromkeys(ALLOWED, True)
            fuzzed.world.create("P", subjects=["p.>"], allow_batched=True, subject_delete_marker_ttl=10**9, **config)
            fuzzed.world.create("C", subjects=["c"], allow_msg_counter=True)
            self._left = WORLD_INPUTS
        await self._ask(fuzzed, data[0], HEADERS[data[1] % len(HEADERS)], data[2:])
        fuzzed.tidy("P", "C")
        self._left -= 1
        if not self._left:
            self._fuzzed = None
            assert fuzzed.good() == fuzzed.before, "a stream that no request named has changed"
            await fuzzed.end()

    async def _ask(self, fuzzed: Fuzzed, chosen: int, header: bytes, body: bytes) -> None:
        if chosen < len(REQUESTS):
            await fuzzed.check(REQUESTS[chosen].subject, body, header)
            return
        chosen -= len(REQUESTS)
        subject = (*OTHERS, *ACKS, *PUBLISHES)[chosen % (len(OTHERS) + len(ACKS) + len(PUBLISHES))]
        if subject in PUBLISHES:
            header, body = b"NATS/1.0\r\n%b\r\n\r\n" % body, b"x"
        found = await fuzzed.answers(subject, body, header)
        assert len(found) <= 1 or "DIRECT" in subject, found
        assert found or "DIRECT" not in subject
        if body == b"x":
            fuzzed.world.clock.advance(10**9)  # TTLs and schedules become due
            await fuzzed.settle()
        fuzzed.unharmed(subject, body, header)


def _seeds() -> list[bytes]:
    found = [bytes([at, 0]) + json.dumps(given_for(asked.subject)).encode() for at, asked in enumerate(REQUESTS)]
    first = len(REQUESTS)
    for at, body in enumerate((b'{"batch":2,"no_wait":true}', *[b'{"seq":1}'] * 3, b'{"seq":1}', b"", b"{}", b"x")):
        found.append(bytes([first + at, 0]) + body)
    for at, body in enumerate((b"+ACK", b'-NAK {"delay":5}', b"", b"+NXT 5"), first + len(OTHERS)):
        found.append(bytes([at, 0]) + body)
    acks = first + len(OTHERS) + len(ACKS)
    return found + [bytes([acks + at % 4, 0]) + f"{rule}: 1".encode() for at, rule in enumerate(RULES)]


def _words() -> list[bytes]:
    records = [asked.record for asked in REQUESTS if asked.record is not None]
    names = {field.encode_name for record in (*records, *CONFIGS) for field in msgspec.structs.fields(record)}
    words = [f'"{name}":'.encode() for name in sorted(names)]
    words += [value.encode("utf-8", "replace") for value in ODD if len(value) < 30]
    return words + [rule.encode() + b": " for rule in RULES]


_worlds = _Worlds()

TARGETS = (
    Target(
        "api",
        "JetStream API, pulls, direct gets, acks, headers of publishes, the lake's requests",
        _worlds.run,
        (),
        lambda: [*_seeds(), *(bytes([at % 50, 0]) + body for at, body in enumerate(BODIES) if len(body) < 500)],
        _words(),
        1500,
    ),
)
