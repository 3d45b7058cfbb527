"""Tests of many consumers on one stream: a message reaches those whose filters match, at no cost for the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.protocol.subjects import matches
from lakestream.stream.consumer.filter_index import LINEAR_MATCH_LIMIT as FEW
from tests.unit.consumer_world import World

pytestmark = pytest.mark.unit

TOKENS = ("a", "b", "c")
FILTERS = ["s.a", "s.b", "s.c.a", "s.*", "s.*.a", "s.a.>", "s.*.*", "s.>", "s.b.c", "s.c.*"]
SUBJECTS = [f"s.{one}" for one in TOKENS] + [f"s.{one}.{other}" for one in TOKENS for other in TOKENS]


def crowd(world: World, chance: random.Random, number: int) -> dict[str, str]:
    """Create `number` consumers; return the filter of each."""
    wanted = {f"c{at}": chance.choice(FILTERS) for at in range(number)}
    for name, one in wanted.items():
        world.consumer(name, filter_subject=one)
    return wanted


@pytest.mark.parametrize("seed", range(5))
def test_every_consumer_that_matches_a_subject_is_found(seed: int) -> None:
    world, chance = World(), random.Random(seed)
    world.stream(subjects=["s.>"])
    wanted = crowd(world, chance, 3 * FEW)
    world.consumer("all")
    index = world.engine.streams["S"].consumers.index
    for subject in SUBJECTS:
        found = [consumer.name for consumer in index.of(subject.encode())]
        assert len(found) == len(set(found))
        mine = {name for name, one in wanted.items() if matches(one.encode(), subject.encode())}
        assert set(found) == mine | {"all"}
    some = chance.sample(SUBJECTS, 3)
    union = {consumer.name for subject in some for consumer in index.of(subject.encode())}
    assert {consumer.name for consumer in index.of_all([one.encode() for one in some])} == union


@pytest.mark.parametrize("seed", range(5))
def test_the_index_follows_consumers_that_come_change_and_go(seed: int) -> None:
    world, chance = World(), random.Random(seed)
    world.stream(subjects=["s.>"])
    wanted = crowd(world, chance, 2 * FEW)
    index = world.engine.streams["S"].consumers.index
    for step in range(6 * FEW):
        name = chance.choice(sorted(wanted))
        how = chance.randrange(3) if step < 4 * FEW else 0  # at last there are few, then many again
        if how == 0 and len(wanted) > 1:
            world.ask(f"CONSUMER.DELETE.S.{name}")
            del wanted[name]
        else:
            name = name if how == 1 else f"n{step}"
            wanted[name] = chance.choice(FILTERS)
            world.consumer(name, filter_subject=wanted[name])
        for subject in SUBJECTS:
            found = {consumer.name for consumer in index.of(subject.encode())}
            mine = {name for name, one in wanted.items() if matches(one.encode(), subject.encode())}
            assert found == (mine if len(wanted) > FEW else set(wanted))
    wanted |= {f"m{at}": "s.>" for at in range(2 * FEW)}
    for at in range(2 * FEW):
        world.consumer(f"m{at}", filter_subject="s.>")
    assert {each.name for each in index.of(b"s.zz")} == {name for name, one in wanted.items() if one in ("s.>", "s.*")}


def test_a_message_wakes_only_matching_consumers() -> None:
    world = World()
    world.stream(subjects=["s.>"])
    for number in range(3 * FEW):
        world.consumer(f"c{number}", filter_subject=f"s.{number}")
    woken = []
    for consumer in world.engine.streams["S"].consumers.values():
        consumer.delivery.stored = lambda name=consumer.name: woken.append(name)  # type: ignore[method-assign, misc]
    world.store("s.7", "s.7", "s.nobody", "s.11")
    assert sorted(woken) == ["c11", "c7"]


@pytest.mark.parametrize("seed", range(4))
def test_numbers_and_deliveries_stay_exact_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Counters and deliveries stay exact through random operations.

    Publishing, pulling, deleting, purging, changed filters, consumers that are created and deleted, a restart.
    """
    world, chance = World(tmp_path), random.Random(seed)
    world.stream(subjects=["s.>"], max_msgs_per_subject=chance.choice([-1, 3]))
    wanted = crowd(world, chance, FEW + 10)
    store = world.engine.streams["S"].store
    position = dict.fromkeys(wanted, 0)
    for step in range(150):
        name = chance.choice(sorted(wanted))
        match chance.randrange(12):
            case 0:
                world.ask("STREAM.MSG.DELETE.S", {"seq": chance.randrange(1, store.last_seq + 2)})
            case 1:
                world.ask("STREAM.PURGE.S", {"filter": chance.choice(SUBJECTS)})
            case 2:
                wanted[name] = chance.choice(FILTERS)
                ledger = world.engine.streams["S"].consumers[name].ledger
                position[name] = ledger.next_seq - 1  # messages before it are not delivered again
                world.consumer(name, filter_subject=wanted[name])
            case 3:
                world.ask(f"CONSUMER.DELETE.S.{name}")
                world.consumer(name, filter_subject=wanted[name])
                position[name] = 0
            case 4 if step % 3 == 0:
                world.engine.node.close()
                world = World(tmp_path)
                stream = world.engine.streams["S"]
                store = stream.store
                for each, consumer in stream.consumers.items():  # what it passed over is looked at again
                    position[each] = min(position[each], consumer.ledger.next_seq - 1)
            case 5 | 6 | 7:  # a later message answers it, if the request still waits
                world.next({"batch": chance.randrange(1, 6), "no_wait": chance.random() < 0.5}, name)
            case _:
                world.store(*chance.choices(SUBJECTS, k=chance.randrange(1, 6)))
        for message in world.client.taken():
            if message.reply:
                owner = message.reply.split(".")[3]
                wanting = [
                    seq
                    for seq in range(position[owner] + 1, message.seq)
                    if seq in store.live and matches(wanted[owner].encode(), store.subject_of(seq))
                ]
                assert not wanting, (step, owner, message.seq)
                assert message.seq > position[owner]
                position[owner] = message.seq
        for name in chance.sample(sorted(wanted), 3):  # some have counted and hear of removals, others are idle
            one = wanted[name]
            left = [seq for seq in range(position[name] + 1, store.last_seq + 1) if seq in store.live]
            exact = sum(matches(one.encode(), store.subject_of(seq)) for seq in left)
            assert world.engine.streams["S"].consumers[name].feed.pending() == exact, (step, name)
    world.engine.node.close()


def test_removed_messages_are_reported_only_to_consumers_that_counted_or_delivered_some() -> None:
    """Each removed message was reported to every consumer whose filters match it: 25 us for 200 idle ones."""
    world = World()
    world.stream(subjects=["s.>"], max_msgs=5)
    told: list[str] = []
    for number in range(2 * FEW):
        consumer = world.consumer(f"c{number}")
        removed = consumer.removed

        def spy(
            seq: int, subject: bytes, report: Callable[[int, bytes], bool] = removed, name: str = f"c{number}"
        ) -> bool:
            told.append(name)
            return report(seq, subject)

        consumer.removed = spy  # type: ignore[method-assign]
    world.store(*["s.a"] * 5)
    world.store("s.a")  # the first report: new consumers are among those that may hold messages
    told.clear()
    world.pull(1, "c3")
    world.info("c4")
    world.store("s.a", "s.a")
    assert sorted(told) == ["c3", "c3", "c4", "c4"]
    told.clear()
    assert world.info("c4")["num_pending"] == 5
    for message in [*world.pull(5, "c3"), *world.pull(5, "c4")]:
        world.ack(message)
    world.store("s.a")  # the last report: both have nothing any more
    told.clear()
    world.store(*["s.a"] * 6)
    assert not told


def test_a_message_that_a_consumer_would_not_want_now_ends_its_wait_for_the_ack() -> None:
    """A message that no longer matches the filter ends its ack wait when it is removed.

    The filter was changed while the message was unacked.
    """
    world = World()
    world.stream(subjects=["s.>"])
    for number in range(2 * FEW):
        world.consumer(f"c{number}", filter_subject=f"s.{number}")
    world.store("s.1")
    world.pull(1, "c1")
    world.consumer("c1", filter_subject="s.other")
    assert world.numbers("c1")[2] == 1
    world.ask("STREAM.MSG.DELETE.S", {"seq": 1})
    assert world.numbers("c1")[2] == 0


@pytest.mark.parametrize("others", [0, FEW + 1])
@pytest.mark.parametrize(("waiting", "applied"), [(True, 1), (False, 0)])
def test_a_lone_pub_ack_waits_for_its_message_to_be_applied_only_where_a_consumer_does(
    tmp_path: Path, others: int, waiting: bool, applied: int
) -> None:
    """Else the client would have the ack before the delivery."""
    world = World(tmp_path)
    world.stream()
    for number in range(others):
        world.consumer(f"idle{number}", filter_subject="s.a")
    world.consumer("c", filter_subject="s.a")
    if waiting:
        world.next({"batch": 1, "expires": 10**12})
        world.clock.turn()
    store, seen = world.engine.streams["S"].store, list[int]()
    world.client.receive = lambda sub, message, client: (  # type: ignore[method-assign]
        seen.append(store.msgs) if message.subject.startswith(b"_INBOX.me.ack") else None
    )
    world.publish("s.a", b"x", "_INBOX.me.ack")
    world.clock.turn()
    assert seen == [applied]
