"""Moving streams to other nodes.

Belongs here: how the leader of the meta group takes nodes out of a stream, moves it, and gives up a move, at the
request of a client of the account (peers.py) or of an operator (operator_requests.py).
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
"""Stage of a request that changed a stream's nodes: its leader answers."""


class Moves:
    """Changes of streams' nodes, of any account."""

    def __init__(self, node: MetaNode) -> None:
        self._node = node

    def find(self, account: str, name: str) -> Assignment:
        """The assignment of a stream. Raises ApiError 10059."""
        assignment = self._node.find(account, name)
        if assignment is None:
            raise api_error(10059)
        return assignment

    def without(self, assignment: Assignment, avoid: Collection[str]) -> ChangeStream:
        """The change that takes nodes out of a stream. Raises ApiError 10005 when there is nobody instead."""
        config = self._node.config_of(assignment)
        peers = self._node.placing.place(config, keep=assignment.peers, avoid=avoid)
        return ChangeStream(assignment.uid, assignment.config, peers)

    def change(self, change: ChangeStream, done: Callable[[ApiError | None], None]) -> None:
        """Have a change logged."""
        self._node.meta.propose(change, lambda outcome: done(failure(outcome, 10059)))

    def cancel(self, request: Request, assignment: Assignment) -> None:
        """Have a stream stay where it was before its move. Raises ApiError 10129 when it does not move."""
        if not assignment.moving:
            raise api_error(10129)
        config = replace(self._node.config_of(assignment), num_replicas=len(assignment.settled))
        change = ChangeStream(assignment.uid, msgspec.json.encode(config), assignment.settled)
        self.change_and_show(request, assignment, change)

    def change_and_show(self, request: Request, assignment: Assignment, change: ChangeStream) -> None:
        """Have a change logged, and the stream's leader answer with StreamInfo."""

        def done(error: ApiError | None) -> None:
            if error is not None:
                request.fail(error)
            else:
                self.answer_by_leader(request, assignment.account, assignment.name)

        self.change(change, done)

    def answer_by_leader(self, request: Request, account: str, name: str) -> None:
        """Have the stream's leader answer, here or elsewhere, as soon as there is one."""
        # Its leader is looked up by the first token, on whatever node the request comes to.
        request.stage, request.tokens, request.about = MOVED, [name, account], account

        def here() -> None:
            try:
                request.respond(info_of(self._node, find(self._node.accounts.of(account), name)))
            except ApiError as error:
                request.fail(error)

        self._node.requests.dispatch(request, Where.STREAM, here)
