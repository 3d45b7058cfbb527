"""Servers and browsers of the tests of the console's requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.console.world import OWNER, USERS, Start
from tests.console import Browser
from tests.servers import Kind, Server


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return a function that starts a server with a monitoring port."""
    started: list[Server] = []

    def start(config: str | None = None, *args: str, monitor: str = "-m", **options: Any) -> Server:
        store = tmp_path_factory.mktemp("console") / "store"
        server = Server(Kind.OURS, store, config=config, args=[monitor, "-1", *args], **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def plain(starts: Start) -> Server:
    """Return a server whose clients need no login."""
    return starts()


@pytest.fixture(scope="module")
def users(starts: Start) -> Server:
    """Return a server with accounts and users."""
    return starts(USERS % OWNER.public)


@pytest.fixture
def page(plain: Server) -> Iterator[Browser]:
    """Yield a browser with a session on the server without logins."""
    browser = Browser(plain)
    assert browser.begin().status == 200
    yield browser
    browser.post("logout")
