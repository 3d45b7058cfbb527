"""Moving streams to other nodes.

Belongs here: the decisions of the meta leader to remove peers of a stream, move it, and cancel a move, at the request
of a client of the account (peers.py) or of an operator (operator_requests.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from msgspec.structs import replace

from lakestream.account.api.find import find, info_of
from lakestream.meta.assignments import Assignment, ChangeStream
from lakestream.meta.meta import failure
from lakestream.meta.node import MetaNode
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Request, Where

MOVED = "moved"
"""Stage of a request that changed a stream's peers: the stream's leader answers."""


class Moves:
    """Changes the peers of streams of any account."""

    def __init__(self, node: MetaNode) -> None:
        self._node = node

    def find(self, account: str, name: str) -> Assignment:
        """Return the assignment of a stream. Raise ApiError 10059."""
        assignment = self._node.find(account, name)
        if assignment is None:
            raise api_error(10059)
        return assignment

    def without(self, assignment: Assignment, avoid: Collection[str]) -> ChangeStream:
        """Return the change that replaces peers of a stream. Raise ApiError 10005 without suitable other nodes."""
        config = self._node.config_of(assignment)
        peers = self._node.placing.place(config, keep=assignment.peers, avoid=avoid)
        return ChangeStream(assignment.uid, assignment.config, peers)

    def change(self, change: ChangeStream, done: Callable[[ApiError | None], None]) -> None:
        """Propose a change to the meta group."""
        self._node.meta.propose(change, lambda outcome: done(failure(outcome, 10059)))

    def cancel(self, request: Request, assignment: Assignment) -> None:
        """Return a stream to its peers before the move. Raise ApiError 10129 if it is not moving."""
        if not assignment.moving:
            raise api_error(10129)
        config = replace(self._node.config_of(assignment), num_replicas=len(assignment.settled))
        change = ChangeStream(assignment.uid, msgspec.json.encode(config), assignment.settled)
        self.change_and_show(request, assignment, change)

    def change_and_show(self, request: Request, assignment: Assignment, change: ChangeStream) -> None:
        """Propose a change, then have the stream's leader answer with StreamInfo."""

        def done(error: ApiError | None) -> None:
            if error is not None:
                request.fail(error)
            else:
                self.answer_by_leader(request, assignment.account, assignment.name)

        self.change(change, done)

    def answer_by_leader(self, request: Request, account: str, name: str) -> None:
        """Have the stream's leader answer, here or elsewhere, as soon as there is one."""
        # Every node that receives the request finds the stream's leader by the first token.
        request.stage, request.tokens, request.about = MOVED, [name, account], account

        def here() -> None:
            try:
                request.respond(info_of(self._node, find(self._node.accounts.of(account), name)))
            except ApiError as error:
                request.fail(error)

        self._node.requests.dispatch(request, Where.STREAM, here)
