"""Messages on their way into the log.

Belongs here: what one event-loop turn gathers for one stream: the encoded records and, beside them in columns, what
is needed to apply and acknowledge them once they are committed. A batch becomes one MESSAGES frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import msgspec

from lakestream.log.format.record import encode_record

MAX_BATCH_BYTES = 8 << 20
"""A batch that reaches this size (8 MiB) is closed and another begun, so that no frame grows without bound."""


After = Callable[[int, int], None]
"""(seq, time_ns) of a message that is committed and applied; called on the node that took it, before the pub acks."""


class Effect(msgspec.Struct, gc=False):
    """What a stored message does beyond being stored. Read from its record at publish and again at recovery."""

    seq: int
    time_ns: int = 0
    """When the message was stored."""
    subject: bytes = b""
    msg_id: bytes = b""
    rollup: bytes = b""
    """`b"sub"`, `b"all"` or `b""`."""
    ttl_ns: int = 0
    """> 0: lifetime; -1: never expires; 0: the stream's max_age alone decides."""
    schedule: bytes = b""
    """The header block, if it means something to the stream's schedules."""
    source: bytes = b""
    """Where it came from, if that is another stream: the value of `Nats-Stream-Source`."""

    @property
    def acts(self) -> bool:
        """Whether something is to be done when the message is stored; its message id is known before."""
        return bool(self.rollup or self.ttl_ns or self.schedule or self.source)


class Batch:
    """Consecutive messages of one stream, gathered for one frame."""

    __slots__ = (
        "_counted",
        "_counts",
        "_last",
        "after",
        "effects",
        "first_seq",
        "last_time",
        "late",
        "lengths",
        "records",
        "replies",
        "size",
        "subjects",
        "tails",
        "whole",
    )

    def __init__(self, first_seq: int, whole: bool = False) -> None:
        self.first_seq = first_seq
        self.whole = whole
        """All of it or nothing: it is never split, and takes no messages but its own."""
        self.last_time = 0
        self.size = 0
        self.records: list[bytes] = []
        self.subjects: list[bytes] = []
        self.lengths: list[int] = []
        self.replies: list[bytes] = []
        self.effects: list[Effect] = []
        self.late: list[tuple[bytes, bytes]] = []
        """Answers that may only leave once this batch is on disk: duplicates of messages in it."""
        self.tails: dict[int, bytes] = {}
        """What follows the sequence in the pub ack of some messages, by sequence."""
        self.after: list[tuple[int, int, After]] = []
        """(seq, time_ns, whom to call once the batch is committed and applied)."""
        self._last: dict[bytes, int] = {}
        self._counts: Counter[bytes] | None = None
        self._counted = 0

    def __len__(self) -> int:
        return len(self.records)

    def add(self, seq: int, time_ns: int, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Append a message and return its record length in bytes."""
        record = encode_record(seq, time_ns, subject, header, payload)
        length = len(record)
        self.records.append(record)
        self.subjects.append(subject)
        self.lengths.append(length)
        self.replies.append(reply)
        self.last_time = time_ns
        self.size += length
        return length

    def extend(
        self, seq: int, times: list[int], subjects: list[bytes], headers: list[bytes], payloads: list[bytes]
    ) -> int:
        """Append messages that nobody waits for, with sequences from `seq` on, and return their length in bytes."""
        rows = zip(count(seq), times, subjects, headers, payloads, strict=False)  # a count has no end
        records = [encode_record(*row) for row in rows]
        lengths = list(map(len, records))
        self.records += records
        self.subjects += subjects
        self.lengths += lengths
        self.replies += [b""] * len(records)
        self.last_time = times[-1]
        self.size += sum(lengths)
        return sum(lengths)

    def last(self, subject: bytes) -> int:
        """The last sequence of `subject` in this batch, 0 if it has none. Indexes what came since the last call."""
        index, subjects = self._last, self.subjects
        done = index.get(b"", 0)
        if done < len(subjects):
            first = self.first_seq
            for position in range(done, len(subjects)):
                index[subjects[position]] = first + position
            index[b""] = len(subjects)
        return index.get(subject, 0) if subject else 0

    def count(self, subject: bytes) -> int:
        """How many messages of `subject` are in this batch. Counts what came since the last call."""
        if self._counts is None:
            self._counts = Counter()
        if self._counted < len(self.subjects):
            self._counts.update(self.subjects[self._counted :])
            self._counted = len(self.subjects)
        return self._counts[subject]

    def subjects_seen(self) -> dict[bytes, int]:
        """Last sequence by subject of everything in the batch."""
        self.last(b"")
        return {subject: seq for subject, seq in self._last.items() if subject}
