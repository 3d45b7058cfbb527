"""Detection of disks that were rolled back: a member holds less than it had confirmed.

Belongs here: the record of confirmed entries, its exchange between members, and the stop of a member whose committed
entries differ from its leader's.

The leader knows for every member the newest committed entry that it acknowledged as durable, and sends this record to
all members: in the heartbeats of the clock, in probes, and when it quiesces. Each of them keeps and uses it:

- the leader's word reaches the member concerned with the first probe after its return;
- a candidate tells each voter what it knows of the voter, before the voter decides;
- a voter refuses a candidate whose log ends before what the candidate had confirmed, and tells it.
"""

# The problem. Raft's proof needs disks that keep what they acknowledged. A volume that is restored from a snapshot does
# not: log and hard state are consistent, only old, so no checksum and no file beside the log helps. If a and b of three
# have confirmed entry 9, b is restored to entry 5, and a is lost, then b and c may elect each other without it. Only
# the other members can know. So each of them remembers how far each member was.
#
# What is remembered: (member, index, term) of the newest entry that the member confirmed *and* that was committed. An
# entry that a member confirmed and that was never committed may rightly be replaced by the next leader, so a record of
# it would accuse members that did nothing wrong.
#
# What is done with a record (`_fits`), by what the member's own log has at that index:
#
#     the same term, durable, or the entry has left the log   all is well
#     another term, and this member has committed it          two histories: from the leader, stop for good (`stop`);
#                                                             from another member, warn (`warn_of_conflict`)
#     nothing, or something that is not committed             rolled back: recover like a member that lost its log
#
# A rolled back member neither votes nor campaigns until it holds what its leader had when it asked. Its term and vote
# are old as well: it may have promised something that it does not know. So it believes no leader until a majority
# without it has confirmed it (`forgetful`). In a group of two there is no such majority, and none is needed: every
# leader there was elected with the other member's vote.
#
# Why the claim of a mere member is ignored while a leader is there (`on_claim`): if that leader has the entry it says
# so itself, and if it has not, the entry is lost already. Stopping the only members that still serve would not bring it
# back.
#
# docs/internals/replication.md#disks-that-were-rolled-back has what this costs, and what it cannot find.
#
# Invariant: a record never names an entry beyond what its member had durable when it was made, so it accuses nobody
# whose disk is in order.

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakestream.log.format.frame import UNKNOWN, Held
from lakestream.raft.core.messages import AppendReply, Confirmed
from lakestream.raft.core.progress import Progress
from lakestream.raft.core.ready import Conflict, RolledBack
from lakestream.raft.core.state import NEVER, State


def of_members(state: State, progress: Mapping[str, Progress]) -> tuple[Confirmed, ...]:
    """Return what the leader knows of every member, itself included, after bringing it up to date."""
    log = state.log
    if not state.remembers:
        return ()
    _note(state, state.me, min(log.durable, log.commit))
    for name, peer in progress.items():
        _note(state, name, min(peer.match, log.commit))
    if len(state.confirmed) > len(progress) + 1:
        forget_strangers(state)
    return tuple(state.confirmed.values())


def _note(state: State, name: str, index: int) -> None:
    known = state.confirmed.get(name)
    if known is None or known.index < index:
        term = state.log.terms.term(index)
        if index > 0 and term is not None:
            state.confirmed[name] = Confirmed(name, index, term)


def forget_strangers(state: State) -> None:
    """Drop the records of nodes that are no members: one that is added again rightly begins with nothing."""
    members = state.log.membership.members
    state.confirmed = {name: each for name, each in state.confirmed.items() if name in members}


def known_of(state: State, member: str) -> tuple[int, int]:
    """Return index and term of the newest committed entry that `member` is known to have confirmed, or (0, 0)."""
    known = state.confirmed.get(member)
    return (0, 0) if known is None else (known.index, known.term)


def learn(state: State, sender: str, found: Sequence[Confirmed]) -> bool:
    """Take over the leader's record. Return False if this member had to stop because it conflicts with the leader."""
    if not state.remembers:
        return True
    for each in found:
        if each.member == state.me and not _fits(state, sender, each.index, each.term, from_leader=True):
            return False
        known = state.confirmed.get(each.member)
        if known is None or known.index < each.index:
            state.confirmed[each.member] = each
    if len(state.confirmed) > len(found):
        forget_strangers(state)
    return True


def on_claim(state: State, sender: str, index: int, term: int) -> None:
    """Handle the claim of a candidate or voter that this member had confirmed the committed entry `index` of `term`.

    Ignored while a leader is there: either that leader has the entry and says so itself, or the entry is lost already,
    and stopping the group would not bring it back.
    """
    if index and state.remembers and not (state.leader and state.in_lease):
        _fits(state, sender, index, term, from_leader=False)


def _fits(state: State, sender: str, index: int, term: int, *, from_leader: bool) -> bool:
    """Compare this log with an entry that it confirmed according to the leader. Return False if this member stopped."""
    log = state.log
    mine = log.terms.term(index)
    if index < log.terms.base or (mine == term and index <= log.durable):
        return True
    if mine is not None and mine != term and index <= log.commit:
        if from_leader:
            stop(state, sender, index, mine, term)
            return False
        warn_of_conflict(state, sender, index, term)
        return True
    if not state.recovering or state.joining:
        _roll_back(state, sender, index, term)
    elif UNKNOWN != state.held.newest < (index, term):  # the file `raft` was behind
        state.held = Held((index, term))  # perhaps of another log than what was set aside
    return True


def _roll_back(state: State, sender: str, index: int, term: int) -> None:
    """Recover like a member whose log and hard state are lost: term and vote on the disk are old, too.

    In a group of two no majority without this member could confirm the leader, and none is needed: every leader there
    was elected with the vote of the other member, which has not forgotten it.
    """
    state.become_follower(state.term, "" if state.leader == state.me else state.leader)
    state.recovering, state.joining = True, False
    state.forgetful = len(state.log.membership.voters) > 2
    state.nonce = state.random.getrandbits(48)
    state.recover_to, state.recover_asked = None, NEVER
    state.out.rolled_back = RolledBack(sender, state.me, index, term, state.log.durable)


def lost_by(state: State, progress: Mapping[str, Progress], name: str) -> None:
    """Start over with a member that refused an entry which it had acknowledged before it was asked; leaders only."""
    peer = progress[name]
    index = peer.match
    of_members(state, progress)
    peer.match = 0
    if name not in state.warned:
        state.warned.add(name)
        state.out.warnings.append(RolledBack(state.me, name, index, state.log.terms.term(index) or 0, -1))


def warn_of_conflict(state: State, sender: str, index: int, term: int) -> None:
    """Report that `sender` has another committed entry at `index`, of `term`; once, until its node comes back."""
    if sender not in state.warned:
        state.warned.add(sender)
        state.out.warnings.append(Conflict(sender, index, state.log.terms.term(index) or 0, term))


def stop(state: State, sender: str, index: int, mine: int, other: int) -> None:
    """Leave the group: entry `index` is committed here with term `mine`, and the leader's has term `other`.

    State Machine Safety is broken (Raft, figure 3): no entry may be appended to one history as if it were the other.
    """
    state.send(sender, AppendReply(state.term, index, True, match_term=mine))
    state.out.stopped = Conflict(sender, index, mine, other)
    state.retire()
