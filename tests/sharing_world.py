"""The application of Delta Sharing in this process, over a lake and tokens of the test's own.

The listener is a real socket; the clock and the answers of the NATS server are the test's.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from lakestream.lake.storage.lake import open_storage
from lakestream.loop_thread import LoopThread
from lakestream_client.listening import HttpListener
from lakestream_sharing import grants
from lakestream_sharing.access import Access
from lakestream_sharing.app import PREFIX, Limits, Service
from lakestream_sharing.errors import Unavailable
from lakestream_sharing.grants import DAY_NS, Grant, Shared
from lakestream_sharing.signing import Signer
from tests.delta_tables import BEGIN_MS, HandmadeTable

ACCOUNT = "$G"
DELTA = {"delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors"}


class Reply(msgspec.Struct):
    """An answer over HTTP. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json["errorCode"]


class World:
    """A lake, tokens and the application."""

    def __init__(
        self, lake: str | Path, limits: Limits | None = None, connections: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.lake = lake
        self.now_ns = (BEGIN_MS + 3_600_000) * 1_000_000
        self.entries: dict[str, list[Shared]] = {}
        self.reachable = True
        self._thread = LoopThread("sharing")
        self._connections = connections or {}
        self.address = ""
        self._thread.run(self._start(limits or Limits(), **settings))

    async def _start(self, limits: Limits, public_url: str = "", key: bytes | None = None) -> None:
        self.asked, self.answering = threading.Event(), asyncio.Event()
        self.answering.set()

        async def look_up(token_hash: str) -> list[Shared]:
            self.asked.set()
            await self.answering.wait()
            if not self.reachable:
                raise Unavailable("the server does not answer")
            return self.entries.get(token_hash, [])

        self.access = Access(look_up, lambda: self.now_ns)
        storage = open_storage(self.lake)
        self._service = Service(self.access, storage, ACCOUNT, Signer(key), limits, public_url, lambda: self.now_ns)
        self._listener = HttpListener(self._service, **self._connections)
        self.address = await self._listener.start("127.0.0.1", 0)

    def close(self) -> None:
        """Stop the application."""
        self._thread.run(self._listener.close())
        self._service.close()
        self._thread.close()

    def hold(self, held: bool) -> None:
        """Let look-ups of tokens wait, or go on."""

        async def change() -> None:
            self.asked.clear()
            (self.answering.clear if held else self.answering.set)()

        self._thread.run(change())

    def forget(self) -> None:
        """Drop what the application remembers of tokens, as after CACHE_S."""
        self.access._found.clear()

    def table(self, stream: str, *partitions: str, **more: Any) -> HandmadeTable:
        """Make a table."""
        return HandmadeTable(Path(self.lake) / "streams" / stream, partitions, **more)

    def token(self, *streams: str, share: str = "sales", history: bool = False, days: float = 30) -> str:
        """Issue a token."""
        token = grants.new_token()
        grant = Grant("acme", share, self.now_ns + int(days * DAY_NS), history)
        self.entries[grants.hash_of(token)] = [Shared(stream, grant) for stream in streams]
        return token

    def profile(self, directory: Path, token: str) -> str:
        """Return the path of a profile file."""
        path = directory / "profile.share"
        profile = {"shareCredentialsVersion": 1, "endpoint": f"{self.address}{PREFIX}", "bearerToken": token}
        path.write_text(json.dumps(profile))
        return str(path)

    def ask(
        self,
        path: str,
        token: str = "",
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> Reply:
        """Make a request; `path` is below the prefix, or a URL."""
        url = path if path.startswith("http") else f"{self.address}{PREFIX}{path}"
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        request = urllib.request.Request(url, raw, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def query(self, stream: str, token: str, headers: dict[str, str] | None = None, **body: Any) -> Reply:
        """Query a table."""
        return self.ask(f"/shares/sales/schemas/streams/tables/{stream}/query", token, body, headers)
