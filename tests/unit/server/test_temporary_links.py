"""Tests of the leases of temporary links, and of what their requests may say."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.config.options import STANDARD, RemoteOptions
from lakestream.ports import ClientInfo, Single, Take
from lakestream.protocol.nkeys import new_curve_key
from lakestream.server.temporary_links import ENDED, LEASE_NS, MAX_LINKS, PREFIX, TemporaryLinks
from tests.unit.stream_world import ManualClock

OWN = new_curve_key()


class OpenLinks:
    """The remotes of a server, of which only the open links matter."""

    def __init__(self) -> None:
        self.open_links: list[RemoteOptions] = []
        self.paused: dict[RemoteOptions, str] = {}

    def domain(self, account: str, domain: str) -> RemoteOptions | None:
        return next((one for one in self.open_links if (one.account, one.domain) == (account, domain)), None)

    def domains(self, account: str) -> list[str]:
        return [one.domain for one in self.open_links]

    def open(self, options: RemoteOptions) -> Any:
        self.paused.pop(options, None)
        if options not in self.open_links:
            self.open_links.append(options)
        return SimpleNamespace(link=SimpleNamespace(up=True, error=""))

    def pause(self, options: RemoteOptions, reason: str) -> None:
        self.paused[options] = reason

    def close(self, options: RemoteOptions) -> None:
        self.paused.pop(options, None)
        self.open_links.remove(options)


class World:
    """Temporary links of a server whose one client is on the same machine."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.clock, self.remotes = ManualClock(), OpenLinks()
        self.lines: list[str] = []
        self.answers: list[dict[str, Any]] = []
        client = ClientInfo(1, host, "$G")
        login, account = SimpleNamespace(user=None), SimpleNamespace()
        here = SimpleNamespace(client=client, kind=STANDARD, login=login, account=account, host=host)
        known: dict[int, Any] = {1: here}
        log: Any = SimpleNamespace(info=self.lines.append)
        remotes: Any = self.remotes
        links = TemporaryLinks(lambda: remotes, lambda: remotes, known.get, "own", self.clock, log)
        self.client = client
        bus: Any = SimpleNamespace(subscribe=self._subscribe, send=self._send)
        links.serve("$G", bus)

    def _subscribe(self, subject: bytes, take: Take, *, local: bool) -> None:
        assert local
        self._take = take

    def _send(self, answer: Single) -> None:
        self.answers.append(json.loads(answer.payload))

    def ask(self, verb: str, body: bytes = b"", client: ClientInfo | None = None) -> dict[str, Any]:
        self._take(Single(f"{PREFIX}{verb}".encode(), b"r", payload=body), 0, 1, client or self.client)
        return self.answers[-1]

    def open(self, domain: str = "old", **fields: Any) -> dict[str, Any]:
        asked = {"domain": domain, "urls": ["nats://127.0.0.1:1"], "password": "s3cret", **fields}
        box = OWN.seal(json.dumps(asked).encode(), self.ask("INFO")["key"])
        return self.ask("OPEN", json.dumps({"from": OWN.public, "box": base64.b64encode(box).decode()}).encode())


def test_a_link_ends_with_its_lease_unless_it_is_renewed() -> None:
    world = World()
    assert world.open() == {"connected": True, "lease": LEASE_NS}
    world.clock.advance(LEASE_NS - 1)
    world.open()
    world.clock.advance(LEASE_NS - 1)
    assert world.remotes.paused == {}
    world.clock.advance(1)
    assert list(world.remotes.paused.values()) == [ENDED]
    assert [one.domain for one in world.remotes.open_links] == ["old"]
    assert "lease was not renewed" in world.lines[-1]
    assert not any("s3cret" in line for line in world.lines)


def test_a_link_that_has_ended_is_opened_again_or_replaced() -> None:
    world = World()
    world.open()
    world.clock.advance(LEASE_NS)
    assert world.open()["connected"]
    assert world.remotes.paused == {}
    world.clock.advance(LEASE_NS)
    assert world.open(password="another")["connected"]
    assert [one.password for one in world.remotes.open_links] == ["another"]


def test_only_the_latest_ended_links_are_kept() -> None:
    world = World()
    for number in range(MAX_LINKS + 2):
        world.open(f"d{number}")
        world.clock.advance(LEASE_NS)
    assert [one.domain for one in world.remotes.open_links] == [f"d{number}" for number in range(2, MAX_LINKS + 2)]


def test_a_link_is_closed_by_request() -> None:
    world = World()
    world.open()
    assert world.ask("CLOSE", b'{"domain": "old"}') == {"closed": True}
    assert world.ask("CLOSE", b'{"domain": "old"}') == {"closed": False}
    world.clock.advance(LEASE_NS)
    assert world.remotes.open_links == []


def test_links_are_limited_in_number() -> None:
    world = World()
    for number in range(MAX_LINKS):
        assert world.open(f"d{number}")["connected"]
    assert world.open("another")["error"]["code"] == 503
    assert world.open("d0")["connected"]


def test_clients_of_other_machines_open_no_link_without_users() -> None:
    world = World("192.0.2.1")
    assert "same machine" in world.open()["error"]["description"]
    assert world.ask("INFO")["allowed"] is False


def test_clients_of_other_nodes_open_no_link() -> None:
    world = World()
    assert world.ask("INFO", client=ClientInfo(1, "127.0.0.1", "$G", kind="Router"))["allowed"] is False
    assert world.ask("INFO", client=ClientInfo(2, "127.0.0.1", "$G"))["allowed"] is False


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"domain": "own"}, "this server's own"),
        ({"domain": "a.b"}, "one subject token"),
        ({"domain": "API"}, "one subject token"),
        ({"urls": []}, "needs URLs"),
        ({"urls": ["nats-leaf://127.0.0.1"]}, "needs URLs"),
        ({"urls": ["http://127.0.0.1"]}, "unsupported scheme"),
        ({"nkey": "SU"}, "invalid request"),
        ({"user": 1}, "invalid request"),
    ],
)
def test_invalid_requests_are_refused(fields: dict[str, Any], word: str) -> None:
    world = World()
    error = world.open(**fields)["error"]
    assert error["code"] == 400
    assert word in error["description"]
    assert "s3cret" not in error["description"]
    assert world.remotes.open_links == []


def test_a_domain_belongs_to_one_remote() -> None:
    world = World()
    world.open()
    assert "another remote (nats://127.0.0.1:1)" in world.open(urls=["nats://127.0.0.1:2"])["error"]["description"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"from": "X", "box": "!"}', b"x" * 70_000])
def test_a_body_that_is_no_box_is_refused(body: bytes) -> None:
    assert World().ask("OPEN", body)["error"]["code"] == 400
