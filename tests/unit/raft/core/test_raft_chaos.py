"""Random tests of Raft's guarantees under any order of events.

Messages are lost, repeated and reordered, writes end late or never; with crashes, damaged logs, membership changes,
leadership transfers and compaction.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.log.format.frame import Kind
from lakestream.raft.core.messages import Append, HardState, Membership, decode_membership, entry_of
from lakestream.raft.core.ready import ChangePending, RaftOptions, Role, Transferring
from tests.unit.raft_net import Member, Net, entry

pytestmark = pytest.mark.unit

NAMES = ("a", "b", "c", "d")
MAX_POOL = 60


class Chaos(Net):
    """Net in which every step is a random choice."""

    def __init__(self, voters: int, *, skew: bool, quiesce: bool, seed: int) -> None:
        options = RaftOptions(
            election_ticks=5,
            max_inflight=3,
            max_inflight_bytes=40,
            max_append_bytes=12,
            max_uncommitted_bytes=200,
            quiesce_ticks=3 if quiesce else 0,
            transfer_ticks=4,
            install_ticks=6,
            eager_commit=bool(seed % 2),
        )
        super().__init__(*NAMES[:voters], options=options)
        self.first_voters = voters
        self.skew = skew
        self.proposed = 0
        self.calm_phase = False
        """True while nothing is proposed."""
        self.reads_asked: dict[int, int] = {}
        for at, member in enumerate(self.members.values()):
            member.hold = True
            member.seed = seed * 10 + at
            member.start()

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self, member: Member) -> None:
        led = dict(self.leaders)
        super().check(member)
        core = member.core
        if core.role is Role.LEADER and core.term not in led:
            self.check_completeness(member)
        assert core.log.terms.base <= core.commit <= core.last_index
        assert core.durable_index <= member.base + len(member.disk)
        for context, index in member.reads:
            assert index >= self.reads_asked[context], "a stale read"  # type: ignore[index]
        member.reads.clear()

    def check_completeness(self, member: Member) -> None:
        held = {frame.index: (frame.term, frame.body) for frame in member.log}
        for index, agreed in self.agreed.items():
            assert index <= member.base or held.get(index) == agreed, f"leader completeness: {index}"

    def check_logs(self) -> None:
        """Assert log matching: equal index and term imply equal entries up to there."""
        whole = [{f.index: (f.term, f.body) for f in member.log} for member in self.members.values()]
        for one in whole:
            for other in whole:
                same = [index for index in one.keys() & other.keys() if one[index][0] == other[index][0]]
                if same:
                    for index in one.keys() & other.keys():
                        assert index > max(same) or one[index] == other[index], "log matching"

    def memberships(self) -> list[Membership]:
        """Return the memberships that a member may follow, now or after a message.

        Two damaged logs of three can be too many.
        """
        found = [one for member in self.members.values() for _, one in member.core.log.memberships if one.voters]
        for _, _, message in self.queue:
            if isinstance(message, Append):
                found += [decode_membership(each.body) for each in message.entries if each.kind == Kind.MEMBERSHIP]
        return found

    @property
    def all_recovered(self) -> bool:
        return all(member.recovered for member in self.members.values())

    # -- steps ---------------------------------------------------------------------------------------------------

    def act(self, what: int, pick: int) -> None:
        member = list(self.members.values())[pick % len(self.members)]
        core = member.core
        if what < 45:
            self.carry(what, pick)
        elif what < 56:
            for other in self.members.values():
                if not self.skew or other is member:
                    other.core.tick()
        elif what < 70:
            self.write(member, pick // 7)
        elif what < 80:
            self.offer(member)
        elif what < 81:
            self.crash(member, damage=pick // 7 % 4 == 0, keep=pick // 28)
        elif what < 83:
            self.reconfigure(member, pick // 7)
        elif what == 83 and core.role is Role.LEADER and pick % 3 == 0:
            core.transfer(core.membership.voters[pick // 7 % len(core.membership.voters)])
        elif what < 86:
            self.compact(member)
        elif what < 90:
            self.take_install(member, ok=pick // 7 % 4 != 0)
        elif what == 90:
            if pick // 7 % 2:
                self.isolate(member.name)
            else:
                self.cuts.clear()
        elif what == 91:
            self.calm_phase = pick // 7 % 2 == 0
        elif what < 96 and core.role is Role.LEADER:
            self.reads_asked[len(self.reads_asked)] = max(self.agreed, default=0)
            core.read(len(self.reads_asked) - 1)
        elif what == 96 and core.role is Role.LEADER and pick % 5 == 0:
            core.step_down()
        elif what == 97 and pick % 4 == 0:
            core.node_up(NAMES[pick // 7 % 4])
        elif what == 98 and pick % 4 == 0:
            core.unreachable(NAMES[pick // 7 % 4])
        elif what == 99 and pick % 4 == 0:
            core.node_down(NAMES[pick // 7 % 4])
            core.node_up(NAMES[pick // 7 % 4])
        for other in self.members.values():
            self.pump_lazily(other)

    def carry(self, what: int, pick: int) -> None:
        if not self.queue:
            return
        at = pick % len(self.queue) if what >= 25 else 0
        if what < 40:
            for _ in range(1 + pick % 3 if at == 0 else 1):
                if self.queue:
                    self.deliver(*self.queue.pop(at))
        elif what < 42:
            self.queue.pop(at)
        elif len(self.queue) < MAX_POOL:
            self.queue.append(self.queue[at])

    def pump_lazily(self, member: Member) -> None:
        self.pump(member)
        while len(self.queue) > MAX_POOL:
            self.queue.pop(len(self.queue) // 2)

    def write(self, member: Member, some: int) -> None:
        """Carry out one write that was held back, or answer a read of entries."""
        if member.held_sends:
            core, send = member.held_sends.pop(some % len(member.held_sends))
            if core is member.core:
                frames = member.entries(send.first, send.last, send.max_bytes) if send.first > member.base else []
                append = core.fill(send, [entry_of(frame) for frame in frames if frame.index <= send.last])
                if append is not None:
                    self.queue.append((member.name, send.to, append))
        elif member.writes:
            later = member.writes[1:]
            del member.writes[1:]
            member.sync()
            member.writes.extend(later)
        member.sends_held = bool(some % 3)

    def offer(self, member: Member) -> None:
        core = member.core
        if core.role is not Role.LEADER or core.transferring or self.proposed > 300 or self.calm_phase:
            return
        self.proposed += 1
        body = b"%d" % self.proposed
        if core.leading is not None and core.leading.uncommitted_bytes < 150:
            core.propose([entry(core.last_index + 1, core.term, body)])

    def crash(self, member: Member, *, damage: bool, keep: int) -> None:
        if damage and self.all_recovered and all(len(one.voters) >= 3 for one in self.memberships()):
            if keep % 3 == 0:
                member.disk, member.hard, member.base, member.base_term = [], HardState(), 0, 0
                member.first_membership = Membership(NAMES[: self.first_voters])
            else:
                del member.disk[keep % (len(member.disk) + 1) :]
            member.start(recovering=True, forgetful=keep % 3 == 0)
        else:
            member.start(recovering=not member.recovered, forgetful=member.forgetful and not member.recovered)

    def reconfigure(self, member: Member, some: int) -> None:
        core = member.core
        if core.role is not Role.LEADER:
            return
        name, how = NAMES[some % 4], some // 4 % 3
        voters, learners = set(core.membership.voters) - {name}, set(core.membership.learners) - {name}
        if how:
            (voters if how == 1 else learners).add(name)
        if not voters or (len(voters) < 3 and (some % 5 or not self.all_recovered)):
            return
        if name not in self.members:
            added = self.add(name, Membership(()))
            added.hold = True
        with contextlib.suppress(ChangePending, Transferring):
            core.propose_membership(Membership(tuple(sorted(voters)), tuple(sorted(learners))))

    def compact(self, member: Member) -> None:
        index = min(member.core.commit, member.core.durable_index, member.base + len(member.disk))
        if index > member.base + 1 and not member.writes:
            member.compact(index)

    def take_install(self, member: Member, *, ok: bool) -> None:
        core = member.core
        if core.installing is None:
            return
        wanted = member.installs[-1]
        sources = [other for other in self.members.values() if other.core.commit >= wanted.index]
        if ok and sources:
            source = sources[-1]
            member.install(source, wanted.index if wanted.index >= source.base else None)
        else:
            core.install_failed()

    # -- recovery --------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Repair everything; assert that a leader is elected and every member has the committed entries."""
        self.heal()
        for member in self.members.values():
            member.hold = False
            member.sends_held = False
        for _ in range(60 * self.options.election_ticks):
            for member in self.members.values():
                while member.held_sends or member.writes:
                    self.write(member, 0)
                if member.core.installing is not None:
                    self.take_install(member, ok=True)
            self.tick()
            leader = max(self.members.values(), key=lambda m: (m.core.role is Role.LEADER, m.core.term)).core
            if leader.role is Role.LEADER and leader.established and not leader.transferring:
                if leader.log.change_pending:
                    continue
                if all(
                    self[name].commit == leader.last_index == self[name].durable_index and self.members[name].recovered
                    for name in leader.membership.members
                ):
                    break
        else:
            raise AssertionError("no progress although all is well")
        self.check_logs()
        assert leader.commit >= max(self.agreed, default=0), "committed entries are gone"
        for member in self.members.values():
            for frame in member.log:
                if frame.index <= member.core.commit:
                    assert self.agreed[frame.index] == (frame.term, frame.body)


def run(steps: list[tuple[int, int]], voters: int, skew: bool, quiesce: bool, seed: int) -> Chaos:
    chaos = Chaos(voters, skew=skew, quiesce=quiesce, seed=seed)
    for what, pick in steps:
        chaos.act(what, pick)
    chaos.check_logs()
    chaos.calm()
    return chaos


def random_steps(seed: int, count: int) -> list[tuple[int, int]]:
    random = Random(seed)
    return [(random.randrange(100), random.randrange(1 << 16)) for _ in range(count)]


@given(
    steps=st.lists(st.tuples(st.integers(0, 99), st.integers(0, (1 << 16) - 1)), max_size=300),
    voters=st.integers(1, 4),
    skew=st.booleans(),
    quiesce=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_agreed_stays_agreed_whatever_happens(
    steps: list[tuple[int, int]], voters: int, skew: bool, quiesce: bool, seed: int
) -> None:
    run(steps, voters, skew, quiesce, seed)


@pytest.mark.parametrize("seed", range(60))
def test_long_runs_keep_what_is_agreed(seed: int) -> None:
    chaos = run(random_steps(seed, 2500), 1 + seed % 4, skew=seed % 3 == 0, quiesce=seed % 2 == 0, seed=seed)
    assert chaos.leaders
