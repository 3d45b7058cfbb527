"""Tests of membership changes in steps: one server at a time, never fewer replicas than before."""

from __future__ import annotations

import itertools

import pytest

from lakestream.meta.scaling import (
    MAX_LAG,
    HandOver,
    ProposeMembership,
    ScalingWait,
    Settled,
    Standing,
    next_step,
)
from lakestream.raft.core.messages import Membership

pytestmark = pytest.mark.unit

GOOD = Standing(there=True, lag=0)


def test_nothing_is_to_be_done_for_the_members_that_are_wanted() -> None:
    assert next_step("a", Membership(("a", "b", "c")), ("c", "a", "b"), {}) == Settled()


def test_a_new_member_learns_before_it_votes() -> None:
    step = next_step("a", Membership(("a",)), ("a", "b", "c"), {})
    assert isinstance(step, ProposeMembership)
    assert step.membership == Membership(("a",), ("b",))


def test_a_learner_that_lags_does_not_vote_but_others_may_begin_to_learn() -> None:
    behind = Standing(there=True, lag=MAX_LAG + 1)
    step = next_step("a", Membership(("a",), ("b",)), ("a", "b", "c"), {"b": behind})
    assert isinstance(step, ProposeMembership)
    assert step.membership == Membership(("a",), ("b", "c"))
    assert next_step("a", Membership(("a",), ("b",)), ("a", "b"), {"b": behind}) == ScalingWait()


def test_a_learner_that_is_away_does_not_vote() -> None:
    assert next_step("a", Membership(("a",), ("b",)), ("a", "b"), {"b": Standing(there=False, lag=0)}) == ScalingWait()


def test_a_learner_that_has_caught_up_votes() -> None:
    step = next_step("a", Membership(("a",), ("b",)), ("a", "b"), {"b": GOOD})
    assert isinstance(step, ProposeMembership)
    assert step.membership == Membership(("a", "b"))


def test_no_member_is_removed_before_all_new_members_vote() -> None:
    now = Membership(("a", "b", "c"), ("d",))
    assert next_step("a", now, ("a", "b", "d"), {"d": Standing(there=True, lag=MAX_LAG + 1)}) == ScalingWait()


def test_those_that_are_away_leave_first() -> None:
    standing = {"b": GOOD, "c": Standing(there=False, lag=9)}
    step = next_step("a", Membership(("a", "b", "c")), ("a",), standing)
    assert isinstance(step, ProposeMembership)
    assert step.membership == Membership(("a", "b"))


def test_a_learner_that_is_no_longer_wanted_leaves() -> None:
    step = next_step("a", Membership(("a",), ("b",)), ("a",), {"b": GOOD})
    assert isinstance(step, ProposeMembership)
    assert step.membership == Membership(("a",))


def test_a_leader_that_shall_leave_hands_over_to_the_first_choice_that_is_there() -> None:
    standing = {"b": Standing(there=False, lag=0), "c": GOOD}
    assert next_step("a", Membership(("a", "b", "c")), ("b", "c"), standing) == HandOver("c")
    assert next_step("a", Membership(("a", "b", "c")), ("b", "c"), {}) == ScalingWait()


NODES = ("a", "b", "c", "d", "e")
SIZES = (1, 2, 3, 5)


@pytest.mark.parametrize("before", [each for n in SIZES for each in itertools.combinations(NODES, n)])
def test_every_way_ends_and_changes_one_voter_at_a_time(before: tuple[str, ...]) -> None:
    standing = dict.fromkeys(NODES, GOOD)
    for wanted in (each for n in SIZES for each in itertools.combinations(NODES, n)):
        now, leader = Membership(before), before[0]
        for _ in range(20):
            step = next_step(leader, now, wanted, {name: standing[name] for name in now.members if name != leader})
            if isinstance(step, Settled):
                break
            if isinstance(step, HandOver):
                assert step.to in now.voters
                leader = step.to
                continue
            assert isinstance(step, ProposeMembership)
            assert len(set(step.membership.voters) ^ set(now.voters)) <= 1
            assert leader in step.membership.voters
            assert len(step.membership.voters) >= min(len(before), len(wanted))
            now = step.membership
        assert set(now.voters) == set(wanted)
        assert not now.learners
