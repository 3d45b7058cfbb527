"""Delta Sharing over HTTP: the application of `lakestream sharing serve`.

Belongs here: routes, limits, and the way of one request through access, table and signature. HTTP itself is in
lakestream/http. Tables are read in threads.

Source: Delta Sharing protocol, "REST APIs".
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http import HTTPStatus
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from lakestream.http.exchange import TEXT, Headers, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
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
    WrongMethod,
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
WAIT_S = 30
"""Time for which a download waits for another to end."""
CHUNK = 256 << 10
T = TypeVar("T")
_log = logging.getLogger("lakestream.sharing")
_NDJSON, _JSON = "application/x-ndjson; charset=utf-8", "application/json; charset=utf-8"
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


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


class SharingRequest(msgspec.Struct):
    """A request with what its path and its query say, and the client that a file is sent to."""

    http: HttpRequest
    output: HttpOutput
    names: Mapping[str, str] = {}
    query: Mapping[str, str] = {}

    def header(self, name: str) -> str:
        """Return a header; "" for none."""
        return self.http.headers.get(name, "")


class Service(HttpHandler):
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
        self.tell: Callable[[dict[str, str]], None] = lambda told: None
        self._tables = Tables(storage, account, now_ns, limits.files)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="sharing")
        self._requests = 0
        self._downloads = Slots(limits.downloads, max(1, limits.downloads // 2))

        share = f"{PREFIX}/shares/{{share}}"
        table = f"{share}/schemas/{{schema}}/tables/{{table}}"
        self._routes = [
            _Route("GET", f"{PREFIX}/shares", self._list_shares),
            _Route("GET", share, self._get_share),
            _Route("GET", f"{share}/schemas", self._list_schemas),
            _Route("GET", f"{share}/schemas/{{schema}}/tables", self._list_tables),
            _Route("GET", f"{share}/all-tables", self._list_tables),
            _Route("HEAD", table, self._version),  # deprecated by the protocol, and still asked
            _Route("GET", f"{table}/version", self._version),
            _Route("GET", f"{table}/metadata", self._metadata),
            _Route("POST", f"{table}/query", self._query),
            _Route("GET", f"{table}/changes", self._changes),
            _Route("GET", f"{PREFIX}/files/{{file}}", self._file),
        ]

    def close(self) -> None:
        """Read no more tables."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ every request
    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        return MAX_BODY

    def completed(self, request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        return answer._replace(headers=(*answer.headers, *_common()))

    def invalid(self, status: int, reason: str) -> HttpAnswer:
        return _error(_REFUSED.get(status, BadRequest)(HTTPStatus(status).phrase), status, *_common())

    def failed(self, path: str, error: BaseException) -> HttpAnswer:
        _log.error("%s", path, exc_info=error)
        return _error(SharingError("internal error"))

    async def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer | None:
        """Answer errors as the protocol has them. Details of failures go to the log, never to recipients."""
        asked = SharingRequest(request, output, query=dict(reversed(parse_qsl(request.query, keep_blank_values=True))))
        try:
            call = self._routed(asked)
            if call == self._file:
                return await call(asked)
            if self._requests >= self._limits.requests:
                raise Busy(f"{self._limits.requests} requests are in progress: try again")
            self._requests += 1
            try:
                return await call(asked)
            finally:
                self._requests -= 1
        except SharingError as error:
            if error.__cause__ is not None:
                _log.error("%s: %s", error, error.__cause__)
            return _error(error)
        except (LakeError, OSError) as error:
            _log.error("%s %s: %s", request.method, request.path, error)
            return _error(Unavailable("the table cannot be read now: try again"))

    def _routed(self, request: SharingRequest) -> _Call:
        """Return what answers a request, which gets the names in its path. Raises NotFound, WrongMethod."""
        allowed: set[str] = set()
        for route in self._routes:
            if (found := route.pattern.fullmatch(request.http.path)) is not None:
                if request.http.method in route.methods:
                    request.names = {name: unquote(text) for name, text in found.groupdict().items()}
                    return route.call
                allowed |= route.methods
        if allowed:
            raise WrongMethod(",".join(sorted(allowed)))
        raise NotFound("Not Found")

    async def _read(self, call: Callable[[], T]) -> T:
        """Return what a call returns that reads a table, in a thread."""
        try:
            async with asyncio.timeout(READ_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise Unavailable(f"the table could not be read in {READ_S} s") from None

    # ------------------------------------------------------------------ lists
    async def _list_shares(self, request: SharingRequest) -> HttpAnswer:
        _, entries = await self._access.of_header(request.header("authorization"))
        names = sorted({each.grant.share for each in entries})
        return self._page(request, "shares", names, lambda name: {"name": name})

    async def _get_share(self, request: SharingRequest) -> HttpAnswer:
        _, entries = await self._share(request)
        return _json({"share": {"name": entries[0].grant.share}})

    async def _list_schemas(self, request: SharingRequest) -> HttpAnswer:
        _, entries = await self._share(request)
        share = entries[0].grant.share
        return self._page(request, f"schemas {share}", [SCHEMA], lambda name: {"name": name, "share": share})

    async def _list_tables(self, request: SharingRequest) -> HttpAnswer:
        _, entries = await self._share(request)
        if request.names.get("schema", SCHEMA).lower() != SCHEMA:
            raise NotFound(f"schema {request.names['schema']} does not exist")
        share = entries[0].grant.share
        found = await self._read(self._tables.names)
        names = [name for name in found if _grant(entries, name) is not None]
        return self._page(
            request, f"tables {share}", names, lambda name: {"name": name, "schema": SCHEMA, "share": share}
        )

    def _page(
        self, request: SharingRequest, what: str, names: Sequence[str], shown: Callable[[str], dict[str, str]]
    ) -> HttpAnswer:
        """Return a page of a sorted list."""
        most = requests.number(request.query, "maxResults")
        most = requests.MAX_RESULTS if most is None else min(most, requests.MAX_RESULTS)
        token = request.query.get("pageToken", "")
        after = ""
        if token:
            page = self._signer.unseal(Page, token, "pageToken")
            if page.what != what:
                raise BadRequest("pageToken belongs to another list")
            after = page.after
        rest = [name for name in names if name > after]
        found: dict[str, Any] = {"items": [shown(name) for name in rest[:most]]}
        if len(rest) > most:
            found["nextPageToken"] = self._signer.seal(Page(what, rest[most - 1] if most else after))
        return _json(found)

    # ------------------------------------------------------------------ tables
    async def _version(self, request: SharingRequest) -> HttpAnswer:
        stream, _, _ = await self._table(request)
        since = requests.time_of(request.query, "startingTimestamp")

        def read() -> int:
            table = self._tables.table(stream)
            return table.latest if since is None else table.version_from(since, "startingTimestamp")

        return HttpAnswer(200, "application/octet-stream", b"", ((VERSION_HEADER, str(await self._read(read))),))

    async def _metadata(self, request: SharingRequest) -> HttpAnswer:
        asked = requests.capabilities(request.header(CAPABILITIES))
        stream, _, _ = await self._table(request)
        answer = await self._read(lambda: self._tables.table(stream).metadata(asked))
        return await self._answered(answer, asked.end_stream, None)

    async def _query(self, request: SharingRequest) -> HttpAnswer:
        asked = requests.capabilities(request.header(CAPABILITIES))
        stream, grant, token = await self._table(request)
        self.tell({"recipient": grant.recipient, "share": grant.share, "table": stream, "token": token[:12]})
        query = requests.decode_query(request.http.body)
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
                raise BadRequest("refreshToken belongs to another table: query the table again")
            return answer

        answer = await self._read(read)
        renewed = ""
        if query.include_refresh_token:
            until = refresh.expires_ns if refresh is not None else self._now_ns() + REFRESH_MS * 1_000_000
            renewed = self._signer.seal(Refresh(answer.table_id, answer.version, token, until))
        return await self._answered(answer, asked.end_stream, urls, renewed)

    async def _changes(self, request: SharingRequest) -> HttpAnswer:
        asked = requests.capabilities(request.header(CAPABILITIES))
        stream, grant, token = await self._table(request)
        self.tell({"recipient": grant.recipient, "share": grant.share, "table": stream, "token": token[:12]})
        window = requests.changes_window(request.query)
        if not grant.history:
            raise Forbidden(_NO_HISTORY)
        urls = self._urls(request, stream, token, grant)
        answer = await self._read(lambda: self._tables.table(stream).changes(asked, window, urls))
        return await self._answered(answer, asked.end_stream, urls)

    # ------------------------------------------------------------------ files
    async def _file(self, request: SharingRequest) -> HttpAnswer | None:
        """Send a file, or a range of it, to the holder of a URL whose token is still valid."""
        url = self._signer.open(FileUrl, request.names["file"], request.query.get("sig", ""))
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
            with await asyncio.to_thread(open, path, "rb") as file:
                return await _sent(request, file)

    # ------------------------------------------------------------------ parts
    async def _share(self, request: SharingRequest) -> tuple[str, list[Shared]]:
        """Return the hash of the request's token, and the entries of the share that it names. Raises NotFound."""
        token, entries = await self._access.of_header(request.header("authorization"))
        wanted = request.names["share"]
        share = _named(wanted, {each.grant.share for each in entries})
        if share is None:
            raise NotFound(f"share {wanted} does not exist")
        return token, [each for each in entries if each.grant.share == share]

    async def _table(self, request: SharingRequest) -> tuple[str, Grant, str]:
        """Return the stream that a request names, the entry that covers it, and the hash of the token.

        Raises:
            NotFound: there is no such table, or the token does not cover it: no difference is shown.
        """
        token, entries = await self._share(request)
        wanted = request.names["table"]
        missing = NotFound(f"table {wanted} does not exist")
        if request.names["schema"].lower() != SCHEMA:
            raise missing
        stream = _named(wanted, await self._read(self._tables.names))
        grant = None if stream is None else _grant(entries, stream)
        if stream is None or grant is None:
            raise missing
        return stream, grant, token

    def _urls(self, request: SharingRequest, stream: str, token: str, grant: Grant) -> Urls:
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
    ) -> HttpAnswer:
        lines = [*answer.lines]
        if urls is not None and (end_stream or refresh_token):
            lines.append(actions.end_of_stream(urls.expires_ms, refresh_token))
        body = await self._read(lambda: self._encoded(lines))
        shown = f"responseformat={answer.form}"
        if end_stream:
            shown += ";includeendstreamaction=true"
        return HttpAnswer(200, _NDJSON, body, ((VERSION_HEADER, str(answer.version)), (CAPABILITIES, shown)))

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


_Call = Callable[[SharingRequest], Awaitable[HttpAnswer | None]]


class _Route:
    """Requests of a path with names in braces, and their handler. Requests for GET may also be for HEAD."""

    def __init__(self, method: str, path: str, call: _Call) -> None:
        self.methods = {"GET", "HEAD"} if method == "GET" else {method}
        self.pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
        self.call = call


async def _sent(request: SharingRequest, file: IO[bytes]) -> HttpAnswer | None:
    """Send a file that never changes, or the range of it that a request asks for."""
    found = os.fstat(file.fileno())
    size, tag = found.st_size, f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
    changed = formatdate(found.st_mtime, usegmt=True)
    first, end, status = 0, size, 200
    headers = [("Cache-Control", "private, no-store"), ("ETag", tag), ("Last-Modified", changed)]
    if (wanted := request.header("range")) and request.header("if-range") in ("", tag, changed):
        low, high = match.groups() if (match := _RANGE.fullmatch(wanted)) is not None else ("", "")
        first = int(low) if low else size - min(size, int(high or "0"))
        end = min(int(high) + 1, size) if low and high else size
        if first >= end:
            return HttpAnswer(416, TEXT, b"", (("Content-Range", f"bytes */{size}"),))
        headers.append(("Content-Range", f"bytes {first}-{end - 1}/{size}"))
        status = 206
    kind = ("Content-Type", "application/octet-stream")
    request.output.begin(
        status, (kind, ("Content-Length", str(end - first)), ("Accept-Ranges", "bytes"), *headers, *_common())
    )
    await asyncio.to_thread(file.seek, first)
    while first < end and request.http.method != "HEAD":
        data = await asyncio.to_thread(file.read, min(CHUNK, end - first))
        if not data:
            raise OSError("the file has become shorter")
        first += len(data)
        request.output.send(data)
        try:
            await request.output.drained()
        except ConnectionError:
            break  # the client is gone, which is no failure
    return None


def _common() -> Headers:
    """Return the headers of every response."""
    return ("Server", "lakestream"), ("Date", formatdate(usegmt=True))


def _origin(request: SharingRequest) -> str:
    """Return scheme and host by which a client addresses the application. Raises BadRequest."""
    host = request.header("host")
    if _HOST.fullmatch(host) is None:
        raise BadRequest("the header Host is not a valid host name")
    return f"{'https' if request.http.secure else 'http'}://{host}"


def _is_past(query: Query) -> bool:
    return query.version is not None or query.timestamp is not None or query.starting_version is not None


_REFUSED: dict[int, type[SharingError]] = {413: TooLarge, 431: TooLarge}
"""Errors of HTTP by their status; others are bad requests."""


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


def _json(value: object) -> HttpAnswer:
    return HttpAnswer(200, _JSON, msgspec.json.encode(value))


def _error(error: SharingError, status: int = 0, *headers: tuple[str, str]) -> HttpAnswer:
    if isinstance(error, WrongMethod):
        headers = (("Allow", error.allowed), *headers)
    if isinstance(error, Unauthenticated):
        headers = (("WWW-Authenticate", "Bearer"), *headers)
    if isinstance(error, Busy | Unavailable):
        headers = (("Retry-After", "1"), *headers)
    body = msgspec.json.encode({"errorCode": error.code, "message": str(error)})
    return HttpAnswer(status or error.status, _JSON, body, headers)
