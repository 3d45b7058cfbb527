"""Delta Sharing over HTTP: the application of `lakestream sharing serve`.

Belongs here: routes, limits, and the way of one request through access, table and signature. aiohttp has HTTP itself,
with ranges of files. Tables are read in threads.

Source: Delta Sharing protocol, "REST APIs".
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler
from aiohttp.web_request import BaseRequest

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.storage import Storage
from lakestream_sharing import actions, requests
from lakestream_sharing.access import Access
from lakestream_sharing.errors import (
    BadRequest,
    Busy,
    Forbidden,
    NotFound,
    SharingError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from lakestream_sharing.grants import EVERY, Grant, Shared
from lakestream_sharing.requests import CAPABILITIES, Query
from lakestream_sharing.signing import FileUrl, Page, Refresh, Signer
from lakestream_sharing.slots import Slots
from lakestream_sharing.tables import Answer, Tables, Urls

PREFIX = "/delta-sharing"
SCHEMA = "streams"
"""The only schema of a share."""
VERSION_HEADER = "Delta-Table-Version"
READERS = 4
"""Tables that are read at the same time; more wait."""
MAX_BODY = 1 << 20
"""Bytes of a request's body (1 MiB)."""
REFRESH_MS = 86_400_000
"""Time for which a refresh token renews the URLs of a version (24 h), if the table keeps it as long."""
READ_S = 300
"""Time for reading a table; then the request fails (5 min)."""
BODY_S = 30
"""Time for a request's body."""
WAIT_S = 30
"""Time for which a download waits for another to end."""
CHUNK = 256 << 10
T = TypeVar("T")
_log = logging.getLogger("lakestream.sharing")
_NDJSON, _JSON = "application/x-ndjson", "application/json"


class Limits(msgspec.Struct, frozen=True):
    """Limits of the application.

    Attributes:
        requests: requests that may be under way, without downloads; more are refused.
        downloads: files that are sent at the same time; more wait.
        files: of one answer.
        answer_bytes: of one answer.
        url_seconds: life of a URL.
    """

    requests: int = 64
    downloads: int = 64
    files: int = 100_000
    answer_bytes: int = 256 << 20
    url_seconds: int = 3600


class Service:
    """The recipients' view of one account's tables.

    Args:
        access: what each token may read.
        storage: the lake.
        account: the account.
        signer: signs URLs.
        limits: the limits.
        public_url: URL by which recipients reach the application, without the prefix; "": as they address it.
        now_ns: returns the present, ns since the epoch.
    """

    def __init__(
        self,
        access: Access,
        storage: Storage,
        account: str,
        signer: Signer,
        limits: Limits,
        public_url: str,
        now_ns: Callable[[], int],
    ) -> None:
        self._access, self._storage, self._signer, self._limits = access, storage, signer, limits
        self._public_url, self._now_ns = public_url.rstrip("/"), now_ns
        self._tables = Tables(storage, account, now_ns, limits.files)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="sharing")
        self._requests = 0
        self._downloads = Slots(limits.downloads, max(1, limits.downloads // 2))

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MAX_BODY)
        share = f"{PREFIX}/shares/{{share}}"
        table = f"{share}/schemas/{{schema}}/tables/{{table}}"
        app.router.add_get(f"{PREFIX}/shares", self._list_shares)
        app.router.add_get(share, self._get_share)
        app.router.add_get(f"{share}/schemas", self._list_schemas)
        app.router.add_get(f"{share}/schemas/{{schema}}/tables", self._list_tables)
        app.router.add_get(f"{share}/all-tables", self._list_tables)
        app.router.add_head(table, self._version)  # deprecated by the protocol, and still asked
        app.router.add_get(f"{table}/version", self._version)
        app.router.add_get(f"{table}/metadata", self._metadata)
        app.router.add_post(f"{table}/query", self._query)
        app.router.add_get(f"{table}/changes", self._changes)
        app.router.add_get(f"{PREFIX}/files/{{file}}", self._file)
        app.on_response_prepare.append(_name)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ every request
    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer errors as the protocol has them. Details of failures go to the log, never to recipients."""
        try:
            if request.match_info.get("file") is not None:
                return await handler(request)
            if self._requests >= self._limits.requests:
                raise Busy(f"{self._limits.requests} requests are under way: try again")
            self._requests += 1
            try:
                return await handler(request)
            finally:
                self._requests -= 1
        except SharingError as error:
            if error.__cause__ is not None:
                _log.error("%s: %s", error, error.__cause__)
            return _error(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _error(_REFUSED.get(error.status, NotFound)(error.reason), error.status, error.headers.get("Allow"))
        except (LakeError, OSError) as error:
            _log.error("%s %s: %s", request.method, request.path, error)
            return _error(Unavailable("the table cannot be read now: try again"))
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s %s", request.method, request.path)
            return _error(SharingError("internal error"))

    async def _read(self, call: Callable[[], T]) -> T:
        """Return what a call returns that reads a table, in a thread."""
        try:
            async with asyncio.timeout(READ_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise Unavailable(f"the table could not be read in {READ_S} s") from None

    # ------------------------------------------------------------------ lists
    async def _list_shares(self, request: web.Request) -> web.Response:
        _, entries = await self._access.of_header(request.headers.get("Authorization", ""))
        names = sorted({each.grant.share for each in entries})
        return self._page(request, "shares", names, lambda name: {"name": name})

    async def _get_share(self, request: web.Request) -> web.Response:
        _, entries = await self._share(request)
        return _json({"share": {"name": entries[0].grant.share}})

    async def _list_schemas(self, request: web.Request) -> web.Response:
        _, entries = await self._share(request)
        share = entries[0].grant.share
        return self._page(request, f"schemas {share}", [SCHEMA], lambda name: {"name": name, "share": share})

    async def _list_tables(self, request: web.Request) -> web.Response:
        _, entries = await self._share(request)
        if request.match_info.get("schema", SCHEMA).lower() != SCHEMA:
            raise NotFound(f"schema {request.match_info['schema']} does not exist")
        share = entries[0].grant.share
        found = await self._read(self._tables.names)
        names = [name for name in found if _grant(entries, name) is not None]
        return self._page(
            request, f"tables {share}", names, lambda name: {"name": name, "schema": SCHEMA, "share": share}
        )

    def _page(
        self, request: web.Request, what: str, names: Sequence[str], shown: Callable[[str], dict[str, str]]
    ) -> web.Response:
        """Return a page of a sorted list."""
        most = requests.number(request.query, "maxResults")
        most = requests.MAX_RESULTS if most is None else min(most, requests.MAX_RESULTS)
        token = request.query.get("pageToken", "")
        after = ""
        if token:
            page = self._signer.unseal(Page, token, "pageToken")
            if page.what != what:
                raise BadRequest("pageToken is one of another list")
            after = page.after
        rest = [name for name in names if name > after]
        found: dict[str, Any] = {"items": [shown(name) for name in rest[:most]]}
        if len(rest) > most:
            found["nextPageToken"] = self._signer.seal(Page(what, rest[most - 1] if most else after))
        return _json(found)

    # ------------------------------------------------------------------ tables
    async def _version(self, request: web.Request) -> web.Response:
        stream, _, _ = await self._table(request)
        since = requests.time_of(request.query, "startingTimestamp")

        def read() -> int:
            table = self._tables.table(stream)
            return table.latest if since is None else table.version_from(since, "startingTimestamp")

        return web.Response(headers={VERSION_HEADER: str(await self._read(read))})

    async def _metadata(self, request: web.Request) -> web.Response:
        asked = requests.capabilities(request.headers.get(CAPABILITIES, ""))
        stream, _, _ = await self._table(request)
        answer = await self._read(lambda: self._tables.table(stream).metadata(asked))
        return await self._answered(answer, asked.end_stream, None)

    async def _query(self, request: web.Request) -> web.Response:
        asked = requests.capabilities(request.headers.get(CAPABILITIES, ""))
        stream, grant, token = await self._table(request)
        query = requests.decode_query(await _body(request))
        if not grant.history and _is_past(query):
            raise Forbidden(_NO_HISTORY)
        urls = self._urls(request, stream, token, grant)
        refresh = None
        if query.refresh_token is not None:
            refresh = self._signer.unseal(Refresh, query.refresh_token, "refreshToken")
            if refresh.token != token or refresh.expires_ns <= self._now_ns():
                raise BadRequest("refreshToken has expired: query the table again")

        def read() -> Answer:
            table = self._tables.table(stream)
            if query.starting_version is not None:
                return table.files_since(asked, query.starting_version, query.ending_version, urls)
            answer = table.query(asked, query, urls, None if refresh is None else refresh.version)
            if refresh is not None and refresh.table_id != answer.table_id:
                raise BadRequest("refreshToken is one of another table: query the table again")
            return answer

        answer = await self._read(read)
        renewed = ""
        if query.include_refresh_token:
            until = refresh.expires_ns if refresh is not None else self._now_ns() + REFRESH_MS * 1_000_000
            renewed = self._signer.seal(Refresh(answer.table_id, answer.version, token, until))
        return await self._answered(answer, asked.end_stream, urls, renewed)

    async def _changes(self, request: web.Request) -> web.Response:
        asked = requests.capabilities(request.headers.get(CAPABILITIES, ""))
        stream, grant, token = await self._table(request)
        window = requests.changes_window(request.query)
        if not grant.history:
            raise Forbidden(_NO_HISTORY)
        urls = self._urls(request, stream, token, grant)
        answer = await self._read(lambda: self._tables.table(stream).changes(asked, window, urls))
        return await self._answered(answer, asked.end_stream, urls)

    # ------------------------------------------------------------------ files
    async def _file(self, request: web.Request) -> web.StreamResponse:
        """Send a file, or a range of it, to the holder of a URL whose token is still valid."""
        url = self._signer.open(FileUrl, request.match_info["file"], request.query.get("sig", ""))
        if url.expires_ns <= self._now_ns():
            raise Forbidden("the URL has expired: query the table again")
        try:
            entries = await self._access.of_hash(url.token)
        except Unauthenticated:
            entries = []
        if _grant(entries, url.stream) is None:
            raise Forbidden("the token of this URL is not valid any more")
        if not self._storage.local:
            raise NotFound("no such file")
        path = f"{self._storage.root}/{url.path}"
        async with self._downloads.taken(url.token, WAIT_S):
            if not await self._read(lambda: _is_file(self._storage.root, path)):
                raise NotFound("the file is gone: the table was deleted, or does not keep this version any more")
            response = _File(path, chunk_size=CHUNK, headers={"Content-Type": "application/octet-stream"})
            response.headers["Cache-Control"] = "private, no-store"
            try:
                await response.prepare(request)
            except BaseException as error:
                # Part of the file may be sent: nothing else may follow it on this connection.
                if request.transport is not None:
                    request.transport.abort()
                if not isinstance(error, ConnectionError):  # the client is gone, which is no failure
                    raise
            return response

    # ------------------------------------------------------------------ parts
    async def _share(self, request: web.Request) -> tuple[str, list[Shared]]:
        """Return the hash of the request's token, and the entries of the share that it names. Raises NotFound."""
        token, entries = await self._access.of_header(request.headers.get("Authorization", ""))
        wanted = request.match_info["share"]
        share = _named(wanted, {each.grant.share for each in entries})
        if share is None:
            raise NotFound(f"share {wanted} does not exist")
        return token, [each for each in entries if each.grant.share == share]

    async def _table(self, request: web.Request) -> tuple[str, Grant, str]:
        """Return the stream that a request names, the entry that covers it, and the hash of the token.

        Raises:
            NotFound: there is no such table, or the token does not cover it: no difference is shown.
        """
        token, entries = await self._share(request)
        wanted = request.match_info["table"]
        missing = NotFound(f"table {wanted} does not exist")
        if request.match_info["schema"].lower() != SCHEMA:
            raise missing
        stream = _named(wanted, await self._read(self._tables.names))
        grant = None if stream is None else _grant(entries, stream)
        if stream is None or grant is None:
            raise missing
        return stream, grant, token

    def _urls(self, request: web.Request, stream: str, token: str, grant: Grant) -> Urls:
        """Return how files of an answer get their URLs. No URL outlives its token."""
        now = self._now_ns()
        seconds = max(1, min(self._limits.url_seconds, (grant.expires_ns - now) // 1_000_000_000))
        expires_ns = now + seconds * 1_000_000_000
        if not self._storage.local:
            return Urls(lambda files: self._storage.sign(files, seconds), expires_ns // 1_000_000)
        base = f"{self._public_url or _origin(request)}{PREFIX}/files/"

        def sign(files: Sequence[str]) -> list[str]:
            found = []
            for path in files:
                below = path[len(self._storage.root) + 1 :]
                text, signature = self._signer.sign(FileUrl(below, stream, token, expires_ns))
                # Readers over delta-kernel fetch a URL only if its parameters look like an object store's: `sp` is one
                # of Azure's (signed permission: read).
                found.append(f"{base}{text}?sp=r&se={expires_ns // 1_000_000_000}&sig={signature}")
            return found

        return Urls(sign, expires_ns // 1_000_000)

    async def _answered(
        self, answer: Answer, end_stream: bool, urls: Urls | None, refresh_token: str = ""
    ) -> web.Response:
        lines = [*answer.lines]
        if urls is not None and (end_stream or refresh_token):
            lines.append(actions.end_of_stream(urls.expires_ms, refresh_token))
        body = await self._read(lambda: self._encoded(lines))
        shown = f"responseformat={answer.form}"
        if end_stream:
            shown += ";includeendstreamaction=true"
        headers = {VERSION_HEADER: str(answer.version), CAPABILITIES: shown}
        return web.Response(body=body, content_type=_NDJSON, charset="utf-8", headers=headers)

    def _encoded(self, lines: Sequence[dict[str, object]]) -> bytes:
        """Return lines of JSON. Raises TooLarge."""
        found: list[bytes] = []
        size = 0
        for line in lines:
            found.append(msgspec.json.encode(line))
            size += len(found[-1]) + 1
            if size > self._limits.answer_bytes:
                raise TooLarge(f"the answer has more than {self._limits.answer_bytes:,} bytes: ask for fewer files")
        return b"\n".join((*found, b""))


_NO_HISTORY = (
    "the token covers the newest version only: earlier versions and changes need one that was issued with --history"
)


async def _name(_: web.Request, response: web.StreamResponse) -> None:
    """Name the server without its version, which aiohttp would tell."""
    response.headers["Server"] = "lakestream"


class _File(web.FileResponse):
    """A file whose handler sends it itself, so that it knows the end; aiohttp would begin anew otherwise."""

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        return None if self.prepared else await super().prepare(request)


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise BadRequest(f"the body did not come within {BODY_S} s") from None


def _origin(request: web.Request) -> str:
    """Return scheme and host by which a client addresses the application. Raises BadRequest."""
    try:
        return str(request.url.origin())
    except ValueError:
        raise BadRequest("the header Host is not a valid host name") from None


def _is_past(query: Query) -> bool:
    return query.version is not None or query.timestamp is not None or query.starting_version is not None


_REFUSED: dict[int, type[SharingError]] = {400: BadRequest, 405: BadRequest, 413: TooLarge}
"""Errors of aiohttp by their status."""


def _named(wanted: str, names: Sequence[str] | set[str]) -> str | None:
    """Return the name that a request means: exactly, or the only one in another case."""
    if wanted in names:
        return wanted
    found = [name for name in names if name.lower() == wanted.lower()]
    return found[0] if len(found) == 1 else None


def _grant(entries: Sequence[Shared], stream: str) -> Grant | None:
    """Return the entry that covers a stream; one of its own before one of all streams."""
    found = {each.stream: each.grant for each in entries}
    return found.get(stream) or found.get(EVERY)


def _is_file(root: str, path: str) -> bool:
    """Return True for a regular file below the root, not reached by a symbolic link out of it."""
    real = os.path.realpath(path)
    if not real.startswith(os.path.realpath(root) + os.sep):
        return False
    try:
        return stat.S_ISREG(os.stat(real).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON, charset="utf-8")


def _error(error: SharingError, status: int = 0, allowed: str | None = None) -> web.Response:
    headers = {} if allowed is None else {"Allow": allowed}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Busy | Unavailable):
        headers["Retry-After"] = "1"
    body = msgspec.json.encode({"errorCode": error.code, "message": str(error)})
    return web.Response(body=body, status=status or error.status, content_type=_JSON, headers=headers)
