"""A machine: a disk that survives, and a process that does not.

Belongs here: starting and ending the process, standing still, how fast its clock runs, and that everything that
happens to a process happens through `run`, after which the checkers look at it.
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
    """What runs on a machine: a member of the group under a shell. One per kind of shell."""

    leads: bool
    lease_valid: bool
    term: int
    leader: str
    applied: int
    recovering: bool
    failed: bool
    dead: bool
    """It ended while it did something to the disk."""
    power: bool
    """By a power cut."""
    membership: Membership

    def start(self) -> None:
        """Read the disk and take part."""

    def tick(self) -> None:
        """100 ms passed, by this machine's clock."""

    def receive(self, sender: str, channel: Channel, payload: bytes) -> None:
        """A buffer arrived."""

    def node_changed(self, node: str, up: bool) -> None:
        """A connection came or went."""

    def propose(self, bodies: Sequence[bytes]) -> bool:
        """Clients want these stored. False when this process refuses."""

    def read(self) -> None:
        """A client reads."""

    def transfer(self, to: str) -> None:
        """Hand the leadership over, to anybody when `to` is ""."""

    def step_down(self) -> None:
        """Lead no more."""

    def change(self, membership: Membership) -> None:
        """Change who belongs to the group."""

    def compact(self, random: Random) -> None:
        """Take a snapshot and drop a part of the log that it covers."""

    def observe(self) -> None:
        """Show the checkers what changed."""

    def end(self) -> None:
        """The process is gone; whatever still refers to it must not act any more."""

    def log(self) -> list[tuple[int, int]]:
        """(index, term) of the entries in the log."""


class Host(Protocol):
    """What of a machine survives its process: the disk."""

    suspect: bool
    """The disk was rolled back, and nobody has noticed yet."""

    def process(self) -> Process:
        """A new process."""

    def ended(self, power: bool) -> None:
        """The process is gone; with `power`, so are unsynced bytes."""

    def fail(self, random: Random) -> None:
        """Have a coming write or sync fail."""

    def mend(self) -> None:
        """No faults of the disk are to come any more."""

    def damage(self, random: Random) -> bool:
        """Turn bits on the disk of a machine that is down. False when there is nothing that could be damaged."""


class Machine:
    """One node of the cluster."""

    def __init__(self, name: str, host: Host, events: Events, trace: Callable[[str], None]) -> None:
        self.name = name
        self.host = host
        self.events = events
        self.trace = trace
        self.process: Process | None = None
        self.tick_ns = TICK_NS
        self.on_end: Callable[[bool], None] = lambda power: None
        self.on_death: Callable[[], None] = lambda: None
        """It ended, and nobody outside had a hand in it."""
        self._held: list[Callable[[], None]] | None = None  # while it stands still: what happens to it afterwards
        self._boots = 0

    @property
    def up(self) -> bool:
        """Whether a process is there, be it standing still."""
        return self.process is not None

    @property
    def paused(self) -> bool:
        """Whether the process stands still."""
        return self._held is not None

    def start(self) -> None:
        """Begin a process."""
        assert self.process is None
        self._boots += 1
        self.trace(f"{self.name} starts")
        process = self.process = self.host.process()
        self.run(process, process.start)
        if self.process is process:
            self._tick_later(process)

    def end(self, power: bool) -> None:
        """The process ends, and with `power` the machine too: unsynced bytes are lost."""
        if self.process is None:
            return
        self.trace(f"{self.name} {'loses power' if power else 'is killed'}")
        process, self.process, self._held = self.process, None, None
        process.end()
        self.host.ended(power)
        self.on_end(power)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None and self._held is None:
            self.trace(f"{self.name} stands still")
            self._held = []

    def resume(self) -> None:
        """SIGCONT: all that came meanwhile happens now."""
        held, self._held = self._held, None
        if held is not None:
            self.trace(f"{self.name} goes on")
        for call in held or ():
            call()

    def run(self, process: Process, call: Callable[[], None]) -> None:
        """Something happens to `process`, unless it is gone."""
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
        """Something happens to `process` later, if it is still there."""
        self.events.after(delay_ns, lambda: self.run(process, call))

    def _tick_later(self, process: Process) -> None:
        self.events.after(self.tick_ns, lambda: self._tick(process))

    def _tick(self, process: Process) -> None:
        if self.process is process:
            if self._held is None:  # timers do not pile up while a process stands still
                self.run(process, process.tick)
            self._tick_later(process)
