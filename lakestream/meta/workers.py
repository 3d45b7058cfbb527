"""The meta layer of a worker: one of several processes that serve together as one server.

Belongs here: which worker holds which stream, and assembling the meta node of a worker. A worker stores streams as a
server without other nodes does: groups of one, no Raft log, nothing on disk but the streams themselves. So the workers'
stream directories can be moved between them (docs/internals/workers.md); worker_moves.py does so while they run.

Every worker tells the others its streams when they connect; the first one decides about new ones. An entry is acted on
by the worker that holds the stream, then made known to the others, then answered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

import msgspec

from lakestream.logging import Logger
from lakestream.meta.assignments import (
    Applied,
    Assignment,
    AssignStream,
    ChangeStream,
    MetaOp,
    RemoveStream,
    decode_op,
    encode_op,
)
from lakestream.meta.cluster import RestoreWatch
from lakestream.meta.meta import Acted, Outcome, SoloMeta
from lakestream.meta.node import CALL_TIMEOUT_NS, MetaNode, decode_failure, encode_failure
from lakestream.meta.placement import Placing
from lakestream.meta.ports import AllAccounts, Peers
from lakestream.meta.replica_files import SoloFiles
from lakestream.meta.shared import Shared
from lakestream.meta.worker_moves import GIVE, MOVE_TIMEOUT_NS, Guard, Settle, WorkerKeeping
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Where
from lakestream.raft.group.ports import call_all
from lakestream.raft.group.solo import SoloGroups
from lakestream.stream.core.config import StreamConfig

ACT, LEARN, HELD = "workers.act", "workers.learn", "workers.held"
"""The calls between workers: act on an entry, take note of one, take note of all streams of the caller."""
MAX_DEFERRED = 1000
"""Entries that may wait for the end of a stream's move; further ones fail with 10008."""


class WorkerMeta(SoloMeta):
    """Implements `Meta` for a worker. `state` has the streams of all workers.

    Args:
        leader: the name of the first worker, which decides.
        others: the names of the other workers.
    """

    def __init__(self, peers: Peers, leader: str, others: Collection[str], settle: Settle, log: Logger) -> None:
        super().__init__(peers.me)
        self.leader = leader
        self.on_leading: Callable[[], None] = lambda: None
        """Called when this worker begins to decide: it knows the streams of all others."""
        self.is_in_hand: Callable[[str], bool] = lambda uid: False
        """Returns True while a stream is given or taken by this worker."""
        self._moving: dict[str, list[Callable[[], None]]] = {}
        """The stream that moves, by uid, and the entries about it, which wait."""
        self._peers, self._settle, self._log = peers, settle, log
        self._unknown = set(others) if peers.me == leader else set[str]()
        self.leading = peers.me == leader and not self._unknown
        self._held_decoder = msgspec.msgpack.Decoder(list[AssignStream])
        peers.serve(ACT, self._act_asked)
        peers.serve(LEARN, self._learn_asked)
        peers.serve(HELD, self._held_told)
        peers.watch(self._seen)

    # ------------------------------------------------------------------ entries, on the first worker
    def propose(self, op: MetaOp, done: Outcome) -> None:
        if not self.leading:
            done(api_error(10008))
            return
        if (waiting := self._moving.get(op.uid)) is not None:
            if len(waiting) < MAX_DEFERRED:
                waiting.append(functools.partial(self.propose, op, done))
            else:
                done(api_error(10008))
            return
        known = self.state.by_uid.get(op.uid)
        if isinstance(op, ChangeStream) and known is not None and op.peers != known.peers:
            self._move(known, op.peers[0], done)
            return
        self.as_of += 1
        applied = self.state.apply(op, self.as_of)
        if applied.refused:
            done(applied)
            return
        holder = _holder(applied)

        def acted(error: ApiError | None) -> None:
            if error is None:
                self._spread(op, holder, lambda: done(applied))
            else:
                self._revert(op, applied, holder, lambda: done(error))

        if holder == self.me:
            self._act(applied, acted)
            return
        self._act(applied, lambda error: None)  # what is cached of it here
        self._peers.call(holder, ACT, encode_op(op), lambda body, _: acted(decode_failure(body)), CALL_TIMEOUT_NS)

    def _move(self, known: Assignment, to: str, done: Outcome) -> None:
        """Have a stream move to another worker, one stream at a time; its new holder tells all others."""
        if self._moving:
            done(api_error(10008))
            return
        uid, was = known.uid, known.peers[0]
        waiting = self._moving[uid] = []

        def given(body: bytes | None, why: str) -> None:
            del self._moving[uid]
            error = decode_failure(body)
            if error is None:
                self._log.info(f"stream {known.name}: moved from {was} to {to}")
            done(error or Applied(known, self.state.by_uid.get(uid)))
            for go_on in waiting:
                go_on()

        self._peers.call(was, GIVE, msgspec.msgpack.encode((uid, to)), given, MOVE_TIMEOUT_NS)

    def _revert(self, op: MetaOp, applied: Applied, holder: str, then: Callable[[], None]) -> None:
        """Undo an entry that its holder could not act on. A holder that is gone tells its streams when it is back."""
        if isinstance(op, AssignStream) and op.uid in self.state.by_uid:
            if holder == self.me or self._peers.alive(holder):
                self.propose(RemoveStream(op.uid), lambda _: then())
                return
            self._forget(op.uid)
        elif isinstance(op, RemoveStream) and applied.before is not None:
            self.state.take_back(applied.before)
        then()

    def _spread(self, op: MetaOp, holder: str, then: Callable[[], None]) -> None:
        """Make an entry known to the workers that do not hold its stream; then go on."""
        rest = [node for node in self._peers.connected() if node != holder]
        call_all(self._peers, rest, LEARN, encode_op(op), then, CALL_TIMEOUT_NS)

    def _act(self, applied: Applied, acted: Acted) -> None:
        self.on_applied(applied, acted)
        self.state.tombstones.clear()

    # ------------------------------------------------------------------ entries of the first worker
    def _act_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        op = decode_op(body)
        if self.is_in_hand(op.uid):  # the first worker was restarted during a move
            answer(encode_failure(api_error(10008)))
            return
        self.as_of += 1
        applied = self.state.apply(op, self.as_of)
        if applied.refused:
            answer(encode_failure(ApiError(500, 10009, applied.refused)))
            return
        self._act(applied, lambda error: self._settle(lambda: answer(encode_failure(error))))

    def _learn_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        self._take(decode_op(body))
        answer(b"")

    def _take(self, op: MetaOp) -> None:
        self.as_of += 1
        applied = self.state.apply(op, self.as_of)
        if not applied.refused:
            self._act(applied, lambda error: None)

    # ------------------------------------------------------------------ streams on disk
    def learn(self, op: AssignStream) -> None:
        """Add a stream that was found on disk here; tell the others."""
        if op.uid in self.state.by_uid:
            self._forget(op.uid)  # another worker had it
        super().learn(op)
        self._tell(self._peers.connected())

    def forget(self, uid: str) -> None:
        self._forget(uid)
        self._tell(self._peers.connected())

    def hand_over(self, uid: str, to: str) -> None:
        """Note that another worker has a stream, which tells the others."""
        known = self.state.by_uid[uid]
        self._forget(uid)
        super().learn(msgspec.structs.replace(_op(known), peers=(to,)))

    def _forget(self, uid: str) -> None:
        super().forget(uid)

    def _seen(self, node: str, up: bool) -> None:
        if up:
            self._tell([node])

    def _tell(self, nodes: Sequence[str]) -> None:
        if nodes:
            mine = [_op(each) for each in self.state.by_uid.values() if each.peers[0] == self.me]
            body = msgspec.msgpack.encode(mine)
            for node in nodes:
                self._peers.tell(node, HELD, body)

    def _held_told(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        """Take note of the streams that a worker holds: those that it was thought to have besides are gone."""
        theirs = {op.uid: op for op in self._held_decoder.decode(body)}
        before = [each.uid for each in self.state.by_uid.values() if each.peers[0] == node]
        for uid in before:
            if uid not in theirs:
                self._take(RemoveStream(uid))
        for uid, op in theirs.items():
            known = self.state.by_uid.get(uid)
            if known is not None and (_op(known) == op or known.peers[0] == self.me):
                continue
            if known is not None:
                self._take(RemoveStream(uid))
            other = self.state.find(op.account, op.name)
            if other is not None:
                self._log.error(
                    f'stream {op.name} of account "{op.account}" is in the directories of {other.peers[0]} and {node}: '
                    f"the one of {node} is not served; move one of them away"
                )
                continue
            self._take(op)
        self._unknown.discard(node)
        if not self.leading and self.me == self.leader and not self._unknown:
            self.leading = True
            self.on_leading()


def _holder(applied: Applied) -> str:
    assignment = applied.after or applied.before
    assert assignment is not None  # Invariant: an entry that is not refused has an effect
    return assignment.peers[0]


def _op(assignment: Assignment) -> AssignStream:
    return AssignStream(
        assignment.uid,
        assignment.account,
        assignment.name,
        assignment.config,
        assignment.peers,
        assignment.created_ns,
        assignment.restoring,
    )


class WorkerPlacing(Placing):
    """Chooses the worker that holds the fewest streams."""

    def __init__(self, node: MetaNode, max_memory: int, max_file: int) -> None:
        super().__init__(node.me, max_memory, max_file)
        self._node, self._peers = node, node.peers

    def place(self, config: StreamConfig, *, keep: Sequence[str] = (), avoid: Collection[str] = ()) -> tuple[str, ...]:
        if keep and keep[0] not in avoid:
            return (keep[0],)
        holds = self._node.inventory.leads
        there = [self._peers.me, *(node for node in self._peers.connected() if self._peers.alive(node))]
        there = [node for node in there if node not in avoid]
        if not there:
            raise api_error(10005, err="no suitable peers for placement, peer offline")
        return (min(there, key=lambda node: (holds[node], node)),)


class WorkerNode(MetaNode):
    """The meta node of a worker, which no client sees."""

    @property
    def name(self) -> str:
        return ""

    def shown_server(self, origin: str) -> str:
        return self.shared.options.server_name

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError | None:
        """Return 10008, which clients repeat: a worker that is gone is restarted at once."""
        error = super().unavailable(where, account, tokens)
        return api_error(10008) if error is not None and error.err_code == 10118 else error


def worker_node(
    shared: Shared,
    accounts: AllAccounts,
    peers: Peers,
    leader: str,
    others: Collection[str],
    settle: Settle,
    guard: Guard,
    store_of: Callable[[str], str],
) -> WorkerNode:
    """Return the meta node of a worker.

    Args:
        peers: the other workers.
        leader: the name of the first worker.
        others: the names of the workers besides this one.
        settle, guard, store_of: see `WorkerKeeping`.
    """
    meta = WorkerMeta(peers, leader, others, settle, shared.log)
    node = WorkerNode(shared, accounts, peers, meta, SoloGroups(peers.me), SoloFiles(shared.stores))
    meta.on_applied, meta.on_leading = node.applied, node.requests.changed
    node.placing = WorkerPlacing(node, shared.options.max_memory, shared.options.max_file)
    node.keeping = keeping = WorkerKeeping(node, meta, meta.hand_over, settle, guard, store_of)
    meta.is_in_hand = keeping.in_hand.__contains__
    node.services.append(RestoreWatch(node))
    node.replicas.start()
    return node
