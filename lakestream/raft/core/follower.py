"""Handling of the leader's messages.

Belongs here: log matching (Raft §5.3), acknowledgement, installation of states (§7), quiescence, and recovery of a
member with a damaged log.
"""

from __future__ import annotations

from lakestream.log.format.frame import Frame
from lakestream.raft.core import confirmed, restore
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Install,
    InstallReply,
    Quiesce,
    Recover,
    RecoverTo,
)
from lakestream.raft.core.ready import BadMessage, Role
from lakestream.raft.core.state import State
from lakestream.raft.core.terms import term_in


def _lead_by(state: State, sender: str) -> None:
    """Follow `sender`, which leads in this term."""
    if state.leader == sender:
        state.note_contact()
        return
    if state.leader:
        raise BadMessage(f"{sender} and {state.leader} both lead in term {state.term}")
    state.become_follower(state.term, sender)
    state.note_contact()


def on_append(state: State, sender: str, message: Append) -> None:
    """Handle entries, a probe or a heartbeat from the leader of this term."""
    if state.leader == sender and state.role is Role.FOLLOWER:
        state.elapsed = 0
        state.heard = state.now
    else:
        _lead_by(state, sender)
    if message.confirmed and not confirmed.learn(state, sender, message.confirmed):
        return
    if state.recovering:
        _ask_where_to(state)
        if state.forgetful:
            return  # send no reply: a former leader must not count it as a follower
    if message.commit > state.heard_commit:
        state.heard_commit = message.commit
    if state.installing is not None:
        # The log is about to be replaced: append and acknowledge nothing.
        _acknowledge(state, message.read)
        return
    log, prev = state.log, message.prev_index
    mine = log.terms.term_once(prev)
    if mine != message.prev_term and prev <= log.commit:
        if mine is not None:
            confirmed.stop(state, sender, prev, mine, message.prev_term)
            return
    elif mine != message.prev_term:
        hint_index, hint_term = log.terms.newest(prev, message.prev_term)
        state.send(sender, AppendReply(state.term, prev, True, hint_index, hint_term, message.read))
        return
    entries = message.entries
    last = prev + len(entries)
    if entries:
        frames = restore.frames_behind(prev, message.prev_term, entries, message.term)
        if frames[0].index <= log.commit and not _agrees(state, sender, frames):
            return
        _append(state, frames)
    if last > state.matched:
        state.matched = last
    commit = min(message.commit, last)
    if commit > log.commit:
        log.commit_to(commit)
    if message.read or (entries and state.matched <= log.durable):
        _acknowledge(state, message.read)
    if state.recovering:
        _check_recovered(state)


def _acknowledge(state: State, read: int = 0) -> None:
    """Send the leader the index through which this log is durable and agrees with its own.

    Committed entries agree by Leader Completeness, which a rolled-back disk can break: so the term is sent too.
    """
    match = state.acked = state.durable_match()
    term = state.log.terms.term_once(match) or 0
    state.send(state.leader, AppendReply(state.term, match, read=read, match_term=term))


def _agrees(state: State, sender: str, frames: list[Frame]) -> bool:
    """Return True if these entries are the ones that are committed here; otherwise stop this member."""
    log = state.log
    for frame in frames:
        mine = log.terms.term(frame.index)
        if frame.index <= log.commit and mine is not None and mine != frame.term:
            confirmed.stop(state, sender, frame.index, mine, frame.term)
            return False
    return True


def _append(state: State, frames: list[Frame]) -> None:
    """Append new entries; cut a conflicting one with all that follow it; keep those that are there (Raft §5.3).

    A late Append must not cut what a newer one brought: only a conflict cuts. Raise BadMessage, before anything is
    changed, if the leader of this term had sent another entry.
    """
    log = state.log
    if frames[0].index == log.last + 1:
        log.append(frames)
        return
    for at, frame in enumerate(frames):
        if frame.index <= log.commit:
            continue
        mine = log.terms.term(frame.index)
        if mine == frame.term:
            continue
        if mine is not None:
            if frame.index <= state.matched:
                raise BadMessage(f"entry {frame.index} of term {frame.term}: the leader's log had another in this term")
            log.cut(frame.index - 1)
        log.append(frames[at:])
        return


def persisted(state: State) -> None:
    """Tell the leader that more is durable here, once for all Appends that were written together."""
    if state.leader and state.leader != state.me and state.durable_match() > state.acked:
        _acknowledge(state)
    if state.recovering:
        _check_recovered(state)
        restore.go_on(state)
    elif state.missed[0] > state.log.last:
        restore.catch_up(state, state.missed)


def on_quiesce(state: State, sender: str, message: Quiesce) -> None:
    """Stop the clock if this log equals the leader's; otherwise answer, which wakes the leader."""
    _lead_by(state, sender)
    if state.forgetful:
        return
    if message.confirmed and not confirmed.learn(state, sender, message.confirmed):
        return
    if message.index > state.heard_commit:
        state.heard_commit = message.index
    log = state.log
    mine = log.terms.term(message.index)
    if message.index <= log.commit and mine is not None and mine != message.last_term:
        confirmed.stop(state, sender, message.index, mine, message.last_term)
        return
    same = log.last == message.index and log.terms.last_term == message.last_term
    if not same or log.durable < message.index or state.recovering or state.installing is not None:
        hint_index, hint_term = log.terms.newest(message.index, message.last_term)
        state.send(sender, AppendReply(state.term, message.index, True, hint_index, hint_term))
        return
    state.matched = message.index
    if message.index > log.commit:
        log.commit_to(message.index)
    # Only the liveness of its node shows a quiescent leader: do not quiesce for one whose node is down.
    state.quiescent = sender not in state.down


# -- states --------------------------------------------------------------------------------------------------------


def on_install(state: State, sender: str, message: Install) -> None:
    """Accept or refuse an Install: the leader no longer has the entries for this member (Raft §7)."""
    _lead_by(state, sender)
    if state.installing is not None or state.forgetful:
        return
    log = state.log
    if message.index > log.commit and log.terms.term(message.index) == message.last_term:
        # The entries are here, but not known to be committed.
        log.commit_to(message.index)
        state.matched = max(state.matched, message.index)
    if message.index <= log.commit:
        mine = log.terms.term_once(message.index)
        if mine is not None and mine != message.last_term:
            confirmed.stop(state, sender, message.index, mine, message.last_term)
            return
        have = min(log.commit, log.durable)
        if message.index <= have:
            state.send(sender, InstallReply(state.term, have, True, log.terms.term_once(have) or 0))
        return
    mine = log.terms.term(log.commit) or 0
    other = term_in((*message.past, (message.index, message.last_term)), log.commit)
    if other is None and mine > message.last_term:
        other = message.last_term  # or less: terms never fall
    if other is not None and log.commit > 0 and other != mine:
        confirmed.stop(state, sender, log.commit, mine, other)
        return
    state.installing = message
    state.out.install = message
    state.out.install_from = sender


def installed(state: State, ok: bool) -> None:
    """Answer the leader at the end of an install."""
    message = state.installing
    assert message is not None, "nothing was to be installed"
    state.installing = None
    if state.leader and state.leader != state.me:
        index = state.log.commit if ok else message.index
        state.send(state.leader, InstallReply(state.term, index, ok, state.log.terms.term_once(index) or 0))
    if state.recovering:
        _check_recovered(state)


# -- damaged logs --------------------------------------------------------------------------------------------------


def _ask_where_to(state: State) -> None:
    """Send Recover once a tick, until the leader of this term answered.

    Its last index is asked for, not taken from an Append: an Append may have left before this member acknowledged its
    last entry and was restarted. The nonce tells that the answer is not such an old one.
    """
    if state.recover_to is None and state.recover_asked < state.now:
        state.recover_asked = state.now
        state.send(state.leader, Recover(state.term, state.nonce, state.forgetful))


def on_recover_to(state: State, sender: str, message: RecoverTo) -> None:
    """Take the index through which the log must be refilled, from the leader of this term."""
    if state.recovering and sender == state.leader and message.nonce == state.nonce:
        state.recover_to = message.index
        if state.forgetful:
            # A majority without this member was in this term after it asked, so it promised nothing in a newer term; in
            # this term it may have voted, and votes for no other candidate.
            state.forgetful = False
            state.vote = state.vote or sender
        _check_recovered(state)


def _check_recovered(state: State) -> None:
    """End recovery once the log holds everything that this member acknowledged and that was committed.

    It was acknowledged to a leader of this term, which is the one that answered, or of an older one, and then the
    leaders since were elected without this member's vote, or with one for a log as long as its own had been, from
    members that have what was committed. A log that has everything again that it had needs no leader's word.
    """
    if restore.is_whole(state) or (state.recover_to is not None and state.durable_match() >= state.recover_to):
        restore.end(state)
