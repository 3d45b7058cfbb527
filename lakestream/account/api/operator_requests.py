"""Requests of the system account: the cluster's nodes, and the streams of all accounts.

Belongs here: stepdown of the meta leader, removing a node from the cluster, and moving any account's stream
(docs/internals/api.md#operator-requests). moves.py decides moves, `meta/local.py` carries them out, one server at a
time; system.py receives these requests.
"""

from __future__ import annotations

import functools

import msgspec
from msgspec.structs import replace

from lakestream.account.api.moves import Moves
from lakestream.account.api.peers import PeerRequest, placement_of
from lakestream.account.engine import Engine
from lakestream.meta.assignments import ChangeStream
from lakestream.meta.placement import peer_id
from lakestream.meta.requests import MAX_HOPS
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import Int
from lakestream.protocol.api.request import HandlerRegistry, Request, Where
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.config import Placement

HAND_OVER_NS = 300_000_000
"""Delay after which a meta leader that steps down dispatches the request to its successor (300 ms)."""


class RescueRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of META.RESCUE."""

    quorum_needed: Int = 0


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ACCOUNT.STREAM.MOVE: the server to leave, and the placement to move to."""

    server: str = ""
    cluster: str = ""
    domain: str = ""
    tags: list[str] = []


class ClusterRequests:
    """Serves requests about the nodes of the cluster and the placement of any stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._node, self._moves = engine, engine.node, Moves(engine.node)

    def register(self, routes: HandlerRegistry) -> None:
        route, meta = routes.route, Where.META
        named = {"server": self._engine.server_name, "server_id": self._engine.server_id}
        route("META.RESCUE", "meta_rescue_response", self._rescue, empty=named)
        route("META.LEADER.STEPDOWN", "meta_leader_stepdown_response", self._meta_stepdown, where=meta)
        route("SERVER.REMOVE", "meta_server_remove_response", self._remove_server, where=meta)
        route("SERVER.EVACUATE", "meta_server_evacuate_response", self._evacuate_server, where=meta)
        self.register_moves(routes)
        route("ACCOUNT.STREAM.CANCEL_MOVE.*.*", "stream_cancel_move_response", self._cancel_move, where=meta)

    def register_moves(self, routes: HandlerRegistry) -> None:
        """Register what workers serve, too."""
        routes.route("ACCOUNT.STREAM.MOVE.*.*", "stream_update_response", self._move, where=Where.META)

    def _rescue(self, request: Request) -> None:
        """Reject a smaller quorum for a meta group that lost its majority: it could lose entries that a majority has
        acknowledged, so the missing nodes have to come back."""
        if request.empty_body:
            raise api_error(10003)
        asked, meta = request.parse(RescueRequest, "JSApiMetaRescueRequest"), self._node.meta
        if not 1 <= asked.quorum_needed <= meta.membership.quorum:
            raise api_error(10224, err="raft: rescue quorum must be between 1 and current quorum")
        if self._node.meta_leader():
            raise api_error(10224, err="raft: leader is known")
        raise api_error(10224, err="not supported by this server: start the missing nodes again")

    def _meta_stepdown(self, request: Request) -> None:
        meta = self._node.meta
        if not meta.membership.members:
            raise api_error(10008)
        to = self._node.placing.leader(placement_of(request), meta.membership.voters)
        request.succeed(None)  # before this node stops leading
        meta.transfer(to)

    # ------------------------------------------------------------------ streams of any account
    def _move(self, request: Request) -> None:
        if request.stage:
            self._moves.answer_by_leader(request, request.tokens[1], request.tokens[0])
            return
        asked = request.parse_if_json(MoveRequest, "JSApiMetaServerStreamMoveRequest")
        assignment = self._moves.find(*request.tokens)
        if asked.server and asked.server not in assignment.peers:
            raise api_error(10059)
        config = self._node.config_of(assignment)
        if asked.cluster or asked.tags:
            config = replace(config, placement=Placement(cluster=asked.cluster, tags=asked.tags))
        avoid = {asked.server} - {""} if asked.server else set(assignment.peers) if not asked.tags else set()
        peers = self._node.placing.place(config, keep=assignment.peers, avoid=avoid)
        change = ChangeStream(assignment.uid, msgspec.json.encode(config), peers)
        self._moves.change_and_show(request, assignment, change)

    def _cancel_move(self, request: Request) -> None:
        if request.stage:
            self._moves.answer_by_leader(request, request.tokens[1], request.tokens[0])
        else:
            self._moves.cancel(request, self._moves.find(*request.tokens))

    # ------------------------------------------------------------------ nodes of the cluster
    def _server(self, request: Request) -> str:
        """Return the member that a request names. Raise ApiError 10003, 10044."""
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(PeerRequest, "JSApiMetaServerRemoveRequest")
        if not asked.peer and not asked.peer_id:
            raise api_error(10003)
        for name in self._node.meta.membership.members:
            if name == asked.peer or (asked.peer_id and peer_id(name) == asked.peer_id):
                return name
        raise api_error(10044)

    def _remove_server(self, request: Request) -> None:
        name, node = self._server(request), self._node
        if name == node.me:
            self._by_successor(request)
            return
        now = node.meta.membership
        membership = Membership(
            tuple(voter for voter in now.voters if voter != name),
            tuple(learner for learner in now.learners if learner != name),
        )

        def changed(why: str) -> None:
            if why:
                request.fail(api_error(10202))
                return
            self._engine.log.info(f"JetStream cluster: {name} was removed")
            node.advisories.server_removed(name)
            self._leave(name)
            request.succeed(None)

        node.meta.change_membership(membership, changed)

    def _by_successor(self, request: Request) -> None:
        """Transfer meta leadership, and let the next leader remove this node: a leader cannot remove itself."""
        if request.hops >= MAX_HOPS or not self._node.meta.transfer():
            raise api_error(10202)
        request.hops += 1
        again = functools.partial(request.run, functools.partial(self._remove_server, request))
        self._engine.clock.call_later(HAND_OVER_NS, lambda: self._node.requests.dispatch(request, Where.META, again))

    def _evacuate_server(self, request: Request) -> None:
        self._leave(self._server(request))
        request.succeed(None)

    def _leave(self, name: str) -> None:
        """Move the node's replicas to other nodes, as far as there are suitable ones."""
        for assignment in list(self._node.meta.state.by_uid.values()):
            if name not in assignment.peers:
                continue
            try:
                self._moves.change(self._moves.without(assignment, {name}), lambda error: None)
            except ApiError as error:
                self._engine.log.warn(f"stream {assignment.name} stays assigned to {name}: {error}")
