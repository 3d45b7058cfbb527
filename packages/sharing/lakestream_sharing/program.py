"""The process that serves Delta Sharing.

Belongs here: its settings, the connection to the NATS server, the listener with TLS, signals, and its end.
command.py has the command.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream_sharing.access import Access, account_of, over_nats
from lakestream_sharing.app import PREFIX, Limits, Service
from lakestream_sharing.listener import Listener
from lakestream_sharing.signing import KEY_BYTES, Signer

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

RECONNECT_S = 0.5
"""Pause between two attempts to reach the server."""
_log = logging.getLogger("lakestream.sharing")


class BadSettings(Exception):
    """Raised for settings that cannot be served; the text says why and what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process.

    Attributes:
        lake: the lake's root.
        host, port: of the listener; port 0: a free one.
        cert_file, key_file: PEM files of TLS; "": none.
        insecure: allow plain text at an address that is not loopback: a proxy in front has TLS.
        public_url: by which recipients reach the listener; "": as they address it.
        url_key_file: file with the key of URLs; "": a random key, and URLs end with the process.
        limits: the limits.
    """

    lake: str
    host: str = "127.0.0.1"
    port: int = 8480
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    public_url: str = ""
    url_key_file: str = ""
    limits: Limits = Limits()


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
    context = tls_context(settings)
    signer = Signer(_url_key(settings.url_key_file))
    await asyncio.to_thread(lakes.require, settings.lake)
    storage = open_storage(settings.lake)
    connection = await _connected(server, login)
    try:
        account = await account_of(connection)
        access = Access(over_nats(connection))
        service = Service(access, storage, account, signer, settings.limits, settings.public_url, time.time_ns)
        listener = Listener(service)
        try:
            try:
                host, port = await listener.start(settings.host, settings.port, context)
            except OSError as error:
                raise BadSettings(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            _log.info("account %s, lake %s", account, storage.root)
            listening(f"{'https' if context else 'http'}://{shown}{PREFIX}")
            await _ended(context, settings)
        finally:
            await listener.close()
    finally:
        await connection.close()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the context of the listener; None without TLS.

    Raises:
        BadSettings: tokens would cross a network in plain text, or the files do not load.
    """
    if not settings.cert_file:
        if not settings.insecure and not _is_loopback(settings.host):
            raise BadSettings(
                f"tokens would be sent in plain text to {settings.host}: give --https-cert and --https-key, or "
                "--insecure if a proxy in front of this address has TLS"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, settings)
    return context


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise BadSettings(f"cannot use {settings.cert_file} and {settings.key_file} for TLS: {error}") from None


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


async def _ended(context: ssl.SSLContext | None, settings: Settings) -> None:
    """Wait for the end. SIGHUP reads the certificate again."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def renew() -> None:
        if context is not None:
            try:
                _load(context, settings)
                _log.info("the certificate was read again")
            except BadSettings as error:
                _log.error("%s; the old one stays", error)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, renew)
    await ended.wait()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
