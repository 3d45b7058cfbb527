"""Tests of mirrors and sources over the hub: unusual messages of origins, and events that must not stop a session."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lakestream.account.backup import archive
from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.net.interest.subscription import Subscription
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.server.jetstream import open_stores
from lakestream.stream.core.batch import Run
from lakestream.stream.core.operations import Operation, ResetConsumer, UpdateConsumer
from lakestream.stream.core.proposer import NOT_NOW
from lakestream.stream.core.state import Done
from lakestream.stream.features.message_ids import MessageIds
from lakestream.stream.mirroring.mirroring import Mirroring
from tests.unit.account.backup import test_backups as backups
from tests.unit.api_world import ApiWorld
from tests.unit.consumer_world import MS

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


def run(world: ApiWorld, seconds: float) -> None:
    """Let time pass."""
    for _ in range(int(seconds * 200)):
        world.clock.advance(5 * MS)
        world.settle()


def one(world: ApiWorld, name: str) -> Any:
    """Return the only mirror or source of a stream."""
    mirroring: Mirroring = world.stream(name).mirroring
    [found] = mirroring._running
    return found


def test_a_stored_message_that_looks_like_a_control_message_is_a_message(world: ApiWorld) -> None:
    """A stored message with a status line is no control message.

    An archive of nats-server can hold such a header block.
    """
    status = archive.entry(b"r.1", 5, 2, b"NATS/1.0 503\r\n\r\n", b"")
    held = backups.packed(backups.message(1), status, backups.message(3), messages=3, first_seq=1, last_seq=3)
    asyncio.run(backups.restore(world, held, name="O"))
    assert world.state("O")["messages"] == 3
    world.create("M", mirror={"name": "O"})
    world.create("S", subjects=["s"], sources=[{"name": "O"}])
    run(world, 1)
    assert [world.state(name)["messages"] for name in "MS"] == [3, 3]
    assert [one(world, name).session._round for name in "MS"] == [1, 1], "each came to an end with one attempt"


def test_a_mirror_that_refuses_new_messages_counts_messages_and_no_gaps(world: ApiWorld) -> None:
    world.create("O", subjects=["o.>"])
    for number in range(400):
        world.send("o.other" if number % 50 else "o.wanted", b"x")
    world.settle()
    world.create("M", mirror={"name": "O", "filter_subject": "o.wanted"}, discard="new", max_msgs=100)
    run(world, 1)
    assert world.state("M")["messages"] == 8
    assert one(world, "M").session._round == 1


async def restored_with_source(world: ApiWorld, first_seq: int) -> list[bytes]:
    """Return the messages of a stream restored with one own message, after it has copied its source."""
    world.create("O", subjects=["o.>"])
    for number in range(3):
        world.publish("o.a", b"%d" % number)
    last = world.stream("O").store.read(3)
    assert last is not None
    run(world, 1)  # restored messages must not be in the future
    own = backups.message(first_seq, b"own", last.time_ns + 1)
    state = {"messages": 1, "first_seq": first_seq, "last_seq": first_seq}
    await backups.restore(world, backups.packed(own, **state), name="S", sources=[{"name": "O"}])
    run(world, 0.2)
    await world.awaited()
    run(world, 0.2)
    world.publish("o.a", b"new")
    return [record.data for record in world.stream("S").store.read_run(1, 100, 1 << 20)]


def test_a_restored_stream_takes_nothing_again_that_its_archive_has_not_got(world: ApiWorld) -> None:
    assert asyncio.run(restored_with_source(world, 11)) == [b"own", b"new"]


def test_a_restored_stream_that_has_its_beginning_takes_everything(world: ApiWorld) -> None:
    assert asyncio.run(restored_with_source(world, 1)) == [b"own", b"0", b"1", b"2", b"new"]


def test_a_source_tries_again_when_no_more_message_ids_can_be_remembered(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_IDS", "MAX_IDS_IN_MEMORY"):
        monkeypatch.setattr(f"lakestream.stream.features.message_ids.{limit}", 5)
    window = 5_000_000_000
    world.create("O", subjects=["o.>"], duplicate_window=100 * MS)
    world.create("S", subjects=["s"], sources=[{"name": "O"}], duplicate_window=window)
    run(world, 0.5)
    for number in range(6):
        world.send("o.a", b"x", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number)
        run(world, 0.2)
    assert world.state("S")["messages"] == 5
    run(world, 10)
    assert world.state("S")["messages"] == 6


def test_a_session_does_not_wait_for_ever_after_a_failure(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session does not wait for ever for a message that is not offered again, with heartbeats behind it."""
    world.create("O", subjects=["o.>"])
    world.create("S", subjects=["s"], sources=[{"name": "O"}])
    run(world, 0.5)
    source = one(world, "S")
    take, calls = source.take, iter(("not now", "failure"))

    def fails(messages: Run) -> tuple[int, ApiError | None]:
        match next(calls, ""):
            case "not now":
                return 0, NOT_NOW
            case "failure":
                raise ValueError("a bug")
        outcome: tuple[int, ApiError | None] = take(messages)
        return outcome

    monkeypatch.setattr(source, "take", fails)
    world.publish("o.a", b"one")
    with pytest.raises(ValueError, match="a bug"):
        run(world, 0.1)
    run(world, 4)
    assert world.state("S")["messages"] == 1


def test_a_source_says_why_a_message_is_not_taken_rather_than_fail(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("O", subjects=["o.>"])
    world.create("S", subjects=["s"], sources=[{"name": "O"}], duplicate_window=1000 * MS)
    run(world, 0.5)

    def full(ids: MessageIds, msg_id: bytes, now_ns: int) -> int:
        raise api_error(10167)

    monkeypatch.setattr(MessageIds, "seen", full)
    taken, refused = one(world, "S").take(Run([1], [5], [b"o.a"], [b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"], [b""], [0]))
    assert (taken, refused.err_code) == (0, 10167)


@pytest.mark.parametrize("told", ["NaN", "Infinity", "", "x", "0E999999999"])
def test_what_a_client_says_of_other_counters_does_not_break_a_sum(world: ApiWorld, told: str) -> None:
    renamed = [{"src": "c.>", "dest": "x.>"}]
    world.create("C1", subjects=["c.>"], allow_msg_counter=True)
    world.create(
        "SUM", subjects=["x.>"], allow_msg_counter=True, sources=[{"name": "C1", "subject_transforms": renamed}]
    )
    run(world, 0.5)
    claim = json.dumps({"C1": {"c.a": told}})
    assert world.publish("x.a", Nats_Incr="+1", Nats_Counter_Sources=claim)["val"] == "1"
    for _ in range(2):
        world.publish("c.a", Nats_Incr="+5")
        run(world, 0.2)
    assert world.publish("x.a", Nats_Incr="+1")["val"] == "12"


def test_a_mirror_says_once_that_it_is_near(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("O", subjects=["o.>"], allow_direct=True)
    world.publish("o.a")
    world.create("M", mirror={"name": "O"})
    run(world, 0.5)
    mirror = world.stream("M")
    assert mirror.mirroring.near
    applied, refreshed = mirror.store.applied, list[str]()
    monkeypatch.setattr(mirror, "on_updated", lambda stream: refreshed.append(stream.name))
    monkeypatch.setattr(type(mirror), "replicated", True)
    for _ in range(3):  # as when leaders change
        mirror.mirroring.follow()
        mirror.mirroring.lead(False)
        run(world, 0.5)
    assert one(world, "M").near
    assert (mirror.store.applied - applied, refreshed) == (0, [])


def test_a_restarted_mirror_answers_for_its_origin_once_it_is_near_again(world: ApiWorld) -> None:
    world.create("O", subjects=["o.>"], allow_direct=True)
    world.publish("o.a", b"kept")
    world.create("M", mirror={"name": "O"})
    run(world, 0.5)
    mirror = world.stream("M")
    mirror.mirroring.follow()
    assert not mirror.mirroring.answers_for
    mirror.mirroring.lead(False)
    run(world, 0.5)
    assert mirror.mirroring.answers_for == "O"
    world.ask("STREAM.DELETE.O")
    assert [payload for _, payload in world.direct("O.o.a")] == [b"kept"]


def test_a_sealed_mirror_goes_on_answering_for_its_origin(world: ApiWorld) -> None:
    world.create("O", subjects=["o.>"], allow_direct=True)
    world.publish("o.a", b"kept")
    config = world.create("M", mirror={"name": "O"})["config"]
    run(world, 0.5)
    assert "error" not in world.ask("STREAM.UPDATE.M", config | {"sealed": True})
    assert world.stream("M").mirroring.answers_for == "O"
    world.ask("STREAM.DELETE.O")
    assert [payload for _, payload in world.direct("O.o.a")] == [b"kept"]


def test_an_origin_sends_again_what_was_not_confirmed_and_to_the_new_subject_in_one_step(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redelivery of unconfirmed messages and the new subject take effect in one commit.

    With two commits, messages could be sent to a subject without subscribers in between.
    """
    world.create("O", subjects=["o.>"], retention="workqueue")
    world.create("M", mirror={"name": "O"})
    run(world, 0.5)
    for _ in range(5):
        world.publish("o.a", b"x")
    run(world, 2)
    origin = world.stream("O")
    [consumer] = origin.consumers.values()
    assert consumer.ledger.floor() == (5, 5)
    propose, proposed = origin.propose, list[Operation]()

    def noted(operation: Operation, done: Done | None = None, *, volatile: bool = False) -> None:
        proposed.append(operation)
        propose(operation, done, volatile=volatile)

    monkeypatch.setattr(origin, "propose", noted)
    one(world, "M").session._attempt()
    world.settle()
    [update] = [each for each in proposed if isinstance(each, UpdateConsumer | ResetConsumer)]
    assert isinstance(update, UpdateConsumer)
    assert update.reset == 6
    assert consumer.ledger.delivered_consumer == 0, "it counts anew"
    world.publish("o.a", b"last")
    run(world, 2)
    assert world.state("M")["messages"] == 6
    assert world.state("O")["messages"] == 0


@pytest.mark.parametrize("copy", [{"mirror": {"name": "O"}}, {"sources": [{"name": "O"}]}], ids=["mirror", "source"])
def test_a_copy_asks_to_begin_behind_a_message_only_once_that_is_committed(
    tmp_path: Path, copy: dict[str, Any]
) -> None:
    """The place to begin is not behind a message in flight: the origin may take what is before it for acked."""
    options = JetStreamOptions(store_dir=str(tmp_path), max_memory=-1, max_file=-1)
    world = ApiWorld(stores=lambda io: open_stores(options, LakeOptions(), io))
    world.create("O", subjects=["o.>"])
    world.create("C", **copy)
    run(world, 0.5)
    world.hub.join(Subscription(world.client, b"$JS.API.CONSUMER.CREATE.>", b"", b"2"))
    world.send("o.a", b"x")
    world.clock.turn()
    pipeline = world.stream("C").pipeline
    while not pipeline.batches():
        world.io.work()
        world.clock.turn()
    one(world, "C").session._attempt()
    world.clock.turn()

    def begins() -> list[int]:
        """Return the places at which the copy asked to begin."""
        asked = [body for subject, _, body in world.client.got if subject.startswith(b"$JS.API.CONSUMER.CREATE.")]
        return [json.loads(body)["config"]["opt_start_seq"] for body in asked]

    assert (begins(), len(pipeline.batches())) == ([], 1)
    world.settle()
    assert (begins(), len(pipeline.batches())) == ([2], 0)


@pytest.mark.parametrize("body", [None, {"last_by_subj": "o.a"}], ids=["subject", "body"])
@pytest.mark.parametrize("copy", [{"mirror": {"name": "O"}}, {"sources": [{"name": "O"}]}], ids=["mirror", "source"])
def test_a_get_waits_for_what_has_come_of_its_subject(
    tmp_path: Path, copy: dict[str, Any], body: dict[str, str] | None
) -> None:
    """The client has the origin's ack already, so it must not get the value before. Other subjects do not wait."""
    options = JetStreamOptions(store_dir=str(tmp_path), max_memory=-1, max_file=-1)
    world = ApiWorld(stores=lambda io: open_stores(options, LakeOptions(), io))
    world.create("O", subjects=["o.>"])
    for subject in ("o.a", "o.b"):
        world.publish(subject, b"before")
    world.create("C", allow_direct=True, **copy)
    run(world, 1)
    assert world.state("C")["messages"] == 2

    def get(subject: str) -> bytes:
        if body is None:
            return world.send(f"$JS.API.DIRECT.GET.C.{subject}")
        return world.send("$JS.API.DIRECT.GET.C", {"last_by_subj": subject})

    world.send("o.a", b"after")
    world.clock.turn()
    world.io.work()  # the origin's write
    world.clock.turn()
    assert world.stream("C").store.last_seq == 2
    assert len(world.stream("C").pipeline) == 1, "the copy is on its way"
    asked = get("o.a")
    assert world.answers(asked) == []
    assert world.answers(get("o.b"))[0][1] == b"before"
    world.settle()
    assert world.answers(asked)[0][1] == b"after"
