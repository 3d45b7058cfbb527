"""JetStream in a cluster: where its parts are put together.

Belongs here: the meta group, this node's replicas, who leads what, and requests on their way, as one thing that the
engine has when it is clustered; which node answers a request, and what the nodes are like that could hold a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.use import ClusterUse
from lakestream.meta.adoption import Adoption
from lakestream.meta.advisories import Advisories
from lakestream.meta.assignments import Applied, Assignment, MetaOp, decode_op, encode_op
from lakestream.meta.drops import Drops
from lakestream.meta.info import cluster_shown
from lakestream.meta.leaders import Leaders
from lakestream.meta.local import LocalStreams
from lakestream.meta.meta_group import Meta
from lakestream.meta.meta_join import MetaJoin
from lakestream.meta.meta_transfer import MetaTransfer
from lakestream.meta.placement import Candidate, Wanted
from lakestream.meta.ports import Nodes
from lakestream.meta.replicas import Replicas
from lakestream.meta.requests import Requests
from lakestream.meta.watch import RestoreWatch
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Where
from lakestream.raft.group.ports import Calls
from lakestream.stream.core import offline
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.account.engines import Engines
    from lakestream.raft.group.groups import Groups
    from lakestream.stream.assembly import Stream

PROPOSE = "meta.propose"
"""The call that asks the leader of the meta group to log an entry."""
LOOK_NS = 10_000_000_000
"""How long after it first hears of a leader a node reports what lies here and is not assigned."""
YIELD_NS = 1_000_000_000
"""How often a node that was removed from the cluster gives away what it leads."""
CALL_TIMEOUT_NS = 4_000_000_000
"""How long a call between nodes may take: less than clients wait (5 s)."""


class CallFailed(msgspec.Struct, frozen=True):
    """Why the other node did not do it: an error of the API."""

    code: int
    err_code: int
    description: str

    def error(self) -> ApiError:
        """As the API has it."""
        return ApiError(self.code, self.err_code, self.description)


class JetStreamCluster:
    """The streams' part in the cluster.

    Args:
        engines: the streams of every account, and what they share.
        groups: the Raft groups of this node.
        nodes, calls: the other nodes.
        root: the server's store directory.
        unique_tag: a prefix of server tags; the replicas of a stream differ in that tag. "" for none.
    """

    def __init__(
        self, engines: Engines, groups: Groups, nodes: Nodes, calls: Calls, root: str, unique_tag: str = ""
    ) -> None:
        self.engines, self.nodes, self.calls, self.unique_tag = engines, nodes, calls, unique_tag
        self.shared = shared = engines.shared
        clock, io, log = shared.clock, shared.io, shared.log
        self.advisories = Advisories(shared, nodes)
        self.leaders = Leaders(nodes, calls)
        self.meta = Meta(root, nodes, groups, shared.stores.replicas, clock, io, log)
        self.transfer = MetaTransfer(self.meta, calls, io, log)
        self.join = MetaJoin(self.meta, nodes, calls, clock, log)
        self.drops = Drops(self, clock)
        self.local = LocalStreams(engines, self.meta, nodes, self.leaders, self.advisories, self.drops.gone)
        self.replicas = self.local.replicas = Replicas(shared, self.local, groups, nodes, calls)
        self.requests = Requests(self, calls, clock)
        self.requests.on_answer = lambda account, reply, body, header: shared.bus_of(account).publish(
            reply, b"", header, body
        )
        self.adoption = Adoption(self)
        self.use = ClusterUse(self)
        self.restores = RestoreWatch(self)
        self.on_applied: list[Callable[[Applied], None]] = []
        """Told of every entry of the meta group, after this node has begun to act on it."""
        self._configs: dict[str, tuple[bytes, StreamConfig]] = {}
        self._refusals: dict[str, tuple[bytes, str]] = {}
        self._led = self._looked = False
        self.local.settle = lambda op: self.propose(op, lambda failed: None)
        self.leaders.on_changed = lambda uid: self.requests.changed()
        self.meta.on_applied, self.meta.on_role = self._applied, self._meta_role
        self.meta.on_caught_up = self.local.take_up
        self.join.on_removed = self._removed
        calls.serve(PROPOSE, self._propose_asked)

    # ------------------------------------------------------------------ life
    def recover(self, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Open the meta group and every replica on disk. Blocks, at start.

        Returns those of `found` (account, stream) that are no replicas: streams from before there was a cluster.
        """
        self.transfer.settle()
        self.meta.open()
        others = [(account, name) for account, name in found if not self.replicas.recover(account, name)]
        self.local.take_up()
        return others

    def start(self) -> None:
        """Take part, once the other nodes can be reached."""
        self.meta.start()
        self.join.start()
        self.replicas.start()
        self.adoption.start()
        self.use.start()
        self.restores.start()

    def yield_leadership(self) -> None:
        """Let others lead, because this node is about to go (lame duck mode, a stop)."""
        self.local.yield_all()
        if self.meta.group is not None and self.meta.leading:
            self.meta.group.transfer()

    def _removed(self) -> None:
        """This node hears no more of what is assigned: only another leader can bring its streams to other members."""
        self.local.yield_all()
        self.shared.clock.call_later(YIELD_NS, self._removed)

    @property
    def handing_over(self) -> bool:
        """Whether this node still leads something that another node could lead."""
        led = [(replica.leading, replica.membership) for replica in self.replicas.by_uid.values()]
        led.append((self.meta.leading, self.meta.membership))
        return any(
            leading and any(self.nodes.alive(voter) for voter in membership.voters if voter != self.me)
            for leading, membership in led
        )

    def stop(self) -> None:
        """Take part no more."""
        self.local.stop()
        self.join.stop()
        self.use.stop()
        self.adoption.stop()
        self.meta.stop()
        self.replicas.stop()

    def close(self) -> None:
        """Write what is kept for the next start. Blocks; after `stop`."""
        self.replicas.close()
        self.meta.close()

    # ------------------------------------------------------------------ who answers (Whereabouts)
    @property
    def me(self) -> str:
        """This node's name."""
        return self.nodes.me

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.nodes.node.cluster

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        """See `Whereabouts.answerer`."""
        assignment = None if where is Where.META else self.find(account, tokens[0])
        return self.meta_leader() if assignment is None else self.stream_leader(assignment.uid)

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError | None:
        """See `Whereabouts.unavailable`."""
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
        """The node that leads the meta group and can be reached; "" when nobody is known to."""
        if self.meta.leading:
            return self.me
        leader = self.meta.leader
        return leader if leader != self.me and leader and self.nodes.alive(leader) else ""

    def stream_leader(self, uid: str) -> str:
        """The node that leads a stream, serves it and can be reached; "" when nobody is known to."""
        replica = self.replicas.by_uid.get(uid)
        if replica is not None and replica.leading:
            return self.me
        leader = (replica.leader if replica is not None else "") or self.leaders.of(uid)
        return leader if leader != self.me and leader and self.nodes.alive(leader) else ""

    # ------------------------------------------------------------------ what is assigned
    def find(self, account: str, name: str) -> Assignment | None:
        """The assignment of a stream; not of one that is being restored."""
        found = self.meta.state.find(account, name)
        return found if found is not None and not found.restoring else None

    def assignments(self, account: str, *, restoring: bool = False) -> list[Assignment]:
        """Those of an account, by name; also of streams that are being restored when `restoring`."""
        streams = sorted(self.meta.state.streams.items())
        return [each for (owner, _), each in streams if owner == account and (restoring or not each.restoring)]

    def config_of(self, assignment: Assignment) -> StreamConfig:
        """The configuration that is assigned."""
        known = self._configs.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            config = msgspec.json.decode(assignment.config, type=StreamConfig)
            known = self._configs[assignment.uid] = (assignment.config, config)
        return known[1]

    def refusal(self, assignment: Assignment) -> str:
        """Why no node of this release can serve a stream that is assigned; "" when it can."""
        known = self._refusals.get(assignment.uid)
        if known is None or known[0] is not assignment.config:
            known = self._refusals[assignment.uid] = (assignment.config, offline.refusal(assignment.config))
        return known[1]

    def candidates(self) -> list[Candidate]:
        """Every node that could hold a stream."""
        reserved: dict[str, dict[str, int]] = {"memory": {}, "file": {}}
        holds: dict[str, int] = {}
        leads: dict[str, int] = {}
        for assignment in self.meta.state.by_uid.values():
            config = self.config_of(assignment)
            leads[assignment.peers[0]] = leads.get(assignment.peers[0], 0) + 1
            taken = reserved[config.storage]
            for peer in assignment.peers:
                holds[peer] = holds.get(peer, 0) + 1
                taken[peer] = taken.get(peer, 0) + max(0, config.max_bytes)
        found = []
        for name in self.meta.membership.members:
            info = self.nodes.node if name == self.me else self.nodes.info(name)
            if info is None:
                found.append(Candidate(name=name, cluster=self.name, alive=False))
                continue
            found.append(
                Candidate(
                    name=name,
                    cluster=info.cluster,
                    tags=info.tags,
                    alive=self.nodes.alive(name) and info.jetstream,
                    max_memory=info.max_memory,
                    max_file=info.max_storage,
                    reserved_memory=reserved["memory"].get(name, 0),
                    reserved_file=reserved["file"].get(name, 0),
                    replicas=holds.get(name, 0),
                    leads=leads.get(name, 0),
                )
            )
        return found

    def wanted(self, config: StreamConfig) -> Wanted:
        """What a configuration asks of the stream's nodes."""
        return Wanted(
            replicas=config.num_replicas,
            placement=config.placement,
            storage=config.storage,
            size=max(0, config.max_bytes),
            unique_tag=self.unique_tag,
            cluster=self.name,
        )

    # ------------------------------------------------------------------ entries
    def propose(self, op: MetaOp, done: Callable[[ApiError | None], None]) -> None:
        """Have the leader of the meta group log an entry; `done(None)` once it is applied there."""
        leader = self.meta_leader()
        if not leader:
            done(api_error(10008))
            return

        def answered(body: bytes | None, why: str) -> None:
            failed = msgspec.msgpack.decode(body, type=CallFailed | None) if body is not None else None
            done(api_error(10008) if body is None else failed.error() if failed is not None else None)

        self.calls.call(leader, PROPOSE, encode_op(op), answered, CALL_TIMEOUT_NS)

    def _propose_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        def done(outcome: Applied | ApiError) -> None:
            failed: CallFailed | None = None
            if isinstance(outcome, ApiError):
                failed = CallFailed(outcome.code, outcome.err_code, outcome.description)
            elif outcome.refused:
                failed = CallFailed(500, 10009, outcome.refused)
            answer(msgspec.msgpack.encode(failed))

        self.meta.propose(decode_op(body), done)

    def _applied(self, applied: Applied) -> None:
        if applied.after is None and applied.before is not None:
            self._configs.pop(applied.before.uid, None)
            self._refusals.pop(applied.before.uid, None)
        self.local.applied(applied)
        for callback in list(self.on_applied):
            callback(applied)

    def _meta_role(self) -> None:
        self.join.role_changed()
        if self.meta.leading and not self._led:
            self.shared.log.info("JetStream cluster: this node leads the meta group")
            self.advisories.meta_leader(self.meta.membership.members)
        elif self.meta.leader and not self.meta.leading:
            self.shared.log.info(f"JetStream cluster: {self.meta.leader} leads the meta group")
        if not self._looked and (self.meta.leading or self.meta.leader):
            self._looked = True
            self.shared.clock.call_later(LOOK_NS, self.local.look_for_strays)
        self._led = self.meta.leading
        self.requests.changed()

    # ------------------------------------------------------------------ what answers show
    def shown(self, stream: Stream) -> dict[str, Any]:
        """The `cluster` object of a stream that is held here."""
        replica = self.replicas.by_uid.get(stream.uid)
        if replica is None:
            return {"name": self.name}
        assignment = self.meta.state.by_uid.get(stream.uid)
        return cluster_shown(
            self.name,
            self.me,
            replica,
            desired=assignment.peers if assignment is not None and assignment.moving else (),
        )
