"""A stream as the next publish will find it.

Belongs here: committed state joined with what is proposed but not yet committed, so that publish rules see every
message before them, stored or on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lakestream.log.format.record import Record, decode_record
from lakestream.log.store.store import Store
from lakestream.protocol import subjects
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import EffectKey
from lakestream.stream.core.feature import Hooks, T
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.publish import NotHere


class ProposedView:
    """Implementation of `publish.View`. Valid only while no operation is in flight: until then publishes wait.

    Args:
        no_room: returns why server or account have no room for so many more bytes.

    Attributes:
        fetched: messages of the lake that a rule asked for, by sequence, while what waited for them is judged.
    """

    config: StreamConfig

    def __init__(
        self, store: Store, pipeline: Pipeline, hooks: Hooks, no_room: Callable[[int], ApiError | None]
    ) -> None:
        self.store, self.pipeline, self.hooks, self.no_room = store, pipeline, hooks, no_room
        self.fetched: dict[int, Record | None] = {}

    @property
    def max_msg_size(self) -> int:
        return self.config.max_msg_size

    def last_seq(self) -> int:
        return self.pipeline.next_seq - 1

    def last_of(self, subject: bytes) -> int:
        if not subjects.is_literal(subject):
            return self._last_matching(subject)
        for batch in self.pipeline.batches():
            seq = batch.last(subject)
            if seq:
                return seq
        return self.store.subjects.last(subject)

    def _last_matching(self, pattern: bytes) -> int:
        for batch in self.pipeline.batches():
            seqs = [seq for subject, seq in batch.subjects_seen().items() if subjects.matches(pattern, subject)]
            if seqs:
                return max(seqs)
        index = self.store.subjects
        return max((index.last(subject) for subject in index.matching(pattern)), default=0)

    def record(self, seq: int) -> Record | None:
        for batch in self.pipeline.batches():
            if batch.first_seq <= seq < batch.first_seq + len(batch):
                return decode_record(batch.record(seq - batch.first_seq), verify=False)
        if self.store.is_local(seq) or seq not in self.store.live:
            return self.store.read(seq)
        if seq not in self.fetched:
            raise NotHere(seq)
        return self.fetched[seq]

    def feature(self, kind: type[T]) -> T:
        return self.hooks.feature(kind)

    def staged(self, key: EffectKey[Any], value: object) -> int:
        return 0

    def pending_msgs(self) -> int:
        """Return the number of messages that are proposed and not committed."""
        if self.config.mirror is not None:  # between its sequences are those that its origin has not got
            return sum(map(len, self.pipeline.batches()))
        return max(0, self.pipeline.next_seq - 1 - self.store.last_seq)

    def pending_bytes(self) -> int:
        """Return their record bytes."""
        return self.pipeline.pending_bytes

    def pending_of(self, subject: bytes) -> int:
        """Return the number of uncommitted messages of a subject."""
        return sum(batch.count(subject) for batch in self.pipeline.batches())

    def pending_rollups(self) -> bool:
        """Return True if there are rollups among the uncommitted messages."""
        return any(effect.rollup for batch in self.pipeline.batches() for effect in batch.effects)

    def ahead(self) -> int:
        """Return the accounted bytes that come before the next message and are not proposed yet."""
        return 0

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        if (refused := self.no_room(self.ahead() + length)) is not None:
            return refused
        config, store = self.config, self.store
        if not limits.refuses_new(config):
            return None
        replaces = False
        if config.max_msgs_per_subject > 0:
            on_the_way = self.pending_of(subject)
            held = store.subjects.count(subject) + on_the_way
            if held >= config.max_msgs_per_subject and config.discard_new_per_subject and not rollup:
                return api_error(10077, err="maximum messages per subject exceeded")
            # The message replaces its subject's oldest. Which one that is, and whether a rollup leaves any, is known
            # only once the messages in flight are stored.
            replaces = held >= config.max_msgs_per_subject and not on_the_way and not self.pending_rollups()
        if not replaces and 0 < config.max_msgs <= store.msgs + self.pending_msgs():
            return api_error(10077, err="maximum messages exceeded")
        makes_room = replaces and store.size_of(store.subjects.first(subject)) >= length
        if 0 < config.max_bytes < store.bytes + self.pending_bytes() + length and not makes_room:
            return api_error(10077, err="maximum bytes exceeded")
        return None

    def has_room(self, subjects: Sequence[bytes], size: int) -> bool:
        """Return True if `room` has room for each of some messages behind those before it, whatever any of them
        replaces. `size`: their accounted bytes, or more."""
        config, store = self.config, self.store
        if not limits.refuses_new(config):
            return True
        if 0 < config.max_msgs < store.msgs + self.pending_msgs() + len(subjects):
            return False
        if 0 < config.max_bytes < store.bytes + self.pending_bytes() + size:
            return False
        if not config.discard_new_per_subject:
            return True
        held, most = store.subjects.count, config.max_msgs_per_subject
        return all(held(each) + self.pending_of(each) + more <= most for each, more in Counter(subjects).items())

    def keeps_last(self, msgs: int, size: int) -> bool:
        """Return True if neither what is in flight nor so many more messages, of this size in total, can remove the
        last message of a subject: then none of them waits for the others (`unsettled`)."""
        if self.config.retention == "interest" or any(batch.wide_rollups for batch in self.pipeline.batches()):
            return False
        msgs, size = self.pending_msgs() + msgs, self.pending_bytes() + size
        return not limits.most_trimmed(self.config, self.store, msgs, size)

    def unsettled(self, subject: bytes, header: bytes) -> bool:
        """Return True if what is in flight may yet remove the message that decides on this one (`Feature.decided_by`).

        Never a reason to wait where only max_msgs_per_subject removes: that leaves the last of each subject.
        """
        for each in self.hooks.decided_by:
            if deciding := each.decided_by(subject, header):
                return self._may_lose(deciding)
        return False

    def _may_lose(self, subject: bytes) -> bool:
        batches = self.pipeline.batches()
        if not batches:
            return False
        if self.config.retention == "interest":
            return True
        if any(effect.replaces(subject) for batch in batches for effect in batch.wide_rollups):
            return True
        most = limits.most_trimmed(self.config, self.store, self.pending_msgs(), self.pending_bytes())
        if not most:
            return False
        store, last = self.store, self.last_of(subject)
        before = store.live.count(store.first_seq, min(last, store.last_seq)) + max(0, last - store.last_seq)
        return last > 0 and before <= most
