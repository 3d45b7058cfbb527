"""What copies of a stream must hold, whatever happened meanwhile.

Belongs here: messages as a consumer sees them, byte for byte; the history of an origin, by what was published and what
was read of it; the rules of a mirror and of a stream with sources, checked against that. What happens meanwhile is the
tests' business.
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
    """The messages of a stream from sequence `first` on, as a consumer of it gets them."""
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
        raise ValueError(answer)  # not there, or not yet: whoever asks tries again
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
    """A header block as another stream keeps it: without what was asked of the first one."""
    lines = header.split(b"\r\n")
    left = [line for line in lines if not line.startswith((b"Nats-Expected-", b"Nats-Batch-"))]
    return header if left == lines else b"\r\n".join(left).removeprefix(EMPTY)


class Origin:
    """A stream that is copied: its history, and what it has now. Each message's data is its own.

    `queue`: whether it is a work queue, whose messages go once they are copied, and for no other reason.
    """

    def __init__(self, stream: str, *, queue: bool = False) -> None:
        self.stream, self.queue = stream, queue
        self.written: dict[bytes, Write] = {}
        """What was published, acked or not, by its data."""
        self.acked: dict[int, bytes] = {}
        """Data by sequence."""
        self.history: dict[int, Message] = {}
        """All messages that were ever read of it."""
        self.live: set[int] = set()
        """Which of them were there when it was last read."""

    def publishes(self, subject: bytes, header: bytes, data: bytes) -> None:
        """A message is about to be published."""
        self.written[data] = (subject, header, data)

    def look(self, wire: Wire) -> None:
        """Read all that it has now."""
        found = read(wire, self.stream)
        for seq, message in found.items():
            assert self.history.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"
            assert self.written[message.data] == (message.subject, message.header, message.data)
            assert self.acked.get(seq, message.data) == message.data
        self.live = set(found)

    def has_been(self, seq: int, message: Message, *, whole: bool = False) -> bool:
        """Whether a message was one of this stream, at this sequence.

        `message`: as a copy has it, without what that one says of where it came from. `whole`: the copy has header
        blocks as they are here.
        """
        known = self.history.get(seq)
        if known is not None:
            return message == (known if whole else known._replace(header=stripped(known.header)))
        # A limit may have removed it before anybody read it.
        write = self.written.get(message.data)
        if write is None or self.acked.get(seq, message.data) != message.data:
            return False
        return (write[0], write[1] if whole else stripped(write[1])) == (message.subject, message.header)


class Mirror:
    """A mirror of one origin.

    Args:
        wanted: which of its messages, by subject.
        renamed: what becomes of a subject.
        clone: it may begin as a copy of its origin's table, in which header blocks are as they were there.
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
        """What was read of it."""
        self.never: set[int] = set()
        """What was gone from the origin before the mirror was made."""

    def anew(self) -> None:
        """It is deleted, and is about to be made again; the origin was looked at just now."""
        self.seen = {}
        self.never = (self.origin.history.keys() | self.origin.acked.keys()) - self.origin.live

    def look(self, wire: Wire) -> None:
        """Read what is new in it; what was read before has to stay."""
        self._take(read(wire, self.stream, max(self.seen, default=0) + 1))

    def _take(self, found: dict[int, Message]) -> None:
        for seq, message in found.items():
            assert self.seen.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"

    def missing(self) -> set[int]:
        """What the origin has and this does not."""
        history = self.origin.history
        return {seq for seq in self.origin.live if self._wanted(history[seq].subject)} - set(self.seen)

    def check(self, wire: Wire) -> None:
        """Whether it is the history of its origin, as far as that is told by what was ever seen of both."""
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
    """A stream with sources, and messages of its own. `wanted`: by subject, of each origin."""

    def __init__(self, stream: str, origins: dict[str, tuple[Origin, Callable[[bytes], bool]]]) -> None:
        self.stream, self._origins = stream, origins
        self.own = Origin(stream)
        self.seen: dict[int, Message] = {}

    def look(self, wire: Wire) -> None:
        """Read what is new in it; what was read before has to stay."""
        self._take(read(wire, self.stream, max(self.seen, default=0) + 1))

    def _take(self, found: dict[int, Message]) -> None:
        for seq, message in found.items():
            assert self.seen.setdefault(seq, message) == message, f"{self.stream}: {seq} is another message now"

    def missing(self) -> set[tuple[str, int]]:
        """What origins have, or were acked, and this does not."""
        came = {(parts[0], int(parts[1])) for _, parts in map(_sourced, self.seen.values()) if parts}
        due: set[tuple[str, int]] = set()
        for name, (origin, wanted) in self._origins.items():
            due |= {(name, seq) for seq in origin.live if wanted(origin.history[seq].subject)}
            if origin.queue:
                due |= {(name, seq) for seq in origin.acked}
        return due - came

    def check(self, wire: Wire) -> None:
        """Whether it has everything once, in its origin's order, and nothing else."""
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
            known = origin.history.get(there)  # its time here is its own
            as_there = message._replace(header=header, time_ns=known.time_ns if known else 0)
            # A header block with nothing in it, and none, become the same.
            was = origin.has_been(there, as_there) or (header == EMPTY and origin.has_been(there, _bare(as_there)))
            assert was, f"{self.stream}: {seq} is {message}, was {_was(origin, there)}"
        assert set(self.own.acked.values()) <= own, f"{self.stream}: of its own some are gone"


def _sourced(message: Message) -> tuple[bytes, list[str]]:
    """The header block as it was in its origin, and the parts of what it says of that; none for one of its own."""
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
    """Sequence and error of a pub ack; `NOBODY` where there was no stream to give one."""
    if not data:
        return 0, NOBODY
    answer: dict[str, Any] = json.loads(data)
    return answer.get("seq", 0), answer.get("error", {}).get("description", "")
