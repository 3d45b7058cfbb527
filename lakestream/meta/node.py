"""This server's part in the streams of all its nodes; a server without a cluster is the only node.

Belongs here: the assignments, this node's replicas and who leads what as one thing, which the accounts and monitoring
see. What differs with and without other nodes is passed in: cluster.py and solo.py put a `MetaNode` together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from lakestream.meta.assignments import Applied, Assignment, MetaOp, RemoveStream, decode_op, encode_op
from lakestream.meta.info import Advisories
from lakestream.meta.local import LocalStreams
from lakestream.meta.meta import Acted, Meta, Outcome
from lakestream.meta.placement import Placing
from lakestream.meta.ports import AllAccounts, Dispatcher, Led, Nodes
from lakestream.meta.replica_files import ReplicaFiles
from lakestream.meta.replicas import Replicas
from lakestream.meta.shared import Shared
from lakestream.meta.site import Site
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Where
from lakestream.raft.group.group import Members
from lakestream.raft.group.ports import Calls
from lakestream.stream.assembly import Stream
from lakestream.stream.core import offline
from lakestream.stream.core.config import StreamConfig

PROPOSE = "meta.propose"
"""The call that asks the leader of the meta group to log an entry."""
CALL_TIMEOUT_NS = 4_000_000_000
"""Longest duration of a call between nodes (4 s): less than clients wait (5 s)."""


class CallFailed(msgspec.Struct, frozen=True):
    """The API error with which another node refused a call."""

    code: int
    err_code: int
    description: str

    @classmethod
    def of(cls, error: ApiError | None) -> CallFailed | None:
        """Return an error as it travels."""
        return cls(error.code, error.err_code, error.description) if error is not None else None

    def error(self) -> ApiError:
        """Return it as the API has it."""
        return ApiError(self.code, self.err_code, self.description)


def encode_failure(error: ApiError | None) -> bytes:
    """Return the answer to a call that says only if it has failed."""
    return msgspec.msgpack.encode(CallFailed.of(error))


def decode_failure(answer: bytes | None) -> ApiError | None:
    """Return the error in such an answer; 10008 when none came."""
    if answer is None:
        return api_error(10008)
    failed = msgspec.msgpack.decode(answer, type=CallFailed | None)
    return failed.error() if failed is not None else None


class Answers(msgspec.Struct, frozen=True):
    """Differences between the answers of nats-server with and without a cluster."""

    peers: bool
    """True if requests about leaders and members are served; otherwise they are refused (10010)."""
    acks_by_stream: bool
    """True if the acks of a stream are subscribed where it is led; otherwise those of all streams at once."""
    stream_first: bool
    """True if INFO and UNPIN look for the stream before they read the request."""
    recreated: bool
    """True if creating a stream that exists says `did_create`."""
    counts_all: bool
    """True if a page of STREAM.LIST behind the end shows the number of all streams."""
    domain_always: bool
    """True if every StreamInfo shows the domain."""


class Service(Protocol):
    """Something that runs by the clock while the node does."""

    def start(self) -> None:
        """Begin, once the other nodes can be reached."""

    def stop(self) -> None:
        """End."""


class Keeping(Protocol):
    """The streams on disk: at the start, and while their account has no JetStream."""

    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """Open every stream (account, name) on disk. Block, at start. Raise LogError, OSError."""

    def served(self, account: str) -> None:
        """Open the streams of an account that has JetStream from now on, or let them lead."""

    def withdrawn(self, account: str) -> None:
        """Close the streams of an account that has no JetStream any more, or let other nodes lead them."""

    def settling(self, account: str) -> bool:
        """Return True while that goes on: then nobody knows which names and subjects are taken."""

    def when_settled(self, account: str, go_on: Callable[[], None]) -> bool:
        """Call `go_on` once it is over. Return False when too many wait for that."""

    def discard(self, account: str) -> None:
        """Remove the account's streams that are not open."""


class Shown(Protocol):
    """Fields that nodes of a cluster show of streams and of themselves."""

    def cluster(self, uid: str) -> dict[str, Any]:
        """Return the `cluster` object of a stream that is held here; empty without a cluster."""

    def alternates(self, account: str, name: str, domain: str) -> list[dict[str, str]]:
        """Return a stream and its mirrors; empty when it has none, and without a cluster."""

    def trouble(self, assignment: Assignment) -> str:
        """Return why a stream cannot be served; "" when it can."""

    def meta(self) -> dict[str, Any]:
        """Return `meta_cluster` of /jsz; empty without a cluster."""

    def unhealthy(self) -> str:
        """Return what this node lacks before it does its share of the cluster's work; "" when nothing."""


class MetaNode:
    """See the module. `requests`, `placing`, `keeping` and `shown` are set before anything happens.

    Args:
        accounts: the streams of every account.
    """

    requests: Dispatcher
    placing: Placing
    keeping: Keeping
    shown: Shown

    def __init__(
        self,
        shared: Shared,
        accounts: AllAccounts,
        *,
        nodes: Nodes,
        calls: Calls,
        meta: Meta,
        groups: Members,
        files: ReplicaFiles,
        leaders: Led,
        answers: Answers,
    ) -> None:
        self.shared, self.accounts, self.me = shared, accounts, nodes.me
        self.nodes, self.calls, self.meta, self.leaders, self.answers = nodes, calls, meta, leaders, answers
        self.advisories = Advisories(shared, nodes)
        self.local = LocalStreams(shared, accounts, meta, nodes, leaders, self.advisories)
        self.groups = groups
        site = Site(shared, groups, files, nodes, calls)
        self.replicas = self.local.replicas = Replicas(site, self.local)
        self.services: list[Service] = []
        self.removing: Callable[[Assignment, Outcome], Outcome] = lambda assignment, done: done
        """Wraps the outcome of a removal, to wait for what other nodes do about it."""
        self.restoring: set[str] = set()
        """Streams that this node restores, by uid."""
        self._configs: dict[str, tuple[bytes, StreamConfig]] = {}
        self._refusals: dict[str, tuple[bytes, str]] = {}
        self.local.settle = lambda op: self.propose(op, lambda failed: None)
        self.calls.serve(PROPOSE, self._propose_asked)

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """Take part, once the other nodes can be reached."""
        self.groups.start()
        self.meta.start()
        self.replicas.start()
        for service in self.services:
            service.start()

    def yield_leadership(self) -> None:
        """Let others lead, because this node is about to go (lame duck mode, a stop)."""
        self.local.yield_all()
        self.meta.transfer()

    @property
    def handing_over(self) -> bool:
        """True while this node leads something that another node could lead."""
        led = [(replica.leading, replica.membership) for replica in self.replicas.by_uid.values()]
        led.append((self.meta.leading, self.meta.membership))
        return any(
            leading and any(self.nodes.alive(voter) for voter in membership.voters if voter != self.me)
            for leading, membership in led
        )

    def stop(self) -> None:
        """Take no more part."""
        self.local.stop()
        for service in self.services:
            service.stop()
        self.meta.stop()
        self.replicas.stop()
        self.groups.stop()

    def close(self) -> None:
        """Write what is kept for the next start. Block; after `stop`."""
        self.replicas.close()
        self.meta.close()

    # ------------------------------------------------------------------ who answers
    @property
    def name(self) -> str:
        """The cluster's name; "" without one."""
        return self.nodes.node.cluster

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        """Return the node that answers now; "" when none is known."""
        assignment = None if where is Where.META else self.find(account, tokens[0])
        return self.meta_leader() if assignment is None else self.stream_leader(assignment.uid)

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError | None:
        """Return the refusal when no leader was found in time; None: this node may answer all the same."""
        assignment = None if where is Where.META else self.find(account, tokens[0])
        if assignment is None:
            return api_error(10008)
        replica = self.replicas.by_uid.get(assignment.uid)
        if where is Where.REPLICA and replica is not None and replica.stream is not None:
            return None
        unsupported = self.refusal(assignment)
        if unsupported:
            return api_error(10194, err=unsupported)
        gone = not any(self.nodes.alive(holder) for holder in assignment.holders)
        return api_error(10118 if gone else 10008)

    def meta_leader(self) -> str:
        """Return the node that decides and can be reached; "" when none is known."""
        if self.meta.leading:
            return self.me
        leader = self.meta.leader
        return leader if leader != self.me and leader and self.nodes.alive(leader) else ""

    def others(self) -> list[str]:
        """Return the other nodes that have JetStream and can be reached."""
        return [name for name, info in self.nodes.nodes().items() if info.jetstream and self.nodes.alive(name)]

    def stream_leader(self, uid: str) -> str:
        """Return the node that leads a stream, serves it and can be reached; "" when none is known."""
        replica = self.replicas.by_uid.get(uid)
        if replica is not None and replica.leading:
            return self.me
        leader = (replica.leader if replica is not None else "") or self.leaders.of(uid)
        return leader if leader != self.me and leader and self.nodes.alive(leader) else ""

    def asked_here(self, account: str, name: str) -> Stream | None:
        """Return the stream that a request to all nodes is about, if this node answers it; None: another node does.

        Its leader answers. That there is no such stream, the node that decides says: there this raises ApiError.
        """
        stream = self.accounts.of(account).streams.get(name)
        if stream is not None:
            return stream if stream.leading else None
        assignment = self.meta.state.find(account, name)
        if self.meta.leading and (assignment is None or assignment.holders == (self.me,)):
            raise api_error(10059)  # no other node has it
        return None

    # ------------------------------------------------------------------ what is assigned
    def find(self, account: str, name: str) -> Assignment | None:
        """Return the assignment of a stream; not of one that is being restored."""
        found = self.meta.state.find(account, name)
        return found if found is not None and not found.restoring else None

    def assignments(self, account: str, *, restoring: bool = False) -> list[Assignment]:
        """Return those of an account, by name; also of streams that are being restored when `restoring`."""
        return sorted(self.of(account, restoring=restoring), key=lambda each: each.name)

    def of(self, account: str, *, restoring: bool = False) -> list[Assignment]:
        """Return the same in no order."""
        streams = self.meta.state.by_uid.values()
        return [each for each in streams if each.account == account and (restoring or not each.restoring)]

    def config_of(self, assignment: Assignment) -> StreamConfig:
        """Return the configuration that is assigned."""
        replica = self.replicas.by_uid.get(assignment.uid)
        if replica is not None and replica.stream is not None and replica.stream.store.config is assignment.config:
            return replica.stream.config
        known = self._configs.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            config = msgspec.json.decode(assignment.config, type=StreamConfig)
            known = self._configs[assignment.uid] = (assignment.config, config)
        return known[1]

    def refusal(self, assignment: Assignment) -> str:
        """Return why no node of this release can serve a stream that is assigned; "" when it can."""
        known = self._refusals.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            known = self._refusals[assignment.uid] = (assignment.config, offline.refusal(assignment.config))
        return known[1]

    # ------------------------------------------------------------------ entries
    def propose(self, op: MetaOp, done: Callable[[ApiError | None], None]) -> None:
        """Have the leader of the meta group log an entry; call `done(None)` once it is applied there."""
        leader = self.meta_leader()
        if not leader:
            done(api_error(10008))
            return
        self.calls.call(leader, PROPOSE, encode_op(op), lambda got, _: done(decode_failure(got)), CALL_TIMEOUT_NS)

    def ask_each(
        self, method: str, bodies: Mapping[str, bytes], done: Callable[[list[bytes]], None], wait_ns: int
    ) -> None:
        """Call a method of several nodes; call `done` with the answers once the last came, or after `wait_ns`."""
        waiting, answers = set(bodies), list[bytes]()

        def answered(name: str, body: bytes | None, why: str) -> None:
            if body is not None:
                answers.append(body)
            waiting.discard(name)
            if not waiting:
                done(answers)

        for name, body in bodies.items():
            self.calls.call(name, method, body, functools.partial(answered, name), wait_ns)
        if not bodies:
            done(answers)

    def remove(self, assignment: Assignment, done: Outcome) -> None:
        """Decide that a stream is gone, on the node that decides; call `done` once its files are gone, too."""
        self.meta.propose(RemoveStream(assignment.uid), self.removing(assignment, done))

    def applied(self, applied: Applied, acted: Acted = lambda error: None) -> None:
        """Act on an entry that was decided; see `LocalStreams.applied`."""
        if applied.after is None and applied.before is not None:
            self._configs.pop(applied.before.uid, None)
            self._refusals.pop(applied.before.uid, None)
        self.local.applied(applied, acted)

    def _propose_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        def done(outcome: Applied | ApiError) -> None:
            if isinstance(outcome, Applied):
                answer(encode_failure(ApiError(500, 10009, outcome.refused) if outcome.refused else None))
            else:
                answer(encode_failure(outcome))

        self.meta.propose(decode_op(body), done)
