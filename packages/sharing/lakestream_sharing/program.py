"""The process that serves Delta Sharing.

Belongs here: its settings, the connection to the NATS server, and the order in which its parts begin and end.
command.py has the command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream_client.listening import BadSettings, HttpListener, Listening, until_signal
from lakestream_sharing.access import Access, account_of, over_nats
from lakestream_sharing.app import PREFIX, Limits, Service
from lakestream_sharing.signing import KEY_BYTES, Signer

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

RECONNECT_S = 0.5
"""Pause between two attempts to reach the server."""
_log = logging.getLogger("lakestream.sharing")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process.

    Attributes:
        lake: the lake's root.
        listening: address and TLS of the listener.
        public_url: by which recipients reach the listener; "": as they address it.
        url_key_file: file with the key of URLs; "": a random key, and URLs end with the process.
        limits: the limits.
        audit: tell the server's audit trail which tables recipients open.
    """

    lake: str
    listening: Listening = Listening()
    public_url: str = ""
    url_key_file: str = ""
    limits: Limits = Limits()
    audit: bool = False


async def serve(settings: Settings, server: str, login: dict[str, Any], listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        server: URL of the NATS server.
        login: arguments of nats-py.
        listening: is called with the URL once requests are taken.

    Raises:
        BadSettings: see the text.
        Unavailable: the account of the login is unknown.
        LakeError: there is no lake.
    """
    context = settings.listening.context()
    signer = Signer(_url_key(settings.url_key_file))
    await asyncio.to_thread(lakes.require, settings.lake)
    storage = open_storage(settings.lake)
    connection = await _connected(server, login)
    try:
        account = await account_of(connection)
        access = Access(over_nats(connection))
        service = Service(access, storage, account, signer, settings.limits, settings.public_url, time.time_ns)
        if settings.audit:
            service.tell = _telling(connection)
        listener = HttpListener(service)
        try:
            origin = await listener.start(settings.listening.host, settings.listening.port, context)
            _log.info("account %s, lake %s", account, storage.root)
            listening(f"{origin}{PREFIX}")
            await until_signal(context, settings.listening)
        finally:
            await listener.close()
            service.close()
    finally:
        await connection.close()


def _telling(connection: Nats) -> Callable[[dict[str, str]], None]:
    """Return what tells the server's audit trail which tables recipients open."""
    tasks = set[asyncio.Task[None]]()

    def tell(told: dict[str, str]) -> None:
        task = asyncio.ensure_future(connection.publish("$LAKE.EVENT.sharing", json.dumps(told).encode()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return tell


def _url_key(file: str) -> bytes | None:
    """Return the key of URLs. Raises BadSettings when the file is missing, short, or readable by other users."""
    if not file:
        return None
    try:
        key = Path(file).read_bytes().strip()
        mode = os.stat(file).st_mode
    except OSError as error:
        raise BadSettings(f"cannot read {file}: {error.strerror}") from None
    if mode & 0o007:
        raise BadSettings(f"{file} can be read by every user of this machine: chmod 600 {file}")
    if len(key) < KEY_BYTES:
        raise BadSettings(f"{file} has less than {KEY_BYTES} bytes: make one with `openssl rand -hex 32`")
    return key


async def _connected(server: str, login: dict[str, Any]) -> Nats:
    """Return a connection that is made again whenever it breaks. The caller has tried the login before."""
    import nats

    async def failed(error: Exception) -> None:
        _log.warning("NATS: %s", str(error) or type(error).__name__)

    return await nats.connect(
        server,
        name="lakestream sharing",
        error_cb=failed,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_S,
        **login,
    )
