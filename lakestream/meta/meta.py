"""The meta layer's decisions: which streams exist, and on which nodes.

Belongs here: the interface `Meta`, and its implementation for a server without other nodes, which decides and applies
at once. Its state is what the store directories hold at the start; it has no files. In a cluster the meta group
(meta_group.py) implements the same interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.meta.assignments import Applied, AssignStream, MetaOp, MetaState, RemoveStream
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.group import MemberProgress

Outcome = Callable[[Applied | ApiError], None]
Acted = Callable[[ApiError | None], None]
"""Called with None once a node has acted on an entry, or with the reason why it cannot."""


def failure(outcome: Applied | ApiError, refused: int) -> ApiError | None:
    """Return the error of an entry; None if it had its effect. `refused`: the error's code if it no longer fitted."""
    if isinstance(outcome, ApiError):
        return outcome
    return api_error(refused) if outcome.refused else None


class Meta(Protocol):
    """This node's part in deciding which streams exist."""

    state: MetaState
    """The assignments, as far as they are applied here; on the leader they are exact."""
    leading: bool
    leader: str
    """The name of the node that decides; "" when it is not known."""
    failed: Exception | None
    caught_up: bool
    """True once everything is applied that was decided when this node took part again. Before that, an entry may be
    one that it has acted on already, and what followed it too."""
    lost_through: int
    """This node was a member before and has lost its files: what is assigned through this entry, it may have held."""

    @property
    def me(self) -> str:
        """This node's name."""

    @property
    def membership(self) -> Membership:
        """The nodes that decide together, as far as this node knows."""

    @property
    def as_of(self) -> int:
        """The index of the newest entry in `state`."""

    def propose(self, op: MetaOp, done: Outcome) -> None:
        """Decide an entry. Call `done` with what it did once it is applied here, or with 10008 when this node does not
        lead: then it may have been decided all the same."""

    def change_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        """Add, promote or remove one member; call `done("")` once that is committed, else with the reason."""

    def transfer(self, to: str = "") -> bool:
        """Let another node lead; False when this node cannot begin that."""

    def progress(self) -> list[MemberProgress]:
        """Return the progress of each member; empty unless this node leads."""

    def start(self) -> None:
        """Take part, once the other nodes can be reached."""

    def stop(self) -> None:
        """Take no more part."""

    def close(self) -> None:
        """Write what the next start needs. Block; after `stop`."""


class SoloMeta:
    """Implements `Meta` for a server without other nodes; there is nothing to open, start or close.

    Set `on_applied`, which acts on what an entry did and calls the given function when that is done: only then the
    entry's proposer is told. An assignment that this node cannot act on is taken back.
    """

    leading = caught_up = True
    failed: Exception | None = None
    lost_through = 0

    def __init__(self, me: str) -> None:
        self.me = self.leader = me
        self.membership = Membership((me,))
        self.state = MetaState()
        self.as_of = 0
        self.on_applied: Callable[[Applied, Acted], None] = lambda applied, acted: acted(None)

    def propose(self, op: MetaOp, done: Outcome) -> None:
        """See `Meta.propose`. An error is the one with which this node could not act on the entry."""
        self.as_of += 1
        applied = self.state.apply(op, self.as_of)
        if applied.refused:
            done(applied)
            return

        def acted(error: ApiError | None) -> None:
            if error is None:
                done(applied)
            elif isinstance(op, AssignStream) and op.uid in self.state.by_uid:
                self.propose(RemoveStream(op.uid), lambda _: done(error))
            else:
                if isinstance(op, RemoveStream) and applied.before is not None:
                    self.state.take_back(applied.before)
                done(error)

        self.on_applied(applied, acted)
        self.state.tombstones.clear()  # nobody was away who would have to hear of it

    def learn(self, op: AssignStream) -> None:
        """Enter a stream that was found on disk."""
        self.as_of += 1
        self.state.apply(op, self.as_of)

    def forget(self, uid: str) -> None:
        """Leave out a stream that is closed until its account has JetStream again."""
        self.as_of += 1
        self.state.apply(RemoveStream(uid), self.as_of)
        self.state.tombstones.clear()

    def change_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        done("this server has no cluster")

    def transfer(self, to: str = "") -> bool:
        return False

    def progress(self) -> list[MemberProgress]:
        return []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...
