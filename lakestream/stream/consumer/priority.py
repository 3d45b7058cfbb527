"""Priority policies of pull consumers (ADR-42): which waiting request gets the next message.

Belongs here: the four policies as rules about one waiting request, and the pin of policy pinned_client with its timer.
Only the leader knows the pin: it is not logged and ends with a change of leader. Requests are parsed in pull_request.py
and wait in pull.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from lakestream.ports import Clock, ListedMessages, MessageBlock, Single, Timer
from lakestream.protocol.gotime import ZERO, format_time
from lakestream.protocol.nuid import nuid
from lakestream.stream.consumer.advisories import ConsumerAdvisories
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.pull_request import MAX_PRIORITY, NextRequest, WaitingPull


class PriorityVerdict(Enum):
    """Decision about a waiting request when there is a message."""

    SERVE = "serve"
    PASS = "pass"
    """Keep the request waiting; the message may go to another one."""
    END = "end"
    """End the request, which has lost its pin, with status 423."""


class RoundRobin:
    """No policy: requests take turns. Base class of the policies.

    Args:
        wake: called when the consumer should look for messages.
    """

    gated = False
    """True if `verdict` has to be called for each message."""

    def __init__(
        self, config: ConsumerConfig, advisories: ConsumerAdvisories, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._config, self._advisories, self._clock, self._wake = config, advisories, clock, wake

    def update(self, config: ConsumerConfig) -> None:
        """Take a changed configuration with the same policy."""
        self._config = config

    def arrived(self, request: NextRequest) -> bytes:
        """Return the status that refuses a new request, b"" if it may wait."""
        return b""

    def place(self, queue: deque[WaitingPull], waiting: WaitingPull, first: bool = False) -> None:
        """Insert a request into the queue: behind those of its rank, or (`first`) before them."""
        if first:
            queue.appendleft(waiting)
        else:
            queue.append(waiting)

    def alone(self, queue: deque[WaitingPull]) -> bool:
        """Return True if the first request may have several messages in a row."""
        return len(queue) == 1

    def verdict(self, waiting: WaitingPull, pending: int, unacked: int) -> PriorityVerdict:
        """Decide whether a request may have the next message.

        Args:
            pending: number of new messages that match, including the next one.
            unacked: number of messages that were delivered and not acked.
        """
        return PriorityVerdict.SERVE

    def headed(self, waiting: WaitingPull, messages: MessageBlock) -> MessageBlock:
        """Return the messages with the headers that this request gets."""
        return messages

    def unpin(self) -> None:
        """Take the pin from its client (CONSUMER.UNPIN)."""
        self._advisories.unpinned(self._group, "admin")

    def shown(self) -> dict[str, Any]:
        """Return the group for CONSUMER.INFO. The configuration may name several; the first one counts."""
        return {"group": self._group, "pinned_ts": ZERO}

    def stop(self) -> None:
        """Drop the pin and cancel its timer."""

    @property
    def _group(self) -> str:
        return self._config.priority_groups[0] if self._config.priority_groups else ""


class Prioritized(RoundRobin):
    """The lowest number first; requests with equal numbers take turns. Requests without a group come last."""

    def place(self, queue: deque[WaitingPull], waiting: WaitingPull, first: bool = False) -> None:
        rank = self._rank(waiting) - first
        at = next((at for at, other in enumerate(queue) if self._rank(other) > rank), len(queue))
        queue.insert(at, waiting)

    def alone(self, queue: deque[WaitingPull]) -> bool:
        return len(queue) == 1 or self._rank(queue[1]) > self._rank(queue[0])

    @staticmethod
    def _rank(waiting: WaitingPull) -> int:
        return waiting.priority if waiting.grouped else MAX_PRIORITY + 1


class Overflow(RoundRobin):
    """A request may set a minimum of pending or unacked messages below which it is not served."""

    gated = True

    def alone(self, queue: deque[WaitingPull]) -> bool:
        return len(queue) == 1 and queue[0].min_pending <= 0 and queue[0].min_ack_pending <= 0

    def verdict(self, waiting: WaitingPull, pending: int, unacked: int) -> PriorityVerdict:
        least, least_unacked = waiting.min_pending, waiting.min_ack_pending
        if least <= 0 and least_unacked <= 0:
            return PriorityVerdict.SERVE
        enough = 0 < least <= pending or 0 < least_unacked <= unacked
        return PriorityVerdict.SERVE if enough else PriorityVerdict.PASS


class PinnedClient(RoundRobin):
    """One client gets all messages as long as it keeps requesting them."""

    gated = True

    def __init__(
        self, config: ConsumerConfig, advisories: ConsumerAdvisories, clock: Clock, wake: Callable[[], None]
    ) -> None:
        super().__init__(config, advisories, clock, wake)
        self._pin = ""
        self._pinned_ns = 0
        self._timer: Timer | None = None

    def arrived(self, request: NextRequest) -> bytes:
        """Extend the pin for a request of the pinned client; refuse another pin id."""
        if not request.id or not self._pin:
            return b""
        if request.id != self._pin:
            return b"423 Nats-Pin-Id mismatch"
        self._watch()
        return b""

    def verdict(self, waiting: WaitingPull, pending: int, unacked: int) -> PriorityVerdict:
        if waiting.pin:
            return PriorityVerdict.SERVE if waiting.pin == self._pin else PriorityVerdict.END
        return PriorityVerdict.PASS if self._pin else PriorityVerdict.SERVE

    def headed(self, waiting: WaitingPull, messages: MessageBlock) -> MessageBlock:
        """Pin the first request that gets a message while no client is pinned; add the pin's header."""
        if not self._pin and waiting.grouped:
            self._give(waiting)
        line = b"Nats-Pin-Id: %b\r\n\r\n" % self._pin.encode()
        pinned = [
            Single(
                each.subject, each.reply, (each.header[:-2] if each.header else b"NATS/1.0\r\n") + line, each.payload
            )
            for each in messages
        ]
        return ListedMessages(pinned)

    def _give(self, waiting: WaitingPull) -> None:
        self._pin = waiting.pin = nuid()
        self._pinned_ns = self._clock.now()
        self._watch()
        self._advisories.pinned(self._group, self._pin)

    def _watch(self) -> None:
        """End the pin after `priority_timeout` unless its client sends another request."""
        self._cancel_timer()
        self._timer = self._clock.call_later(self._config.priority_timeout, self._over)

    def _over(self) -> None:
        self._timer = None
        self._drop("timeout")

    def unpin(self) -> None:
        self._drop("admin")

    def _drop(self, reason: str) -> None:
        self.stop()
        self._advisories.unpinned(self._group, reason)
        self._wake()

    def shown(self) -> dict[str, Any]:
        if not self._pin:
            return super().shown()
        return {"group": self._group, "pinned_client_id": self._pin, "pinned_ts": format_time(self._pinned_ns)}

    def stop(self) -> None:
        self._pin, self._pinned_ns = "", 0
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_POLICIES: dict[str, type[RoundRobin]] = {
    "overflow": Overflow,
    "pinned_client": PinnedClient,
    "prioritized": Prioritized,
}


def policy_of(
    config: ConsumerConfig, advisories: ConsumerAdvisories, clock: Clock, wake: Callable[[], None]
) -> RoundRobin:
    """Return the policy of a configuration."""
    return _POLICIES.get(config.priority_policy, RoundRobin)(config, advisories, clock, wake)
