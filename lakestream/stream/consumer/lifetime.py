"""Removal of a consumer after inactivity (inactive_threshold), and pausing until a time, each with its one timer."""

from __future__ import annotations

import random
from collections.abc import Callable

from lakestream.ports import Clock, Timer
from lakestream.stream.consumer.advisories import ConsumerAdvisories
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.target import DeliveryTarget

JITTER_NS = (100_000_000, 1_000_000_000)
"""A pull consumer outlives its threshold by 0.1 to 1 s, as in nats-server."""


class Inactivity:
    """Notices when a consumer was not used for `inactive_threshold`.

    Args:
        over: called then; it deletes the consumer.
    """

    def __init__(self, clock: Clock, over: Callable[[], None]) -> None:
        self._clock, self._over = clock, over
        self._timer: Timer | None = None
        self.last_ns = 0
        """Time at which a client last used the consumer."""

    def watch(self, config: ConsumerConfig, target: DeliveryTarget) -> None:
        """Count from now on; not while a push consumer has subscribers."""
        self.stop()
        if config.inactive_threshold and not target.bound:
            self.last_ns = self._clock.steady()
            self._wait(config, target, config.inactive_threshold)

    def _wait(self, config: ConsumerConfig, target: DeliveryTarget, delay: int) -> None:
        if not config.push:
            delay += random.randint(*JITTER_NS)
        self._timer = self._clock.call_later(delay, lambda: self._check(config, target))

    def _check(self, config: ConsumerConfig, target: DeliveryTarget) -> None:
        self._timer = None
        now = self._clock.steady()
        idle = now - max(self.last_ns, target.last_used_ns(now))
        if idle < config.inactive_threshold:
            self._wait(config, target, config.inactive_threshold - idle)
        else:
            self._over()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Pause:
    """Holds deliveries until `pause_until`.

    Args:
        wake: called when deliveries may go on.
    """

    def __init__(self, clock: Clock, advisories: ConsumerAdvisories, wake: Callable[[], None]) -> None:
        self._clock, self._advisories, self._wake = clock, advisories, wake
        self._timer: Timer | None = None
        self._until_ns = 0
        self.active = False

    def begin(self, until_ns: int) -> None:
        """Follow the configuration without an advisory: the consumer is new, or another node led it before."""
        self._until_ns = until_ns
        self._arm()

    def change(self, until_ns: int) -> None:
        """Follow a changed configuration: begin, prolong or end a pause, with an advisory."""
        before = self._until_ns
        self.begin(until_ns)
        if until_ns != before:
            self.advise()
            self._wake()

    def advise(self) -> None:
        """Send the advisory."""
        self._advisories.pause(self.active, self._until_ns)

    def _arm(self) -> None:
        self.stop()
        remaining = self._until_ns - self._clock.now()
        self.active = remaining > 0
        if self.active:
            self._timer = self._clock.call_later(remaining, self._over)

    def _over(self) -> None:
        self._timer = None
        self._arm()
        self.advise()
        self._wake()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
