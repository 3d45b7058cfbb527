"""Object store of a cloud, as a process on this machine.

Belongs here: what tests need of each: its variables, URLs of lakes in it, and that its credentials appear nowhere.
tests/s3_server.py and the modules of tests/clouds implement it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class StoreServer(ABC):
    """Object store with one bucket and generated credentials.

    Attributes:
        others: variables that could direct a client to another store or account; `environ` removes them.
        endpoint: the address of the running server.
    """

    others: tuple[str, ...] = ()
    endpoint = ""

    @property
    @abstractmethod
    def secrets(self) -> tuple[str, ...]:
        """Return the credentials, which must not appear in logs."""

    @abstractmethod
    def start(self) -> None:
        """Start the server on a free port and create the bucket."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and discard its objects."""

    @abstractmethod
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a client reaches the server."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the URL of a lake root in the bucket."""

    def through(self, origin: str) -> dict[str, str]:
        """Return the variables of a client that reaches the server by a proxy.

        Args:
            origin: the proxy's URL.
        """
        own = "/".join(self.endpoint.split("/")[:3])
        return {name: value.replace(own, origin) for name, value in self.variables().items()}

    def environ(self, **more: str) -> dict[str, str]:
        """Return a complete environment for a child process."""
        kept = {name: value for name, value in os.environ.items() if name not in self.others}
        return {**kept, **self.variables(), **more}

    def enter(self, monkeypatch: Any) -> None:
        """Set the variables in this process."""
        for name in self.others:
            monkeypatch.delenv(name, raising=False)
        for name, value in self.variables().items():
            monkeypatch.setenv(name, value)

    def seen_in(self, *files: Path) -> list[str]:
        """Return the lines of log files that contain a credential."""
        return [
            f"{path}: {line[:200]}"
            for path in files
            for line in path.read_text(errors="replace").splitlines()
            if any(secret in line for secret in self.secrets)
        ]
