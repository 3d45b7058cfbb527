"""Proposing and applying assignments.

Belongs here: the interface `Meta`, and its implementation for a server without other nodes, which applies an entry at
once. It has no files: its state at the start comes from the store directories. In a cluster the meta group
(meta_group.py) implements the same interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.log.format.errors import LogError
from lakestream.meta.assignments import Applied, AssignStream, MetaOp, MetaState, RemoveStream
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.group import MemberProgress

GROUP = "meta"
"""The group's id, and the uid of its store."""
DIRECTORY = "_meta_"
"""Name of the group's directory, beside those of the accounts in the store's directory."""

Outcome = Callable[[Applied | ApiError], None]
Acted = Callable[[ApiError | None], None]
"""Called once a node has acted on an entry, with the error, if any."""


class MetaUnusable(LogError):
    """Raised when the meta group's files cannot be opened."""


def failure(outcome: Applied | ApiError, refused: int) -> ApiError | None:
    """Return the error of an entry, or None. `refused`: the code for an entry that was rejected when applied."""
    if isinstance(outcome, ApiError):
        return outcome
    return api_error(refused) if outcome.refused else None


class Meta(Protocol):
    """This node's access to the assignments."""

    state: MetaState
    """The assignments applied here; on the leader they are current."""
    leading: bool
    leader: str
    """The name of the meta leader; "" when it is not known."""
    failed: Exception | None
    caught_up: bool
    """True once all entries are applied that were committed when this node started. Before that, this node may have
    acted on an applied entry, and on later ones, already."""
    lost_through: int
    """If this node was a member before and has lost its files: the last entry whose assignments it may have held."""

    @property
    def me(self) -> str:
        """Return this node's name."""

    @property
    def membership(self) -> Membership:
        """Return the members of the meta group, as far as this node knows."""

    @property
    def as_of(self) -> int:
        """Return the index of the last entry in `state`."""

    def propose(self, op: MetaOp, done: Outcome) -> None:
        """Propose an entry. Call `done` with its effect once it is applied here, or with 10008 if this node does not
        lead or ceases to; in the latter case the entry may be committed all the same."""

    def change_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        """Add, promote or remove one member; call `done("")` once that is committed, else with the reason."""

    def transfer(self, to: str = "") -> bool:
        """Start a leadership transfer; return False if this node cannot."""

    def progress(self) -> list[MemberProgress]:
        """Return the progress of each member; empty unless this node leads."""

    def start(self) -> None:
        """Start, once the other nodes can be reached."""

    def stop(self) -> None:
        """Stop taking part in the group."""

    def close(self) -> None:
        """Write the last checkpoint. Block; after `stop`."""


class SoloMeta:
    """Implements `Meta` for a server without other nodes; there is nothing to open, start or close.

    Set `on_applied`, which acts on an entry's effect and then calls the given function: only then the entry's `done` is
    called. An assignment that this node cannot act on is reverted.
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
        """Apply an entry; call `done` with its effect, or with the error if this node could not act on it."""
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
        self.state.tombstones.clear()  # there are no other nodes that need them

    def learn(self, op: AssignStream) -> None:
        """Add a stream that was found on disk."""
        self.as_of += 1
        self.state.apply(op, self.as_of)

    def forget(self, uid: str) -> None:
        """Remove the assignment of a stream that is not served any more."""
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
