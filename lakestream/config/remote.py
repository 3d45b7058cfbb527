"""The `remote` and `remotes` blocks of nats.conf.

Belongs here: their keys, those of their `tls`, and URLs of remotes.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from lakestream.config.conf import Item
from lakestream.config.options import LEAF, MAX_PORT, PORTS, RemoteAddress, RemoteOptions, RemoteTls
from lakestream.config.values import (
    LOGIN,
    Rule,
    as_boolean,
    as_map,
    as_positive_duration,
    as_text,
    converted,
    expected,
)
from lakestream.protocol.nkeys import BadKeyError, key_pair
from lakestream.protocol.subjects import valid_subject


def remote_url(text: str) -> RemoteAddress:
    """Parse `nats://user:password@host:port`; scheme, user and port are optional. Raises ValueError."""
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
    except ValueError:  # its text has the password
        raise ValueError(f"invalid URL {_hidden(text)!r}; write nats://host:port") from None
    if parts.scheme not in PORTS:
        raise ValueError(f"unsupported scheme {parts.scheme}://; use {', '.join(f'{scheme}://' for scheme in PORTS)}")
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        raise ValueError(f"{_hidden(text)!r}: the port must be from 1 to {MAX_PORT}") from None
    if not parts.hostname:
        raise ValueError(f"{_hidden(text)!r} has no host; write nats://host:port")
    return RemoteAddress(
        parts.scheme, parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or "")
    )


def _hidden(text: str) -> str:
    """Return a URL without credentials."""
    scheme, mark, rest = text.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def _urls(key: str, item: Item) -> tuple[RemoteAddress, ...]:
    entries = item.value if isinstance(item.value, list) else [item]
    found: dict[RemoteAddress, None] = {}
    for entry in entries:
        for text in as_text(key, entry).split(","):
            try:
                found[remote_url(text.strip())] = None
            except ValueError as error:
                raise entry.error(f'"{key}": {error}') from error
    if not found:
        raise item.error(f'"{key}" is empty')
    if len({address.scheme == LEAF for address in found}) > 1:
        raise item.error(f'"{key}": {LEAF}:// URLs cannot be mixed with other schemes')
    return tuple(found)


def _domain(key: str, item: Item) -> str:
    name = as_text(key, item)
    if not name or any(char.isspace() or char in ".*>@" for char in name):
        raise item.error(f'"{key}" {name!r} must be one subject token: no blanks, ".", "*", ">" or "@"')
    if name in ("API", "ACK", "FC", "SNAPSHOT", "EVENT"):
        raise item.error(f'"{key}" {name!r} is reserved for JetStream subjects; choose another name')
    return name


def _nkey(key: str, item: Item) -> str:
    seed = as_text(key, item)
    try:
        key_pair(seed)
    except BadKeyError as error:
        raise item.error(f'"{key}": {error}') from error
    return seed


REMOTE_TLS: dict[str, Rule] = {
    "ca_file": ("ca_file", as_text),
    "cert_file": ("cert_file", as_text),
    "key_file": ("key_file", as_text),
    "insecure": ("insecure", as_boolean),
    **dict.fromkeys(("first", "handshake_first"), ("first", as_boolean)),
    "server_name": ("server_name", as_text),
    "timeout": ("timeout_ns", as_positive_duration),
}


def as_remote_tls(key: str, item: Item) -> RemoteTls:
    """Convert `tls` of a remote: a block, or `true`."""
    if isinstance(item.value, bool) and item.value:
        return RemoteTls()
    values = converted(as_map(key, item), REMOTE_TLS)
    if bool(values.get("cert_file")) != bool(values.get("key_file")):
        raise item.error(f'"{key}": cert_file and key_file must be set together')
    return RemoteTls(**values)


_NOT_PUBLISHED = ("$JS", "$JSC", "$SYS", "_INBOX", "_R_", "_GR_", "*", ">")
"""First tokens of subjects that a leaf node cannot import: replies, requests, and everything."""


def _subjects(key: str, item: Item) -> tuple[str, ...]:
    subjects = tuple(as_text(key, entry) for entry in (item.value if isinstance(item.value, list) else [item]))
    for subject in subjects:
        if not valid_subject(subject.encode()) or subject.split(".")[0] in _NOT_PUBLISHED:
            raise item.error(f'"{key}": {subject!r} is invalid, or reserved for requests and replies')
    return subjects


REMOTE: dict[str, Rule] = {
    **dict.fromkeys(("url", "urls"), ("urls", _urls)),
    "domain": ("domain", _domain),
    "remote_domain": ("remote_domain", _domain),
    "account": ("account", as_text),
    **LOGIN,
    "token": ("token", as_text),
    "nkey": ("nkey", _nkey),
    "nkey_file": ("nkey_file", as_text),
    **dict.fromkeys(("credentials", "creds"), ("credentials", as_text)),
    "tls": ("tls", as_remote_tls),
    "subjects": ("subjects", _subjects),
    "ignore_discovered_servers": ("ignore_discovered", as_boolean),
}
_CREDENTIALS = ("user", "token", "nkey", "nkey_file", "credentials")


def _remote(key: str, item: Item) -> RemoteOptions:
    values = converted(as_map(key, item), REMOTE)
    values.pop("warnings", None)
    if "urls" not in values:
        raise item.error(f'"{key}" needs a url')
    given = [name for name in _CREDENTIALS if values.get(name)]
    if len(given) > 1:
        raise item.error(f'"{key}": {given[0]} and {given[1]} cannot be used together')
    if values.get("password") and not values.get("user"):
        raise item.error(f'"{key}": a password requires a user')
    remote = RemoteOptions(**values)
    if remote.leaf and (remote.domain or remote.remote_domain):
        raise item.error(f'"{key}": "domain" and "remote_domain" cannot be used with {LEAF}:// URLs')
    if remote.subjects and not remote.leaf:
        raise item.error(f'"{key}": "subjects" requires a leaf node: write {LEAF}:// in the url')
    if not remote.leaf and not remote.domain:
        raise item.error(f'"{key}" needs a domain: the name of its JetStream domain on this server')
    return remote


def as_remotes(key: str, item: Item) -> tuple[RemoteOptions, ...]:
    """Convert one block, or an array of them."""
    entries = item.value if isinstance(item.value, list) else [item]
    if not all(isinstance(entry.value, dict) for entry in entries):
        raise expected(key, item, "a map { … } or an array of them")
    return tuple(_remote(key, entry) for entry in entries)
