"""Clients of every kind, which record what they ask and what they are told.

Belongs here: publishers, readers, consumers and workers, one thread each, on the wire. A client does one operation
after the other; when the connection or its node fails it goes to another node.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.histories.checks import ACK_WAIT_NS
from tests.histories.record import (
    ALONE,
    EVENTS,
    FLEETING,
    JOBS,
    MEMORY,
    MIRROR,
    NEWS,
    OBJECTS,
    OTHER,
    TOTAL,
    Event,
    Kind,
    Outcome,
    Recorder,
    now,
)
from tests.wire import Closed, Frame, Headers, Wire, WireTimeout, pub

SECOND = 10**9
WINDOW_NS = 6 * 3600 * SECOND
"""Duplicate window, longer than any run."""
TIMEOUT_S = 1.5
PAUSE_S = 0.1
NO_MESSAGE = 10037
WRONG_LAST = (10071, 10070)
NO_RESPONDERS = 503
CONFIRM_EVERY = 10
"""Consumers of `EVENTS` wait for the confirmation of every tenth ack."""
DROPPED = 0.1
"""Part of the jobs that a worker takes and never acks."""

BUCKET = OBJECTS.removeprefix("OBJ_")
CHUNK = 400
"""Size of a chunk in bytes."""
CHUNKS = (0, 1, 2, 5)
"""Numbers of chunks of an object."""

STREAMS: list[dict[str, Any]] = [
    {"name": EVENTS, "subjects": ["events.>"], "duplicate_window": WINDOW_NS, "allow_atomic": True},
    {"name": JOBS, "subjects": ["jobs.>"], "retention": "workqueue", "duplicate_window": WINDOW_NS},
    {"name": MIRROR, "mirror": {"name": EVENTS}},
    {"name": TOTAL, "sources": [{"name": EVENTS}]},
    {"name": ALONE, "subjects": ["alone.>"], "num_replicas": 1, "duplicate_window": WINDOW_NS},
    {"name": OBJECTS, "subjects": [f"$O.{BUCKET}.>"], "discard": "new", "allow_rollup_hdrs": True},
]
IN_MEMORY: list[dict[str, Any]] = [
    {"name": MEMORY, "subjects": ["memory.>"], "storage": "memory", "duplicate_window": WINDOW_NS},
    {
        "name": FLEETING,
        "subjects": ["fleeting.>"],
        "storage": "memory",
        "num_replicas": 1,
        "duplicate_window": WINDOW_NS,
    },
]
"""Streams whose nodes may be killed, but not lose their power or be restored from a copy."""
OTHERS: list[dict[str, Any]] = [
    {"name": OTHER, "subjects": ["events.>"], "duplicate_window": WINDOW_NS},
    {"name": NEWS, "subjects": ["news.>"], "retention": "interest", "duplicate_window": WINDOW_NS},
]
"""Streams of the second account."""

Connect = Callable[[], Wire]


def payload(value: str, size: int) -> bytes:
    """Return the data of a message: its value, and padding that follows from it."""
    return f"{value} ".encode() + (value.encode() * (size // len(value) + 1))[:size]


def value_of(data: bytes) -> str:
    """Return the value in the data of a message; the data itself if its padding is not the value's."""
    value, _, padding = data.partition(b" ")
    name = value.decode("latin-1")
    return name if payload(name, len(padding)) == data else repr(data[:80])


class Client(threading.Thread):
    """Client that works until it is stopped.

    Args:
        name: name in the history, unique.
        recorder: receives its events.
        connect: opens a connection to any node.
        seed: of its choices.
        rest_s: pause after each step, so that the machine is not the bottleneck.
    """

    def __init__(self, name: str, recorder: Recorder, connect: Connect, seed: int, rest_s: float = 0.03) -> None:
        super().__init__(daemon=True, name=name)
        self.rng = random.Random(f"{seed} {name}")
        self.recorder = recorder
        self.failure: BaseException | None = None
        self.steps = 0
        """Steps that were answered."""
        self._connect = connect
        self._rest_s = rest_s
        self._stopped = threading.Event()

    def run(self) -> None:
        """Work until `stop`."""
        try:
            while not self._stopped.is_set():
                try:
                    with self._connect() as wire:
                        self.begin(wire)
                        while not self._stopped.is_set():
                            self.step(wire)
                            self.steps += 1
                            self._stopped.wait(self._rest_s)
                except (OSError, Closed, WireTimeout):
                    self._stopped.wait(PAUSE_S)
        except BaseException as error:  # raised again by the campaign, in its own thread
            self.failure = error

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopped.set()

    def begin(self, wire: Wire) -> None:
        """Prepare a new connection."""

    def step(self, wire: Wire) -> None:
        """Do one operation."""
        raise NotImplementedError

    def pause(self) -> None:
        """Wait a little before something that failed is tried again."""
        self._stopped.wait(PAUSE_S)

    def record(self, kind: Kind, began: int, outcome: Outcome, **fields: Any) -> None:
        """Record an operation that ends now; one with an unknown outcome has no end."""
        self.recorder.add(Event(self.name, kind, began, 0 if outcome == "unknown" else now(), outcome, **fields))


# ---- publishers


class Publisher(Client):
    """Publishes one message at a time, and each again with the same message id until it is acked."""

    stream, subjects = EVENTS, "events"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._next = 1

    @property
    def subject(self) -> str:
        """Return the client's own subject."""
        return f"{self.subjects}.{self.name}"

    def step(self, wire: Wire) -> None:
        """Publish a message, or the same one again."""
        value = f"{self.name}-{self._next}"
        if self.attempt(wire, value, {"Nats-Msg-Id": value})[0] == "ok":
            self._next += 1
        else:
            self.pause()

    def attempt(self, wire: Wire, value: str, headers: Headers, expected: int = -1) -> tuple[Outcome, int]:
        """Publish once; record and return the outcome, and the sequence if it was acked."""
        fields = {"stream": self.stream, "subject": self.subject, "value": value, "expected": expected}
        began = now()
        try:
            answer = wire.request(self.subject, payload(value, self.rng.choice((0, 20, 200, 2000))), headers)
        except BaseException:
            self.record("publish", began, "unknown", **fields)
            raise
        outcome, seq, text = told(answer)
        self.record("publish", began, outcome, seq=seq, text=text, **fields)
        return outcome, seq


def told(answer: Frame) -> tuple[Outcome, int, str]:
    """Return the outcome of a publish, its sequence and its error.

    No responders, and a wrong last sequence, mean that the message is not stored. After any other error it may be.
    """
    if answer.status == NO_RESPONDERS:
        return "refused", 0, "no responders"
    fields: dict[str, Any] = answer.json()
    if "error" not in fields:
        return "ok", fields["seq"], "duplicate" if fields.get("duplicate") else ""
    error = fields["error"]
    return ("refused" if error.get("err_code") in WRONG_LAST else "unknown"), 0, str(error)


class JobPublisher(Publisher):
    """Publishes jobs."""

    stream, subjects = JOBS, "jobs"


class NewsPublisher(Publisher):
    """Publishes for several consumers that all have to ack."""

    stream, subjects = NEWS, "news"


class OtherPublisher(Publisher):
    """Publishes in the second account, on a subject that the first one has too."""

    stream = OTHER


class AlonePublisher(Publisher):
    """Publishes to a stream with one replica."""

    stream, subjects = ALONE, "alone"


class MemoryPublisher(Publisher):
    """Publishes to a stream in memory."""

    stream, subjects = MEMORY, "memory"


class FleetingPublisher(Publisher):
    """Publishes to a stream in memory with one replica."""

    stream, subjects = FLEETING, "fleeting"


class Chained(Publisher):
    """Publishes without message ids; each message expects the last sequence of the client's subject.

    After an unknown outcome it reads the subject at the stream's leader, and goes on from there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._last: int | None = 0

    def step(self, wire: Wire) -> None:
        """Publish the next message, or find out the last one."""
        if self._last is None:
            found = leader_get(self, wire, self.subject, self.stream)
            if found is None:
                self.pause()
                return
            self._last = found
        value, self._next = f"{self.name}-{self._next}", self._next + 1
        expected, self._last = self._last, None
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        outcome, seq = self.attempt(wire, value, headers, expected)
        if outcome == "ok":
            self._last = seq


class Pipelined(Publisher):
    """Publishes many messages before it reads their acks; publishes again what was not acked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open: list[str] = []

    def step(self, wire: Wire) -> None:
        """Publish a window of messages, and read the acks."""
        while len(self._open) < 16:
            self._open.append(f"{self.name}-{self._next}")
            self._next += 1
        wire.new_reply()
        waiting = {f"{wire.inbox}.{value}": value for value in self._open}
        began = now()
        frames = [
            pub(self.subject, payload(value, 100), reply, {"Nats-Msg-Id": value}) for reply, value in waiting.items()
        ]
        fields = {"stream": self.stream, "subject": self.subject}
        try:
            wire.send(b"".join(frames))
            while waiting:
                answer = wire.next(lambda frame: frame.subject in waiting)
                value = waiting.pop(answer.subject)
                outcome, seq, text = told(answer)
                self.record("publish", began, outcome, value=value, seq=seq, text=text, **fields)
                if outcome == "ok":
                    self._open.remove(value)
        finally:
            for value in waiting.values():
                self.record("publish", began, "unknown", value=value, **fields)
        if self._open:
            self.pause()


class Batched(Publisher):
    """Publishes atomic batches, each once."""

    def step(self, wire: Wire) -> None:
        """Publish a batch."""
        name, self._next = f"{self.name}-{self._next}", self._next + 1
        values = tuple(f"{name}.{number}" for number in range(1, self.rng.choice((1, 2, 5, 20)) + 1))
        reply = wire.new_reply()
        frames = []
        for number, value in enumerate(values, 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            if number == len(values):
                headers["Nats-Batch-Commit"] = "1"
            frames.append(pub(self.subject, payload(value, 50), reply if number == len(values) else "", headers))
        fields = {"stream": self.stream, "subject": self.subject, "values": values}
        began = now()
        try:
            wire.send(b"".join(frames))
            answer = wire.message(reply)
        except BaseException:
            self.record("batch", began, "unknown", **fields)
            raise
        outcome, seq, text = told(answer)
        self.record("batch", began, outcome, seq=seq, text=text, **fields)


# ---- readers


def leader_get(client: Client, wire: Wire, subject: str, stream: str) -> int | None:
    """Return the sequence of a subject's last message from the stream's leader, 0 for none; None without an answer."""
    began = now()
    answer = wire.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    if "message" in answer:
        message = answer["message"]
        value = value_of(base64.b64decode(message.get("data", "")))
        client.record("get", began, "ok", stream=stream, subject=subject, value=value, seq=message["seq"])
        return int(message["seq"])
    if answer.get("error", {}).get("err_code") == NO_MESSAGE:
        client.record("get", began, "ok", stream=stream, subject=subject)
        return 0
    return None


class Reader(Client):
    """Reads single messages, of the stream's leader and of any replica, and batches."""

    def __init__(self, *args: Any, subjects: Sequence[str], stream: str = EVENTS, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stream = stream
        self._subjects = subjects
        self._last = 1

    def step(self, wire: Wire) -> None:
        """Read something."""
        subject = self.rng.choice(self._subjects)
        drawn = self.rng.random()
        if drawn < 0.4:
            leader_get(self, wire, subject, self._stream)
        elif drawn < 0.6:
            self._direct(wire, f".{subject}", b"")
        elif drawn < 0.8:
            self._direct(wire, "", b'{"seq":%d}' % self.rng.randint(1, self._last))
        elif drawn < 0.9:
            self._direct(wire, "", json.dumps({"multi_last": list(self._subjects)}).encode(), many=True)
        else:
            body = {"seq": self.rng.randint(1, self._last), "batch": 20}
            self._direct(wire, "", json.dumps(body).encode(), many=True)

    def _direct(self, wire: Wire, subject: str, body: bytes, many: bool = False) -> None:
        began = now()
        reply = wire.new_reply()
        wire.publish(f"$JS.API.DIRECT.GET.{self._stream}{subject}", body, reply)
        while not (frame := wire.message(reply)).status:
            fields = frame.headers
            seq = int(fields["Nats-Sequence"])
            self._last = max(self._last, seq)
            value = value_of(frame.data)
            self.record(
                "direct", began, "ok", stream=self._stream, subject=fields["Nats-Subject"], value=value, seq=seq
            )
            if not many:
                return


class Consumer(Client):
    """Receives through a consumer of `EVENTS` or `JOBS`.

    Args:
        consumer: its name.
    """

    stream = EVENTS

    def __init__(self, *args: Any, consumer: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.consumer = consumer
        self.seen: set[int] = set()

    def take(self, frame: Frame) -> int:
        """Record a delivery; return its sequence."""
        tokens = frame.reply.split(".")
        seq, count = int(tokens[5]), int(tokens[4])
        self.seen.add(seq)
        fields = {"stream": self.stream, "consumer": self.consumer, "subject": frame.subject}
        self.record("deliver", now(), "ok", value=value_of(frame.data), seq=seq, count=count, **fields)
        return seq

    def ack(self, wire: Wire, taken: Sequence[tuple[int, Frame]], every: int) -> None:
        """Ack deliveries, and wait for the confirmation of each whose sequence is a multiple of `every`."""
        wire.new_reply()
        fields = {"stream": self.stream, "consumer": self.consumer}
        waiting: dict[str, tuple[int, int]] = {}
        sent = []
        for seq, frame in taken:
            reply = ""
            if seq % every == 0:
                reply = f"{wire.inbox}.{frame.reply.removeprefix('$JS.ACK.').replace('.', '-')}"
                waiting[reply] = seq, now()
            sent.append(pub(frame.reply, b"+ACK", reply))
        try:
            wire.send(b"".join(sent))
            while waiting:
                answer = wire.next(lambda frame: frame.subject in waiting)
                seq, began = waiting.pop(answer.subject)
                self.record("ack", began, "unknown" if answer.status else "ok", seq=seq, **fields)
        finally:
            for seq, began in waiting.values():
                self.record("ack", began, "unknown", seq=seq, **fields)

    def pull(self, wire: Wire, batch: int) -> Iterator[tuple[int, Frame]]:
        """Yield sequence and frame of each delivery to a pull request that expires after half a second."""
        reply = wire.new_reply()
        body = json.dumps({"batch": batch, "expires": SECOND // 2}).encode()
        wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}", body, reply)
        for _ in range(batch):
            frame = wire.next(lambda frame: frame.reply.startswith("$JS.ACK.") or frame.subject == reply)
            if frame.status:
                if frame.status == NO_RESPONDERS:
                    self.pause()
                return
            yield self.take(frame), frame


class Puller(Consumer):
    """Pulls from a durable consumer and acks everything, a part with confirmation."""

    def step(self, wire: Wire) -> None:
        """Pull, and ack."""
        self.ack(wire, list(self.pull(wire, 50)), CONFIRM_EVERY)


class OtherPuller(Puller):
    """Pulls from the stream of the second account."""

    stream = OTHER


class AlonePuller(Puller):
    """Pulls from the stream with one replica."""

    stream = ALONE


class MemoryPuller(Puller):
    """Pulls from the stream in memory."""

    stream = MEMORY


class NewsReader(Consumer):
    """Takes news and acks each with confirmation; drops some, which come again."""

    stream = NEWS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dropped = DROPPED

    def step(self, wire: Wire) -> None:
        """Take some news, and ack them."""
        taken = list(self.pull(wire, 10))
        self.ack(wire, [each for each in taken if self.rng.random() >= self.dropped], 1)


class Pushed(Consumer):
    """Receives from a durable push consumer and acks everything, a part with confirmation."""

    def begin(self, wire: Wire) -> None:
        """Subscribe to the deliver subject."""
        self._sid = wire.subscribe(f"to.{self.consumer}")

    def step(self, wire: Wire) -> None:
        """Take what has come."""
        frames = [frame for frame in wire.ping() if frame.sid == self._sid and frame.reply.startswith("$JS.ACK.")]
        self.ack(wire, [(self.take(frame), frame) for frame in frames], CONFIRM_EVERY)


class Ordered(Consumer):
    """Ordered consumer as clients make it: without acks, made anew behind the last message whenever one is missing."""

    def begin(self, wire: Wire) -> None:
        """Create the consumer behind the last message that came."""
        last = max(self.seen, default=0)
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": last + 1,
            "ack_policy": "none",
            "deliver_subject": f"to.{self.consumer}.{self.rng.randrange(1 << 40):x}",
            "idle_heartbeat": SECOND,
            "inactive_threshold": 5 * SECOND,
            "mem_storage": True,
            "num_replicas": 1,
        }
        self._sid = wire.subscribe(str(config["deliver_subject"]))
        answer = wire.api(f"CONSUMER.CREATE.{EVENTS}", {"stream_name": EVENTS, "config": config})
        if "error" in answer:
            raise Closed(str(answer))
        self._position = 0

    def step(self, wire: Wire) -> None:
        """Take the next message; a gap, or silence without a heartbeat, is a reason to begin again."""
        frame = wire.delivered(self._sid, 3.0)
        if frame.status:
            if int(frame.headers.get("Nats-Last-Consumer", self._position)) != self._position:
                raise Closed("a message is missing")
            return
        position = int(frame.reply.split(".")[6])
        if position != self._position + 1:
            raise Closed("a message is missing")
        self._position = position
        self.take(frame)


class Worker(Consumer):
    """Takes jobs from the work queue and acks them with confirmation; drops some, which come again."""

    stream = JOBS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dropped = DROPPED

    def step(self, wire: Wire) -> None:
        """Take some jobs, and do them."""
        taken = list(self.pull(wire, 5))
        self.ack(wire, [each for each in taken if self.rng.random() >= self.dropped], 1)


# ---- objects


def entry_subject(name: str) -> str:
    """Return the subject of an object's entry, which has its size, digest and the id of its chunks."""
    return f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def chunk_subject(nuid: str) -> str:
    """Return the subject of an object's chunks."""
    return f"$O.{BUCKET}.C.{nuid}"


def object_of(entry: dict[str, Any], chunks: Sequence[bytes]) -> str:
    """Return the value of an object; a text that nobody published if it is not whole."""
    data = b"".join(chunks)
    digest = f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}"
    if (len(chunks), len(data), digest) != (entry["chunks"], entry["size"], entry["digest"]):
        return f"incomplete {entry['nuid']}: {len(chunks)} of {entry['chunks']} chunks, {len(data)} bytes"
    return str(entry["nuid"])


class ObjectWriter(Client):
    """Puts one object again and again, as client libraries do: its chunks, then its entry in the place of the last one.

    Then the chunks of the entry before are purged. Those of an entry without an answer stay, as it may still come.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._next = 1
        self._last = ""

    def step(self, wire: Wire) -> None:
        """Put the object."""
        nuid, self._next = f"{self.name}-{self._next}", self._next + 1
        count = self.rng.choice(CHUNKS)
        chunks = [payload(f"{nuid}.{number}", CHUNK) for number in range(count)]
        for chunk in chunks:
            if told(wire.request(chunk_subject(nuid), chunk))[0] != "ok":
                self.pause()
                return
        data = b"".join(chunks)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        entry = {"name": self.name, "bucket": BUCKET, "nuid": nuid, "size": len(data), "chunks": count}
        body = json.dumps(entry | {"digest": f"SHA-256={digest}"}).encode()
        fields = {"stream": OBJECTS, "subject": self.name, "value": nuid}
        began = now()
        try:
            answer = wire.request(entry_subject(self.name), body, {"Nats-Rollup": "sub"})
        except BaseException:
            self.record("put", began, "unknown", **fields)
            raise
        outcome, seq, text = told(answer)
        self.record("put", began, outcome, seq=seq, text=text, **fields)
        if outcome != "ok":
            self.pause()
            return
        before, self._last = self._last, nuid
        if before:
            wire.api(f"STREAM.PURGE.{OBJECTS}", {"filter": chunk_subject(before)})


class ObjectReader(Client):
    """Reads objects at the stream's leader: the entry, then its chunks."""

    def __init__(self, *args: Any, objects: Sequence[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._objects = objects

    def step(self, wire: Wire) -> None:
        """Read an object; once more if it was replaced meanwhile."""
        name = self.rng.choice(self._objects)
        while True:
            began = now()
            found = self._get(wire, {"last_by_subj": entry_subject(name)})
            if found is None:
                self.record("read", began, "ok", stream=OBJECTS, subject=name)
                return
            seq, data = found
            entry = json.loads(data)
            value = object_of(entry, list(self._chunks(wire, entry["nuid"])))
            if value == entry["nuid"] or self._get(wire, {"last_by_subj": entry_subject(name)}) == found:
                self.record("read", began, "ok", stream=OBJECTS, subject=name, value=value, seq=seq)
                return

    def _chunks(self, wire: Wire, nuid: str) -> Iterator[bytes]:
        seq = 0
        while found := self._get(wire, {"seq": seq + 1, "next_by_subj": chunk_subject(nuid)}):
            seq, data = found
            yield data

    def _get(self, wire: Wire, body: dict[str, Any]) -> tuple[int, bytes] | None:
        """Return sequence and payload of a message; None if there is none."""
        answer = wire.api(f"STREAM.MSG.GET.{OBJECTS}", body)
        if answer.get("error", {}).get("err_code") == NO_MESSAGE:
            return None
        if "message" not in answer:
            self.pause()
            raise Closed(str(answer))
        message = answer["message"]
        return message["seq"], base64.b64decode(message.get("data", ""))


class Elections(Client):
    """Records elections of leaders, which servers announce."""

    def begin(self, wire: Wire) -> None:
        """Subscribe to the advisories."""
        self._sid = wire.subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.>")

    def step(self, wire: Wire) -> None:
        """Take what was announced."""
        for frame in wire.ping():
            if frame.sid == self._sid:
                fields = frame.json()
                self.record("leader", now(), "ok", stream=fields["stream"], text=str(fields.get("leader")))


CONSUMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "pulled": (EVENTS, {"ack_wait": 3 * SECOND, "max_ack_pending": 10_000}),
    "pushed": (EVENTS, {"ack_wait": 3 * SECOND, "max_ack_pending": 300, "deliver_subject": "to.pushed"}),
    "workers": (JOBS, {"ack_wait": ACK_WAIT_NS, "max_ack_pending": 1000}),
    "alone": (ALONE, {"ack_wait": 3 * SECOND, "max_ack_pending": 10_000}),
    "memory": (MEMORY, {"ack_wait": 3 * SECOND, "max_ack_pending": 10_000}),
}
"""Durable consumers: stream and configuration."""
OTHER_CONSUMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "others": (OTHER, {"ack_wait": 3 * SECOND, "max_ack_pending": 10_000}),
    "news1": (NEWS, {"ack_wait": ACK_WAIT_NS, "max_ack_pending": 1000}),
    "news2": (NEWS, {"ack_wait": ACK_WAIT_NS, "max_ack_pending": 1000}),
}
"""Those of the second account."""
