"""The connection to one server of a move.

Belongs here: requests of the JetStream API and what they show of a server. Uses an asyncio client, since many streams
move at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakestream.account.schemas.bucket import STREAM, SUBJECTS
from lakestream.cli.link import TransferFailed
from lakestream.cli.server_options import Server
from lakestream.lake.flush import plain_url
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Reference, parse_document
from lakestream_move.plan import SeenStream, Side, as_json

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_S = 5.0
REQUEST_S = 10.0
"""Timeout of a request."""
PROBE_S = 3.0
"""Timeout of a request that may have no receiver."""

STREAM_NOT_FOUND = 10059
LINKS = "$LAKE.API.REMOTE."


class Unreachable(TransferFailed):
    """Raised when a server does not answer; it may later."""


class RequestRefused(TransferFailed):
    """Raised when a server rejects a request. `code`: the API's error code, 0 without one."""

    def __init__(self, text: str, code: int = 0) -> None:
        self.code = code
        super().__init__(text)


class SideConnection:
    """A connection to one server.

    Args:
        server: its URL, or several of one cluster separated by commas, and the login.
        role: "old" or "new", for messages.
    """

    def __init__(self, server: Server, role: str) -> None:
        self.server, self.role = server, role
        self._client: Client | None = None
        self._last_error = ""

    @property
    def urls(self) -> list[str]:
        """Return its URLs."""
        return [url.strip() for url in self.server.url.split(",") if url.strip()]

    @property
    def shown(self) -> str:
        """Return its URLs without credentials."""
        return ", ".join(plain_url(url) for url in self.urls)

    async def open(self) -> None:
        """Connect.

        Raises:
            TransferFailed: it cannot be reached, or rejects the login.
            BadCredentials: a file of the login cannot be used.
        """
        from nats.aio.client import Client
        from nats.errors import Error

        failures: list[str] = []

        async def failed(error: Exception) -> None:
            text = str(error) or type(error).__name__
            failures.append(text)
            self._last_error = text

        login = self.server.login.arguments()
        option = "--from" if self.role == "old" else "--to"
        try:
            # Retry only with a server that was reached before, not with a wrong address.
            first = Client()
            async with asyncio.timeout(CONNECT_S):
                await first.connect(
                    self.urls,
                    name="lakestream move",
                    error_cb=failed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    **login,
                )
                await first.close()
                client = Client()
                await client.connect(
                    self.urls,
                    name="lakestream move",
                    error_cb=failed,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    **login,
                )
        except (Error, OSError, TimeoutError) as error:
            reason = failures[-1] if failures else str(error) or type(error).__name__
            raise TransferFailed(
                f"cannot connect to the {self.role} server at {self.shown}: {reason}; name it with {option}"
            ) from None
        self._client = client

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    @property
    def client(self) -> Client:
        """Return the client."""
        assert self._client is not None  # Invariant: it is open.
        return self._client

    @property
    def max_payload(self) -> int:
        """Return the server's maximum message size."""
        return int(self.client.max_payload)

    # ------------------------------------------------------------------ requests
    async def request(self, subject: str, body: bytes = b"", timeout: float = REQUEST_S) -> bytes:
        """Send a request; return the answer. Raise Unreachable."""
        from nats.errors import Error, NoRespondersError

        self._last_error = ""
        try:
            return bytes((await self.client.request(subject, body, timeout=timeout)).data)
        except NoRespondersError:
            raise Unreachable(f"nothing answers {subject} at the {self.role} server ({self.shown})") from None
        except (Error, OSError, TimeoutError) as error:
            reason = self._last_error or str(error) or type(error).__name__
            raise Unreachable(f"the {self.role} server ({self.shown}) does not answer {subject}: {reason}") from None

    async def ask(
        self, subject: str, body: Mapping[str, Any] | None = None, timeout: float = REQUEST_S
    ) -> dict[str, Any]:
        """Send a request whose answer is JSON. Raise RequestRefused, Unreachable."""
        answer = await self.request(subject, b"" if body is None else as_json(body), timeout)
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError:
            raise RequestRefused(f"{subject}: the answer of the {self.role} server is no JSON") from None
        if error := found.get("error"):
            text = error.get("description", error)
            raise RequestRefused(f"{subject}: {text} (the {self.role} server)", int(error.get("err_code", 0)))
        return found

    async def api(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a JetStream API request; `subject` without `$JS.API.`. Raise RequestRefused, Unreachable."""
        return await self.ask(f"$JS.API.{subject}", body)

    async def stream(self, name: str) -> SeenStream | None:
        """Return a stream; None: there is none."""
        try:
            return SeenStream.of(await self.api(f"STREAM.INFO.{name}"))
        except RequestRefused as error:
            if error.code == STREAM_NOT_FOUND:
                return None
            raise

    async def names(self, subject: str = "") -> list[str]:
        """Return the names of all streams, or of those whose subjects overlap one."""
        found: list[str] = []
        while True:
            body = {"offset": len(found), **({"subject": subject} if subject else {})}
            page = await self.api("STREAM.NAMES", body)
            streams = page.get("streams") or []
            found += streams
            if not streams or len(found) >= int(page.get("total", 0)):
                return found

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return all consumers of a stream."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
            consumers = page.get("consumers") or []
            found += consumers
            if not consumers or len(found) >= int(page.get("total", 0)):
                return found

    async def has_schema(self, schema: Reference) -> bool:
        """Return True if the bucket of schemas has a schema. A nats-server knows no registry, but has the bucket."""
        try:
            wanted = {"last_by_subj": f"{SUBJECTS}{schema.name}"}
            message = (await self.api(f"STREAM.MSG.GET.{STREAM}", wanted))["message"]
            latest = parse_document(base64.b64decode(message.get("data", "")))
        except (RequestRefused, BadSchema):  # no bucket, no such key, or a marker of its deletion
            return False
        return latest.version >= (schema.version or 1)

    # ------------------------------------------------------------------ facts
    async def links(self) -> dict[str, Any] | None:
        """Return what the server says of temporary links; None: it has none, or the user may not ask."""
        try:
            return await self.ask(f"{LINKS}INFO", timeout=PROBE_S)
        except TransferFailed:
            return None

    async def facts(self, links: Mapping[str, Any] | None) -> Side:
        """Return what the rehearsal needs to know. Raise TransferFailed when it has no JetStream for this user."""
        try:
            account = await self.api("INFO")
        except TransferFailed as error:
            raise TransferFailed(f"no JetStream at the {self.role} server: {error}") from None
        try:
            user = (await self.ask("$SYS.REQ.USER.INFO", timeout=PROBE_S)).get("data") or {}
        except TransferFailed:
            user = {}  # older than 2.9, or not permitted
        permissions = user.get("permissions") or {}
        limits = account.get("limits") or {}
        tiers = account.get("tiers") or {}
        version = self.client.connected_server_version
        return Side(
            lakestream=links is not None,
            version=f"{version.major}.{version.minor}.{version.patch}",
            api_level=int((account.get("api") or {}).get("level", 0)),
            max_payload=self.max_payload,
            clustered=await self._clustered(),
            domain=str(account.get("domain", "")),
            limits=limits,
            tiers=tiers,
            used={key: account.get(key, 0) for key in ("memory", "storage", "streams")},
            publish=permissions.get("publish"),
            subscribe=permissions.get("subscribe"),
        )

    async def _clustered(self) -> bool:
        """Return True for a node of a cluster: it names other nodes, or its streams have a group."""
        if len(self.client.discovered_servers) > 0:
            return True
        for name in (await self.names())[:1]:
            cluster = (await self.api(f"STREAM.INFO.{name}")).get("cluster") or {}
            return bool(cluster.get("raft_group") or cluster.get("replicas"))
        return False
