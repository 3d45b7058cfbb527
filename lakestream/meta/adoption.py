"""Streams on the disk of a node of a cluster.

Belongs here: opening this node's replicas at the start, and adopting the streams of a server that becomes a node of a
cluster. Each of them is assigned to this node with its uid and becomes a replica here; then it can be scaled up like
any other. A stream whose name another stream of the cluster has stays offline until an operator moves one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.meta.assignments import AssignStream
from lakestream.meta.meta import MetaUnusable
from lakestream.meta.meta_group import MetaGroup
from lakestream.meta.meta_transfer import MetaTransfer
from lakestream.meta.node import Keeping, MetaNode
from lakestream.meta.recovery import RecoveredLog, recover
from lakestream.protocol.api.errors import ApiError, for_clients
from lakestream.stream.assembly import Stream

AGAIN_NS = 500_000_000
"""Pause before the assignment of a stream is retried (0.5 s)."""


class Adoption(Keeping):
    """Opens replicas and adopts streams."""

    def __init__(self, node: MetaNode, meta: MetaGroup, transfer: MetaTransfer) -> None:
        self._node, self._meta, self._transfer, self._shared = node, meta, transfer, node.shared
        self._waiting: dict[str, AssignStream] = {}
        """Assignments to propose, by uid."""
        self._stopped = False

    # ------------------------------------------------------------------ Keeping
    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """Open the meta group, then every stream on disk. Raise MetaUnusable."""
        try:
            self._transfer.settle()
            self._meta.open()
        except (LogError, OSError, ValueError) as error:
            raise MetaUnusable(f"cannot use the cluster's own log in {self._meta.directory}: {error}") from error
        for account, name in found:
            if not self._node.replicas.recover(account, name):
                self._found(recover(self._node.replicas.site, account, name))
        self._node.local.reconcile()

    def served(self, account: str) -> None:
        for replica in self._node.replicas.of(account):
            replica.take_lead()

    def withdrawn(self, account: str) -> None:
        """Step down in the groups of the account's replicas, which stay open."""
        for replica in self._node.replicas.of(account):
            if replica.leading:
                replica.step_down()

    # ------------------------------------------------------------------ Service
    def start(self) -> None:
        """Propose the assignments of the streams found, once this node has caught up with the meta group."""
        if not self._waiting or self._stopped:
            return
        self._shared.clock.call_later(AGAIN_NS, self.start)
        if self._meta.caught_up and self._node.meta_leader():
            for op in list(self._waiting.values()):
                self._assign(op)

    def stop(self) -> None:
        """Stop proposing."""
        self._stopped = True

    def _found(self, found: RecoveredLog) -> None:
        """Close a stream again until it is assigned, or log the reason why it cannot be opened. Block."""
        account, name, log = self._node.accounts.of(found.account), found.name, self._shared.log
        if found.error is not None:
            reason = str(found.error) if isinstance(found.error, LogError | OSError) else repr(found.error)
            account.offline[name] = for_clients(found.error)
            log.error(f"stream {name} is offline: {reason}")
        elif found.stream is not None:
            self._close(found.stream)
            account.offline[name] = "it is from before this server was in a cluster, which does not know it yet"
            log.info(f"stream {name}: created before this server joined a cluster; it will be assigned to this node")

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
