"""Asking the server to stage what it has: the client's side.

Belongs here: finding the server of a lake (`_server.json`), the request `$LAKE.API.FLUSH.<stream>` and its answer.
Everything is synchronous: nats-py works in a thread of its own, so that it does not matter whether the caller has an
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lakestream.lake import paths
from lakestream.lake.errors import LakeError
from lakestream.lake.storage import Storage

if TYPE_CHECKING:
    from nats.aio.client import Client

FLUSH = "$LAKE.API.FLUSH."
RESPONSE_TYPE = "io.lakestream.api.v1.flush_response"
DEFAULT_TIMEOUT_S = 5.0
"""How long connecting and flushing may take together."""
NOT_FOUND = 10059
T = TypeVar("T")


class FlushFailed(LakeError):
    """The server could not be asked, or did not stage the stream."""


class StreamNotFound(LakeError):
    """There is no such stream in the lake."""

    def __init__(self, stream: str, where: str) -> None:
        super().__init__(f"there is no stream {stream} in {where}")


class ServerFile(msgspec.Struct, frozen=True):
    """What `_server.json` says: the server whose lake it is, and its client URLs. It never has credentials."""

    server_id: str
    server_name: str
    urls: list[str]


class Credentials(msgspec.Struct, frozen=True):
    """How to log in; `creds` is the path of a credentials file."""

    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Credentials:
        """Those among the options of a data source or a command."""
        return cls(**{name: options[name] for name in cls.__struct_fields__ if options.get(name)})

    def arguments(self) -> dict[str, str]:
        """For nats-py."""
        names = {"user": self.user, "password": self.password, "token": self.token, "user_credentials": self.creds}
        return {name: value for name, value in names.items() if value}


class _Error(msgspec.Struct):
    code: int
    err_code: int = 0
    description: str = ""


class Flushed(msgspec.Struct, frozen=True):
    """The answer: everything of stream `uid` through `last_index` (`last_seq`) is staged, or in the table.

    `account`: whose stream was asked for, which is that of who asked; "": the server is older than accounts.
    """

    stream: str = ""
    uid: str = ""
    last_index: int = 0
    last_seq: int = 0
    lake: str = ""
    server_id: str = ""
    account: str = ""
    error: _Error | None = None


def read_server_file(storage: Storage) -> ServerFile | None:
    """The server that says that the lake is its; None when there is none, or the file is unreadable."""
    try:
        return msgspec.json.decode(storage.read(paths.server_file(storage.root)), type=ServerFile)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def write_server_file(storage: Storage, found: ServerFile) -> None:
    """Write it, whole."""
    storage.write(paths.server_file(storage.root), msgspec.json.encode(found))


class Flusher:
    """A connection to one server, made when it is first needed and kept for the next requests.

    Not for use by two threads at once.
    """

    def __init__(self, urls: Sequence[str], credentials: Credentials | None = None) -> None:
        self._urls = [url if "://" in url else f"nats://{url}" for url in urls]
        self._credentials = credentials or Credentials()
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def flush(self, stream: str, timeout: float = DEFAULT_TIMEOUT_S) -> Flushed:
        """Have the server stage what it has of a stream; the answer may be an error of the server.

        Raises:
            FlushFailed: nobody answered in time, or not in a way that can be understood.
        """
        try:
            body = self._run(self._ask(stream, timeout), timeout)
            return msgspec.json.decode(body, type=Flushed)
        except msgspec.DecodeError as error:
            raise FlushFailed(f"{self._where()} answered a flush of {stream} with something else: {error}") from None
        except TimeoutError:
            raise FlushFailed(f"{self._where()} does not flush stream {stream}: no answer in {timeout} s") from None
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise FlushFailed(f"{self._where()} does not flush stream {stream}: {reason}") from None

    def close(self) -> None:
        """End the connection and its thread."""
        if self._loop is None or self._thread is None:
            return
        with contextlib.suppress(Exception):
            self._run(self._disconnect(), 2.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Flusher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _where(self) -> str:
        return f"the server at {', '.join(self._urls)}"

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="lakestream-flush", daemon=True)
            self._thread.start()
        # A little more than the work's own limit, which gives the better reason.
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout + 1)

    async def _ask(self, stream: str, timeout: float) -> bytes:
        async with asyncio.timeout(timeout):
            if self._client is None or not self._client.is_connected:
                await self._disconnect()
                self._client = await self._connect(timeout)
            return (await self._client.request(f"{FLUSH}{stream}", b"", timeout=timeout)).data

    async def _connect(self, timeout: float) -> Client:
        import nats

        failures: list[Exception] = []

        async def failed(error: Exception) -> None:
            failures.append(error)

        try:
            return await nats.connect(
                self._urls,
                name="lakestream reader",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # nats-py tries the first connection like any other
                reconnect_time_wait=0,
                connect_timeout=max(1, int(timeout)),
                error_cb=failed,
                **self._credentials.arguments(),
            )
        except Exception as error:
            raise failures[-1] if failures else error from None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
