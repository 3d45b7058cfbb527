"""Faults of the simulated cluster: which happen, and when.

Belongs here: the faults, chosen at random, each for a while, within what the servers promise to survive.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.sim.acts import Act, replay
from tests.sim.disk import SimFiles
from tests.sim.events import MS, S
from tests.sim.whole.checks import streams_of
from tests.sim.whole.compactor import CompactorHost
from tests.sim.whole.machine import Host

if TYPE_CHECKING:
    from tests.sim.whole.world import World


SLOW, FAST = 0.9, 1.1
"""Rates of timers that a lease allows for (raft/core/leader.py)."""


OF_SERVERS = (
    (3, "kill"),
    (3, "cut_power"),
    (1, "cut_all_power"),
    (2, "isolate"),
    (2, "cut_one_way"),
    (2, "depose"),
    (3, "heal"),
    (2, "pause"),
    (2, "slow_disk"),
    (2, "fail_midway"),
    (1, "step_clock"),
    (1, "skew"),
    (1, "fail_once"),
    (1, "fill_disk"),
    (1, "damage"),
)
OF_THE_LAKE = (
    (2, "lake_away"),
    (2, "lake_cut"),
    (1, "lake_slow"),
    (2, "lake_flaky"),
    (3, "kill_compactor"),
    (2, "pause_compactor"),
)
FAULTS = tuple(name for _, name in OF_SERVERS + OF_THE_LAKE)
"""Names of the methods of `Nemesis` that inject faults, with their weights above."""


class Nemesis:
    """Injects the faults."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random, self._drawing = world, random, random
        self.over = self.damaged = self._deposing = False
        self.acts: list[Act] = []
        self._began = 0
        self._unwell: dict[str, SimFiles] = {}
        """Files of processes that may take no writes until a restart (docs/failure-modes.md), by host."""
        names = world.plan.faults
        every = OF_SERVERS + (OF_THE_LAKE if world.plan.lake else ())
        self.faults = [(weight, name) for weight, name in every if not names or name in names]

    def start(self) -> None:
        """Start injecting faults."""
        self._began = self.world.events.now
        if self.world.plan.acts is None:
            self._later()
        else:
            replay(self.world.events, self.world.plan.acts, self._perform)

    def end(self) -> None:
        """Stop, and repair everything."""
        self.over = True
        self.heal()
        for host in self.world.hosts.values():
            self._resume(host)
            host.slow = 1
            if self._unwell.get(host.name) is host.files and host.files is not None:
                host.end(power=True)
            if host.files is not None:
                host.files.slow, host.files.cut_after, host.files.fail, host.files.full = 1, -1, "", False
            if host.loop is not None:
                host.loop.clock_rate = 1.0
            self._start(host)
        self.world.lake.calm()
        for compactor in self.world.compactors.values():
            compactor.go_on()
            compactor.start()

    def _later(self) -> None:
        self.world.events.after(self._drawing.randrange(1, 2 * self.world.plan.faults_every_ns), self._act)

    def _act(self) -> None:
        if self.over or not self.faults:
            return
        self._later()
        weights = [weight for weight, _ in self.faults]
        (name,) = self._drawing.choices([name for _, name in self.faults], weights)
        since = self.world.events.now - self._began
        self._perform(Act(since, name, self._drawing.getrandbits(32)))

    def _perform(self, act: Act) -> None:
        if self.over:
            return
        self.acts.append(act)
        self.random = Random(act.chance)
        self.world.counts[f"fault {act.name}"] += 1
        fault: Callable[[], None] = getattr(self, act.name)
        fault()

    def _pick(self) -> Host:
        return self.random.choice(list(self.world.hosts.values()))

    # ------------------------------------------------------------------ machines
    def _end(self, host: Host, *, power: bool) -> None:
        if host.node is not None:
            self.world.say(f"{host.name} {'loses power' if power else 'is killed'}")
            host.end(power=power)
            self.start_later(host)

    def kill(self) -> None:
        """Kill a server."""
        self._end(self._pick(), power=False)

    def cut_power(self) -> None:
        """Cut the power of a machine."""
        self._end(self._pick(), power=True)

    def cut_all_power(self) -> None:
        """Cut the power of all machines at once."""
        for host in self.world.hosts.values():
            self._end(host, power=True)

    def start_later(self, host: Host) -> None:
        """Start a server again after a while."""
        longest = self.random.choice((300 * MS, 2 * S, 8 * S))
        self.world.events.after(self.random.randrange(10 * MS, longest), lambda: self._start(host))

    def _start(self, host: Host) -> None:
        if host.node is None:
            self.world.say(f"{host.name} starts")
            host.start()

    def pause(self) -> None:
        """Pause a server for a while, as SIGSTOP does."""
        host = self._pick()
        if host.loop is not None and not host.paused:
            self.world.say(f"{host.name} stands still")
            host.loop.pause()
            loop = host.loop
            delay = self.random.randrange(50 * MS, self.random.choice((500 * MS, 6 * S)))
            self.world.events.after(delay, lambda: self._resume(host) if host.loop is loop else None)

    def _resume(self, host: Host) -> None:
        if host.loop is not None and host.paused:
            self.world.say(f"{host.name} goes on")
            host.loop.go_on()

    def slow_disk(self) -> None:
        """Slow a disk down, or restore its speed."""
        host = self._pick()
        host.slow = self.random.choice((1, 10, 100))
        if host.files is not None:
            host.files.slow = host.slow
        self.world.say(f"the disk of {host.name} is {host.slow} times slower than usual")

    def fail_midway(self) -> None:
        """Have a power cut or a kill come in the middle of one of the next writes and syncs."""
        host = self._pick()
        if host.files is not None:
            host.files.cut_after, host.files.power = self.random.randrange(8), self.random.random() < 0.5

    def fail_once(self) -> None:
        """Have one of the next writes or syncs fail; the machine is started anew a while later, as an operator does."""
        host = self._pick()
        files = host.files
        if files is not None:
            self._unwell[host.name] = files
            files.fail, files.code = self.random.choice((("sync", errno.EIO), ("write", errno.EIO)))
            self.world.say(f"a {files.fail} of {host.name} will fail")
            self.world.events.after(
                self.random.randrange(100 * MS, 5 * S),
                lambda: self._end(host, power=True) if host.files is files and not self.over else None,
            )

    def fill_disk(self) -> None:
        """Fill a disk for a while; with room again, the server is started anew, as an operator does."""
        host = self._pick()
        files = host.files
        if files is not None:
            self._unwell[host.name] = files
            files.full = True
            self.world.say(f"the disk of {host.name} is full")
            self.world.events.after(self.random.randrange(100 * MS, 5 * S), lambda: self._empty(host, files))

    def _empty(self, host: Host, files: SimFiles) -> None:
        files.full = False
        self.world.say(f"the disk of {host.name} has room")
        if host.files is files and not self.over:
            self._end(host, power=False)

    def damage(self) -> None:
        """Flip a bit in a segment of a replicated stream, once in a run: more could be in the same entry."""
        host = self._pick()
        replicated = tuple(
            f"/streams/{name}/log/" for name, stream in self.world.workload.streams.items() if stream.replicas > 1
        )
        paths = [path for path, inode in host.disk.files.items() if path.endswith(".seg") and len(inode.data) > 100]
        paths = sorted(path for path in paths if any(part in path for part in replicated))
        if self.damaged or not paths:
            return
        self.damaged = True
        path = self.random.choice(paths)
        offset = self.random.randrange(len(host.disk.files[path].data))
        self.world.say(f"a bit turns at {offset} of {path} on {host.name}")
        self._end(host, power=False)
        host.disk.flip(path, offset, self.random.randrange(8))

    def step_clock(self) -> None:
        """Step the system's clock of a machine by up to a minute."""
        host = self._pick()
        host.offset_ns = self.random.choice((0, self.random.randrange(-60 * S, 60 * S)))
        self.world.say(f"the clock of {host.name} is {host.offset_ns / S:+.3f} s off")

    def skew(self) -> None:
        """Change the rate of a process's timers."""
        host = self._pick()
        if host.loop is not None:
            host.loop.clock_rate = self.random.choice((0.8, 1.0, 1.25))
            self.world.say(f"timers of {host.name} run at {host.loop.clock_rate}")

    # ------------------------------------------------------------------ network
    def _cut(self, one: Host, other: Host, *, both: bool) -> None:
        self.world.say(f"nothing from {one.name} reaches {other.name}{', nor back' if both else ''}")
        self.world.network.cut(one.address, other.address)
        if both:
            self.world.network.cut(other.address, one.address)

    def isolate(self) -> None:
        """Cut a machine off the others."""
        host = self._pick()
        for other in self.world.hosts.values():
            if other is not host:
                self._cut(host, other, both=True)

    def depose(self) -> None:
        """Cut the leader of a stream off for a while, with timers that run as late as leases allow for.

        Another member may then be elected while the leader takes itself for one. Of five machines one stays with it,
        whose answers are no quorum.
        """
        led = [
            host
            for host in self.world.hosts.values()
            for name, stream in streams_of(host).items()
            if stream.leading and name in self.world.workload.streams and self.world.workload.streams[name].replicas > 1
        ]
        if not led or self._deposing:
            return
        self._deposing = True
        leader = self.random.choice(led)
        others = [host for host in self.world.hosts.values() if host is not leader]
        few = [leader, self.random.choice(others)] if len(others) > 3 else [leader]
        for host in self.world.hosts.values():
            if host.loop is not None:
                host.loop.clock_rate = SLOW if host is leader else FAST
            for one in few if host not in few else ():
                self._cut(one, host, both=True)
        self.world.events.after(
            self.random.randrange(800 * MS, self.random.choice((1500 * MS, 4 * S))), self._reinstate
        )

    def _reinstate(self) -> None:
        self._deposing = False
        self.heal()
        for host in self.world.hosts.values():
            if host.loop is not None:
                host.loop.clock_rate = 1.0

    def cut_one_way(self) -> None:
        """Cut one direction between two machines."""
        one, other = self.random.sample(list(self.world.hosts.values()), 2)
        self._cut(one, other, both=False)

    def heal(self) -> None:
        """Restore all links."""
        self.world.say("the network is whole")
        self.world.network.heal()

    # ------------------------------------------------------------------ lake
    def _calm_later(self) -> None:
        """End the outages of the lake after a while."""
        longest = self.random.choice((500 * MS, 3 * S, 15 * S))
        self.world.events.after(self.random.randrange(10 * MS, longest), self._calm)

    def _calm(self) -> None:
        self.world.say("the lake is well")
        self.world.lake.calm()

    def lake_away(self) -> None:
        """Have the lake answer nobody for a while."""
        self.world.say("the lake is away")
        self.world.lake.away = True
        self._calm_later()

    def lake_cut(self) -> None:
        """Cut a server or a compactor off the lake for a while."""
        hosts: list[Host | CompactorHost] = [*self.world.hosts.values(), *self.world.compactors.values()]
        host = self.random.choice(hosts)
        self.world.say(f"{host.name} cannot reach the lake")
        self.world.lake.cut.add(host.address)
        self._calm_later()

    def lake_slow(self) -> None:
        """Slow the lake down for a while."""
        self.world.lake.slow = self.random.choice((5, 50))
        self.world.say(f"the lake is {self.world.lake.slow} times slower than usual")
        self._calm_later()

    def lake_flaky(self) -> None:
        """Have some requests to the lake fail for a while, before or after they took effect."""
        self.world.lake.flaky = self.random.choice((0.05, 0.5))
        self.world.say(f"{self.world.lake.flaky:.0%} of the requests to the lake fail")
        self._calm_later()

    def kill_compactor(self) -> None:
        """Kill a compactor."""
        compactor = self._pick_compactor()
        if compactor.loop is not None:
            self.world.say(f"{compactor.name} is killed")
            compactor.end(power=False)
            self.world.events.after(self.random.randrange(10 * MS, 5 * S), compactor.start)

    def pause_compactor(self) -> None:
        """Pause a compactor, for longer than its lease at times."""
        compactor = self._pick_compactor()
        if compactor.loop is not None and not compactor.paused:
            self.world.say(f"{compactor.name} stands still")
            compactor.loop.pause()
            delay = self.random.randrange(50 * MS, self.random.choice((500 * MS, 15 * S)))
            self.world.events.after(delay, compactor.go_on)

    def _pick_compactor(self) -> CompactorHost:
        """Return the one that works, more often than another."""
        working = [each for each in self.world.compactors.values() if each.works]
        if working and self.random.random() < 0.8:
            return working[0]
        return self.random.choice(list(self.world.compactors.values()))
