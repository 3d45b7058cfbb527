"""Tests of advisories about streams and the server that need no comparison with nats-server."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.meta.stores import FileStores
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import Single
from tests.faults.files import FaultyFiles
from tests.unit.api_world import ApiWorld, Client
from tests.unit.stream_world import ManualIo

pytestmark = pytest.mark.unit


class Listener(Client):
    """Keeps events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict[str, Any]]] = []

    def receive(self, sub: Any, message: Single, client: Any) -> None:
        self.events.append((message.subject.decode(), json.loads(message.payload)))


def listening(world: ApiWorld, subject: bytes) -> Listener:
    listener = Listener()
    world.hub.join(Subscription(listener, subject, b"", b"1"))
    return listener


def on_disk(directory: Path, files: FaultyFiles) -> Callable[[ManualIo], FileStores]:
    """Return a factory of stores whose files fail on demand."""

    class Disk:
        def __init__(self, io: ManualIo) -> None:
            self._io = io

        def create(self, account: str, name: str, uid: str, creation: bytes, *, memory: bool) -> Store:
            return open_store(str(directory / name), self._io, uid=uid, files=files)

    return Disk  # type: ignore[return-value]


@pytest.mark.parametrize(("code", "told"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 0)])
def test_a_full_disk_is_reported_once(tmp_path: Path, code: int, told: int) -> None:
    files = FaultyFiles()
    world = ApiWorld(stores=on_disk(tmp_path, files), domain="D")
    world.create("S")
    listener = listening(world, b"$JS.EVENT.ADVISORY.SERVER.>")
    files.fail, files.code = "write", code
    for _ in range(3):
        assert world.publish("S")["error"]["err_code"] == 10077
    assert len(listener.events) == told
    for subject, event in listener.events:
        assert subject == "$JS.EVENT.ADVISORY.SERVER.OUT_OF_STORAGE"
        assert event["type"] == "io.nats.jetstream.advisory.v1.server_out_of_space"
        shown = {key: event[key] for key in ("server", "server_id", "stream", "cluster", "domain")}
        assert shown == {"server": "srv", "server_id": "NSRV", "stream": "S", "cluster": "", "domain": "D"}


def test_a_streams_deletion_is_published_after_that_of_its_consumers() -> None:
    world = ApiWorld(domain="D")
    world.create("S")
    config = {"durable_name": "c", "ack_policy": "explicit"}
    assert "error" not in world.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    listener = listening(world, b"$JS.EVENT.ADVISORY.*.DELETED.>")
    world.ask("STREAM.DELETE.S")
    told = [(subject, event["action"], event["domain"]) for subject, event in listener.events]
    prefix = "$JS.EVENT.ADVISORY."
    assert told == [
        (f"{prefix}CONSUMER.DELETED.S.c", "delete", "D"),
        (f"{prefix}STREAM.DELETED.S", "delete", "D"),
    ]


def test_advisories_without_subscribers_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ApiWorld()
    made: list[bytes] = []
    send = world.hub.send
    monkeypatch.setattr(world.hub, "send", lambda one: made.append(getattr(one, "subject", b"")) or send(one))
    world.create("S")
    world.ask("STREAM.DELETE.S")
    assert not [subject for subject in made if subject.startswith(b"$JS.EVENT")]
