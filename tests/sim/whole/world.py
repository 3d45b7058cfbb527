"""One simulated cluster with its clients, from the first start to the last check.

Belongs here: the parameters of a run, the machines, the order of a run (start, faults, calm, checks) and the digest of
everything that happened. The clients' work is in workload.py, the faults in nemesis.py, the checks in checks.py.
"""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, ClassVar
from zlib import crc32

import msgspec

from lakestream.server.heap import trim
from tests.sim.acts import Act
from tests.sim.checks import Violation
from tests.sim.events import MS, Events, S
from tests.sim.whole.checks import Content, check_end, damaged, lagging, unhealthy
from tests.sim.whole.client import SimClient
from tests.sim.whole.compactor import CompactorHost, sim_tables
from tests.sim.whole.fibers import Fibers
from tests.sim.whole.lake import ROOT, Lake, reachable
from tests.sim.whole.lake_checks import behind, check_tables, checked_drops, table_content
from tests.sim.whole.loop import SimLoop
from tests.sim.whole.machine import Host, Watch, options_of
from tests.sim.whole.nemesis import FAULTS, Nemesis
from tests.sim.whole.network import End, Network
from tests.sim.whole.surroundings import Bare, Current, surroundings
from tests.sim.whole.workload import PARTS, Workload

START_NS = 60 * S
"""Virtual time within which a new cluster must serve."""
HEALTHY_NS = 60 * S
"""Virtual time after the last fault within which everything must be healthy."""
SETTLED_NS = 20 * S
"""Virtual time after the last fault within which a compactor may still report errors."""
COMPACTORS = 2
"""Compactors of a lake, of which one works."""
CLIENTS = "10.0.1.1"
"""Address of the clients' machine."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of a run, drawn from the seed. Times in ns."""

    FEWEST: ClassVar[int] = 3
    """Nodes: streams have three replicas."""
    seed: int
    nodes: int = 3
    fault_ns: int = 20 * S
    faults_every_ns: int = 1500 * MS
    slowest_ns: int = 2 * MS
    faults: tuple[str, ...] = ()
    """Names of the faults that may happen; (): all of them."""
    work: tuple[str, ...] = ()
    """Names of the parts of the workload; (): all of them."""
    lake: bool = False
    """The servers have a lake, with compactors."""
    acts: tuple[Act, ...] | None = None
    """Exactly these faults; None: drawn from the seed."""


def plan_of(seed: int, seconds: int = 20) -> Plan:
    """Return the plan for a seed."""
    random = Random(f"whole plan {seed}")
    return Plan(
        seed=seed,
        nodes=random.choice((3, 3, 3, 4, 5)),
        fault_ns=seconds * S,
        faults_every_ns=random.choice((500 * MS, 1500 * MS, 4 * S)),
        slowest_ns=random.choice((MS, 5 * MS, 30 * MS)),
        lake=random.random() < 0.5,
    )


def swarmed(plan: Plan) -> Plan:
    """Return the plan with some faults and some parts of the workload only: each alone shows what all together hide."""
    random = Random(f"swarm {plan.seed}")

    def some(names: Sequence[str]) -> tuple[str, ...]:
        share = random.choice((0.2, 0.5, 0.8))
        return tuple(name for name in names if random.random() < share) or (random.choice(names),)

    return msgspec.structs.replace(plan, faults=some(FAULTS), work=some(PARTS))


class World(Watch):
    """One run.

    Attributes:
        counts: how often what happened.
        trace: what happened, if `tracing`.
        digest: of everything that happened, with its times.
        messages: published and delivered ones, as clients count them.
    """

    def __init__(self, plan: Plan, tracing: bool = False) -> None:
        self.plan, self.tracing = plan, tracing
        self.events = Events()
        self.trace: list[str] = []
        self.digest = 0
        self.messages = 0
        self.counts: Counter[str] = Counter()
        self.delivered: dict[tuple[str, str], Counter[int]] = {}
        """Deliveries of each sequence, by (stream, consumer)."""
        self.confirmed: dict[tuple[str, str], dict[int, int]] = {}
        """Sequences whose acks were confirmed, and when, by (stream, consumer)."""
        self.calm_ns = 1 << 62
        """The end of the faults."""
        self.changes: list[tuple[bytes, int, int]] = []
        """Acked changes of keys: subject, expected and new revision."""
        self.problems: list[str] = []
        self.current = Current()
        seed = str(plan.seed)
        self.network = Network(self.events, Random(f"network {seed}"), plan.slowest_ns)
        self.network.note = self._arrived
        self.hosts: dict[str, Host] = {}
        self.fibers = Fibers()
        self.lake = Lake(self.events, self.current, self.fibers, Random(f"lake {seed}"))
        self.lake.note = self.say
        self.compactors: dict[str, CompactorHost] = {}
        for number in range(COMPACTORS if plan.lake else 0):
            name = f"c{number + 1}"
            self.compactors[name] = CompactorHost(name, f"10.0.2.{number + 1}", self)
        for number in range(plan.nodes):
            options = options_of(number, plan.nodes, ROOT if plan.lake else "")
            name = options.server_name
            self.hosts[name] = Host(name, options, self.events, self.network, seed, self)
        self.loop = SimLoop(self.events, CLIENTS, self.network)
        self.loop.on_error = self._client_failed
        self.loop.on_turn = partial(self.current.turn, Bare(CLIENTS))
        self.workload = Workload(self, Random(f"workload {seed}"))
        self.nemesis = Nemesis(self, Random(f"nemesis {seed}"))

    # ------------------------------------------------------------------ the run
    def run(self) -> None:
        """Run with faults, then without them until everything is healthy, and check what is left.

        Raises:
            Violation: a promise was broken.
        """
        with (
            surroundings(self.events, self.current, str(self.plan.seed)),
            reachable(self.lake),
            checked_drops(self.lake, self.violated),
            sim_tables(),
        ):
            try:
                for compactor in self.compactors.values():
                    compactor.start()
                for host in self.hosts.values():
                    host.start()
                self._run_until(lambda: not unhealthy(self), START_NS, "the cluster does not start")
                self.do(self.workload.prepare(), 60 * S, "the streams cannot be made")
                self.workload.start()
                self.nemesis.start()
                self._run(self.plan.fault_ns)
                self.nemesis.end()
                self.calm_ns = self.events.now
                self.say("calm")
                self._run_until(lambda: not unhealthy(self), HEALTHY_NS, "after the last fault")
                self.do(self.workload.finish(), HEALTHY_NS, "the work does not end")
                self._run_until(lambda: not (unhealthy(self) or lagging(self)), HEALTHY_NS, "after the work")
                if self.nemesis.damaged:
                    self._run_until(
                        lambda: not (damaged(self) or unhealthy(self)), HEALTHY_NS, "the repair takes longer"
                    )
                if self.plan.lake:
                    self._run_until(lambda: not (behind(self) or unhealthy(self)), HEALTHY_NS, "the lake is behind")
                check_end(self, self._table_of)
                if self.plan.lake:
                    check_tables(self)
            finally:
                self.close()

    def _table_of(self, name: str) -> Content:
        return table_content(self.lake, name) if self.plan.lake else {}

    def close(self) -> None:
        """End all processes and threads."""
        self.loop.end()
        for process in self._processes:
            process.end(power=False)
        self.fibers.close()

    @property
    def _processes(self) -> list[Host | CompactorHost]:
        return [*self.hosts.values(), *self.compactors.values()]

    def _run(self, for_ns: int) -> None:
        self.events.run_until(self.events.now + for_ns)
        self._raise()

    def _run_until(self, done: Any, limit_ns: int, what: str) -> None:
        end = self.events.now + limit_ns
        while not done():
            if self.events.now >= end:
                raise Violation(f"{what}, {limit_ns // S} s: {'; '.join(self._lacks()) or 'no end'}")
            self._run(250 * MS)

    def _lacks(self) -> list[str]:
        return unhealthy(self) or lagging(self) or (behind(self) if self.plan.lake else [])

    def do(self, coro: Any, limit_ns: int, what: str) -> Any:
        """Run a coroutine of the clients to its end."""
        begun: list[asyncio.Task[Any]] = []
        self.loop.call_soon(lambda: begun.append(self.loop.create_task(coro)))
        self._run_until(lambda: begun and begun[0].done(), limit_ns, what)
        return begun[0].result()

    def _raise(self) -> None:
        if self.problems:
            raise Violation(self.problems[0])

    @property
    def steps(self) -> int:
        """Return the callbacks that all event loops have run."""
        return self.loop.steps + sum(each.steps + (each.loop.steps if each.loop else 0) for each in self._processes)

    # ------------------------------------------------------------------ what happens
    def client(self, name: str, addresses: list[str] | None = None) -> SimClient:
        """Return a new client, which connects."""
        every = [host.address for host in self.hosts.values()]
        client = SimClient(self.loop, addresses or every, Random(f"client {name} {self.plan.seed}"), name)
        self.loop.call_soon(client.start)
        return client

    def say(self, text: str) -> None:
        """Note an event."""
        self.digest = crc32(b"%d %b" % (self.events.now, text.encode()), self.digest)
        if self.tracing:
            self.trace.append(f"{self.events.now / S:11.6f} {text}")

    def violated(self, text: str) -> None:
        """Note a broken promise; the run ends soon."""
        self.say(text)
        self.problems.append(text)

    def _arrived(self, end: End, data: bytes) -> None:
        self.digest = crc32(data, crc32(b"%d %d" % (self.events.now, end.number), self.digest))
        if self.tracing:
            place = f"{end.other.loop.host} ▶ {end.loop.host} #{end.number}"
            self.trace.append(f"{self.events.now / S:11.6f} {place} {len(data)} bytes {crc32(data):08x}")

    def _client_failed(self, context: dict[str, Any]) -> None:
        self.violated(f"a client failed: {context.get('message')}: {context.get('exception')!r}")

    # ------------------------------------------------------------------ Watch
    def turns(self, host: Host) -> None:
        self.current.machine = host

    def started(self, loop: SimLoop) -> None:
        loop.on_thread = partial(self.fibers.start, loop)

    def ended(self, loop: SimLoop) -> None:
        self.fibers.end(loop)

    def said(self, host: Host, level: str, text: str) -> None:
        self.say(f"{host.name} [{level}] {text}")

    def failed(self, host: Host, text: str, error: BaseException | None) -> None:
        where = "".join(traceback.format_exception(error)) if error is not None else ""
        self.violated(f"{host.name}: {text}: {error!r}\n{where}")

    def failed_process(self, name: str, error: BaseException) -> None:
        """Note an unexpected end of a process."""
        self.violated(f"{name}: {error!r}\n{''.join(traceback.format_exception(error))}")

    def failed_compaction(self, name: str, text: str) -> None:
        """Note an error of a compactor, which without faults has none."""
        self.counts["failed compactions"] += 1
        self.say(f"{name}: {text}")
        if self.events.now > self.calm_ns + SETTLED_NS:
            self.violated(f"{name}: {text}")

    def died(self, host: Host) -> None:
        self.say(f"{host.name} died")
        self.nemesis.start_later(host)


class Outcome(msgspec.Struct):
    """Result of a run.

    Attributes:
        failure: "" if every promise was kept.
        processor_s: time of the processor that it took; `virtual_s`: virtual time.
        steps: callbacks of all event loops; `messages`: published by clients and received by consumers.
        digest: of all that arrived and was logged, with its times.
        acts: faults that were injected.
    """

    seed: int
    failure: str
    counts: dict[str, int]
    processor_s: float
    virtual_s: float
    steps: int
    messages: int
    digest: int
    trace: list[str]
    acts: list[Act]


def run_seed(
    seed: int,
    seconds: int = 20,
    tracing: bool = False,
    plan: Plan | None = None,
    *,
    swarm: bool = False,
    ends: bool = False,
) -> Outcome:
    """Run one seed with `seconds` of faults, perhaps as one of a swarm, or a plan. `ends`: so does this process."""
    began, failure = time.process_time(), ""
    if plan is None:
        plan = swarmed(plan_of(seed, seconds)) if swarm else plan_of(seed, seconds)
    world = World(plan, tracing)
    try:
        world.run()
    except Violation as error:
        failure = str(error)
        world.say(failure)
    except Exception as error:  # of the simulation: it fails the seed, not all that come after
        failure = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        world.say(failure)
    outcome = Outcome(
        seed,
        failure,
        dict(world.counts),
        time.process_time() - began,
        world.events.now / S,
        world.steps,
        world.messages,
        world.digest,
        world.trace,
        world.nemesis.acts,
    )
    if not ends:
        del world
        _free()
    return outcome


def _free() -> None:
    """Return the memory of a run to the system: its objects are one cycle, and the C library keeps what they leave."""
    gc.collect()
    gc.collect()  # what finalizers of the first have let go: coroutines that were never resumed
    trim()


def command(seed: int, seconds: int) -> str:
    """Return the command that repeats a run."""
    return f"python -m tests.sim --whole --seed {seed} --seeds 1 --seconds {seconds} --trace"
