"""Audit of a cluster on the image of a crash of all its nodes.

Belongs here: what the images show without a server (each acked message is on a majority, terms and votes do not go
back, replicas have the same content), and real nodes that are started on the images. The comparison of one stream with
what its clients were told is audit.py's.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from lakestream.log.format.errors import LogError
from lakestream.log.store.base import NoBase
from lakestream.log.store.root import StoreRoot
from lakestream.log.store.store import Store
from lakestream.raft.group.hard_state import NAME, PersistentState
from lakestream.stream.assembly import Stream as Held
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.recovered import differences, recover
from lakestream_verify.streams import read_state
from tests.cluster.nodes import NotReady, free_ports, until
from tests.power.audit import TIMEOUT_S, Forked, NotStarted, audit_stream
from tests.power.workload import Recording
from tests.sealing import files_of
from tests.wire import Closed, Wire, WireTimeout

ANSWER_S = 2.0
READY_S = 60.0
SHOWN = 5
OF_SEALS = ("applied", "removed messages", "erased messages", "shredded messages")
"""Fields of a comparison of replicas that the last seal decides."""


# ---- without servers


class Replica:
    """A replica of a stream, recovered from an image: its hard state, and its stream (None without entries)."""

    def __init__(self, node: str, state: PersistentState | None, held: Held | None) -> None:
        self.node, self.state, self.held = node, state, held


@contextlib.contextmanager
def replicas(root: Path, nodes: Sequence[str], problems: list[str]) -> Iterator[dict[str, list[Replica]]]:
    """Recover every replica in the stores of these nodes, by stream, without changing a file."""
    found: dict[str, list[Replica]] = {}
    with contextlib.ExitStack() as stack:
        for node in nodes:
            path = root / node / "jetstream"
            if not (path / "VERSION").exists():
                continue
            files = files_of(path.parent)
            store = StoreRoot.inspect(str(path), files)
            stack.callback(store.close)
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lakestream-power-"))
            os.mkdir(survey := os.path.join(scratch, "survey"))
            for number, (account, name) in enumerate(
                store.survey(files.over(Overlay(survey)), lambda line: None).streams
            ):
                directory = store.stream_directory(account, name)
                os.mkdir(upper := os.path.join(scratch, str(number)))
                if not os.path.exists(os.path.join(directory, NAME)):
                    continue  # its creation was not complete
                state, damaged = read_state(files, directory)
                problems += [f"{node}: {each.file}: {each.what}" for each in damaged if not each.harmless]
                try:
                    one = recover(files.over(Overlay(upper)), directory, state.durable if state else None, None)
                except NoBase:
                    continue  # a follower was reading it, and makes it of the table when it starts
                except LogError as error:
                    problems.append(f"{node}: {name} is damaged: {error}")
                    continue
                stack.callback(one.close)
                found.setdefault(name, []).append(Replica(node, state, one.stream))
        yield found


def screen(recording: Recording, at_ns: int) -> list[str]:
    """Return acked messages that are on fewer replicas of the images than a majority, and damage.

    Raft needs a majority that has stored an entry for its ack: so an election cannot elect a member without it.
    """
    problems: list[str] = []
    with replicas(Path(recording.root), alive(recording, at_ns), problems) as found:
        for stream in recording.streams:
            if not stream.created_ns < at_ns <= stream.deleting_ns or "mirror" in stream.config:
                continue
            held = [each.held.store for each in found.get(stream.name, ()) if each.held is not None]
            present = stream.present(at_ns)
            damaged: set[str] = set()
            few = [seq for seq, each in present.items() if _holders(held, seq, each.payload(), damaged) < stream.copies]
            problems += sorted(damaged)
            if few:
                problems.append(
                    f"{stream.name}: {len(few)} of {len(present)} acked messages are on fewer than {stream.copies} "
                    f"of {len(held)} replicas: {', '.join(map(str, few[:SHOWN]))}"
                )
    return problems


def _holders(stores: Sequence[Store], seq: int, payload: bytes, damaged: set[str]) -> int:
    """Return the number of replicas that have a message; add the damage that is met to `damaged`."""
    count = 0
    for store in stores:
        try:
            record = store.read(seq)
        except LogError as error:
            damaged.add(str(error))
            continue
        # A message that has left the log is in the lake.
        count += record.data == payload if record is not None else seq in store.live
    return count


def compare(root: Path, nodes: Sequence[str]) -> list[str]:
    """Return how replicas differ from each other after their servers were at rest."""
    problems: list[str] = []
    with replicas(root, nodes, problems) as found:
        for name, held in found.items():
            members = [each for each in held if each.held is not None]
            for other in members[1:]:
                first = members[0]
                assert first.held is not None
                assert other.held is not None
                # A seal may be on its way to one of them: an entry that changes no message.
                late = first.held.store.applied != other.held.store.applied
                problems += [
                    f"{name}: {field} of {first.node} is {mine}, of {other.node} {theirs}"
                    for field, mine, theirs in differences(first.held, other.held)
                    if not (late and field in OF_SEALS)
                ]
    return problems


def alive(recording: Recording, at_ns: int) -> list[str]:
    """Return the nodes of the cluster at that time; at least the three that it begins with."""
    members = recording.members
    return [each.name for each in members[:3] + [m for m in members[3:] if m.started_ns < at_ns <= m.removed_ns]]


# ---- with servers


class Restarted:
    """Nodes of a cluster on the images of a crash, in forks, on other ports than before."""

    def __init__(self, recording: Recording, nodes: Sequence[str]) -> None:
        self.names = list(nodes)
        self._directory, self._root = Path(recording.directory), Path(recording.root)
        ports = free_ports(len(recording.members))
        self._ports = {each.port: port for each, port in zip(recording.members, ports, strict=True)}
        self._servers: dict[str, Forked] = {}
        self.wires: dict[str, Wire] = {}

    def start(self) -> None:
        """Start all nodes and connect to each. Raise NotStarted."""
        for name in self.names:
            text = (self._directory / f"{name}.conf").read_text()
            for old, new in self._ports.items():
                text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
            path = self._directory / f"{name}-again.conf"
            path.write_text(text)
            arguments = ["-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(self._root / name), "-c", str(path)]
            self._servers[name] = Forked(arguments, self._directory / f"{name}-again.log")
        for name, server in self._servers.items():
            self.wires[name] = Wire(("127.0.0.1", server.port()), timeout=TIMEOUT_S)

    def api(self, api: str, name: str = "") -> Any:
        """Return the answer to a request at a node, the first one by default."""
        return self.wires[name or self.names[0]].api(api, None, ANSWER_S)

    def ask(self, api: str, name: str = "") -> Any:
        """Repeat a request until it is answered, be it with an error that something does not exist. Raise NotReady."""

        def answered() -> Any:
            answer = self.api(api, name)
            return answer if "error" not in answer or answer["error"]["code"] == 404 else None

        return until(answered, f"{api} at {name or self.names[0]}", READY_S)

    def wait_serving(self) -> None:
        """Wait until every node answers requests. Raise NotReady."""
        for name in self.names:
            self.ask("STREAM.NAMES", name)

    def wait_current(self, stream: str) -> None:
        """Wait until a stream has a leader, and all its replicas are current. Raise NotReady."""

        def current() -> bool:
            cluster = self.api(f"STREAM.INFO.{stream}")["cluster"]
            replicas = cluster.get("replicas") or ()
            return bool(cluster.get("leader")) and all(each["current"] and not each.get("lag") for each in replicas)

        until(current, f"{stream} on all its replicas", READY_S)

    def tails(self) -> str:
        """Return the last lines of the logs."""
        return "\n".join(f"[{name}] {server.tail()}" for name, server in self._servers.items())

    def kill(self) -> None:
        """Kill all nodes."""
        for wire in self.wires.values():
            wire.close()
        for server in self._servers.values():
            server.kill()


def audit_cluster(recording: Recording, at_ns: int, random: Random) -> list[str]:
    """Start all nodes on the images at the recorded root; return what differs from what clients were told."""
    root = Path(recording.root)
    nodes = alive(recording, at_ns)
    cluster = Restarted(recording, nodes)
    problems = []
    try:
        cluster.start()
        cluster.wait_serving()
        wire = cluster.wires[random.choice(nodes)]
        for stream in recording.streams:
            due = stream.created_ns < at_ns <= stream.deleting_ns
            if due and "error" not in cluster.ask(f"STREAM.INFO.{stream.name}"):
                cluster.wait_current(stream.name)
            problems += [f"{stream.name}: {problem}" for problem in audit_stream(wire, stream, at_ns)]
        for name in cluster.ask("STREAM.NAMES").get("streams") or ():
            cluster.wait_current(name)
    except NotStarted as error:
        problems.append(f"a node does not start: {error}")
    except (NotReady, Closed, WireTimeout, OSError) as error:
        problems.append(f"{type(error).__name__} {error}: {cluster.tails()}")
    finally:
        cluster.kill()
    return problems or compare(root, nodes)
