"""A machine: a disk that survives, and a process that does not.

Belongs here: starting, ending and pausing the process, the rate of its clock, and `run`, through which every event
reaches a process and after which the checkers look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from lakestream.raft.core.messages import Membership
from lakestream.raft.group.ports import Channel
from tests.sim.events import MS, Events

TICK_NS = 100 * MS


class Process(Protocol):
    """Process on a machine: a member of the group under a shell. One implementation per kind of shell."""

    leads: bool
    term: int
    leader: str
    applied: int
    recovering: bool
    failed: bool
    dead: bool
    """The process ended in the middle of a disk operation."""
    power: bool
    """The cause was a power cut."""
    membership: Membership

    def start(self) -> None:
        """Read the disk and take part."""

    def tick(self) -> None:
        """Handle a tick: 100 ms have passed by this machine's clock."""

    def receive(self, sender: str, channel: Channel, payload: bytes) -> None:
        """Handle a received buffer."""

    def node_changed(self, node: str, up: bool) -> None:
        """Handle a connection that came up or went down."""

    def propose(self, bodies: Sequence[bytes]) -> bool:
        """Propose client commands. False if this process refuses."""

    def read(self) -> None:
        """Start a client's read."""

    def transfer(self, to: str) -> None:
        """Transfer the leadership to a member, or to any if `to` is ""."""

    def step_down(self) -> None:
        """Give up the leadership."""

    def change(self, membership: Membership) -> None:
        """Propose a membership change."""

    def compact(self, random: Random) -> None:
        """Take a snapshot and drop a part of the log that it covers."""

    def observe(self) -> None:
        """Show the checkers what has changed."""

    def end(self) -> None:
        """End the process; remaining references to it must have no effect."""

    def log(self) -> list[tuple[int, int]]:
        """Return (index, term) of the entries in the log."""


class Host(Protocol):
    """State of a machine that survives its process: the disk."""

    suspect: bool
    """The disk was rolled back, which has not been detected yet."""

    def process(self) -> Process:
        """Return a new process."""

    def ended(self, power: bool) -> None:
        """End the process; with `power`, lose unsynced bytes."""

    def fail(self, random: Random) -> None:
        """Make a later write or sync fail."""

    def mend(self) -> None:
        """Cancel the scheduled faults of the disk."""

    def damage(self, random: Random) -> bool:
        """Damage the disk of a stopped machine. False if there is nothing to damage."""


class Machine:
    """Machine of one node."""

    def __init__(self, name: str, host: Host, events: Events, trace: Callable[[str], None]) -> None:
        self.name = name
        self.host = host
        self.events = events
        self.trace = trace
        self.process: Process | None = None
        self.tick_ns = TICK_NS
        self.on_end: Callable[[bool], None] = lambda power: None
        self.on_death: Callable[[], None] = lambda: None
        """Called when the process ends by itself."""
        self._held: list[Callable[[], None]] | None = None  # events that wait while the process is paused
        self._boots = 0

    @property
    def up(self) -> bool:
        """Return True if a process runs, even a paused one."""
        return self.process is not None

    @property
    def paused(self) -> bool:
        """Return True if the process is paused."""
        return self._held is not None

    def start(self) -> None:
        """Start a process."""
        assert self.process is None
        self._boots += 1
        self.trace(f"{self.name} starts")
        process = self.process = self.host.process()
        self.run(process, process.start)
        if self.process is process:
            self._tick_later(process)

    def end(self, power: bool) -> None:
        """End the process, and with `power` the machine too: unsynced bytes are lost."""
        if self.process is None:
            return
        self.trace(f"{self.name} {'loses power' if power else 'is killed'}")
        process, self.process, self._held = self.process, None, None
        process.end()
        self.host.ended(power)
        self.on_end(power)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does."""
        if self.process is not None and self._held is None:
            self.trace(f"{self.name} stands still")
            self._held = []

    def resume(self) -> None:
        """Resume the process, as SIGCONT does; the held events happen now."""
        held, self._held = self._held, None
        if held is not None:
            self.trace(f"{self.name} goes on")
        for call in held or ():
            call()

    def run(self, process: Process, call: Callable[[], None]) -> None:
        """Run an event of `process`, unless that process has ended."""
        if self.process is not process:
            return
        if self._held is not None:
            self._held.append(lambda: self.run(process, call))
            return
        try:
            call()
            process.observe()
        except BaseException:
            if not process.dead:
                raise
        if process.dead and self.process is process:
            self.end(process.power)
            self.on_death()

    def after(self, process: Process, delay_ns: int, call: Callable[[], None]) -> None:
        """Run an event of `process` later, if that process still runs then."""
        self.events.after(delay_ns, lambda: self.run(process, call))

    def _tick_later(self, process: Process) -> None:
        self.events.after(self.tick_ns, lambda: self._tick(process))

    def _tick(self, process: Process) -> None:
        if self.process is process:
            if self._held is None:  # a paused process's timers do not accumulate
                self.run(process, process.tick)
            self._tick_later(process)
