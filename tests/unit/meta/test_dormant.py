"""Tests of streams that are known and not open: after a clean stop, and once nobody uses them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.store.root import DORMANT
from lakestream.net.interest.interest import Subscription
from lakestream.ports import Single
from lakestream.stream import dormant
from tests.unit.account.test_engines import World
from tests.unit.api_world import Client
from tests.unit.stream_world import CLIENT

pytestmark = pytest.mark.unit

IDLE_NS = 60_000_000_000
SECOND = 1_000_000_000
CREATE = "$JS.API.CONSUMER.CREATE.S.c"
DURABLE = {"durable_name": "c", "ack_policy": "explicit"}


class Requesting(Client):
    """Client that notes requests without responders, too."""

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        self.got.append((reply, b"NATS/1.0 503", b""))


def world_of(directory: Path, *accounts: str, **options: Any) -> World:
    return World(directory, *(accounts or ("A",)), **{"close_idle_ns": IDLE_NS} | options)


def filled(directory: Path, messages: int = 3, **config: Any) -> World:
    """Return a world with a stream that has messages."""
    world = world_of(directory)
    world.create("A", **config)
    for n in range(messages):
        assert world.publish("A", data=b"%d" % n)["seq"] == n + 1
    return world


def restarted(world: World, **options: Any) -> World:
    world.stop()
    return world_of(world.directory, **options)


def is_open(world: World, name: str = "S", account: str = "A") -> bool:
    engine = world.engines.of(account)
    assert (name in engine.streams) is not (name in engine.dormant)
    return name in engine.streams


def info(world: World) -> Any:
    found = world.ask("A", "$JS.API.STREAM.INFO.S")
    del found["ts"]
    return found


def sent(world: World, *messages: Single) -> Client:
    """Send messages in one turn, before anything is done in threads; return who gets all answers in the end."""
    hub, got = world.hub("A"), Requesting()
    hub.join(Subscription(got, b"_INBOX.me.answers", b"", b"3"))
    for one in messages:
        hub.route(None, CLIENT, one)
    world.settle()
    return got


# ---------------------------------------------------------------- a start after a clean stop
def test_a_start_after_a_clean_stop_opens_no_stream_and_shows_all_of_them(tmp_path: Path) -> None:
    world = filled(tmp_path, subjects=["S", "s.*"], description="d")
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    world.create("A", "EMPTY")
    world.ask("A", "$JS.API.STREAM.MSG.DELETE.S", {"seq": 2, "no_erase": True})
    asked = ("STREAM.NAMES", "STREAM.LIST", "INFO")
    before = info(world), [world.ask("A", f"$JS.API.{each}") for each in asked], world.engines.of("A").use.used
    world = restarted(world)
    after = info(world), [world.ask("A", f"$JS.API.{each}") for each in asked], world.engines.of("A").use.used
    for shown in (*before[1], *after[1]):
        shown.pop("api", None)
        for each in shown["streams"] if isinstance(shown.get("streams"), list) else ():
            if isinstance(each, dict):
                del each["ts"]
    assert after == before
    assert before[0]["state"]["num_deleted"] == before[0]["state"]["consumer_count"] == 1
    assert not is_open(world)
    assert not is_open(world, "EMPTY")
    world.stop()


def test_a_stream_that_was_never_opened_stays_so_over_restarts(tmp_path: Path) -> None:
    world = filled(tmp_path)
    for _ in range(3):
        world = restarted(world)
        assert not is_open(world)
    assert world.publish("A")["seq"] == 4
    world.stop()


def test_publishes_wait_for_their_stream_in_order_and_other_streams_do_not(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.create("A", "OTHER")
    world = restarted(world)
    assert world.publish("A", "OTHER")["seq"] == 1
    hub, got = world.hub("A"), Client()
    hub.join(Subscription(got, b"_INBOX.me.*", b"", b"3"))
    for n in range(4):
        hub.route(None, CLIENT, Single(b"S", b"_INBOX.me.s", b"", b"new %d" % n))
    world.clock.turn()
    assert got.got == []
    assert world.publish("A", "OTHER")["seq"] == 2
    assert [json.loads(each[2])["seq"] for each in got.got if each[0] == b"_INBOX.me.s"] == [4, 5, 6, 7]
    stream = world.engines.of("A").streams["S"]
    assert [record.data for record in stream.store.read_run(4, 10, 1 << 20)] == [b"new %d" % n for n in range(4)]
    world.stop()


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("$JS.API.STREAM.INFO.S", {"subjects_filter": ">"}),
        ("$JS.API.STREAM.MSG.GET.S", {"seq": 2}),
        ("$JS.API.STREAM.PURGE.S", b""),
        ("$JS.API.STREAM.UPDATE.S", {"name": "S", "allow_direct": True, "description": "new"}),
        ("$JS.API.STREAM.CREATE.S", {"name": "S", "allow_direct": True}),
        ("$JS.API.CONSUMER.NAMES.S", b""),
        ("$JS.API.CONSUMER.INFO.S.c", b""),
        (CREATE, {"stream_name": "S", "config": DURABLE}),
    ],
)
def test_requests_open_their_stream(tmp_path: Path, subject: str, body: Any) -> None:
    world = filled(tmp_path, allow_direct=True)
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    world = restarted(world)
    assert not is_open(world)
    answer = world.ask("A", subject, body)
    assert "error" not in answer
    assert is_open(world)
    assert world.ask("A", subject, body).keys() == answer.keys()
    world.stop()


def test_direct_gets_open_their_stream(tmp_path: Path) -> None:
    world = filled(tmp_path, allow_direct=True)
    world = restarted(world)
    got = sent(
        world,
        Single(b"$JS.API.DIRECT.GET.S.S", b"_INBOX.me.answers"),
        Single(b"$JS.API.DIRECT.GET.S", b"_INBOX.me.answers", b"", b'{"seq":1}'),
        Single(b"$JS.API.DIRECT.GET.S.none", b"_INBOX.me.answers"),
    )
    assert [(payload, header[:12]) for _, header, payload in got.got] == [
        (b"2", b"NATS/1.0\r\nNa"),
        (b"0", b"NATS/1.0\r\nNa"),
        (b"", b"NATS/1.0 404"),
    ]
    world.stop()


def test_a_pull_request_and_an_ack_open_the_stream(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    got = sent(world, Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.answers"))
    assert got.got[-1][2] == b"0"
    ack = world.engines.of("A").streams["S"].consumers["c"].ledger
    assert len(ack.pending) == 1
    subject = b"$JS.ACK.S.c.1.1.1.%d.2" % world.clock.now()
    sent(world, Single(subject, b"_INBOX.me.answers"))
    world = restarted(world)
    assert not is_open(world)
    assert sent(world, Single(subject, b"_INBOX.me.answers")).got, "late, and answered as ever"
    assert is_open(world)
    world = restarted(world)
    assert not is_open(world)
    got = sent(world, Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.answers"))
    assert [payload for _, _, payload in got.got] == [b"1"]
    world.stop()


def test_a_request_of_a_consumer_that_does_not_exist_has_no_responders(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    world = restarted(world)
    got = sent(world, Single(b"$JS.API.CONSUMER.MSG.NEXT.S.d", b"_INBOX.me.answers"))
    assert [header[:12] for _, header, _ in got.got] == [b"NATS/1.0 503"]
    world.stop()


def test_a_dormant_stream_is_deleted_with_its_files(tmp_path: Path) -> None:
    world = restarted(filled(tmp_path))
    assert world.ask("A", "$JS.API.STREAM.DELETE.S")["success"]
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    world = restarted(world)
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    world.create("A")
    assert world.publish("A")["seq"] == 1
    world.stop()


def test_a_purge_of_the_account_removes_dormant_streams(tmp_path: Path) -> None:
    world = restarted(filled(tmp_path))
    world.engines.purge("A")
    world.settle()
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    assert not list((tmp_path / "jetstream/A/streams").glob("S"))
    world.stop()


def test_an_account_that_loses_jetstream_has_its_dormant_streams_again_with_it(tmp_path: Path) -> None:
    world = restarted(filled(tmp_path))
    world.engines.withdraw("A")
    world.settle()
    assert not world.engines.node.meta.state.by_uid
    assert world.publish("A") is None
    world.engines.serve("A")
    world.settle()
    assert world.publish("A")["seq"] == 4
    world.stop()


def test_subjects_and_names_of_dormant_streams_are_taken(tmp_path: Path) -> None:
    world = restarted(filled(tmp_path, subjects=["S", "s.>"]))
    assert world.ask("A", "$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["s.1"]})["error"]["err_code"] == 10065
    assert world.ask("A", "$JS.API.STREAM.CREATE.S", {"name": "S"})["error"]["err_code"] == 10058
    world.stop()


# ---------------------------------------------------------------- streams that have something to do
def test_a_stream_whose_consumer_waits_for_an_ack_is_opened(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    sent(world, Single(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_INBOX.me.answers"))
    world = restarted(world)
    assert is_open(world)
    world.stop()


def test_a_stream_with_a_push_consumer_is_opened(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.ask("A", CREATE, {"stream_name": "S", "config": {**DURABLE, "deliver_subject": "d"}})
    world = restarted(world)
    assert is_open(world)
    world.stop()


def test_a_stream_with_sources_is_opened_and_has_its_origin_opened(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.create("A", "T", sources=[{"name": "S"}])
    world = restarted(world)
    assert is_open(world, "T")
    world.stop()


def test_a_message_expires_in_a_stream_that_nobody_uses(tmp_path: Path) -> None:
    world = filled(tmp_path, max_age=100 * SECOND)
    world = restarted(world)
    assert not is_open(world)
    world.clock.advance(99 * SECOND)
    world.settle()
    assert not is_open(world)
    world.clock.advance(2 * SECOND)
    world.settle()
    for _ in range(10):
        world.clock.advance(SECOND)
        world.settle()
    assert is_open(world)
    assert info(world)["state"]["messages"] == 0
    world.stop()


def test_a_message_that_expired_while_the_server_was_down_is_gone_soon(tmp_path: Path) -> None:
    world = filled(tmp_path, max_age=SECOND)
    world.clock.advance(0)
    world.stop()
    (held,) = dormant.take(world.stores.files, world.stores.root).values()
    held.acts_at = world.clock.steady() - 1
    dormant.leave(world.stores.files, world.stores.root, [held])
    world = world_of(tmp_path)
    assert is_open(world)
    world.stop()


# ---------------------------------------------------------------- anything doubtful
def test_after_a_kill_every_stream_is_opened(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world = restarted(world)
    assert not is_open(world)
    assert not (tmp_path / "jetstream" / DORMANT).exists()
    world.stores.close()  # and no more: the process is killed
    world = world_of(tmp_path)
    assert is_open(world)
    world.stop()


@pytest.mark.parametrize("kind", ["cut", "flipped", "empty", "of another release"])
def test_a_file_that_cannot_be_used_is_removed_and_every_stream_is_opened(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path).stop()
    path = tmp_path / "jetstream" / DORMANT
    content = bytearray(path.read_bytes())
    if kind == "flipped":
        content[len(content) // 2] ^= 1
    if kind == "of another release":
        monkeypatch.setattr("lakestream.__version__", "0.0.1")
    path.write_bytes(content[: {"cut": len(content) - 1, "empty": 0}.get(kind, len(content))])
    world = world_of(tmp_path)
    assert is_open(world)
    assert not path.exists()
    assert info(world)["state"]["messages"] == 3
    world.stop()


def test_a_stream_that_another_release_has_written_to_is_opened(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.create("A", "OTHER")
    world.stop()
    left = (tmp_path / "jetstream" / DORMANT).read_bytes()
    older = World(tmp_path, "A")  # as it knows no such file, it leaves it
    assert older.publish("A")["seq"] == 4
    older.stop()
    (tmp_path / "jetstream" / DORMANT).write_bytes(left)
    world = world_of(tmp_path)
    assert is_open(world)
    assert not is_open(world, "OTHER")
    assert info(world)["state"]["last_seq"] == 4
    world.stop()


def test_a_stream_that_was_removed_or_put_there_by_hand_is_as_it_is_found(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.create("A", "GONE")
    world.stop()
    streams = tmp_path / "jetstream/A/streams"
    shutil.rmtree(streams / "GONE")
    (segment,) = (streams / "S/log").glob("*.seg")
    os.utime(segment, ns=(1, 1))
    world = world_of(tmp_path)
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] == ["S"]
    assert is_open(world)
    world.stop()


def test_a_stream_that_cannot_be_opened_is_offline_and_answers_what_waits(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.stop()
    (segment,) = (tmp_path / "jetstream/A/streams/S/log").glob("*.seg")
    found = os.stat(segment)
    segment.write_bytes(b"?" * found.st_size)
    os.utime(segment, ns=(found.st_atime_ns, found.st_mtime_ns))
    world = world_of(tmp_path)
    assert not is_open(world)
    got = sent(world, Single(b"S", b"_INBOX.me.answers", b"", b"x"))
    assert [header[:12] for _, header, _ in got.got] == [b"NATS/1.0 503"]
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10194
    assert list(world.engines.of("A").offline) == ["S"]
    assert world.ask("A", "$JS.API.STREAM.DELETE.S")["success"]
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    world.stop()


def test_without_the_option_a_start_opens_every_stream(tmp_path: Path) -> None:
    world = restarted(filled(tmp_path), close_idle_ns=0)
    assert is_open(world)
    world = restarted(world)
    assert is_open(world), "it has left nothing"
    world.stop()


def test_publishes_beyond_what_may_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.meta.keeping.MAX_HELD_BYTES", 100)
    world = restarted(filled(tmp_path))
    got = sent(world, *(Single(b"S", b"_INBOX.me.answers", b"", b"x" * 60) for _ in range(2)))
    (refused,) = (header for _, header, _ in got.got if header)
    (stored,) = (json.loads(payload) for _, _, payload in got.got if payload)
    assert refused.startswith(b"NATS/1.0 503")
    assert stored["seq"] == 4
    world.stop()


# ---------------------------------------------------------------- streams that nobody uses
def looked(world: World, looks: int) -> None:
    world.stores.mark()  # of new logs, as every second
    for _ in range(looks):
        world.clock.advance(IDLE_NS // 4)
        world.settle()


def test_a_stream_that_nobody_uses_is_closed_until_its_next_use(tmp_path: Path) -> None:
    world = filled(tmp_path, allow_direct=True)
    world.ask("A", CREATE, {"stream_name": "S", "config": DURABLE})
    before = info(world)
    world.engines.node.start()
    looked(world, 6)
    assert not is_open(world)
    assert not world.engines.node.replicas.by_uid
    assert info(world) == before
    assert world.publish("A")["seq"] == 4
    assert is_open(world)
    looked(world, 6)
    assert not is_open(world)
    got = sent(world, Single(b"$JS.API.DIRECT.GET.S.S", b"_INBOX.me.answers"))
    assert got.got[0][2] == b"x"
    world.stop()


def test_a_stream_is_used_by_publishes_reads_and_waiting_pull_requests(tmp_path: Path) -> None:
    world = filled(tmp_path, 1, allow_direct=True)
    world.create("A", "READ", allow_direct=True)
    world.create("A", "PULLED")
    world.create("A", "IDLE")
    world.publish("A", "READ")
    world.ask("A", "$JS.API.CONSUMER.CREATE.PULLED.c", {"stream_name": "PULLED", "config": DURABLE})
    pull = Single(b"$JS.API.CONSUMER.MSG.NEXT.PULLED.c", b"_INBOX.me.answers")
    hub = world.hub("A")
    hub.join(Subscription(Client(), b"_INBOX.me.answers", b"", b"3"))
    hub.route(None, CLIENT, pull)
    world.settle()
    world.engines.node.start()
    for _ in range(8):
        looked(world, 1)
        world.publish("A")
        hub.route(None, CLIENT, Single(b"$JS.API.DIRECT.GET.READ.READ", b"_INBOX.me.answers"))
        world.settle()
    assert [name for name in ("S", "READ", "PULLED", "IDLE") if is_open(world, name)] == ["S", "READ", "PULLED"]
    world.stop()


def test_each_dormant_stream_is_opened_within_the_interval_of_verifications(tmp_path: Path) -> None:
    names, looks = [f"S{number}" for number in range(6)], 24
    world = world_of(tmp_path)
    for name in names:
        world.create("A", name, subjects=[name])
    world = restarted(world, scrub_interval_ns=looks * IDLE_NS // 4)
    opened = list[str]()
    world.engines.node.start()
    for _ in range(looks):
        looked(world, 1)
        opened += sorted({name for name in names if is_open(world, name)} - set(opened))
        assert sum(is_open(world, name) for name in names) < len(names)  # they are closed again
    assert sorted(opened) == names
    world.stop()


def test_a_new_stream_is_not_closed_before_its_files_are_durable(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.engines.node.start()
    for _ in range(6):
        world.clock.advance(IDLE_NS // 4)
        world.settle()
    assert is_open(world)
    looked(world, 1)
    assert not is_open(world)
    world.stop()


def test_what_comes_while_a_stream_is_being_closed_waits_for_it(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.engines.node.start()
    world.stores.mark()
    for _ in range(20):
        world.clock.advance(IDLE_NS // 4)
        if not is_open(world):
            break
        world.settle()
    assert world.io.waiting, "it is being closed"
    assert world.publish("A")["seq"] == 4
    assert is_open(world)
    world.stop()


def test_a_stream_closed_while_the_server_ran_is_known_to_the_next_start(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.engines.node.start()
    looked(world, 6)
    assert not is_open(world)
    world = restarted(world)
    assert not is_open(world)
    assert world.publish("A")["seq"] == 4
    world.stop()


def test_a_stream_whose_account_loses_jetstream_while_it_is_being_closed_is_not_served(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.engines.node.start()
    world.stores.mark()
    for _ in range(20):
        world.clock.advance(IDLE_NS // 4)
        if not is_open(world):
            break
        world.settle()
    world.engines.withdraw("A")
    world.settle()
    assert not world.engines.node.meta.state.by_uid
    world.engines.serve("A")
    world.settle()
    assert world.publish("A")["seq"] == 4
    world.stop()
