"""Who leads and who holds what, as an operator changes it.

Belongs here: stepdown of leaders, taking a node out of a stream or out of the cluster, and moving streams (api.md §3 to
§5). Without accounts every client may ask what nats-server reserves to its system account. How the change is then made,
one server at a time, is cluster_local.py's.

A consumer is led by its stream's leader: CONSUMER.LEADER.STEPDOWN therefore moves the stream's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakestream.jetstream.api_request import Request, Routes, Where
from lakestream.jetstream.cluster import JetStreamCluster
from lakestream.jetstream.cluster_requests import MAX_HOPS
from lakestream.jetstream.cluster_stream_api import ClusterStreamApi
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.jsonio import Int
from lakestream.jetstream.meta_state import Applied, Assignment, ChangeStream
from lakestream.jetstream.placement import choose, choose_leader, peer_id
from lakestream.jetstream.stream_config import Placement
from lakestream.raft.messages import Membership

if TYPE_CHECKING:
    from lakestream.jetstream.engine import Engine

MOVED = "moved"
"""Stage of a request that changed a stream's nodes: its leader answers."""


HAND_OVER_NS = 300_000_000
"""How long a leader that shall hand over waits before it looks who leads."""


class StepdownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the stepdown requests."""

    placement: Placement | None = None


class PeerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of PEER.REMOVE, PEER.EVACUATE and SERVER.REMOVE: a node's name, or its short id."""

    peer: str = ""
    peer_id: str = ""


class RescueRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of META.RESCUE."""

    quorum_needed: Int = 0


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ACCOUNT.STREAM.MOVE: the node to leave, and where to go."""

    server: str = ""
    cluster: str = ""
    domain: str = ""
    tags: list[str] = []


class ClusterApi:
    """The part of the API that only clusters have."""

    def __init__(self, engine: Engine, cluster: JetStreamCluster, streams: ClusterStreamApi) -> None:
        self._engine, self._cluster, self._streams = engine, cluster, streams

    def register(self, routes: Routes) -> None:
        """See `ApiPart.register`."""
        route, meta, stream = routes.route, Where.META, Where.STREAM
        named = {"server": self._engine.server_name, "server_id": self._engine.server_id}
        route("META.RESCUE", "meta_rescue_response", self._rescue, empty=named)
        route("META.LEADER.STEPDOWN", "meta_leader_stepdown_response", self._meta_stepdown, where=meta)
        route("SERVER.REMOVE", "meta_server_remove_response", self._remove_server, where=meta)
        route("SERVER.EVACUATE", "meta_server_evacuate_response", self._evacuate_server, where=meta)
        stepdown = self._stream_stepdown
        route("STREAM.LEADER.STEPDOWN.*", "stream_leader_stepdown_response", stepdown, where=stream)
        route(
            "CONSUMER.LEADER.STEPDOWN.*.*", "consumer_leader_stepdown_response", self._consumer_stepdown, where=stream
        )
        route("STREAM.PEER.REMOVE.*", "stream_remove_peer_response", self._remove_peer, where=meta)
        route("STREAM.PEER.EVACUATE.*", "stream_evacuate_peer_response", self._remove_peer, where=meta)
        remove = self._remove_consumer_peer
        route("CONSUMER.PEER.REMOVE.*.*", "consumer_remove_peer_response", remove, where=stream)
        route("CONSUMER.PEER.EVACUATE.*.*", "consumer_evacuate_peer_response", remove, where=stream)
        route("STREAM.CANCEL_MOVE.*", "stream_cancel_move_response", self._cancel_move, where=meta)
        route("ACCOUNT.STREAM.MOVE.*.*", "stream_update_response", self._move, where=meta)
        route("ACCOUNT.STREAM.CANCEL_MOVE.*.*", "stream_cancel_move_response", self._cancel_move, where=meta)

    def _rescue(self, request: Request) -> None:
        """A smaller quorum for a meta group that lost its majority. It is refused: a group of ours keeps its promise
        that what a majority has acknowledged is not lost, so the nodes that are missing have to come back."""
        if request.empty_body:
            raise api_error(10003)
        asked, meta = request.parse(RescueRequest, "JSApiMetaRescueRequest"), self._cluster.meta
        if not 1 <= asked.quorum_needed <= meta.membership.quorum:
            raise api_error(10224, err="raft: rescue quorum must be between 1 and current quorum")
        if self._cluster.meta_leader():
            raise api_error(10224, err="raft: leader is known")
        raise api_error(10224, err="not supported by this server: start the missing nodes again")

    # ------------------------------------------------------------------ leaders
    def _placement(self, request: Request) -> Placement:
        return request.parse_if_json(StepdownRequest, "JSApiLeaderStepdownRequest").placement or Placement()

    def _meta_stepdown(self, request: Request) -> None:
        group = self._cluster.meta.group
        if group is None:
            raise api_error(10008)
        voters, me = self._cluster.meta.membership.voters, self._cluster.me
        to = choose_leader(self._placement(request), voters, self._cluster.candidates(), me)
        request.succeed(None)  # before it leads no more
        group.transfer(to)

    def _stream_stepdown(self, request: Request) -> None:
        self._hand_over(request)

    def _consumer_stepdown(self, request: Request) -> None:
        self._check_consumer(request)
        self._hand_over(request)

    def _remove_consumer_peer(self, request: Request) -> None:
        self._check_consumer(request)
        raise api_error(10075)  # it is where its stream is

    def _check_consumer(self, request: Request) -> None:
        if request.tokens[1] not in self._streams.find(request.tokens[0]).consumers:
            raise api_error(10014)

    def _hand_over(self, request: Request) -> None:
        stream = self._streams.find(request.tokens[0])
        replica = self._cluster.replicas.by_uid[stream.uid]
        voters, placement = replica.membership.voters, self._placement(request)
        if len(voters) < 2:
            request.succeed(None)
            return
        to = choose_leader(placement, voters, self._cluster.candidates(), self._cluster.me)
        request.succeed(None)
        replica.transfer(to)

    # ------------------------------------------------------------------ nodes of a stream
    def _assignment(self, name: str) -> Assignment:
        assignment = self._cluster.find(name)
        if assignment is None:
            raise api_error(10059)
        return assignment

    def _remove_peer(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(PeerRequest, "JSApiStreamRemovePeerRequest")
        if not asked.peer:
            raise api_error(10003)
        assignment = self._assignment(request.tokens[0])
        name = next((peer for peer in assignment.peers if asked.peer in (peer, peer_id(peer))), "")
        if not name:
            raise api_error(10040)
        try:
            change = self._without(assignment, {name})
        except ApiError:
            raise api_error(10075) from None
        self._change(change, request.succeed)

    def _without(self, assignment: Assignment, avoid: Collection[str]) -> ChangeStream:
        """The change that takes nodes out of a stream. Raises ApiError 10005 when there is nobody instead."""
        cluster = self._cluster
        wanted = cluster.wanted(cluster.config_of(assignment))
        peers = choose(wanted, cluster.candidates(), keep=assignment.peers, avoid=avoid)
        return ChangeStream(assignment.uid, assignment.config, peers)

    def _change(self, change: ChangeStream, done: Callable[[ApiError | None], None]) -> None:
        def applied(outcome: Applied | ApiError) -> None:
            if isinstance(outcome, ApiError):
                done(outcome)
            else:
                done(api_error(10059) if outcome.refused else None)

        self._cluster.meta.propose(change, applied)

    def _move(self, request: Request) -> None:
        if request.stage:
            self._streams.answer_by_leader(_of_stream(request), MOVED)
            return
        asked = request.parse_if_json(MoveRequest, "JSApiMetaServerStreamMoveRequest")
        assignment = self._assigned_to(request)
        cluster = self._cluster
        if asked.server and asked.server not in assignment.peers:
            raise api_error(10059)
        config = cluster.config_of(assignment)
        if asked.cluster or asked.tags:
            config = replace(config, placement=Placement(cluster=asked.cluster, tags=asked.tags))
        avoid = {asked.server} - {""} if asked.server else set(assignment.peers) if not asked.tags else set()
        peers = choose(cluster.wanted(config), cluster.candidates(), keep=assignment.peers, avoid=avoid)
        self._change_and_show(request, ChangeStream(assignment.uid, msgspec.json.encode(config), peers))

    def _cancel_move(self, request: Request) -> None:
        if request.stage:
            self._streams.answer_by_leader(_of_stream(request), MOVED)
            return
        assignment = self._assigned_to(request)
        if not assignment.moving:
            raise api_error(10129)
        config = replace(self._cluster.config_of(assignment), num_replicas=len(assignment.settled))
        self._change_and_show(request, ChangeStream(assignment.uid, msgspec.json.encode(config), assignment.settled))

    def _assigned_to(self, request: Request) -> Assignment:
        if len(request.tokens) > 1 and request.tokens[0] != self._engine.account:
            raise api_error(10059)
        return self._assignment(request.tokens[-1])

    def _change_and_show(self, request: Request, change: ChangeStream) -> None:
        def done(error: ApiError | None) -> None:
            if error is not None:
                request.fail(error)
            else:
                self._streams.answer_by_leader(_of_stream(request), MOVED)

        self._change(change, done)

    # ------------------------------------------------------------------ nodes of the cluster
    def _server(self, request: Request) -> str:
        """The member that a request names. Raises ApiError 10003, 10044."""
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(PeerRequest, "JSApiMetaServerRemoveRequest")
        if not asked.peer and not asked.peer_id:
            raise api_error(10003)
        for name in self._cluster.meta.membership.members:
            if name == asked.peer or (asked.peer_id and peer_id(name) == asked.peer_id):
                return name
        raise api_error(10044)

    def _remove_server(self, request: Request) -> None:
        name, cluster = self._server(request), self._cluster
        if name == cluster.me:
            self._by_successor(request)
            return
        now = cluster.meta.membership
        membership = Membership(
            tuple(voter for voter in now.voters if voter != name),
            tuple(learner for learner in now.learners if learner != name),
        )

        def changed(why: str) -> None:
            if why:
                request.fail(api_error(10202))
                return
            self._engine.log.info(f"JetStream cluster: {name} was removed")
            cluster.advisories.server_removed(name)
            self._leave(name)
            request.succeed(None)

        cluster.meta.change_membership(membership, changed)

    def _by_successor(self, request: Request) -> None:
        """The leader of the meta group cannot see its own removal through: it lets another lead, which then does it."""
        group = self._cluster.meta.group
        if group is None or request.hops >= MAX_HOPS or not group.transfer():
            raise api_error(10202)
        request.hops += 1

        def again() -> None:
            try:
                self._remove_server(request)
            except ApiError as error:
                request.fail(error)

        self._engine.clock.call_later(HAND_OVER_NS, lambda: self._cluster.requests.dispatch(request, Where.META, again))

    def _evacuate_server(self, request: Request) -> None:
        self._leave(self._server(request))
        request.succeed(None)

    def _leave(self, name: str) -> None:
        """Have other nodes hold what this one holds, as far as there are any."""
        for assignment in list(self._cluster.meta.state.by_uid.values()):
            if name not in assignment.peers:
                continue
            try:
                self._change(self._without(assignment, {name}), lambda error: None)
            except ApiError as error:
                self._engine.log.warn(f"stream {assignment.name} stays assigned to {name}: {error}")


def _of_stream(request: Request) -> Request:
    """The same request with the stream as its first token, which is where its leader is looked up."""
    request.tokens = [request.tokens[-1]]
    return request
