"""A store of one server with every kind of content; `record` writes it and the test opens it.

Durations are either CENTURY, so that they do not end before a recording is opened, or about to end (`ABOUT_S`): only
the streams in PASSING have such, and the test checks what they become.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
from nats.js.api import KeyValueConfig, ObjectMeta

from tests.servers import Server
from tests.stored.facts import asked, buckets, known
from tests.wire import Frame, Wire, pub

SECOND = 1_000_000_000
CENTURY = 100 * 365 * 86_400 * SECOND
CENTURY_S = "876000h"
ABOUT_S = 20
"""Seconds until short-lived contents expire: longer than the rest of the recording takes."""
BRIEF_S = 4
"""Inactivity threshold of a consumer, in seconds from the server's start: longer than the end of a recording."""
FAR = "2099-01-01T00:00:00Z"
CONFIG = 'lake { seal_bytes: 16k, seal_age: "1h", poll: "100ms" }'
"""Configuration in which segments are sealed by size only."""
IDS_CONFIG = "lake: false\n"
OLDER_IDS, ALL_IDS = 18_000, 18_100
"""Message ids of the checkpoint, of which the oldest thousand are in a block, and of all messages."""
PASSING = ("AGED", "MARKED", "DUE", "SHORT")
"""Streams whose contents expire between recording and opening."""
COPIES = ("MIRROR", "FILTERED", "SOURCES")
KEY_VALUES = ("config", "expiring")
OBJECT_STORES = ("files",)
RNG = random.Random(16)

STREAMS: dict[str, dict[str, Any]] = {
    "LIMITS": {"subjects": ["limits.>"], "max_msgs": 150, "max_bytes": 1 << 20, "max_msg_size": 4096,
               "max_age": CENTURY, "allow_direct": False},  # a mirror would answer direct gets from its own messages
    "PER_SUBJECT": {"subjects": ["per.*"], "max_msgs_per_subject": 3},
    "FULL": {"subjects": ["full.*"], "max_msgs": 12, "max_msgs_per_subject": 2, "discard": "new",
             "discard_new_per_subject": True},
    "WORK": {"subjects": ["work.*"], "retention": "workqueue"},
    "INTEREST": {"subjects": ["interest.*"], "retention": "interest"},
    "DEDUPE": {"subjects": ["dedupe.*"], "duplicate_window": CENTURY},
    "TTL": {"subjects": ["ttl.*"], "allow_msg_ttl": True, "subject_delete_marker_ttl": CENTURY},
    "COUNT": {"subjects": ["count.*"], "allow_msg_counter": True},
    "SCHEDULES": {"subjects": ["schedules.>"], "allow_msg_schedules": True, "allow_msg_ttl": True},
    "ATOMIC": {"subjects": ["atomic.*"], "allow_atomic": True},
    "FAST": {"subjects": ["fast.*"], "allow_batched": True},
    "REPUBLISH": {"subjects": ["republish.*"], "republish": {"src": "republish.>", "dest": "again.>"}},
    "AGAIN": {"subjects": ["again.>"],
              "subject_transform": {"src": "again.republish.*", "dest": "again.{{wildcard(1)}}"}},
    "MIRROR": {"mirror": {"name": "LIMITS"}},
    "FILTERED": {"mirror": {"name": "ODD", "opt_start_seq": 3,
                            "subject_transforms": [{"src": "odd.*", "dest": "even.{{wildcard(1)}}"}]}},
    "SOURCES": {"subjects": ["sources.*"], "sources": [
        {"name": "WORKED", "filter_subject": "worked.1"},
        {"name": "PER_SUBJECT", "subject_transforms": [{"src": "per.1", "dest": "sources.per"}]}]},
    "WORKED": {"subjects": ["worked.*"]},
    "PACKED": {"subjects": ["packed.*"], "compression": "s2"},
    "SHREDDED": {"subjects": ["shredded.*"]},
    "PURGED": {"subjects": ["purged.*"], "first_seq": 1000, "allow_rollup_hdrs": True},
    "EMPTIED": {"subjects": ["emptied"]},
    "CLOSED": {"subjects": ["closed"]},
    "ASYNC": {"subjects": ["async.*"], "persist_mode": "async"},
    "FIXED": {"subjects": ["fixed"], "deny_delete": True, "deny_purge": True, "description": "a description",
              "metadata": {"owner": "somebody", "lakestream.retention": "archive"}, "num_replicas": 1,
              "consumer_limits": {"inactive_threshold": CENTURY, "max_ack_pending": 7}},
    "PAST": {"subjects": ["past.*"], "max_msgs_per_subject": 1, "metadata": {"lakestream.time_travel": "52w"}},
    "ODD": {"subjects": ["odd.>"], "allow_direct": False},
    "a~name$of-its_own": {"subjects": ["named"]},
    "CONSUMERS": {"subjects": ["consumers.*"]},
    "NO_ACK": {"subjects": ["no_ack"], "no_ack": True},
    "MEMORY": {"subjects": ["memory"], "storage": "memory"},
    "AGED": {"subjects": ["aged"], "max_age": ABOUT_S * SECOND},
    "MARKED": {"subjects": ["marked.*"], "allow_msg_ttl": True, "subject_delete_marker_ttl": ABOUT_S * SECOND},
    "DUE": {"subjects": ["due.>"], "allow_msg_schedules": True},
    "SHORT": {"subjects": ["short.*"], "allow_direct": True},
}  # fmt: skip

CONSUMERS: dict[str, dict[str, Any]] = {
    "explicit": {"ack_policy": "explicit"},
    "filtered": {"ack_policy": "explicit", "filter_subjects": ["consumers.1", "consumers.2"], "metadata": {"a": "b"}},
    "all": {"ack_policy": "all"},
    "none": {"ack_policy": "none"},
    "by_sequence": {"ack_policy": "explicit", "deliver_policy": "by_start_sequence", "opt_start_seq": 20},
    "by_time": {"ack_policy": "explicit", "deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
    "last_per_subject": {"ack_policy": "explicit", "deliver_policy": "last_per_subject",
                         "filter_subject": "consumers.>"},
    "new": {"ack_policy": "explicit", "deliver_policy": "new"},
    "headers": {"ack_policy": "explicit", "headers_only": True, "sample_freq": "50%", "max_waiting": 9},
    "in_memory": {"ack_policy": "explicit", "mem_storage": True},
    "backoff": {"ack_policy": "explicit", "backoff": [CENTURY, CENTURY], "max_deliver": 3},
    "paused": {"ack_policy": "explicit", "pause_until": FAR},
    "overflow": {"ack_policy": "explicit", "priority_policy": "overflow", "priority_groups": ["g"]},
    "prioritized": {"ack_policy": "explicit", "priority_policy": "prioritized", "priority_groups": ["g"]},
    "pinned": {"ack_policy": "explicit", "priority_policy": "pinned_client", "priority_groups": ["g"],
               "priority_timeout": 3600 * SECOND},
    "pushed": {"ack_policy": "explicit", "deliver_subject": "to.pushed", "max_ack_pending": 5},
    "grouped": {"ack_policy": "explicit", "deliver_subject": "to.grouped", "deliver_group": "g", "max_ack_pending": 4},
    "flowing": {"ack_policy": "none", "deliver_subject": "to.flowing", "flow_control": True,
                "idle_heartbeat": 30 * SECOND, "rate_limit_bps": 1 << 30},
    "flow_acked": {"ack_policy": "flow_control", "deliver_subject": "to.flow_acked", "max_ack_pending": 6},
}  # fmt: skip
"""Consumers of stream CONSUMERS. Each with an ack policy of its own gets some deliveries and acks."""


def with_id(number: int, reply: str = "") -> bytes:
    """Return a publish to stream IDS with the id of this number."""
    return pub("i", b"", reply, {"Nats-Msg-Id": f"{number}"})


class Filler:
    """Connection that fills a store through the API."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def stream(self, name: str, **config: Any) -> None:
        """Create a stream."""
        asked(self.wire, f"STREAM.CREATE.{name}", {"name": name, "allow_direct": True, **config})

    def put(self, subject: str, data: bytes = b"", headers: dict[str, str] | bytes | None = None) -> int:
        """Publish and return the sequence. Retry while there is no responder (a leader is being elected)."""
        deadline = time.monotonic() + 30
        while (frame := self.wire.request(subject, data, headers)).status == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not frame.status, (subject, frame)
        answer = frame.json()
        assert "error" not in answer, (subject, answer)
        return int(answer.get("seq", 0))

    def consumer(self, stream: str, name: str, **config: Any) -> None:
        """Create a durable consumer that redelivers nothing by itself."""
        fields = {"durable_name": name, **config}
        if "backoff" not in config and config.get("ack_policy") not in ("none", "flow_control"):
            fields.setdefault("ack_wait", CENTURY)
        asked(self.wire, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": fields})

    def pull(self, stream: str, consumer: str, batch: int, **body: Any) -> list[Frame]:
        """Return the next messages of a pull consumer."""
        sid = self.wire.subscribe(inbox := f"{self.wire.inbox}-{stream}-{consumer}")
        request = {"batch": batch, "no_wait": "expires" not in body, **body}
        self.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(request).encode(), inbox)
        frames = []
        while len(frames) < batch and not (frame := self.wire.delivered(sid)).status:
            frames.append(frame)
        self.wire.unsubscribe(sid)
        return frames

    def tell(self, frame: Frame, what: bytes = b"+ACK") -> None:
        """Send an answer to a delivery and wait until it is confirmed."""
        assert not self.wire.request(frame.reply, what).data


def fill(wire: Wire, url: str) -> None:
    """Create everything in account $G and give it its first content."""
    filler = Filler(wire)
    for name, config in STREAMS.items():
        filler.stream(name, **config)
    for name in ("even", "odd"):
        filler.consumer("WORK", name, ack_policy="explicit", filter_subject=f"work.{name}")
    for name in ("fast", "slow"):
        filler.consumer("INTEREST", name, ack_policy="explicit")
    _plain(filler)
    _rules(filler)
    _batches(filler)
    _consume(filler)
    _remove(filler)
    asyncio.run(_buckets(url))


def _plain(filler: Filler) -> None:
    """Store messages of all shapes, in several segments where it matters."""
    for number in range(400):
        filler.put(
            f"limits.{number % 7}.x", RNG.randbytes(RNG.randrange(300)), {"N": str(number)} if number % 3 else None
        )
        filler.put(f"packed.{number % 5}", json.dumps({"number": number, "text": "packed " * 20}).encode())
    for number in range(80):
        filler.put(f"per.{number % 4}", b"%d" % number)
        filler.put(f"worked.{number % 3}", b"%d" % number)
        filler.put(f"consumers.{number % 4}", b"%d" % number, {"Number": str(number)})
        filler.put(f"past.{number % 3}", b"%d" % number)
    for number in range(40):
        filler.put(f"work.{('even', 'odd')[number % 2]}", b"%d" % number)
        filler.put("interest.1", b"%d" % number)
        filler.put(f"republish.{number % 3}", b"%d" % number)
        filler.put("async.1", b"%d" % number)
        filler.put("emptied", b"x" * number)
        filler.put("fixed", b"%d" % number)
        filler.put("named", b"%d" % number)
    for number in range(12):
        filler.put(f"full.{number // 2}", b"%d" % number)
    filler.wire.publish("no_ack", b"without an ack")
    filler.put("memory", b"gone with the process")
    filler.put("odd.empty")
    filler.put("odd.a/b\\c:ü", "äöü".encode(), "NATS/1.0\r\nKey:no blank\r\nKey: twice\r\nÜmlaut:  ü \r\n\r\n".encode())
    filler.put("odd.long", RNG.randbytes(1000) * 100)
    filler.put("odd.status", b"x", b"NATS/1.0\r\n\r\n")
    filler.put("odd." + "t." * 100 + "end", bytes(range(256)))
    for number in range(5):
        filler.put("odd.5", b"%d" % number)


def _rules(filler: Filler) -> None:
    """Store messages with headers that their streams interpret."""
    for number in range(20):
        filler.put("dedupe.1", b"%d" % number, {"Nats-Msg-Id": f"id {number}"})
        filler.put("count.1", headers={"Nats-Incr": f"{number - 3:+d}"})
        filler.put("count.2", headers={"Nats-Incr": str(10**30)})
    for key, ttl in {"never": "never", "long": CENTURY_S, "long2": CENTURY_S}.items():
        filler.put(f"ttl.{key}", b"first", {"Nats-TTL": CENTURY_S})
        filler.put(f"ttl.{key}", b"second", {"Nats-TTL": ttl})
    filler.put("schedules.at", b"once", {"Nats-Schedule": f"@at {FAR}", "Nats-Schedule-Target": "schedules.to.at"})
    every = {
        "Nats-Schedule": "@every 876000h",
        "Nats-Schedule-Target": "schedules.to.every",
        "Nats-Schedule-TTL": "876000h",
    }
    filler.put("schedules.every", b"often", every)
    filler.put("schedules.at", b"again", {"Nats-Schedule": f"@at {FAR}", "Nats-Schedule-Target": "schedules.to.at"})


def _batches(filler: Filler) -> None:
    """Commit an atomic batch and a fast one; leave one of each uncommitted."""
    for number in range(1, 6):
        headers = {"Nats-Batch-Id": "whole", "Nats-Batch-Sequence": str(number)}
        last = {"Nats-Batch-Commit": "1"} if number == 5 else {}
        filler.wire.publish(f"atomic.{number}", b"%d" % number, filler.wire.new_reply() if last else "", headers | last)
    answer = filler.wire.next(lambda frame: b"batch" in frame.data).json()
    assert answer["count"] == 5, answer
    filler.wire.publish("atomic.1", b"never", headers={"Nats-Batch-Id": "open", "Nats-Batch-Sequence": "1"})
    sid = filler.wire.subscribe("_INBOX.fast.>")
    for batch, size in (("whole", 25), ("open", 7)):
        for number in range(1, size + 1):
            operation = 0 if number == 1 else 2 if (batch, number) == ("whole", size) else 1
            reply = f"_INBOX.fast.{batch}.10.ok.{number}.{operation}.$FI"
            filler.wire.send(pub(f"fast.{batch}", b"%d" % number, reply))
        if batch == "whole":
            filler.wire.next(lambda frame: frame.sid == sid and b'"count":25' in frame.data)
    filler.wire.ping()


def _consume(filler: Filler) -> None:
    """Leave consumers in all states: acked, unacked, negatively acknowledged, in progress, terminated, redelivered."""
    for name, config in CONSUMERS.items():
        filler.consumer("CONSUMERS", name, **config)
    for name in ("explicit", "filtered", "by_sequence", "by_time", "headers", "in_memory", "backoff"):
        frames = filler.pull("CONSUMERS", name, 12)
        for at in (0, 1, 4):
            filler.tell(frames[at])
        filler.tell(frames[5], b"+TERM")
        filler.tell(frames[6], b"+WPI")
        filler.tell(frames[7], b'-NAK {"delay": %d}' % CENTURY)
        filler.tell(frames[8], b"-NAK")
    for name in ("explicit", "filtered"):
        (again,) = filler.pull("CONSUMERS", name, 1)
        assert again.reply.split(".")[4] == "2", again
    filler.tell(filler.pull("CONSUMERS", "all", 9)[5])
    filler.pull("CONSUMERS", "none", 11)
    filler.tell(filler.pull("CONSUMERS", "last_per_subject", 2)[0])
    filler.pull("CONSUMERS", "overflow", 2, group="g", min_pending=1)
    filler.pull("CONSUMERS", "prioritized", 2, group="g", priority=1)
    filler.tell(filler.pull("CONSUMERS", "pinned", 2, group="g")[0])
    for name, messages in (("pushed", 5), ("flowing", 80), ("flow_acked", 6)):
        sid = filler.wire.subscribe(f"to.{name}")
        frames = []
        while len(frames) < messages:
            frame = filler.wire.delivered(sid)
            if not frame.status:
                frames.append(frame)
        if name == "pushed":
            filler.tell(frames[0])
        filler.wire.unsubscribe(sid)
    filler.consumer("CONSUMERS", "deleted", ack_policy="explicit")
    filler.pull("CONSUMERS", "deleted", 3)
    asked(filler.wire, "CONSUMER.DELETE.CONSUMERS.deleted")
    body = {
        "stream_name": "CONSUMERS",
        "config": {"name": "patient", "ack_policy": "explicit", "inactive_threshold": CENTURY},
    }
    asked(filler.wire, "CONSUMER.CREATE.CONSUMERS.patient", body)
    for name, count in (("even", 5), ("odd", 9)):
        for frame in filler.pull("WORK", name, count)[1:]:
            filler.tell(frame)
    for frame in filler.pull("INTEREST", "fast", 30):
        filler.tell(frame)
    for frame in filler.pull("INTEREST", "slow", 12)[:9]:
        filler.tell(frame)


def _remove(filler: Filler) -> None:
    """Delete and purge, in sealed segments and in open ones."""
    wire = filler.wire
    for number in range(300):
        filler.put(f"shredded.{number % 5}", b"secret %d " % number + RNG.randbytes(100))
        filler.put(f"purged.{number % 5}", b"%d" % number + RNG.randbytes(60))
    for seq in (3, 4, 100, 299, 300):
        asked(wire, "STREAM.MSG.DELETE.SHREDDED", {"seq": seq})
    for seq in (7, 150):
        asked(wire, "STREAM.MSG.DELETE.SHREDDED", {"seq": seq, "no_erase": True})
    asked(wire, "STREAM.PURGE.PURGED", {"filter": "purged.1", "keep": 3})
    asked(wire, "STREAM.PURGE.PURGED", {"filter": "purged.2"})
    asked(wire, "STREAM.PURGE.PURGED", {"seq": 1050})
    filler.put("purged.3", b"all that is left", {"Nats-Rollup": "sub"})
    asked(wire, "STREAM.PURGE.EMPTIED")
    filler.put("closed", b"the last one")
    config = {"name": "CLOSED", "allow_direct": True, **STREAMS["CLOSED"], "sealed": True}
    asked(wire, "STREAM.UPDATE.CLOSED", config)
    filler.stream("DELETED", subjects=["deleted"])
    filler.put("deleted", b"x")
    asked(wire, "STREAM.DELETE.DELETED")


async def _buckets(url: str) -> None:
    """Fill key-value buckets and an object store through nats-py."""
    client = await nats.connect(url)
    js = client.jetstream()
    bucket = await js.create_key_value(KeyValueConfig(bucket="config", history=5))
    for number in range(30):
        await bucket.put(f"key.{number % 4}", b"value %d" % number)
    await bucket.delete("key.1")
    await bucket.purge("key.2")
    await bucket.create("key.1", b"made again")
    await js.create_key_value(KeyValueConfig(bucket="expiring", history=2, ttl=CENTURY / SECOND, limit_marker_ttl=3600))
    await (await js.key_value("expiring")).put("a", b"b")
    store = await js.create_object_store("files")
    await store.put("small", b"small")
    await store.put("large", RNG.randbytes(1500) * 100, ObjectMeta(description="in chunks", headers={"A": "b"}))
    await store.put("replaced", b"before" * 1000)
    await store.put("replaced", b"after" * 1000)
    await store.put("deleted", b"x")
    await store.delete("deleted")
    await client.close()


TAIL_SUBJECTS = (
    "limits.tail.x", "packed.tail", "per.1", "worked.1", "work.even", "interest.1", "async.1", "named", "purged.3",
    "shredded.1", "past.1", "republish.1", "consumers.3", "emptied",
)  # fmt: skip


def go_on(wire: Wire, count: int) -> None:
    """Write a log tail behind the checkpoint of a clean stop."""
    filler = Filler(wire)
    for number in range(count):
        for subject in TAIL_SUBJECTS:
            filler.put(subject, b"tail %d" % number)
        filler.put("dedupe.1", b"tail", {"Nats-Msg-Id": f"tail {number}"})
        filler.put("count.1", headers={"Nats-Incr": "1"})
    asked(wire, "STREAM.MSG.DELETE.SHREDDED", {"seq": 20})
    asked(wire, "STREAM.PURGE.PURGED", {"filter": "purged.4"})
    frames = filler.pull("CONSUMERS", "explicit", 4)
    filler.tell(frames[0])
    filler.tell(frames[2])


def start_passing(wire: Wire) -> None:
    """Store the messages that expire in ABOUT_S seconds, as the last step of a recording."""
    filler = Filler(wire)
    filler.put("aged", b"x")
    filler.put("marked.soon", b"x", {"Nats-TTL": f"{ABOUT_S}s"})
    filler.put("marked.never", b"x", {"Nats-TTL": "never"})
    at = datetime.now(UTC) + timedelta(seconds=ABOUT_S)
    filler.put(
        "due.soon", b"due", {"Nats-Schedule": f"@at {at:%Y-%m-%dT%H:%M:%SZ}", "Nats-Schedule-Target": "due.to.here"}
    )
    for number in range(6):
        filler.put("short.1", b"%d" % number)
    filler.consumer("SHORT", "again", ack_policy="explicit", ack_wait=ABOUT_S * SECOND, max_deliver=2)
    filler.pull("SHORT", "again", 4)
    body = {
        "stream_name": "SHORT",
        "config": {"name": "brief", "ack_policy": "none", "inactive_threshold": BRIEF_S * SECOND},
    }
    asked(wire, "CONSUMER.CREATE.SHORT.brief", body)


def wait_copied(wire: Wire, *streams: str) -> None:
    """Wait until these mirrors and streams with sources have every message of their origins."""
    deadline = time.monotonic() + 60
    for name in streams:
        while True:
            info = asked(wire, f"STREAM.INFO.{name}")
            origins = [info["mirror"]] if "mirror" in info else info["sources"]
            if all(each["active"] >= 0 and each["lag"] == 0 for each in origins):
                break
            assert time.monotonic() < deadline, info
            time.sleep(0.05)


def facts(server: Server) -> dict[str, Any]:
    """Return the facts of the store, without the streams in PASSING."""
    with Wire(server.address, timeout=30) as wire:
        return {"streams": known(wire, without=PASSING), "buckets": buckets(server.url, KEY_VALUES, OBJECT_STORES)}
