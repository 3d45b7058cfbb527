"""The `websocket` block of nats.conf.

Belongs here: its keys with the errors of nats-server, origins, and the checks between the block and other settings.
What the settings do is in net/websocket/.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from lakestream.config.account_options import User
from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.options import Options, WebSocketOptions
from lakestream.config.tls import as_tls
from lakestream.config.values import (
    LOGIN,
    Rule,
    address,
    as_boolean,
    as_map,
    as_number,
    as_ping_interval,
    as_positive_duration,
    as_text,
    converted,
    go_kind,
    shown,
    spelled_duration,
)
from lakestream.protocol.goquote import quoted

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}")
_NOT_IN_HOSTS = re.compile(r'[\x00-\x20"<>\\^`{|}\x7f]')


# ---------------------------------------------------------------------- origins


class WebOrigin(NamedTuple):
    """Scheme, host and port of a page, in lower case. The port is the scheme's where the text has none, and otherwise
    as it is written: no number is too large."""

    scheme: str
    host: str
    port: str


def origin_of(text: str) -> WebOrigin:
    """Parse a URL. Raises ValueError with nats-server's text; `WebOrigin.scheme` is "" for a path alone."""
    scheme, colon, _ = text.partition(":")
    if not text.startswith("/") and text != "*" and not (colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme)):
        raise ValueError(f"parse {quoted(text)}: invalid URI for request")
    authority = re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]
    if escape := _ESCAPE.search(authority):
        raise ValueError(f"parse {quoted(text)}: invalid URL escape {quoted(escape.group())}")
    if wrong := _NOT_IN_HOSTS.search(authority):
        raise ValueError(f"parse {quoted(text)}: invalid character {quoted(wrong.group())} in host name")
    _, colon, port = authority.rpartition("@")[2].rpartition("]")[2].partition(":")
    if re.fullmatch("[0-9]*", port) is None and colon:
        raise ValueError(f"parse {quoted(text)}: invalid port {quoted(colon + port)} after host")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(f"parse {quoted(text)}: missing ']' in host") from None
    return WebOrigin(parts.scheme, parts.hostname or "", (colon and port) or _DEFAULT_PORTS.get(parts.scheme, "80"))


def _allowed(texts: Sequence[str]) -> tuple[str, ...]:
    """Check the allowed origins. Raises StartError."""
    for text in texts:
        try:
            origin = origin_of(text)
        except ValueError as error:
            raise StartError(f"unable to parse allowed origin: {error}") from None
        if origin.scheme not in _DEFAULT_PORTS or not origin.host:
            raise StartError(
                f"unable to parse allowed origin {quoted(text)}: allowed origins must be absolute URLs with http or "
                "https scheme"
            )
    return tuple(texts)


# ---------------------------------------------------------------------- keys


def _origins(key: str, item: Item) -> tuple[str, ...]:
    if isinstance(item.value, str):
        return (item.value,)
    if not isinstance(item.value, list):
        raise item.error(f"error parsing allowed origins: unsupported type {go_kind(item.value)}")
    for entry in item.value:
        if not isinstance(entry.value, str):
            raise entry.error(f"error parsing allowed origins: unsupported type in array {go_kind(entry.value)}")
    return tuple(str(entry.value) for entry in item.value)


def _headers(key: str, item: Item) -> tuple[tuple[str, str], ...]:
    if not isinstance(item.value, dict):
        raise item.error(f"error parsing headers: unsupported type {go_kind(item.value)}")
    for name, entry in item.value.items():
        if not isinstance(entry.value, str):
            raise entry.error(f"error parsing header key {name}: unsupported type {go_kind(entry.value)}")
        if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None or re.search(r"[\r\n\0]", entry.value):
            raise entry.error(f"header {quoted(name)}: not a header field of HTTP")
    return tuple((name, str(entry.value)) for name, entry in item.value.items())


def _no_users(key: str, item: Item) -> None:
    """Reject a list of users, which only the server has; the similar key `user` is no way to give one."""
    raise item.error(f"unknown field {quoted(key)}")


WEBSOCKET_AUTHORIZATION: dict[str, Rule] = {
    **LOGIN,
    "users": ("users", _no_users),
    "token": ("token", as_text),
    "timeout": ("auth_timeout_ns", as_positive_duration),
}
WEBSOCKET_KEYS: dict[str, Rule] = {
    "listen": ("*", address("host", "port")),
    "port": ("port", as_number),
    **dict.fromkeys(("host", "net"), ("host", as_text)),
    "advertise": ("advertise", as_text),
    "no_tls": ("no_tls", as_boolean),
    "tls": ("tls", as_tls),
    "same_origin": ("same_origin", as_boolean),
    **dict.fromkeys(
        ("allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins", "origin"),
        ("allowed_origins", _origins),
    ),
    "handshake_timeout": ("handshake_timeout_ns", spelled_duration("")),
    **dict.fromkeys(("compress", "compression"), ("compression", as_boolean)),
    **dict.fromkeys(("authorization", "authentication"), ("*", lambda key, item: as_login(key, item))),
    "jwt_cookie": ("jwt_cookie", as_text),
    "user_cookie": ("user_cookie", as_text),
    "pass_cookie": ("pass_cookie", as_text),
    "token_cookie": ("token_cookie", as_text),
    "no_auth_user": ("no_auth_user", as_text),
    "headers": ("headers", _headers),
    "ping_interval": ("*", as_ping_interval),
}


def as_login(key: str, item: Item) -> dict[str, Any]:
    """Convert the block `authorization` of a listener: one user or a token, and the time for it."""
    values = converted(as_map(key, item), WEBSOCKET_AUTHORIZATION)
    user, password = values.pop("user", ""), values.pop("password", "")
    return values | ({"user": User(user, password)} if user else {})


def as_websocket(key: str, item: Item) -> WebSocketOptions:
    """Convert the block."""
    if not isinstance(item.value, dict):
        raise item.error(f"Expected websocket to be a map, got {go_kind(item.value)}")
    for name, entry in item.value.items():
        if name.lower() == "listen" and isinstance(entry.value, str) and ":" not in entry.value:
            raise entry.error(f"could not parse address string {quoted(shown(entry))}")
    values = converted(item.value, WEBSOCKET_KEYS)
    warnings = tuple(values.pop("warnings", ()))
    return WebSocketOptions(**values, warnings=warnings)


# ---------------------------------------------------------------------- checks


def check_websocket(options: Options) -> None:
    """Check the block against other settings, in nats-server's order. Raises StartError."""
    websocket = options.websocket
    if not websocket.port:
        return
    if websocket.tls is None and not websocket.no_tls:
        raise StartError("websocket requires TLS configuration")
    _allowed(websocket.allowed_origins)
    has_users = any(account.users for account in options.accounts) or (options.users and not options.single_user)
    if websocket.no_auth_user:
        known = {user.name for user in options.users}.union(
            *({user.name for user in account.users} for account in options.accounts)
        )
        if not has_users:
            raise StartError(f'no_auth_user: "{websocket.no_auth_user}" present, but users/nkeys are not defined')
        if websocket.no_auth_user not in known:
            raise StartError(
                f'no_auth_user: "{websocket.no_auth_user}" not present as user or nkey in authorization block or '
                "account configuration"
            )
    if websocket.jwt_cookie and options.operators is None:
        raise StartError(
            "trusted operators or trusted keys configuration is required for JWT authentication via cookie "
            f"{quoted(websocket.jwt_cookie)}"
        )
    for given, what in ((websocket.user, "username"), (websocket.token, "token")):
        if given and has_users:
            raise StartError(f"websocket authentication {what} not compatible with presence of users/nkeys")
    _check_headers(websocket.headers)


_OWN_HEADERS = frozenset({"host", "content-length", "connection", "upgrade", "nats-no-masking"})
"""Header fields that the handshake sets or that would make its answer another one."""
_OWN_PREFIX = "Sec-WebSocket-"


def _check_headers(headers: Sequence[tuple[str, str]]) -> None:
    for name, _ in headers:
        if name.lower() in _OWN_HEADERS:
            raise StartError(f"websocket: invalid header {quoted(name)} not allowed")
        if name.lower().startswith(_OWN_PREFIX.lower()):
            raise StartError(f"websocket: invalid header {quoted(name)}, {quoted(_OWN_PREFIX)} prefix not allowed")


_SECRET = ("user", "token", "headers")


def check_reload(old: WebSocketOptions, new: WebSocketOptions) -> None:
    """Raise StartError when a reload would change the block. Certificates are read again from the same files."""
    changed = [
        name
        for name in WebSocketOptions.__struct_fields__
        if name != "warnings" and getattr(old, name) != getattr(new, name)
    ]
    if changed:
        before, after = (
            ", ".join(f"{name}: {'[REDACTED]' if name in _SECRET else getattr(each, name)}" for name in changed)
            for each in (old, new)
        )
        raise StartError(f"config reload not supported for Websocket: old={{{before}}}, new={{{after}}}")


def listener_logins(options: Options, block: Any) -> Options:
    """Return the settings by which clients of a listener of its own log in, over WebSocket or MQTT: the block's TLS
    instead of that at the top, and the block's user, token and no_auth_user where it has them."""
    options = msgspec.structs.replace(options, tls=block.tls)
    if block.user is not None or block.token:
        users = (block.user,) if block.user is not None else ()
        options = msgspec.structs.replace(options, users=users, token=block.token)
    if block.no_auth_user:
        options = msgspec.structs.replace(options, no_auth_user=block.no_auth_user)
    return options
