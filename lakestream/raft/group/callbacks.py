"""Calling the owner of a Raft group.

Belongs here: matching committed entries with the proposals of this node, the callbacks of a change of leadership, and
reads that wait for an index. raft_group.py decides when something is committed and durable.
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.log.format.frame import Frame
from lakestream.log.store.log import Appended
from lakestream.raft.core.core import Core
from lakestream.raft.core.ready import Conflict, Ready, Role, RolledBack
from lakestream.raft.group.group import Committed, GroupOwner, Proposal, Steps


def conflict_text(conflict: Conflict) -> str:
    """Return the log line for two members with different committed entries."""
    mine = f"of term {conflict.mine}" if conflict.mine else "of another term, which is not known any more"
    return (
        f"entry {conflict.index} is committed here {mine}, and at {conflict.member} of term {conflict.other}: "
        f"the disk of a member was rolled back or restored from an old copy, and messages that were acknowledged are "
        f"on one side only; see 'Disks that were rolled back' in docs/replication.md"
    )


def rolled_back_text(found: RolledBack) -> str:
    """Return the log line for a member that has less than it had confirmed."""
    if found.last < 0:
        return (
            f"{found.member} does not have entry {found.index} of term {found.term} any more, which it had confirmed: "
            f"its disk was rolled back or restored from an old copy; it is sent what it lacks"
        )
    return (
        f"this node's log on disk ends at entry {found.last} or differs, but {found.teller} knows that it had "
        f"confirmed entry {found.index} of term {found.term}: the disk was rolled back or restored from an old copy; "
        f"this node does not vote until it has caught up"
    )


class OwnerState:
    """The owner of a group: the role last reported to it, and the proposals and reads it waits for."""

    def __init__(self, callbacks: GroupOwner, core: Core, handed_term: int) -> None:
        """Begin with `handed_term`, the term of the newest applied entry."""
        self.callbacks, self._core = callbacks, core
        self.handed_term = handed_term
        self.leads = False
        """True if the owner knows that this node leads."""
        self.held: list[Proposal] = []
        """Proposals that the core has not accepted yet."""
        self.wake = False
        """True if the owner may be waiting to propose: call it as soon as it can."""
        self.applying = False
        """True while steps are left of what was handed out last."""
        self.contexts: dict[int, object] = {}
        self.changes: dict[int, Callable[[bool], None]] = {}
        self._reads: list[tuple[int, Callable[[int], None]]] = []
        self._role: tuple[bool, str, int] = (False, "", 0)

    def commit(self, found: list[tuple[Frame, Appended]]) -> Steps | None:
        """Hand out entries that are committed and durable here; return the steps that are left of applying them."""
        contexts, changes = self.contexts, self.changes
        entries = [Committed(frame, at, contexts.pop(frame.index, None)) for frame, at in found]
        self.handed_term = found[-1][0].term
        if changes:
            for frame, _ in found:
                done = changes.pop(frame.index, None)
                if done is not None:
                    done(True)
        self.wake = False
        return self.callbacks.on_commit(entries)

    def resume(self) -> None:
        """Tell the owner that it can propose again."""
        self.wake = False
        self.callbacks.on_commit([])

    def report(self, ready: Ready) -> None:
        """Report findings about disks that were rolled back or damaged."""
        notice = self.callbacks.on_notice
        if ready.rolled_back is not None:
            notice(rolled_back_text(ready.rolled_back), True)
        for found in ready.warnings:
            notice(conflict_text(found) if isinstance(found, Conflict) else rolled_back_text(found), True)
        if ready.missing is not None:
            first, last = ready.missing
            text = f"entries {first} to {last} are damaged here, and no member that can be reached has them"
            notice(f"{text}: see 'Damage of several replicas' in docs/replication.md", True)
        if ready.recovered:
            notice("this node has caught up and votes again", False)

    @property
    def waits(self) -> bool:
        """Return True if proposals or reads wait."""
        return bool(self.held or self._reads)

    def await_read(self, index: int, done: Callable[[int], None]) -> None:
        """Answer a read once everything through `index` is handed out."""
        self._reads.append((index, done))

    def reads(self, handed: int) -> bool:
        """Answer the reads that need nothing beyond entry `handed`. Return True if there were any."""
        if not self._reads or self.applying:
            return False
        due = [read for read in self._reads if read[0] <= handed]
        if due:
            self._reads = [read for read in self._reads if read[0] > handed]
            for index, done in due:
                done(index)
        return bool(due)

    def role(self, failed: bool) -> bool:
        """Call `on_role` if role, leader or term changed, after `on_lost` if leadership was lost. Return True if so.

        A new leader serves once everything before its own first entry is applied.
        """
        core = self._core
        mine = core.role is Role.LEADER and not failed
        led = self.leads and core.term == self._role[2]
        leads = mine and core.established and self.handed_term == core.term and (led or not self.applying)
        if self.leads and (not leads or core.term != self._role[2]):
            self._lose(failed)
        now = (leads, core.leader if leads or not mine else "", core.term)
        if now == self._role:
            return False
        self._role, self.leads = now, leads
        self.wake |= leads
        self.callbacks.on_role(*now)
        return True

    def _lose(self, failed: bool) -> None:
        contexts = list(self.contexts.values())
        contexts += [proposal.context for proposal in self.held if proposal.context is not None]
        changes = list(self.changes.values())
        self.held = []
        self.contexts.clear()
        self.changes.clear()
        if contexts and not failed:  # `on_failure` was called
            self.callbacks.on_lost(contexts)
        for done in changes:
            done(False)
