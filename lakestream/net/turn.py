"""The turn of the event loop that all clients of a server share.

Belongs here: how much of the clients' input is handled before others get their turn (by time, and by the bytes that it
brings subscribers), what waits for a later turn, and the one write of each sink at the end. connection.py asks it
between commands, hub.py between messages.

Long work elsewhere is a generator of steps: `run_in_steps` shares the time of clients, `run_apart` has a slice of
its own. A constant named `AT_ONCE` bounds something else: an entry of the log or a message to another node (retention,
verify, directory_resolver), threads (replicas, scan), work that is spread over many calls (dedupe, outline, paths,
redelivery), one step (query, direct); or it tells small work from large (start, subject_pages). Only
raft/group/solo.py counts messages instead of time: it has no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from lakestream.net.interest.subscription import Congested
from lakestream.ports import Share

TURN_BYTES = 16 << 20
"""Bytes for subscribers in one turn (16 MiB) above which publishers wait for the next turn, so that large messages with
many subscribers do not keep other clients waiting."""


SLICE_NS = 2_000_000
"""Time in one turn of the event loop (2 ms) after which the large reads of clients wait for the next turn, and commands
that are handled one by one, so that a flood does not keep other clients waiting."""

LONE_SLICE_NS = 10_000_000
"""The same (10 ms) while a single client sends anything: larger parts cost less, and no other client waits."""

LONE_AFTER_NS = 10_000_000_000
"""Time without commands of other clients (10 s) after which a client counts as the only one."""

PARTS_AT_ONCE = 8
"""Number of clients in the middle of a command that are read whenever they send a small part of it. Of the others as
many are read again every PARTS_NS: thousands that send byte by byte take a fifth of the event loop's time."""

PARTS_NS = 1_000_000
"""Interval at which other clients in the middle of a command are read again (1 ms)."""


class Flushable(Protocol):
    """A sink with output to write at the end of the turn."""

    def flush(self) -> None:
        """Write everything gathered."""


class LaterTurn(Congested):
    """A receiver that has drained in a later turn with time left, in order."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._share.wait(callback)


class Turn(Share):
    """The current turn of the event loop.

    Args:
        call_soon: runs a callback in the next turn.
        call_last: runs a callback at the end of the turn; `call_soon` by default.
        call_next: runs a callback at the beginning of the next turn; `call_soon` by default.
        steady: returns the time (ns) by which turns are limited; None: they are not.
        call_later: runs a callback after some time (ns); `call_soon` at once by default.

    Attributes:
        overrun: the receiver for which the current publisher has to wait: a congested node or remote server, or the
            next turn.
        soon: runs a callback in the next turn.
        later: the receiver for which a client has to wait that has taken its time of this turn.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_last: Callable[[Callable[[], None]], object] | None = None,
        call_next: Callable[[Callable[[], None]], object] | None = None,
        steady: Callable[[], int] | None = None,
        call_later: Callable[[int, Callable[[], None]], object] | None = None,
    ) -> None:
        self.overrun: Congested | None = None
        self.soon = call_soon
        self.later = LaterTurn(self)
        self._steady = steady
        self._reader: object = None
        """The client that has sent the last commands; None: it has left."""
        self._changed = False
        """Another client had sent some before, since a turn last began."""
        self._readers = self._shared_until = 0
        self._until = self._nodes_until = 0  # 0: nothing has asked for the time in this turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._parts: deque[Callable[[], None]] = deque()
        self._parts_due = False
        self._begun = 0
        """Clients in the middle of a command that are read on."""
        self._last = call_last or call_soon
        self._later = call_next or call_soon
        self._timed = call_later or (lambda ns, callback: call_soon(callback))
        self._dirty: list[Flushable] = []
        self._spent = 0

    def dirty(self, sink: Flushable) -> None:
        """Note that `sink` has output; all of it is written once, at the end of the turn."""
        if not self._dirty:
            self._last(self.flush)
        self._dirty.append(sink)

    def read(self, size: int) -> None:
        """Count a buffer from a client. Every sink with output may have received all of it: an estimate without cost
        per message."""
        if self._dirty:
            self._spent += size * len(self._dirty)
            if self._spent > TURN_BYTES and self.overrun is None:
                self.overrun = self

    def entered(self, reader: object) -> None:
        """Note that a client has sent something: turns are shared while several do."""
        if reader is not self._reader:
            self._changed = self._changed or self._reader is not None
            self._reader = reader

    def joined(self) -> None:
        """Note that there is one more client."""
        self._readers += 1

    def left(self, reader: object) -> None:
        """Note that a client is gone."""
        self._readers -= 1
        if reader is self._reader:
            self._reader = None

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn."""
        self.soon(callback)

    def run_apart(self, steps: Iterator[None]) -> None:
        """Do steps in this turn and the following ones, SLICE_NS in each, whatever time clients take: the others wait
        for the outcome, such as the end of a lost node's interest."""
        until = self._steady() + SLICE_NS if self._steady is not None else 0
        for _ in steps:
            if until and self._steady is not None and self._steady() > until:
                self.soon(lambda: self.run_apart(steps))
                return

    def is_over(self) -> bool:
        """Return True if clients have taken their time of this turn. The first call begins it."""
        if self._steady is None:
            return False
        if self._until:
            return self._steady() > self._until
        now = self._steady()
        if self._changed:
            self._changed, self._shared_until = False, now + LONE_AFTER_NS
        shared = self._readers > 1 and now < self._shared_until
        self._until = now + (SLICE_NS if shared else LONE_SLICE_NS)
        self._later(self._next)
        return False

    def is_over_for_nodes(self) -> bool:
        """Return True if the other nodes of the cluster have taken their time of this turn, SLICE_NS beside that of
        clients. The first call begins it."""
        if self._steady is None:
            return False
        if self._nodes_until:
            return self._steady() > self._nodes_until
        self._nodes_until = self._steady() + SLICE_NS
        self._later(self._next_for_nodes)
        return False

    def _next_for_nodes(self) -> None:
        self._nodes_until = 0

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn that has time left, in order."""
        if self._steady is None:
            self.soon(callback)
            return
        self._waiting.append(callback)
        if not self._until:
            self.is_over()

    def begin(self) -> bool:
        """Return True if a client that has sent a small part of a command is read on at once, until `complete`. Return
        False if it has to `wait_for_more`: several others are in the middle of one, or this turn is over."""
        if self._begun >= PARTS_AT_ONCE or self.is_over():
            return False
        self._begun += 1
        return True

    def complete(self) -> None:
        """Note that the command of a client that did `begin` is complete, or will never be."""
        self._begun -= 1

    def wait_for_more(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn, in order, a few every PARTS_NS: a client has sent a small part of a command."""
        self._parts.append(callback)
        if not self._parts_due:
            self._parts_due = True
            self._timed(PARTS_NS, self._read_parts)

    def _read_parts(self) -> None:
        for _ in range(min(PARTS_AT_ONCE, len(self._parts))):
            self._parts.popleft()()
        self._parts_due = bool(self._parts)
        if self._parts_due:
            self._timed(PARTS_NS, self._read_parts)

    def _next(self) -> None:
        self._until = 0
        waiting = self._waiting
        for _ in range(len(waiting)):
            if self.is_over():
                return
            waiting.popleft()()

    def flush(self) -> None:
        """Write all output that was gathered."""
        dirty, self._dirty = self._dirty, []
        self._spent = 0
        for sink in dirty:
            sink.flush()
