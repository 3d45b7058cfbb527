"""A stream as the next publish will find it.

Belongs here: committed state joined with what is proposed but not yet committed, so that the rules of publish.py see
every message before them, stored or on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.jetstream import limits
from lakestream.jetstream.batch import Batch
from lakestream.jetstream.errors import ApiError
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.protocol import subjects

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream


class ProposedView:
    """See `publish.View`. Valid only while no operation is in flight (the stream defers such publishes)."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def config(self) -> StreamConfig:
        return self._stream.config

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

    def last_msg_id(self) -> bytes:
        dedupe = self._stream.dedupe
        return dedupe.last_id if dedupe.last_seq == self.last_seq() else b""

    def seen(self, msg_id: bytes) -> int:
        return self._stream.dedupe.seen(msg_id, self._stream.clock.now())

    def pending_msgs(self) -> int:
        """Messages proposed but not committed."""
        return sum(map(len, self._batches()))

    def pending_bytes(self) -> int:
        """Their record bytes."""
        return sum(batch.size for batch in self._batches())

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        return limits.room(self, self._stream.store, subject, length, rollup)

    def pending_of(self, subject: bytes) -> int:
        """How many uncommitted messages a subject has."""
        return sum(batch.subjects.count(subject) for batch in self._batches())
