"""Interest and work-queue retention: removal of messages that no consumer needs any more.

Belongs here: which consumers still need a message, and the proposals that remove messages which none needs
(docs/internals/streams.md#retention). Only the leader knows what its consumers have acked since their progress was last
logged, so it decides. Its decisions are logged as Remove, always before the progress that led to them: a crash between
the two repeats a delivery at worst and never keeps a message for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.consumer.consumer import Consumer
from lakestream.stream.consumer.filter_index import FilterIndex
from lakestream.stream.core.operations import Expire, Remove
from lakestream.stream.core.pipeline import Pipeline

CHECKED_AT_ONCE = 1000
"""Messages that are checked in one turn of the event loop after a consumer was deleted."""


def needs(consumer: Consumer, seq: int, subject: bytes) -> bool:
    """Return True if a message is still to be delivered to a consumer, or was delivered and not acked."""
    ledger = consumer.ledger
    if seq > ledger.delivered_stream:
        return consumer.config.wants(subject)
    if consumer.config.ack_policy == "none":
        return False
    return seq in ledger.pending


class Retention:
    """Retention of one stream. Does nothing under policy `limits`.

    Attributes:
        policy: the stream's retention.
    """

    def __init__(
        self, store: Store, pipeline: Pipeline, clock: Clock, consumers: Mapping[str, Consumer], index: FilterIndex
    ) -> None:
        self._store, self._pipeline, self._clock = store, pipeline, clock
        self._consumers, self._index = consumers, index
        self.policy = "limits"
        self._done: list[int] = []
        """Messages that no consumer needs and whose removal is not proposed."""
        self.recheck = False
        """True if recovery met an operation that releases messages: their removal may not have reached the disk."""

    def done(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Remove those of these messages that no other consumer needs. To be called before the consumer's progress
        that says so is logged."""
        if self.policy == "workqueue":
            self._done.extend(seqs)
        elif self.policy == "interest":
            if len(self._consumers) > 1:
                seqs = [seq for seq in seqs if not self._needed(seq, consumer)]
            self._done.extend(seqs)
        self._pipeline.flush_soon()

    def _needed(self, seq: int, but: Consumer | None = None) -> bool:
        """Return True if a consumer other than `but` needs a message."""
        subject = self._store.subject_of(seq)
        return any(needs(one, seq, subject) for one in self._index.concerned(subject) if one is not but)

    def settle(self) -> None:
        """Propose the removal of what is done. Called before anything else of the turn is handed over."""
        if self._done and self._pipeline.leading:
            done, self._done = self._done, []
            self._remove(done)

    def _remove(self, seqs: list[int], then: Callable[[], None] | None = None) -> None:
        """Propose a removal, then call `then`. If its result is unknown it is proposed again with the next
        leadership."""

        def settled(result: object) -> None:
            if isinstance(result, ApiError):
                self._done += seqs
            if then is not None:
                then()

        self._pipeline.propose(Remove(seqs), settled)

    def unsettled(self) -> list[int]:
        """Return what is done and not proposed: a checkpoint may hold the acks that led to it."""
        return list(self._done)

    def load(self, seqs: list[int]) -> None:
        """Take the removals of a checkpoint that were not on disk."""
        self._done = seqs

    def resume(self) -> None:
        """Propose the removals that a crash prevented."""
        self._done = [seq for seq in self._done if seq in self._store.live]
        self.settle()
        if self.recheck:
            self.release(lambda: None)

    def unwanted(self, first_seq: int, subjects: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return (sequence, subject) of the messages just stored that no consumer wants. Depends on the log alone."""
        if self.policy != "interest":
            return []
        index = self._index
        wanted = {subject: any(one.config.wants(subject) for one in index.of(subject)) for subject in set(subjects)}
        return [(seq, subject) for seq, subject in enumerate(subjects, first_seq) if not wanted[subject]]

    def release(self, then: Callable[[], None], consumer_gone: bool = False) -> None:
        """Propose the removal of what is not needed after a consumer was deleted or the policy changed to `interest`.
        Call `then` once that is done, or can not be done on this node."""
        self.recheck = False
        store = self._store
        if self.policy != "interest" or not (store.msgs or consumer_gone):
            then()
        elif self._consumers:
            self.recheck = True
            self._release_from(store.first_seq, store.last_seq, then)
        else:
            self._pipeline.propose(Expire(store.last_seq), lambda _: then())

    def _release_from(self, first: int, last: int, then: Callable[[], None]) -> None:
        """Check the messages `first` through `last`, CHECKED_AT_ONCE in each turn of the event loop."""
        pipeline = self._pipeline
        seqs = self._store.live.members(first, CHECKED_AT_ONCE, last)
        if not seqs or not pipeline.leading or pipeline.closed:
            self.recheck = bool(seqs)
            then()
            return
        unneeded = [seq for seq in seqs if not self._needed(seq)]

        def go_on() -> None:
            self._release_from(seqs[-1] + 1, last, then)

        if unneeded:
            self._remove(unneeded, go_on)
        else:
            self._clock.call_soon(go_on)
