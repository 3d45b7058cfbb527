"""Verdict on three damaged nodes, once all have started again.

Belongs here: reading every replica and comparing it with what clients were told. A stream is whole, or it stops and the
log names it. Nothing is lost in silence, nothing that was removed comes back, and no sequence is given twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from tests.chaos.audit import read_all
from tests.cluster.nodes import Cluster, Node
from tests.damage.harms import META, Scene
from tests.damage.prepared import ALONE, STREAMS, Known, each, subjects_of, take
from tests.servers import StartFailed
from tests.wire import Closed, Wire, WireTimeout

WHOLE, STOPPED, PARTLY = "whole", "stopped", "partly"
"""Outcomes: the stream is as it was; it does not serve, or some of its messages cannot be read; the log says so."""
NO_MESSAGE = 10037
PAUSE_S = 0.2
PATIENCE_S = 12.0
"""Time after which a damaged stream may count as stopped."""
LIMIT_S = 90.0
"""Most time until a stream is whole that has to be, and until a stop is named."""
READ_S = 5.0
ASK_S = 2.0


class Broken(AssertionError):
    """Raised when a promise is broken."""


class Content(NamedTuple):
    """Messages of one replica: subject and payload by sequence."""

    stream: str
    node: str
    messages: Mapping[int, tuple[str, bytes]]

    def compare(self, known: Known) -> list[int]:
        """Return the acked sequences that are missing.

        Raises:
            Broken: there is something that should not be.
        """
        where = f"{self.stream} at {self.node}"
        if back := known.gone & self.messages.keys():
            raise Broken(f"{where}: removed, and back: {sorted(back)}")
        for seq, (subject, data) in self.messages.items():
            if known.sent.get(data) != subject:
                raise Broken(f"{where}: nobody published message {seq} as it is")
            if known.acked.get(seq, data) != data:
                raise Broken(f"{where}: another message has the acked sequence {seq}")
        return [seq for seq in sorted(known.acked.keys() - self.messages.keys()) if not self._gave_way(seq, known)]

    def _gave_way(self, seq: int, known: Known) -> bool:
        """Return True if messages whose acks did not arrive may have removed this one, by a limit."""
        later = [other for other in self.messages if other > seq]
        if known.limit and len(later) >= known.limit:
            return True
        subject = known.sent[known.acked[seq]]
        return bool(known.keeps) and sum(self.messages[other][0] == subject for other in later) >= known.keeps


class Judge:
    """Judge of one case.

    Args:
        cluster: not started.
        known: what clients know, by stream.
        scene: what was damaged.
    """

    def __init__(self, cluster: Cluster, known: Mapping[str, Known], scene: Scene) -> None:
        self._cluster, self._known, self._scene = cluster, known, scene
        self._down: list[str] = []
        self._why: dict[str, str] = {}

    def judge(self) -> dict[str, str]:
        """Start the nodes; return the outcome of each stream.

        Raises:
            Broken: a promise is broken.
        """
        each(self._cluster.nodes, self._start)
        began, left, outcomes = time.monotonic(), list(STREAMS), dict[str, str]()
        while left:
            for name in left:
                if self._is_whole(name):
                    outcomes[name] = WHOLE
                elif (passed := time.monotonic() - began) > PATIENCE_S and (outcome := self._stopped(name)):
                    outcomes[name] = outcome
                elif passed > LIMIT_S:
                    raise Broken(f"{name} is neither whole nor stopped by name: {self._why.get(name)}")
            left = [name for name in left if name not in outcomes]
            time.sleep(PAUSE_S)
        return outcomes

    def _start(self, node: Node) -> None:
        try:
            node.start()
        except StartFailed as error:
            harmed = [harm for harm in self._scene.harms if harm.node == node.name and harm.stream == META]
            if not any(harm.file in str(error) for harm in harmed):
                raise Broken(f"{node.name} does not start, and names no damaged file: {error}") from None
            self._down.append(node.name)

    def _is_whole(self, name: str) -> bool:
        """Return True if all running replicas of a stream are current and have everything, and it takes a message."""
        try:
            with self._cluster.wire(timeout=READ_S) as wire:
                return self._look(wire, name)
        except (OSError, Closed, WireTimeout, ValueError, LookupError) as error:
            self._why[name] = repr(error)
            return False

    def _look(self, wire: Wire, name: str) -> bool:
        answer = wire.api(f"STREAM.INFO.{name}", timeout=ASK_S)
        if "error" in answer:
            raise ValueError(answer["error"])
        group = answer["cluster"]
        others = {one["name"]: one for one in group.get("replicas") or () if one["name"] not in self._down}
        behind = [other for other, one in others.items() if not one.get("current")]
        if not group.get("leader") or behind:
            raise ValueError(f"leader {group.get('leader')!r}, not current: {behind}")
        known, content = self._known[name], dict[int, tuple[str, bytes]]()
        for holder in (group["leader"], *others):
            read = self._read(self._cluster.node(holder), name)
            content |= read.messages
            if missing := read.compare(known):
                self._missing(wire, name, holder, missing)
        self._use(wire, name, known, content)
        return True

    def _read(self, node: Node, name: str) -> Content:
        with self._cluster.wire(node, READ_S) as wire:
            try:
                messages = {one.seq: (one.subject, one.data) for one in read_all(wire, name)}
            except AssertionError as error:  # a read that ends with another status
                raise ValueError(f"{node.name}: {error}") from None
        return Content(name, node.name, messages)

    def _missing(self, wire: Wire, name: str, holder: str, missing: list[int]) -> None:
        """Raise ValueError, with what a read of a missing message says."""
        answer = wire.api(f"STREAM.MSG.GET.{name}", {"seq": missing[0]})
        raise ValueError(f"{holder} lacks {missing}: {answer.get('error', 'the leader has it')}")

    def _use(self, wire: Wire, name: str, known: Known, content: Mapping[int, tuple[str, bytes]]) -> None:
        """Publish a message, and take others; each use is checked once."""
        for consumer, taken in known.taken.items():
            if again := taken & take(wire, name, consumer, 20).keys():
                raise Broken(f"{name}: consumer {consumer} gets messages again whose ack was confirmed: {again}")
        last = max(known.last, max(content, default=0))
        known.publish(wire, subjects_of(name, Random(0), 1), Random(1))
        if known.last <= last:
            raise Broken(f"{name}: a sequence is given twice: {known.last} after {last}")

    def _stopped(self, name: str) -> str:
        """Return the outcome of a stream that is not whole and may be so; "" if it may not, or not yet."""
        down = len(self._down) > 1 or (name == ALONE and bool(self._down))
        if not down and (self._scene.is_provable(name) or not self._is_named(name)):
            return ""
        try:
            with self._cluster.wire(timeout=READ_S) as wire:
                answer = wire.api(f"STREAM.INFO.{name}", timeout=ASK_S)
                if "error" in answer or not answer["cluster"].get("leader"):
                    return STOPPED
                return self._partly(wire, name)
        except (OSError, Closed, WireTimeout, LookupError):
            return STOPPED

    def _is_named(self, name: str) -> bool:
        words = [f"stream {name}", *(["the meta group"] if META in self._scene.harmed else [])]
        lines = (line for node in self._cluster.nodes for line in node.log(2000).splitlines() if "[ERR]" in line)
        return any(word in line for line in lines for word in words)

    def _partly(self, wire: Wire, name: str) -> str:
        """Return `PARTLY` if some messages cannot be read, with an error other than that there is none; else "".

        Raises:
            Broken: a message is said not to be there.
        """
        outcome = ""
        for seq in sorted(self._known[name].acked):
            answer = wire.api(f"STREAM.MSG.GET.{name}", {"seq": seq})
            if answer.get("error", {}).get("err_code") == NO_MESSAGE:
                raise Broken(f"{name}: message {seq} was acked, and there is none: {self._why.get(name)}")
            outcome = PARTLY if "error" in answer else outcome
        return outcome
