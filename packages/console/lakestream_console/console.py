"""The requests of the console.

Belongs here: which requests there are, what each must have (session, CSRF text, type and size of its body), and their
effect. HTTP headers are read in access.py, sessions are in sessions.py, NATS is in client.py.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from lakestream import __version__
from lakestream.config.options import STANDARD, ConsoleOptions
from lakestream.http.exchange import JSON, TEXT, Headers, HttpAnswer, HttpRequest, Outcome
from lakestream.net.accounts.auth import REDACTED, Authenticator
from lakestream.net.connection import Connection
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Pages
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ops.sql.processes import missing
from lakestream.ops.system.requests import permissions_shown
from lakestream.ports import Clock
from lakestream.protocol import headers as blocks
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.nkeys import BadKeyError, credentials
from lakestream.protocol.subjects import valid_subject
from lakestream_console import access
from lakestream_console.client import (
    MAX_REPLIES,
    MAX_SUBSCRIPTIONS,
    MAX_WAIT_NS,
    ConsoleClient,
    ConsoleError,
    LoginSecrets,
    Replies,
)
from lakestream_console.files import PAGE, ConsoleFiles
from lakestream_console.history import MAX_RANGE_S, ServerHistory
from lakestream_console.live import EventStream
from lakestream_console.pages import NAMES, AccountPages
from lakestream_console.restores import RestoreBody, ServerRestores
from lakestream_console.sessions import FAILURES_NS, ConsoleSession, LoginLimit, Sessions
from lakestream_console.shown import shown

if TYPE_CHECKING:
    from lakestream_console.sql import ConsoleSql

MAX_LOGIN_BYTES = 64 << 10
"""Bytes of the body of a login (64 KiB): credentials with a long JWT fit."""

MAX_BODY_BYTES = 12 << 20
"""Bytes of the body of another request (12 MiB): a message of 8 MiB fits, in base64."""

ACK_WAIT_NS = 5_000_000_000
"""Time to wait for the pub ack of a stream (5 s)."""

MAX_STREAMS, MAX_SESSION_STREAMS = 32, 4
"""Live views of all sessions (32), so that the port has connections left, and of one session (4)."""

KINDS = ("user", "token", "creds", "nkey")
"""Ways to log in."""

_MS = 1_000_000
T = TypeVar("T", bound=msgspec.Struct)


class WrongMethod(ConsoleError):
    """Raised for a request with another method than `allowed`."""

    def __init__(self, allowed: str) -> None:
        super().__init__(405, f"this takes {allowed} only")
        self.allowed = allowed


class ConsoleServer(Monitored, Protocol):
    """The server, as the console needs it; the node implements it."""

    def authenticator_for(self, kind: str) -> Authenticator:
        """Return the check of credentials of clients of this kind."""


class LoginBody(msgspec.Struct, frozen=True):
    """The body of a login: a user with its password, a token, the text of a credentials file, or a seed. `inbox`: the
    prefix of reply subjects, for users whose permissions have another one."""

    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    inbox: str = "_INBOX"


class MessageBody(msgspec.Struct, frozen=True):
    """A message. `data` is text, `data_base64` bytes."""

    subject: str
    data: str | None = None
    data_base64: bytes | None = None
    headers: dict[str, str | list[str]] = {}

    @property
    def payload(self) -> bytes:
        """Return the payload."""
        return self.data_base64 if self.data_base64 is not None else (self.data or "").encode()

    def header(self) -> bytes:
        """Return the header block; b"" without headers. Raises ConsoleError for names and values that cannot be."""
        pairs = []
        for name, values in self.headers.items():
            for value in [values] if isinstance(values, str) else values:
                if not name or not name.isascii() or any(each in name for each in " :\r\n") or not name.isprintable():
                    raise ConsoleError(400, f"{name!r} is not the name of a header")
                if "\r" in value or "\n" in value:
                    raise ConsoleError(400, f"the value of header {name} has a line end")
                pairs.append((name.encode(), value.encode()))
        return blocks.build(pairs) if pairs else b""


class RequestBody(MessageBody, frozen=True):
    """A request. `replies`: the number of replies, or "eob". `timeout_ms` 0: the default."""

    replies: Replies = 1
    timeout_ms: int = 0


_login_body = msgspec.json.Decoder(LoginBody)
_message_body = msgspec.json.Decoder(MessageBody)
_restore_body = msgspec.json.Decoder(RestoreBody)
_request_body = msgspec.json.Decoder(RequestBody)


class _Route(NamedTuple):
    """A request: its method, and its handler, which gets the session."""

    method: str
    handle: Callable[[HttpRequest, ConsoleSession], Awaitable[Outcome]]


class Console:
    """The console of one server.

    Args:
        node: the server.
        pages: its monitoring pages.
        make: makes the server's side of a client connection.

    Attributes:
        path: the path of the page, below which everything is.
    """

    def __init__(self, node: ConsoleServer, pages: Pages, make: Callable[[], Connection], clock: Clock) -> None:
        self.path = f"{node.options.http_base_path}/console"
        self._node, self._make, self._clock = node, make, clock
        self._sessions = Sessions(clock, self._ended)
        self._limit = LoginLimit(clock)
        self._files: ConsoleFiles | None = None
        self._pages = AccountPages(node, pages)
        self._history = ServerHistory(node, pages, clock, self._options.history_ns // 1_000_000_000)
        self._streams = 0
        self._queries: ConsoleSql | None = None
        self._restores: ServerRestores | None = None
        self._routes = {
            "session": _Route("GET", self._session),
            "logout": _Route("POST", self._log_out),
            "request": _Route("POST", self._request),
            "publish": _Route("POST", self._publish),
            "live": _Route("GET", self._live),
            "history": _Route("GET", self._figures),
            "sql": _Route("POST", self._sql),
            "cancel": _Route("POST", self._cancel),
            "restore": _Route("POST", self._restore),
            "restored": _Route("GET", self._restored),
            **{name: _Route("GET", self._page(name)) for name in NAMES},
        }

    @property
    def _options(self) -> ConsoleOptions:
        return self._node.options.console

    def _ended(self, session: ConsoleSession) -> None:
        """Let go of what belongs to a session that has ended."""
        if self._queries is not None:
            self._queries.ended(session.client)
        if self._restores is not None:
            self._restores.ended(session.client)

    # ------------------------------------------------------------------ requests
    def _name(self, request: HttpRequest) -> str | None:
        """Return the name of a request of the page; None: it is for a file."""
        path = request.path.removeprefix(self.path)
        return path.removeprefix("/api/") if path.startswith("/api/") else None

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        try:
            return self._judge(request)
        except ConsoleError as error:
            return self._failed(error)

    def _judge(self, request: HttpRequest) -> int:
        """Judge a request by its head; return the maximum size of its body. Raises ConsoleError."""
        name = self._name(request)
        if name is None:
            _only(request, "GET", "HEAD")
            return 0
        if access.is_cross_origin(request):
            raise ConsoleError(403, "requests of pages of other origins are rejected")
        if name == "login":
            _only(request, "POST")
            _is_json(request)
            return MAX_LOGIN_BYTES
        route = self._routes.get(name)
        if route is None:
            raise ConsoleError(404, f"the console has no request {name!r}")
        _only(request, route.method)
        if name == "session":
            return 0
        session = self._find(request)
        if route.method != "POST":
            return 0
        _is_json(request)
        if not session.has_csrf(request.headers.get(access.CSRF_HEADER, "")):
            raise ConsoleError(403, "the header X-Lakestream-Csrf is not that of the session")
        return MAX_BODY_BYTES

    def _find(self, request: HttpRequest) -> ConsoleSession:
        session = self._sessions.find(access.session_id(request))
        if session is None:
            raise ConsoleError(401, "your session has ended: log in")
        return session

    async def answer(self, request: HttpRequest) -> Outcome:
        """Answer a request that `refuse` has not rejected."""
        name = self._name(request)
        try:
            if name is None:
                return await self._file(request)
            if name == "login":
                return await self._log_in(request)
            if name == "session":
                return await self._begin(request)
            return await self._routes[name].handle(request, self._find(request))
        except ConsoleError as error:
            return self._failed(error)

    def _failed(self, error: ConsoleError) -> HttpAnswer:
        page: dict[str, Any] = {"error": str(error)}
        more: Headers = ()
        if error.status == 401:
            page |= {"auth_required": True, "kinds": self._kinds()}
        elif isinstance(error, WrongMethod):
            more = (("Allow", error.allowed),)
        elif error.status == 429:
            more = (("Retry-After", str(FAILURES_NS // 1_000_000_000)),)
        return _json(page, error.status, *more)

    async def _file(self, request: HttpRequest) -> HttpAnswer:
        if self._files is None:
            self._files = await self._node.io.call(ConsoleFiles)
        name = request.path.removeprefix(self.path)
        if name == "/":
            where = (("Location", self.path), *access.SECURITY)
            return HttpAnswer(308, TEXT, b"", where)
        if name and not name.startswith("/static/"):
            return HttpAnswer(404, TEXT, b"404 page not found\n", access.SECURITY)
        return self._files.answer(name.removeprefix("/static/") if name else PAGE, request, access.SECURITY)

    # ------------------------------------------------------------------ sessions
    def _kinds(self) -> list[str]:
        """Return the ways to log in that the configuration has; all if it does not tell."""
        options = self._node.options
        if options.operators is not None:
            return ["creds"]
        if options.callout is not None:
            return list(KINDS)
        users = [*options.users, *(user for account in options.accounts for user in account.users)]
        found = {"token"} if options.token else set()
        found |= {"nkey" if user.nkey else "user" for user in users}
        return [kind for kind in KINDS if kind in found] or list(KINDS)

    async def _begin(self, request: HttpRequest) -> HttpAnswer:
        """Show the session; without one, begin one where clients need no credentials."""
        session = self._sessions.find(access.session_id(request))
        if session is not None:
            return await self._session(request, session)
        if self._node.authenticator_for(STANDARD).anonymous is None:
            raise ConsoleError(401, "log in")
        if not access.is_own_host(request, self._options.allowed_hosts):
            raise ConsoleError(
                403,
                "without a login the console is served under an IP address or the name of its machine: use one of "
                "these, or add the name to console.allowed_hosts in the configuration",
            )
        return await self._open(request, LoginSecrets(), "_INBOX", by_login=False)

    async def _log_in(self, request: HttpRequest) -> HttpAnswer:
        body = _decoded(request.body, _login_body)
        if not valid_subject(body.inbox.encode(), wildcards=False):
            raise ConsoleError(400, f"{body.inbox!r} is not the prefix of a subject")
        secrets = LoginSecrets(user=body.user, password=body.password, token=body.token, seed=body.nkey.strip())
        if body.creds:
            try:
                given = credentials(body.creds.encode())
            except BadKeyError as error:
                raise ConsoleError(400, str(error)) from None
            secrets = msgspec.structs.replace(secrets, jwt=given.jwt, seed=given.seed)
        if secrets == LoginSecrets():
            raise ConsoleError(400, "a login has user and password, token, creds or nkey")
        self._limit.begin(request.host)
        succeeded = False
        try:
            answer = await self._open(request, secrets, body.inbox, by_login=True)
            succeeded = True
        except BadKeyError as error:
            raise ConsoleError(400, str(error)) from None
        finally:
            self._limit.end(request.host, succeeded=succeeded)
        before = self._sessions.find(access.session_id(request))
        if before is not None:
            self._sessions.end(before)
        return answer

    async def _open(self, request: HttpRequest, secrets: LoginSecrets, inbox: str, *, by_login: bool) -> HttpAnswer:
        """Begin a session; give its id to the browser in a cookie."""
        if refusal := access.tls_refusal(request, self._node.options):
            raise ConsoleError(403, refusal)
        self._sessions.make_room()
        opened: list[ConsoleSession] = []

        def ended() -> None:
            for session in opened:
                self._sessions.end(session)

        client = ConsoleClient(self._make(), (request.host, request.port), inbox, ended)
        await client.log_in(secrets)
        if client.reason:
            raise ConsoleError(401, client.reason)
        try:
            identifier, session = self._sessions.add(client, by_login=by_login)
        except ConsoleError:
            client.close()
            raise
        opened.append(session)
        answer = await self._session(request, session)
        return answer._replace(headers=(*answer.headers, access.set_cookie(request, identifier, self.path)))

    async def _session(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        node, connection = self._node, session.client.connection
        account, jetstream = connection.account, node.jetstream
        lake = jetstream is not None and jetstream.keeper is not None
        page: dict[str, Any] = {
            "user": connection.user if connection.user != REDACTED else "",
            "account": account.name,
            "account_name": account.options.shown,
            "csrf": session.csrf,
            "auth_required": node.authenticator_for(STANDARD).anonymous is None,
            "kinds": self._kinds(),
            "server": node.identity.server_name,
            "version": __version__,
            "nats_version": NATS_VERSION,
            "max_payload": connection.max_payload,
            "jetstream": jetstream is not None and account.name in jetstream.served,
            "domain": node.identity.domain,
            "system": self._pages.sees_all(account),
            "system_account": account.is_system,
            "lake": lake,
            "sql": lake and not missing(),
        }
        permissions = account.permissions(connection.login.user)
        if permissions is not None:
            page["permissions"] = permissions_shown(permissions)
        return _json(page)

    async def _log_out(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        self._sessions.end(session)
        return _json({}, 200, access.set_cookie(request, "", self.path))

    # ------------------------------------------------------------------ messages
    async def _request(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        body = _decoded(request.body, _request_body)
        if isinstance(body.replies, int) and not 1 <= body.replies <= MAX_REPLIES:
            raise ConsoleError(400, f"replies is a number from 1 to {MAX_REPLIES}, or eob")
        wait_ns = min(body.timeout_ms * _MS, MAX_WAIT_NS) if body.timeout_ms > 0 else MAX_WAIT_NS
        subject = body.subject.encode()
        replies, complete = await session.client.request(subject, body.header(), body.payload, body.replies, wait_ns)
        page: dict[str, Any] = {"replies": [shown(reply) for reply in replies]}
        if replies and body.replies != "eob" and blocks.status(replies[-1].header).code == 503 and len(replies) == 1:
            return _json({"error": f"nothing answers requests to {body.subject}", "replies": []}, 503)
        if not complete:
            page |= {"timed_out": True}
            if not replies:
                page["error"] = f"there was no reply within {wait_ns // _MS} ms"
                return _json(page, 504)
        return _json(page)

    async def _publish(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        body = _decoded(request.body, _message_body)
        client, subject = session.client, body.subject.encode()
        if not await self._is_stored(client, subject):
            await client.publish(subject, body.header(), body.payload)
            return _json({})
        replies, _ = await client.request(subject, body.header(), body.payload, 1, ACK_WAIT_NS)
        if not replies:
            raise ConsoleError(504, f"no stream has acknowledged the message within {ACK_WAIT_NS // 10**9} s")
        if blocks.status(replies[0].header).code == 503:
            raise ConsoleError(503, f"the stream of {body.subject} is not available")
        try:
            ack = json.loads(replies[0].payload)
        except ValueError:
            return _json({})  # of a service that answered first
        if isinstance(ack, dict) and "error" in ack:
            text = ack["error"].get("description", "") if isinstance(ack["error"], dict) else str(ack["error"])
            return _json({"ack": ack, "error": text}, 400)
        return _json({"ack": ack})

    async def _is_stored(self, client: ConsoleClient, subject: bytes) -> bool:
        """Return True if a stream takes messages to this subject, or the user may not know."""
        asked = json.dumps({"subject": subject.decode()}).encode()
        try:
            replies, _ = await client.request(b"$JS.API.STREAM.NAMES", b"", asked, 1, ACK_WAIT_NS)
        except ConsoleError as error:
            if error.status != 403:
                raise
            return True
        if not replies or blocks.status(replies[0].header).code == 503:
            return False
        return bool(json.loads(replies[0].payload).get("streams"))

    # ------------------------------------------------------------------ live messages and monitoring
    async def _live(self, request: HttpRequest, session: ConsoleSession) -> Outcome:
        subjects = parse_qs(request.query).get("subject", [])
        if not 1 <= len(subjects) <= MAX_SUBSCRIPTIONS:
            raise ConsoleError(400, f"name 1 to {MAX_SUBSCRIPTIONS - 1} subjects: ?subject=…")
        if self._streams >= MAX_STREAMS:
            raise ConsoleError(503, f"the console has {MAX_STREAMS} live views already")
        if session.streams >= MAX_SESSION_STREAMS:
            raise ConsoleError(429, f"a session has at most {MAX_SESSION_STREAMS} live views")
        self._streams += 1
        session.streams += 1

        def closed() -> None:
            self._streams -= 1
            session.streams -= 1

        live = EventStream(session.client, self._clock, (("Cache-Control", "no-store"), *access.SECURITY), closed)
        await live.subscribe([subject.encode() for subject in subjects])
        return live

    def _lake(self) -> str:
        """Return the root of the lake. Raises ConsoleError if there is none, or what reads it is not installed."""
        jetstream = self._node.jetstream
        if jetstream is None or jetstream.keeper is None:
            raise ConsoleError(503, "this server keeps no lake (lake.enabled: false)")
        if absent := missing():
            raise ConsoleError(501, absent)
        return jetstream.keeper.root

    async def _sql(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        lake = self._lake()
        from lakestream_console.sql import BODY, ConsoleSql  # with packages/sql, which is installed then

        body = _decoded(request.body, BODY)
        if self._queries is None:
            self._queries = ConsoleSql(lake, self._clock, lambda: self._node.options.sql)
        return _raw(await self._queries.query(session.client, body))

    async def _cancel(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        return _json({"cancelled": self._queries is not None and self._queries.cancel(session.client)})

    async def _restore(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        body, lake = _decoded(request.body, _restore_body), self._lake()
        if self._restores is None:
            self._restores = ServerRestores(lake, self._clock)
        return _json(await self._restores.begin(session.client, body), 202)

    async def _restored(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        return _json(self._restores.shown(session.client) if self._restores is not None else None)

    async def _figures(self, request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
        try:
            query = Query(request.query)
            seconds, stream = query.number("seconds") or MAX_RANGE_S, query.text("stream")
        except BadQuery as error:
            raise ConsoleError(400, str(error)) from None
        account = session.client.connection.account
        whole = self._pages.sees_all(account) and not stream
        return _json(self._history.read("" if whole else account.name, seconds, stream))

    def _page(self, name: str) -> Callable[[HttpRequest, ConsoleSession], Awaitable[Outcome]]:
        async def answer(request: HttpRequest, session: ConsoleSession) -> HttpAnswer:
            status, page = await self._pages.page(name, session.client.connection.account, Query(request.query))
            return _json(page, status)

        return answer


def _json(page: Any, status: int = 200, *more: tuple[str, str]) -> HttpAnswer:
    return _raw(msgspec.json.encode(page), status, *more)


def _raw(body: bytes, status: int = 200, *more: tuple[str, str]) -> HttpAnswer:
    return HttpAnswer(status, JSON, body, (("Cache-Control", "no-store"), *access.SECURITY, *more))


def _only(request: HttpRequest, *methods: str) -> None:
    if request.method not in methods:
        raise WrongMethod(", ".join(methods))


def _is_json(request: HttpRequest) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise ConsoleError(415, f"the body must be {JSON}, and Content-Type say so")


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a body. Raises ConsoleError; its text has nothing of the body, which may be a secret."""
    try:
        return decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise ConsoleError(400, str(error)) from None
    except DECODE_ERRORS:
        raise ConsoleError(400, "the body is not JSON") from None
