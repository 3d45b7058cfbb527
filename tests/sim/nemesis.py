"""Fault injection: which faults happen, and when.

Belongs here: the faults, chosen at random, each for a while, within what Raft survives: at no time may more than a
minority of the voters have lost durable entries.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.frame import Kind
from lakestream.raft.core.messages import Membership
from tests.sim.acts import Act
from tests.sim.checks import Shadow
from tests.sim.core_node import CoreDisk, CoreHost, CoreProcess
from tests.sim.events import MS, S
from tests.sim.machine import TICK_NS, Process

if TYPE_CHECKING:
    from tests.sim.world import World

MAX_SLOWNESS = 200


class Nemesis:
    """Injects the faults."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = self._drawing = random
        self.over = False
        self.damaged: set[str] = set()
        plan = world.plan
        self.faults = [
            (3, self.crash),
            (2, self.crash_leader),
            (1, self.crash_all),
            (2, self.cut_one_way),
            (2, self.split),
            (2, self.isolate_leader),
            (3, self.heal),
            (0 if plan.true_clocks else 2, self.pause),
            (2, self.slow_disk),
            (0 if plan.true_clocks else 1, self.skew),
            (2, self.transfer),
            (1, self.step_down),
            (3 if plan.compaction else 0, self.compact),
            (4 if plan.changes else 0, self.change),
            (2 if plan.damage else 0, self.damage),
            (0 if plan.shell == "core" else 4, self.fail),
            (4 if plan.rollbacks else 0, self.copy_disk),
            (12 if plan.rollbacks else 0, self.restore_disk),
        ]
        self.copies: dict[str, tuple[CoreDisk, Shadow]] = {}

    def start(self) -> None:
        """Start injecting faults."""
        self._later()

    def end(self) -> None:
        """Stop injecting faults and repair everything."""
        self.over = True
        world = self.world
        world.network.heal()
        world.slow.clear()
        for name, machine in world.machines.items():
            machine.tick_ns = TICK_NS
            machine.host.mend()
            if machine.paused:
                self._resume(name)
            if not machine.up:
                world.start(name)

    def repair(self) -> None:
        """End processes whose disk failed, and start them again with a working disk."""
        for name, machine in self.world.machines.items():
            if machine.process is not None and machine.process.failed and not machine.paused:
                machine.end(power=True)
                self.start_later(name)

    def _later(self) -> None:
        self.world.events.after(self._drawing.randrange(1, 2 * self.world.plan.faults_every_ns), self._act)

    def _act(self) -> None:
        if self.over:
            return
        self._later()
        weights = [weight for weight, _ in self.faults]
        (fault,) = self._drawing.choices([fault for _, fault in self.faults], weights)
        self.world.perform(Act(self.world.events.now, fault.__name__, self._drawing.getrandbits(32)))

    def perform(self, act: Act) -> None:
        """Inject a fault."""
        self.random = Random(act.chance)
        if self.random.random() < 0.5:
            self.repair()
        self.world.count(f"fault {act.name}")
        fault: Callable[[], None] = getattr(self, act.name)
        fault()

    def _pick(self) -> str:
        return self.random.choice(self.world.names)

    def _leader(self) -> str:
        for name, machine in self.world.machines.items():
            if machine.process is self.world.leader() and machine.process is not None:
                return name
        return self._pick()

    # ------------------------------------------------------------------ machines
    def crash(self, name: str = "") -> None:
        """Kill a process or cut a machine's power; restart it later."""
        name = name or self._pick()
        machine = self.world.machines[name]
        if machine.up:
            machine.end(power=self.random.random() < 0.6)
            self.start_later(name)

    def start_later(self, name: str) -> None:
        """Restart a machine after a random time."""
        longest = self.random.choice((300 * MS, 2 * S, 8 * S))
        self.world.events.after(self.random.randrange(10 * MS, longest), lambda: self._start(name))

    def _start(self, name: str) -> None:
        if not self.world.machines[name].up:
            self.world.start(name)

    def crash_leader(self) -> None:
        """Crash the leader."""
        self.crash(self._leader())

    def crash_all(self) -> None:
        """Cut the power of all machines."""
        for name in self.world.names:
            self.crash(name)

    def pause(self) -> None:
        """Pause a process for a while, as SIGSTOP, a suspended machine or a long garbage collection does."""
        name = self._leader() if self.random.random() < 0.5 else self._pick()
        machine = self.world.machines[name]
        if machine.up and not machine.paused:
            machine.pause()
            self.world.network.paused(name)
            process = machine.process
            delay = self.random.randrange(50 * MS, self.random.choice((500 * MS, 6 * S)))
            self.world.events.after(delay, lambda: self._resume(name) if machine.process is process else None)

    def _resume(self, name: str) -> None:
        if self.world.machines[name].paused:
            self.world.network.resumed(name)
            self.world.machines[name].resume()
            self.world.read_everywhere()

    def slow_disk(self) -> None:
        """Slow a disk down, or restore its speed."""
        name = self._pick()
        self.world.slow[name] = self.random.choice((1, 20, MAX_SLOWNESS))
        self.world.say(f"the disk of {name} is {self.world.slow[name]} times slower than usual")

    def skew(self) -> None:
        """Change the rate of a clock."""
        name = self._pick()
        self.world.machines[name].tick_ns = int(TICK_NS * self.random.choice((0.5, 0.8, 1, 1.25, 2)))
        self.world.say(f"a tick of {name} takes {self.world.machines[name].tick_ns // MS} ms")

    # ------------------------------------------------------------------ network
    def _cut(self, sender: str, to: str) -> None:
        self.world.say(f"nothing from {sender} reaches {to}")
        self.world.network.cut(sender, to)

    def cut_one_way(self) -> None:
        """Cut one direction between two machines."""
        if len(self.world.names) > 1:
            self._cut(*self.random.sample(self.world.names, 2))

    def split(self) -> None:
        """Split the cluster in two, sometimes in one direction only."""
        names = self.world.names[:]
        self.random.shuffle(names)
        at = self.random.randint(0, len(names))
        one_way = self.random.random() < 0.3
        for left in names[:at]:
            for right in names[at:]:
                self._cut(left, right)
                if not one_way:
                    self._cut(right, left)

    def isolate_leader(self) -> None:
        """Cut the leader off in both directions, or in one."""
        leader, how = self._leader(), self.random.randrange(3)
        for name in self.world.names:
            if name != leader:
                if how != 1:
                    self._cut(leader, name)
                if how != 2:
                    self._cut(name, leader)

    def heal(self) -> None:
        """Restore all links."""
        self.world.say("the network is whole")
        self.world.network.heal()

    # ------------------------------------------------------------------ operators
    def transfer(self) -> None:
        """Transfer the leadership, perhaps to a member that is down."""
        self._at_leader("transfer", self.random.choice(["", *self.world.names]))

    def step_down(self) -> None:
        """Have the leader step down."""
        self._at_leader("step_down")

    def _at_leader(self, what: str, *args: object) -> None:
        machine = self.world.machines[self._leader()]
        process = machine.process
        if process is not None and process.leads:
            self.world.say(f"{machine.name}: {what} {args}")
            machine.run(process, lambda: getattr(process, what)(*args))

    def compact(self) -> None:
        """Compact the log of one member or of all."""
        names = self.world.names if self.random.random() < 0.4 else [self._pick()]
        for name in names:
            machine = self.world.machines[name]
            process = machine.process
            if process is not None and not machine.paused and not process.failed:
                machine.run(process, lambda process=process: process.compact(self.random))  # type: ignore[misc]

    def change(self) -> None:
        """Add, remove or promote members; sometimes request several changes at once."""
        if self._recovering():
            return
        for _ in range(self.random.choice((1, 1, 4))):
            leader = self.world.leader()
            if leader is not None:
                self._change(leader)

    def _change(self, leader: Process) -> None:
        voters, learners = list(leader.membership.voters), list(leader.membership.learners)
        name = self._pick()
        if name in voters:
            voters.remove(name)
            if self.random.random() < 0.5:
                learners.append(name)
        elif name in learners:
            learners.remove(name)
            voters.append(name)
        else:
            (learners if self.random.random() < 0.5 else voters).append(name)
        if voters:
            self._at_leader("change", Membership(tuple(sorted(voters)), tuple(sorted(learners))))

    # ------------------------------------------------------------------ disks
    def fail(self) -> None:
        """Schedule a failing write or sync, or a power cut in the middle of one."""
        self.world.machines[self._pick()].host.fail(self.random)

    def _recovering(self) -> bool:
        """Return True if a member whose disk was damaged has not recovered everything."""
        machines = self.world.machines
        for name in sorted(self.damaged):
            process = machines[name].process
            whole = process is not None and not machines[name].paused and not process.recovering and not process.failed
            if whole and not machines[name].host.suspect:
                self.damaged.discard(name)
        return bool(self.damaged)

    def damage(self) -> None:
        """Damage one machine's disk, unless another damaged machine has not recovered yet."""
        world = self.world
        leader = world.leader()
        if leader is None or self._recovering() or len(leader.membership.voters) < 3:
            return
        members = [world.machines[name].process for name in leader.membership.members]
        if all(process is not None and process.membership == leader.membership for process in members):
            name = self._pick()
            world.machines[name].end(power=world.plan.shell == "core" and self.random.random() < 0.5)
            if world.machines[name].host.damage(self.random):
                world.count("damages done")
                self.damaged.add(name)
            self.start_later(name)

    def copy_disk(self) -> None:
        """Copy a machine's disk, as a backup or a snapshot of a virtual machine does."""
        name = self._pick()
        host, shadow = self.world.machines[name].host, self.world.checker.shadows[name]
        if isinstance(host, CoreHost) and not host.disk.recovering and not shadow.lost:
            self.copies[name] = host.disk.copy(), msgspec.structs.replace(shadow, marks=list(shadow.marks))
            self.world.count("copies")

    def restore_disk(self, tries: int = 20) -> None:
        """Restart a machine with an old copy of its disk, if the others can detect that.

        They can if they know everything that it had confirmed, and it had confirmed nothing uncommitted. No other case
        is guaranteed.
        """
        world = self.world
        if self.over or self._recovering() or not self.copies:
            return
        name = self.random.choice(sorted(self.copies))
        disk, shadow = self.copies[name]
        machine, host = world.machines[name], world.machines[name].host
        assert isinstance(host, CoreHost)
        if not self._noticeable(name, disk, host):
            if tries:
                world.events.after(20 * MS, lambda: self.restore_disk(tries - 1))
            return
        machine.end(power=self.random.random() < 0.5)
        self.start_later(name)
        if not self._noticeable(name, disk, host):  # pending writes have arrived
            return
        world.say(f"the disk of {name} goes back from entry {host.disk.last} to {disk.last}")
        world.count("restores")
        world.checker.restored(name, shadow)
        host.disk = disk.copy()
        host.suspect = True
        del self.copies[name]
        self.damaged.add(name)

    def _noticeable(self, name: str, copy: CoreDisk, host: CoreHost) -> bool:
        world, now = self.world, host.disk
        # Members of an earlier configuration could be a majority in which no one knows.
        if any(frame.kind is Kind.MEMBERSHIP for frame in (*now.frames, *copy.frames)):
            return False
        if (
            len(now.membership.voters) < 3
            or now.membership != copy.membership
            or not copy.last < now.last <= len(world.checker.committed)
        ):
            return False
        for other in now.membership.members:
            process = world.machines[other].process
            if other == name:
                continue
            if not isinstance(process, CoreProcess) or process.recovering or process.membership != now.membership:
                return False
            if name not in process.core.confirmed or process.core.confirmed[name].index < now.last:
                return False
        return True
