"""Which key of nats.conf sets which option.

Belongs here: the tables of keys, how each value is checked and converted, and what happens to keys that nats-server
knows and this server does not: those that change behaviour are refused, those that cannot do harm get a warning. The
grammar is in conf.py, the options in options.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakestream.jetstream.durations import parse_duration
from lakestream.server.conf import ConfError, Item, load, size_bytes
from lakestream.server.errors import StartError
from lakestream.server.options import MAX_PORT, SECOND, LakeOptions, User

Convert = Callable[[str, Item], Any]
Integer = Callable[[str, Item], int]
Rule = tuple[str, Convert]
"""The option that a key sets, and what makes the option's value of the item."""

MIN_LAME_DUCK_NS = 30 * SECOND
_HOST_PORT = re.compile(r"(.*):(-?[0-9]+)")


def read_settings(file: str) -> dict[str, Any]:
    """Read a configuration file.

    Returns:
        Values by the names of `Options`; `jetstream` as a dict of `JetStreamOptions` fields plus `enabled`.

    Raises:
        StartError: the file cannot be read; as `ConfError` with file and line: its text or a setting is wrong.
    """
    import hashlib  # costs several ms, and without a file nobody needs it

    items = load(file)
    if not items:
        raise StartError(f"{file}: config has no values or is empty")
    values: dict[str, Any] = {"warnings": []}
    _apply(items, TOP, values, harmless=TOP_HARMLESS, missing=TOP_MISSING)
    store_dir = values.pop("store_dir", None)
    if store_dir is not None:
        jetstream = values.setdefault("jetstream", {"enabled": False})
        if jetstream.get("store_dir"):
            raise _find(items, "store_dir").error(
                "Duplicate 'store_dir' configuration: it is also in the jetstream block"
            )
        jetstream["store_dir"] = store_dir
    with open(file, "rb") as stream:
        values["config_digest"] = "sha256:" + hashlib.sha256(stream.read()).hexdigest()
    values["warnings"] = tuple(values["warnings"])
    return values


# ---------------------------------------------------------------------- one block


def _apply(
    items: Mapping[str, Item],
    rules: Mapping[str, Rule],
    values: dict[str, Any],
    *,
    harmless: Iterable[str] = (),
    missing: Mapping[str, str] | None = None,
) -> None:
    """Convert every key of a block by its rule into `values`.

    A key that sets several options (`listen` sets host and port) has a converter that returns a dict, and `*` as the
    option's name. Warnings of inner blocks end up in `values["warnings"]`.
    """
    missing = missing or {}
    for written, item in items.items():
        key = written.lower()
        rule = rules.get(key)
        if rule is not None:
            option, convert = rule
            value = convert(written, item)
            if isinstance(value, dict):
                values.setdefault("warnings", []).extend(value.pop("warnings", ()))
            values.update(value if option == "*" else {option: value})
        elif key in missing:
            _refuse_unless_off(written, item, missing[key])
        elif key in harmless:
            values.setdefault("warnings", []).append(f'{item.file}:{item.line}: "{written}" has no effect here')
        elif not item.used:
            raise item.error(f'unknown field "{written}"{_similar(key, [*rules, *missing, *harmless])}')


def _refuse_unless_off(key: str, item: Item, reason: str) -> None:
    """A feature that is not there may be written down as off (false, 0, empty)."""
    if item.value in (False, 0, "", "disabled") or item.value == [] or item.value == {}:
        return
    raise item.error(f'"{key}" is not supported{": " if reason else " yet"}{reason}')


def _similar(key: str, known: Iterable[str]) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(key, list(known), 1, 0.7)
    return f', did you mean "{near[0]}"?' if near else ""


def _find(items: Mapping[str, Item], key: str) -> Item:
    return next(item for written, item in items.items() if written.lower() == key)


# ---------------------------------------------------------------------- kinds of values


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "a map"}
    return names.get(type(value), "a date")


def _expected(key: str, item: Item, what: str) -> ConfError:
    shown = f" {item.value!r}" if isinstance(item.value, str | int | float) else ""
    return item.error(f'"{key}" must be {what}, not {_kind(item.value)}{shown}')


def _text(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise _expected(key, item, 'a string (write numbers in "quotes")')
    return item.value


def _boolean(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise _expected(key, item, "true or false")
    return item.value


def _number(key: str, item: Item) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise _expected(key, item, "a whole number")
    return item.value


def _number_in(lowest: int, highest: int) -> Integer:
    def convert(key: str, item: Item) -> int:
        number = _number(key, item)
        if not lowest <= number <= highest:
            raise item.error(f'"{key}" is {number}, but must be from {lowest} to {highest}')
        return number

    return convert


_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1
_positive32 = _number_in(1, _INT32)
_port = _number_in(-1, MAX_PORT)


def _limit(key: str, item: Item) -> int:
    """A limit where 0 and -1 mean none, which is 0 in the options."""
    return max(_number_in(-1, _INT64)(key, item), 0)


def _duration(key: str, item: Item) -> int:
    """A Go duration, or a number of seconds as old files have it. A bare `2m` means minutes, not two million."""
    value = item.raw if item.raw[-1:] == "m" else item.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        duration = int(value * SECOND)
    elif isinstance(value, str):
        try:
            duration = parse_duration(value)
        except ValueError as error:
            raise item.error(
                f'"{key}": {value[:40]!r} is no duration; write it like 500ms, 10s, 2m or 1h30m'
            ) from error
    else:
        raise _expected(key, item, 'a duration such as "10s" or "2m"')
    if abs(duration) > _INT64:
        raise item.error(f'"{key}" is too long a duration')
    return duration


def _positive_duration(key: str, item: Item) -> int:
    duration = _duration(key, item)
    if duration <= 0:
        raise item.error(f'"{key}" must be longer than 0')
    return duration


def _pause(key: str, item: Item) -> int:
    """A duration that may be 0, for never."""
    duration = _duration(key, item)
    if duration < 0:
        raise item.error(f'"{key}" must not be below 0')
    return duration


def _lame_duck(key: str, item: Item) -> int:
    duration = _duration(key, item)
    if duration < MIN_LAME_DUCK_NS:
        raise item.error(f"invalid {key} of {duration // SECOND}s, minimum is 30 seconds")
    return duration


def _grace(key: str, item: Item) -> int:
    duration = _duration(key, item)
    if duration < 0:
        raise item.error(f'"{key}" must not be negative')
    return duration


def _size(key: str, item: Item) -> int:
    """Bytes as a number, or a string with K, M, G or T (binary). -1 and 0 mean: by the machine."""
    if isinstance(item.value, str):
        try:
            return size_bytes(item.value)
        except ValueError as error:
            raise item.error(f'"{key}": {error}') from error
    return _number_in(-1, _INT64)(key, item)


def _bytes(key: str, item: Item) -> int:
    size = _size(key, item)
    if size < 0:
        raise item.error(f'"{key}" must not be negative')
    return size


def _positive_size(key: str, item: Item) -> int:
    size = _size(key, item)
    if size <= 0:
        raise item.error(f'"{key}" must be more than 0 bytes')
    return size


def _map(key: str, item: Item) -> dict[str, Item]:
    if not isinstance(item.value, dict):
        raise _expected(key, item, "a map { … }")
    return item.value


def _address(host: str, port: str) -> Convert:
    """`host:port`, `:port` or a port alone, into these two options."""

    def convert(key: str, item: Item) -> dict[str, Any]:
        value = item.value
        if isinstance(value, int) and not isinstance(value, bool):
            return {port: _port(key, item)}
        if not isinstance(value, str):
            raise _expected(key, item, "host:port or a port")
        found = _HOST_PORT.fullmatch(value if ":" in value else f":{value}")
        if found is None or len(found.group(2)) > 6 or not -1 <= int(found.group(2)) <= MAX_PORT:
            raise item.error(f'"{key}": could not parse address {value!r}; write host:port or a port up to {MAX_PORT}')
        name = found.group(1).removeprefix("[").removesuffix("]")
        return {port: int(found.group(2))} | ({host: name} if name else {})

    return convert


def _server_name(key: str, item: Item) -> str:
    name = _text(key, item)
    if any(char.isspace() for char in name):
        raise item.error("server name cannot contain spaces")
    return name


def _base_path(key: str, item: Item) -> str:
    path = _text(key, item).strip("/")
    return f"/{path}" if path else ""


def _tags(key: str, item: Item) -> tuple[str, ...]:
    if isinstance(item.value, str):
        return tuple(item.value.split(","))
    if not isinstance(item.value, list):
        raise _expected(key, item, "a string or an array of strings")
    return tuple(_text(key, tag) for tag in item.value)


def _texts(key: str, item: Item) -> dict[str, str]:
    return {name: _text(f"{key}.{name}", value) for name, value in _map(key, item).items()}


# ---------------------------------------------------------------------- authorization

_PERMISSIONS = "permissions of users come in a later version"
_USER_RULES: dict[str, Rule] = {
    "user": ("user", _text),
    "username": ("user", _text),
    "pass": ("password", _text),
    "password": ("password", _text),
}
_USER_MISSING = {
    "nkey": "use user and password, or a token",
    "permissions": _PERMISSIONS,
    "permission": _PERMISSIONS,
    "authorization": _PERMISSIONS,
    "allowed_connection_types": "",
    "connection_types": "",
    "clients": "",
    "proxy_required": "",
}


def _users(key: str, item: Item) -> tuple[User, ...]:
    if not isinstance(item.value, list):
        raise _expected(key, item, "an array of users")
    users: dict[str, User] = {}
    for entry in item.value:
        values: dict[str, Any] = {}
        _apply(_map(key, entry), _USER_RULES, values, missing=_USER_MISSING)
        name = values.get("user", "")
        if not name:
            raise entry.error("a user needs a name: { user: NAME, password: SECRET }")
        if name in users:
            raise entry.error(f'Duplicate user "{name}" detected')
        users[name] = User(name, values.get("password", ""))
    return tuple(users.values())


_AUTHORIZATION: dict[str, Rule] = {
    "user": ("user", _text),
    "username": ("user", _text),
    "pass": ("password", _text),
    "password": ("password", _text),
    "token": ("token", _text),
    "timeout": ("auth_timeout_ns", _positive_duration),
    "users": ("users", _users),
}
_AUTHORIZATION_MISSING = {
    "default_permissions": _PERMISSIONS,
    "default_permission": _PERMISSIONS,
    "permissions": _PERMISSIONS,
    "auth_callout": "",
    "auth_hook": "",
    "proxy_required": "",
}


def _authorization(key: str, item: Item) -> dict[str, Any]:
    values: dict[str, Any] = {}
    _apply(_map(key, item), _AUTHORIZATION, values, missing=_AUTHORIZATION_MISSING)
    user, password = values.pop("user", ""), values.pop("password", "")
    if user and "users" in values:
        raise item.error("Can not have a single user/pass and a users array")
    if values.get("token") and (user or "users" in values):
        raise item.error("Cannot have a user/pass and token")
    if password and not user:
        raise item.error("a password needs its user")
    return values | ({"users": (User(user, password),)} if user else {})


# ---------------------------------------------------------------------- jetstream


def _sync_interval(key: str, item: Item) -> dict[str, Any]:
    """`always` is the default here: every ack waits for the disk. A duration relaxes that, and only that does."""
    if isinstance(item.value, str) and item.value.lower() == "always":
        return {"sync_always": True}
    return {"sync_always": False, "sync_interval_ns": _positive_duration(key, item)}


def _domain(key: str, item: Item) -> str:
    name = _text(key, item)
    if not name or any(char.isspace() or char in ".*>" for char in name):
        raise item.error(f'"{key}" {name!r} must be one subject token: no blanks, ".", "*" or ">"')
    return name


def _max_consumers(key: str, item: Item) -> int:
    return _number_in(-1, _INT32)(key, item)


_JETSTREAM_LIMITS: dict[str, Rule] = {
    "max_request_batch": ("max_request_batch", _limit),
    "max_ack_pending": ("max_ack_pending", _limit),
    "duplicate_window": ("duplicate_window_ns", _positive_duration),
    "default_max_consumers": ("default_max_consumers", _max_consumers),
}


def _limits(key: str, item: Item) -> dict[str, Any]:
    values: dict[str, Any] = {}
    _apply(
        _map(key, item),
        _JETSTREAM_LIMITS,
        values,
        harmless=("max_ha_assets",),
        missing={"batch": "batch publish is not there yet"},
    )
    return values


_JETSTREAM: dict[str, Rule] = {
    "enabled": ("enabled", _boolean),
    "enable": ("enabled", _boolean),
    "store_dir": ("store_dir", _text),
    "storedir": ("store_dir", _text),
    "store": ("store_dir", _text),
    "max_memory_store": ("max_memory", _size),
    "max_mem_store": ("max_memory", _size),
    "max_mem": ("max_memory", _size),
    "max_file_store": ("max_file", _size),
    "max_file": ("max_file", _size),
    "domain": ("domain", _domain),
    "sync": ("*", _sync_interval),
    "sync_interval": ("*", _sync_interval),
    "strict": ("strict", _boolean),
    "limits": ("*", _limits),
}
_ENCRYPTION = "encryption at rest is not there; use an encrypted disk"
_JETSTREAM_MISSING = {
    "key": _ENCRYPTION,
    "ek": _ENCRYPTION,
    "encryption_key": _ENCRYPTION,
    "prev_key": _ENCRYPTION,
    "prev_ek": _ENCRYPTION,
    "prev_encryption_key": _ENCRYPTION,
    "cipher": _ENCRYPTION,
    "tpm": _ENCRYPTION,
}
_JETSTREAM_HARMLESS = (
    "unique_tag",
    "extension_hint",
    "max_outstanding_catchup",
    "request_queue_limit",
    "info_queue_limit",
    "max_buffered_size",
    "max_buffered_msgs",
    "meta_compact",
    "meta_compact_size",
    "meta_compact_sync",
    "max_concurrent_io",
)


def _jetstream(key: str, item: Item) -> dict[str, Any]:
    if isinstance(item.value, bool):
        return {"enabled": item.value}
    if isinstance(item.value, str):
        if item.value.lower() not in ("enabled", "disabled"):
            raise item.error(f"Expected 'enabled' or 'disabled' for string value, got '{item.value}'")
        return {"enabled": item.value.lower() == "enabled"}
    values: dict[str, Any] = {"enabled": True}
    _apply(_map(key, item), _JETSTREAM, values, harmless=_JETSTREAM_HARMLESS, missing=_JETSTREAM_MISSING)
    for size in ("max_memory", "max_file"):
        if values.get(size, 1) <= 0:
            del values[size]
    return values


# ---------------------------------------------------------------------- the lake, our own block

_LAKE: dict[str, Rule] = {
    "enabled": ("enabled", _boolean),
    "url": ("url", _text),
    "seal_bytes": ("seal_bytes", _positive_size),
    "seal_age": ("seal_age_ns", _positive_duration),
    "retain_bytes": ("retain_bytes", _bytes),
    "poll": ("poll_ns", _positive_duration),
    "staged_grace": ("staged_grace_ns", _pause),
    "staged_grace_bytes": ("staged_grace_bytes", _bytes),
    "maintain_every": ("maintain_every_ns", _pause),
}


def _lake(key: str, item: Item) -> LakeOptions:
    if isinstance(item.value, str):
        return LakeOptions(url=item.value)
    if isinstance(item.value, bool):
        return LakeOptions(enabled=item.value)
    values: dict[str, Any] = {}
    _apply(_map(key, item), _LAKE, values)
    return LakeOptions(**values)


# ---------------------------------------------------------------------- the file

TOP: dict[str, Rule] = {
    "listen": ("*", _address("host", "port")),
    "port": ("port", _port),
    "host": ("host", _text),
    "net": ("host", _text),
    "server_name": ("server_name", _server_name),
    "http": ("*", _address("http_host", "http_port")),
    "http_port": ("http_port", _port),
    "monitor_port": ("http_port", _port),
    "http_base_path": ("http_base_path", _base_path),
    "authorization": ("*", _authorization),
    "max_payload": ("max_payload", _positive32),
    "max_control_line": ("max_control_line", _positive32),
    "max_pending": ("max_pending", _number_in(1, _INT64)),
    "max_connections": ("max_connections", _limit),
    "max_conn": ("max_connections", _limit),
    "max_subscriptions": ("max_subscriptions", _limit),
    "max_subs": ("max_subscriptions", _limit),
    "ping_interval": ("ping_interval_ns", _positive_duration),
    "ping_max": ("ping_max", _positive32),
    "lame_duck_duration": ("lame_duck_duration_ns", _lame_duck),
    "lame_duck_grace_period": ("lame_duck_grace_ns", _grace),
    "debug": ("debug", _boolean),
    "trace": ("trace", _boolean),
    "logtime": ("logtime", _boolean),
    "logtime_utc": ("logtime_utc", _boolean),
    "log_file": ("log_file", _text),
    "logfile": ("log_file", _text),
    "pid_file": ("pid_file", _text),
    "pidfile": ("pid_file", _text),
    "ports_file_dir": ("ports_file_dir", _text),
    "server_tags": ("server_tags", _tags),
    "server_metadata": ("server_metadata", _texts),
    "jetstream": ("jetstream", _jetstream),
    "store_dir": ("store_dir", _text),
    "storedir": ("store_dir", _text),
    "lake": ("lake", _lake),
}
TOP_HARMLESS = (
    "client_advertise",
    "max_traced_msg_len",
    "trace_verbose",
    "trace_headers",
    "disable_sublist_cache",
    "no_fast_producer_stall",
    "max_closed_clients",
    "write_deadline",
    "connect_error_reports",
    "reconnect_error_reports",
    "no_system_account",
    "no_sys_acc",
)
_TLS = "put a TLS proxy in front for now"
_CLUSTER = "clusters come in a later version; start a single server"
_ACCOUNTS = "accounts come in a later version; use authorization with users or a token"
_ROTATE = "rotate the file with logrotate and `lakestream serve -sl reopen=PID`"
TOP_MISSING = {
    "accounts": _ACCOUNTS,
    "no_auth_user": _ACCOUNTS,
    "system_account": _ACCOUNTS,
    "system": _ACCOUNTS,
    "operator": _ACCOUNTS,
    "operators": _ACCOUNTS,
    "trusted": _ACCOUNTS,
    "trusted_keys": _ACCOUNTS,
    "resolver": _ACCOUNTS,
    "resolver_preload": _ACCOUNTS,
    "resolver_tls": _ACCOUNTS,
    "default_sentinel": _ACCOUNTS,
    "mappings": "subject mappings come in a later version",
    "maps": "subject mappings come in a later version",
    "cluster": _CLUSTER,
    "gateway": _CLUSTER,
    "leafnodes": _CLUSTER,
    "leaf": _CLUSTER,
    "default_js_domain": _CLUSTER,
    "websocket": "WebSocket comes in a later version",
    "mqtt": "",
    "tls": _TLS,
    "allow_non_tls": _TLS,
    "https": _TLS,
    "https_port": _TLS,
    "ocsp": _TLS,
    "ocsp_cache": _TLS,
    "proxy_protocol": "",
    "proxies": "",
    "syslog": "log to stderr or to log_file",
    "remote_syslog": "log to stderr or to log_file",
    "log_size_limit": _ROTATE,
    "logfile_size_limit": _ROTATE,
    "log_max_num": _ROTATE,
    "logfile_max_num": _ROTATE,
    "prof_port": "use py-spy on the process",
    "profiler_port": "use py-spy on the process",
    "max_subscription_tokens": "",
    "max_sub_tokens": "",
    "write_timeout": "a slow client is closed at max_pending",
    "no_header_support": "headers are always there",
    "feature_flags": "",
}
"""Keys of nats-server that would change what clients see: refused until they work."""
