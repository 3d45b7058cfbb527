"""Tests of mirrors that begin as clones of their origins' tables, through real servers, as clients see them."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage import paths
from lakestream_spark.write.compactor import Compactor
from tests.chaos.copies import contents
from tests.lake import tables
from tests.servers import Kind, Server
from tests.wire import Frame, Wire, pub

pytestmark = pytest.mark.lake

CONFIG = """
lake { seal_bytes: 16384, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
SOON_S = 240.0
ALWAYS = {"lakestream.clone": "always"}


class Compaction:
    """Compactor as in the job, in a thread. It handles mirrors' clone requests unless it is paused."""

    def __init__(self, spark: Any, lake: Path) -> None:
        self.failures: list[str] = []
        self._compactor = Compactor(
            spark, str(lake), report=lambda batch: self.failures.extend(batch.failures.values())
        )
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._sweeping = threading.Lock()
        assert self._compactor.acquire()
        self._compactor.start(0.2)
        self._wanted.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            with self._sweeping:
                if self._wanted.is_set():
                    self._compactor.tend()

    def pause(self) -> None:
        """Stop handling clone requests, but stay registered."""
        self._wanted.clear()
        with self._sweeping:  # wait for the sweep in progress
            return

    def go_on(self) -> None:
        """Handle clone requests again."""
        self._wanted.set()

    def leave(self) -> None:
        """Deregister as a compactor."""
        self.pause()
        self._compactor.release()

    def come_back(self) -> None:
        """Register again."""
        assert self._compactor.acquire()
        self.go_on()

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()
        self._compactor.stop()
        self._compactor.release()


class World:
    """Server, its compactor, and a stream O whose first messages are in its table."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.server = Server(Kind.OURS, directory / "store", config=CONFIG)
        self.server.start()
        self.lake = directory / "store" / "lake"
        self.compaction = Compaction(spark, self.lake)

    def begin(self) -> None:
        """Create and compact the stream."""
        with self.wire() as wire:
            # Otherwise its mirrors would answer direct gets for it.
            create(wire, "O", subjects=["o.*"], allow_direct=False)
            publish(wire, 1, 300)
            for seq in (1, 2, 70, 71, 200):
                wire.api("STREAM.MSG.DELETE.O", {"seq": seq})
        self.until_compacted("O", 300)

    def wire(self) -> Wire:
        """Return a new connection."""
        return Wire(self.server.address, timeout=30)

    def until_compacted(self, name: str, last_seq: int) -> None:
        """Wait until the stream's table has everything through a sequence."""
        eventually(lambda: in_table(self.lake, name) >= last_seq)

    def base_of(self, name: str) -> Path:
        """Return the file that shows that a stream began as a clone."""
        return self.server.store / "jetstream" / "$G" / "streams" / name / "base" / "checkpoint"

    def stop(self) -> None:
        """Stop compactor and server."""
        self.server.kill()
        self.compaction.stop()
        assert self.compaction.failures == []


def in_table(lake: Path, name: str) -> int:
    """Return the last sequence in a stream's table."""
    return max((row.seq for row in _rows(paths.table(str(lake), name))), default=0)


def _rows(table: str) -> list[Any]:
    return tables.records(table) if any(Path(table, "_delta_log").glob("*.json")) else []


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(spark, tmp_path_factory.mktemp("forks"))
    try:
        world.begin()
        yield world
    finally:
        world.stop()


def eventually(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true, for effects that other processes show in files and answers only."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def create(wire: Wire, name: str, **config: Any) -> dict[str, Any]:
    """Create a stream."""
    answer: dict[str, Any] = wire.api(f"STREAM.CREATE.{name}", {"name": name, "allow_direct": True, **config})
    assert "error" not in answer, answer
    return answer


def publish(wire: Wire, first: int, count: int) -> None:
    """Publish messages to O, some with headers, on four subjects."""
    replies = [(number, wire.new_reply()) for number in range(first, first + count)]
    headers = [{"N": str(number)} if number % 3 else None for number, _ in replies]
    wire.send(
        b"".join(
            pub(f"o.{'abcd'[number % 4]}", b"%d " % number * (number % 50), reply, some)
            for (number, reply), some in zip(replies, headers, strict=True)
        )
    )
    for _, reply in replies:
        assert b'"seq"' in wire.message(reply).data


def held(wire: Wire, name: str, by_leader: bool = False) -> dict[int, tuple[str, str, str, bytes]]:
    """Return a stream's messages by sequence, by direct gets, or from the leader for O, which has none."""

    def shown(frame: Frame) -> tuple[str, str, str, bytes]:
        fields = frame.headers
        return fields["Nats-Subject"], fields["Nats-Time-Stamp"], fields.get("N", ""), frame.data

    if name != "O" and not by_leader:
        return {seq: shown(frame) for seq, frame in contents(wire, name).items()}
    found: dict[int, tuple[str, str, str, bytes]] = {}
    while "error" not in (
        answer := wire.api(f"STREAM.MSG.GET.{name}", {"seq": max(found, default=0) + 1, "next_by_subj": ">"})
    ):
        message = answer["message"]
        block = base64.b64decode(message.get("hdrs", "")).decode()
        number = block.partition("\r\nN: ")[2].partition("\r\n")[0]
        data = base64.b64decode(message.get("data", ""))
        found[message["seq"]] = message["subject"], message["time"], number, data
    return found


def state(wire: Wire, name: str) -> dict[str, Any]:
    """Return the state in STREAM.INFO."""
    found: dict[str, Any] = wire.api(f"STREAM.INFO.{name}")["state"]
    return found


def until_copied(wire: Wire, name: str, origin: str = "O") -> None:
    """Wait until a mirror has every message of its origin."""

    def copied() -> bool:
        info = wire.api(f"STREAM.INFO.{name}")
        wanted = state(wire, origin)["last_seq"]
        return (
            bool(info["mirror"]["active"] >= 0) and info["state"]["last_seq"] == wanted and info["mirror"]["lag"] == 0
        )

    eventually(copied)


def until_begun(wire: Wire, name: str) -> None:
    """Wait until a mirror holds the messages that it begins with."""
    eventually(lambda: state(wire, name)["last_seq"] > 0)


def delivered(wire: Wire, name: str, count: int, filter_subject: str = "") -> list[tuple[str, bytes]]:
    """Return the first messages that a new consumer of a stream delivers."""
    config = {"ack_policy": "none", "deliver_policy": "all", "filter_subject": filter_subject, "mem_storage": True}
    consumer = wire.api(f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": config})["name"]
    return fetched(wire, name, consumer, count)


def fetched(wire: Wire, name: str, consumer: str, count: int) -> list[tuple[str, bytes]]:
    """Return `count` messages of a pull consumer."""
    reply = wire.new_reply()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}", b'{"batch":%d,"expires":60000000000}' % count, reply)
    found: list[tuple[str, bytes]] = []
    while len(found) < count:
        frame = wire.next(lambda frame: frame.sid == wire.inbox_sid and frame.subject[:2] in ("o.", wire.inbox[:2]))
        assert not frame.status, (frame.status, len(found))
        found.append((frame.subject, frame.data))
    return found


def test_a_mirror_begins_as_a_clone_and_goes_on_after_it(world: World) -> None:
    """A mirror begins as a clone and continues from there.

    A consumer made before the clone gets all of it; so do direct gets, also after a kill.
    """
    with world.wire() as wire:
        create(wire, "M", mirror={"name": "O"}, metadata=ALWAYS)
        config = {"durable_name": "early", "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": 1000}
        made = wire.api("CONSUMER.DURABLE.CREATE.M.early", {"stream_name": "M", "config": config})
        assert "error" not in made, made
        publish(wire, 301, 40)
        until_copied(wire, "M")
        assert world.base_of("M").exists()
        wanted, info = held(wire, "O"), state(wire, "O")
        assert held(wire, "M") == wanted
        for field in (
            "messages",
            "bytes",
            "first_seq",
            "last_seq",
            "first_ts",
            "last_ts",
            "num_subjects",
            "num_deleted",
        ):
            assert state(wire, "M").get(field) == info.get(field), field
        got = fetched(wire, "M", "early", len(wanted))
        assert [data for _, data in got] == [data for *_, data in wanted.values()]
        some = [(subject, data) for subject, _, _, data in wanted.values() if subject == "o.b"]
        assert [data for _, data in delivered(wire, "M", len(some), "o.b")] == [data for _, data in some]
    world.server.kill()
    world.server.start()
    with world.wire() as wire:
        assert held(wire, "M") == wanted
        publish(wire, 341, 60)
        wire.api("STREAM.MSG.DELETE.M", {"seq": 100})
        until_copied(wire, "M")
        world.until_compacted("M", 400)
        wanted = {seq: row for seq, row in held(wire, "O").items() if seq != 100}
        assert held(wire, "M") == wanted
        table = paths.table(str(world.lake), "M")
        eventually(lambda: [row.seq for row in tables.records(table)] == list(wanted))
        assert [row.data for row in tables.records(table)] == [data for *_, data in wanted.values()]


def test_a_mirror_that_selects_begins_with_what_it_selects(world: World) -> None:
    with world.wire() as wire:
        transforms = [{"src": "o.b", "dest": "of.b.here"}, {"src": "o.c", "dest": ""}]
        create(wire, "F", mirror={"name": "O", "filter_subject": "o.a"}, metadata=ALWAYS)
        create(wire, "T", mirror={"name": "O", "subject_transforms": transforms}, metadata=ALWAYS)
        create(
            wire,
            "PLAIN",
            mirror={"name": "O", "subject_transforms": transforms},
            metadata={"lakestream.clone": "never"},
        )
        wanted = held(wire, "O")
        last = max(wanted)
        for name in ("F", "T", "PLAIN"):
            eventually(lambda name=name: state(wire, name)["last_seq"] >= last - 3)  # type: ignore[misc]
        publish(wire, last + 1, 8)
        wanted = held(wire, "O")
        eventually(lambda: state(wire, "F")["last_seq"] == max(s for s, row in wanted.items() if row[0] == "o.a"))
        eventually(lambda: state(wire, "T")["messages"] == state(wire, "PLAIN")["messages"] > 0)
        assert world.base_of("F").exists()
        assert world.base_of("T").exists()
        assert not world.base_of("PLAIN").exists()
        assert held(wire, "F") == {seq: row for seq, row in wanted.items() if row[0] == "o.a"}
        assert held(wire, "T") == held(wire, "PLAIN")


def test_a_mirror_of_a_moment_is_its_origin_then_and_follows_no_further(world: World) -> None:
    with world.wire() as wire:
        wanted = {seq: row for seq, row in held(wire, "O").items() if seq <= 250}
        create(wire, "A", mirror={"name": "O"}, metadata={"lakestream.clone_as_of": "250"})
        until_begun(wire, "A")
        assert held(wire, "A") == wanted
        publish(wire, state(wire, "O")["last_seq"] + 1, 20)
        world.server.kill()
        world.server.start()
    with world.wire() as wire:
        info = wire.api("STREAM.INFO.A")
        assert (info["state"]["last_seq"], info["mirror"]["active"]) == (250, -1)
        assert held(wire, "A") == wanted
        refused = wire.api(
            "STREAM.CREATE.B",
            {"name": "B", "mirror": {"name": "O", "opt_start_seq": 9}, "metadata": {"lakestream.clone_as_of": "250"}},
        )
        assert refused["error"]["err_code"] == 10052


def test_a_kill_while_the_copy_is_made_leaves_a_mirror_that_is_whole_in_the_end(world: World) -> None:
    """After a kill during cloning the mirror becomes complete.

    Once before the compactor has seen the request, and once right after the clone is made. Meanwhile reads are
    answered.
    """
    world.compaction.pause()
    with world.wire() as wire:
        wire.api("STREAM.MSG.DELETE.O", {"seq": 9})  # messages deleted by now must not come back with an older table
        create(wire, "K", mirror={"name": "O"}, metadata=ALWAYS)
        request = next((world.lake / "segments").glob("K"), None)
        eventually(lambda: any((world.lake / "segments" / "K").glob("*/clone.json")))
        assert request is None or request.exists()
        refused = wire.api(
            "STREAM.UPDATE.K", {"name": "K", "allow_direct": True, "metadata": ALWAYS, "subjects": ["k"]}
        )
        assert "try again" in refused["error"]["description"]
        assert state(wire, "K")["last_seq"] == 0
        assert held(wire, "K") == held(wire, "K", by_leader=True) == held(wire, "O")
        reply = wire.new_reply()
        wire.publish("$JS.API.DIRECT.GET.K.o.b", b"", reply)
        newest = wire.message(reply)
        assert (newest.headers["Nats-Stream"], newest.headers["Nats-Subject"]) == ("K", "o.b")
    world.server.kill()
    world.compaction.go_on()
    eventually(lambda: any((world.lake / "segments" / "K").glob("*/cloned.json")))
    world.server.start()
    world.server.kill()
    world.server.start()
    with world.wire() as wire:
        until_copied(wire, "K")
        assert held(wire, "K") == held(wire, "O")
        assert world.base_of("K").exists()


def test_without_a_compactor_a_mirror_reads_its_origin_itself(world: World) -> None:
    """Without a compactor a mirror reads its origin through the server.

    Its table is right once there is a compactor.
    """
    world.compaction.leave()
    with world.wire() as wire:
        create(wire, "N", mirror={"name": "O"}, metadata=ALWAYS)
        until_copied(wire, "N")
        assert not world.base_of("N").exists()
        wanted = held(wire, "O")
        assert held(wire, "N") == wanted
        world.compaction.come_back()
        table = paths.table(str(world.lake), "N")
        eventually(lambda: [row.seq for row in _rows(table)] == list(wanted))
