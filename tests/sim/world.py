"""Simulated cluster for one seed.

Belongs here: machines, network and checkers together, the clients, the end of a run (all faults stop, and then all
members must agree), and the trace. nemesis.py chooses the faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec

from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import Membership
from lakestream.raft.core.ready import RaftOptions
from lakestream.raft.group.ports import Channel
from tests.sim.acts import Act, replay
from tests.sim.checks import Checker, Violation
from tests.sim.core_node import CoreHost
from tests.sim.events import MS, US, Events, S
from tests.sim.machine import TICK_NS, Host, Machine, Process
from tests.sim.nemesis import Nemesis
from tests.sim.network import Network, Weather

CALM_NS = 60 * S
"""Virtual time within which a cluster without faults must agree."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of a run, drawn from the seed unless they are set. Times in ns."""

    seed: int
    shell: str = "core"
    nodes: int = 3
    spare: int = 0
    fault_ns: int = 15 * S
    faults_every_ns: int = 1200 * MS
    writes_every_ns: int = 150 * MS
    damage: bool = True
    changes: bool = True
    true_clocks: bool = False
    seal_bytes: int = 2000
    retain_segments: int = 0
    recent_bytes: int = 4 << 20
    load_bytes: int = 4 << 20
    mark_bytes: int = 256 << 10
    compaction: bool = True
    rollbacks: bool = False
    options: RaftOptions = RaftOptions()
    weather: Weather = Weather(True, 100 * US, 5 * MS)
    acts: tuple[Act, ...] | None = None
    """Exactly these faults and operations of clients; None: drawn from the seed."""


def plan_of(seed: int, shell: str = "core") -> Plan:
    """Return the plan for a seed."""
    random = Random(f"plan {seed}")
    nodes = random.choice((1, 2, 3, 3, 3, 3, 5, 5))
    ordered = random.random() < (0.4 if shell == "core" else 0.7)
    slow = random.choice((2 * MS, 20 * MS, 150 * MS))
    options = RaftOptions(
        election_ticks=random.randint(4, 10),
        max_inflight=random.choice((1, 2, 8, 8, 64, 64)),
        max_inflight_bytes=random.choice((100, 8 << 20, 8 << 20, 8 << 20)),
        max_append_bytes=random.choice((1, 30, 200, 200, 1 << 20, 1 << 20)),
        max_uncommitted_bytes=random.choice((200, 64 << 20)),
        quiesce_ticks=random.choice((0, 3, 20)),
        transfer_ticks=random.randint(4, 10),
        install_ticks=random.randint(5, 20),
        eager_commit=random.random() < 0.5,
    )
    busy = (10 * MS, 50 * MS, 300 * MS) if shell == "group" else (30 * MS, 150 * MS, 1 * S)
    narrow = options.max_inflight == 1 or min(options.max_append_bytes, options.max_inflight_bytes) <= 100
    return Plan(
        seed=seed,
        shell=shell,
        nodes=nodes,
        spare=random.choice((0, 0, 1, 2)),
        fault_ns=random.choice((8 * S, 15 * S, 30 * S)),
        faults_every_ns=random.choice((150 * MS, 400 * MS, 1 * S, 3 * S)),
        writes_every_ns=1 * S if narrow else random.choice(busy),
        damage=random.random() < 0.5,
        changes=random.random() < 0.5,
        true_clocks=random.random() < 0.4,
        seal_bytes=random.choice((300, 300, 1000, 3000, 1 << 20)),
        retain_segments=random.choice((0, 1, 1, 3)),
        recent_bytes=random.choice((100, 2000, 4 << 20)),
        load_bytes=random.choice((100, 2000, 4 << 20)),
        mark_bytes=random.choice((100, 1000, 256 << 10)),
        compaction=random.random() < 0.6,
        rollbacks=shell == "core" and nodes > 2 and Random(f"rollbacks {seed}").random() < 0.5,
        options=options,
        weather=Weather(
            ordered=ordered,
            min_delay=50 * US,
            max_delay=slow,
            loss=0.0 if ordered else random.choice((0.0, 0.02, 0.15)),
            double=0.0 if ordered else random.choice((0.0, 0.02, 0.15)),
        ),
    )


class World:
    """One run. `core_class` is the class of the members' core, which the mutation tests replace."""

    def __init__(self, plan: Plan, core_class: type[Core] = Core, tracing: bool = False) -> None:
        self.plan = plan
        self.core_class = core_class
        self.options = plan.options
        self.events = Events()
        self.trace: list[str] = []
        self.tracing = tracing
        self.random = self._drawing = Random(f"world {plan.seed}")
        self.names = [chr(ord("a") + number) for number in range(plan.nodes + plan.spare)]
        self.founders = Membership(tuple(self.names[: plan.nodes]))
        self.checker = Checker(self.names)
        self.network = Network(self.names, self.events, Random(f"network {plan.seed}"), plan.weather)
        self.network.deliver = self._deliver
        self.network.on_change = self._node_changed
        self.slow: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.acts: list[Act] = []
        self.proposed = 0
        self.calm = False
        self.machines: dict[str, Machine] = {}
        for name in self.names:
            self.machines[name] = self._machine(name)
        self.nemesis = Nemesis(self, Random(f"nemesis {plan.seed}"))

    def _machine(self, name: str) -> Machine:
        random = Random(f"machine {name} {self.plan.seed}")
        host = CoreHost(self, name, random) if self.plan.shell == "core" else group_host(self, name, random)
        machine = Machine(name, host, self.events, self.say)
        machine.on_end = lambda power: self.network.went_down(name, at_once=not power)
        machine.on_death = lambda: self.nemesis.start_later(name)
        return machine

    # ------------------------------------------------------------------ the run
    def run(self) -> None:
        """Run with faults, then without, until all members agree.

        Raises:
            Violation: a property does not hold.
            Exception: whatever the code under test raised.
        """
        for machine in self.machines.values():
            machine.start()
        if self.plan.acts is None:
            self.work()
            self.nemesis.start()
        else:
            replay(self.events, self.plan.acts, self.perform)
        self.events.run_until(self.plan.fault_ns)
        self.nemesis.end()
        self.calm = True
        self.say("calm")
        limit = self.events.now + CALM_NS
        mark = -1
        while self.events.now < limit:
            self.events.run_until(self.events.now + 500 * MS)
            self.nemesis.repair()
            if mark < 0 and self.write([self.next_command()]):
                mark = self.proposed
            if mark >= 0 and self.agreed():
                self._check_end()
                return
            if mark >= 0 and self.events.now % (5 * S) < 500 * MS:
                mark = -1  # that one may have been lost with a leader
        raise Violation(f"liveness: no agreement {CALM_NS // S} s after the last fault: {self.describe()}")

    def agreed(self) -> bool:
        """Return True if every member has every entry in its log and has applied it."""
        leader = self.leader()
        if leader is None or leader.recovering:
            return False
        members = leader.membership.members
        processes = [process for name in members if (process := self.machines[name].process) is not None]
        count = len(self.checker.committed)
        newest = leader.log()[-1:]
        return len(processes) == len(members) and all(
            process.applied == count
            and process.log()[-1:] in (newest, [])
            and not process.recovering
            and process.membership == leader.membership
            for process in processes
        )

    def _check_end(self) -> None:
        missing = self.checker.acked - self.checker.places.keys()
        if missing:
            raise Violation(f"acknowledged and gone: {sorted(missing)}")

    def describe(self) -> str:
        """Return a line with the state of every member."""
        parts = []
        for name, machine in self.machines.items():
            process = machine.process
            if process is None:
                parts.append(f"{name} down")
            else:
                log = process.log()
                parts.append(
                    f"{name} term {process.term} {'leads' if process.leads else f'follows {process.leader!r}'} "
                    f"applied {process.applied} log {log[:1]}..{log[-1:]} {process.membership}"
                    f"{' recovering' if process.recovering else ''}{' failed' if process.failed else ''}"
                )
        return f"{len(self.checker.committed)} committed; " + "; ".join(parts)

    # ------------------------------------------------------------------ clients
    def leader(self) -> Process | None:
        """Return the process that leads the newest term."""
        leading = [m.process for m in self.machines.values() if m.process is not None and m.process.leads]
        return max(leading, key=lambda process: process.term, default=None)

    def next_command(self) -> bytes:
        """Return a command that no client has proposed yet."""
        self.proposed += 1
        return b"command-%d-" % self.proposed + b"." * self.random.randrange(30)

    def work(self) -> None:
        """Have clients write and read from now on."""
        self.events.after(self._drawing.randrange(1, 2 * self.plan.writes_every_ns), self._client)

    def _client(self) -> None:
        if self.calm:
            return
        self.work()
        name = "read" if self._drawing.random() < 0.3 else "write"
        self.perform(Act(self.events.now, name, self._drawing.getrandbits(32)))

    def perform(self, act: Act) -> None:
        """Do what was drawn."""
        if self.calm:
            return
        self.acts.append(act)
        if act.name in ("read", "write"):
            self.random = Random(act.chance)
        if act.name == "read":
            self.read_everywhere()
        elif act.name == "write":
            self.write([self.next_command() for _ in range(self.random.randint(1, 5))])
        else:
            self.nemesis.perform(act)

    def _someone(self) -> Machine | None:
        """Return a machine whose process believes to lead; in a partition there may be several."""
        leading = [m for m in self.machines.values() if m.process is not None and m.process.leads and not m.paused]
        return self.random.choice(leading) if leading else None

    def write(self, bodies: list[bytes]) -> bool:
        """Have a process that believes to lead propose commands; return True if it took them."""
        machine = self._someone()
        if machine is None or machine.process is None:
            return False
        process, taken = machine.process, []
        machine.run(process, lambda: taken.append(process.propose(bodies)))
        return any(taken)

    def read_everywhere(self) -> None:
        """Read from every process that believes to lead; a deposed leader must not answer."""
        for machine in self.machines.values():
            if machine.process is not None and machine.process.leads and not machine.paused:
                machine.run(machine.process, machine.process.read)

    # ------------------------------------------------------------------ plumbing
    def slowness(self, name: str) -> int:
        """Return the slowdown factor of a machine's disk."""
        return self.slow.get(name, 1)

    def _deliver(self, sender: str, to: str, channel: Channel, payload: bytes) -> None:
        machine = self.machines[to]
        process = machine.process
        if process is not None:
            machine.run(process, lambda: process.receive(sender, channel, payload))

    def _node_changed(self, at: str, node: str, up: bool) -> None:
        machine = self.machines[at]
        process = machine.process
        if process is not None:
            machine.run(process, lambda: process.node_changed(node, up))

    def start(self, name: str) -> None:
        """Start a machine again."""
        self.network.came_up(name)
        self.machines[name].start()

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        if self.tracing:
            self.trace.append(f"{self.events.now / MS:10.3f} {what}")

    def count(self, what: str) -> None:
        """Count an event that a run may or may not contain."""
        self.counts[what] += 1

    def note(self, what: Callable[[], str]) -> None:
        """Add a line to the trace that is costly to make."""
        if self.tracing:
            self.say(what())


def group_host(world: World, name: str, random: Random) -> Host:
    """Return a host for the real group (group_node.py is imported only for it)."""
    from tests.sim.group_node import GroupHost

    return GroupHost(world, name, random)


__all__ = ["TICK_NS", "Plan", "World", "plan_of"]
