"""Priority policies of pull consumers (ADR-42): who of those that wait gets the next message.

Belongs here: the four policies as rules about one waiting request, and the pin of policy pinned_client with its timer.
A pin is known to the node that leads, and to nobody else: it is neither logged nor does it outlive a change of leader.
Requests are read in pull_request.py and wait in pull.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from lakestream.ports import Clock, Delivery, Timer
from lakestream.protocol.gotime import ZERO, format_time
from lakestream.protocol.nuid import nuid
from lakestream.stream.consumer.advisories import ConsumerEvents
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.pull_request import MAX_PRIORITY, NextRequest, Waiting


class Verdict(Enum):
    """What becomes of a waiting request when a message could go to it."""

    SERVE = "serve"
    PASS = "pass"
    """It stays, and another one may have the message."""
    END = "end"
    """It has lost its pin: 423."""


class Turns:
    """No policy: requests take turns. The base of the others.

    Args:
        wake: asks the consumer to look for messages soon.
    """

    gated = False
    """Whether some requests may have to let a message pass (then `verdict` is asked for each message)."""

    def __init__(self, config: ConsumerConfig, events: ConsumerEvents, clock: Clock, wake: Callable[[], None]) -> None:
        self._config, self._events, self._clock, self._wake = config, events, clock, wake

    def update(self, config: ConsumerConfig) -> None:
        """The configuration has changed, the policy has not."""
        self._config = config

    def arrived(self, request: NextRequest) -> bytes:
        """The status that refuses a new request, b"" when it may wait."""
        return b""

    def place(self, queue: deque[Waiting], waiting: Waiting, first: bool = False) -> None:
        """Put a request into the queue: behind its equals, or (`first`) before them."""
        if first:
            queue.appendleft(waiting)
        else:
            queue.append(waiting)

    def alone(self, queue: deque[Waiting]) -> bool:
        """Whether the first request may have several messages in a row."""
        return len(queue) == 1

    def verdict(self, waiting: Waiting, pending: int, unacked: int) -> Verdict:
        """Whether a request may have the next message.

        Args:
            pending: new messages that match, with the one that is about to go.
            unacked: messages that were delivered and not acked.
        """
        return Verdict.SERVE

    def dressed(self, waiting: Waiting, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """The messages as they go out to this request."""
        return messages

    def unpin(self) -> None:
        """CONSUMER.UNPIN: whoever has the pin loses it."""
        self._events.unpinned(self._group, "admin")

    def shown(self) -> dict[str, Any]:
        """The group as CONSUMER.INFO shows it. There may be several names, but one group."""
        return {"group": self._group, "pinned_ts": ZERO}

    def stop(self) -> None:
        """End without a word."""

    @property
    def _group(self) -> str:
        return self._config.priority_groups[0] if self._config.priority_groups else ""


class Prioritized(Turns):
    """The lowest number first; those of one number take turns. Requests of no group come last."""

    def place(self, queue: deque[Waiting], waiting: Waiting, first: bool = False) -> None:
        """See `Turns.place`."""
        rank = self._rank(waiting) - first
        at = next((at for at, other in enumerate(queue) if self._rank(other) > rank), len(queue))
        queue.insert(at, waiting)

    def alone(self, queue: deque[Waiting]) -> bool:
        """See `Turns.alone`."""
        return len(queue) == 1 or self._rank(queue[1]) > self._rank(queue[0])

    @staticmethod
    def _rank(waiting: Waiting) -> int:
        return waiting.priority if waiting.grouped else MAX_PRIORITY + 1


class Overflow(Turns):
    """A request may ask to be served only while much is pending, or much is unacked."""

    gated = True

    def alone(self, queue: deque[Waiting]) -> bool:
        """See `Turns.alone`."""
        return len(queue) == 1 and queue[0].min_pending <= 0 and queue[0].min_ack_pending <= 0

    def verdict(self, waiting: Waiting, pending: int, unacked: int) -> Verdict:
        """See `Turns.verdict`."""
        least, least_unacked = waiting.min_pending, waiting.min_ack_pending
        if least <= 0 and least_unacked <= 0:
            return Verdict.SERVE
        enough = 0 < least <= pending or 0 < least_unacked <= unacked
        return Verdict.SERVE if enough else Verdict.PASS


class PinnedClient(Turns):
    """One client gets all messages, as long as it keeps asking for them."""

    gated = True

    def __init__(self, config: ConsumerConfig, events: ConsumerEvents, clock: Clock, wake: Callable[[], None]) -> None:
        super().__init__(config, events, clock, wake)
        self._pin = ""
        self._pinned_ns = 0
        self._timer: Timer | None = None

    def arrived(self, request: NextRequest) -> bytes:
        """See `Turns.arrived`. A request of the pinned client keeps the pin alive."""
        if not request.id or not self._pin:
            return b""
        if request.id != self._pin:
            return b"423 Nats-Pin-Id mismatch"
        self._watch()
        return b""

    def verdict(self, waiting: Waiting, pending: int, unacked: int) -> Verdict:
        """See `Turns.verdict`."""
        if waiting.pin:
            return Verdict.SERVE if waiting.pin == self._pin else Verdict.END
        return Verdict.PASS if self._pin else Verdict.SERVE

    def dressed(self, waiting: Waiting, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """See `Turns.dressed`: the first request that gets a message while nobody is pinned gets the pin."""
        if not self._pin and waiting.grouped:
            self._give(waiting)
        line = b"Nats-Pin-Id: %b\r\n\r\n" % self._pin.encode()
        return [
            (subject, reply, (header[:-2] if header else b"NATS/1.0\r\n") + line, data)
            for subject, reply, header, data in messages
        ]

    def _give(self, waiting: Waiting) -> None:
        self._pin = waiting.pin = nuid()
        self._pinned_ns = self._clock.now()
        self._watch()
        self._events.pinned(self._group, self._pin)

    def _watch(self) -> None:
        """The pin ends `priority_timeout` after now, if its client does not ask again."""
        self._forget_timer()
        self._timer = self._clock.call_later(self._config.priority_timeout, self._over)

    def _over(self) -> None:
        self._timer = None
        self._drop("timeout")

    def unpin(self) -> None:
        """See `Turns.unpin`."""
        self._drop("admin")

    def _drop(self, reason: str) -> None:
        self.stop()
        self._events.unpinned(self._group, reason)
        self._wake()

    def shown(self) -> dict[str, Any]:
        """See `Turns.shown`."""
        if not self._pin:
            return super().shown()
        return {"group": self._group, "pinned_client_id": self._pin, "pinned_ts": format_time(self._pinned_ns)}

    def stop(self) -> None:
        """See `Turns.stop`."""
        self._pin, self._pinned_ns = "", 0
        self._forget_timer()

    def _forget_timer(self) -> None:
        """Cancel the timer, if it runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_POLICIES: dict[str, type[Turns]] = {
    "overflow": Overflow,
    "pinned_client": PinnedClient,
    "prioritized": Prioritized,
}


def policy_of(config: ConsumerConfig, events: ConsumerEvents, clock: Clock, wake: Callable[[], None]) -> Turns:
    """The policy that a configuration asks for."""
    return _POLICIES.get(config.priority_policy, Turns)(config, events, clock, wake)
