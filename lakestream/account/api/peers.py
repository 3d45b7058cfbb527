"""Requests of an account's clients about leaders and peers of its streams.

Belongs here: stepdown of leaders, removing a peer of a stream, and canceling a move (docs/internals/api.md), and their
refusal on a server without a cluster. Requests reserved to the system account are in operator_requests.py.
`meta/local.py` then carries out the change, one server at a time.

A consumer is led by its stream's leader: CONSUMER.LEADER.STEPDOWN therefore transfers the stream's leadership.
"""

from __future__ import annotations

import msgspec

from lakestream.account.api.find import find
from lakestream.account.api.moves import Moves
from lakestream.account.engine import Engine
from lakestream.meta.placement import peer_id
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import HandlerRegistry, Request, Where
from lakestream.stream.core.config import Placement


class StepdownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the stepdown requests."""

    placement: Placement | None = None


class PeerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of PEER.REMOVE, PEER.EVACUATE and SERVER.REMOVE: a node's name, or its short id."""

    peer: str = ""
    peer_id: str = ""


class ClusterApi:
    """The part of an account's API that only clusters have."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._node = engine, engine.node
        self._moves = Moves(engine.node)

    def register(self, routes: HandlerRegistry) -> None:
        route, meta, stream = routes.route, Where.META, Where.STREAM
        route("STREAM.LEADER.STEPDOWN.*", "stream_leader_stepdown_response", self._hand_over, where=stream)
        route(
            "CONSUMER.LEADER.STEPDOWN.*.*", "consumer_leader_stepdown_response", self._consumer_stepdown, where=stream
        )
        route("STREAM.PEER.REMOVE.*", "stream_remove_peer_response", self._remove_peer, where=meta)
        route("STREAM.PEER.EVACUATE.*", "stream_evacuate_peer_response", self._remove_peer, where=meta)
        remove = self._remove_consumer_peer
        route("CONSUMER.PEER.REMOVE.*.*", "consumer_remove_peer_response", remove, where=stream)
        route("CONSUMER.PEER.EVACUATE.*.*", "consumer_evacuate_peer_response", remove, where=stream)
        route("STREAM.CANCEL_MOVE.*", "stream_cancel_move_response", self._cancel_move, where=meta)

    # ------------------------------------------------------------------ leaders
    def _consumer_stepdown(self, request: Request) -> None:
        self._check_consumer(request)
        self._hand_over(request)

    def _remove_consumer_peer(self, request: Request) -> None:
        peer = _peer_of(request)
        self._check_consumer(request)
        stream = find(self._engine, request.tokens[0])
        members = self._node.replicas.by_uid[stream.uid].membership.voters
        if not any(peer in (member, peer_id(member)) for member in members):
            raise api_error(10040)
        raise api_error(10075)  # a consumer has the peers of its stream

    def _check_consumer(self, request: Request) -> None:
        if request.tokens[1] not in find(self._engine, request.tokens[0]).consumers:
            raise api_error(10014)

    def _hand_over(self, request: Request) -> None:
        stream = find(self._engine, request.tokens[0])
        replica = self._node.replicas.by_uid[stream.uid]
        voters, placement = replica.membership.voters, placement_of(request)
        if len(voters) < 2:
            request.succeed(None)
            return
        to = self._node.placing.leader(placement, voters)
        request.succeed(None)
        replica.transfer(to)

    # ------------------------------------------------------------------ nodes of a stream
    def _remove_peer(self, request: Request) -> None:
        asked = _peer_of(request)
        assignment = self._moves.find(self._engine.account, request.tokens[0])
        name = next((peer for peer in assignment.peers if asked in (peer, peer_id(peer))), "")
        if not name:
            raise api_error(10040)
        try:
            change = self._moves.without(assignment, {name})
        except ApiError:
            raise api_error(10075) from None
        self._moves.change(change, request.succeed)

    def _cancel_move(self, request: Request) -> None:
        if request.stage:
            self._moves.answer_by_leader(request, self._engine.account, request.tokens[0])
        else:
            self._moves.cancel(request, self._moves.find(self._engine.account, request.tokens[0]))


class NoPeersApi:
    """Rejects requests that need a cluster on a server without one (10010)."""

    def register(self, routes: HandlerRegistry) -> None:
        for subject, kind in (
            ("LEADER.STEPDOWN", "leader_stepdown"),
            ("PEER.REMOVE", "remove_peer"),
            ("PEER.EVACUATE", "evacuate_peer"),
            ("CANCEL_MOVE", "cancel_move"),
        ):
            routes.route(f"STREAM.{subject}.*", f"stream_{kind}_response", _refuse, level=False)
            if subject != "CANCEL_MOVE":
                routes.route(f"CONSUMER.{subject}.*.*", f"consumer_{kind}_response", _refuse, level=False)


def _refuse(request: Request) -> None:
    raise api_error(10010)


def placement_of(request: Request) -> Placement:
    """Return the placement of the next leader that a stepdown request asks for."""
    return request.parse_if_json(StepdownRequest, "JSApiLeaderStepdownRequest").placement or Placement()


def _peer_of(request: Request) -> str:
    """Return the node that a request names. Raise ApiError 10003, 10025."""
    asked = PeerRequest() if request.empty_body else request.parse(PeerRequest, "JSApiStreamRemovePeerRequest")
    if not asked.peer:
        raise api_error(10003)
    return asked.peer
