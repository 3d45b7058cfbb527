"""Fixtures of tests with client libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.ways_in import KINDS, answer_callouts, configuration, is_secure
from tests.servers import Kind, Server

ServerFor = Callable[[str, str], Server]


@pytest.fixture(scope="module")
def server_for(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFor]:
    """Yield a function that returns a server for a kind of login and a transport, which tests of a module share."""
    folder = tmp_path_factory.mktemp("ways")
    started: dict[tuple[str, bool], Server] = {}

    def get(way: str, transport: str) -> Server:
        secure = is_secure(transport)
        if (way, secure) not in started:
            store = folder / f"{way}-{'tls' if secure else 'plain'}"
            started[way, secure] = server = Server(kind, store, config=configuration(way, secure=secure))
            server.start()
            if KINDS[way].asks:
                answer_callouts(server, secure=secure)
        return started[way, secure]

    yield get
    for server in started.values():
        server.kill()
