"""Leader election.

Belongs here: campaigns and votes (Raft §5.2, §5.4.1), pre-votes (thesis §9.6), and the campaign that a leader asks for
(§3.10).
"""

from __future__ import annotations

from lakestream.raft.core import confirmed, restore
from lakestream.raft.core.leader import Leader
from lakestream.raft.core.messages import TimeoutNow, Vote, VoteReply
from lakestream.raft.core.ready import Role
from lakestream.raft.core.state import NEVER, State


def campaign(state: State, *, pre: bool, transfer: bool = False) -> None:
    """Start an election, or a pre-vote if `pre`. Invariant: the member is promotable."""
    assert state.promotable, f"{state.me} may not become leader"
    assert state.leading is None, f"{state.me} leads already"
    if not pre:
        state.set_term(state.term + 1)
        state.vote = state.me
    state.role = Role.PRE_CANDIDATE if pre else Role.CANDIDATE
    state.leader = ""
    state.votes = {state.me: True}
    state.transfer_vote = transfer
    state.reset_clock()
    if not _decide(state):
        ask(state)


def ask(state: State) -> None:
    """Send the vote request to every voter that did not answer yet."""
    pre = state.role is Role.PRE_CANDIDATE
    log = state.log
    for voter in log.membership.voters:
        if voter not in state.votes:
            index, term = confirmed.known_of(state, voter)
            vote = Vote(
                term=state.term + 1 if pre else state.term,
                last_index=log.last,
                last_term=log.terms.last_term,
                pre=pre,
                transfer=state.transfer_vote,
                confirmed_index=index,
                confirmed_term=term,
            )
            state.send(voter, vote)


def _report_lost_leader(state: State) -> None:
    """Report to the voters that a member which may not campaign, such as a learner, has lost its leader.

    A quiescent leader then sends a heartbeat, or a quiescent voter begins to wait for the leader itself. The message is
    a pre-vote request with a log that no member votes for.
    """
    state.become_follower(state.term, "")
    state.reset_clock()
    membership = state.log.membership
    if state.me in membership.members:
        for voter in membership.voters:
            if voter != state.me:
                state.send(voter, Vote(state.term + 1, 0, 0, True))
        restore.go_on(state)


def _decide(state: State) -> bool:
    """End the campaign if its outcome is known; return True if it ended or the pre-vote became a vote."""
    membership = state.log.membership
    answers = [state.votes[voter] for voter in membership.voters if voter in state.votes]
    granted = sum(answers)
    if granted >= membership.quorum:
        if state.role is Role.PRE_CANDIDATE:
            campaign(state, pre=False)
        else:
            Leader(state)
        return True
    if len(membership.voters) - (len(answers) - granted) < membership.quorum:
        state.become_follower(state.term, "")
        return True
    return False


def on_vote(state: State, sender: str, message: Vote) -> None:
    """Answer a candidate."""
    confirmed.on_claim(state, sender, message.confirmed_index, message.confirmed_term)
    index, term = confirmed.known_of(state, sender)
    eligible = restore.may_vote(state, message) and state.log.up_to_date(message.last_index, message.last_term)
    eligible = eligible and message.last_index >= index  # else its disk was rolled back, and the reply says so
    if message.pre:
        # The reply to a pre-vote changes neither term nor vote.
        granted = eligible and message.term > state.term and not state.in_lease
        had = restore.lacking(state, message)
        state.send(sender, VoteReply(message.term if granted else state.term, granted, True, index, term, *had))
        return
    if message.term < state.term:
        state.send(sender, VoteReply(state.term, False, False, index, term))
        return
    if message.term > state.term:
        if state.in_lease and not message.transfer:
            return  # ignore the term too: a member that the leader does not reach must not depose it (thesis §4.2.3)
        if message.transfer:
            state.heard = NEVER  # the leader gave up its lease
        state.become_follower(message.term, "")
    granted = eligible and state.vote in ("", sender) and state.leader == ""
    if granted:
        state.vote = sender
        state.reset_clock()
    state.send(sender, VoteReply(state.term, granted, False, index, term))


def on_vote_reply(state: State, sender: str, message: VoteReply) -> None:
    """Count a reply that is not of an older term; the caller has adopted a newer term, except of granted pre-votes."""
    confirmed.on_claim(state, sender, message.confirmed_index, message.confirmed_term)
    if message.pre:
        # A refusal carries the voter's term, a grant the requested term.
        wanted = state.role is Role.PRE_CANDIDATE and message.term == state.term + message.granted
    else:
        wanted = state.role is Role.CANDIDATE and message.term == state.term
    if wanted:
        restore.catch_up(state, (message.had_index, message.had_term))
        state.votes[sender] = message.granted
        _decide(state)


def on_timeout_now(state: State, sender: str, message: TimeoutNow) -> None:
    """Campaign because the leader transfers leadership, without a pre-vote, which its followers would refuse."""
    if state.leader == sender and state.role is Role.FOLLOWER and state.promotable:
        campaign(state, pre=False, transfer=True)


def tick(state: State) -> bool:
    """Advance the election clock of a follower or candidate; return True if that had an effect."""
    state.elapsed += 1
    if state.elapsed >= state.timeout:
        if state.promotable:
            campaign(state, pre=True)
        else:
            _report_lost_leader(state)
    elif state.role is not Role.FOLLOWER:
        ask(state)  # a lost request then costs a tick, not an election timeout
    else:
        return False
    return True
