"""Server pairs of a test session: nats-server, which defines the expected answers, and the server under test."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server

PASSWORD = "p"
"""The password of every user in a test's configuration."""


class Setup(NamedTuple):
    """Configuration with which both servers of a pair start.

    config is the text of a configuration file, "" for flags alone. users holds (user, account) for each account that
    may have streams; a scenario runs as the first of them unless it says otherwise.
    """

    config: str = ""
    users: tuple[tuple[str, str], ...] = (("", "$G"),)


FLAGS = Setup()
"""No configuration file."""


class Pair:
    """nats-server and the server under test, started on first use and then shared by the session.

    Args:
        directory: parent of the stores.
        tested: program under test (nats-server itself to try the tests).
        setup: configuration of both.
    """

    def __init__(self, directory: Path, tested: Kind, setup: Setup = FLAGS) -> None:
        self._directory = directory
        self._setup = setup
        self._starts = 0
        self._servers: list[Server | None] = [None, None]
        self._kinds = (Kind.REAL, tested)

    @property
    def expected(self) -> Server:
        """Return nats-server, running."""
        return self.alive(0)

    @property
    def tested(self) -> Server:
        """Return the server under test, running."""
        return self.alive(1)

    def alive(self, side: int) -> Server:
        """Return the server of that side. A dead one is replaced, so that a crash fails only one test."""
        server = self._servers[side]
        if server is None or not server.running:
            self._starts += 1
            kind = self._kinds[side]
            store = self._directory / f"{kind.value}-{side}-{self._starts}"
            server = Server(kind, store, name="conformance", config=self._setup.config or None)
            self._servers[side] = server
            server.start()
            if kind is Kind.REAL:
                for _, account in self._setup.users:
                    _keep_directory(server, account)
        return server

    def renew(self, side: int) -> None:
        """Kill the server of that side; the next use starts one on an empty store."""
        if (server := self._servers[side]) is not None:
            server.kill()

    def log(self) -> str:
        """Return the last lines printed by the server under test."""
        server = self._servers[1]
        return "" if server is None else server.log(60)

    def stop(self) -> None:
        """Stop both servers."""
        for server in self._servers:
            if server is not None and server.running:
                server.kill()


def _keep_directory(server: Server, account: str) -> None:
    """Put a file beside the streams of nats-server.

    It removes an empty directory of streams in the background, even while the next stream is being created there.
    """
    directory = server.store / "jetstream" / account / "streams"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".kept").touch()
