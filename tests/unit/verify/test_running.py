"""Tests of the verification of a running server: its table, what changes meanwhile, and what is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from lakestream import extras
from lakestream.log.store.export import FilesMoved
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import SegmentStore
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import Single
from lakestream.server import verification
from lakestream.server.verification import Verifier, VerifyApi
from lakestream_verify.running import IDLE_NS, OPEN, VerifyCall, VerifyOpened
from lakestream_verify.verification import POLL_NS
from tests.unit.account.test_engines import World
from tests.unit.api_world import Client
from tests.unit.stream_world import CLIENT
from tests.unit.verify.test_verify_lake import OPTIONS, commit

pytestmark = pytest.mark.unit


class Verified(World):
    """A server with a lake and the requests for verification."""

    def __init__(self, directory: Path, options: LogOptions = OPTIONS, most: int = 1) -> None:
        super().__init__(directory, "$G", lake=True)
        self.stores._options = options
        io: Any = self.io
        self.verifier = Verifier(self.engines.node, self.keeper.root, 0, most, lambda: io)
        VerifyApi(self.engines.of("$G"), self.verifier)

    def begin(self, stream: str = "S", **options: Any) -> Client:
        """Request a verification; return the client that gets the answer."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        got = Client()
        self.hub("$G").join(Subscription(got, reply, b"", b"2"))
        self.hub("$G").route(
            None, CLIENT, Single(f"$LAKE.API.VERIFY.{stream}".encode(), reply, b"", json.dumps(options).encode())
        )
        self.clock.turn()
        return got

    def end(self, got: Client) -> Any:
        """Let time pass until the answer comes; return it."""
        for _ in range(100):
            self.settle()
            if got.got:
                return json.loads(got.got[-1][2])
            self.clock.advance(POLL_NS)
        raise AssertionError("no answer")

    def verify(self, **options: Any) -> Any:
        return self.end(self.begin(**options))

    @property
    def links(self) -> list[Path]:
        return list(self.directory.rglob("verifying-*"))


@pytest.fixture
def world(tmp_path: Path) -> Verified:
    """Return a server with messages in the table only, in table and log, and in the log only."""
    world = Verified(tmp_path)
    world.create("$G", subjects=["s.>"])
    stream = world.engines.of("$G").streams["S"]
    for number in range(120):
        world.publish("$G", f"s.{number % 7}", b"%d" % number * 9)
        if number in (60, 100):
            stream.checkpoint()
            for _ in range(2):
                world.keeper.when_staged(stream, lambda wrong: None)
                world.settle()
                commit(tmp_path, world)
            world.keeper.when_staged(stream, lambda wrong: None)
            world.settle()
    assert stream.store.local_floor > 1
    return world


def table_of(world: World) -> DeltaTable:
    return DeltaTable(str(world.directory / "lake/streams/S"))


def test_log_and_table_of_a_running_server_agree(world: Verified) -> None:
    answer = world.verify()
    assert (answer["ok"], answer["findings"]) == (True, [])
    assert world.links == []
    assert world.publish("$G", "s.1")["seq"] == 121


def test_rows_that_the_table_lacks_or_that_differ_are_found(world: Verified) -> None:
    table_of(world).delete("seq = 3")
    table_of(world).update({"data": "arrow_cast('wrong', 'Binary')"}, predicate="seq = 4")
    answer = world.verify()
    found = [(each["kind"], each["sequence"], each["file"]) for each in answer["findings"]]
    assert sorted(found) == [("table", 3, "lake/streams/S"), ("table", 4, "lake/streams/S")]
    assert world.verify(lake=False)["ok"]
    repairs = world.engines.node.replicas.repairs
    assert repairs.damages == 1  # one file: the table
    assert any("lake/streams/S: damaged" in line for line in world.log.errors)


def test_a_message_that_is_removed_meanwhile_is_no_finding(world: Verified) -> None:
    got = world.begin()
    while not world.links:
        world.io.work()
    world.ask("$G", "$JS.API.STREAM.MSG.DELETE.S", {"seq": 3})
    table_of(world).delete("seq = 3")
    assert world.end(got)["ok"]


def test_a_table_that_is_compacted_meanwhile_is_no_finding(world: Verified) -> None:
    got = world.begin()
    while not world.links:
        world.io.work()
    for number in range(60):
        world.publish("$G", "s.1", b"%d" % number * 60)
    stream = world.engines.of("$G").streams["S"]
    stream.checkpoint()
    for _ in range(2):
        world.keeper.when_staged(stream, lambda wrong: None)
        world.settle()
        commit(world.directory, world)
    assert world.end(got)["ok"]


def test_a_verification_without_its_leader_ends(world: Verified) -> None:
    answers: list[bytes] = []
    uid = world.engines.of("$G").streams["S"].uid
    body = msgspec.msgpack.encode(VerifyCall("r", uid))
    world.engines.node.peers.call("srv", OPEN, body, lambda answer, _: answers.append(answer or b""), 1)
    world.settle()
    assert msgspec.msgpack.decode(answers[0], type=VerifyOpened).wrong == ""
    assert len(world.links) == 1
    assert "max_verifications" in world.verify()["error"]["description"]
    world.clock.advance(IDLE_NS)
    world.settle()
    assert world.links == []
    assert world.verify()["ok"]


def test_links_of_a_killed_server_are_removed_by_the_next_start(world: Verified) -> None:
    world.begin()
    while not world.links:
        world.io.work()
    for stream in world.engines.streams():
        stream.store.abandon()
    world.stores.close()
    again = Verified(world.directory)
    assert again.links == []
    assert again.verify()["ok"]


def test_a_stream_that_is_deleted_meanwhile_ends_its_verification(world: Verified) -> None:
    got = world.begin()
    while not world.links:
        world.io.work()
    assert world.ask("$G", "$JS.API.STREAM.DELETE.S")["success"]
    assert world.end(got)["error"]["err_code"] == 10059
    assert world.publish("$G", "s.1") is None


def test_files_that_change_while_they_are_collected_have_to_be_collected_again(world: Verified) -> None:
    stream = world.engines.of("$G").streams["S"]
    store = stream.store
    assert isinstance(store, SegmentStore)
    before = store.pin()
    world.publish("$G", "s.1")
    stream.checkpoint()
    world.settle()
    with pytest.raises(FilesMoved, match="checkpoint"):
        before.write(str(world.directory / "one"))
    before = store.pin()
    for number in range(60):
        world.publish("$G", "s.1", b"%d" % number * 60)
    with pytest.raises(FilesMoved, match="sealed"):
        before.write(str(world.directory / "other"))
    store.pin().write(str(world.directory / "third"))


def test_nothing_is_verified_where_that_is_off(tmp_path: Path) -> None:
    world = Verified(tmp_path, most=0)
    world.create("$G")
    assert "max_verifications: 0" in world.verify()["error"]["description"]


def test_without_its_package_the_answer_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Verified(tmp_path)

    def missing(name: str) -> Any:
        raise extras.ExtraMissing("verification of a running server", "lakestream_verify", "verify")

    monkeypatch.setattr(verification, "_load", missing)
    error = world.end(world.begin())["error"]
    assert (error["code"], "pip install 'lakestream-server[verify]'" in error["description"]) == (503, True)
