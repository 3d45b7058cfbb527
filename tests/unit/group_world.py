"""Several members of one group in one process, with simulated time, threads and sockets.

Belongs here: nodes whose threads, messages and ticks run only when a test says so, in a fixed order; a small stream on
each, and the callbacks of its group. Everything else is real.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakestream.log.format.files import Brief, Files, Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import encode_record, iter_records
from lakestream.log.store.log import Appended
from lakestream.log.store.repair import Salvaged, salvage
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.core.messages import Envelope, Install, Membership, decode_envelopes, encode_envelopes
from lakestream.raft.core.ready import RaftOptions
from lakestream.raft.group.group import Callbacks, Committed, Proposal
from lakestream.raft.group.groups import RaftGroups
from lakestream.raft.group.ports import Channel
from tests.faults.files import FaultyFiles
from tests.unit.logkit import T0, Clock

GROUP = "S-1"


class World:
    """The nodes, and the messages in flight between them."""

    def __init__(
        self,
        directory: Path,
        names: str = "ABC",
        options: RaftOptions | None = None,
        files: Callable[[str], Files] = lambda name: FaultyFiles(),
        **log: Any,
    ) -> None:
        """Start these nodes. `files` returns the file layer of each process of a node."""
        self.directory = directory
        self.files = files
        self.options = options or RaftOptions()
        self.log = LogOptions(**{"seal_age_ns": 1 << 60, "retain_bytes": 0, **log})
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.dropping: Callable[[str, str, Envelope], bool] = lambda sender, to, envelope: False
        self.membership = Membership(tuple(sorted(names)))
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.start(name)

    def start(self, name: str, **more: Any) -> Node:
        """Start a node, perhaps on the files of its last process."""
        self.nodes[name] = Node(self, name, **more)
        for other, node in self.nodes.items():
            if other != name:
                node.tell_node(name, True)
        self.run()
        return self.nodes[name]

    def kill(self, name: str, close: bool = True) -> None:
        """End a process at once. Its writes stay for the next one; messages in flight to it are lost."""
        node = self.nodes.pop(name)
        node.dead = True
        if close:
            node.give_back()
        for (sender, to), wire in self.wires.items():
            if name in (sender, to):
                wire.clear()
        for other in self.nodes.values():
            other.tell_node(name, False)
        self.run()

    def close(self) -> None:
        for node in self.nodes.values():
            node.group.stop()
            node.give_back()

    def isolate(self, *names: str) -> None:
        """Cut these nodes off from all others, both ways."""
        everyone = set(self.nodes)
        for name in names:
            for other in everyone - set(names):
                self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.cut.clear()

    def run(self, work: bool = True) -> None:
        """Run everything that needs no time: turns, threads (unless `work` is False), messages."""
        moving = True
        while moving:
            moving = False
            for node in list(self.nodes.values()):
                moving |= node.turn(work)
            for (sender, to), wire in list(self.wires.items()):
                while wire:
                    payload = wire.popleft()
                    moving = True
                    if to in self.nodes and sender in self.nodes and (sender, to) not in self.cut:
                        self._arrive(sender, to, payload)

    def _arrive(self, sender: str, to: str, payload: bytes) -> None:
        kept = [each for each in decode_envelopes(payload) if not self.dropping(sender, to, each)]
        if kept:
            self.nodes[to].handler(sender, encode_envelopes(kept))

    def ticks(self, count: int, *names: str) -> None:
        """Let ticks of 100 ms pass for these nodes, or for all."""
        for _ in range(count):
            for name in names or tuple(self.nodes):
                if name in self.nodes:
                    self.nodes[name].tick()
            self.run()

    def elect(self, *among: str) -> Node:
        """Tick until one of these nodes (by default any) leads and knows it; return it."""
        for _ in range(200):
            leaders = [node for name, node in self.nodes.items() if node.leads and name in (among or self.nodes)]
            if leaders:
                return max(leaders, key=lambda node: node.group.term)
            self.ticks(1)
        raise AssertionError("nobody was elected")

    def lead(self, name: str) -> Node:
        """Make this node the leader."""
        node = self.nodes[name]
        for _ in range(20):
            if node.leads:
                return node
            leader = self.elect()
            if leader.name != name:
                leader.group.transfer(name)
                self.run()
                self.ticks(2)
        raise AssertionError(f"{name} does not lead")


class Node(Io):
    """One process: its threads, clock and peers, and a stream in a group."""

    def __init__(
        self,
        world: World,
        name: str,
        membership: Membership | None = None,
        files: Files | None = None,
        lost: bool = False,
        mend: bool = False,
    ) -> None:
        self.world, self.name = world, name
        self.directory = str(world.directory / name)
        self.files = files or world.files(name)
        self.dead = False
        self.soon: list[Callable[[], None]] = []
        self.work: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.timers: list[Callable[[], None]] = []
        self.handler: Callable[[str, bytes], None] = lambda sender, payload: None
        self.watcher: Callable[[str, bool], None] = lambda node, up: None
        self.clock = Clock()
        self.roles: list[tuple[bool, str, int]] = []
        self.commits: list[Committed] = []
        self.lost: list[object] = []
        self.failures: list[Exception] = []
        self.installs: list[tuple[str, Install, Any]] = []
        self.notices: list[tuple[str, bool]] = []
        self.woken = 0
        self.salvaged: Salvaged | None = None
        self.groups = RaftGroups(
            self, self, self, random=Random(f"{name}-seed"), files=self.files, options=world.options
        )  # type: ignore[arg-type]
        self.groups.on_error = self._on_error
        self.member = self.groups.member(GROUP, self.directory, membership or world.membership, lost=lost)
        if mend:
            self.member.damaged()
            self.salvaged = salvage(self.directory, self.files)
            self.member.recall()
        self.store = self.open()
        self.replayed = self.store.applied
        self.callbacks = Callbacks(
            self._committed,
            self.failures.append,
            lambda *role: self.roles.append(role),
            self.lost.extend,
            lambda sender, install, done: self.installs.append((sender, install, done)),
            lambda text, bad: self.notices.append((text, bad)),
        )
        self.group = self.member.join(self.store.log, self, self.callbacks)
        self.groups.start()
        self.group.start()

    def give_back(self) -> None:
        """Close the descriptors without writing anything more."""
        self.store.log.close()
        self.member.file.close()
        rows: Any = self.store._rows
        rows.close()
        rows.cache.sweep()

    @staticmethod
    def _on_error(group: str, error: Exception) -> None:
        raise error

    def open(self) -> Store:
        store = open_store(
            self.directory,
            self,
            self.world.log,
            files=self.files,
            now=self.clock,
            durable_through=self.member.durable_through,
        )
        for frame, at in store.replay(through=self.member.commit_through):
            self._apply(store, frame, at)
        store.describe("uid-1", "ORDERS", "$G", b"{}")
        return store

    # -- Io, Clock, Peers
    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.work.append((work, done))

    def now(self) -> int:
        return self.clock()

    def steady(self) -> int:
        return self.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Node:
        self.timers.append(callback)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    @property
    def me(self) -> str:
        return self.name

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        self.world.wires.setdefault((self.name, node), deque()).append(payload)
        return node in self.world.nodes

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        self.handler = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self.watcher = callback

    def tell_node(self, node: str, up: bool) -> None:
        self.watcher(node, up)

    # -- running
    def turn(self, work: bool = True) -> bool:
        """Run one turn of the event loop, and one piece of work."""
        moved = bool(self.soon)
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()
        if work and self.work:
            self.do_work()
            moved = True
        return moved

    def do_work(self) -> None:
        task, done = self.work.pop(0)
        try:
            result = task()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def tick(self) -> None:
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()

    # -- the stream
    @property
    def leads(self) -> bool:
        return bool(self.roles) and self.roles[-1][0]

    @property
    def log(self) -> SegmentLog:
        assert isinstance(self.store.log, SegmentLog)
        return self.store.log

    def propose(self, *contexts: object, size: int = 10) -> None:
        """Propose one entry with one message for each context."""
        first = max(self.store.last_seq, self.proposed) + 1
        proposals = []
        for seq, context in enumerate(contexts, first):
            record = encode_record(seq, T0 + seq, b"S", b"", f"{context}".encode().ljust(size, b"."))
            proposals.append(Proposal(Kind.MESSAGES, [record], 1, context))
        self.proposed = first + len(contexts) - 1
        self.group.propose(proposals)

    proposed = 0

    def publish(self, *contexts: object, size: int = 10) -> None:
        """Propose one entry, and run until it is committed on every reachable node."""
        self.propose(*contexts, size=size)
        self.world.run()

    def _committed(self, entries: list[Committed]) -> None:
        self.woken += not entries
        self.commits += entries
        for entry in entries:
            assert entry.frame.index == self.store.applied + 1
            self._apply(self.store, entry.frame, entry.at)

    @staticmethod
    def _apply(store: Store, frame: Frame, at: Appended) -> None:
        if frame.kind == Kind.MESSAGES:
            store.apply_records(at, iter_records(frame.body))
        store.applied = frame.index

    @property
    def messages(self) -> list[bytes]:
        """Return the messages of this node's stream, read from its segments."""
        return [record.data.rstrip(b".") for record in self.store.read_run(1, 1 << 30, 1 << 40)]

    @property
    def contexts(self) -> list[object]:
        """Return the contexts of this node's committed proposals."""
        return [entry.context for entry in self.commits if entry.context is not None]

    @property
    def sealed(self) -> list[tuple[int, int]]:
        return [(each.first_index, each.last_index) for each in self.store.sealed()]


def named(*numbers: object) -> list[bytes]:
    return [f"{number}".encode() for number in numbers]


def kinds(commits: Sequence[Committed]) -> list[Kind]:
    return [entry.frame.kind for entry in commits]


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function `make(names, …)` that makes worlds of groups; close them in the end."""
    worlds: list[World] = []

    def build(names: str = "ABC", **more: Any) -> World:
        worlds.append(World(tmp_path, names, **more))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()
