"""Tests of the meta group's state: assignments, and the conditions for a node to release a stream."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from lakestream.meta import assignments as meta_state
from lakestream.meta.assignments import (
    AbandonStream,
    Applied,
    AssignStream,
    ChangeStream,
    MetaOp,
    MetaState,
    RemoveStream,
    RestoredStream,
    SettleStream,
    decode_op,
    encode_op,
)

pytestmark = pytest.mark.unit

ORDERS = AssignStream("u1", "$G", "ORDERS", b"{}", ("a", "b", "c"), 5)


def apply(state: MetaState, op: MetaOp) -> Applied:
    """Apply an operation; most tests do not depend on the entry's index."""
    return state.apply(op, 7)


def _with_orders() -> MetaState:
    state = MetaState()
    apply(state, ORDERS)
    return state


def test_an_assigned_stream_is_found_by_name_and_by_uid() -> None:
    state = _with_orders()
    found = state.find("$G", "ORDERS")
    assert found is not None
    assert found is state.by_uid["u1"]
    assert (found.peers, found.settled, found.holders, found.moving) == (("a", "b", "c"),) * 3 + (False,)


def test_a_name_is_given_once() -> None:
    state = _with_orders()
    applied = apply(state, replace(ORDERS, uid="u2"))
    assert applied.refused
    assert applied.after is None
    assert list(state.by_uid) == ["u1"]


def test_names_of_two_accounts_do_not_meet() -> None:
    state = _with_orders()
    assert apply(state, replace(ORDERS, uid="u2", account="A")).after is not None


def test_a_removed_stream_does_not_come_back_under_its_uid() -> None:
    state = _with_orders()
    removed = apply(state, RemoveStream("u1"))
    assert removed.before is not None
    assert removed.after is None
    assert state.removed("u1")
    assert state.find("$G", "ORDERS") is None
    assert apply(state, ORDERS).refused
    assert apply(state, replace(ORDERS, uid="u2")).after is not None


def test_a_stream_on_the_move_is_held_by_old_and_new_nodes_until_it_has_settled() -> None:
    state = _with_orders()
    apply(state, ChangeStream("u1", b"{}", ("a", "b", "d")))
    moving = state.by_uid["u1"]
    assert moving.moving
    assert moving.holders == ("a", "b", "c", "d")
    assert moving.settled == ("a", "b", "c")
    apply(state, ChangeStream("u1", b"{}", ("a", "b", "e")))
    assert state.by_uid["u1"].holders == ("a", "b", "c", "d", "e")
    assert apply(state, SettleStream("u1", ("a", "b", "d"))).refused  # no longer wanted
    apply(state, SettleStream("u1", ("e", "b", "a")))
    settled = state.by_uid["u1"]
    assert not settled.moving
    assert settled.holders == settled.settled == ("a", "b", "e")


def test_a_stream_that_grows_is_on_the_move_until_its_group_says_that_all_are_in_it() -> None:
    state = _with_orders()
    apply(state, ChangeStream("u1", b"{}", ("a", "b", "c", "d")))
    assert state.by_uid["u1"].moving
    apply(state, SettleStream("u1", ("a", "b", "c", "d")))
    assert not state.by_uid["u1"].moving


@pytest.mark.parametrize("op", [ChangeStream("u9", b"", ()), SettleStream("u9", ()), RemoveStream("u9")])
def test_an_entry_about_an_unknown_stream_changes_nothing(op: MetaOp) -> None:
    state = _with_orders()
    before = state.dump()
    assert apply(state, op).refused
    assert state.dump() == before


def test_only_the_newest_tombstones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_state, "MAX_TOMBSTONES", 2)
    state = MetaState()
    for number in range(3):
        apply(state, AssignStream(f"u{number}", "$G", "S", b"", ("a",), 0))
        apply(state, RemoveStream(f"u{number}"))
    assert list(state.tombstones) == ["u1", "u2"]


def test_a_snapshot_brings_back_the_same_state_and_the_same_bytes() -> None:
    state = _with_orders()
    apply(state, AssignStream("u2", "$G", "A", b"{}", ("b",), 1))
    apply(state, RemoveStream("u2"))
    apply(state, ChangeStream("u1", b'{"x":1}', ("a",)))
    loaded = MetaState.load(state.dump())
    assert loaded.dump() == state.dump()
    assert loaded.by_uid == state.by_uid
    assert loaded.streams == state.streams
    assert loaded.removed("u2")


@pytest.mark.parametrize("op", [ORDERS, ChangeStream("u", b"c", ("x",)), SettleStream("u", ("x",)), RemoveStream("u")])
def test_entries_survive_their_encoding(op: MetaOp) -> None:
    assert decode_op(encode_op(op)) == op


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_anywhere_gives_the_state_that_the_whole_log_gives(seed: int) -> None:
    chance = random.Random(seed)
    names, nodes = ["A", "B", "C"], ["a", "b", "c", "d", "e"]
    ops: list[MetaOp] = []
    for number in range(60):
        uid = f"u{chance.randrange(number + 1)}"
        peers = tuple(chance.sample(nodes, chance.randint(1, 3)))
        ops.append(
            chance.choice(
                [
                    AssignStream(f"u{number}", "$G", chance.choice(names), b"%d" % number, peers, number),
                    ChangeStream(uid, b"%d" % number, peers),
                    SettleStream(uid, peers),
                    RemoveStream(uid),
                ]
            )
        )
    whole, cut = MetaState(), MetaState()
    at = chance.randrange(len(ops))
    for position, op in enumerate(ops):
        if position == at:
            cut = MetaState.load(cut.dump())
        assert apply(whole, op) == apply(cut, op)
    assert whole.dump() == cut.dump()
    # Invariant: the holders of a stream include all that shall hold it, or did when its group last settled.
    assert all({*each.peers, *each.settled} <= set(each.holders) for each in whole.by_uid.values())


def test_a_restored_stream_is_restored_once_and_for_good() -> None:
    state = MetaState()
    applied = apply(state, replace(ORDERS, restoring="a"))
    assert applied.after is not None
    assert applied.after.restoring == "a"
    assert MetaState.load(state.dump()).by_uid["u1"].restoring == "a"
    applied = apply(state, RestoredStream("u1"))
    assert applied.after is not None
    assert applied.after.restoring == ""
    assert apply(state, AbandonStream("u1")).refused == "the stream is restored"
    assert state.find("$G", "ORDERS") is not None
    assert apply(state, RestoredStream("u2")).refused


def test_a_restore_that_is_abandoned_leaves_nothing() -> None:
    state = MetaState()
    apply(state, replace(ORDERS, restoring="a"))
    applied = apply(state, AbandonStream("u1"))
    assert applied.before is not None
    assert applied.after is None
    assert state.find("$G", "ORDERS") is None
    assert state.removed("u1")
    assert apply(state, RestoredStream("u1")).refused
    assert apply(state, AbandonStream("u1")).refused


@pytest.mark.parametrize("op", [RestoredStream("u1"), AbandonStream("u1"), replace(ORDERS, restoring="a")])
def test_entries_of_restores_are_read_as_they_were_written(op: MetaOp) -> None:
    assert decode_op(encode_op(op)) == op
