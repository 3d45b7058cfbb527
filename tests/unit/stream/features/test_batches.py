"""Tests of atomic and fast batches in flight: waiting, entries, and the order of answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lakestream.log.format.files import Files
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import Single
from lakestream.protocol import headers
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.operations import ConsumerProgress, Purge, UpdateStream
from lakestream.stream.features import atomic, batches, fast
from lakestream.stream.features.batches import BatchLimits, BatchRoom
from tests.unit.api_world import ApiWorld
from tests.unit.stream_world import CLIENT, World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]
SECOND = 1_000_000_000
TEN_SECONDS = 10 * SECOND


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(**options: Any) -> World:
        world = World(str(tmp_path / "S"), **{"allow_atomic": True, "allow_batched": True, **options})
        world.hub.join(Subscription(world.inbox, b"_INBOX.me.f.>", b"", b"9"))
        return world

    return build


def member(
    world: World, seq: int, commit: str = "", *, data: bytes | None = b"-", subject: str = "s.a", **more: Any
) -> bytes:
    """Publish a member of the atomic batch b (without payload if data is None); return its reply subject."""
    fields: dict[str, Any] = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(seq), **more}
    if commit:
        fields["Nats-Batch-Commit"] = commit
    return world.publish(subject, data or b"", **fields)


def answered(world: World, seq: int, commit: str = "") -> dict[str, Any] | None:
    """Return the answer to a member of the atomic batch b."""
    reply = member(world, seq, commit)
    world.settle()
    return world.answer(reply)


def whole(world: World, count: int, **more: Any) -> bytes:
    """Publish an atomic batch; return the reply subject of its commit."""
    for seq in range(1, count):
        member(world, seq)
    return member(world, count, "1", **more)


def code(answer: dict[str, Any] | None) -> int:
    assert answer is not None
    return int(answer["error"]["err_code"])


# ------------------------------------------------------------------------------------------------ atomic
def test_a_commit_is_one_entry_of_its_own(make: MakeWorld) -> None:
    world = make(allow_rollup_hdrs=True)
    world.publish("s.before")
    member(world, 1, Nats_Rollup="sub")
    member(world, 2)
    reply = member(world, 3, "1", subject="s.b", Nats_Rollup="sub")
    world.publish("s.after")
    open_ = [proposal.context for proposal in world.stream.pipeline.uncommitted()]
    assert [len(batch) for batch in open_ if isinstance(batch, Batch)] == [1, 3, 1]
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 4, "batch": "b", "count": 3}
    assert [subject for _, subject, _ in world.content()] == [b"s.before", b"s.a", b"s.a", b"s.b", b"s.after"]


def test_a_large_one_is_one_entry_too(make: MakeWorld) -> None:
    world = make()
    data = b"x" * (3 << 20)
    for seq in (1, 2, 3):
        member(world, seq, data=data)
    reply = member(world, 4, "1", data=data)
    assert [len(proposal.body) for proposal in world.stream.pipeline.uncommitted()] == [4]
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 4, "batch": "b", "count": 4}


def test_members_are_nowhere_before_the_commit(make: MakeWorld) -> None:
    world = make()
    member(world, 1)
    assert [payload for _, payload in world.inbox.got] == [b""], "an empty ack, at once"
    assert world.stream.pipeline.uncommitted() == []
    assert world.acked("s.x")["seq"] == 1


LIMITS = st.fixed_dictionaries(
    {"discard": st.sampled_from(["old", "new"])},
    optional={
        "max_msgs": st.integers(1, 8),
        "max_bytes": st.integers(80, 400),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard_new_per_subject": st.just(True),
    },
)
BATCH = st.lists(st.tuples(st.sampled_from(["s.a", "s.b", "s.c"]), st.integers(0, 20)), min_size=1, max_size=6)


@given(LIMITS, st.lists(st.tuples(BATCH, st.booleans()), min_size=1, max_size=4))
def test_members_that_limits_let_pass_together_are_those_that_pass_one_by_one(
    config: dict[str, Any], rounds: list[tuple[list[tuple[str, int]], bool]]
) -> None:
    if config["discard"] == "old" or "max_msgs_per_subject" not in config:
        config.pop("discard_new_per_subject", None)
    found = []
    for together in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            world = World(directory, allow_atomic=True, **config)
            if not together:
                world.stream.feature(atomic.Atomic)._passes = lambda batch: False  # type: ignore[method-assign]
            for members, settled in rounds:
                for seq, (subject, size) in enumerate(members, 1):
                    member(world, seq, "1" if seq == len(members) else "", subject=subject, data=b"x" * size)
                if settled:
                    world.settle()
            world.settle()
            found.append((world.inbox.got, world.content(), world.stream.store.bytes))
    assert found[0] == found[1]


class FailingFiles(Files):
    """Files in which every sync fails from some moment on."""

    failing = False

    def sync(self, fd: int) -> None:
        if self.failing:
            raise OSError(5, "Input/output error")
        super().sync(fd)


def test_nothing_of_a_commit_that_can_not_be_written_is_stored(make: MakeWorld) -> None:
    files = FailingFiles()
    world = make(files=files)
    files.failing = True
    fast = world_fast(world, 1, 2)
    reply = whole(world, 3, Nats_Msg_Id="m")
    world.settle()
    assert code(world.answer(reply)) == 10077
    assert code(world.answer(fast)) == 10077
    assert world.content() == []


def test_a_restart_keeps_commits_and_forgets_what_is_open(make: MakeWorld) -> None:
    world = make(allow_rollup_hdrs=True)
    assert world.acked("s.a")["seq"] == 1
    whole(world, 3, Nats_Msg_Id="m")
    member(world, 1, Nats_Rollup="sub")
    member(world, 2, "1", subject="s.b", Nats_TTL="")
    world.settle()
    before = world.content()
    member(world, 1)
    again = make()
    assert again.content() == before == [(5, b"s.a", b"-"), (6, b"s.b", b"-")]
    assert code(answered(again, 2)) == 10176
    assert again.acked("s.a", Nats_Msg_Id="m")["duplicate"]
    world.stream.store.log.close()


def test_a_commit_waits_for_an_operation_in_its_place_among_publishes(make: MakeWorld) -> None:
    world = make()
    world.acked("s.a")
    member(world, 1, Nats_Expected_Last_Sequence="1")
    world.stream.propose(Purge())
    first = world.publish("s.first", Nats_Expected_Last_Subject_Sequence="0")
    reply = member(world, 2, "1")
    member(world, 1)
    last = world.publish("s.last")
    world.settle()
    assert [world.answer(each) for each in (first, last)] == [{"stream": "S", "seq": seq} for seq in (2, 3)]
    assert code(world.answer(reply)) == 10071, "another message was before it"
    again = {"stream": "S", "seq": 5, "batch": "b", "count": 2}
    assert answered(world, 2, "1") == again, "the id was free once the commit had come"


def test_a_commit_that_waits_is_judged_by_the_configuration_of_then(make: MakeWorld) -> None:
    world = make()
    config = world.stream.config
    for changed, refusal in ((replace(config, allow_atomic=False), 10174), (replace(config, sealed=True), 10109)):
        world.stream.propose(UpdateStream(msgspec.json.encode(config)))
        world.settle()
        member(world, 1)
        world.stream.propose(UpdateStream(msgspec.json.encode(changed)))
        reply = member(world, 2, "1")
        assert world.answer(reply) is None
        world.settle()
        assert code(world.answer(reply)) == refusal


def test_what_is_in_flight_may_make_room(make: MakeWorld) -> None:
    world = make(discard="new", max_msgs=3, allow_rollup_hdrs=True)
    for subject in ("s.a", "s.a"):
        world.acked(subject)
    world.publish("s.a", b"replaces", Nats_Rollup="sub")
    reply = whole(world, 2)
    assert world.stream.proposer.waiting
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 5, "batch": "b", "count": 2}


def test_no_publisher_waits_for_ever_after_a_leader_change(make: MakeWorld) -> None:
    world = make()
    committed = whole(world, 2)
    world.stream.pipeline.operations += 1
    parked = whole(world, 2)
    member(world, 1)
    fast = world_fast(world, 1, 0)
    world.inbox.got.clear()
    world.stream.lost([])
    told = {subject for subject, _ in world.inbox.got}
    assert {committed, parked, fast} <= told, "503: they may ask again"
    room = world.stream.batches
    assert (room.atomic, room.staged, room.fast) == (0, 0, 0)


def test_an_idle_batch_is_abandoned_and_reported(make: MakeWorld) -> None:
    world = make()
    subject = b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S"
    world.hub.join(Subscription(world.inbox, subject, b"", b"2"))
    room = world.stream.batches
    member(world, 1)
    world_fast(world, 1, 0)
    world.clock.advance(TEN_SECONDS - 1)
    member(world, 2)
    assert (room.atomic, room.fast) == (1, 1)
    world.clock.advance(1)
    assert (room.atomic, room.fast) == (1, 0)
    world.clock.advance(TEN_SECONDS)
    assert (room.atomic, room.staged) == (0, 0)
    events = [json.loads(payload) for to, payload in world.inbox.got if to == subject]
    assert [(event["batch"], event["reason"]) for event in events] == [("b", "timeout")]


def test_bytes_of_a_batch_and_of_all_are_bounded(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make()
    monkeypatch.setattr(atomic, "MAX_ATOMIC_BYTES", 1000)
    member(world, 1, data=b"x" * 500)
    assert code(world.acked("s.a", b"x" * 500, **{"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2"})) == 10199
    monkeypatch.setattr(atomic, "MAX_STAGED_BYTES", 800)
    member(world, 1, data=b"x" * 500)
    fields: dict[str, Any] = {"Nats-Batch-Id": "c", "Nats-Batch-Sequence": "1"}
    assert code(world.acked("s.a", b"x" * 500, **fields)) == 10167
    assert world.stream.batches.atomic == 1
    world.stream.feature(atomic.Atomic).follow()
    assert world.stream.batches.staged == 0


def test_counters_see_members_stored_ones_and_those_in_flight(make: MakeWorld) -> None:
    world = make(allow_msg_counter=True)
    world.publish("s.a", Nats_Incr="1")
    for seq, commit in ((1, ""), (2, "1")):
        member(world, seq, commit, data=None, Nats_Incr="10")
    world.publish("s.a", Nats_Incr="100")
    world.settle()
    assert [json.loads(data)["val"] for _, _, data in world.content()] == ["1", "11", "21", "121"]


async def test_a_commit_may_need_several_messages_of_the_lake() -> None:
    world = ApiWorld()
    world.create("A", subjects=["a.>"], allow_atomic=True, allow_msg_counter=True)
    for name in ("x", "y", "z"):
        world.publish(f"a.{name}", Nats_Incr="5")
    world.to_lake("A", 3)
    stream = world.stream("A")
    for seq, name in enumerate(("x", "y", "z"), 1):
        fields = [(b"Nats-Batch-Id", b"b"), (b"Nats-Batch-Sequence", b"%d" % seq), (b"Nats-Incr", b"1")]
        block = headers.build(fields + ([(b"Nats-Batch-Commit", b"1")] if seq == 3 else []))
        stream.proposer.take(Single(b"a." + name.encode(), header=block), 0, 1, CLIENT)
    await world.awaited()
    world.settle()
    assert [json.loads(stream.store.read(seq).data)["val"] for seq in (4, 5, 6)] == ["6"] * 3  # type: ignore[union-attr]
    assert stream.view.fetched == {}


# ------------------------------------------------------------------------------------------------ fast
def world_fast(world: World, seq: int, operation: int, mode: str = "ok", *, flow: int = 1, **more: str) -> bytes:
    """Publish a member of the fast batch f; return its reply subject."""
    reply = b"_INBOX.me.f.%d.%b.%d.%d.$FI" % (flow, mode.encode(), seq, operation)
    block = headers.build([(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()])
    world.hub.route(None, CLIENT, Single(b"s.f", reply, block if more else b"", b"%d" % seq))
    return reply


def heard(world: World) -> list[Any]:
    """Return the answers to fast batches since the last call, without the reply subjects."""
    said = [json.loads(payload) for subject, payload in world.inbox.got if subject.endswith(b".$FI") and payload]
    world.inbox.got.clear()
    return said


def ack(seq: int, msgs: int = 1) -> dict[str, Any]:
    return {"type": "ack", "seq": seq, "msgs": msgs}


def test_what_speaks_of_stored_messages_waits_for_them(make: MakeWorld) -> None:
    world = make()
    world_fast(world, 1, 0)
    assert heard(world) == [ack(0)]
    world_fast(world, 4, 1)
    world_fast(world, 5, 1, Nats_Expected_Last_Sequence="77")
    world_fast(world, 6, 2)
    world_fast(world, 7, 1)
    world.clock.turn()
    assert heard(world) == [], "the write is under way"
    world.settle()
    error = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 2"}
    unknown = {"code": 400, "err_code": 10208, "description": "batch publish ID unknown"}
    assert heard(world) == [
        ack(1),
        {"type": "gap", "last_seq": 2, "seq": 4},
        ack(4),
        {"type": "err", "seq": 5, "error": error},
        {"stream": "S", "seq": 3, "batch": "f", "count": 6},
        {"error": unknown, "stream": "S", "seq": 0},
    ]


def test_members_wait_for_an_operation_in_their_place(make: MakeWorld) -> None:
    world = make()
    world.acked("s.x")
    world_fast(world, 1, 0)
    world.stream.propose(Purge())
    world_fast(world, 2, 1)
    plain = world.publish("s.x")
    world_fast(world, 3, 2)
    world.settle()
    assert world.answer(plain) == {"stream": "S", "seq": 4}
    assert heard(world)[-1] == {"stream": "S", "seq": 5, "batch": "f", "count": 3}
    assert [seq for seq, _, _ in world.content()] == [3, 4, 5]


def test_a_member_waits_for_room_and_those_behind_it_wait_too(make: MakeWorld) -> None:
    world = make(discard="new", max_msgs=2, allow_rollup_hdrs=True)
    world.acked("s.f")
    world_fast(world, 1, 0, flow=10, Nats_Rollup="sub")
    world_fast(world, 2, 1, flow=10)
    world_fast(world, 3, 1, flow=10)
    world_fast(world, 4, 3, flow=10)
    world.settle()
    said = heard(world)
    assert said[0] == ack(0, 10)
    assert (said[1]["type"], said[1]["seq"], said[1]["error"]["err_code"]) == ("err", 3, 10077)
    assert said[2] == {"stream": "S", "seq": 3, "batch": "f", "count": 3}


def test_a_stream_without_fast_batches_refuses_them_whatever_else_it_takes_unseen(make: MakeWorld) -> None:
    world = make(allow_batched=False)
    world_fast(world, 1, 0)
    world.settle()
    assert [said["error"]["err_code"] for said in heard(world)] == [10205]
    assert world.content() == []


def test_a_new_leader_goes_on_with_what_the_log_says(make: MakeWorld) -> None:
    """A new leader continues the batches in the log.

    Of three batches one has ended, and one was idle for too long before the leader changed.
    """
    world = make()
    feature, now = world.stream.feature(fast.Fast), world.clock.now()

    def place(name: bytes, touched: int) -> list[Any]:
        return [name, 10, True, 10, 5, 0, 4, touched, b"_INBOX.me.f.10.ok.4.1.$FI"]

    logged = [place(b"f", now), place(b"old", now - TEN_SECONDS), place(b"ended", now)]
    feature.progressed([ConsumerProgress("", msgspec.msgpack.encode((logged, [])))])
    feature.progressed([ConsumerProgress("", msgspec.msgpack.encode(([], [b"ended"])))])
    feature.follow()
    feature.lead(recovered=False)
    assert heard(world) == [ack(4, 10)]
    assert world.stream.batches.fast == 1
    world_fast(world, 6, 1, flow=10)
    world_fast(world, 7, 2, flow=10)
    world.settle()
    assert heard(world) == [
        {"type": "gap", "last_seq": 5, "seq": 6},
        {"stream": "S", "seq": 2, "batch": "f", "count": 7},
    ]


# ------------------------------------------------------------------------------------------------ both kinds
def test_limits_hold_for_the_streams_of_a_server_together() -> None:
    room = BatchRoom()
    assert room.for_atomic(49)
    assert not room.for_atomic(50)
    assert room.for_fast(999)
    assert not room.for_fast(1000)
    room.atomic, room.fast = 1000, 50_000
    assert not room.for_atomic(0)
    assert not room.for_fast(0)
    small = BatchRoom(BatchLimits(per_stream=2, total=3, max_msgs=4, timeout_ns=SECOND))
    small.atomic = small.fast = 2
    assert (small.for_atomic(1), small.for_atomic(2), small.for_fast(1), small.for_fast(2)) == (
        True,
        False,
        True,
        False,
    )
    small.atomic = small.fast = 3
    assert not small.for_atomic(0)
    assert not small.for_fast(0)
    assert (small.max_msgs, small.timeout_ns) == (4, SECOND)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(b"0", 0), (b"007", 7), (b"18446744073709551615", (1 << 64) - 1), (b"18446744073709551616", -1)]
    + [(text, -1) for text in (b"", b"-1", b"+1", b"1 ", b"x", b"1_0", b"\xd9\xa1", b"9" * 5000)],
)
def test_numbers(text: bytes, wanted: int) -> None:
    assert batches.number(text) == wanted
