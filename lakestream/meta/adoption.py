"""Streams on the disk of a node of a cluster.

Belongs here: opening this node's replicas at the start, and taking over streams from before the server had other
nodes, so that nothing is lost by making it a node of a cluster. Each of them is assigned to this node as it is, uid
included, and becomes a replica here; then it can be scaled up like any other. One whose name another stream of the
cluster has stays where it is, offline, until somebody has made room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.meta.assignments import AssignStream
from lakestream.meta.meta_group import MetaGroup
from lakestream.meta.meta_transfer import MetaTransfer
from lakestream.meta.node import MetaNode
from lakestream.meta.recovery import Recovered, recover
from lakestream.protocol.api.errors import ApiError, for_clients
from lakestream.stream.assembly import Stream

AGAIN_NS = 500_000_000
"""Pause before a stream that could not be assigned is tried again."""


class MetaUnusable(LogError):
    """The meta group's files cannot be opened."""


class Adoption:
    """See the module; implements `Keeping`."""

    def __init__(self, node: MetaNode, meta: MetaGroup, transfer: MetaTransfer) -> None:
        self._node, self._meta, self._transfer, self._shared = node, meta, transfer, node.shared
        self._waiting: dict[str, AssignStream] = {}
        """By uid."""
        self._stopped = False

    # ------------------------------------------------------------------ Keeping
    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """See `Keeping.recover`. Open the meta group first. Raise MetaUnusable."""
        try:
            self._transfer.settle()
            self._meta.open()
        except (LogError, OSError, ValueError) as error:
            raise MetaUnusable(f"cannot use the cluster's own log in {self._meta.directory}: {error}") from error
        for account, name in found:
            if not self._node.replicas.recover(account, name):
                self._found(recover(self._node.replicas.site, account, name))
        self._node.local.take_up()

    def served(self, account: str) -> None:
        for replica in self._node.replicas.of(account):
            replica.take_lead()

    def withdrawn(self, account: str) -> None:
        """See `Keeping.withdrawn`. The replicas go on, and none of them leads here."""
        for replica in self._node.replicas.of(account):
            if replica.leading:
                replica.step_down()

    def settling(self, account: str) -> bool:
        return False

    def when_settled(self, account: str, go_on: Callable[[], None]) -> bool:
        return False

    def discard(self, account: str) -> None:
        """See `Keeping.discard`: all are open."""

    # ------------------------------------------------------------------ Service
    def start(self) -> None:
        """Assign what was found, as soon as this node knows what is assigned."""
        if not self._waiting or self._stopped:
            return
        self._shared.clock.call_later(AGAIN_NS, self.start)
        if self._meta.caught_up and self._node.meta_leader():
            for op in list(self._waiting.values()):
                self._assign(op)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def _found(self, found: Recovered) -> None:
        """Close a stream again until it is assigned, or say why it cannot be opened. Block."""
        account, name, log = self._node.accounts.of(found.account), found.name, self._shared.log
        if found.error is not None:
            reason = str(found.error) if isinstance(found.error, LogError | OSError) else repr(found.error)
            account.offline[name] = for_clients(found.error)
            log.error(f"stream {name} is offline: {reason}")
        elif found.stream is not None:
            self._close(found.stream)
            account.offline[name] = "it is from before this server was in a cluster, which does not know it yet"
            log.info(f"stream {name}: it is from before this server was in a cluster and is to be assigned")

    def _close(self, stream: Stream) -> None:
        config, me = msgspec.json.encode(stream.config), (self._node.me,)
        self._waiting[stream.uid] = AssignStream(stream.uid, stream.account, stream.name, config, me, stream.created_ns)
        stream.store.close(stream.dump())

    def _assign(self, op: AssignStream) -> None:
        account, state, log = self._node.accounts.of(op.account), self._meta.state, self._shared.log
        if op.uid in state.by_uid:
            self._waiting.pop(op.uid, None)
            return
        if state.find(op.account, op.name) is not None or state.removed(op.uid):
            self._waiting.pop(op.uid, None)
            account.offline[op.name] = "the cluster has another stream of this name: move one of them away"
            log.error(f"stream {op.name} stays offline: {account.offline[op.name]}")
            return

        def done(error: ApiError | None) -> None:
            if error is None:
                self._waiting.pop(op.uid, None)
                log.info(f"stream {op.name}: assigned to this node")

        self._node.propose(op, done)
