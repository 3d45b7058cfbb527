"""Cluster of server processes, lakestream or nats-server behind one interface.

Belongs here: configuring and starting nodes, taking them down and up again (kill, stop, pause), their network (direct,
through links that can be cut, or in namespaces), faults of lakestream's disk and clock, and finding leaders. What a
client does with the cluster is in the tests.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.links import Direction, Network
from tests.cluster.namespaces import Namespaces
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, WireTimeout

CLUSTER = "TESTS"
READY_S = 30.0
POLL_S = 0.05
HTTP_S = 5.0
PORTS = range(10_000, 30_000)
"""Below the range of ephemeral ports, so that a dead node's port stays free."""
NOWHERE = "127.0.0.1:1"
"""Route address that nodes advertise if others shall reach them through links only."""
SYSTEM_USER = {"user": "admin", "pass": "admin"}


def _worker() -> tuple[int, int]:
    """Return the index of this test process and the number of test processes."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _shuffled() -> Iterator[int]:
    """Yield this process's share of the ports in random order, each once.

    A port is not repeated because its node may not be listening yet.
    """
    number, count = _worker()
    mine = [port for port in PORTS if port % count == number]
    random.SystemRandom().shuffle(mine)
    return itertools.cycle(mine)


_ports = _shuffled()


class NotReady(AssertionError):
    """Raised when the cluster does not reach an awaited state in time."""


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1 that no earlier call returned."""
    found: list[int] = []
    while len(found) < count:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def until(ready: Callable[[], Any], what: str, timeout: float = READY_S) -> Any:
    """Poll until the answer is true; return it.

    An error of a server that is down or does not answer counts as False.

    Raises:
        NotReady: it was not true within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            if last := ready():
                return last
        except (OSError, Closed, WireTimeout, LookupError, ValueError) as error:  # no node may run at this moment
            last = error
        time.sleep(POLL_S)
    raise NotReady(f"{what}: not within {timeout} s (last: {last!r})")


class Node(Server):
    """One node: a server process with fixed ports for clients, routes and monitoring.

    Args:
        number: index in the cluster, from 0.
        host: address to listen on.
        ports: for clients, routes and monitoring.
        prefix: prefix of its command line (a namespace).
        faults: file that tells lakestream to fail, or None.
    """

    def __init__(
        self,
        kind: Kind,
        store: Path,
        number: int,
        host: str,
        ports: Sequence[int],
        *,
        prefix: Sequence[str] = (),
        faults: Path | None = None,
    ) -> None:
        client, self.route_port, monitoring = ports
        super().__init__(kind, store, port=client, name=f"n{number + 1}", args=["-m", str(monitoring)])
        self.number = number
        self.host = host
        self.prefix = list(prefix)
        self.faults = faults
        self.bug = ""
        """Bug that its program has (see faulty_node.py)."""
        self.paused = False

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        command = super().command()
        if self.faults is not None:
            fault_program = Path(__file__).with_name("faulty_node.py")
            serve = command.index("serve")
            settings = ["env", f"LAKESTREAM_TEST_FAULTS={self.faults}", f"LAKESTREAM_TEST_BUG={self.bug}"]
            command = [*settings, sys.executable, str(fault_program), *command[serve:]]
        return self.prefix + command

    def pause(self) -> None:
        """Send SIGSTOP: the process stops, its connections stay open."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)
        self.paused = False

    def reload(self) -> None:
        """Write the present configuration and have it reloaded (SIGHUP)."""
        assert self.process is not None
        self.command()  # writes the configuration file
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        super().kill()
        self.paused = False

    def fail(self, **faults: Any) -> None:
        """Activate these faults (see faulty_node.py); without arguments, none."""
        assert self.faults is not None, "this cluster was made without faults"
        temporary = self.faults.with_suffix(".new")
        temporary.write_text(json.dumps(faults))
        os.replace(temporary, self.faults)

    def page(self, path: str) -> Any:
        """Return a page of the node's monitoring port."""
        with urllib.request.urlopen(f"http://{self.host}:{self.http_port}/{path}", timeout=HTTP_S) as answer:
            return json.load(answer)

    def stream_directory(self, stream: str, account: str = "$G") -> Path:
        """Return the directory of this node's replica of a stream."""
        return self.store / "jetstream" / account / "streams" / stream


class Cluster:
    """`size` nodes that form one cluster.

    Args:
        kind: the program.
        directory: for stores and configurations.
        links: connect nodes through links that can be cut and slowed down.
        namespaces: give each node a network namespace of its own (root).
        faults: allow faults in nodes (lakestream only).
        config: more text for every node's configuration.
        tags: of each node, by number.
        durable: have nats-server sync before it acks, as lakestream always does.
        accounts: text of the `accounts` block, without the system account.
        user: default user (password `p`) and its account; "" for none.
        node: class of the nodes.
    """

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        size: int = 3,
        *,
        links: bool = False,
        namespaces: bool = False,
        faults: bool = False,
        config: str = "",
        tags: Sequence[Sequence[str]] = (),
        durable: bool = False,
        accounts: str = "",
        user: tuple[str, str] = ("", "$G"),
        node: type[Node] = Node,
    ) -> None:
        assert not (links and namespaces)
        assert kind is Kind.OURS or not faults
        self.kind = kind
        self.directory = directory
        self._config = config
        self._tags = tags
        self._durable = durable
        self._accounts = accounts
        self.user = user
        self._login = {"user": user[0], "pass": "p"} if user[0] else {}
        self._network = Network() if links else None
        self._spaces = Namespaces(size) if namespaces else None
        self._directions: dict[tuple[int, int], Direction] = {}
        self._entrances: dict[tuple[int, int], int] = {}
        self._wires: dict[str, Wire] = {}
        self._node = node
        self.nodes: list[Node] = []
        for number in range(size):
            self._make(number, directory / f"faults{number + 1}.json" if faults else None)
        if self._network is not None:
            self._link()
        for node in self.nodes:
            node.config = self._config_of(node)

    def _make(self, number: int, faults: Path | None) -> None:
        host = "127.0.0.1" if self._spaces is None else self._spaces.addresses[number]
        prefix = () if self._spaces is None else self._spaces.prefix(number)
        store = self.directory / f"n{number + 1}"
        made = self._node(self.kind, store, number, host, free_ports(3), prefix=prefix, faults=faults)
        self.nodes.append(made)

    def _link(self) -> None:
        """Create a listener for each ordered pair of nodes; both listeners of a pair share their directions."""
        assert self._network is not None
        pairs = [(a.number, b.number) for a in self.nodes for b in self.nodes if a is not b]
        self._directions = {pair: self._network.direction() for pair in pairs}
        self._entrances = dict(zip(pairs, free_ports(len(pairs)), strict=True))
        for (a, b), port in self._entrances.items():
            target = (self.nodes[b].host, self.nodes[b].route_port)
            self._network.connect(port, target, self._directions[a, b], self._directions[b, a])

    def _config_of(self, node: Node) -> str:
        lines = [f"server_name: {node.name}"]  # at a reload nats-server forgets its command line options
        lines += [f"cluster {{ name: {CLUSTER}, listen: '{node.host}:{node.route_port}'"]
        routes = []
        for other in self.nodes:
            entrance = self._entrances.get((node.number, other.number))
            if other is not node:
                routes.append(f"nats-route://{other.host}:{other.route_port}" if entrance is None else _local(entrance))
        lines.append(f"  routes: [{', '.join(routes)}]")
        if self.kind is Kind.OURS:
            lines.append("  insecure: true")  # the addresses in network namespaces are not loopback
        if self._network is not None:
            lines.append(f"  advertise: '{NOWHERE}'")
        lines.append("}")
        if node.number < len(self._tags):
            lines.append(f"server_tags: [{', '.join(self._tags[node.number])}]")
        if self._system_user:
            user = f"{{ user: {SYSTEM_USER['user']}, pass: {SYSTEM_USER['pass']} }}"
            lines.append(f"accounts {{ $SYS {{ users: [ {user} ] }}\n{self._accounts}}}")
        if self.kind is Kind.REAL and self._durable:
            lines.append("jetstream { sync_interval: always }")
        return "\n".join([*lines, self._config, ""])

    def add_node(self) -> Node:
        """Add a node that knows the others; it is not started yet."""
        self._make(len(self.nodes), None)
        node = self.nodes[-1]
        node.config = self._config_of(node)
        return node

    def configure(self, node: Node, accounts: str) -> None:
        """Change the accounts of a running node."""
        self._accounts = accounts
        node.config = self._config_of(node)
        node.reload()

    # ---- processes

    def start(self) -> Cluster:
        """Start all nodes and wait until the cluster serves JetStream."""
        self._each(self.nodes, lambda node: node.start())
        self.wait_ready()
        return self

    def _each(self, nodes: Iterable[Node], work: Callable[[Node], Any]) -> None:
        chosen = list(nodes)
        with ThreadPoolExecutor(max(1, len(chosen))) as threads:
            list(threads.map(work, chosen))

    @property
    def running(self) -> list[Node]:
        """Return the nodes that run and are not paused."""
        return [node for node in self.nodes if node.running and not node.paused]

    def kill(self) -> None:
        """Kill all nodes."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
        for node in self.nodes:
            node.kill()
        if self._network is not None:
            self._network.close()
            self._network = None
        if self._spaces is not None:
            self._spaces.close()
            self._spaces = None

    def wipe(self, node: Node) -> None:
        """Empty the store of a stopped node."""
        assert not node.running
        shutil.rmtree(node.store)

    def node(self, name: str) -> Node:
        """Return the node with this name."""
        return next(node for node in self.nodes if node.name == name)

    def others(self, *without: Node) -> list[Node]:
        """Return all nodes except these."""
        return [node for node in self.nodes if node not in without]

    @property
    def urls(self) -> list[str]:
        """Return the client URLs of all nodes."""
        login = f"{self.user[0]}:p@" if self.user[0] else ""
        return [f"nats://{login}{node.host}:{node.wanted_port}" for node in self.nodes]

    # ---- network

    def _pairs(self, one: Iterable[Node], other: Iterable[Node]) -> list[tuple[int, int]]:
        return [(a.number, b.number) for a in one for b in other if a is not b]

    def cut(self, senders: Iterable[Node], receivers: Iterable[Node]) -> None:
        """Drop everything from the senders to the receivers, in this direction only."""
        for pair in self._pairs(senders, list(receivers)):
            if self._network is not None:
                self._network.cut(self._directions[pair])
            else:
                assert self._spaces is not None, "this cluster was made without links"
                self._spaces.cut(*pair)

    def isolate(self, node: Node) -> None:
        """Cut all routes between a node and the others; clients still reach it."""
        self.cut([node], self.others(node))
        self.cut(self.others(node), [node])

    def heal(self) -> None:
        """Restore all links at full speed."""
        for pair in self._pairs(self.nodes, self.nodes):
            if self._network is not None:
                self._network.restore(self._directions[pair])
            elif self._spaces is not None:
                self._spaces.restore(*pair)
        if self._spaces is not None:
            for node in self.nodes:
                self._spaces.delay(node.number, 0)

    def slow(self, node: Node, delay_s: float, bytes_per_s: float = 0.0) -> None:
        """Delay everything between a node and the others by `delay_s`, at most `bytes_per_s`."""
        if self._network is None:
            assert self._spaces is not None, "this cluster was made without links"
            assert self._spaces.delay(node.number, delay_s * 1e3).returncode == 0
            return
        for pair in [*self._pairs([node], self.nodes), *self._pairs(self.nodes, [node])]:
            self._network.slow(self._directions[pair], delay_s, bytes_per_s)

    def reset_links(self, node: Node) -> None:
        """Reset the connections between a node and the others."""
        assert self._network is not None, "this cluster was made without links"
        for pair in self._pairs([node], self.nodes):
            self._network.reset(self._directions[pair])

    @property
    def carried(self) -> int:
        """Return the number of bytes that the links have forwarded."""
        return sum(direction.carried for direction in self._directions.values())

    # ---- requests

    def as_user(self, user: str, account: str) -> Cluster:
        """Return this cluster as another user sees it."""
        other = copy.copy(self)
        other.user = (user, account)
        other._login = {"user": user, "pass": "p"}
        return other

    def apart(self) -> Cluster:
        """Return this cluster with connections of its own, for another thread."""
        other = copy.copy(self)
        other._wires = {}
        return other

    def wire(self, node: Node | None = None, timeout: float = 10.0, **connect: Any) -> Wire:
        """Return a new connection to a node (any running one by default); the caller closes it."""
        chosen = node or self.running[0]
        return Wire((chosen.host, chosen.wanted_port), self._login | connect, timeout)

    def api(self, subject: str, body: Any = None, *, node: Node | None = None, timeout: float = 5.0) -> Any:
        """Send a JetStream API request on a shared connection; return the answer, even an error."""
        return self._ask(node or self.running[0], subject, body, timeout, {}, "")

    @property
    def _system_user(self) -> bool:
        """Return True if the cluster has a system user; lakestream needs none if no accounts are configured."""
        return self.kind is Kind.REAL or bool(self._accounts)

    def system_api(self, subject: str, body: Any = None, *, node: Node | None = None, timeout: float = 5.0) -> Any:
        """Send a JetStream API request as the system account, if the cluster has a system user."""
        connect = SYSTEM_USER if self._system_user else {}
        return self._ask(node or self.running[0], subject, body, timeout, connect, "system")

    def _ask(self, node: Node, subject: str, body: Any, timeout: float, connect: dict[str, str], role: str) -> Any:
        assert node.process is not None
        key = f"{role or self.user[0]} {node.name} {node.process.pid}"
        wire = self._wires.get(key)
        if wire is None or wire.closed:
            wire = self._wires[key] = self.wire(node, timeout, **connect)
        try:
            return wire.api(subject, body, timeout)
        except (OSError, Closed):
            wire.close()
            raise

    def ask(self, subject: str, body: Any = None, *, node: Node | None = None, timeout: float = READY_S) -> Any:
        """Repeat an API request until it is answered without an error; return the answer."""

        def answer() -> Any:
            told = self.api(subject, body, node=node)
            if "error" in told:
                raise ValueError(told)
            return told

        return until(answer, subject, timeout)

    def stream(self, name: str, subjects: Sequence[str], replicas: int = 3, **config: Any) -> Any:
        """Create a stream with file storage and direct gets; return the answer once all replicas are current."""
        body = {"name": name, "subjects": list(subjects), "num_replicas": replicas, "allow_direct": True, **config}
        answer = self.ask(f"STREAM.CREATE.{name}", body)
        self.wait_current(name)
        return answer

    # ---- leaders

    def meta_leader(self) -> Node:
        """Return the leader of the meta group, once a running node reports a running one."""

        def leader() -> Node | None:
            for node in self.running:
                name = (node.page("jsz").get("meta_cluster") or {}).get("leader")
                if name and self.node(name) in self.running:
                    return self.node(name)
            return None

        found: Node = until(leader, "a leader of the meta group")
        return found

    def wait_ready(self, timeout: float = READY_S) -> None:
        """Wait until the meta group has a leader and all running nodes, and every node answers API requests."""
        running = {node.name for node in self.running}

        def ready() -> bool:
            for node in self.running:
                meta = node.page("jsz").get("meta_cluster") or {}
                if meta.get("leader") not in running or meta.get("cluster_size", 0) < len(running):
                    return False
                if "error" in self.api("STREAM.NAMES", node=node, timeout=1.0):
                    return False
            group = self.node(self.meta_leader().name).page("jsz")["meta_cluster"]
            current = {replica["name"] for replica in group.get("replicas") or () if replica.get("current")}
            return running <= current | {group["leader"]}

        until(ready, "a cluster that serves", timeout)

    def stream_cluster(self, stream: str, *, node: Node | None = None) -> Any:
        """Return the `cluster` object of a stream's info."""
        return self.api(f"STREAM.INFO.{stream}", node=node, timeout=1.0)["cluster"]

    def stream_leader(self, stream: str, timeout: float = READY_S) -> Node:
        """Return the node that leads a stream, once a running node does."""

        def leader() -> Node | None:
            for node in self.running:
                with contextlib.suppress(OSError, Closed, WireTimeout, KeyError):
                    name = self.stream_cluster(stream, node=node).get("leader")
                    if name and self.node(name) in self.running:
                        return self.node(name)
            return None

        found: Node = until(leader, f"a leader of {stream}", timeout)
        return found

    def followers(self, stream: str) -> list[Node]:
        """Return the nodes with a replica of a stream that do not lead it."""
        return [self.node(replica["name"]) for replica in self.stream_cluster(stream).get("replicas") or ()]

    def wait_current(self, stream: str, timeout: float = READY_S) -> None:
        """Wait until every replica of a stream is current."""

        def current() -> bool:
            cluster = self.stream_cluster(stream)
            replicas = cluster.get("replicas") or []
            if cluster.get("desired"):  # nats-server is moving the stream
                return False
            return bool(cluster.get("leader")) and all(
                replica.get("current") and not replica.get("lag") and not replica.get("offline") for replica in replicas
            )

        until(current, f"{stream} on all its replicas", timeout)

    def lead(self, stream: str, node: Node) -> None:
        """Make a node the leader of a stream."""

        def leads() -> bool:
            if self.stream_leader(stream) is node:
                return True
            self.api(f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": node.name}})
            with contextlib.suppress(NotReady):
                until(lambda: self.stream_leader(stream) is node, "", 2.0)
            return self.stream_leader(stream) is node

        until(leads, f"{node.name} as leader of {stream}")

    def log(self) -> str:
        """Return the last lines printed by the nodes."""
        return "\n".join(f"===== {node.name}\n{node.log(60)}" for node in self.nodes)


def _local(port: int) -> str:
    return f"nats-route://127.0.0.1:{port}"
