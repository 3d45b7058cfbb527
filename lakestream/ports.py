"""Interfaces through which JetStream reaches other parts.

Belongs here: the narrow interfaces of clients (`Bus`), time (`Clock`), threads (`Io`) and old messages (`History`).
JetStream imports none of the implementations; the node passes them in, and tests pass their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from lakestream.log.format.departures import Point
from lakestream.log.format.files import Io as Io  # the log needs it too, and knows nothing of JetStream
from lakestream.log.format.record import Record
from lakestream.protocol.api.errors import PublicError
from lakestream.protocol.client import ClientInfo as ClientInfo
from lakestream.protocol.commands import Single as Single
from lakestream.protocol.messages import ListedMessages as ListedMessages
from lakestream.protocol.messages import MessageBlock as MessageBlock
from lakestream.protocol.messages import Messages as Messages
from lakestream.protocol.publishes import PubAcks as PubAcks

Handler = Callable[[bytes, bytes, bytes, bytes, ClientInfo], None]
"""Called in the event loop for each message: (subject, reply, header, payload, client). Must not block."""

Take = Callable[[Messages, int, int, ClientInfo], int]
"""Called in the event loop with messages of a client, the first one to take, and the one behind the last. Returns the
one behind those that it took, at least one. Must not block."""


def singly(handler: Handler) -> Take:
    """Return a `Take` that hands single messages to a handler."""

    def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        one = messages if type(messages) is Single else messages.message(begin)
        handler(one.subject, one.reply, one.header, one.payload, client)
        return begin + 1

    return take


class Subscribed(Protocol):
    """A live internal subscription."""

    def cancel(self) -> None:
        """End it; idempotent."""


class Bus(Protocol):
    """Core NATS as streams and consumers see it."""

    def subscribe(
        self,
        subject: bytes,
        take: Take,
        queue: bytes = b"",
        *,
        local: bool = False,
        runs: bool = False,
        apart: bool = False,
    ) -> Subscribed:
        """Call `take` with the messages whose subject matches. Wildcards allowed.

        `local`: only messages that are published on this node; the subscription is not propagated to other nodes.
        `runs`: several publishes of one client may come together (`Publishes`); `apart`: also those between which the
        client has published to others that take theirs apart.
        """

    def send(self, messages: Single | PubAcks | MessageBlock) -> bool:
        """Send messages to the subscribers of `messages.to`, each with its own subject, or (b"") each to those of its
        own subject (clients and internal); return False if there is none. One write per connection."""

    def flush(self) -> None:
        """Write what was sent to clients in this turn now, not at its end."""

    def declined(self, subject: bytes, reply: bytes) -> None:
        """Decline a request that a subscriber received: report no responders unless there are other subscribers."""

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return True if a message to `subject` has a receiver (in that queue group, when one is given)."""

    def bound(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return True if there is a subscription to exactly `subject` in exactly that queue group (b"": in none).

        The rule for push consumers: a subscriber through a wildcard does not start one, though it receives its
        messages.
        """

    def writable(self, to: bytes) -> bool:
        """Return False while a receiver of `to` is above its high-water mark of unsent bytes."""

    def when_writable(self, to: bytes, callback: Callable[[], None]) -> None:
        """Call back once when every receiver of `to` is below its mark or disconnected; soon, if they are already."""

    def watch_interest(self, subject: bytes, queue: bytes, callback: Callable[[bool], None]) -> Subscribed:
        """Call back with the new value whenever `bound(subject, queue)` changes, until cancelled."""


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancel the call; idempotent."""


class Clock(Protocol):
    """Wall time, elapsed time, timers and the event loop's turn."""

    def now(self) -> int:
        """Return the wall clock in ns since the epoch, for times shown to or given by clients. It may be stepped."""

    def steady(self) -> int:
        """Return the wall clock at the start of the process plus the time elapsed since, in ns since the epoch. Never
        stepped: for timers and deadlines."""

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Call after `delay_ns`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after the reads of this turn of the event loop, where batches are closed."""

    def call_with_output(self, callback: Callable[[], None]) -> None:
        """Call before the output of this turn is written: what is delivered then leaves with the pub acks."""

    def spawn(self, awaitable: Awaitable[Any]) -> None:
        """Run a coroutine off the hot path; a failure is logged."""


class Share(Protocol):
    """The time of a turn of the event loop that all clients' requests may take together. `Turn` in net/turn.py."""

    def is_over(self) -> bool:
        """Return True if it is used up."""

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn that has time left, in order."""

    def run_in_steps(self, steps: Iterator[None]) -> None:
        """Do steps while this turn has time for them, at least one, and the others in later turns."""
        for _ in steps:
            if self.is_over():
                self.wait(lambda: self.run_in_steps(steps))
                return


class History(Protocol):
    """Messages that have left the log for the lake's table. Results are in sequence order; deleted ones may appear."""

    async def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> Sequence[Record]:
        """Return at most `limit` messages with first ≤ seq ≤ last; only those that match one of `subjects`, if given.

        `max_bytes`: maximum size together, except that one is always returned; 0: no limit.
        """

    async def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> Sequence[Record]:
        """Return those of the messages with these sequences (ascending) that exist.

        `subjects`: literal subjects that cover all of them, which makes the search faster.
        """

    def forget(self) -> bool:
        """Drop what was read before, because it is not what the stream has. Return False if that was done just now."""

    async def first_at(self, time_ns: int) -> int:
        """Return the lowest sequence in the table whose time is ≥ `time_ns`; 0 when there is none."""

    async def was(self, patterns: Sequence[bytes], point: Point, limit: int, without: Sequence[tuple[int, int]]) -> Was:
        """Return the state of the stream at a point, as far as the table has it. `without`: ignored runs of sequences.

        Raise LakeError when it cannot be determined.
        """

    async def was_rows(self, seqs: Sequence[int], point: Point, max_bytes: int) -> list[Record]:
        """Return those of these messages (ascending) that the table had at a point: the first ones that fit into
        `max_bytes`, at least one. Raise LakeError."""


class Was(msgspec.Struct, frozen=True):
    """A point of a stream in its table.

    `within`: the table holds the point; `through` is the last sequence stored by then and `newest` the last sequence of
    each requested subject (None: more than the limit). Else the point is beyond the table, which reaches through log
    index `position` and sequence `through`; `kept`: the stream kept its past there.
    """

    within: bool
    position: int
    through: int
    newest: list[int] | None = []
    kept: bool = True


class PastUnavailableError(PublicError):
    """Raised when the past of a stream is not available, or not now, with the reason."""
