"""History of a run: the operations of all clients, the faults, and the state at the end, as events in JSON lines.

Belongs here: the event, the recorder that all clients share, and the index over a history that the checkers use. The
clients are in clients.py, the promises in checks.py.
"""

from __future__ import annotations

import lzma
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

EVENTS = "EVENTS"
"""Stream that keeps all messages; its subjects are `events.<client>`."""
MIRROR, TOTAL = "MIRROR", "TOTAL"
"""A mirror of `EVENTS`, and a stream that has it as its source."""
JOBS = "JOBS"
"""Work queue."""
KEYS = "KV_linear"
"""Bucket of keys, which keeps all revisions."""
OTHER = "OTHER"
"""Stream of a second account, with the subjects of `EVENTS`."""
NEWS = "NEWS"
"""Stream of the second account that keeps a message until every consumer has acked it."""
ALONE = "ALONE"
"""Stream with one replica."""
MEMORY, FLEETING = "MEMORY", "FLEETING"
"""Streams in memory, with three replicas and with one."""
OBJECTS = "OBJ_objects"
"""Bucket of objects: `put` and `read` are of whole objects, each with its chunks."""
LIMITS = (EVENTS, OTHER, ALONE, MEMORY, FLEETING)
"""Streams that keep all messages."""

Kind = Literal[
    "publish", "batch", "get", "direct", "deliver", "ack", "put", "read", "stored", "row", "fault", "leader",
    "stream", "consumer",
]  # fmt: skip
Outcome = Literal["ok", "refused", "unknown"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a client from its call to its answer, one message of the final state, or one fault.

    Attributes:
        client: name of the client; of a stored message the node, of a fault "nemesis".
        kind: `publish` and `batch` (of messages); `get` (the last message of a subject, at the stream's leader) and
            `direct` (a direct get); `deliver` and `ack` (of a consumer; an ack is confirmed if its outcome is ok);
            `put` and `read` of a key or an object; at the end `stored` (a message in a node's replica) and `row` (of
            the table); `fault`, and `leader` (a leader was elected); at the beginning `stream` and `consumer`.
        began, ended: monotonic clock in ns at the call and at the answer; `ended` is 0 without an answer.
        outcome: `unknown`: the operation may have had its effect or not, also later.
        value: identity of the message, unique in the history; "" for none.
        seq: sequence that was given, read or named; 0 for none.
        expected: last sequence of the subject that a write expected; -1 for any.
        values: of a batch, its members in their order.
        consumer: name of the consumer; "" for none.
        count: of a delivery, its number of deliveries.
        text: of a fault its step, of a refusal its error, of a stream its retention ("" for a copy, "objects" for a
            bucket of objects), of a consumer its ack policy.
    """

    client: str
    kind: Kind
    began: int
    ended: int = 0
    outcome: Outcome = "ok"
    stream: str = ""
    subject: str = ""
    value: str = ""
    seq: int = 0
    expected: int = -1
    values: tuple[str, ...] = ()
    consumer: str = ""
    count: int = 0
    text: str = ""


class Recorder:
    """Collects the events of all clients; writes each one as a line of JSON to `path`, if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._file = None if path is None else path.open("wb")

    def add(self, event: Event) -> None:
        """Add an event that is complete: answered, or given up."""
        with self._lock:
            self.events.append(event)
            if self._file is not None:
                self._file.write(self._encoder.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def now() -> int:
    """Return the monotonic clock in ns."""
    return time.monotonic_ns()


def load(path: Path) -> list[Event]:
    """Return the events of a file of JSON lines, which may be compressed (.xz)."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        decoder = msgspec.json.Decoder(Event)
        return [decoder.decode(line) for line in file]


def save(path: Path, events: Iterable[Event]) -> None:
    """Write events to a file that `load` reads."""
    with lzma.open(path, "wb", preset=9) if path.suffix == ".xz" else path.open("wb") as file:
        encoder = msgspec.json.Encoder()
        file.writelines(encoder.encode(event) + b"\n" for event in events)


class History:
    """Index over the events of a run."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event.began)
        self._by_kind: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            self._by_kind[event.kind].append(event)
        self.stored: dict[str, dict[str, dict[int, Event]]] = defaultdict(lambda: defaultdict(dict))
        """Stream → node → sequence → message, at the end."""
        for event in self._by_kind["stored"]:
            self.stored[event.stream][event.client][event.seq] = event

    def of(self, *kinds: Kind, stream: str = "") -> list[Event]:
        """Return the events of these kinds in the order of their calls; with `stream`, its own."""
        found = [event for kind in kinds for event in self._by_kind[kind] if stream in ("", event.stream)]
        return sorted(found, key=lambda event: event.began) if len(kinds) > 1 else found

    def content(self, stream: str) -> dict[int, Event]:
        """Return the messages of a stream at the end, in any replica: first those of one, then what others add."""
        found: dict[int, Event] = {}
        for messages in self.stored[stream].values():
            for seq, event in messages.items():
                found.setdefault(seq, event)
        return found

    def disturbed(self, since: int, until: int, grace: int) -> bool:
        """Return True if there was a fault or an election between two moments, or ended up to `grace` ns before."""
        return any(
            event.began <= until and (event.ended or until) + grace >= since for event in self.of("fault", "leader")
        )

    def around(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield what concerns the same messages as these events, and the faults since the first of them."""
        if not events:
            return
        keys = {(event.stream, event.seq) for event in events if event.seq}
        values = {event.value for event in events if event.value} | {each for event in events for each in event.values}
        first, last = min(event.began for event in events), max(max(event.began, event.ended) for event in events)
        for event in self.events:
            if event.kind in ("fault", "leader"):
                wanted = event.began <= last and (event.ended or last) >= first - 5 * 10**9
            else:
                wanted = (
                    (event.stream, event.seq) in keys or event.value in values or not values.isdisjoint(event.values)
                )
            if wanted:
                yield event
