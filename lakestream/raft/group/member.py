"""A core over what lies on the disk, and how far members are.

Belongs here: what a core is told when a log is opened (terms, memberships, what is committed), and what is read out of
it for people.
"""

from __future__ import annotations

from random import Random

import msgspec

from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import HardState, decode_membership
from lakestream.raft.core.ready import Options, Role
from lakestream.raft.core.terms import TermMap, reaching
from lakestream.raft.group.hard_state import Kept

TICK_NS = 100_000_000
"""What a tick of the core is."""


class MemberProgress(msgspec.Struct, frozen=True):
    """How far a member is, as its leader sees it. `contact_ns`: since it was last heard, in ns; 0 for itself."""

    name: str
    match: int
    learner: bool
    active: bool
    contact_ns: int


def of_a_group_of_one(kept: Kept, log: SegmentLog) -> Kept:
    """What to keep beside a log that had no such file: a new one, or that of a group of one.

    Everything in it is committed then, and its segments end where no entry says so: other members install that state.
    """
    return msgspec.structs.replace(
        kept,
        hard=HardState(log.last_term, "", log.last_index),
        durable=log.last_index,
        base=log.last_index,
        base_term=log.last_term,
    )


def terms_of(log: SegmentLog, kept: Kept) -> TermMap:
    """The terms of the log from its base: before that, others install a state."""
    base, base_term = kept.base, kept.base_term
    runs = log.terms
    if log.first_index > base + 1:  # the first entry is the oldest whose term is known
        base, base_term = (log.first_index, runs[0][1]) if runs else (log.last_index, log.last_term)
    ends = [first for first, _ in runs[1:]] + [log.last_index + 1]
    known = [(max(first, base + 1), term) for (first, term), end in zip(runs, ends, strict=False) if end > base + 1]
    past = tuple(run for run in kept.past if run[0] < base)
    if kept.past_through <= base:
        past = reaching(past, kept.past_through, kept.past_term, base, base_term)
    return TermMap(base, base_term, known, log.last_index, past)


def core_over(
    me: str, log: SegmentLog, kept: Kept, terms: TermMap, handed: int, options: Options, random: Random
) -> Core:
    """A core that goes on where the log ended; everything through `handed` is applied."""
    hard = kept.hard
    changes = [
        (index, decode_membership(body))
        for segment in log.segments
        for index, body in segment.memberships
        if index > kept.membership_index
    ]
    commit = max(handed, min(hard.commit, log.last_index))
    return Core(
        me,
        kept.membership,
        HardState(max(hard.term, log.last_term), hard.vote if hard.term >= log.last_term else "", commit),
        terms,
        options=options,
        random=random,
        changes=changes,
        recovering=kept.recovering,
        forgetful=kept.forgetful,
        joining=kept.joining,
        confirmed=kept.confirmed,
        remembers=log.options.sync_always,
    )


def to_keep(kept: Kept, core: Core, durable: int) -> Kept:
    """What was kept, brought up to date: entries through `durable` are durable."""
    terms = core.log.terms
    return msgspec.structs.replace(
        kept,
        hard=core.hard,
        durable=durable,
        recovering=core.recovering,
        forgetful=core.recovering and kept.forgetful,  # to the end, although the core lets go of it sooner
        joining=core.recovering and kept.joining,
        confirmed=tuple(core.confirmed.values()),
        past=terms.past,
        past_through=terms.base,
        past_term=terms.term(terms.base) or 0,
    )


def progress_of(core: Core, options: Options) -> list[MemberProgress]:
    """How far each member is; empty unless this one leads."""
    if core.role is not Role.LEADER:
        return []
    found = []
    for name in core.membership.members:
        learner = name not in core.membership.voters
        if name == core.me:
            found.append(MemberProgress(name, core.durable_index, learner, True, 0))
            continue
        ticks = core.ticks_since_contact(name)
        active = ticks is not None and ticks < options.election_ticks
        found.append(MemberProgress(name, core.match_of(name), learner, active, (ticks or 0) * TICK_NS))
    return found
