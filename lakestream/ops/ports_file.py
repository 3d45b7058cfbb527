"""Files by which tools find a running server.

Belongs here: the ports file (`nats-server_<pid>.ports`, JSON with the URLs of every listener) and the PID file. Both
are written atomically.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

import msgspec

from lakestream.config.errors import StartError, reason_in_words
from lakestream.config.options import RouteUrl
from lakestream.net.identity import addresses, ipv6_addresses


def urls(scheme: str, host: str, port: int, *, ipv6: bool = False) -> list[str]:
    """Return the URLs of a listener, e.g. `nats://127.0.0.1:4222`.

    Args:
        ipv6: for a wildcard, add the IPv6 addresses of this machine.
    """
    names = [*addresses(host), *(ipv6_addresses(host) if ipv6 else ())]
    return [f"{scheme}://{RouteUrl(name, port).address}" for name in names]


def write_ports_file(directory: str, listeners: Mapping[str, Sequence[str]]) -> str:
    """Write `<directory>/nats-server_<pid>.ports` once all listeners are up.

    Args:
        listeners: URLs by kind: `nats`, `monitoring`.

    Returns:
        The path, for `remove`.

    Raises:
        StartError: the directory is not there or not writable.
    """
    path = os.path.join(directory, f"nats-server_{os.getpid()}.ports")
    try:
        _write(path, msgspec.json.encode(listeners))
    except OSError as error:
        raise StartError(f"Error writing ports file ({path}): open {path}: {reason_in_words(error)}") from error
    return path


def write_pid_file(path: str) -> None:
    """Write this process's id.

    Raises:
        StartError: it cannot be written.
    """
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _write(path, str(os.getpid()).encode())
    except OSError as error:
        raise StartError(f"Could not write pidfile: open {path}: {reason_in_words(error)}") from error


def remove(path: str) -> None:
    """Remove a file of the above; it may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _write(path: str, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as stream:
        stream.write(content)
    os.replace(temporary, path)
