"""Messages on their way into the log.

Belongs here: the messages that one turn of the event loop gathers for one stream: encoded records and, beside them in
columns, what applying and acknowledging them needs once they are committed. A batch becomes one MESSAGES frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import msgspec

from lakestream.log.format.record import encode_record, times_of
from lakestream.native import encode_run
from lakestream.protocol.publishes import Publishes
from lakestream.stream.core.effect import MARK, Effect

MAX_BATCH_BYTES = 1 << 20
"""A batch that reaches this size (1 MiB) is closed and another begun: it is applied in one go."""

MAX_BATCH_MSGS = 2048
"""The same, of its messages: with a limit by subject they take about 4 ms."""

STEP_NS = 100
"""Time between two messages that came together (100 ns): less than it takes to receive them."""

After = Callable[[int, int], None]
"""(seq, time_ns) of a message that is committed and applied; called on the node that took it, before the pub acks."""


class Batch:
    """Consecutive messages of one stream, gathered for one frame."""

    __slots__ = (
        "_counted",
        "_counts",
        "_last",
        "acked",
        "after",
        "effects",
        "first_seq",
        "last_time",
        "late",
        "lengths",
        "records",
        "replies",
        "runs",
        "size",
        "subjects",
        "tails",
        "whole",
        "wide_rollups",
    )

    def __init__(self, first_seq: int, whole: bool = False) -> None:
        self.first_seq = first_seq
        self.whole = whole
        """True if the batch is stored as a whole or not at all: it is never split, and takes no other messages."""
        self.last_time = 0
        self.size = 0
        self.acked = False
        """True once its pub acks were handed to the connections."""
        self.records: list[bytes] = []
        """The records, back to back; those of a run are one piece."""
        self.subjects: list[bytes] = []
        self.lengths: list[int] = []
        self.replies: list[bytes] = []
        """Reply of each message; those of a run are in `runs`, and b"" here."""
        self.runs: list[tuple[int, Publishes, int, int]] = []
        """(position of the first message, run, begin, end) of messages that came in runs."""
        self.effects: list[Effect] = []
        self.wide_rollups: list[Effect] = []
        """Those of `effects` that replace messages of more than one subject."""
        self.late: list[tuple[bytes, bytes]] = []
        """(reply, answer) that may leave only once this batch is on disk: about duplicates of messages in it, say."""
        self.tails: dict[int, bytes] = {}
        """Text behind the sequence in the pub ack of some messages, by sequence."""
        self.after: list[tuple[int, int, After]] = []
        """(seq, time_ns, callback for once the batch is committed and applied)."""
        self._last: dict[bytes, int] = {}
        self._counts: Counter[bytes] | None = None
        self._counted = 0

    def __len__(self) -> int:
        return len(self.subjects)

    def is_full(self) -> bool:
        """Return True if the next message begins another batch."""
        return self.size >= MAX_BATCH_BYTES or len(self.subjects) >= MAX_BATCH_MSGS

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

    def add_run(self, seq: int, time_ns: int, run: Publishes, begin: int, end: int) -> int:
        """Append messages of a run with sequences from `seq` on, and times STEP_NS apart from `time_ns` on.

        Return the length of their records in bytes.
        """
        records, lengths = encode_run(run.buf, run.subjects, run.places, run.heads, begin, end, seq, time_ns, STEP_NS)
        self.runs.append((len(self.subjects), run, begin, end))
        self.records.append(records)
        self.subjects += run.subjects[begin:end]
        self.lengths += lengths
        self.replies += [b""] * (end - begin)
        self.last_time = time_ns + (end - begin - 1) * STEP_NS
        self.size += len(records)
        return len(records)

    def all_replies(self) -> list[bytes]:
        """Return the reply of each message, b"" for none; of those in runs too."""
        replies = list(self.replies)
        for at, run, begin, end in self.runs:
            replies[at : at + end - begin] = run.replies(begin, end)
        return replies

    def record(self, position: int) -> bytes:
        """Return the record of one message."""
        piece = position
        for at, _, begin, end in self.runs:
            if position < at:
                break
            if position < at + end - begin:
                offset = sum(self.lengths[at:position])
                return self.records[piece - (position - at)][offset : offset + self.lengths[position]]
            piece -= end - begin - 1
        return self.records[piece]

    def times(self) -> list[int]:
        """Return the time of each message in ns."""
        return times_of(b"".join(self.records), self.lengths)

    def extend(
        self, seq: int, times: list[int], subjects: list[bytes], headers: list[bytes], payloads: list[bytes]
    ) -> int:
        """Append messages without replies, with sequences from `seq` on, and return their length in bytes."""
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

    def act(self, effect: Effect) -> None:
        """Note that something is to be done when a message of this batch is applied."""
        self.effects.append(effect)
        if effect.rollup and effect.wide:
            self.wide_rollups.append(effect)

    def last(self, subject: bytes) -> int:
        """Return the last sequence of `subject` in this batch, 0 for none. Indexes messages since the last call."""
        index, subjects = self._last, self.subjects
        done = index.get(b"", 0)
        if done < len(subjects):
            first = self.first_seq
            for position in range(done, len(subjects)):
                index[subjects[position]] = first + position
            index[b""] = len(subjects)
        return index.get(subject, 0) if subject else 0

    def count(self, subject: bytes) -> int:
        """Return the number of messages of `subject` in this batch. Counts those added since the last call."""
        if self._counts is None:
            self._counts = Counter()
        if self._counted < len(self.subjects):
            self._counts.update(self.subjects[self._counted :])
            self._counted = len(self.subjects)
        return self._counts[subject]

    def subjects_seen(self) -> dict[bytes, int]:
        """Return the last sequence by subject of everything in the batch."""
        self.last(b"")
        return {subject: seq for subject, seq in self._last.items() if subject}


class Run(msgspec.Struct, frozen=True, gc=False):
    """Messages of an origin as columns, in the order of their sequences there, perhaps with gaps; times in ns.

    Several are plain; a message with headers of the protocol, which may have an effect, is a run of one. It is a shape
    of its own because it has what no message of a client has: sequence and time of each, and the number of those left.
    """

    seqs: list[int]
    times: list[int]
    subjects: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]
    pending: list[int]
    """Number of messages after each."""

    def __len__(self) -> int:
        return len(self.seqs)

    def __getitem__(self, part: slice) -> Run:
        columns = (self.seqs, self.times, self.subjects, self.headers, self.payloads, self.pending)
        return Run(*(column[part] for column in columns))  # type: ignore[arg-type]

    @property
    def marked(self) -> bool:
        """Return True if this is a message with headers of the protocol."""
        return len(self.seqs) == 1 and MARK in self.headers[0]

    def after(self, seq: int) -> Run:
        """Return the messages with a higher sequence."""
        return self if self.seqs[0] > seq else self[sum(1 for each in self.seqs if each <= seq) :]

    def stretches(self) -> list[tuple[int, int]]:
        """Return (begin, end) of each part with consecutive sequences."""
        seqs, count = self.seqs, len(self.seqs)
        if seqs[-1] - seqs[0] == count - 1:
            return [(0, count)]
        jumps = [at for at in range(1, count) if seqs[at] != seqs[at - 1] + 1]
        return list(zip([0, *jumps], [*jumps, count], strict=True))
