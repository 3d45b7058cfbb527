"""Several nodes in one process on virtual time, for tests of replicated streams.

Belongs here: a world in which engines, replicas, groups, stores and hubs are the real ones, with real files, and only
time, threads (work is done within the turn) and the connections between nodes are simulated. A test decides which nodes
are connected, which are killed, and when time passes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from lakestream.account.engines import Engines
from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Brief, Files, Io
from lakestream.log.format.record import Record
from lakestream.logging import Logger
from lakestream.meta.replica import Replica
from lakestream.meta.replica_files import MemberFiles
from lakestream.meta.replicas import Replicas
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.meta.site import LakeWatch, Site
from lakestream.net.hub import Hub
from lakestream.net.interest.interest import Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.groups import RaftGroups
from lakestream.raft.group.ports import Channel
from lakestream.server.jetstream import open_stores
from lakestream.server.lake.keeper import LakeKeeper
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateConsumer, CreateStream
from tests.unit.consumer_world import CLIENT, MS, SECOND, VirtualClock
from tests.unit.stream_world import Inbox

T = TypeVar("T")


class Life(Io):
    """Clock and threads of one node, which end with it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.dead = False
        self.failures: list[Exception] = []

    def _guarded(self, callback: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            if self.dead:
                return
            try:
                callback()
            except LogError as error:  # an event loop reports it and continues
                self.failures.append(error)

        return guarded

    def now(self) -> int:
        return self._clock.now()

    def steady(self) -> int:
        return self._clock.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._clock.call_soon(self._guarded(callback))

    call_with_output = call_soon

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Any:
        return self._clock.call_later(delay_ns, self._guarded(callback))

    def spawn(self, awaitable: Any) -> None:
        self._clock.spawn(awaitable)

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.call_soon(run)


class Net:
    """The present nodes and their connectivity."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.members: dict[str, Link] = {}
        self.cut: set[tuple[str, str]] = set()

    def open(self, one: str, other: str) -> bool:
        return one in self.members and other in self.members and (one, other) not in self.cut

    def join(self, link: Link) -> None:
        self.members[link.me] = link
        for name, other in self.members.items():
            if name != link.me and self.open(name, link.me):
                other.tell(link.me, True)
                link.tell(name, True)

    def leave(self, name: str) -> None:
        del self.members[name]
        for other in self.members.values():
            other.tell(name, False)

    def split(self, *sides: set[str]) -> None:
        """Partition the nodes into sides; without arguments, end the partition."""
        before = self.cut
        side = {name: at for at, names in enumerate(sides) for name in names}
        self.cut = {(one, two) for one in side for two in side if side[one] != side[two]}
        for one, two in before ^ self.cut:
            if one in self.members:
                self.members[one].tell(two, (one, two) not in self.cut)


class Link:
    """`Peers` and `Calls` of one node."""

    def __init__(self, me: str, net: Net, life: Life) -> None:
        self.me, self._net, self._life = me, net, life
        self._receivers: dict[Channel, Callable[[str, bytes], None]] = {}
        self._watchers: list[Callable[[str, bool], None]] = []
        self._methods: dict[str, Callable[[str, bytes, Callable[[bytes], None]], None]] = {}

    def connected(self) -> list[str]:
        return sorted(name for name in self._net.members if name != self.me and self._net.open(self.me, name))

    def alive(self, node: str) -> bool:
        return node == self.me or node in self.connected()

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        if node not in self.connected():
            return False
        to = self._net.members[node]
        self._net.clock.call_soon(lambda: to.receive_now(self.me, channel, bytes(payload)))
        return True

    def receive_now(self, node: str, channel: Channel, payload: bytes) -> None:
        if not self._life.dead and self._net.open(node, self.me):
            self._receivers[channel](node, payload)

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        self._receivers[channel] = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self._watchers.append(callback)

    def tell(self, node: str, *about: Any) -> bool:
        if len(about) == 1:  # of the net: a node came or left
            self._life.call_soon(lambda: [watcher(node, about[0]) for watcher in self._watchers] and None)
            return True
        self.call(node, about[0], about[1], lambda body, why: None, SECOND)
        return True

    def serve(self, method: str, handler: Callable[[str, bytes, Callable[[bytes], None]], None]) -> None:
        self._methods[method] = handler

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        if not self.alive(node):
            self._life.call_soon(lambda: done(None, f"{node} is not connected"))
            return
        to = self._net.members[node]
        back = self._life

        def answer(result: bytes) -> None:
            back.call_soon(lambda: done(result, ""))

        to._life.call_soon(lambda: to._methods[method](self.me, body, answer))


class TestLog(Logger):
    """Keeps log lines."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def info(self, text: str) -> None:
        self.said.append(text)

    warn = error = info


class Client(Inbox):
    """Client of one node, which keeps what it receives: (subject, reply, header, payload)."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[bytes, ...]] = []

    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.got.append((message.subject, message.payload))
        self.all.append((message.subject, message.reply, message.header, message.payload))


class Descriptors:
    """Descriptors that a node's files have open; a killed node closes none of them itself.

    Args:
        files: the file layer, which is watched from now on.
    """

    def __init__(self, files: Files) -> None:
        self._close = files.close
        self._open: set[int] = set()
        self._dead = False
        opens, creates = files.open, files.create

        def opened(path: str, write: bool = False) -> int:
            fd = opens(path, write)
            self._open.add(fd)
            return fd

        def created(path: str) -> int:
            fd = creates(path)
            self._open.add(fd)
            return fd

        def closed(fd: int) -> None:
            if not self._dead:  # afterwards the number may be another node's
                self._open.discard(fd)
                self._close(fd)

        files.open, files.create, files.close = opened, created, closed  # type: ignore[method-assign]

    def close(self) -> None:
        """Close those that are left, as the system does after SIGKILL."""
        self._dead = True
        while self._open:
            self._close(self._open.pop())


class Node:
    """One node; the `Host` of its replicas."""

    def __init__(self, name: str, directory: Path, world: World) -> None:
        self.name, self.world = name, world
        self.life = Life(world.clock)
        self.log = TestLog()
        self.hub = Hub(Turn(self.life.call_soon), self.log)
        self.inbox = Client()
        self.hub.join(Subscription(self.inbox, b"_INBOX.me.*", b"", b"1"))
        self.link = Link(name, world.net, self.life)
        options = JetStreamOptions(store_dir=str(directory), max_memory=-1, max_file=-1)
        files = world.files(name) if world.files is not None else None
        self.stores = open_stores(options, world.lake_options, self.life, files)
        synced = self.stores.files
        if files is None:  # a kill of the process loses nothing without fsync
            synced.sync = synced.sync_directory = lambda what: None  # type: ignore[method-assign]
        self._descriptors = Descriptors(synced)
        self.groups = RaftGroups(self.link, self.life, self.life, random=Random(world.random.random()), files=synced)
        names = EngineOptions(server_name=name, server_id=name, scrub_interval_ns=world.scrub_interval_ns)
        self.engines = Engines(Shared(self.life, self.life, self.stores, names, self.log, lambda account: self.hub))
        self.engine = self.engines.serve("$G")
        self.acks = self.engine.acks
        members = MemberFiles(self.stores)
        self.replicas = Replicas(Site(self.engines.shared, self.groups, members, self.link), self)
        self.replicas.site.lake = world.watch
        self.engines.node.replicas = self.replicas
        self.events: list[tuple[str, str]] = []
        if world.lake:
            self.keeper = LakeKeeper(world.lake, world.lake_options, self.life, self.life, self.log)  # type: ignore[arg-type]
            self.engines.shared.lake = self.replicas.site.lake = self.keeper
            self.keeper.start()
        for account, stream in self.stores.found(self.log.error):
            self.replicas.recover(account, stream)
        if world.create is not None:
            self.replicas.hold(world.create, world.membership)
        self.groups.start()
        self.replicas.start()
        world.net.join(self.link)

    # ------------------------------------------------------------------ Host
    def opened(self, replica: Replica) -> None:
        self._attach(replica)

    def caught_up(self, replica: Replica) -> None:
        self.engine.refresh(self.stream)

    def created(self, replica: Replica) -> None:
        return

    def leads(self, replica: Replica) -> None:
        self.events.append(("leads", replica.name))
        assert replica.stream is not None
        self.engine.refresh(replica.stream)
        self.acks.attach(replica.name)

    def follows(self, replica: Replica) -> None:
        assert replica.stream is not None
        self.engine.refresh(replica.stream)
        self.acks.detach(replica.name)

    def serves(self, account: str) -> bool:
        return True

    def reopened(self, replica: Replica) -> None:
        self.events.append(("reopened", replica.name))
        self._attach(replica)

    def _attach(self, replica: Replica) -> None:
        assert replica.stream is not None
        self.engine.attach(replica.stream)

    def gone(self, replica: Replica) -> None:
        self.engine.detach(replica.name, replica.trouble)

    # ------------------------------------------------------------------ called by tests
    @property
    def stream(self) -> Stream:
        return self.engine.streams["S"]

    @property
    def replica(self) -> Replica:
        return next(iter(self.replicas.by_uid.values()))

    def content(self) -> list[tuple[int, bytes, bytes]]:
        return [(one.seq, one.subject, one.data) for one in self.records()]

    def records(self) -> list[Record]:
        return self.stream.store.read_run(1, 1 << 30, 1 << 40)

    def kill(self, close: bool = True) -> None:
        """End without any cleanup, as after SIGKILL. `close`: close the files, if they are real ones."""
        self.life.dead = True
        self.world.net.leave(self.name)
        del self.world.nodes[self.name]
        if close:
            self._close()

    def stop(self) -> None:
        """Stop as a server does."""
        self.replicas.stop()
        self.groups.stop()
        self.world.clock.turn()
        self.replicas.close()
        self.life.dead = True
        self.world.net.leave(self.name)
        del self.world.nodes[self.name]
        self._close()

    def _close(self) -> None:
        for replica in self.replicas.by_uid.values():
            if replica.stream is not None:
                replica.stream.store.log.close()
        self.stores.close()
        self._descriptors.close()


class World:
    """Cluster and one stream."""

    def __init__(
        self,
        directory: Path,
        nodes: str = "abc",
        seed: int = 1,
        lake: str = "",
        scrub_interval_ns: int = 86_400 * SECOND,
        files: Callable[[str], Files] | None = None,
        watch: LakeWatch | None = None,
        **options: Any,
    ) -> None:
        """Make the nodes.

        Args:
            lake: the root of the lake that all nodes share; "" for none.
            files: returns the file layer of each process of a node; default: real files without syncs.
            watch: the part of a lake that replicas use, without a lake.
            options: see `LakeOptions`.
        """
        self.scrub_interval_ns = scrub_interval_ns
        self.files, self.watch = files, watch
        self.clock = VirtualClock()
        self.clock.time = time.time_ns()  # messages get the real time
        self.directory = directory
        self.random = Random(seed)
        self.lake = lake
        self.lake_options = LakeOptions(**options)
        self.net = Net(self.clock)
        self.nodes: dict[str, Node] = {}
        self._number = 0
        self.create: CreateStream | None = None
        self.membership = Membership(())
        for name in nodes:
            self.start(name)

    def start(self, name: str) -> Node:
        node = self.nodes[name] = Node(name, self.directory / name, self)
        return node

    def stream(self, members: str = "", **config: Any) -> None:
        """Create a stream on these nodes (by default all), and wait for its leader."""
        fields: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.>"],
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "duplicate_window": 120 * SECOND,
            "num_replicas": len(members or self.nodes),
            "allow_direct": True,
        }
        body = json.dumps(fields | config).encode()
        settled = msgspec.json.encode(msgspec.json.decode(body, type=StreamConfig))
        self.create = CreateStream("u1", "$G", settled, self.clock.now())
        self.membership = Membership(tuple(sorted(members or self.nodes)))
        for name in members or self.nodes:
            self.hold(name, self.membership)
        self.leader()

    def hold(self, name: str, membership: Membership) -> None:
        assert self.create is not None
        self.nodes[name].replicas.hold(self.create, membership)

    def run(self, seconds: float = 0.0) -> None:
        self.clock.advance(int(seconds * SECOND))

    def until(self, happened: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Let time pass until `happened` returns a true value; return it."""
        for _ in range(int(seconds / 0.01)):
            result = happened()
            if result:
                return result
            self.clock.advance(10 * MS)
        raise AssertionError(f"did not happen within {seconds} s")

    def leader(self, among: str = "") -> Node:
        """Return the leader, once there is one."""

        def find() -> Node | None:
            nodes = [node for name, node in self.nodes.items() if not among or name in among]
            leading = [node for node in nodes if any(each.leading for each in node.replicas.by_uid.values())]
            return leading[0] if len(leading) == 1 else None

        found: Node = self.until(find)
        return found

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    def publish(self, node: Node, subject: str, data: bytes = b"", **headers: str) -> bytes:
        """Publish with a reply to one node, without letting time pass; return the reply subject."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        block = b""
        if headers:
            lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
            block = f"NATS/1.0\r\n{lines}\r\n".encode()
        node.hub.route(None, CLIENT, Single(subject.encode(), reply, block, data))
        return reply

    def acked(self, subject: str, data: bytes = b"", **headers: str) -> dict[str, Any]:
        """Publish to the leader and return the answer."""
        node = self.leader()
        reply = self.publish(node, subject, data, **headers)
        answer: dict[str, Any] = self.until(lambda: self.answer(node, reply))
        return answer

    @staticmethod
    def answer(node: Node, reply: bytes) -> dict[str, Any] | None:
        for subject, payload in node.inbox.got:
            if subject == reply:
                # Only a 503: there was no responder.
                answer: dict[str, Any] = json.loads(payload) if payload else {"error": "503"}
                return answer
        return None

    def converged(self) -> list[tuple[int, bytes, bytes]]:
        """Wait until every node holds the same messages; return them."""
        leader = self.leader()

        def same() -> bool:
            return all(
                "S" in node.engine.streams and node.stream.store.applied == leader.stream.group.last_index
                for node in self.nodes.values()
            )

        self.until(same)
        contents = [node.content() for node in self.nodes.values()]
        assert all(content == contents[0] for content in contents)
        return contents[0]

    def consumer(self, name: str, **config: Any) -> None:
        """Create a durable pull consumer with explicit acks."""
        fields: dict[str, Any] = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": 30 * SECOND,
            "deliver_policy": "all",
            "max_deliver": -1,
            "max_waiting": 512,
            "max_ack_pending": 1000,
            "replay_policy": "instant",
        }
        body = json.dumps(fields | config).encode()
        done: list[object] = []
        self.leader().stream.propose(CreateConsumer(name, body, self.clock.now(), 1), done.append)
        self.until(lambda: done)

    def pull(self, name: str, batch: int = 1) -> list[tuple[bytes, ...]]:
        """Return the messages that a pull request on the leader brings at once."""
        node = self.leader()
        before = len(node.inbox.all)
        body = b'{"batch":%d,"no_wait":true}' % batch
        node.hub.route(
            None, CLIENT, Single(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}".encode(), b"_INBOX.me.pull", b"", body)
        )
        self.run(0.01)
        return [each for each in node.inbox.all[before:] if each[1]]

    def ack(self, message: tuple[bytes, ...], confirmed: bool = False) -> None:
        """Ack a message on the leader."""
        node = self.leader()
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number if confirmed else b""
        node.hub.route(None, CLIENT, Single(message[1], reply, b"", b"+ACK"))
        self.run(0.0)
        if confirmed:
            self.until(lambda: any(subject == reply for subject, _ in node.inbox.got))


def change(world: World, voters: str, learners: str = "") -> None:
    """Change the group's members, on the leader."""
    done: list[str] = []
    world.leader().replica.propose_membership(Membership(tuple(voters), tuple(learners)), done.append)
    world.until(lambda: done)
    assert done == [""]


def fill(world: World, count: int, size: int = 1000) -> None:
    """Publish messages of `size` bytes through the leader."""
    node = world.leader()
    replies = [world.publish(node, f"s.{number % 5}", b"%d:" % number + b"x" * size) for number in range(count)]
    world.until(lambda: all(world.answer(node, reply) for reply in replies))


def let_go(world: World, name: str = "") -> int:
    """Release the sealed segments from the leader's log, as if the lake held them; return the last index released."""
    store = world.leader().stream.store
    world.leader().stream.checkpoint()
    world.run(0.1)
    store.drop_through(store.applied)
    world.run(0.1)
    assert store.left_through > 0
    return store.left_through
