"""Three real nodes, of which one has files that fail.

Belongs here: a stream with three replicas whose leader's files fail, and the promises that are checked: another node
leads or the same one goes on, nothing acked is lost, and the node has everything again once its files are good.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.nodes import Cluster, NotReady, until
from tests.faults.plan import SOURCE, Action, Call, Plan, Rule
from tests.power.audit import read
from tests.power.facts import Message, Stream
from tests.power.journal import build
from tests.servers import Kind
from tests.wire import Closed, Wire, WireTimeout

RULES = (
    Rule(Call.SYNC, "*/streams/{stream}/log/*.seg", skip=2),
    Rule(Call.WRITE, "*/streams/{stream}/log/*.seg", Action.PART, 28, skip=2),
    Rule(Call.WRITE | Call.SYNC, "*/streams/{stream}/raft"),
    Rule(Call.READ, "*/streams/{stream}/log/*.seg"),
    Rule(Call.READ, "*/streams/{stream}/log/*.seg", Action.FLIP),
    Rule(Call.WRITE, "*/streams/{stream}/log/*.seg", Action.KILL, skip=2, times=1),
    Rule(Call.SYNC, "*/streams/{stream}/log/*.seg", Action.DELAY, delay_us=200_000),
    Rule(Call.SYNC, "*/_meta_/*"),
)
"""Faults of the leader of a stream, and of the meta group at the last."""
WORKS_AGAIN_S = 30.0
MESSAGES = 12


class Nodes:
    """A cluster whose first node follows a plan."""

    def __init__(self, directory: Path, tools: Path) -> None:
        self.cluster = Cluster(Kind.OURS, directory)
        self.node = self.cluster.nodes[0]
        self.node.store.mkdir(parents=True)
        self.plan = Plan(directory / "plan", self.node.store)
        self.node.environment |= self.plan.environment(build(tools, SOURCE))
        self.count = 0
        self.problems: list[str] = []
        self.hits: dict[str, int] = {}

    def __enter__(self) -> Nodes:
        self.cluster.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.cluster.kill()

    def suffer(self, rule: Rule) -> None:
        """Let a stream live whose leader follows a rule."""
        self.count += 1
        name = f"R{self.count}"
        rule = rule._replace(pattern=rule.pattern.replace("{stream}", name))
        try:
            problem = self._suffer(name, rule)
        except (AssertionError, NotReady, Closed, WireTimeout, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            self.plan.set()
        if problem:
            self.problems.append(f"{name}: {rule}: {problem}")
        if not self.node.running:
            self.node.kill()
            self.node.start()
            self.cluster.wait_ready()

    def _suffer(self, name: str, rule: Rule) -> str:
        cluster, stream = self.cluster, Stream(name, {"allow_direct": True})
        cluster.stream(name, [f"{name}.*"], allow_direct=True)
        cluster.lead(name, self.node)
        with cluster.wire(cluster.nodes[1]) as wire:
            _publish(wire, stream, MESSAGES)
            self.plan.set(rule)
            _publish(wire, stream, MESSAGES)
            cluster.api(f"STREAM.UPDATE.{name}", {**_config(name), "max_age": 3_600_000_000_000}, node=cluster.nodes[1])
            _publish(wire, stream, MESSAGES)
            self.hits[str(rule)] = self.plan.hits()
            if problem := _differs(wire, stream):
                return f"while the files fail, {problem}"
        if "Traceback" in (log := self.node.log(2000)):
            return "the node's log has a traceback: " + log[-2000:]
        self.node.kill()
        self.plan.set()
        self.node.start()
        cluster.wait_ready()
        cluster.wait_current(name)
        cluster.lead(name, self.node)
        with cluster.wire(self.node) as wire:
            _publish(wire, stream, 1)
            problem = _differs(wire, stream)
        return f"once the node has come back, {problem}" if problem else ""


def _config(name: str) -> dict[str, object]:
    return {"name": name, "subjects": [f"{name}.*"], "num_replicas": 3, "allow_direct": True}


def _publish(wire: Wire, stream: Stream, count: int) -> None:
    """Publish messages one by one, each until it is acked."""
    for _ in range(count):
        seq = len(stream.messages) + 1
        message = Message(seq, f"{stream.name}.{seq % 3}", 500, time.monotonic_ns())

        def acked(message: Message = message) -> bool:
            headers = {"Nats-Msg-Id": f"{stream.name}-{message.seq}"}
            answer = wire.request(message.subject, message.payload(), headers, timeout=2.0)
            if not answer.data or "error" in answer.json():
                return False
            assert answer.json()["seq"] == message.seq, (message.seq, answer.json())
            return True

        until(acked, f"an ack of {stream.name} {seq}", WORKS_AGAIN_S)
        message.acked_ns = time.monotonic_ns()
        stream.messages[seq] = message


def _differs(wire: Wire, stream: Stream) -> str:
    """Return how the stream differs from what was acked. A read may fail and be repeated, but never be wrong."""

    def whole() -> bool:
        held = read(wire, stream, stream.messages)
        wrong = [
            seq for seq, frame in held.items() if not frame.status and frame.data != stream.messages[seq].payload()
        ]
        assert not wrong, f"messages {wrong} have other content"
        return all(seq in held and not held[seq].status for seq in stream.messages)

    try:
        until(whole, f"all messages of {stream.name}", WORKS_AGAIN_S)
    except NotReady as error:
        return str(error)
    return ""
