"""Tests of a stream between socket and disk: the time of acks, and interactions of publishes in flight."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.files import Files
from lakestream.log.store.cache import ReadCache
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.operations import DeleteMessage, Purge
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(**options: Any) -> World:
        return World(str(tmp_path / "S"), **options)

    return build


def test_invariant_1_an_ack_leaves_only_after_the_write_is_done(make: MakeWorld) -> None:
    world = make()
    reply = world.publish("s.a", b"x")
    world.clock.turn()
    assert world.io.waiting, "the write is under way"
    assert world.answer(reply) is None
    assert world.content() == [], "and nobody reads what is not committed"
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 1}
    assert world.content() == [(1, b"s.a", b"x")]


def test_what_arrives_during_a_write_goes_together_into_the_next(make: MakeWorld) -> None:
    world = make()
    world.publish("s.a")
    world.clock.turn()
    replies = [world.publish("s.a") for _ in range(5)]
    world.clock.turn()
    assert len(world.io.waiting) == 1, "no second write while one is under way"
    world.io.work()
    world.clock.turn()
    assert len(world.io.waiting) == 1
    world.io.work()
    assert [world.answer(reply)["seq"] for reply in replies] == [2, 3, 4, 5, 6]  # type: ignore[index]


class FailingFiles(Files):
    """Files in which every sync fails from some moment on."""

    failing = False
    attempts = 0

    def sync(self, fd: int) -> None:
        if self.failing:
            self.attempts += 1
            raise OSError(5, "Input/output error")
        super().sync(fd)


def test_invariant_4_a_failed_sync_freezes_the_stream_and_is_not_retried(make: MakeWorld) -> None:
    files = FailingFiles()
    world = make(files=files)
    assert world.acked("s.a")["seq"] == 1
    files.failing = True
    first, second = world.publish("s.a"), world.publish("s.b", Nats_Msg_Id="m")
    world.settle()
    for reply in (first, second):
        answer = world.answer(reply)
        assert answer is not None
        assert answer["error"]["err_code"] == 10077
    files.failing = False
    assert world.acked("s.a")["error"]["err_code"] == 10077
    assert files.attempts == 1
    assert [seq for seq, _, _ in world.content()] == [1]


def test_invariant_5_times_do_not_go_backwards_with_the_clock(make: MakeWorld) -> None:
    world = make()
    for stepped in (0, -100_000_000_000_000_000, 1):
        world.clock.stepped = stepped
        world.publish("s.a")
    world.settle()
    stamps = [record.time_ns for record in world.stream.store.read_run(1, 10, 1 << 20)]
    assert stamps == sorted(stamps)
    assert stamps[1] == stamps[0]


def test_expected_last_subject_sequence_sees_messages_in_flight(make: MakeWorld) -> None:
    world = make()
    replies = [
        world.publish("s.k", b"1", Nats_Expected_Last_Subject_Sequence="0"),
        world.publish("s.k", b"2", Nats_Expected_Last_Subject_Sequence="0"),
        world.publish("s.k", b"3", Nats_Expected_Last_Subject_Sequence="1"),
        world.publish("s.x", b"4", Nats_Expected_Last_Sequence="2"),
    ]
    world.settle()
    answers = [world.answer(reply) for reply in replies]
    assert answers[1]["error"] == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 1"}  # type: ignore[index]
    assert [answer["seq"] for answer in answers] == [1, 0, 2, 3]  # type: ignore[index]


def test_a_duplicate_of_a_message_in_flight_is_answered_when_that_is_durable(make: MakeWorld) -> None:
    world = make()
    world.publish("s.a", b"x", Nats_Msg_Id="id")
    world.clock.turn()
    again = world.publish("s.a", b"x", Nats_Msg_Id="id")
    world.clock.turn()
    assert world.answer(again) is None
    world.settle()
    assert world.answer(again) == {"stream": "S", "seq": 1, "duplicate": True}
    assert len(world.content()) == 1


def test_a_publish_behind_a_purge_in_flight_is_judged_by_what_the_purge_leaves(make: MakeWorld) -> None:
    world = make()
    world.acked("s.k", b"old")
    world.stream.propose(Purge(filter=b"s.k"))
    checked = world.publish("s.k", b"new", Nats_Expected_Last_Subject_Sequence="0")
    after = world.publish("s.z", b"plain")
    world.settle()
    assert world.answer(checked) == {"stream": "S", "seq": 2}
    assert world.answer(after) == {"stream": "S", "seq": 3}


def test_a_rollup_leaves_only_itself_of_its_subject(make: MakeWorld) -> None:
    world = make(allow_rollup_hdrs=True)
    for data in (b"1", b"2"):
        world.publish("s.k", data)
    world.publish("s.other", b"3")
    world.publish("s.k", b"4", Nats_Rollup="sub")
    world.publish("s.k", b"5")
    world.settle()
    assert world.content() == [(3, b"s.other", b"3"), (4, b"s.k", b"4"), (5, b"s.k", b"5")]


@pytest.mark.parametrize(
    ("subject", "left"),
    [("s.*", [2, 3, 5, 6]), ("s.>", [5, 6]), ("s.a.*", [1, 4, 5, 6]), ("s.a*", [1, 2, 3, 4, 5, 6])],
)
def test_a_rollup_whose_subject_has_wildcards_replaces_all_that_it_matches(
    make: MakeWorld, tmp_path: Path, subject: str, left: list[int]
) -> None:
    world = make(allow_rollup_hdrs=True)
    for one in ("s.k", "s.a.x", "s.a.y", "s.ab"):
        world.publish(one)
    world.publish(subject, Nats_Rollup="sub")
    world.publish("s.k")
    world.settle()
    assert [seq for seq, _, _ in world.content()] == left
    assert World(str(_copy(tmp_path))).content() == world.content(), "recovery removes the same messages"


def test_messages_expire_by_max_age_through_the_log(make: MakeWorld, tmp_path: Path) -> None:
    world = make(max_age=1_000_000_000)
    world.acked("s.a", b"old")
    world.clock.advance(2_000_000_000)
    world.settle()
    assert world.content() == []
    assert world.stream.store.first_seq == 2
    recovered = World(str(_copy(tmp_path)))
    assert recovered.content() == [], "recovery does not need the clock to know it"


def test_a_ttl_of_its_own_ends_a_message_before_its_stream_would(make: MakeWorld) -> None:
    world = make(allow_msg_ttl=True)
    world.acked("s.a", b"short", Nats_TTL="1s")
    world.acked("s.b", b"long")
    world.clock.advance(1_500_000_000)
    world.settle()
    assert world.content() == [(2, b"s.b", b"long")]
    assert world.acked("s.a", Nats_TTL="0s")["error"]["err_code"] == 10165


def test_a_replaced_subject_does_not_bring_back_what_its_bytes_pushed_out(make: MakeWorld) -> None:
    world = make(max_bytes=200, max_msgs_per_subject=1)
    for subject, size in (("s.x", 67), ("s.y", 67), ("s.y", 117), ("s.y", 17)):
        world.publish(subject, b"d" * size)
    world.settle()
    assert [seq for seq, _, _ in world.content()] == [4], "the third message had no room beside the first"


def _copy(tmp_path: Path) -> Path:
    """Return a copy of the store as a crash at this moment would leave it."""
    target = tmp_path / "copy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(tmp_path / "S", target)
    return target


def test_numbers_of_thousands_of_digits_are_like_any_others(make: MakeWorld) -> None:
    world = make(allow_msg_ttl=True)
    assert world.acked("s.a", Nats_Expected_Last_Sequence="9" * 5000)["error"]["err_code"] == 10071
    assert world.acked("s.a", Nats_Expected_Last_Subject_Sequence="0" * 5000)["seq"] == 1
    assert world.acked("s.a", Nats_Expected_Last_Subject_Sequence="0" * 5000)["error"]["err_code"] == 10071
    assert world.acked("s.a", Nats_TTL="9" * 5000)["error"]["err_code"] == 10165


# ------------------------------------------------------------------ batches against one message at a time
class Model:
    """Model of nats-server's limits, one message at a time (docs/internals/streams.md#limits)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.messages: dict[int, tuple[bytes, bytes]] = {}
        self.last = 0

    def publish(self, subject: bytes, data: bytes) -> int:
        """Return the assigned sequence; 0 if the message is refused."""
        size = self.size(subject, data)
        per_subject, msgs, total = (self.config[name] for name in ("max_msgs_per_subject", "max_msgs", "max_bytes"))
        same = [seq for seq, (name, _) in self.messages.items() if name == subject]
        replaces = per_subject > 0 and len(same) >= per_subject
        if self.config["discard"] == "new":
            if not replaces and 0 < msgs <= len(self.messages):
                return 0
            makes_room = replaces and self.size(*self.messages[same[0]]) >= size
            if 0 < total < self.bytes() + size and not makes_room:
                return 0
        self.last += 1
        self.messages[self.last] = (subject, data)
        if replaces:
            del self.messages[same[0]]
        while 0 < msgs < len(self.messages) or (0 < total < self.bytes() and self.messages):
            del self.messages[min(self.messages)]
        return self.last

    @staticmethod
    def size(subject: bytes, data: bytes) -> int:
        return 30 + len(subject) + len(data)

    def bytes(self) -> int:
        return sum(self.size(*message) for message in self.messages.values())


STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 40)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("delete"), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.booleans()),
)
LIMITS = st.fixed_dictionaries(
    {
        "max_msgs": st.sampled_from([-1, 1, 3, 7]),
        "max_bytes": st.sampled_from([-1, 80, 150, 400]),
        "max_msgs_per_subject": st.sampled_from([-1, 1, 2]),
        "discard": st.sampled_from(["old", "new"]),
    }
)


@settings(max_examples=150, deadline=None)
@given(config=LIMITS, steps=st.lists(STEP, max_size=40))
def test_batches_and_restarts_leave_what_single_steps_would(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    home = tmp_path_factory.mktemp("world")
    world, model = World(str(home / "S"), **config), Model(config)
    expected: list[tuple[bytes, int]] = []
    for step in steps:
        if step[0] == "publish":
            subject, data = b"s.%d" % step[1], b"x" * step[2]
            expected.append((world.publish(subject.decode(), data), model.publish(subject, data)))
        elif step[0] == "turn":
            world.clock.turn()
        elif step[0] == "delete":
            world.settle()
            removed: list[object] = []
            for seq in step[1]:
                world.stream.propose(DeleteMessage(seq, step[2]), removed.append)
            world.settle()
            assert removed == [model.messages.pop(seq, None) is not None for seq in step[1]]
        else:
            world.settle()
            _same(world, model, expected)
            if step[0] == "crash":
                expected = []
                world = World(str(_copy(home)))
                shutil.rmtree(home / "S")
                (home / "copy").rename(home / "S")
                world = World(str(home / "S"))
    world.settle()
    _same(world, model, expected)


def _same(world: World, model: Model, expected: list[tuple[bytes, int]]) -> None:
    assert world.content() == [(seq, *message) for seq, message in sorted(model.messages.items())]
    assert world.stream.store.bytes == model.bytes()
    assert world.stream.store.last_seq == model.last
    for reply, seq in expected:
        answer = world.answer(reply)
        assert answer is not None
        assert answer["seq"] == seq


def test_deletions_of_one_turn_read_the_subjects_of_their_messages_together(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    for number in range(100):
        world.publish("s.a", b"%d" % number)
    world.settle()
    reads: list[int] = []
    reader = ReadCache.reader

    def counted(cache: ReadCache, path: str) -> Callable[[int, int], bytes]:
        def read(length: int, offset: int) -> bytes:
            reads.append(offset)
            return reader(cache, path)(length, offset)

        return read

    monkeypatch.setattr(ReadCache, "reader", counted)
    for seq in (90, 12, 34, 56):
        world.stream.propose(DeleteMessage(seq))
    world.settle()
    assert (world.stream.store.msgs, len(reads)) == (96, 1)


def test_deletions_of_one_turn_are_refused_together_if_one_message_is_damaged(make: MakeWorld) -> None:
    world = make()
    for number in range(100):
        world.publish("s.a", b"%d" % number)
    world.settle()
    segment = world.stream.store.log.open_segment  # type: ignore[attr-defined]
    answers: list[object] = []
    for seq in (20, 95):
        world.stream.propose(DeleteMessage(seq), answers.append)
    os.truncate(segment.path, segment.end // 2)
    world.settle()
    assert [isinstance(each, ApiError) for each in answers] == [True, True]
    assert world.stream.failed is not None
    assert world.stream.store.msgs == 100


TRANSFORM = {"subject_transform": {"src": "s.>", "dest": "s.>"}}


@pytest.mark.parametrize(
    ("config", "applied"), [({}, 0), ({"max_msg_size": 100}, 0), (TRANSFORM, 1)], ids=["plain", "limits", "with rules"]
)
def test_a_lone_pub_ack_leaves_before_its_message_is_applied(
    make: MakeWorld, config: dict[str, Any], applied: int
) -> None:
    """Check that it leaves after if rules look at messages without headers: its subject may be one of the stream's."""
    world = make(**config)
    seen: list[int] = []
    world.inbox.receive = lambda *message: seen.append(world.stream.store.msgs)  # type: ignore[method-assign]
    world.publish("s.a", b"x")
    world.settle()
    assert (seen, world.stream.store.msgs) == ([applied], 1)


def test_a_pub_ack_leaves_after_its_message_is_applied_where_others_wait_for_the_disk(make: MakeWorld) -> None:
    """The next write begins first, and it may seal the segment, which needs everything in it applied."""
    world = make()
    seen: list[int] = []
    world.inbox.receive = lambda *message: seen.append(world.stream.store.msgs)  # type: ignore[method-assign]
    world.publish("s.a", b"x")
    world.clock.turn()
    world.publish("s.b", b"x")
    world.settle()
    assert seen == [1, 1], "the second one is alone"
