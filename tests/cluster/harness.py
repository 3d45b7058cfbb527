"""Run scenarios against a cluster, and compare their transcripts with those of nats-server.

Belongs here: the script object that the scenarios of `scenarios/` get, and what legitimately differs between two
clusters (leaders, group ids, ages of contacts). Frames, transcripts and their comparison are those of
tests/conformance.

A scenario must give the same transcript on every run: it waits until a cluster has settled before it records where
things are.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.cluster.differences import DIFFERENCES
from tests.cluster.nodes import Cluster, Node, NotReady, until
from tests.conformance import harness
from tests.conformance.harness import Script
from tests.recordings import Transcript, plain
from tests.servers import Kind
from tests.wire import Closed, Wire, WireTimeout

SETTLE_S = 15.0

_INBOX = re.compile(r"_INBOX\.w\d+")


class Scenario(NamedTuple):
    """Registered scenario: its id, its function, and True in `breaking` if it takes nodes down."""

    id: str
    play: Callable[[ClusterScript], None]
    breaks: bool


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[ClusterScript], None]) -> Callable[[ClusterScript], None]:
    """Register a scenario under `<module>.<function>`; it leaves all nodes running."""
    SCENARIOS.append(Scenario(_id(play), play, False))
    return play


def breaking(play: Callable[[ClusterScript], None]) -> Callable[[ClusterScript], None]:
    """Register a scenario that stops or kills nodes; it gets a cluster of its own."""
    SCENARIOS.append(Scenario(_id(play), play, True))
    return play


def _id(play: Callable[[ClusterScript], None]) -> str:
    return f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}"


class ClusterScript(Script):
    """Script object of a scenario: a connection to each node, and the transcript. `wire` is a connection to node n1."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        super().__init__(cluster.nodes[0], timeout, (cluster.user,))
        self.cluster = cluster
        self._at: dict[tuple[int, int], Wire] = {}

    def at(self, number: int) -> Wire:
        """Return the script's connection to a node (1, 2, 3…), connecting on first use."""
        node = self.cluster.nodes[number - 1]
        assert node.process is not None
        key = (number, node.process.pid)
        if key not in self._at or self._at[key].closed:
            self._at[key] = self._begun(self.cluster.wire(node, self.timeout))
        return self._at[key]

    @property
    def wire(self) -> Wire:
        """Return the connection to the first running node."""
        return self.at(self.cluster.running[0].number + 1)

    def normal(self, value: Any, key: str = "") -> Any:
        """Return the value without parts that differ between runs or clusters."""
        if isinstance(value, dict) and isinstance(value.get("replicas"), list):
            value = value | {"replicas": _anonymous(value["replicas"])}
            value.pop("desired", None)  # progress of a change in nats-server
        if key == "raft_group" and value:
            return "<group>"
        if key == "leader" and value:
            return "<node>"
        return super().normal(value, key)

    def _text(self, text: str) -> str:
        return _INBOX.sub("_INBOX.w", super()._text(text))

    # ---- requests

    def heard(self, subject: str) -> None:
        """Wait until the interest in a subject has reached all nodes, so that a request gets no 503.

        The request sent for this (`b"heard?"`) may still be on its way to a subscriber on another node.
        """
        for node in self.cluster.running:
            wire = self.at(node.number + 1)
            until(lambda wire=wire: responded(wire, subject), f"interest in {subject} at {node.name}", SETTLE_S)

    def heard_consumer(self, stream: str, consumer: str) -> None:
        """Wait until every node routes pull requests of a consumer without new messages."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        for node in self.cluster.running:
            wire = self.at(node.number + 1)
            until(lambda wire=wire: wire.request(subject, b'{"no_wait":true}').status == 404, subject, SETTLE_S)

    def system(self, subject: str, body: Any = None) -> Any:
        """Send an API request as the system account; record the answer."""
        try:
            answer = self.cluster.system_api(subject, body, timeout=self.timeout)
        except WireTimeout:
            answer = "no answer"
        self.note(f"operator: {subject} {body or ''}", answer)
        return answer

    def settled(self, stream: str) -> Any:
        """Record the `cluster` object of STREAM.INFO once all replicas are current."""
        self.cluster.wait_current(stream, SETTLE_S)
        cluster = self.cluster.stream_cluster(stream)
        self.note(f"cluster of {stream}", cluster)
        return cluster

    def wait_replicas(self, stream: str, count: int) -> None:
        """Wait until a stream has `count` replicas, all current."""

        def there() -> bool:
            cluster = self.cluster.stream_cluster(stream)
            return len(cluster.get("replicas") or ()) == count - 1 and bool(cluster.get("leader"))

        until(there, f"{count} replicas of {stream}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def where(self, stream: str) -> list[str]:
        """Return the names of the nodes with a replica of a stream."""
        cluster = self.cluster.stream_cluster(stream)
        return sorted([cluster["leader"], *(replica["name"] for replica in cluster.get("replicas") or ())])

    def wait_where(self, stream: str, nodes: list[str]) -> None:
        """Wait until exactly these nodes have a replica of a stream."""
        until(lambda: self.where(stream) == nodes, f"{stream} on {nodes}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def wait_other(self, stream: str, before: list[str], count: int) -> None:
        """Wait until `count` nodes, different from `before`, have a replica of a stream."""
        until(lambda: len(now := self.where(stream)) == count and now != before, f"another {stream}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def replicated(self, name: str, subjects: Sequence[str], replicas: int = 3, **config: Any) -> None:
        """Create a stream with file storage as preparation, and wait until all replicas exist."""
        self.cluster.stream(name, subjects, replicas, **config)

    def leader(self, stream: str) -> Node:
        """Return the node that leads a stream."""
        return self.cluster.stream_leader(stream)

    def known_everywhere(self, what: Callable[[Wire], Any], wanted: Any) -> None:
        """Wait until every node gives this answer."""

        def agreed() -> bool:
            return all(what(self.at(node.number + 1)) == wanted for node in self.cluster.running)

        until(agreed, f"{wanted} on all nodes", SETTLE_S)

    def advisories(self, wire: Wire, sid: str, kinds: Sequence[str], count: int) -> None:
        """Record the next `count` advisories of these kinds, by subject; skip others."""
        got: list[Any] = []
        with contextlib.suppress(WireTimeout):
            while len(got) < count:
                frame = wire.delivered(sid)
                if any(f".{kind}" in frame.subject for kind in kinds):
                    got.append((frame.subject, frame.json() | {"id": "<id>"}))
        self.note("advisories", sorted(got, key=lambda pair: pair[0]))


def responded(wire: Wire, subject: str) -> bool:
    """Return True if a request on a subject has a responder."""
    try:
        return wire.request(subject, b"heard?", timeout=0.2).status != 503
    except WireTimeout:
        return True


def _anonymous(replicas: list[Any]) -> list[Any]:
    """Return replicas without names and without volatile values (see `ClusterScript.settled`)."""
    shown = []
    for replica in replicas:
        kept = {key: value for key, value in replica.items() if key not in ("active", "lag", "current", "offline")}
        shown.append(kept | {"name": "<node>", "peer": "<peer>"} if "peer" in kept else kept)
    return sorted(shown, key=lambda replica: sorted(replica.items(), key=str).__repr__())


def clean(cluster: Cluster, timeout: float) -> None:
    """Delete every stream, and wait until every node knows."""
    deadline = time.monotonic() + timeout
    while names := cluster.api("STREAM.NAMES").get("streams"):
        for name in names:
            cluster.api(f"STREAM.DELETE.{name}")
        assert time.monotonic() < deadline, f"{names} cannot be deleted"
    until(lambda: all(not cluster.api("STREAM.NAMES", node=node).get("streams") for node in cluster.running), "none")
    if cluster.kind is Kind.REAL:  # it removes files after its answer, and the next stream may have the same name
        places = [node.stream_directory("x", cluster.user[1]).parent for node in cluster.nodes]
        with contextlib.suppress(NotReady):
            until(lambda: not any(place.exists() and any(place.iterdir()) for place in places), "no files", 2.0)


def play(scenario: Scenario, cluster: Cluster, timeout: float) -> Transcript:
    """Run a scenario; return its transcript. After an error the last entry says what failed."""
    script = ClusterScript(cluster, timeout)
    try:
        scenario.play(script)
    except (WireTimeout, Closed, AssertionError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        script.transcript.append(("STOPPED", f"{type(error).__name__}: {error}"))
    finally:
        script.close()
    return plain(script.transcript)


def compare(scenario: str, expected: Transcript, got: Transcript) -> str:
    """Return the unified diff of two transcripts; empty if they agree except for the allowed differences."""
    return harness.compare(scenario, expected, got, DIFFERENCES)
