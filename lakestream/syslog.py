"""Log lines for a syslog daemon, as nats-server sends them.

Belongs here: addresses of daemons, and the form of their lines (RFC 3164 on this machine, with a full time over a
network). `logging.py` imports this when a server's settings ask for it.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from urllib.parse import urlsplit

LOCAL_SOCKETS = ("/dev/log", "/var/run/syslog", "/var/run/log")
"""Sockets of the daemon on this machine; the first that takes a connection is used."""

CONNECT_S = 2.0
"""Longest wait for a daemon to take a connection (2 s)."""

DEFAULT_PORT = 514

_SEVERITIES = {"FTL": 2, "ERR": 3, "WRN": 4, "INF": 5, "TRC": 6, "DBG": 7}
_DAEMON = 3 << 3
"""Facility of lines to the daemon on this machine; those over a network have none, as of nats-server."""


class Syslog:
    """A syslog daemon.

    Args:
        address: `udp://HOST:PORT` or `tcp://HOST:PORT`; "" means the daemon on this machine.

    Raises:
        ValueError: the address is none of these.
    """

    def __init__(self, address: str = "") -> None:
        url = urlsplit(address)
        if address and (url.scheme not in ("udp", "tcp") or not url.hostname or url.path.strip("/")):
            raise ValueError(
                f"cannot read {address!r} as the address of a syslog daemon; use udp://HOST:514 or tcp://HOST:514"
            )
        self._host, self._port = url.hostname or "", url.port or DEFAULT_PORT
        self._stream = url.scheme == "tcp"
        self._name = socket.gethostname()

    def connect(self) -> int:
        """Return the descriptor of a new connection. Block, at most `CONNECT_S` for each address. Raise OSError."""
        return self._remote() if self._host else _local()

    def _remote(self) -> int:
        if self._stream:
            connection = socket.create_connection((self._host, self._port), CONNECT_S)
        else:
            family, kind, proto, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
            connection = socket.socket(family, kind, proto)
            connection.connect(address)
        connection.settimeout(None)
        return connection.detach()

    def line(self, level: str, text: str) -> bytes:
        """Return a message for the daemon: priority, time, program and text."""
        severity = _SEVERITIES[level]
        if self._host:
            now = datetime.now().astimezone().isoformat(timespec="seconds").replace("+00:00", "Z")
            head = f"<{severity}>{now} {self._name}"
        else:
            head = f"<{_DAEMON | severity}>{time.strftime('%b %e %H:%M:%S')}"
        return f"{head} lakestream[{os.getpid()}]: {text}\n".encode("utf-8", "backslashreplace")


def _local() -> int:
    for path in LOCAL_SOCKETS:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            connection = socket.socket(socket.AF_UNIX, kind)
            try:
                connection.connect(path)
            except OSError:
                connection.close()
            else:
                return connection.detach()
    raise OSError(f"no syslog daemon listens on this machine (tried {', '.join(LOCAL_SOCKETS)})")
