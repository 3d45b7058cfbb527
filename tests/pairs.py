"""The two servers of a session: the one that defines what is right, and the one under test."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server

PASSWORD = "p"
"""The password of every user in a test's configuration."""


class Setup(NamedTuple):
    """With what both servers start.

    config is the text of a configuration file, "": flags alone. users holds a user and the account, for each account
    that may have streams; a script is the first of them unless it says otherwise.
    """

    config: str = ""
    users: tuple[tuple[str, str], ...] = (("", "$G"),)


FLAGS = Setup()
"""No configuration file."""


class Pair:
    """nats-server and the server under test, started when first needed and then shared by the session.

    Args:
        directory: for the stores.
        tested: what the server under test is (nats-server itself to try the tests).
        setup: the configuration of both.
    """

    def __init__(self, directory: Path, tested: Kind, setup: Setup = FLAGS) -> None:
        self._directory = directory
        self._setup = setup
        self._starts = 0
        self._servers: list[Server | None] = [None, None]
        self._kinds = (Kind.REAL, tested)

    @property
    def expected(self) -> Server:
        """nats-server."""
        return self.alive(0)

    @property
    def tested(self) -> Server:
        """The server under test."""
        return self.alive(1)

    def alive(self, side: int) -> Server:
        """The server of that side; a dead one is replaced, so that one crash fails one test."""
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
        """What the server under test printed lately."""
        server = self._servers[1]
        return "" if server is None else server.log(60)

    def stop(self) -> None:
        """End both."""
        for server in self._servers:
            if server is not None and server.running:
                server.kill()


def _keep_directory(server: Server, account: str) -> None:
    """Put a file beside the streams of nats-server.

    It removes an empty directory of streams in the background, even while the next stream is being created there.
    """
    directory = server.store / "jetstream" / account / "streams"
    directory.mkdir(parents=True)
    (directory / ".kept").touch()
