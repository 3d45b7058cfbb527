"""Fixtures of tests with client libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients import npm
from tests.clients.ways_in import KINDS, Tls, answer_callouts, configuration, tls_of
from tests.servers import Kind, Server

ServerFor = Callable[[str, str], Server]


@pytest.fixture(scope="module")
def server_for(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFor]:
    """Yield a function that returns a server for a kind of login and a transport, which tests of a module share."""
    folder = tmp_path_factory.mktemp("ways")
    started: dict[tuple[str, Tls], Server] = {}

    def get(way: str, transport: str) -> Server:
        tls = tls_of(transport)
        if (way, tls) not in started:
            store = folder / f"{way}-{tls.value}"
            started[way, tls] = server = Server(kind, store, config=configuration(way, tls))
            server.start()
            if KINDS[way].asks:
                answer_callouts(server, tls)
        return started[way, tls]

    yield get
    for server in started.values():
        server.kill()


@pytest.fixture(scope="module")
def trials() -> Iterator[npm.Trials]:
    """Yield what runs the tests of scripts for Node.js."""
    trials = npm.Trials()
    yield trials
    trials.end()
