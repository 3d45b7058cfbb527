"""Tests of streams of several accounts on one server, which are independent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.account.api.subjects import Api
from lakestream.account.api.system import SystemApi
from lakestream.account.engines import Engines
from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.store.root import RESERVED, account_directory, account_of
from lakestream.logging import Logger
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.net.hub import Hub
from lakestream.net.interest.interest import Subscription
from lakestream.net.turn import Turn
from lakestream.ports import Single
from lakestream.protocol.accounts import JetStreamLimits
from lakestream.server.jetstream import open_stores
from lakestream.server.lake.keeper import LakeKeeper
from tests.unit.api_world import Client
from tests.unit.stream_world import CLIENT, ManualClock, ManualIo

pytestmark = pytest.mark.unit

ODD = ("A", "$G", "A/B", "..", "VERSION", "_meta_", "a b", "ümlaut", "~2F", "x" * 60)


class Log(Logger):
    """Logger that keeps its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def error(self, text: str) -> None:
        self.errors.append(text)


class World:
    """A server's engines over a directory, with a client and an API for each named account."""

    def __init__(
        self, directory: Path, *accounts: str, lake: bool = False, files: Files | None = None, **options: Any
    ) -> None:
        self.clock, self.io, self.log = ManualClock(), ManualIo(), Log()
        self.turn = Turn(self.clock.call_soon)
        self.hubs: dict[str, Hub] = {}
        self.directory = directory
        stores = open_stores(
            JetStreamOptions(store_dir=str(directory), max_memory=-1, max_file=-1), LakeOptions(), self.io, files
        )
        self.stores = stores
        named = EngineOptions(server_name="srv", server_id="NSRV", **options)
        self.engines = Engines(Shared(self.clock, self.io, stores, named, self.log, self.hub, "SYS"))
        if lake:
            io: Any = self.io
            clock: Any = self.clock
            probes: Any = InlineIo()  # a read that fails awaits a probe, in an event loop that does not turn `io`
            lakes.require(str(directory / "lake"), create=True)
            self.keeper = LakeKeeper(str(directory / "lake"), LakeOptions(), clock, io, self.log, probes)
            self.keeper.presence.probe.expect(lakes.read_id(lakes.open_storage(str(directory / "lake"))))
            self.engines.shared.lake = self.keeper
        self.apis = {name: Api(self.engines.serve(name)) for name in accounts}
        self.engines.recover()
        self._number = 0

    def hub(self, account: str) -> Hub:
        if account not in self.hubs:
            hub = self.hubs[account] = Hub(self.turn, self.log, account)
            hub.join(Subscription(Client(), b"_INBOX.me.*", b"", b"1"))
        return self.hubs[account]

    def settle(self) -> None:
        self.clock.turn()
        while self.io.waiting:
            self.io.work()
            self.clock.turn()

    def ask(self, account: str, subject: str, body: Any = b"") -> Any:
        """Send a request; return its answer, or None if there is none."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        hub, got = self.hub(account), Client()
        inbox = Subscription(got, reply, b"", b"2")
        hub.join(inbox)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        hub.route(None, CLIENT, Single(subject.encode(), reply, b"", data))
        self.settle()
        hub.leave(inbox)
        return json.loads(got.got[-1][2]) if got.got else None

    def create(self, account: str, name: str = "S", **config: Any) -> Any:
        answer = self.ask(account, f"$JS.API.STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
        return answer

    def publish(self, account: str, subject: str = "S", data: bytes = b"x") -> Any:
        return self.ask(account, subject, data)

    def stop(self) -> None:
        """Stop as a server does."""
        self.engines.stop()
        self.settle()
        self.engines.close()
        self.stores.close()


def test_streams_of_one_name_in_two_accounts_know_nothing_of_each_other(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    world.create("A")
    world.create("B", max_msgs=2)
    for n in range(3):
        world.publish("A", data=b"a%d" % n)
    assert world.publish("B", data=b"b")["seq"] == 1
    a, b = world.engines.of("A").streams["S"], world.engines.of("B").streams["S"]
    assert (a.store.msgs, b.store.msgs) == (3, 1)
    assert a.uid != b.uid
    assert world.ask("B", "$JS.API.STREAM.DELETE.S")["success"]
    assert world.publish("A")["seq"] == 4
    assert world.ask("B", "$JS.API.STREAM.NAMES")["streams"] is None
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] == ["S"]


def test_every_account_has_its_streams_again_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, *ODD)
    for n, account in enumerate(ODD):
        world.create(account)
        for _ in range(n + 1):
            world.publish(account)
    world.stop()
    again = World(tmp_path, *ODD)
    assert {engine.account: engine.streams["S"].store.msgs for engine in again.engines} == {
        account: n + 1 for n, account in enumerate(ODD)
    }
    again.stop()


@pytest.mark.parametrize("account", ODD)
def test_an_account_is_one_directory_whatever_its_name(account: str) -> None:
    spelled = account_directory(account)
    assert account_of(spelled) == account
    assert spelled not in RESERVED | {"", ".", ".."}
    assert os.sep not in spelled
    assert "." not in spelled


def test_no_two_accounts_have_one_directory() -> None:
    names = [first + second for first in "aA~_$.2/ F" for second in ("", "a", "~", "~2F", "/", "LOCK", "_")]
    assert len({account_directory(name) for name in names}) == len(set(names))


def test_streams_of_an_account_without_jetstream_are_left_alone_and_serve_again(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    for account in "AB":
        world.create(account)
        world.publish(account)
    world.stop()
    world = World(tmp_path, "A")
    assert world.log.warnings == ['account "B" has no JetStream: stream S on disk not served']
    assert not world.engines.of("B").streams
    assert world.publish("B") is None
    api = Api(world.engines.serve("B"))
    world.settle()
    assert world.publish("B")["seq"] == 2
    assert world.ask("B", "$JS.API.STREAM.INFO.S")["state"]["messages"] == 2
    api.close()
    world.stop()


def test_an_account_that_loses_jetstream_keeps_its_streams_and_hears_that_it_has_none(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.publish("A")
    config = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    assert "error" not in world.ask("A", "$JS.API.CONSUMER.CREATE.S.c", config)
    pull = b"$JS.API.CONSUMER.MSG.NEXT.S.c"
    assert world.hub("A").interest(pull)
    world.engines.withdraw("A")
    world.settle()
    assert world.publish("A") is None
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10039
    assert not world.hub("A").interest(b"$JS.ACK.S.c.1.1.1.1.0")
    assert not world.hub("A").interest(pull)
    world.engines.serve("A")
    world.settle()
    assert world.hub("A").interest(pull)
    assert world.publish("A")["seq"] == 2
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["state"]["messages"] == 2
    world.stop()


def test_the_indexes_of_a_stream_are_shared_only_while_no_thread_has_them(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    memory = world.stores._cache.indexes
    served = world.engines.of("A").streams["S"].store.subjects
    assert served in memory.indexes
    assert len(memory.indexes) == 2  # that of its message ids, too
    world.engines.withdraw("A")
    assert world.io.waiting  # a thread writes the last checkpoint
    assert memory.indexes == []
    world.settle()
    world.engines.serve("A")
    assert world.io.waiting  # a thread opens it
    assert memory.indexes == []
    world.settle()
    assert world.engines.of("A").streams["S"].store.subjects in memory.indexes
    world.stop()
    assert memory.indexes == []


@pytest.mark.parametrize("steps", range(8))
def test_jetstream_may_come_back_while_it_goes(tmp_path: Path, steps: int) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    hub, taken = world.hub("A"), 0
    for _ in range(5):
        taken += hub.route(None, CLIENT, Single(b"S", b"", b"", b"x"))
    world.engines.withdraw("A")
    for step in range(steps):  # at any step of that
        world.clock.advance(20_000_000)
        if world.io.waiting and step % 2:
            world.io.work()
    world.engines.serve("A")
    for _ in range(3):
        world.settle()
        world.clock.advance(20_000_000)
    assert world.publish("A")["seq"] == taken + 1
    world.stop()


def test_a_request_waits_until_the_accounts_streams_are_open(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.publish("A")
    world.engines.withdraw("A")
    world.settle()
    world.engines.serve("A")
    taken = {"name": "T", "subjects": ["S"], "storage": "memory"}
    world.hub("A").route(None, CLIENT, Single(b"$JS.API.STREAM.CREATE.T", b"", b"", json.dumps(taken).encode()))
    same = {"name": "S", "storage": "memory"}
    assert world.ask("A", "$JS.API.STREAM.CREATE.S", same)["error"]["err_code"] == 10058
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] == ["S"]
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["state"]["messages"] == 1
    world.stop()


def test_streams_in_memory_go_with_jetstream(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.create("A", "M", storage="memory")
    world.engines.withdraw("A")
    world.settle()
    assert world.engines.of("A").use.used == {"memory": 0, "file": 0}
    world.engines.serve("A")
    world.settle()
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] == ["S"]
    world.stop()


def test_purging_an_account_takes_all_of_it_and_nothing_else(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    system = SystemApi(world.engines)
    for account in "AB":
        world.create(account)
        world.create(account, "T", storage="memory")
        world.publish(account)
    assert world.ask("A", "$JS.API.ACCOUNT.PURGE.B") is None
    assert world.ask("SYS", "$JS.API.ACCOUNT.PURGE.A")["initiated"]
    world.settle()
    assert world.ask("A", "$JS.API.STREAM.NAMES")["streams"] is None
    assert world.ask("B", "$JS.API.STREAM.NAMES")["streams"] == ["S", "T"]
    world.create("A")
    assert world.publish("A")["seq"] == 1
    system.close()
    world.stop()
    again = World(tmp_path, "A", "B")
    assert again.engines.of("A").streams["S"].store.msgs == 1
    again.stop()


def test_purging_an_account_takes_what_is_not_served_too(tmp_path: Path) -> None:
    world = World(tmp_path, "A", lake=True)
    world.create("A")
    uid = world.engines.of("A").streams["S"].uid
    world.stop()
    world = World(tmp_path, lake=True)
    world.engines.purge("A")
    world.settle()
    world.stop()
    assert [
        (each.identity.account, each.identity.uid, each.deleted) for each in scan.Scanner(str(tmp_path / "lake")).scan()
    ] == [("A", uid, True)]
    again = World(tmp_path, "A")
    assert not again.engines.of("A").streams
    assert again.log.warnings == []
    again.stop()


def test_paths_and_metrics_of_the_lake_contain_the_account(tmp_path: Path) -> None:
    world = World(tmp_path, "$G", "A", lake=True)
    for account in ("$G", "A"):
        world.create(account)
        world.publish(account)
    assert set(world.keeper.lag()) == {"S", "A/S"}
    told: list[str] = []
    for engine in world.engines:
        for stream in engine.streams.values():
            stream.store.ask_seal()
            world.settle()
            world.keeper.when_staged(stream, told.append)
    world.settle()
    assert told == ["", ""]
    lake = str(tmp_path / "lake")
    for account in ("$G", "A"):
        uid = world.engines.of(account).streams["S"].uid
        assert len(staging.segments(paths.staging(lake, "S", uid, account))) == 1
    world.stop()


def test_a_change_of_a_stream_does_not_wait_for_the_namesake_in_another_account(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    for account in "AB":
        world.create(account)
    body = json.dumps({"name": "S", "description": "d"}).encode()
    world.hub("A").route(None, CLIENT, Single(b"$JS.API.STREAM.UPDATE.S", b"", b"", body))
    world.hub("B").route(None, CLIENT, Single(b"$JS.API.STREAM.UPDATE.S", b"", b"", body))
    assert world.engines.shared.changes.waiting == 0
    world.settle()
    assert {engine.streams["S"].config.description for engine in world.engines if engine.streams} == {"d"}
    world.stop()


def test_the_servers_storage_is_shared_by_the_accounts(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B", max_memory=1000)
    for account in "AB":
        world.create(account, storage="memory")
    while "error" not in (answer := world.publish("A", data=b"x" * 100)):
        pass
    assert answer["error"]["err_code"] == 10023
    assert world.publish("B")["error"]["err_code"] == 10023
    refused = world.ask("B", "$JS.API.STREAM.CREATE.T", {"name": "T", "storage": "memory", "max_bytes": 1001})
    assert refused["error"]["err_code"] == 10028
    world.ask("A", "$JS.API.STREAM.DELETE.S")
    assert "error" not in world.publish("B")
    world.stop()


def test_an_account_is_full_for_itself(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    world.engines.serve("A", JetStreamLimits(max_file=1000))
    for account in "AB":
        world.create(account)
    assert [("error" in world.publish("A", data=b"x" * 400)) for _ in range(3)] == [False, False, True]
    assert "error" not in world.publish("B", data=b"x" * 4000)
    left = 1000 - world.engines.of("A").use.used["file"] - 31
    assert world.publish("A", data=b"x" * (left + 1))["error"]["err_code"] == 10002
    assert "error" not in world.publish("A", data=b"x" * left)
    assert world.log.warnings == ['JetStream file resource limits exceeded for account: "A"']
    world.engines.serve("A", JetStreamLimits(max_file=2000))
    assert "error" not in world.publish("A", data=b"x" * 100)
    world.engines.serve("A", JetStreamLimits(max_file=10))
    assert world.publish("A", data=b"")["error"]["err_code"] == 10002
    assert world.engines.of("A").streams["S"].store.msgs == 4
    world.stop()


def test_a_limit_that_is_set_while_much_is_in_flight_is_not_passed(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.engines.serve("A", JetStreamLimits(max_file=3000))
    world.create("A")
    world.create("A", "T")
    hub = world.hub("A")
    for _ in range(20):
        for subject in (b"S", b"T"):
            hub.route(None, CLIENT, Single(subject, b"", b"", b"x" * 100))
    world.settle()
    use = world.engines.of("A").use
    assert 3000 - 131 < use.used["file"] <= 3000
    world.stop()


def test_system_requests_are_of_the_system_account_alone(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    SystemApi(world.engines)
    for subject in ("STREAM.NAMES", "STREAM.FOO", "FOO.BAR", "CONSUMER.MSG.NEXT.S.c", "DIRECT.GET.S"):
        answer = world.ask("SYS", f"$JS.API.{subject}")
        assert answer["type"] == "io.nats.jetstream.api.v1.system_response"
        assert answer["error"]["err_code"] == 10039
    assert world.ask("SYS", "$JS.API.INFO")["type"] == "io.nats.jetstream.api.v1.account_info_response"
    for subject in ("META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE", "ACCOUNT.PURGE.A.B", "ACCOUNT.FOO"):
        assert world.ask("SYS", f"$JS.API.{subject}") is None
        assert world.ask("A", f"$JS.API.{subject}") is None
    world.stop()


def test_what_streams_say_of_themselves_stays_in_their_account(tmp_path: Path) -> None:
    world = World(tmp_path, "A", "B")
    heard = Client()
    for account in ("B", "SYS"):
        world.hub(account).join(Subscription(heard, b"$JS.EVENT.>", b"", b"3"))
    world.create("A")
    world.ask("A", "$JS.API.STREAM.DELETE.S")
    assert heard.got == []
    world.create("B")
    assert {msgspec.json.decode(body)["type"].rpartition(".")[2] for _, _, body in heard.got} == {
        "stream_action",
        "api_audit",
    }
    world.stop()
