"""Raft members in memory, for the tests of the core.

Members are real cores; disk and network are lists. Everything is delivered at once and in order, unless a test holds it
back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from lakestream.log.format.frame import Frame, Kind
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import (
    Append,
    Confirmed,
    Envelope,
    HardState,
    Install,
    Membership,
    Message,
    VoteReply,
    decode_envelopes,
    decode_membership,
    encode_envelopes,
    entry_of,
)
from lakestream.raft.core.ready import RaftOptions, Ready, Role
from lakestream.raft.core.terms import TermMap

NAMES = "abcdefg"
ELECTION = 10
OPTIONS = RaftOptions(election_ticks=ELECTION, quiesce_ticks=0)


def entry(index: int, term: int, body: bytes = b"x") -> Frame:
    return Frame(Kind.MESSAGES, term, index, 1, body)


def log_of(*terms: int) -> list[Frame]:
    """Return a log whose first entry has the first of `terms`, and so on."""
    return [entry(index, term, b"%d@%d" % (index, term)) for index, term in enumerate(terms, 1)]


def terms_of(frames: Sequence[Frame], base: int = 0, base_term: int = 0) -> TermMap:
    found = TermMap(base, base_term)
    for frame in frames:
        found.append(frame.index, frame.term)
    return found


class Member:
    """Core with its disk."""

    def __init__(self, name: str, membership: Membership, options: RaftOptions, seed: int) -> None:
        self.name = name
        self.options = options
        self.seed = seed
        self.first_membership = membership
        self.base, self.base_term = 0, 0
        self.log: list[Frame] = []
        """Entries that the core has handed out to be written."""
        self.disk: list[Frame] = []
        self.hard = HardState()
        self.hold = False
        """True if writes wait for `sync`."""
        self.writes: list[tuple[int | None, list[Frame], int]] = []
        self.sends_held = False
        self.held_sends: list[tuple[Core, object]] = []
        self.commit = 0
        self.reads: list[tuple[object, int]] = []
        self.lost_reads: list[object] = []
        self.installs: list[Install] = []
        self.readies: list[Ready] = []
        self.recovered = False
        self.confirmed: Sequence[Confirmed] = ()
        """The others' confirmed entries that it knew at its last start."""
        self.start()

    def start(self, *, recovering: bool = False, forgetful: bool = False, **damage: Any) -> None:
        """Start or restart from what is on disk."""
        self.writes.clear()
        self.held_sends.clear()
        self.log = list(self.disk)
        changes = [(f.index, decode_membership(f.body)) for f in self.log if f.kind is Kind.MEMBERSHIP]
        self.core = Core(
            self.name,
            self.first_membership,
            self.hard,
            terms_of(self.disk, self.base, self.base_term),
            options=self.options,
            random=Random(self.seed),
            changes=changes,
            recovering=recovering,
            forgetful=forgetful,
            confirmed=self.confirmed,
            **damage,
        )
        self.forgetful = forgetful
        self.seed += 1000
        self.commit = self.core.commit
        self.installs.clear()
        self.recovered = not recovering

    def entries(self, first: int, last: int, max_bytes: int) -> list[Frame]:
        found: list[Frame] = []
        for frame in self.log[max(first - self.base - 1, 0) :]:
            if frame.index > last or (found and sum(len(f.body) for f in found) + len(frame.body) > max_bytes):
                break
            found.append(frame)
        assert not found or found[0].index == first
        return found

    def sync(self) -> None:
        """Carry out the writes that were held back."""
        while self.writes:
            after, frames, epoch = self.writes.pop(0)
            if after is not None:
                del self.disk[after - self.base :]
            self.disk.extend(frames)
            if frames:
                assert [f.index for f in self.disk] == list(range(self.base + 1, self.base + 1 + len(self.disk)))
                self.core.persisted(frames[-1].index, epoch)

    def compact(self, index: int) -> None:
        """Drop the entries through `index`."""
        for frame in self.log:
            if frame.index <= index and frame.kind is Kind.MEMBERSHIP:
                self.first_membership = decode_membership(frame.body)
        self.base_term = self.log[index - self.base - 1].term
        del self.log[: index - self.base], self.disk[: index - self.base]
        self.base = index
        self.core.compacted(index)

    def install(self, source: Member, index: int | None = None) -> None:
        """Install the state of `source` as of `index`, by default its commit index."""
        index = source.core.commit if index is None else index
        term = source.core.log.terms.term(index)
        assert term is not None
        membership = source.first_membership
        for frame in source.log:
            if frame.index <= index and frame.kind is Kind.MEMBERSHIP:
                membership = decode_membership(frame.body)
        self.base, self.base_term, self.first_membership = index, term, membership
        self.log, self.disk, self.writes = [], [], []
        self.commit = index
        self.core.installed(index, term, membership)


class Net:
    """Members and the messages in flight between them."""

    def __init__(
        self,
        *voters: str,
        learners: Sequence[str] = (),
        options: RaftOptions = OPTIONS,
        logs: dict[str, list[Frame]] | None = None,
        hard: dict[str, HardState] | None = None,
    ) -> None:
        self.options = options
        membership = Membership(tuple(voters), tuple(learners))
        self.members: dict[str, Member] = {}
        self.queue: list[tuple[str, str, Message]] = []
        self.cuts: set[tuple[str, str]] = set()
        self.drop: Callable[[str, str, Message], bool] = lambda sender, to, message: False
        self.leaders: dict[int, str] = {}
        self.agreed: dict[int, tuple[int, bytes]] = {}
        self.seen: list[tuple[str, str, Message]] = []
        """All delivered messages."""
        for name in membership.members:
            member = self.add(name, membership)
            if logs and name in logs:
                member.disk = list(logs[name])
                last = logs[name][-1].term if logs[name] else 0
                member.hard = HardState(term=last)
            if hard and name in hard:
                member.hard = hard[name]
            if (logs and name in logs) or (hard and name in hard):
                member.start()
                member.core.heard = -1000  # long enough ago to vote at once

    def add(self, name: str, membership: Membership) -> Member:
        self.members[name] = Member(name, membership, self.options, len(self.members) + 1)
        return self.members[name]

    def __getitem__(self, name: str) -> Core:
        return self.members[name].core

    # -- the network ---------------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        for other in self.members:
            self.cuts |= {(name, other), (other, name)}

    def cut(self, one: str, other: str) -> None:
        self.cuts |= {(one, other), (other, one)}

    def heal(self) -> None:
        self.cuts.clear()
        self.drop = lambda sender, to, message: False

    def pump(self, member: Member) -> None:
        """Execute a core's Ready values."""
        core = member.core
        while (ready := core.ready()) is not None:
            member.readies.append(ready)
            if ready.hard is not None:
                assert ready.hard.commit <= len(member.disk) + member.base
                member.hard = ready.hard
            for to, message in ready.messages:
                self.queue.append((member.name, to, message))
            if ready.truncate_after is not None:
                del member.log[ready.truncate_after - member.base :]
            member.log.extend(ready.append)
            if ready.append or ready.truncate_after is not None:
                assert [f.index for f in member.log] == list(range(member.base + 1, core.last_index + 1))
                member.writes.append((ready.truncate_after, ready.append, ready.epoch))
            for send in ready.sends:
                if member.sends_held:
                    member.held_sends.append((core, send))
                    continue
                frames = member.entries(send.first, send.last, send.max_bytes)
                append = core.fill(send, [entry_of(frame) for frame in frames])
                if append is not None:
                    self.queue.append((member.name, send.to, append))
            member.reads.extend(ready.reads)
            member.lost_reads.extend(ready.lost_reads)
            if ready.install is not None:
                member.installs.append(ready.install)
            if ready.recovered:
                member.recovered = True
            if not member.hold:
                member.sync()
            self.check(member)

    def check(self, member: Member) -> None:
        core = member.core
        if core.role is Role.LEADER:
            assert self.leaders.setdefault(core.term, member.name) == member.name, "election safety"
        for index in range(max(member.commit, member.base) + 1, core.commit + 1):
            frame = member.log[index - member.base - 1]
            assert self.agreed.setdefault(index, (frame.term, frame.body)) == (frame.term, frame.body), (
                "state machine safety"
            )
        assert core.commit >= member.commit, "commit went back"
        member.commit = core.commit

    def settle(self) -> None:
        """Deliver everything until nothing is left."""
        for _ in range(100_000):
            for member in self.members.values():
                self.pump(member)
            if not self.queue:
                return
            sender, to, message = self.queue.pop(0)
            self.deliver(sender, to, message)
        raise AssertionError("the members talk without end")

    def deliver(self, sender: str, to: str, message: Message) -> None:
        if (sender, to) in self.cuts or self.drop(sender, to, message) or to not in self.members:
            return
        (envelope,) = decode_envelopes(encode_envelopes([Envelope("g", message)]))
        self.seen.append((sender, to, envelope.message))
        self.members[to].core.step(sender, envelope.message)
        self.pump(self.members[to])

    # -- called by tests -----------------------------------------------------------------------------------------

    def tick(self, ticks: int = 1, only: Sequence[str] = ()) -> None:
        """Let ticks pass; deliver messages in between."""
        for _ in range(ticks):
            for name in only or list(self.members):
                self.members[name].core.tick()
            self.settle()

    def elect(self, name: str) -> None:
        """Make this member the leader."""
        assert self[name].campaign(), f"{name} may not campaign"
        self.settle()
        assert self[name].role is Role.LEADER, f"{name} was not elected"

    def propose(self, name: str, *bodies: bytes, settle: bool = True) -> None:
        core = self[name]
        frames = [entry(core.last_index + at, core.term, body) for at, body in enumerate(bodies, 1)]
        core.propose(frames)
        if settle:
            self.settle()

    def change(self, name: str, *voters: str, learners: Sequence[str] = ()) -> int:
        index = self[name].propose_membership(Membership(tuple(sorted(voters)), tuple(sorted(learners))))
        self.settle()
        return index

    def leader(self) -> str:
        """Tick until there is a leader that every reachable member follows; return it."""
        for _ in range(40 * ELECTION):
            found = [name for name, member in self.members.items() if member.core.role is Role.LEADER]
            newest = max((self[name].term, name) for name in found)[1] if found else ""
            if newest and self[newest].established:
                return newest
            self.tick()
        raise AssertionError("nobody was elected")

    def bodies(self, name: str) -> list[bytes]:
        """Return the committed entries of a member, without the leaders' own."""
        member = self.members[name]
        return [f.body for f in member.log if f.index <= member.core.commit and f.kind is Kind.MESSAGES]

    def sent(self, kind: type, to: str = "", sender: str = "") -> list[Message]:
        return [
            message
            for origin, target, message in self.seen
            if isinstance(message, kind) and to in ("", target) and sender in ("", origin)
        ]


def lone(
    *terms: int,
    me: str = "a",
    voters: str = "abc",
    learners: str = "",
    term: int | None = None,
    vote: str = "",
    commit: int = 0,
    recovering: bool = False,
    options: RaftOptions = OPTIONS,
    seed: int = 1,
    **damage: Any,
) -> Core:
    """Return a core without peers whose log has entries of `terms`, and that has not voted."""
    frames = log_of(*terms)
    core = Core(
        me,
        Membership(tuple(voters), tuple(learners)),
        HardState(max(terms, default=0) if term is None else term, vote, commit),
        terms_of(frames),
        options=options,
        random=Random(seed),
        recovering=recovering,
        **damage,
    )
    core.heard = -1000
    return core


def drain(core: Core, *, persist: bool = True) -> list[tuple[str, Message]]:
    """Return the messages that the core sends; its writes are durable at once unless `persist` is False."""
    found: list[tuple[str, Message]] = []
    while (ready := core.ready()) is not None:
        found.extend(ready.messages)
        if persist and ready.append:
            core.persisted(ready.append[-1].index, ready.epoch)
    return found


def append(term: int, prev: tuple[int, int], *terms: int, commit: int = 0, read: int = 0, body: bytes = b"n") -> Append:
    """Return an Append after the entry `prev` (index, term) with entries of `terms`."""
    entries = [entry_of(entry(index, each, body)) for index, each in enumerate(terms, prev[0] + 1)]
    return Append(term, prev[0], prev[1], commit, entries, read)


def terms_in(core: Core) -> list[int]:
    """Return the terms of the core's log."""
    found = [core.log.terms.term(index) for index in range(core.log.terms.base + 1, core.last_index + 1)]
    return [term for term in found if term is not None]


def make_leader(core: Core) -> None:
    """Let a single core win an election."""
    assert core.campaign()
    voters = core.membership.voters
    for other in voters[1:]:
        core.step(other, VoteReply(core.term + 1, True, True))
        if core.role is Role.CANDIDATE:
            break
    for other in voters[1:]:
        core.step(other, VoteReply(core.term, True))
        if core.role is Role.LEADER:
            break
    assert core.role is Role.LEADER


def make_candidate(core: Core) -> None:
    """Let a single core win a pre-vote."""
    assert core.campaign()
    for other in core.membership.voters[1:]:
        if core.role is Role.PRE_CANDIDATE:
            core.step(other, VoteReply(core.term + 1, True, True))
    assert core.role is Role.CANDIDATE
