"""Meta group on several nodes: real groups, logs and files; simulated calls, time and threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from lakestream.log.format.files import Brief, Files, Io
from lakestream.meta.assignments import Applied, AssignStream
from lakestream.meta.meta_group import SEAL_BYTES, MetaGroup
from lakestream.meta.meta_join import MetaJoin
from lakestream.meta.meta_transfer import MetaTransfer
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.group.groups import RaftGroups
from tests.sim.disk import PowerCut
from tests.unit.cluster_world import Net, NetNode

STEP_NS = 100_000_000


class Reports:
    """Logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warn = error = info


class Server(Io):
    """Process of one node: its part in the meta group, perhaps on the files of an earlier process."""

    def __init__(self, world: World, node: NetNode) -> None:
        self.world, self.node, self.name = world, node, node.me
        node.watchers.clear()
        self.log = Reports()
        self.work: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        files = world.files(node.me)
        self.groups = RaftGroups(node, self, world.net.clock, random=Random(f"{node.me}-meta"), files=files)
        self.root = world.directory / node.me
        root, clock = str(self.root), world.net.clock
        self.meta = MetaGroup(root, node, self.groups, clock, self, self.log, world.seal_bytes, files)
        self.transfer = MetaTransfer(self.meta, node, self, self.log)
        self.join = MetaJoin(self.meta, node, world.net.clock, self.log)
        self.applied: list[Applied] = []
        self.caught_up = 0
        self.meta.on_applied = self.applied.append
        self.meta.on_role = self.join.role_changed
        self.meta.on_caught_up = self._caught_up
        self.transfer.settle()
        self.meta.open()
        self.groups.start()
        self.meta.start()
        self.join.start()

    def _caught_up(self) -> None:
        self.caught_up += 1

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.work.append((work, done))

    def do_work(self) -> bool:
        work, self.work = self.work, []
        for task, done in work:
            try:
                result = task()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)
        return bool(work)

    def end(self, gracefully: bool = True) -> None:
        self.join.stop()
        self.meta.stop()
        self.groups.stop()
        self.do_work()
        if gracefully:
            self.meta.close()
        elif self.meta.store is not None:
            self.meta.store.log.close()

    def kill(self) -> None:
        """End as with a power loss; the disk takes nothing more, if it is a simulated one."""
        self.work.clear()
        self.join.stop()
        self.groups.stop()
        with contextlib.suppress(PowerCut):
            self.meta.stop()

    @property
    def streams(self) -> list[str]:
        return sorted(name for _, name in self.meta.state.streams)


class World:
    """The running servers."""

    def __init__(
        self,
        directory: Path,
        *names: str,
        seal_bytes: int = SEAL_BYTES,
        files: Callable[[str], Files] = lambda name: Files(),
    ) -> None:
        """Make no server yet. `files` returns the file layer of each process of a node."""
        self.directory, self.net, self.seal_bytes, self.files = directory, Net(*names), seal_bytes, files
        self.servers: dict[str, Server] = {}

    def start(self, *names: str) -> None:
        self.net.down -= set(names)
        for name in names:
            self.net.nodes[name].update(clustered=False)
        for name in names:
            self.servers[name] = Server(self, self.net.nodes[name])
        for name in names:
            self.net.heal(name)

    def end(self, name: str, gracefully: bool = True) -> None:
        self.servers.pop(name).end(gracefully)
        self.net.cut(name)
        self.net.nodes[name].update(clustered=False)

    def kill(self, name: str) -> None:
        """End a process at once: nothing more is written or sent."""
        self.servers.pop(name).kill()
        self.net.cut(name)
        self.net.nodes[name].update(clustered=False)

    def steps(self, count: int) -> None:
        """Let steps of time pass."""
        for _ in range(count):
            self.run()
            self.net.clock.advance(STEP_NS)
        self.run()

    def run(self) -> None:
        moving = True
        while moving:
            self.net.run()
            self.net.clock.turn()
            worked = [server.do_work() for server in self.servers.values()]
            moving = any(worked) or bool(self.net.on_their_way)

    def until(self, ready: Callable[[], Any], what: str, steps: int = 300) -> None:
        for _ in range(steps):
            self.run()
            if ready():
                return
            self.net.clock.advance(STEP_NS)
        raise AssertionError(what)

    @property
    def leader(self) -> Server:
        leaders = [server for server in self.servers.values() if server.meta.leading]
        assert leaders
        return max(leaders, key=lambda server: server.meta.group.term if server.meta.group is not None else 0)

    def elected(self) -> bool:
        names = {server.meta.leader for server in self.servers.values()}
        return len(names) == 1 and names <= set(self.servers) and self.servers[names.pop()].meta.leading

    def assign(self, name: str, *peers: str) -> Applied | ApiError:
        outcomes: list[Applied | ApiError] = []
        op = AssignStream(f"u-{name}", "$G", name, b"{}", peers or tuple(self.servers), 1)
        self.leader.meta.propose(op, outcomes.append)
        self.until(lambda: outcomes, f"{name} is assigned")
        return outcomes[0]

    def voters(self) -> tuple[str, ...]:
        return self.leader.meta.membership.voters
