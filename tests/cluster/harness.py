"""Run one scripted scenario against a cluster, and compare what it said with what nats-server's said.

What belongs here: the script that a scenario of `scenarios/` is given, and what must differ between two clusters
(which node leads, ids of groups, ages of contacts). Frames, transcripts and their comparison are those of
tests/conformance.

A scenario must say the same on every run: it waits until a cluster has settled before it records where things are.
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
    """A registered script: its id, the function that plays it, and whether it takes nodes away."""

    id: str
    play: Callable[[ClusterScript], None]
    breaks: bool


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[ClusterScript], None]) -> Callable[[ClusterScript], None]:
    """Register a script under `<module>.<function>`; it leaves all nodes running."""
    SCENARIOS.append(Scenario(_id(play), play, False))
    return play


def breaking(play: Callable[[ClusterScript], None]) -> Callable[[ClusterScript], None]:
    """Register a script that stops or kills nodes: it gets a cluster of its own."""
    SCENARIOS.append(Scenario(_id(play), play, True))
    return play


def _id(play: Callable[[ClusterScript], None]) -> str:
    return f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}"


class ClusterScript(Script):
    """What a scenario works with: a connection to each node, and the transcript. `wire` is a connection to node n1."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        super().__init__(cluster.nodes[0], timeout, (cluster.user,))
        self.cluster = cluster
        self._at: dict[tuple[int, int], Wire] = {}

    def at(self, number: int) -> Wire:
        """The connection to a node (1, 2, 3…) that is kept for the script."""
        node = self.cluster.nodes[number - 1]
        assert node.process is not None
        key = (number, node.process.pid)
        if key not in self._at or self._at[key].closed:
            self._at[key] = self._keep(self.cluster.wire(node, self.timeout))
        return self._at[key]

    @property
    def wire(self) -> Wire:
        """The connection to the first node that runs."""
        return self.at(self.cluster.running[0].number + 1)

    def normal(self, value: Any, key: str = "") -> Any:
        """The value without what differs between any two runs, or any two clusters."""
        if isinstance(value, dict) and isinstance(value.get("replicas"), list):
            value = value | {"replicas": _anonymous(value["replicas"])}
            value.pop("desired", None)  # how far nats-server has come with a change
        if key == "raft_group" and value:
            return "<group>"
        if key == "leader" and value:
            return "<node>"
        return super().normal(value, key)

    def _text(self, text: str) -> str:
        return _INBOX.sub("_INBOX.w", super()._text(text))

    # ---- what is asked

    def heard(self, subject: str) -> None:
        """Wait until interest in a subject has reached all nodes: a request is not told that nobody responds.

        What was asked (`b"heard?"`) may still be on its way to a subscriber elsewhere.
        """
        for node in self.cluster.running:
            wire = self.at(node.number + 1)
            until(lambda wire=wire: responded(wire, subject), f"interest in {subject} at {node.name}", SETTLE_S)

    def heard_consumer(self, stream: str, consumer: str) -> None:
        """Wait until every node knows where a consumer without new messages is."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        for node in self.cluster.running:
            wire = self.at(node.number + 1)
            until(lambda wire=wire: wire.request(subject, b'{"no_wait":true}').status == 404, subject, SETTLE_S)

    def system(self, subject: str, body: Any = None) -> Any:
        """An API request of an operator; records the answer."""
        try:
            answer = self.cluster.system_api(subject, body, timeout=self.timeout)
        except WireTimeout:
            answer = "no answer"
        self.note(f"operator: {subject} {body or ''}", answer)
        return answer

    def settled(self, stream: str) -> Any:
        """Record STREAM.INFO's cluster once all replicas have everything."""
        self.cluster.wait_current(stream, SETTLE_S)
        cluster = self.cluster.stream_cluster(stream)
        self.note(f"cluster of {stream}", cluster)
        return cluster

    def wait_replicas(self, stream: str, count: int) -> None:
        """Wait until a stream has that many replicas, all with everything."""

        def there() -> bool:
            cluster = self.cluster.stream_cluster(stream)
            return len(cluster.get("replicas") or ()) == count - 1 and bool(cluster.get("leader"))

        until(there, f"{count} replicas of {stream}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def where(self, stream: str) -> list[str]:
        """The names of the nodes that hold a stream."""
        cluster = self.cluster.stream_cluster(stream)
        return sorted([cluster["leader"], *(replica["name"] for replica in cluster.get("replicas") or ())])

    def wait_where(self, stream: str, nodes: list[str]) -> None:
        """Wait until exactly these nodes hold a stream."""
        until(lambda: self.where(stream) == nodes, f"{stream} on {nodes}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def wait_other(self, stream: str, before: list[str], count: int) -> None:
        """Wait until `count` nodes, other ones than before, hold a stream."""
        until(lambda: len(now := self.where(stream)) == count and now != before, f"another {stream}", SETTLE_S)
        self.cluster.wait_current(stream, SETTLE_S)

    def replicated(self, name: str, subjects: Sequence[str], replicas: int = 3, **config: Any) -> None:
        """Create a stream as stage, and wait until it is everywhere; file storage."""
        self.cluster.stream(name, subjects, replicas, **config)

    def leader(self, stream: str) -> Node:
        """The node that leads a stream."""
        return self.cluster.stream_leader(stream)

    def known_everywhere(self, what: Callable[[Wire], Any], wanted: Any) -> None:
        """Wait until every node answers as wanted."""

        def agreed() -> bool:
            return all(what(self.at(node.number + 1)) == wanted for node in self.cluster.running)

        until(agreed, f"{wanted} on all nodes", SETTLE_S)

    def advisories(self, wire: Wire, sid: str, kinds: Sequence[str], count: int) -> None:
        """Record the next `count` advisories of these kinds, by subject; others are passed over."""
        got: list[Any] = []
        with contextlib.suppress(WireTimeout):
            while len(got) < count:
                frame = wire.delivered(sid)
                if any(f".{kind}" in frame.subject for kind in kinds):
                    got.append((frame.subject, frame.json() | {"id": "<id>"}))
        self.note("advisories", sorted(got, key=lambda pair: pair[0]))


def responded(wire: Wire, subject: str) -> bool:
    """Whether a request on a subject is taken by somebody."""
    try:
        return wire.request(subject, b"heard?", timeout=0.2).status != 503
    except WireTimeout:
        return True


def _anonymous(replicas: list[Any]) -> list[Any]:
    """Replicas without names and without what changes from moment to moment (see `ClusterScript.settled`)."""
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
    if cluster.kind is Kind.REAL:  # it removes the files after its answer; the next stream may have the same name
        places = [node.stream_directory("x", cluster.user[1]).parent for node in cluster.nodes]
        with contextlib.suppress(NotReady):
            until(lambda: not any(place.exists() and any(place.iterdir()) for place in places), "no files", 2.0)


def play(scenario: Scenario, cluster: Cluster, timeout: float) -> Transcript:
    """The transcript of a scenario; when it could not go on, the last entry says why."""
    script = ClusterScript(cluster, timeout)
    try:
        scenario.play(script)
    except (WireTimeout, Closed, AssertionError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        script.transcript.append(("STOPPED", f"{type(error).__name__}: {error}"))
    finally:
        script.close()
    return plain(script.transcript)


def compare(scenario: str, expected: Transcript, got: Transcript) -> str:
    """Unified difference of two transcripts, empty when they agree but for the allowed differences."""
    return harness.compare(scenario, expected, got, DIFFERENCES)
