"""Files by which tools find a running server.

Belongs here: the ports file (`nats-server_<pid>.ports`, JSON with the URLs of every listener) and the PID file. Both
are written atomically.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from lakestream.config.errors import StartError
from lakestream.net.identity import addresses


def urls(scheme: str, host: str, port: int) -> list[str]:
    """Return the URLs of a listener, e.g. `nats://127.0.0.1:4222`."""
    return [f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}" for name in addresses(host)]


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
    _write(path, msgspec.json.encode(listeners), "ports file")
    return path


def write_pid_file(path: str) -> None:
    """Write this process's id.

    Raises:
        StartError: it cannot be written.
    """
    _write(path, str(os.getpid()).encode(), "PID file")


def remove(path: str) -> None:
    """Remove a file of the above; it may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _write(path: str, content: bytes, what: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except OSError as error:
        raise StartError(f"cannot write the {what} {path!r}: {error.strerror}") from error
