"""Faults from a script instead of at random: the schedule of a campaign on a real cluster (tests/histories).

Belongs here: the counterpart of each of its faults on simulated machines. Faults of clocks, keys, slow links and the
lake have none: the simulator's groups have no wall clocks, keys and lake, and the speed of its network belongs to the
seed. Disks that are rolled back are faults of its own schedules.
The seed still decides everything else, so one script is worth many seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from lakestream.raft.core.core import Core
from tests.sim.events import MS, S
from tests.sim.nemesis import MAX_SLOWNESS, Nemesis
from tests.sim.world import World, plan_of


class Step(msgspec.Struct, frozen=True):
    """One fault: name, index of the victim (-1: the leader), duration, and time without faults before it."""

    fault: str
    victim: int
    seconds: float
    seed: int
    calm: float


def read(path: Path) -> list[Step]:
    """Return the steps of a file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Step])


def scripted(seed: int, shell: str, steps: Sequence[Step], core_class: type[Core], tracing: bool) -> World:
    """Return a world that has exactly the faults of a script."""
    nodes = max(3, 1 + max((step.victim for step in steps), default=0))
    duration = int(sum(step.calm + step.seconds for step in steps) * S) + S
    plan = plan_of(seed, shell)
    plan = msgspec.structs.replace(
        plan, nodes=nodes, spare=0, fault_ns=duration, rollbacks=False, true_clocks=False, damage=True, changes=True
    )
    world = World(plan, core_class, tracing)
    world.nemesis = Script(world, Random(f"script {seed}"), steps)
    return world


class Script(Nemesis):
    """Injects the faults of a script, each when its time has come."""

    def __init__(self, world: World, random: Random, steps: Sequence[Step]) -> None:
        super().__init__(world, random)
        self._steps = list(steps)
        self._ways: dict[str, Callable[[str, int], None]] = {
            "kill": self._kill,
            "restart": self._kill,
            "power": lambda name, ns: self._kill(name, ns, power=True),
            "power-all": lambda name, ns: self._kill_some(self.world.names, 300 * MS, power=True),
            "kill-minority": lambda name, ns: self._kill_some(self._minority(name), ns),
            "kill-all": lambda name, ns: self._kill_some(self.world.names, 300 * MS),
            "roll": self._roll,
            "pause": self._pause,
            "isolate": lambda name, ns: self._split([name], self._others([name]), ns),
            "halves": lambda name, ns: self._split(self._minority(name), self._others(self._minority(name)), ns),
            "one-way": self._one_way,
            "bridge": self._bridge,
            "slow-disk": self._slow_disk,
            "disk-error": lambda name, ns: self.world.machines[name].host.fail(self.random),
            "damage": lambda name, ns: self.damage(),
            "step-down": lambda name, ns: self.step_down(),
            "scale": lambda name, ns: self.change(),
            "remove-peer": lambda name, ns: self.change(),
            "leave": lambda name, ns: self.change(),
        }

    def start(self) -> None:
        """Schedule all steps."""
        at = 0.0
        for step in self._steps:
            at += step.calm
            self.world.events.after(int(at * S) + 1, lambda step=step: self._inject(step))  # type: ignore[misc]
            at += step.seconds

    def _inject(self, step: Step) -> None:
        way = self._ways.get(step.fault)
        if self.over or way is None:
            return
        self.repair()
        name = self._leader() if step.victim < 0 else self.world.names[step.victim % len(self.world.names)]
        self.world.count(f"fault {step.fault}")
        self.world.say(f"script: {step.fault} {name} for {step.seconds} s")
        way(name, int(step.seconds * S))

    def _later_do(self, ns: int, call: Callable[[], None]) -> None:
        self.world.events.after(max(1, ns), lambda: None if self.over else call())

    def _others(self, names: Sequence[str]) -> list[str]:
        return [name for name in self.world.names if name not in names]

    def _minority(self, name: str) -> list[str]:
        return [name, *self._others([name])[: (len(self.world.names) - 1) // 2 - 1]]

    def _kill(self, name: str, ns: int, power: bool = False) -> None:
        machine = self.world.machines[name]
        if machine.up:
            machine.end(power=power)
            self._later_do(ns, lambda: self._start(name))

    def _kill_some(self, names: Sequence[str], ns: int, power: bool = False) -> None:
        for name in names:
            self._kill(name, ns, power)

    def _roll(self, name: str, ns: int) -> None:
        for number, each in enumerate(self.world.names):
            self._later_do(number * S, lambda each=each: self._kill(each, 200 * MS))  # type: ignore[misc]

    def _pause(self, name: str, ns: int) -> None:
        machine = self.world.machines[name]
        process = machine.process
        if machine.up and not machine.paused:
            machine.pause()
            self.world.network.paused(name)
            self._later_do(ns, lambda: self._resume(name) if machine.process is process else None)

    def _split(self, left: Sequence[str], right: Sequence[str], ns: int) -> None:
        for one in left:
            for other in right:
                self._cut(one, other)
                self._cut(other, one)
        self._later_do(ns, self.heal)

    def _one_way(self, name: str, ns: int) -> None:
        mute = self.random.random() < 0.5
        for other in self._others([name]):
            self._cut(*((name, other) if mute else (other, name)))
        self._later_do(ns, self.heal)

    def _bridge(self, name: str, ns: int) -> None:
        others = self._others([name])
        self._split(others[: len(others) // 2], others[len(others) // 2 :], ns)

    def _slow_disk(self, name: str, ns: int) -> None:
        self.world.slow[name] = MAX_SLOWNESS
        self._later_do(ns, lambda: self.world.slow.pop(name, None) and None)
