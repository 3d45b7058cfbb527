"""Paths: subscriptions on a remote whose messages are delivered to subjects here.

Belongs here: subscribing there while there is interest here, and dropping paths when there are too many. Which subjects
these are is decided in domain.py.

Interest in the literal subject is noticed at once, interest through a wildcard by a check every second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from lakestream.net.remote.bodies import DeliverTarget
from lakestream.net.remote.link import RemoteLink
from lakestream.ports import Clock, Single, Subscribed, Timer

MAX_PATHS = 16_384
"""Paths of a remote. Beyond that, paths without interest are dropped, then the one that is idle longest."""

IDLE_NS = 600_000_000_000
"""A path for one pull that was idle for this long (10 min) is dropped."""

CHECK_NS, CHECKED_AT_ONCE = 1_000_000_000, 2000
"""Interval of interest checks (1 s), and paths checked at once."""

Deliver = Callable[["Path", Sequence[Single]], bool]
"""Delivers messages; returns False when there is no interest any more."""


class Path:
    """One path.

    Attributes:
        to: its two subjects, the queue group, and whether deliveries are acked.
        key: its key in `Paths`.
        used_ns: time of its last use.
    """

    def __init__(self, paths: Paths, key: bytes, to: DeliverTarget) -> None:
        self.to, self.key = to, key
        self.used_ns = 0
        self._paths = paths
        self._listening: Subscribed | None = None
        self._watch = paths.link.hub.watch_interest(to.here, to.group, self._changed)

    @property
    def live(self) -> bool:
        """Return True while it is subscribed."""
        return self._listening is not None

    def check(self) -> None:
        """Subscribe if there is interest here, else unsubscribe."""
        self._changed(True)

    def _changed(self, _: bool) -> None:
        link = self._paths.link
        if not link.hub.interest(self.to.here, self.to.group):
            if self._listening is not None:
                self._listening.cancel()
                self._listening = None
                self._paths.moved(self)
        elif self._listening is None:
            self._listening = link.subscribe(self.to.there, self._take, self.to.group)
            self._paths.moved(self)

    def _take(self, messages: Sequence[Single]) -> None:
        self._paths.touch(self)
        if not self._paths.deliver(self, messages):
            self.check()

    def close(self) -> None:
        """Drop the path."""
        self._watch.cancel()
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None


class Paths:
    """All paths of one kind.

    Args:
        link: to the remote.
        clock: time.
        deliver: delivers their messages.
        drop_idle: drop idle paths.
    """

    def __init__(self, link: RemoteLink, clock: Clock, deliver: Deliver, *, drop_idle: bool) -> None:
        self.link, self.deliver = link, deliver
        self._clock, self._drop_idle = clock, drop_idle
        self._live: OrderedDict[bytes, Path] = OrderedDict()
        self._dormant: OrderedDict[bytes, Path] = OrderedDict()
        self._to_check: list[Path] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._live) + len(self._dormant)

    def get(self, key: bytes) -> Path | None:
        return self._live.get(key) or self._dormant.get(key)

    def open(self, key: bytes, to: DeliverTarget) -> Path:
        """Return the path with that key; one with another target is replaced."""
        path = self.get(key)
        if path is not None and path.to != to:
            self._drop(path)
            path = None
        if path is None:
            path = self._dormant[key] = Path(self, key, to)
        self.touch(path)
        path.check()
        self._make_room(path)
        return path

    def touch(self, path: Path) -> None:
        """Note that the path was used."""
        path.used_ns = self._clock.now()
        (self._live if path.live else self._dormant).move_to_end(path.key)

    def moved(self, path: Path) -> None:
        """Note that the path is subscribed, or no longer."""
        if path.key in self._live or path.key in self._dormant:
            self._live.pop(path.key, None)
            self._dormant.pop(path.key, None)
            (self._live if path.live else self._dormant)[path.key] = path
            if self._live and self._timer is None:
                self._timer = self._clock.call_later(CHECK_NS, self._check)

    def _check(self) -> None:
        """Check the interest of the next paths."""
        self._timer = None
        if not self._to_check:
            self._to_check = list(self._live.values())
        checked, self._to_check = self._to_check[:CHECKED_AT_ONCE], self._to_check[CHECKED_AT_ONCE:]
        for path in checked:
            if path.live:
                path.check()
        if self._live and self._timer is None:
            self._timer = self._clock.call_later(CHECK_NS, self._check)

    def _make_room(self, newest: Path) -> None:
        while len(self) > MAX_PATHS:
            self._drop(next(iter((self._dormant or self._live).values())))
        before = newest.used_ns - IDLE_NS
        for kept in (self._dormant, self._live) if self._drop_idle else ():
            while kept and (oldest := next(iter(kept.values()))).used_ns < before:
                self._drop(oldest)

    def _drop(self, path: Path) -> None:
        self._live.pop(path.key, None)
        self._dormant.pop(path.key, None)
        path.close()

    def close(self) -> None:
        """Drop all paths."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for path in (*self._live.values(), *self._dormant.values()):
            self._drop(path)
