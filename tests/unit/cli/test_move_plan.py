"""Tests of the plan of a move: the next step from what both servers show, what it creates, what stands in the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lakestream_move import plan
from lakestream_move.plan import MARK, Blocked, MoveMark, MoveWay, SeenStream, Side, Stage, Step

ORIGIN = SeenStream(
    config={
        "name": "S",
        "subjects": ["s.>"],
        "num_replicas": 3,
        "placement": {"tags": ["a"]},
        "duplicate_window": 5,
        "max_age": 7,
        "metadata": {"own": "1", "_nats.req.level": "0"},
    },
    created="2026-01-01T00:00:00Z",
    messages=5,
    first_seq=2,
    last_seq=10,
)


def copy(stage: Stage | None, origin: str = ORIGIN.created, **fields: Any) -> SeenStream:
    """Return the stream on the new server; it has everything by default."""
    metadata = {} if stage is None else {MARK: msgspec.json.encode(MoveMark(origin, stage, 10)).decode()}
    state = {"messages": 5, "first_seq": 2, "last_seq": 10, "active_ns": 1} | fields
    return SeenStream(config={"name": "S", "metadata": metadata}, **state)


def step(target: SeenStream | None, way: MoveWay = MoveWay.MIRROR, origin: SeenStream = ORIGIN, **known: Any) -> Step:
    return plan.next_step(way, origin, target, **({"quiet": False, "verified": False} | known))


def test_a_mirror_goes_through_its_steps_in_order() -> None:
    assert step(None) is Step.CREATE
    assert step(copy(Stage.MIRROR, lag=3)) is Step.WAIT
    assert step(copy(Stage.MIRROR, active_ns=-1)) is Step.WAIT
    assert step(copy(Stage.MIRROR, active_ns=plan.FRESH_NS)) is Step.WAIT
    assert step(copy(Stage.MIRROR, last_seq=9, messages=4)) is Step.WAIT
    whole = copy(Stage.MIRROR)
    assert step(whole) is Step.WAIT_PUBLISHERS
    assert step(whole, quiet=True) is Step.VERIFY
    assert step(whole, quiet=True, verified=True) is Step.CUT
    assert step(whole, quiet=False, verified=True) is Step.WAIT_PUBLISHERS
    assert step(copy(Stage.CUT)) is Step.CONSUMERS
    assert step(copy(Stage.DONE)) is Step.DONE


def test_a_mirror_is_whole_where_the_last_messages_were_deleted() -> None:
    assert step(copy(Stage.MIRROR, last_seq=8)) is Step.WAIT_PUBLISHERS


def test_a_queue_goes_through_its_steps_in_order() -> None:
    empty = msgspec.structs.replace(ORIGIN, messages=0)
    assert step(None, MoveWay.SOURCE) is Step.CREATE
    assert step(copy(Stage.QUEUE), MoveWay.SOURCE) is Step.QUEUE_CONSUMERS
    source = copy(Stage.SOURCE)
    assert step(source, MoveWay.SOURCE) is Step.WAIT
    assert step(source, MoveWay.SOURCE, others=1) is Step.TAKE
    # An interest stream must have the source before its consumers go, else its messages are removed.
    assert step(copy(Stage.SOURCE, active_ns=-1), MoveWay.SOURCE, others=1) is Step.WAIT
    assert step(source, MoveWay.SOURCE, empty) is Step.WAIT_PUBLISHERS
    assert step(source, MoveWay.SOURCE, empty, quiet=True) is Step.END_SOURCE
    assert step(copy(Stage.DONE), MoveWay.SOURCE, empty) is Step.DONE


def test_a_backup_goes_through_its_steps_in_order() -> None:
    assert step(None, MoveWay.BACKUP) is Step.WAIT_PUBLISHERS
    assert step(None, MoveWay.BACKUP, quiet=True) is Step.BACKUP
    restored = copy(Stage.RESTORED)
    assert step(restored, MoveWay.BACKUP, quiet=True) is Step.DISCARD
    assert step(restored, MoveWay.BACKUP, quiet=True, restored=True) is Step.VERIFY
    assert step(restored, MoveWay.BACKUP, quiet=True, restored=True, verified=True) is Step.CONFIRM
    later = msgspec.structs.replace(ORIGIN, last_seq=11)
    assert step(restored, MoveWay.BACKUP, later, quiet=True, restored=True, verified=True) is Step.DISCARD


@pytest.mark.parametrize("target", [copy(None), copy(Stage.MIRROR, origin="2025-01-01T00:00:00Z")])
def test_another_stream_of_that_name_is_not_touched(target: SeenStream) -> None:
    with pytest.raises(Blocked):
        step(target)


@pytest.mark.parametrize("stage", [Stage.MIRROR, Stage.QUEUE, Stage.SOURCE])
def test_a_copy_that_was_begun_in_another_way_is_not_touched(stage: Stage) -> None:
    with pytest.raises(Blocked, match="undo"):
        step(copy(stage), MoveWay.BACKUP)


def test_a_damaged_mark_is_that_of_another_stream() -> None:
    with pytest.raises(Blocked):
        step(SeenStream(config={"name": "S", "metadata": {MARK: "{"}}))


def test_configurations() -> None:
    mirror = plan.mirror_config(ORIGIN, "$JS.old.API", 1)
    assert mirror.pop("metadata") == {"own": "1", MARK: '{"origin":"2026-01-01T00:00:00Z","stage":"mirror"}'}
    source = {"name": "S", "external": {"api": "$JS.old.API"}}
    assert mirror == {"name": "S", "num_replicas": 1, "max_age": 7, "mirror": source}
    moved = plan.moved_config(ORIGIN, Stage.CUT, 5, 10)
    assert (moved["subjects"], moved["num_replicas"], moved["duplicate_window"]) == (["s.>"], 3, 5)
    assert "placement" not in moved
    cut = SeenStream(config=moved).mark
    assert cut == MoveMark(ORIGIN.created, Stage.CUT, 10)
    assert SeenStream(config=plan.remarked(SeenStream(config=moved), Stage.DONE)).mark == MoveMark(
        ORIGIN.created, Stage.DONE, 10
    )


@pytest.mark.parametrize(
    ("policy", "floor", "delivered", "last", "start"),
    [("explicit", 4, 9, 10, 5), ("none", 0, 9, 10, 10), ("explicit", 10, 10, 8, 9), ("explicit", 0, 0, 10, 1)],
)
def test_a_consumer_starts_where_it_stood(policy: str, floor: int, delivered: int, last: int, start: int) -> None:
    config = {"durable_name": "c", "ack_policy": policy, "deliver_policy": "new", "opt_start_time": "x"}
    info = {"config": config, "ack_floor": {"stream_seq": floor}, "delivered": {"stream_seq": delivered}}
    made = plan.consumer_request("S", info, last, 1)["config"]
    assert made == {
        "durable_name": "c",
        "ack_policy": policy,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
    }


def texts(way: MoveWay = MoveWay.MIRROR, origin: SeenStream = ORIGIN, stops: bool = True, **fields: Any) -> list[str]:
    known: dict[str, Any] = {"target": None, "taken": (), "durables": 0, "take": False, "old": Side(), "new": Side()}
    known |= fields
    return [one.text for one in plan.obstacles(way, origin, **known) if one.stops is stops]


def configured(**fields: Any) -> SeenStream:
    return msgspec.structs.replace(ORIGIN, config={**ORIGIN.config, **fields})


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"target": copy(None)}, "a stream of that name"),
        ({"taken": ["T", "S"]}, "has its subjects in T"),
        ({"origin": configured(mirror={"name": "M"})}, "it is a mirror of M"),
        ({"origin": configured(sources=[{"name": "M"}])}, "it has sources"),
        ({"origin": configured(metadata={"_nats.req.level": "2"}), "new": Side(api_level=1)}, "API level 2"),
        ({"origin": configured(allow_msg_counter=True)}, "--by backup"),
        ({"way": MoveWay.SOURCE, "origin": configured(retention="interest"), "durables": 2}, "--take-consumers"),
        ({"old": Side(publish={"deny": ["$JS.API.STREAM.INFO.*"]})}, "may not publish to $JS.API.STREAM.INFO.S"),
        ({"new": Side(publish={"allow": ["$JS.API.STREAM.>"]})}, "$JS.API.CONSUMER.DURABLE.CREATE.S.lakestream"),
        ({"new": Side(subscribe={"allow": ["mine.>"]})}, "may not subscribe to _INBOX.>"),
        ({"new": Side(limits={"max_streams": 3}, used={"streams": 3})}, "its limit of 3 streams"),
        (
            {
                "origin": msgspec.structs.replace(ORIGIN, bytes=100),
                "new": Side(limits={"max_storage": 150}, used={"storage": 60}),
            },
            "has 90 left",
        ),
        ({"new": Side(tiers={"R3": {}})}, "allow no streams with 1 replicas (tiers: R3)"),
        (
            {"new": Side(tiers={"R1": {"streams": 2, "limits": {"max_streams": 2}}})},
            "tier R1 of the account has its limit",
        ),
        (
            {
                "origin": msgspec.structs.replace(ORIGIN, bytes=100),
                "new": Side(clustered=True, tiers={"R3": {"storage": 60, "limits": {"max_storage": 150}}}),
            },
            "needs 100 bytes, and tier R3 of the account has 90 left",
        ),
        (
            {
                "origin": msgspec.structs.replace(ORIGIN, bytes=100),
                "new": Side(clustered=True, limits={"max_storage": 250}),
            },
            "needs 300 bytes",
        ),
    ],
)
def test_what_stops_a_move(given: dict[str, Any], word: str) -> None:
    found = texts(**given)
    assert len(found) == 1
    assert word in found[0]


@pytest.mark.parametrize(
    "new",
    [
        Side(limits={"max_storage": 150, "max_streams": 9}),
        Side(tiers={"R1": {"limits": {"max_storage": 150, "max_streams": 9}}}),
        Side(limits={"max_streams": 1}),
    ],
)
def test_streams_that_fit_singly_may_not_fit_together(new: Side) -> None:
    origin = msgspec.structs.replace(ORIGIN, bytes=100)
    assert texts(origin=origin, new=new) == []
    assert len(texts(origin=origin, new=new.filled(origin))) == 1


def test_what_will_differ() -> None:
    old, new = Side(max_payload=8 << 20), Side()
    assert texts(old=old, new=new) == []
    notes = texts(old=old, new=new, durables=1, stops=False)
    assert [note.split(":")[0].split(" ")[0] for note in notes] == ["max_payload", "3", "its", "messages"]
    assert texts(target=copy(Stage.DONE), stops=False) == ["it has moved already"]
    assert texts(target=copy(Stage.MIRROR), taken=["S"]) == []


def test_patterns_select_streams() -> None:
    names = ["B", "KV_b", "KV_a", "C"]
    assert plan.selected(names, ["KV_*", "C"]) == ["C", "KV_a", "KV_b"]
    with pytest.raises(Blocked, match="no stream D"):
        plan.selected(names, ["D"])
