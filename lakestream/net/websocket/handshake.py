"""The handshake of WebSocket, without I/O.

Belongs here: the checks of a request in nats-server's order, with its statuses and texts, the answer, and what the
request tells about the client: cookies, the address for which a proxy speaks, compression. Also the request of this
server where it dials, and the checks of the answer to that. HTTP is parsed by h11.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import os
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

import h11

from lakestream.config.options import WebSocketOptions
from lakestream.config.websocket import origin_of
from lakestream.net.websocket.upgrade import Agreement, Upgrade

MAX_HEADER = 1 << 20
"""Bytes of a request's header (1 MiB, as in nats-server); a longer one is answered with 431."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DEFLATE = "permessage-deflate"
_AGREED = f"{_DEFLATE}; server_no_context_takeover; client_no_context_takeover"
_COOKIES = (
    ("user", "user_cookie"),
    ("pass", "pass_cookie"),
    ("auth_token", "token_cookie"),
    ("jwt", "jwt_cookie"),
)
"""Fields of CONNECT, and the settings that name the cookies for them."""


class Rejected(Exception):
    """Raised for a request that is not accepted.

    Attributes:
        answer: bytes to send before the connection is closed; may be empty.
        logged: the reason for the log; "" for bytes that are no HTTP.
    """

    def __init__(self, answer: bytes, logged: str = "") -> None:
        super().__init__(logged)
        self.answer = answer
        self.logged = logged


class Handshake:
    """Reads one request.

    Args:
        options: the settings of the listener.
    """

    def __init__(self, options: WebSocketOptions) -> None:
        self._options = options
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER)

    def feed(self, data: bytes) -> Upgrade | None:
        """Return the accepted request; None while its header is incomplete. Raises Rejected."""
        self._http.receive_data(data)
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise _unparsed(error) from None
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Request):
            raise Rejected(b"")
        if not event.http_version.startswith(b"1."):
            raise Rejected(_short(505, "HTTP Version Not Supported: unsupported protocol version"))
        return self._checked(event)

    def expired(self) -> bytes:
        """Return the answer to a request that did not come in time; empty when nothing of it came."""
        return _short(400, "Bad Request") if self._http.trailing_data[0] else b""

    def _checked(self, request: h11.Request) -> Upgrade:
        fields = _Fields(request.headers)
        path = request.target.partition(b"?")[0]

        def refuse(status: int, reason: str) -> Rejected:
            return Rejected(_error(status, closing=fields.has("connection", "close")), reason)

        if request.method != b"GET":
            raise refuse(405, "request method must be GET")
        if not fields.first("host"):
            raise refuse(400, "'Host' missing in request")
        if not fields.has("upgrade", "websocket"):
            raise refuse(400, "invalid value for header 'Upgrade'")
        if not fields.has("connection", "upgrade"):
            raise refuse(400, "invalid value for header 'Connection'")
        key = fields.first("sec-websocket-key")
        if not key:
            raise refuse(400, "key missing")
        if not _is_key(key):
            raise refuse(400, "invalid websocket key")
        if not fields.has("sec-websocket-version", "13"):
            raise refuse(400, "invalid version")
        if reason := self._origin_refused(fields):
            raise refuse(403, f"origin not allowed: {reason}")
        if path.endswith(b"/mqtt") and not self._options.serves_mqtt:
            raise refuse(404, "mqtt websocket endpoint not enabled")
        # No client speaks before the answer: it could not know whether its frames are understood.
        if self._http.trailing_data[0]:
            raise Rejected(b"", "client sent data before handshake is complete")
        return self._accepted(fields, key, path)

    def _accepted(self, fields: _Fields, key: str, path: bytes) -> Upgrade:
        options = self._options
        offers = (offer.partition(";")[0].strip().lower() for offer in fields.listed("sec-websocket-extensions"))
        compressed = options.compression and _DEFLATE in offers
        unmasked = fields.first("nats-no-masking") == "true"
        agent = fields.first("user-agent")
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        lines.append(f"Sec-WebSocket-Accept: {_accept(key)}")
        if compressed:
            lines.append(f"Sec-WebSocket-Extensions: {_AGREED}")
        if unmasked:
            lines.append("Nats-No-Masking: true")
        if mqtt := path.endswith(b"/mqtt"):
            lines.append("Sec-WebSocket-Protocol: mqtt")
        lines += [f"{name}: {value}" for name, value in options.headers]
        cookies = _cookies(fields.all("cookie"))
        wanted = ((field, getattr(options, setting)) for field, setting in _COOKIES)
        return Upgrade(
            answer="\r\n".join([*lines, "", ""]).encode(),
            login={field: cookies[name] for field, name in wanted if cookies.get(name)},
            forwarded_for=_address(fields.first("x-forwarded-for")),
            compressed=compressed,
            masked=not unmasked,
            max_frame=BROWSER_FRAME if agent.startswith("Mozilla/") else 0,
            whole="Version/" in agent and "Safari/" in agent,
            leaf=path.endswith(b"/leafnode"),
            mqtt=mqtt,
        )

    def _origin_refused(self, fields: _Fields) -> str:
        """Return why the page may not connect; "" if it may. Programs send no origin, and are not asked for one."""
        options = self._options
        text = fields.first("origin") or fields.first("sec-websocket-origin")
        if not text or not (options.same_origin or options.allowed_origins):
            return ""
        try:
            origin = origin_of(text)
        except ValueError as error:
            return str(error)
        if options.same_origin:
            scheme = "http" if options.tls is None else "https"
            try:
                own = origin_of(f"{scheme}://{fields.first('host')}")
            except ValueError:
                own = None
            if origin != own:
                return "not same origin"
        if options.allowed_origins and origin not in map(origin_of, options.allowed_origins):
            return "not in the allowed list"
        return ""


BROWSER_FRAME = 4096
"""Bytes of the largest frame for a browser (4 KiB, as in nats-server)."""


class _Fields:
    """The fields of a header, names in lower case."""

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]

    def all(self, name: str) -> list[str]:
        return [value for field, value in self._fields if field == name]

    def first(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def listed(self, name: str) -> list[str]:
        """Return the values of comma lists."""
        return [part.strip() for value in self.all(name) for part in value.split(",")]

    def has(self, name: str, wanted: str) -> bool:
        """Return True if a list has this value in any case."""
        return wanted in (part.lower() for part in self.listed(name))


def _accept(key: str) -> str:
    """Return the answer to a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _cookies(values: Iterable[str]) -> dict[str, str]:
    """Return cookies by name; of several with a name, the last."""
    found: dict[str, str] = {}
    for value in values:
        for pair in value.split(";"):
            name, equals, text = pair.strip().partition("=")
            if equals:
                quoted = len(text) > 1 and text[0] == text[-1] == '"'
                found[name.strip()] = text[1:-1] if quoted else text
    return found


def _address(text: str) -> str:
    """Return the text if it is one IP address, of IPv6 in brackets; else ""."""
    try:
        version = ipaddress.ip_address(text).version
    except ValueError:
        return ""
    return text if version == 4 else f"[{text}]"


def _error(status: int, *, closing: bool) -> bytes:
    """Return an answer in the form of the handshake's own errors."""
    phrase = HTTPStatus(status).phrase
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        "Content-Type: text/plain; charset=utf-8",
        "Sec-Websocket-Version: 13",
        "X-Content-Type-Options: nosniff",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Length: {len(phrase) + 1}",
        *(["Connection: close"] if closing else []),
    ]
    return "\r\n".join([*lines, "", f"{phrase}\n"]).encode()


def _short(status: int, text: str) -> bytes:
    """Return an answer to bytes that are no request of HTTP/1."""
    lines = f"HTTP/1.1 {status} {text}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    return f"{lines}{status} {text}".encode()


def _unparsed(error: h11.RemoteProtocolError) -> Rejected:
    if error.error_status_hint == 431:
        return Rejected(_short(431, "Request Header Fields Too Large"))
    missing = "missing mandatory host" in str(error).lower()
    return Rejected(_short(400, "Bad Request: missing required Host header" if missing else "Bad Request"))


# ---------------------------------------------------------------------- the dialling side

_HTTP = b"HTTP/1."
MAX_ANSWER = 64 << 10
"""Bytes of the header of an answer (64 KiB)."""


class NotAgreedError(Exception):
    """Raised when the other side does not accept the request; the text says why."""


class DialledHandshake:
    """The handshake of a leaf node.

    Args:
        host: `host:port` of the other side.
        path: of the URL; requests go to `leafnode` below it.
        compresses: ask for permessage-deflate.
        unmasked: ask to be allowed frames without masks.

    Attributes:
        request: the bytes to send.
    """

    def __init__(self, host: str, path: str = "", *, compresses: bool = False, unmasked: bool = False) -> None:
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._compresses, self._unmasked = compresses, unmasked
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER)
        fields = [("Host", host), ("Upgrade", "websocket"), ("Connection", "Upgrade")]
        fields += [("Sec-WebSocket-Key", self._key), ("Sec-WebSocket-Version", "13")]
        fields += [("Sec-WebSocket-Extensions", _AGREED)] if compresses else []
        fields += [("Nats-No-Masking", "true")] if unmasked else []
        request = h11.Request(method="GET", target=f"{path.rstrip('/')}/leafnode", headers=fields)
        self.request = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def feed(self, data: bytes) -> Agreement | None:
        """Return what was agreed on; None while the answer is incomplete. Raises NotAgreedError."""
        self._http.receive_data(data)
        begun = self._http.trailing_data[0][: len(_HTTP)]
        if not _HTTP.startswith(begun):  # h11 waits for the end of a header
            raise NotAgreedError(f"no answer of HTTP to the WebSocket handshake: {begun!r}")
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise NotAgreedError(f"no answer of HTTP to the WebSocket handshake: {error}") from None
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.InformationalResponse | h11.Response) or event.status_code != 101:
            status = f"{event.status_code} {event.reason.decode('latin-1')}" if isinstance(event, h11.Response) else ""
            raise NotAgreedError(f"the WebSocket handshake was refused: {status or 'no status 101'}")
        fields = _Fields(event.headers)
        if not (fields.has("upgrade", "websocket") and fields.has("connection", "upgrade")):
            raise NotAgreedError("invalid WebSocket handshake: the answer does not upgrade to websocket")
        if fields.first("sec-websocket-accept") != _accept(self._key):
            raise NotAgreedError("invalid WebSocket handshake: wrong Sec-WebSocket-Accept")
        return Agreement(
            compressed=self._agreed(fields.listed("sec-websocket-extensions")),
            masked=not (self._unmasked and fields.first("nats-no-masking") == "true"),
            rest=self._http.trailing_data[0],
        )

    def _agreed(self, extensions: list[str]) -> bool:
        """Return True if messages are compressed, each by itself. Raises NotAgreedError."""
        names = [[part.strip().lower() for part in extension.split(";")] for extension in extensions if extension]
        if not names:
            return False
        if not self._compresses or len(names) > 1 or names[0][0] != _DEFLATE:
            raise NotAgreedError("invalid WebSocket handshake: an extension that was not asked for")
        if not {"server_no_context_takeover", "client_no_context_takeover"} <= set(names[0]):
            raise NotAgreedError("compression negotiation error: the other side keeps a context between messages")
        return True
