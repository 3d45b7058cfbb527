"""Interest and work-queue retention: messages that go because everybody who wanted them has had them.

Belongs here: who still needs a message, and the proposals that remove those which nobody needs
(docs/internals/streams.md#retention). Only the leader knows what its consumers have acked since their progress was last
logged, so it decides; what it decides goes through the log as Remove, always before the progress that led to it, so
that a crash between the two repeats a delivery at worst and never keeps a message for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.subjects import matches
from lakestream.stream.core.operations import Expire, Remove

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.consumer.consumer import Consumer

RELEASED_AT_ONCE = 1000
"""Messages that are looked at before others have their turn, when a consumer's end may release the whole stream."""


def wants(consumer: Consumer, subject: bytes) -> bool:
    """Whether a consumer's filters let the subject through."""
    filters = consumer.config.filters
    return not filters or any(matches(one, subject) for one in filters)


def needs(consumer: Consumer, seq: int, subject: bytes) -> bool:
    """Whether a message must stay for a consumer: it is still to be delivered, or delivered and not acked."""
    ledger = consumer.ledger
    if seq > ledger.delivered_stream:
        return wants(consumer, subject)
    if consumer.config.ack_policy == "none":
        return False
    return seq in ledger.pending


class Retention:
    """Watches over one stream. Does nothing while its policy is `limits`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._done: list[int] = []
        self.recheck = False
        """Recovery met an operation that releases messages; their removal may not have reached the disk."""

    @property
    def _policy(self) -> str:
        return self._stream.config.retention

    def done(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """A consumer has had these messages (acked, or sent without ack)."""
        if self._policy == "workqueue":
            self._done.extend(seqs)
        elif self._policy == "interest":
            if len(self._stream.consumers) > 1:
                seqs = [seq for seq in seqs if not self._needed(seq, consumer)]
            self._done.extend(seqs)

    def _needed(self, seq: int, but: Consumer | None = None) -> bool:
        """Whether a consumer needs a message, other than `but`."""
        subject = self._stream.store.subject_of(seq)
        return any(needs(one, seq, subject) for one in self._stream.audience.concerned(subject) if one is not but)

    def settle(self) -> None:
        """Propose the removal of what is done. Called before anything else of the turn is handed over."""
        if self._done and self._stream.leading:
            done, self._done = self._done, []
            self.let_go(done)

    def let_go(self, seqs: list[int], then: Callable[[], None] | None = None) -> None:
        """Propose the removal of these, then call `then`. If nobody can say what became of it, it is proposed again
        when this node leads the next time."""

        def settled(result: object) -> None:
            if isinstance(result, ApiError):
                self._done += seqs
            if then is not None:
                then()

        self._stream.propose(Remove(seqs), settled)

    def unsettled(self) -> list[int]:
        """What is done and not yet proposed: a checkpoint may know of the acks that led to it."""
        return list(self._done)

    def load(self, seqs: list[int]) -> None:
        """Take back what a checkpoint kept of removals that were not on disk."""
        self._done = seqs

    def resume(self) -> None:
        """Recovery is over: propose the removals that a crash prevented."""
        self._done = [seq for seq in self._done if seq in self._stream.store.live]
        self.settle()
        if self.recheck:
            self.release(lambda: None)

    def unwanted(self, first_seq: int, subjects: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Of messages just stored, those that no consumer will ever want. Depends on the log alone."""
        if self._policy != "interest":
            return []
        audience = self._stream.audience
        verdict = {subject: any(wants(one, subject) for one in audience.of(subject)) for subject in set(subjects)}
        return [(seq, subject) for seq, subject in enumerate(subjects, first_seq) if not verdict[subject]]

    def release(self, then: Callable[[], None], consumer_gone: bool = False) -> None:
        """Propose the removal of what nobody needs any more after a consumer went or the policy changed to `interest`;
        call `then` once that is done, or can not be done here."""
        self.recheck = False
        stream, store = self._stream, self._stream.store
        if self._policy != "interest" or not (store.msgs or consumer_gone):
            then()
        elif stream.consumers:
            self.recheck = True
            self._release_from(store.first_seq, store.last_seq, then)
        else:
            stream.propose(Expire(store.last_seq), lambda _: then())

    def _release_from(self, first: int, last: int, then: Callable[[], None]) -> None:
        """Look through the messages `first` … `last`, RELEASED_AT_ONCE in each turn of the event loop."""
        stream = self._stream
        seqs = stream.store.live.members(first, RELEASED_AT_ONCE, last)
        if not seqs or not stream.leading or stream.closed:
            self.recheck = bool(seqs)
            then()
            return
        unneeded = [seq for seq in seqs if not self._needed(seq)]

        def go_on() -> None:
            self._release_from(seqs[-1] + 1, last, then)

        if unneeded:
            self.let_go(unneeded, go_on)
        else:
            stream.clock.call_soon(go_on)
