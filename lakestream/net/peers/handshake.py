"""The handshake between nodes.

Belongs here: its decisions, without sockets: who is admitted, which of two connections between the same nodes stays,
and which ended connections are remembered. It has three steps, so that neither side relies on a connection that the
other does not have:

1. the dialling side sends HELLO;
2. the other side decides (`admit`) and answers with its own HELLO, or refuses;
3. the dialling side decides (`accept`) and sends READY: both are connected.

When two nodes dial each other, each sees the other's HELLO on both connections. A node that has answered a HELLO and
then gets an answer to its own keeps the connection that the smaller name dialled; the other node decides the same. A
node that is connected already refuses. So no connection that carried a buffer is ever replaced by another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import Hello, NodeInfo, PeerRefused

GONE_KEPT = 64
"""Ended connections that are remembered, to report them in the next HELLO."""


MAX_ATTEMPT = 64
"""Maximum length of a connection's name."""


class LinkCandidate(Protocol):
    """A connection as the table sees it."""

    attempt: str
    remote: NodeInfo | None

    @property
    def dialled(self) -> bool:
        """Return True if this node dialled."""

    @property
    def alive(self) -> bool:
        """Return True if the other node sent something within the liveness limit."""


C = TypeVar("C", bound=LinkCandidate)


class Decision(msgspec.Struct, Generic[C], frozen=True):
    """The decision about a connection: `refused` says why it is closed, `replaced` are the connections that it
    replaces."""

    refused: PeerRefused | None = None
    replaced: tuple[C, ...] = ()


class LinkTable(Generic[C]):
    """The connections of one node: `up`, by the other's name, and those in the handshake.

    Args:
        me: returns the current `NodeInfo` of this node.
        dynamic: returns True if the cluster's name was generated.
    """

    def __init__(self, me: Callable[[], NodeInfo], dynamic: Callable[[], bool]) -> None:
        self.up: dict[str, C] = {}
        self._answered: dict[str, C] = {}
        self._gone: deque[str] = deque(maxlen=GONE_KEPT)
        self._me = me
        self._dynamic = dynamic

    def admit(self, candidate: C, hello: Hello, trusted: bool) -> Decision[C]:
        """Step 2: a node that dialled sent HELLO. Unless refused, the candidate waits for READY.

        `trusted`: user and password of the HELLO are right.
        """
        refused = self._stranger(hello, trusted=trusted)
        if refused is not None:
            return Decision(refused)
        name, replaced = hello.node.name, []
        for held in (self.up.get(name), self._answered.get(name)):
            if held is None:
                continue
            refused = self._contest(held, hello)
            if refused is not None:
                return Decision(refused)
            replaced.append(held)
        self._answered[name] = candidate
        return Decision(None, tuple(replaced))

    def accept(self, candidate: C, hello: Hello) -> Decision[C]:
        """Step 3: the node that this one dialled sent HELLO. Unless refused, the candidate is up."""
        refused = self._stranger(hello, trusted=True)
        if refused is not None:
            return Decision(refused)
        name, replaced = hello.node.name, []
        held = self.up.get(name)
        if held is not None:
            refused = self._contest(held, hello)
            if refused is not None:
                return Decision(refused)
            replaced.append(held)
        held = self._answered.get(name)
        if held is not None:
            if _same_start(held, hello) and not wire.my_dial_stays(self._me().name, name):
                return Decision(self._refuse(wire.ALREADY_CONNECTED, f"{name} dialled at the same time"))
            replaced.append(held)
        self._rise(candidate, name)
        return Decision(None, tuple(replaced))

    def ready(self, candidate: C) -> bool:
        """Take READY from the node that dialled: the candidate is up. Return False when it was replaced meanwhile."""
        name = candidate.remote.name if candidate.remote is not None else ""
        if self._answered.get(name) is not candidate:
            return False
        self._rise(candidate, name)
        return True

    def ended(self, candidate: C) -> bool:
        """Remove a connection that ended; return True if it was up."""
        name = candidate.remote.name if candidate.remote is not None else ""
        if candidate.dialled or candidate in (self._answered.get(name), self.up.get(name)):
            self._gone.append(candidate.attempt)  # not for refused nodes, which could fill the list
        if self._answered.get(name) is candidate:
            del self._answered[name]
        if self.up.get(name) is not candidate:
            return False
        del self.up[name]
        return True

    def gone(self) -> tuple[str, ...]:
        """Return the last ended connections for the next HELLO: the other side may still hold one of them for alive."""
        return tuple(self._gone)

    def engaged(self, name: str) -> bool:
        """Return True if the node is connected, or its own dial is being accepted."""
        return name in self.up or name in self._answered

    # ------------------------------------------------------------------ rules
    def _stranger(self, hello: Hello, *, trusted: bool) -> PeerRefused | None:
        """Return the reason why a node is refused, apart from its connections."""
        me, other = self._me(), hello.node
        if len(hello.attempt) > MAX_ATTEMPT:
            return self._refuse(wire.WRONG_PROTOCOL, "the name of the connection is too long")
        if hello.protocol != wire.PROTOCOL:
            text = f"it uses version {hello.protocol} of the route protocol, {me.name} version {wire.PROTOCOL}"
            return self._refuse(wire.WRONG_PROTOCOL, text)
        if not other.name or not other.server_id:
            return self._refuse(wire.WRONG_PROTOCOL, "a node needs a name and an id")
        if other.server_id == me.server_id:
            return self._refuse(wire.MYSELF, "a connection of this node to itself")
        if not trusted:
            return self._refuse(wire.WRONG_CREDENTIALS, "Authorization Violation: wrong user or password")
        if wire.agreed_cluster(me.cluster, self._dynamic(), other.cluster, hello.dynamic) is None:
            return self._refuse(
                wire.WRONG_CLUSTER, f'cluster name "{other.cluster}" does not match "{me.cluster}" of {me.name}'
            )
        if other.name == me.name:
            return self._duplicate(other.name)
        return None

    def _contest(self, held: C, hello: Hello) -> PeerRefused | None:
        """Return why a connection stays although its node sends HELLO again; None when it is replaced."""
        if _same_start(held, hello):
            if held.attempt in hello.gone:
                return None  # it has ended at the other side
            return self._refuse(wire.ALREADY_CONNECTED, f"{hello.node.name} is connected already")
        # A restarted node: after a crash the old connection is still here. A living one keeps its name.
        return self._duplicate(hello.node.name) if held.alive else None

    def _duplicate(self, name: str) -> PeerRefused:
        text = f'Remote server has a duplicate name: "{name}"; every node of a cluster needs its own server_name'
        return self._refuse(wire.DUPLICATE_NAME, text)

    def _refuse(self, code: str, text: str) -> PeerRefused:
        return PeerRefused(code, text, self._me().name)

    def _rise(self, candidate: C, name: str) -> None:
        self._answered.pop(name, None)
        self.up[name] = candidate


def _same_start(held: LinkCandidate, hello: Hello) -> bool:
    return held.remote is not None and held.remote.server_id == hello.node.server_id
