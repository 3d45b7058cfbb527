"""The `cluster` block of nats.conf, and its flags.

Belongs here: the keys of `cluster { … }` with those of its `authorization` and `tls`, route URLs, and the changes that
the flags --cluster, --routes and so on make.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.options import FREE_PORT, MAX_PORT, ClusterOptions, Flags, RouteUrl
from lakestream.config.tls import as_tls
from lakestream.config.values import (
    LOGIN,
    Rule,
    address,
    as_boolean,
    as_limit,
    as_map,
    as_port,
    as_positive_duration,
    as_text,
    converted,
    expected,
    go_kind,
    not_served,
)

DEFAULT_PORT = 6222
"""Port of a route URL without one."""

# ---------------------------------------------------------------------- addresses


def route_url(text: str) -> RouteUrl:
    """Parse `nats-route://user:password@host:port`; scheme, user and port (6222) are optional. Raises ValueError."""
    parts = _split(text)
    if not parts.hostname:
        raise ValueError(f"{text!r} has no host; write nats-route://host:port")
    return RouteUrl(
        parts.hostname, parts.port or DEFAULT_PORT, unquote(parts.username or ""), unquote(parts.password or "")
    )


def _split(text: str) -> SplitResult:
    """Split a URL and check its port. Raises ValueError with a text for the operator."""
    parts = urlsplit(text if "://" in text else f"nats-route://{text}")
    try:
        parts.port  # noqa: B018 - the property is what checks it
    except ValueError:
        raise ValueError(f"{text!r}: the port must be from 1 to {MAX_PORT}") from None
    return parts


def _routes(key: str, item: Item) -> tuple[RouteUrl, ...]:
    if not isinstance(item.value, list):
        raise expected(key, item, "an array of URLs")
    found: dict[RouteUrl, None] = {}
    for entry in item.value:
        # One entry may hold several, with commas (as in nats-server).
        for text in as_text(key, entry).split(","):
            try:
                found[route_url(text.strip())] = None
            except ValueError as error:
                raise entry.error(f'error parsing route url ["{text.strip()}"]: {error}') from error
    return tuple(found)


def _advertise(key: str, item: Item) -> str:
    text = as_text(key, item)
    try:
        return _advertised(text)
    except ValueError as error:
        raise item.error(f'"{key}": {error}') from error


def _advertised(text: str) -> str:
    url = route_url(text)
    return RouteUrl(url.host, url.port).address


# ---------------------------------------------------------------------- blocks

CLUSTER_AUTHORIZATION: dict[str, Rule] = {
    **LOGIN,
    "timeout": ("auth_timeout_ns", as_positive_duration),
}
CLUSTER_AUTHORIZATION_MISSING = {
    "users": "Cluster authorization does not allow multiple users",
    "token": "Cluster authorization does not support tokens",
    **dict.fromkeys(("permissions", "default_permissions"), "nodes of a cluster trust each other"),
    "auth_callout": "nodes of a cluster log in with user and password",
}


def _authorization(key: str, item: Item) -> dict[str, Any]:
    values = converted(as_map(key, item), CLUSTER_AUTHORIZATION, missing=CLUSTER_AUTHORIZATION_MISSING)
    if bool(values.get("user")) != bool(values.get("password")):
        raise item.error("cluster authorization needs both user and password")
    return values


_TLS_HARMLESS = ("handshake_first", "first", "immediate", "connection_rate_limit")
_TLS_MISSING = {
    **dict.fromkeys(("certs", "certificates"), "use cert_file and key_file"),
}


def _tls(key: str, item: Item) -> dict[str, Any]:
    warnings: list[str] = []
    for written, inner in item.value.items() if isinstance(item.value, dict) else ():
        name = written.lower()
        place = f'{inner.file}:{inner.line}: "{written}" has no effect here'
        if name in _TLS_MISSING and inner.value not in (False, []):
            raise not_served(written, inner, _TLS_MISSING[name])
        if name in _TLS_HARMLESS:
            warnings.append(place)
        if name == "verify" and inner.value is not True:
            warnings.append(f"{place}: nodes always verify certificates")
    tls = as_tls(key, item, of_nodes=True)
    if not tls.cert_file:
        raise item.error("missing 'cert_file' in TLS configuration")
    # With a negative timeout every handshake fails, as in nats-server.
    tls = msgspec.structs.replace(tls, timeout_ns=max(tls.timeout_ns, 1_000_000))
    return {"tls": tls, "warnings": warnings}


def _name(key: str, item: Item) -> str:
    name = as_text(key, item)
    if any(char.isspace() for char in name):
        raise item.error("cluster name cannot contain spaces")
    return name


CLUSTER: dict[str, Rule] = {
    "name": ("name", _name),
    "listen": ("*", address("host", "port")),
    "port": ("port", as_port),
    **dict.fromkeys(("host", "net"), ("host", as_text)),
    "routes": ("routes", _routes),
    "authorization": ("*", _authorization),
    "tls": ("*", _tls),
    **dict.fromkeys(("advertise", "cluster_advertise"), ("advertise", _advertise)),
    "no_advertise": ("no_advertise", as_boolean),
    "connect_retries": ("connect_retries", as_limit),
    "insecure": ("insecure", as_boolean),
}
CLUSTER_HARMLESS = (
    "pool_size",
    "accounts",
    "compression",
    "ping_interval",
    "ping_max",
    "write_deadline",
    "write_timeout",
    "connect_backoff",
)
CLUSTER_MISSING = {
    "permissions": "nodes of a cluster trust each other",
}


def as_cluster(key: str, item: Item) -> ClusterOptions:
    """Convert the block. Without a port there is no cluster, but its name is shown (as in nats-server)."""
    if not isinstance(item.value, dict):
        raise item.error(f"Expected map to define cluster, got {go_kind(item.value)}")
    values = converted(item.value, CLUSTER, harmless=CLUSTER_HARMLESS, missing=CLUSTER_MISSING)
    warnings = tuple(values.pop("warnings", ()))
    return ClusterOptions(**values, warnings=warnings)


RELOADABLE = frozenset({"routes", "user", "password", "auth_timeout_ns", "connect_retries", "insecure", "warnings"})
"""Fields of `ClusterOptions` that SIGHUP may change. Certificates are read again from the same files."""


def check_reload(file: str, old: ClusterOptions, new: ClusterOptions) -> None:
    """Raise StartError when a reload would change more of the cluster than it can."""
    if bool(old.port) != bool(new.port):
        raise StartError(f"{file}: a reload cannot turn the cluster on or off; restart the server for that")
    if old.port != new.port:
        raise StartError(f"config reload not supported for cluster port: old={old.port}, new={new.port}")
    for name in ClusterOptions.__struct_fields__:
        if name not in RELOADABLE and getattr(old, name) != getattr(new, name):
            raise StartError(f"{file}: a reload cannot change 'cluster.{name}'; restart the server for that")


# ---------------------------------------------------------------------- flags


def with_flags(flags: Flags, cluster: ClusterOptions) -> ClusterOptions:
    """Apply the command line to the options of the file. Without a port only the name is left.

    Raises:
        StartError: an invalid URL, routes without a listener, or a listener without authentication.
    """
    values: dict[str, Any] = {}
    if flags.cluster is not None:
        values |= _listener(flags.cluster)
    if flags.cluster_name is not None:
        values["name"] = flags.cluster_name
    if flags.routes is not None:
        values["routes"] = _flag("--routes", lambda: tuple(map(route_url, _listed(flags.routes or ""))))
    if flags.cluster_advertise:
        values["advertise"] = _flag("--cluster_advertise", lambda: _advertised(flags.cluster_advertise or ""))
    if flags.no_advertise is not None:
        values["no_advertise"] = flags.no_advertise
    if flags.connect_retries is not None:
        values["connect_retries"] = max(0, flags.connect_retries)
    found = msgspec.structs.replace(cluster, **values)
    if found.port:
        return _guarded(found)
    if found.routes:
        raise StartError("solicited routes require cluster capabilities, e.g. --cluster")
    return ClusterOptions(name=found.name, warnings=found.warnings)


def _guarded(cluster: ClusterOptions) -> ClusterOptions:
    """Reject an open listener, where the cluster's name is enough to become a member; warn where it is allowed.

    Certificates keep strangers out only with a `ca_file`: the system's authorities sign for anybody.
    """
    if cluster.user or (cluster.tls is not None and cluster.tls.ca_file):
        return cluster
    where = f"cluster: any server that knows the cluster's name can join at {cluster.host}"
    remedy = "set cluster { authorization { user, password } } or cluster { tls { cert_file, key_file, ca_file } }"
    if cluster.insecure or _is_loopback(cluster.host):
        warning = f"{where} and to read and write everything; {remedy}"
        return msgspec.structs.replace(cluster, warnings=(*cluster.warnings, warning))
    raise StartError(
        f"{where}, which is not a loopback address; {remedy}, or cluster {{ insecure: true }} on a trusted network"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listener(text: str) -> dict[str, Any]:
    """Parse --cluster nats://user:password@host:port; "" turns the cluster off."""
    if not text:
        return {"port": 0, "routes": ()}
    # urlsplit does not accept a free port (-1).
    head, free, tail = text.partition(":-1")
    parts = _flag("--cluster", lambda: _split(head if free and not tail.strip("/") else text))
    port = FREE_PORT if free else parts.port
    if port is None:
        raise StartError(f"--cluster {text!r} has no port; write nats://host:port")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user and not password:
        raise StartError("--cluster: expected cluster password to be set")
    return {"host": parts.hostname or "0.0.0.0", "port": port} | ({"user": user, "password": password} if user else {})


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _flag(name: str, convert: Any) -> Any:
    try:
        return convert()
    except ValueError as error:
        raise StartError(f"{name}: {error}") from error
