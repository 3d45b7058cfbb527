"""How long a consumer lives and when it rests.

Belongs here: removal after inactivity (inactive_threshold) and pausing until a time, each with its one timer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from lakestream.ports import Timer
from lakestream.stream.consumer.pull import PullOutlet
from lakestream.stream.core.operations import DeleteConsumer

if TYPE_CHECKING:
    from lakestream.stream.consumer.consumer import Consumer

JITTER_NS = (100_000_000, 1_000_000_000)
"""A pull consumer outlives its threshold by 0.1 to 1 s, as in nats-server."""


class Inactivity:
    """Deletes a consumer that nobody has used for `inactive_threshold`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._timer: Timer | None = None
        self.last_ns = 0

    def arm(self) -> None:
        """Begin to count, anew; a push consumer with subscribers is not counted."""
        self.stop()
        consumer = self._consumer
        threshold = consumer.config.inactive_threshold
        if not threshold or consumer.push_bound:
            return
        self.last_ns = consumer.stream.clock.steady()
        self._wait(threshold)

    def _wait(self, delay: int) -> None:
        if isinstance(self._consumer.outlet, PullOutlet):
            delay += random.randint(*JITTER_NS)
        self._timer = self._consumer.stream.clock.call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        consumer = self._consumer
        now, last = consumer.stream.clock.steady(), self.last_ns
        outlet = consumer.outlet
        if isinstance(outlet, PullOutlet):
            last = now if outlet.interested() else max(last, outlet.last_active_ns)
        idle = now - last
        if idle < consumer.config.inactive_threshold:
            self._wait(consumer.config.inactive_threshold - idle)
            return
        consumer.stream.propose(DeleteConsumer(consumer.name), lambda _: None)

    def stop(self) -> None:
        """Cease to count."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Pause:
    """Holds deliveries until `pause_until`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._timer: Timer | None = None
        self._until = 0
        self.active = False

    def begin(self) -> None:
        """Follow the configuration without a word: the consumer is new here, or another node led it before."""
        self._until = self._consumer.pause_until_ns
        self._arm()

    def settle(self) -> None:
        """Follow a changed configuration: begin, prolong or end a pause, and say so."""
        before = self._until
        self.begin()
        if self._until != before:
            self.tell()
            self._consumer.wake()

    def tell(self) -> None:
        """Send the advisory."""
        self._consumer.events.pause(self.active, self._until)

    def _arm(self) -> None:
        self.stop()
        clock = self._consumer.stream.clock
        remaining = self._until - clock.now()
        self.active = remaining > 0
        if self.active:
            self._timer = clock.call_later(remaining, self._over)

    def _over(self) -> None:
        self._timer = None
        self._arm()
        self.tell()
        self._consumer.wake()

    def stop(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
