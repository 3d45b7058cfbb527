"""Damaged logs without a leader: what their members may do, and how they get back what they had.

Belongs here: the vote of a damaged member, asking the other members for the entries between the end of a cut log and
those behind the damage, answering, and checking entries that others send. The rules, and why they hold, are in
docs/internals/replication.md#damaged-logs.

`State.held` is what a member knows of its log before the damage: the entries through `cut`, those in `frames`, and the
place of the newest one. A leader may have replaced entries behind `cut` since. So that log and the present one are two
logs, and an answer comes from one of them, which must have both ends of what was asked for.

A whole member that is behind damaged voters asks, too (`catch_up`). It may be the only one with a state: that of a
member whose checkpoint is damaged, and whose first entries have left the log for the lake, has to come from a leader.
"""

# Why a member may append entries that no leader sent it, behind the end of its log: Raft's proof needs of a log that it
# is the beginning of the log of some leader (Log Matching), and that it keeps what its member acknowledged. The answer
# comes from a log with both ends: the last entry here, and one that the other member had. So this log becomes the
# beginning of that one; nothing is cut, no commit index moves, and no vote is given. It votes and campaigns afterwards
# as a member that had got these entries in time from the leader that wrote them. Entries that were never committed come
# back like that, too: their publishers had no answer.

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.log.format.frame import UNKNOWN, Frame, Held, Kind
from lakestream.raft.core.messages import LogEntry, Recover, RecoverTo, Vote, decode_membership, entry_of, frame_of
from lakestream.raft.core.ready import BadMessage, Role, SendEntries
from lakestream.raft.core.state import State

IN_VAIN = 3
"""Number of questions behind which a gap that is still there is reported."""


def may_vote(state: State, message: Vote) -> bool:
    """Return True unless this log was damaged and may have had more than the candidate's log."""
    index, term = state.held.newest
    safe = state.joining or not state.recovering
    return safe or (term > 0 and (message.last_term, message.last_index) >= (term, index))


def lacking(state: State, message: Vote) -> tuple[int, int]:
    """Return index and term of the newest entry that this damaged log had, if the candidate lacks it, or UNKNOWN."""
    return UNKNOWN if may_vote(state, message) else state.held.newest


def is_whole(state: State) -> bool:
    """Return True if a damaged log has everything again that it had: by Log Matching its last entry proves that."""
    index, term = state.held.newest
    return 0 < index <= state.log.durable and state.log.terms.term(index) == term


def end(state: State) -> None:
    """End recovery: this member may be elected."""
    state.recovering = False
    state.recover_to, state.held = None, Held()
    state.out.recovered = True


def go_on(state: State) -> None:
    """Append entries that were set aside, or ask all members for those before them. A leader sends the rest itself.

    Any entry behind the gap proves what was in it. The next one is in most logs; but it may be damaged in the log that
    has the rest, so the next questions name others, further and further behind it.
    """
    log, held = state.log, state.held
    if held.newest[0] <= log.last or not state.recovering or state.leader or log.durable < log.last:
        return
    if _append_own(state):
        return
    known = [index for index in sorted({*held.frames, held.newest[0]}) if index > log.last]
    step = (1 << state.in_vain % (len(known).bit_length() + 1)) >> 1  # 0, 1, 2, 4 … and again
    index = known[min(step, len(known) - 1)]
    state.in_vain += 1
    if state.in_vain == IN_VAIN:
        state.out.missing = (log.last + 1, max(known[0] - (known[0] in held.frames), log.last + 1))
    _ask(state, index, _held_term(state, index) or 0)


def _ask(state: State, index: int, term: int) -> None:
    """Ask all members for the entries between the end of this log and entry `index` of `term`."""
    ends = (state.log.last, state.log.terms.last_term, index, term)
    for name in state.log.membership.members:
        if name != state.me:
            state.send(name, Recover(state.term, state.nonce, False, *ends))


def catch_up(state: State, had: tuple[int, int]) -> None:
    """Ask for what a damaged voter had, given by its newest entry, and this whole log lacks.

    A candidate does not: its voters know the end of its log.
    """
    index, term = had
    whole = not state.recovering and not state.leader and state.role is not Role.CANDIDATE
    if whole and state.log.durable == state.log.last < index and term <= state.term:
        state.missed = had
        _ask(state, index, term)


def _append_own(state: State, *, linked: bool = False) -> bool:
    """Append entries that were set aside, if the log is the one that they follow; return True if there were any.

    `linked`: the last entry is known to be the one before them; else it has to be one of the log that this member had.
    """
    log, own, run, room = state.log, state.held.frames, list[Frame](), state.options.max_append_bytes
    if linked or _held_term(state, log.last) == log.terms.last_term:
        while room > 0 and (frame := own.get(log.last + 1 + len(run))) is not None:
            run.append(frame)
            room -= len(frame.body)
    log.append(run)
    return bool(run)


def on_ask(state: State, sender: str, message: Recover) -> None:
    """Answer a damaged member, if one log here has both ends of what it asks for, or is known to be a part of such a
    log."""
    log, own, room = state.log, state.held.frames, state.options.max_append_bytes
    ends = ((message.last, message.last_term), (message.held, message.held_term))
    if all(log.terms.term(index) == term for index, term in ends):
        through = message.held
    elif all(_held_term(state, index) == term for index, term in ends):
        through = state.held.cut[0]
    elif log.terms.term(message.last) == message.last_term:
        # An entry before the second end, of its term: the leader of that term had both in its log.
        through, term = log.terms.newest(message.held, message.held_term)
        if term != message.held_term or through <= message.last:
            return
    else:
        return
    if message.last < through:
        send = SendEntries(sender, message.last + 1, min(message.held, through), room, message.last_term)
        state.offers[sender] = (send, message)
        state.out.sends.append(send)
        return
    entries = list[LogEntry]()
    while room > 0 and (index := message.last + 1 + len(entries)) <= message.held and index in own:
        entries.append(entry_of(own[index]))
        room -= len(entries[-1].body)
    state.send(sender, RecoverTo(state.term, message.nonce, 0, message, entries))


def _held_term(state: State, index: int) -> int | None:
    """Return the term of an entry of the log that this member had; None if it is not known."""
    held, terms = state.held, state.log.terms
    if index <= held.cut[0]:
        return terms.term(index) if terms.term(held.cut[0]) == held.cut[1] else None
    if index in held.frames:
        return held.frames[index].term
    return held.newest[1] if index == held.newest[0] else None


def on_answer(state: State, message: RecoverTo, asked: Recover) -> None:
    """Append entries that a member sent, then those set aside that follow them. Raise BadMessage."""
    log = state.log
    if state.leader or message.nonce != state.nonce:
        return
    if state.recovering:
        known = _held_term(state, asked.held) == asked.held_term
    else:
        known = (asked.held, asked.held_term) == state.missed and state.role is not Role.CANDIDATE
    if not known or (asked.last, asked.last_term) != (log.last, log.terms.last_term):
        return  # late: the log is another one by now
    log.append(frames_behind(asked.last, asked.last_term, message.entries[: asked.held - asked.last], asked.held_term))
    if state.recovering and (_append_own(state, linked=True) or message.entries):
        state.in_vain = 0


def frames_behind(index: int, term: int, entries: Sequence[LogEntry], newest_term: int) -> list[Frame]:
    """Return entries that follow entry `index` of `term` as frames. Raise BadMessage before anything is changed."""
    frames = []
    try:
        for entry in entries:
            index += 1
            if entry.index != index or not term <= entry.term <= newest_term:
                raise BadMessage(f"entry {entry.index} of term {entry.term} where entry {index} belongs")
            term = entry.term
            frames.append(frame_of(entry))
            if entry.kind == Kind.MEMBERSHIP:
                decode_membership(entry.body)
    except (ValueError, msgspec.DecodeError) as error:
        raise BadMessage(f"entry {index} cannot be understood: {error}") from error
    return frames
