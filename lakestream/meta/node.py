"""The meta layer of a node; a server without a cluster is the only node.

Belongs here: one object with the assignments, this node's replicas and the known leaders, for the accounts and
monitoring. Nodes differ by three things that are passed in: the other nodes (`Peers`), who decides about streams
(`Meta`), and the groups. cluster.py, workers.py and solo.py assemble a `MetaNode`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lakestream.meta.assignments import Applied, Assignment, MetaOp, RemoveStream, decode_op, encode_op
from lakestream.meta.info import GroupAdvisories
from lakestream.meta.inventory import Inventory
from lakestream.meta.local import LocalStreams
from lakestream.meta.meta import Acted, Meta, Outcome
from lakestream.meta.placement import Placing
from lakestream.meta.ports import AllAccounts, Peers
from lakestream.meta.replica_files import ReplicaFiles
from lakestream.meta.replicas import Replicas
from lakestream.meta.requests import Leaders, Requests
from lakestream.meta.shared import Shared
from lakestream.meta.site import Site
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Where
from lakestream.protocol.decoding import JsonDecoder, PackDecoder
from lakestream.raft.group.group import Groups
from lakestream.stream.core import offline
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


PROPOSE = "meta.propose"
"""The call that asks the meta leader to propose an entry."""
CALL_TIMEOUT_NS = 4_000_000_000
"""Timeout of a call between nodes (4 s), below that of clients (5 s)."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


class CallFailed(msgspec.Struct, frozen=True):
    """The API error of a failed call."""

    code: int
    err_code: int
    description: str

    @classmethod
    def of(cls, error: ApiError | None) -> CallFailed | None:
        """Return an error for encoding."""
        return cls(error.code, error.err_code, error.description) if error is not None else None

    def error(self) -> ApiError:
        return ApiError(self.code, self.err_code, self.description)


_CALL_FAILED = PackDecoder(CallFailed | None)


def encode_failure(error: ApiError | None) -> bytes:
    """Encode the answer to a call that has no result: its error, or None."""
    return msgspec.msgpack.encode(CallFailed.of(error))


def decode_failure(answer: bytes | None) -> ApiError | None:
    """Return the error in an answer of `encode_failure`; 10008 without an answer."""
    if answer is None:
        return api_error(10008)
    failed = _CALL_FAILED.decode(answer)
    return failed.error() if failed is not None else None


class PeriodicService(Protocol):
    """Periodic work of a running node."""

    def start(self) -> None:
        """Start, once the other nodes can be reached."""

    def stop(self) -> None:
        """Stop."""


class Keeping:
    """The streams on disk: at the start, and while their account has no JetStream."""

    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """Open every stream (account, name) on disk. Block, at start. Raise LogError, OSError."""
        raise NotImplementedError

    def served(self, account: str) -> None:
        """Open the streams of an account that gets JetStream, or lead them again."""
        raise NotImplementedError

    def withdrawn(self, account: str) -> None:
        """Close the streams of an account that loses JetStream, or step down as their leader."""
        raise NotImplementedError

    def settling(self, account: str) -> bool:
        """Return True while the account's streams are opened or closed: names and subjects in use are not known."""
        return False

    def when_settled(self, account: str, callback: Callable[[], None]) -> bool:
        """Call back once `settling` is False. Return False if too many callbacks wait."""
        return False

    def discard(self, account: str) -> None:
        """Remove the account's streams that are not open."""

    def open(self, account: str, name: str, then: Callable[[], None], size: int = 0) -> bool:
        """Open a dormant stream, and call `then`, which holds so many bytes, once it is open, or cannot be. Return
        False if too much waits."""
        return False

    def compacting(self) -> None:
        """Open the dormant streams whose logs have something that a compactor moves into their tables now."""

    def close(self) -> None:
        """Leave to the next start which streams it need not open, once all are closed. Block."""


class Shown:
    """Information about streams and nodes that depends on the cluster; without one."""

    def __init__(self, node: MetaNode) -> None:
        self._node = node

    def cluster(self, uid: str) -> dict[str, Any]:
        """Return the `cluster` object of a stream with a replica here; empty without a cluster."""
        return {}

    def alternates(self, account: str, name: str, domain: str) -> list[dict[str, str]]:
        """Return a stream and its mirrors; empty without mirrors or without a cluster."""
        return []

    def trouble(self, assignment: Assignment) -> str:
        """Return the reason why a stream cannot be served; "" when it can."""
        return self._node.accounts.of(assignment.account).offline.get(assignment.name, "")

    def meta(self) -> dict[str, Any]:
        """Return `meta_cluster` of /jsz; empty without a cluster."""
        return {}

    def unhealthy_meta(self) -> str:
        """Return the reason why this node's part in the meta group is not healthy; "" when it is."""
        return ""

    def unhealthy(self) -> str:
        """Return the reason why this node is not healthy (/healthz); "" when it is."""
        return ""


class MetaNode:
    """The meta layer of a node. Set `keeping` before any call.

    Args:
        accounts: the streams of every account.
        peers: the other nodes.
        meta: decides about streams.
        groups: opens this node's members of groups; `files`: their files.

    Attributes:
        alone: there are no other nodes.
    """

    alone = False
    keeping: Keeping

    def __init__(
        self,
        shared: Shared,
        accounts: AllAccounts,
        peers: Peers,
        meta: Meta,
        groups: Groups,
        files: ReplicaFiles,
    ) -> None:
        self.shared, self.accounts, self.me = shared, accounts, peers.me
        self.peers, self.meta, self.groups = peers, meta, groups
        self.leaders, self.requests = Leaders(peers), Requests(self, peers, shared.clock)
        self.leaders.on_changed = lambda uid: self.requests.changed()
        self.requests.on_answer = lambda account, answer: shared.bus_of(account).send(answer)
        self.placing = Placing(self.me, shared.options.max_memory, shared.options.max_file)
        self.shown = Shown(self)
        self.advisories = GroupAdvisories(shared, peers)
        self.local = LocalStreams(shared, accounts, meta, peers, self.leaders, self.advisories)
        site = Site(shared, groups, files, peers)
        self.replicas = self.local.replicas = Replicas(site, self.local)
        self.services: list[PeriodicService] = []
        self.removing: Callable[[Assignment, Outcome], Outcome] = lambda assignment, done: done
        """Wraps the outcome callback of a removal, to wait for other nodes."""
        self.restoring: set[str] = set()
        """Streams that this node restores, by uid."""
        self._configs: dict[str, tuple[bytes, StreamConfig]] = {}
        self._refusals: dict[str, tuple[bytes, str]] = {}
        self._inventory = Inventory()
        self.local.settle = lambda op: self.propose(op, lambda failed: None)
        self.peers.serve(PROPOSE, self._propose_asked)

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """Start, once the other nodes can be reached."""
        self.groups.start()
        self.meta.start()
        self.replicas.start()
        for service in self.services:
            service.start()

    def yield_leadership(self) -> None:
        """Transfer all leaderships, because this node is about to stop (lame duck mode, shutdown)."""
        self.local.transfer_all()
        self.meta.transfer()

    @property
    def handing_over(self) -> bool:
        """Return True while this node leads a group that another connected node could lead."""
        led = [(replica.leading, replica.membership) for replica in self.replicas.by_uid.values()]
        led.append((self.meta.leading, self.meta.membership))
        return any(
            leading and any(self.peers.alive(voter) for voter in membership.voters if voter != self.me)
            for leading, membership in led
        )

    def stop(self) -> None:
        """Stop services, replicas and groups."""
        self.local.stop()
        for service in self.services:
            service.stop()
        self.meta.stop()
        self.replicas.stop()
        self.groups.stop()

    def close(self) -> None:
        """Write the last checkpoints. Block; after `stop`."""
        self.replicas.close()
        self.keeping.close()
        self.meta.close()

    # ------------------------------------------------------------------ leaders
    @property
    def name(self) -> str:
        """Return the cluster's name; "" without one."""
        return self.peers.node.cluster

    @property
    def clustered(self) -> bool:
        """Return True for a node of a cluster: nats-server's answers differ in some details from those without one."""
        return self.name != ""

    def shown_server(self, origin: str) -> str:
        """Return the name of the server to which the client of a request is connected. `origin`: the node that received
        it; "": this one."""
        return origin or self.me

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        """Return the node that answers a request; "" when none is known."""
        assignment = None if where is Where.META else self.find(account, tokens[0])
        return self.meta_leader() if assignment is None else self.stream_leader(assignment.uid)

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError | None:
        """Return the error for a request without a known leader; None if this node may answer it all the same."""
        assignment = None if where is Where.META else self.find(account, tokens[0])
        if assignment is None:
            return api_error(10008)
        replica = self.replicas.by_uid.get(assignment.uid)
        if where is Where.REPLICA and replica is not None and replica.stream is not None:
            return None
        unsupported = self.refusal(assignment)
        if unsupported:
            return api_error(10194, err=unsupported)
        gone = not any(self.peers.alive(holder) for holder in assignment.holders)
        return api_error(10118 if gone else 10008)

    def meta_leader(self) -> str:
        """Return the meta leader if it is connected; "" when none is known."""
        if self.meta.leading:
            return self.me
        leader = self.meta.leader
        return leader if leader != self.me and leader and self.peers.alive(leader) else ""

    def others(self) -> list[str]:
        """Return the other connected nodes with JetStream."""
        return [name for name, info in self.peers.nodes().items() if info.jetstream and self.peers.alive(name)]

    def stream_leader(self, uid: str) -> str:
        """Return the leader of a stream if it is connected and serves it; "" when none is known."""
        replica = self.replicas.by_uid.get(uid)
        if replica is not None and replica.leading:
            return self.me
        leader = (replica.leader if replica is not None else "") or self.leaders.of(uid)
        return leader if leader != self.me and leader and self.peers.alive(leader) else ""

    def asked_here(self, account: str, name: str) -> Stream | None:
        """Return the stream of a request that all nodes receive, if this node leads it; None: another node answers.

        Raise ApiError on the meta leader if there is no such stream.
        """
        stream = self.accounts.of(account).streams.get(name)
        if stream is not None:
            return stream if stream.leading else None
        assignment = self.meta.state.find(account, name)
        if self.meta.leading and (assignment is None or assignment.holders == (self.me,)):
            raise api_error(10059)  # no other node has it
        return None

    # ------------------------------------------------------------------ assignments
    def find(self, account: str, name: str) -> Assignment | None:
        """Return the assignment of a stream, or None if there is none or it is being restored."""
        found = self.meta.state.find(account, name)
        return found if found is not None and not found.restoring else None

    def assignments(self, account: str, *, restoring: bool = False) -> list[Assignment]:
        """Return the assignments of an account by name; with `restoring` also of streams being restored."""
        return sorted(self.of(account, restoring=restoring), key=lambda each: each.name)

    def of(self, account: str, *, restoring: bool = False) -> list[Assignment]:
        """Return `assignments` in no particular order."""
        streams = self.meta.state.by_uid.values()
        return [each for each in streams if each.account == account and (restoring or not each.restoring)]

    def config_of(self, assignment: Assignment) -> StreamConfig:
        """Return the assigned configuration."""
        replica = self.replicas.by_uid.get(assignment.uid)
        if replica is not None and replica.stream is not None and replica.stream.store.config is assignment.config:
            return replica.stream.config
        known = self._configs.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            config = _STREAM_CONFIG.decode(assignment.config)
            known = self._configs[assignment.uid] = (assignment.config, config)
        return known[1]

    @property
    def inventory(self) -> Inventory:
        """Return the index of the assigned streams, which is current until the next entry is applied."""
        self._inventory.renew(self.meta.state, self.config_of)
        return self._inventory

    def refusal(self, assignment: Assignment) -> str:
        """Return the reason why this release cannot serve an assigned stream; "" when it can."""
        known = self._refusals.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            known = self._refusals[assignment.uid] = (assignment.config, offline.refusal(assignment.config))
        return known[1]

    # ------------------------------------------------------------------ entries
    def propose(self, op: MetaOp, done: Callable[[ApiError | None], None]) -> None:
        """Propose an entry through the meta leader; call `done(None)` once it is applied there, else with the error."""
        leader = self.meta_leader()
        if not leader:
            done(api_error(10008))
            return
        self.peers.call(leader, PROPOSE, encode_op(op), lambda got, _: done(decode_failure(got)), CALL_TIMEOUT_NS)

    def ask_each(
        self, method: str, bodies: Mapping[str, bytes], done: Callable[[list[bytes]], None], wait_ns: int
    ) -> None:
        """Call a method of several nodes; call `done` with the answers once all have answered or timed out."""
        waiting, answers = set(bodies), list[bytes]()

        def answered(name: str, body: bytes | None, why: str) -> None:
            if body is not None:
                answers.append(body)
            waiting.discard(name)
            if not waiting:
                done(answers)

        for name, body in bodies.items():
            self.peers.call(name, method, body, functools.partial(answered, name), wait_ns)
        if not bodies:
            done(answers)

    def remove(self, assignment: Assignment, done: Outcome) -> None:
        """Remove a stream, on the meta leader; call `done` once its files are removed, too."""
        self.meta.propose(RemoveStream(assignment.uid), self.removing(assignment, done))

    def applied(self, applied: Applied, acted: Acted = lambda error: None) -> None:
        """Act on an applied entry; see `LocalStreams.applied`."""
        if applied.after is None and applied.before is not None:
            self._configs.pop(applied.before.uid, None)
            self._refusals.pop(applied.before.uid, None)
        self._inventory.renew(self.meta.state, self.config_of)  # also where nobody asks: the changes are kept for it
        self.local.applied(applied, acted)

    def _propose_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        def done(outcome: Applied | ApiError) -> None:
            if isinstance(outcome, Applied):
                answer(encode_failure(ApiError(500, 10009, outcome.refused) if outcome.refused else None))
            else:
                answer(encode_failure(outcome))

        self.meta.propose(decode_op(body), done)
