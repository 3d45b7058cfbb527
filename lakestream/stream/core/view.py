"""A stream as the next publish will find it.

Belongs here: committed state joined with what is proposed but not yet committed, so that the rules of publish.py see
every message before them, stored or on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.record import Record, decode_record
from lakestream.protocol import headers, subjects
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core import limits
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.publish import NotHere, Publish

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


_EXPECTED = b"Nats-Expected-Last-Subject-Sequence"


class ProposedView:
    """See `publish.View`. Valid only while no operation is in flight (the stream defers such publishes)."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def config(self) -> StreamConfig:
        return self._stream.config

    @property
    def max_msg_size(self) -> int:
        return self._stream.config.max_msg_size

    def _batches(self) -> list[Batch]:
        """Uncommitted batches, newest first."""
        proposals = self._stream.uncommitted()
        return [proposal.context for proposal in reversed(proposals) if isinstance(proposal.context, Batch)]

    def last_seq(self) -> int:
        return self._stream.next_seq - 1

    def last_of(self, subject: bytes) -> int:
        if not subjects.is_literal(subject):
            return self._last_matching(subject)
        for batch in self._batches():
            seq = batch.last(subject)
            if seq:
                return seq
        return self._stream.store.subjects.last(subject)

    def _last_matching(self, pattern: bytes) -> int:
        for batch in self._batches():
            seqs = [seq for subject, seq in batch.subjects_seen().items() if subjects.matches(pattern, subject)]
            if seqs:
                return max(seqs)
        index = self._stream.store.subjects
        return max((index.last(subject) for subject in index.matching(pattern)), default=0)

    def record(self, seq: int) -> Record | None:
        for batch in self._batches():
            if batch.first_seq <= seq < batch.first_seq + len(batch):
                return decode_record(batch.records[seq - batch.first_seq], verify=False)
        fetched = self._stream.intake.fetched
        if self._stream.store.is_local(seq) or seq not in self._stream.store.live:
            return self._stream.store.read(seq)
        if seq not in fetched:
            raise NotHere(seq)
        return fetched[seq]

    def last_msg_id(self) -> bytes:
        dedupe = self._stream.dedupe
        return dedupe.last_id if dedupe.last_seq == self.last_seq() else b""

    def seen(self, msg_id: bytes) -> int:
        return self._stream.dedupe.seen(msg_id, self._stream.clock.steady())

    def pending_msgs(self) -> int:
        """Messages proposed but not committed."""
        if self.config.mirror is not None:  # between its sequences are those that its origin has not got
            return sum(map(len, self._batches()))
        return max(0, self._stream.next_seq - 1 - self._stream.store.last_seq)

    def pending_bytes(self) -> int:
        """Their record bytes."""
        return self._stream.intake.pending_bytes

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        if (refused := self._stream.no_room(self.ahead() + length)) is not None:
            return refused
        return limits.room(self, self._stream.store, subject, length, rollup)

    def ahead(self) -> int:
        """Accounted bytes that come before, of which the stream knows nothing yet."""
        return 0

    def pending_of(self, subject: bytes) -> int:
        """How many uncommitted messages a subject has."""
        return sum(batch.count(subject) for batch in self._batches())

    def pending_rollups(self) -> bool:
        """Whether uncommitted messages are rollups."""
        return any(effect.rollup for batch in self._batches() for effect in batch.effects)

    def unsettled(self, subject: bytes, header: bytes) -> bool:
        """Whether what is in flight may yet remove the message that an Expected-Last-Subject-Sequence is about, or the
        one that a counter goes on from.

        Never a reason to wait where only max_msgs_per_subject removes: that leaves the last of each subject.
        """
        depends = _EXPECTED in header or self.config.allow_msg_counter
        batches = self._batches() if depends else []
        if not batches:
            return False
        if self.config.retention == "interest":
            return True
        if any(effect.rollup == b"all" for batch in batches for effect in batch.effects):
            return True
        most = limits.most_trimmed(self.config, self._stream.store, self.pending_msgs(), self.pending_bytes())
        if not most:
            return False
        store, last = self._stream.store, self.last_of(headers.get(header, _EXPECTED + b"-Subject") or subject)
        before = store.live.count(store.first_seq, min(last, store.last_seq)) + max(0, last - store.last_seq)
        return last > 0 and before <= most


class MemberView(ProposedView):
    """The stream as members of batches find it: nats-server judges them in the order of rules of replicated streams."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._of = stream.config
        self._seen = _replicated(stream.config)

    @property
    def config(self) -> StreamConfig:
        if self._of is not self._stream.config:
            self._of = self._stream.config
            self._seen = _replicated(self._of)
        return self._seen


def _replicated(config: StreamConfig) -> StreamConfig:
    return msgspec.structs.replace(config, num_replicas=max(2, config.num_replicas))


class OverlayView(ProposedView):
    """The stream as a later member of an atomic batch will find it: the members before it are stored.

    `add` takes the next one.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        # A member's size was judged when it came; the configuration may have changed since.
        self._config = msgspec.structs.replace(_replicated(stream.config), max_msg_size=-1)
        self._first = super().last_seq() + 1
        self._members: list[Publish] = []
        self._last: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}
        self._ids: dict[bytes, int] = {}
        self._bytes = 0
        self._before = (super().pending_msgs(), super().pending_bytes())

    def __len__(self) -> int:
        return len(self._members)

    @property
    def config(self) -> StreamConfig:
        return self._config

    @property
    def in_flight(self) -> bool:
        """Whether messages from before the batch are proposed and not committed."""
        return bool(self._before[0])

    def add(self, member: Publish, length: int, msg_id: bytes) -> None:
        """A member of this accounted length passed every rule."""
        seq, subject = self._first + len(self._members), member.subject
        self._members.append(member)
        self._last[subject] = seq
        self._counts[subject] = self._counts.get(subject, 0) + 1
        if msg_id:
            self._ids[msg_id] = seq
        self._bytes += length

    def holds(self, subject: bytes) -> bool:
        """Whether a member before has exactly this subject."""
        return subject in self._last

    def last_seq(self) -> int:
        return self._first - 1 + len(self._members)

    def last_of(self, subject: bytes) -> int:
        # A pattern is looked up without the members: nats-server judges them by exact subjects alone.
        return self._last.get(subject, 0) or super().last_of(subject)

    def record(self, seq: int) -> Record | None:
        if seq < self._first:
            return super().record(seq)
        member = self._members[seq - self._first]
        return Record(seq, 0, member.subject, member.header, member.payload)

    def seen(self, msg_id: bytes) -> int:
        return self._ids.get(msg_id, 0) or super().seen(msg_id)

    def pending_msgs(self) -> int:
        return self._before[0] + len(self._members)

    def pending_bytes(self) -> int:
        return self._before[1] + self._bytes

    def ahead(self) -> int:
        return self._bytes

    def pending_of(self, subject: bytes) -> int:
        return super().pending_of(subject) + self._counts.get(subject, 0)

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        refused = super().room(subject, length, rollup)
        if refused is None and self._config.max_msgs_per_subject > 0:
            # In a batch a message that takes the place of its subject's oldest counts as one more.
            whole = self._config
            self._config = msgspec.structs.replace(whole, max_msgs_per_subject=-1, discard_new_per_subject=False)
            try:
                refused = super().room(subject, length, rollup)
            finally:
                self._config = whole
        return refused
