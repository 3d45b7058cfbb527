"""The `leafnodes` block of nats.conf.

Belongs here: its keys with the errors of nats-server, those of its `authorization` and its `remotes`, and the checks
between the block and other settings. What the settings do is in net/leaf/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lakestream.config.account_options import AccountOptions, User
from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.options import (
    COMPRESSIONS,
    LEAF,
    OFF,
    S2_AUTO,
    WEBSOCKETS,
    HttpProxy,
    LeafLogin,
    LeafOptions,
    LeafRemote,
    Options,
    RemoteAddress,
    RemoteOptions,
    RemoteTls,
)
from lakestream.config.remote import remote_url
from lakestream.config.tls import as_dialling_tls, as_tls
from lakestream.config.values import (
    LOGIN,
    Rule,
    as_boolean,
    as_map,
    as_number,
    as_pause,
    as_ping_interval,
    as_positive_duration,
    as_text,
    converted,
    find,
    go_kind,
    shown,
)
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import USER, BadKeyError, is_public, key_pair
from lakestream.protocol.subjects import valid_subject
from lakestream.protocol.transforms import TransformError, hashed

LEAF_PORT = 7422
"""Port of a leaf node listener without one of its own."""

_LEAST_VERSION = (2, 8, 0)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")


def version_of(text: str) -> tuple[int, int, int] | None:
    """Return the numbers of a version; None: it is none."""
    found = _VERSION.fullmatch(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found is not None else None


# ---------------------------------------------------------------------- values


def _flag(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise item.error(f"interface conversion: interface {{}} is {go_kind(item.value)}, not bool")
    return item.value


def _in_order(key: str, item: Item) -> dict[str, Any]:
    """Check a flag that says what is so anyway: addresses are dialled in the configured order."""
    _flag(key, item)
    return {}


def _whole(key: str, item: Item) -> int:
    if isinstance(item.value, str):
        raise item.error("interface conversion: interface {} is string, not int64")
    return as_number(key, item)


def _pings(key: str, item: Item) -> int:
    return max(_whole(key, item), 0)


def _listen(key: str, item: Item) -> dict[str, Any]:
    if isinstance(item.value, int) and not isinstance(item.value, bool):
        return {"port": item.value}
    text = as_text(key, item)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise item.error(f"could not parse address string {quoted(text)}")
    if re.fullmatch(r"-?[0-9]+", port) is None:
        raise item.error(f"could not parse port {quoted(port)}")
    name = host.removeprefix("[").removesuffix("]")
    return {"port": int(port)} | ({"host": name} if name else {})


def _compression(key: str, item: Item) -> str:
    if isinstance(item.value, bool):
        return S2_AUTO if item.value else OFF
    if isinstance(item.value, dict):
        entries = {name.lower(): entry for name, entry in item.value.items()}
        thresholds = entries.get("rtt_thresholds")
        _check_thresholds(key, thresholds)
        return _mode(as_text("mode", entries["mode"])) if "mode" in entries else S2_AUTO
    if not isinstance(item.value, str):
        raise item.error(f'field "{key}" should be a boolean or a structure, got {go_kind(item.value)}')
    return _mode(item.value)


def _mode(text: str) -> str:
    mode = {"on": S2_AUTO, "true": S2_AUTO, "enabled": S2_AUTO, "false": OFF, "disabled": OFF}.get(text.lower())
    mode = mode or text.lower()
    if mode not in COMPRESSIONS:
        raise StartError(f"unsupported compression mode {quoted(text)}")
    return mode


def _check_thresholds(key: str, item: Item | None) -> None:
    """Check round-trip times. They choose how much nats-server compresses; this server compresses nothing."""
    if item is None:
        return
    if not isinstance(item.value, list):
        raise item.error(f'field "{key}" should be a boolean or a structure, got {go_kind(item.value)}')
    texts = [as_text(key, entry) for entry in item.value]
    try:
        times = [parse_duration(text) for text in texts]
    except ValueError as error:
        raise item.error(f"invalid duration: {error}") from error
    if times != sorted(times):
        raise StartError(f"RTT threshold values [{' '.join(texts)}] should be in ascending order")


def _min_version(key: str, item: Item) -> str:
    text = as_text(key, item)
    found = version_of(text)
    if found is None:
        raise item.error("invalid leafnode's minimum version: invalid semver")
    if found < _LEAST_VERSION:
        raise item.error("the minimum version should be at least 2.8.0")
    return text


def _reconnect(key: str, item: Item) -> int:
    if isinstance(item.value, str):
        try:
            return max(parse_duration(item.value), 0)
        except ValueError:
            raise item.error(f"error parsing {key}: time: invalid duration {quoted(item.value)}") from None
    return as_pause(key, item)


# ---------------------------------------------------------------------- authorization

_USER: dict[str, Rule] = {
    **LOGIN,
    "account": ("account", as_text),
    "proxy_required": ("proxy_required", as_boolean),
}


def _logins(key: str, item: Item) -> tuple[LeafLogin, ...]:
    if not isinstance(item.value, list):
        raise item.error(f"Expected users field to be an array, got {go_kind(item.value)}")
    found: dict[str, LeafLogin] = {}
    for entry in item.value:
        values = converted(as_map(key, entry), _USER)
        name = values.get("user", "")
        user = User(name, values.get("password", ""), proxy_required=values.get("proxy_required", False))
        found[name] = LeafLogin(user, values.get("account", ""))
    return tuple(found.values())


def _nkey(key: str, item: Item) -> str:
    if not isinstance(item.value, str) or not is_public(item.value, USER):
        raise item.error("Not a valid public nkey for leafnode authorization")
    return item.value


def _timeout(key: str, item: Item) -> int:
    if isinstance(item.value, str):
        try:
            parse_duration(item.value)
        except ValueError:
            wrong = "error parsing leafnode authorization config, 'timeout' time: invalid duration"
            raise item.error(f"{wrong} {quoted(item.value)}") from None
    return as_positive_duration(key, item)


LEAF_AUTHORIZATION: dict[str, Rule] = {
    **LOGIN,
    "nkey": ("nkey", _nkey),
    "account": ("account", as_text),
    "users": ("logins", _logins),
    "proxy_required": ("proxy_required", as_boolean),
    "timeout": ("auth_timeout_ns", _timeout),
}


def _authorization(key: str, item: Item) -> dict[str, Any]:
    block = as_map(key, item)
    values = converted(block, LEAF_AUTHORIZATION)
    needs_proxy = values.pop("proxy_required", False)
    user, password, nkey = (values.pop(name, "") for name in ("user", "password", "nkey"))
    if (user or nkey) and values.get("logins"):
        raise item.error("can not have a single user/pass and a users array")
    users = next((entry for name, entry in block.items() if name.lower() == "users"), None)
    names = [_name(entry) for entry in users.value] if users is not None and isinstance(users.value, list) else []
    for name in names:
        if names.count(name) > 1:
            raise item.error(f"duplicate user {quoted(name)} detected in leafnode authorization")
    if user or nkey:
        login = LeafLogin(User(user, password, nkey=nkey, proxy_required=needs_proxy), values.get("account", ""))
        return values | {"logins": (login,), "single_login": True}
    if needs_proxy:
        values["logins"] = tuple(
            msgspec.structs.replace(login, user=msgspec.structs.replace(login.user, proxy_required=True))
            for login in values.get("logins", ())
        )
    return values


def _name(item: Item) -> str:
    entries = item.value if isinstance(item.value, dict) else {}
    return next((str(entry.value) for name, entry in entries.items() if name.lower() in ("user", "username")), "")


# ---------------------------------------------------------------------- remotes


_ISOLATE = ("isolate_leafnode_interest", "isolate")


def _urls(key: str, item: Item) -> tuple[RemoteAddress, ...]:
    if not isinstance(item.value, list | str):
        raise item.error(f"Expected remote leafnode url to be an array or string, got {shown(item)}")
    entries = item.value if isinstance(item.value, list) else [item]
    texts = [as_text(key, entry) for entry in entries]
    over_websocket = [text for text in texts if text.split("://")[0] in WEBSOCKETS]
    if over_websocket and len(over_websocket) < len(texts):
        mixed = " ".join(map(quoted, texts))
        raise StartError(
            f"remote leaf node configuration cannot have a mix of websocket and non-websocket urls: [{mixed}]"
        )
    found: dict[RemoteAddress, None] = {}
    for entry, text in zip(entries, texts, strict=True):
        try:
            address = remote_url(_ported(text))
        except ValueError as error:
            raise entry.error(f'"{key}": {error}') from error
        if over_websocket:
            scheme, path = text.split("://")[0], urlsplit(text).path
            if re.fullmatch(r"[!$&-;=@-Z_a-z~%]*", path) is None:
                raise entry.error(
                    f'"{key}": the path must be of letters, digits and marks of URLs; escape others by "%"'
                )
            found[address._replace(scheme=scheme, path=path)] = None
        else:
            found[address._replace(scheme="tls" if address.scheme == "tls" else LEAF)] = None
    if not found:
        raise item.error(f'"{key}" is empty')
    return tuple(found)


def _ported(text: str) -> str:
    """Return a URL with the port for leaf nodes where it names none, and with a scheme of this server."""
    scheme, _, rest = text.rpartition("://")
    scheme = {"leaf": LEAF, "nats": LEAF, "": LEAF, "ws": LEAF, "wss": LEAF}.get(scheme, scheme)
    authority = rest.split("/")[0].rpartition("@")[2]
    if re.search(r":[0-9]+$", authority) is None:
        rest = rest.replace(authority, f"{authority}:{LEAF_PORT}") if authority else rest
    return f"{scheme}://{rest}"


def _denied(key: str, item: Item) -> tuple[str, ...]:
    entries = item.value if isinstance(item.value, list) else [item]
    subjects = tuple(as_text(key, entry) for entry in entries)
    for entry, subject in zip(entries, subjects, strict=True):
        if not valid_subject(subject.encode()):
            raise entry.error(f"subject {quoted(subject)} is not a valid subject")
    return subjects


def _seed(key: str, item: Item) -> str:
    seed = as_text(key, item)
    try:
        key_pair(seed)
    except BadKeyError:
        raise item.error(f"Remote leafnode nkey is not a valid seed: {quoted(seed)}") from None
    return seed


_DIAL: dict[str, Rule] = {
    **dict.fromkeys(("url", "urls"), ("urls", _urls)),
    **dict.fromkeys(("account", "local"), ("account", as_text)),
    **dict.fromkeys(("credentials", "creds"), ("credentials", as_text)),
    **dict.fromkeys(("nkey", "seed"), ("nkey", _seed)),
    "tls": ("*", as_dialling_tls),
    "ignore_discovered_servers": ("ignore_discovered", as_boolean),
}
LEAF_REMOTE: dict[str, Rule] = {
    **_DIAL,
    **dict.fromkeys(("deny_imports", "deny_import"), ("deny_imports", _denied)),
    **dict.fromkeys(("deny_exports", "deny_export"), ("deny_exports", _denied)),
    "compression": ("compression", _compression),
    "request_isolation": ("isolate", _flag),
    **dict.fromkeys(_ISOLATE, ("isolated", _flag)),
    **dict.fromkeys(("no_randomize", "dont_randomize"), ("*", _in_order)),
    "disabled": ("disabled", _flag),
    **dict.fromkeys(
        ("ws_compress", "ws_compression", "websocket_compress", "websocket_compression"), ("ws_compression", _flag)
    ),
    **dict.fromkeys(("ws_no_masking", "websocket_no_masking"), ("ws_no_masking", _flag)),
    "proxy": ("proxy", lambda key, item: _proxy(key, item)),
}
LEAF_REMOTE_MISSING = {
    "hub": "this side is the leaf node; let the other side connect here",
}
LEAF_REMOTE_HARMLESS = ("first_info_timeout", "jetstream_cluster_migrate", "js_cluster_migrate")
_OF_DIAL = {"tls", *(option for option, _ in _DIAL.values())}


def _remotes(key: str, item: Item) -> dict[str, Any]:
    if not isinstance(item.value, list):
        raise item.error(f"Expected remotes field to be an array, got {go_kind(item.value)}")
    found: list[LeafRemote] = []
    warnings: list[str] = []
    for entry in item.value:
        if not isinstance(entry.value, dict):
            raise entry.error(f"Expected remote leafnode entry to be a map/struct, got {go_kind(entry.value)}")
        values = converted(entry.value, LEAF_REMOTE, harmless=LEAF_REMOTE_HARMLESS, missing=LEAF_REMOTE_MISSING)
        warnings += values.pop("warnings", ())
        if "urls" not in values:
            raise entry.error('"remotes" needs a url')
        dial = {name: values.pop(name) for name in list(values) if name in _OF_DIAL}
        over_websocket = dial["urls"][0].scheme in WEBSOCKETS
        if values.get("proxy") is not None:
            _check_proxy(find(entry.value, "proxy"), dial, values, warnings)
        if any(address.scheme in ("tls", "wss") for address in dial["urls"]):
            dial.setdefault("tls", RemoteTls())
        if not over_websocket:
            dial["urls"] = tuple(address._replace(scheme=LEAF) for address in dial["urls"])
        remote = LeafRemote(dial=RemoteOptions(**dial), **values)
        if _places(remote) in map(_places, found):
            urls = " ".join(quoted(f"nats://{host}:{port}") for host, port in _places(remote)[0])
            first = next(iter(entry.value.values()))
            raise first.error(f"duplicate remote urls=[{urls}], account={quoted(remote.dial.account)}")
        found.append(remote)
    return {"remotes": tuple(found), "warnings": warnings}


LEAF_PROXY: dict[str, Rule] = {
    "url": ("url", as_text),
    "username": ("user", as_text),
    "password": ("password", as_text),
    "timeout": ("timeout_ns", as_pause),
}


def _proxy(key: str, item: Item) -> HttpProxy | None:
    if not isinstance(item.value, dict):
        raise item.error(f"Expected proxy to be a map, got {go_kind(item.value)}")
    values = converted(item.value, LEAF_PROXY)
    values.pop("warnings", None)
    try:
        url = urlsplit(values.pop("url", ""))
        port = url.port or 80
    except ValueError as error:
        raise item.error(f"invalid proxy URL: {str(error).lower()}") from None
    if not (url.scheme or url.netloc or url.path):
        return None
    if url.scheme not in ("http", "https"):
        raise item.error(f"proxy URL scheme must be http or https, got: {url.scheme}")
    if url.scheme == "https":
        raise item.error('"proxy": proxies are reached without TLS; write http:// in the url')
    if not url.hostname:
        raise item.error("proxy URL must specify a host")
    if bool(values.get("user")) != bool(values.get("password")):
        raise item.error("proxy username and password must both be specified or both be empty")
    values = {name: value for name, value in values.items() if value}
    return HttpProxy(host=url.hostname, port=port, **values)


def _check_proxy(item: Item, dial: dict[str, Any], values: dict[str, Any], warnings: list[str]) -> None:
    """Check a proxy against the URLs; one that is not used is removed."""
    schemes = {address.scheme for address in dial["urls"]}
    if schemes.isdisjoint(WEBSOCKETS):
        values["proxy"] = None
        warnings.append(f"{item.file}:{item.line}:{item.column}: proxy settings only apply to WebSocket connections")
    elif "wss" in schemes and "tls" not in dial:
        raise item.error("proxy is configured, and a wss:// URL: that needs a `tls` block in the remote")


def _places(remote: LeafRemote) -> tuple[tuple[tuple[str, int], ...], str]:
    return tuple((address.host, address.port) for address in remote.dial.urls), remote.dial.account


# ---------------------------------------------------------------------- the block

LEAFNODES: dict[str, Rule] = {
    "listen": ("*", _listen),
    "port": ("port", _whole),
    **dict.fromkeys(("host", "net"), ("host", as_text)),
    **dict.fromkeys(("advertise", "leafnode_advertise"), ("advertise", as_text)),
    "no_advertise": ("no_advertise", _flag),
    **dict.fromkeys(("authorization", "authentication"), ("*", _authorization)),
    "tls": ("tls", as_tls),
    "compression": ("compression", _compression),
    "min_version": ("min_version", _min_version),
    **dict.fromkeys(_ISOLATE, ("isolate", _flag)),
    **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval"), ("reconnect_ns", _reconnect)),
    "remotes": ("*", _remotes),
    "ping_interval": ("*", as_ping_interval),
    "ping_max": ("ping_max", _pings),
}
LEAFNODES_HARMLESS = ("write_deadline", "write_timeout", "reconnect_jitter")


def as_leafnodes(key: str, item: Item) -> LeafOptions:
    """Convert the block."""
    if not isinstance(item.value, dict):
        raise item.error(f"Expected map to define a leafnode, got {go_kind(item.value)}")
    values = converted(item.value, LEAFNODES, harmless=LEAFNODES_HARMLESS)
    warnings = tuple(values.pop("warnings", ()))
    return LeafOptions(**values, warnings=warnings)


# ---------------------------------------------------------------------- checks


def check_leafnodes(options: Options) -> None:
    """Check the block against other settings. Raises StartError."""
    leaf = options.leafnodes
    known = {GLOBAL_ACCOUNT, *(account.name for account in options.accounts)}
    for name in (leaf.account, *(login.account for login in leaf.logins)):
        if name and name not in known:
            raise StartError(f"cannot find local account {quoted(name)} specified in leafnode authorization")
    for remote in leaf.remotes:
        if remote.dial.account not in known:
            raise StartError(f"cannot find local account {quoted(remote.dial.account)} specified in leafnode remote")
        for key, subjects in (("deny_imports", remote.deny_imports), ("deny_exports", remote.deny_exports)):
            for subject in subjects:
                try:
                    hashed(subject, account=remote.dial.account, leaf_remote=None)
                except TransformError as error:
                    urls = " ".join(quoted(f"{LEAF}://{host}:{port}") for host, port in _places(remote)[0])
                    shown = f"urls=[{urls}], account={quoted(remote.dial.account)}"
                    wrong = f"permission subject {quoted(subject)}: {error}"
                    raise StartError(f"invalid {key} for remote {shown}: {wrong}") from error


_RELOADABLE = frozenset({"tls", "logins", "single_login", "account", "auth_timeout_ns", "remotes", "warnings"})
"""Options that later connections use. Remotes that a reload changes are dialled anew."""


def check_reload(old: LeafOptions, new: LeafOptions) -> None:
    """Raise StartError when a reload would change more of the block than it can."""
    for name in LeafOptions.__struct_fields__:
        if name not in _RELOADABLE and getattr(old, name) != getattr(new, name):
            raise StartError(f"config reload not supported for LeafNode: {name}; restart the server for that")
    if (old.tls is None) != (new.tls is None):
        raise StartError("config reload not supported for LeafNode: tls; restart the server for that")


def for_leafnodes(options: Options) -> Options:
    """Return the settings by which leaf nodes log in: the block's users replace those of the server."""
    leaf = options.leafnodes
    replaced = msgspec.structs.replace(options, tls=leaf.tls, no_auth_user="")
    if not leaf.logins:
        if leaf.account:  # everybody, in that account
            replaced = msgspec.structs.replace(replaced, users=(), token="", accounts=_with_users(options, ()))
        return replaced
    users = tuple(login.user for login in leaf.logins if login.account in ("", GLOBAL_ACCOUNT))
    accounts = _with_users(options, leaf.logins)
    return msgspec.structs.replace(replaced, users=users, token="", accounts=accounts)


def _with_users(options: Options, logins: Iterable[LeafLogin]) -> tuple[AccountOptions, ...]:
    listed = list(logins)
    return tuple(
        msgspec.structs.replace(account, users=tuple(login.user for login in listed if login.account == account.name))
        for account in options.accounts
    )
