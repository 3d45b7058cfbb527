"""Expected contents of mirrors and of streams with sources.

Belongs here: messages as a consumer sees them, byte for byte; the history of an origin stream, from what was published
to it and read from it; and the checks of a mirror and of a stream with sources against that history. The tests decide
which failures happen in between.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.wire import Wire

Write = tuple[bytes, bytes, bytes]
"""Subject, header block and data of a message as it was published."""

EMPTY = b"NATS/1.0\r\n\r\n"
NOBODY = "nobody there"

_consumers = itertools.count(1)
_SOURCE = b"Nats-Stream-Source"


class Message(NamedTuple):
    """A stored message."""

    subject: bytes
    time_ns: int
    header: bytes
    data: bytes


def read(wire: Wire, stream: str, first: int = 1) -> dict[int, Message]:
    """Return the messages of a stream by sequence, from `first` on, as read through a consumer."""
    name, inbox = f"READ{next(_consumers)}", f"_INBOX.read{next(_consumers)}"
    sid = wire.subscribe(inbox)
    config = {
        "name": name,
        "deliver_subject": inbox,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(first, 1),
        "ack_policy": "none",
        "mem_storage": True,
        "inactive_threshold": 60_000_000_000,
        "num_replicas": 1,
    }
    answer = wire.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    if "error" in answer or "num_pending" not in answer:
        raise ValueError(answer)  # there is no such stream yet: the caller tries again
    found: dict[int, Message] = {}
    left = answer["num_pending"]
    while left:
        frame = wire.delivered(sid)
        *_, seq, _, time_ns, pending = frame.reply.split(".")
        found[int(seq)] = Message(frame.subject.encode(), int(time_ns), frame.header, frame.data)
        left = int(pending)
    wire.unsubscribe(sid)
    wire.api(f"CONSUMER.DELETE.{stream}.{name}")
    return found


def stripped(header: bytes) -> bytes:
    """Return a header block as a copy stores it: without the headers that gave instructions to the origin."""
    lines = header.split(b"\r\n")
    left = [line for line in lines if not line.startswith((b"Nats-Expected-", b"Nats-Batch-"))]
    return header if left == lines else b"\r\n".join(left).removeprefix(EMPTY)


class Origin:
    """Origin stream: its history and its present contents. Each message's data is unique.

    `queue`: True for a work queue, whose messages are removed only after they have been copied.
    """

    def __init__(self, stream: str, *, queue: bool = False) -> None:
        self.stream, self.queue = stream, queue
        self.written: dict[bytes, Write] = {}
        """Published messages by their data, acked or not."""
        self.acked: dict[int, bytes] = {}
        """Data of acked messages by sequence."""
        self.history: dict[int, Message] = {}
        """All messages ever read from the stream, by sequence."""
        self.live: set[int] = set()
        """Sequences that were present at the last read."""

    def publishes(self, subject: bytes, header: bytes, data: bytes) -> None:
        """Record a message that is about to be published."""
        self.written[data] = (subject, header, data)

    def look(self, wire: Wire) -> None:
        """Read all messages that the stream has now."""
        found = read(wire, self.stream)
        for seq, message in found.items():
            assert self.history.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"
            assert self.written[message.data] == (message.subject, message.header, message.data)
            assert self.acked.get(seq, message.data) == message.data
        self.live = set(found)

    def has_been(self, seq: int, message: Message, *, whole: bool = False) -> bool:
        """Return True if this stream has held the message at this sequence.

        `message`: as a copy stores it, without the headers that name its origin. `whole`: the copy keeps the header
        blocks of this stream unchanged.
        """
        known = self.history.get(seq)
        if known is not None:
            return message == (known if whole else known._replace(header=stripped(known.header)))
        # A limit may have removed it before it was read.
        write = self.written.get(message.data)
        if write is None or self.acked.get(seq, message.data) != message.data:
            return False
        return (write[0], write[1] if whole else stripped(write[1])) == (message.subject, message.header)


class Mirror:
    """Mirror of one origin.

    Args:
        wanted: returns True for a subject that the mirror's filters match.
        renamed: applies the mirror's subject transform.
        clone: the mirror may begin as a clone of its origin's table, which keeps header blocks unchanged.
    """

    def __init__(
        self,
        stream: str,
        origin: Origin,
        wanted: Callable[[bytes], bool] = lambda subject: True,
        renamed: Callable[[bytes], bytes] = lambda subject: subject,
        *,
        clone: bool = False,
    ) -> None:
        self.stream, self.origin, self._clone = stream, origin, clone
        self._wanted, self._renamed = wanted, renamed
        self.seen: dict[int, Message] = {}
        """Messages read from the mirror, by sequence."""
        self.never: set[int] = set()
        """Sequences that the origin had already removed when the mirror was created."""

    def anew(self) -> None:
        """Forget the mirror's contents: it was deleted and is about to be created again.

        Call right after `Origin.look`.
        """
        self.seen = {}
        self.never = (self.origin.history.keys() | self.origin.acked.keys()) - self.origin.live

    def look(self, wire: Wire) -> None:
        """Read the mirror's new messages; assert that those read before are still there."""
        self._take(read(wire, self.stream, max(self.seen, default=0) + 1))

    def _take(self, found: dict[int, Message]) -> None:
        for seq, message in found.items():
            assert self.seen.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"

    def missing(self) -> set[int]:
        """Return the sequences that the origin has and the mirror lacks."""
        history = self.origin.history
        return {seq for seq in self.origin.live if self._wanted(history[seq].subject)} - set(self.seen)

    def check(self, wire: Wire) -> None:
        """Assert that the mirror's contents agree with all that was ever read from it and from its origin."""
        found = read(wire, self.stream)
        assert found.keys() >= self.seen.keys(), f"{self.stream}: gone are {sorted(self.seen.keys() - found.keys())}"
        self._take(found)
        assert not self.missing(), f"{self.stream}: missing are {sorted(self.missing())}"
        assert not self.never & found.keys(), f"{self.stream}: came back are {sorted(self.never & found.keys())}"
        back = {self._renamed(subject): subject for subject, _, _ in self.origin.written.values()}
        for seq, message in found.items():
            assert message.subject in back, f"{self.stream}: {seq} has the subject {message.subject!r}"
            there = message._replace(subject=back[message.subject])
            assert self._wanted(there.subject), f"{self.stream}: nobody wanted {seq}, {message}"
            was = self.origin.has_been(seq, there) or (self._clone and self.origin.has_been(seq, there, whole=True))
            assert was, f"{self.stream}: {seq} is {message}, was {_was(self.origin, seq)}"


class Sources:
    """Stream with sources and messages of its own.

    `wanted`: returns True for a subject that is sourced, for each origin.
    """

    def __init__(self, stream: str, origins: dict[str, tuple[Origin, Callable[[bytes], bool]]]) -> None:
        self.stream, self._origins = stream, origins
        self.own = Origin(stream)
        self.seen: dict[int, Message] = {}

    def look(self, wire: Wire) -> None:
        """Read the stream's new messages; assert that those read before are still there."""
        self._take(read(wire, self.stream, max(self.seen, default=0) + 1))

    def _take(self, found: dict[int, Message]) -> None:
        for seq, message in found.items():
            assert self.seen.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"

    def missing(self) -> set[tuple[str, int]]:
        """Return (origin, sequence) of messages that origins have, or acked, and this stream lacks."""
        came = {(parts[0], int(parts[1])) for _, parts in map(_sourced, self.seen.values()) if parts}
        due: set[tuple[str, int]] = set()
        for name, (origin, wanted) in self._origins.items():
            due |= {(name, seq) for seq in origin.live if wanted(origin.history[seq].subject)}
            if origin.queue:
                due |= {(name, seq) for seq in origin.acked}
        return due - came

    def check(self, wire: Wire) -> None:
        """Assert that the stream has every message once, in the order of its origin, and nothing else."""
        found = read(wire, self.stream)
        assert found.keys() >= self.seen.keys(), f"{self.stream}: gone are {sorted(self.seen.keys() - found.keys())}"
        self._take(found)
        assert not self.missing(), f"{self.stream}: missing are {sorted(self.missing())}"
        last: dict[str, int] = {}
        own = set()
        for seq, message in sorted(found.items()):
            header, parts = _sourced(message)
            if not parts:
                assert self.own.written[message.data] == (message.subject, message.header, message.data)
                assert message.data not in own, f"{self.stream}: {seq} is there twice"
                own.add(message.data)
                continue
            name, there, subject = parts[0], int(parts[1]), parts[4].encode()
            assert there > last.get(name, 0), f"{self.stream}: {seq} is {name} {there}, after {last.get(name)}"
            last[name] = there
            origin, wanted = self._origins[name]
            assert subject == message.subject, f"{self.stream}: {seq} is {message}"
            assert wanted(subject), f"{self.stream}: nobody wanted {seq}, {message}"
            known = origin.history.get(there)  # a sourced message has a time of its own
            as_there = message._replace(header=header, time_ns=known.time_ns if known else 0)
            # An empty header block and none become the same.
            was = origin.has_been(there, as_there) or (header == EMPTY and origin.has_been(there, _bare(as_there)))
            assert was, f"{self.stream}: {seq} is {message}, was {_was(origin, there)}"
        assert set(self.own.acked.values()) <= own, f"{self.stream}: of its own some are gone"


def _sourced(message: Message) -> tuple[bytes, list[str]]:
    """Return the header block as it was in the origin, and the parts of Nats-Stream-Source.

    An own message has no parts.
    """
    lines = message.header.split(b"\r\n")
    told = [line for line in lines if line.startswith(_SOURCE)]
    if not told:
        return message.header, []
    (value,) = told
    header = b"\r\n".join([line for line in lines if not line.startswith(_SOURCE)])
    return header, value.partition(b":")[2].strip().decode().split(" ")


def _bare(message: Message) -> Message:
    return message._replace(header=b"")


def _was(origin: Origin, seq: int) -> object:
    known = origin.history.get(seq)
    return known if known is not None else origin.written.get(origin.acked.get(seq, b""))


def answered(data: bytes) -> tuple[int, str]:
    """Return the sequence and the error code of a pub ack; `NOBODY` is the error when there was no responder."""
    if not data:
        return 0, NOBODY
    answer: dict[str, Any] = json.loads(data)
    return answer.get("seq", 0), answer.get("error", {}).get("description", "")
