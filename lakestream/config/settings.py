"""The keys of nats.conf and the options that they set.

Belongs here: the tables of keys, the conversion of values, and the keys that nats-server knows and this server does
not: those that change behaviour are rejected, harmless ones get a warning. The grammar is in conf.py, the options in
options.py; larger blocks are in cluster.py, websocket.py, leafnodes.py, remote.py, tls.py, operators.py, accounts.py
and users.py.
"""

from __future__ import annotations

from typing import Any

from lakestream import extras
from lakestream.config.account_options import User
from lakestream.config.accounts import as_accounts, as_mappings, settle
from lakestream.config.callout import as_callout
from lakestream.config.cluster import as_cluster
from lakestream.config.conf import Item, load
from lakestream.config.errors import StartError
from lakestream.config.leafnodes import as_leafnodes
from lakestream.config.operators import OPERATOR_KEYS, settle_operators
from lakestream.config.options import (
    MAX_CONSOLE_HISTORY_NS,
    SECOND,
    AuditOptions,
    ConsoleOptions,
    LakeOptions,
    Options,
    OtelOptions,
    PostgresOptions,
    SqlOptions,
)
from lakestream.config.remote import as_remotes
from lakestream.config.tls import as_ocsp, as_ocsp_cache, as_tls
from lakestream.config.users import as_permissions, as_users, check_names, with_default
from lakestream.config.values import (
    INT32,
    INT64,
    LOGIN,
    Convert,
    Rule,
    address,
    as_boolean,
    as_bytes,
    as_duration,
    as_limit,
    as_map,
    as_number,
    as_pause,
    as_port,
    as_positive_duration,
    as_positive_size,
    as_size,
    as_text,
    as_texts,
    converted,
    expected,
    find,
    go_kind,
    not_served,
    number_in,
    size_below,
    workers_of,
)
from lakestream.config.websocket import as_websocket
from lakestream.lake.errors import BadPolicy, UnsupportedLake
from lakestream.lake.storage import paths
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import PUBLIC_KINDS, is_public
from lakestream.protocol.subjects import is_literal

MIN_LAME_DUCK_NS = 30 * SECOND

_MAX_TOKENS = 255
"""Maximum of max_subscription_tokens in nats-server."""


def read_settings(file: str, *, store_dir_given: bool = False) -> dict[str, Any]:
    """Read a configuration file.

    Args:
        store_dir_given: the command line has a store directory, so that the file may have none.

    Returns:
        Values by the names of `Options`; `jetstream` as a dict of `JetStreamOptions` fields plus `enabled`.

    Raises:
        StartError: the file cannot be read; as `ConfError` with file and line: its text or a setting is wrong.
    """
    import hashlib  # several ms; needed with a file only

    items = load(file)
    values: dict[str, Any] = {"warnings": [], "notices": []}
    if not items:
        values["notices"].append(f"{file}: config has no values or is empty")
    values |= converted(items, TOP, harmless=TOP_HARMLESS, missing=TOP_MISSING)
    if "accounts" in values:
        settle(items, values)
    settle_operators(values)
    if {"remote", "remotes"} <= {key.lower() for key in items}:
        raise find(items, "remote").error('there is also "remotes": write all remotes there')
    store_dir = values.pop("store_dir", None)
    if store_dir is not None:
        jetstream = values.setdefault("jetstream", {"enabled": False})
        if jetstream.get("store_dir"):
            raise find(items, "store_dir").error("Duplicate 'store_dir' configuration")
        jetstream["store_dir"] = store_dir
    if store_dir_given and values.get("jetstream", {}).get("store_dir"):
        block = items if store_dir is not None else as_map("jetstream", find(items, "jetstream"))
        raise next(item for key, item in block.items() if key.lower() in _STORE_DIR).error(
            "Duplicate 'store_dir' configuration"
        )
    with open(file, "rb") as stream:
        values["config_digest"] = "sha256:" + hashlib.sha256(stream.read()).hexdigest()
    values["warnings"], values["notices"] = tuple(values["warnings"]), tuple(values["notices"])
    return values


def _no_number(key: str, item: Item) -> None:
    """Reject a number where only a duration with a unit will do."""
    if not isinstance(item.value, str) and item.raw[-1:] != "m":
        raise expected(key, item, 'a duration such as "30s"')


def _lame_duck(key: str, item: Item) -> int:
    _no_number(key, item)
    duration = as_duration(key, item)
    if duration < MIN_LAME_DUCK_NS:
        raise item.error(f"invalid {key} of {duration // SECOND}s, minimum is 30 seconds")
    return duration


def _lame_duck_grace(key: str, item: Item) -> int:
    _no_number(key, item)
    duration = as_duration(key, item)
    if duration < 0:
        raise item.error(f"invalid {key}, needs to be positive")
    return duration


def _interval(option: str, default_ns: int) -> Convert:
    """Return the converter of a duration; 0 means the default. A number of seconds leaves a notice."""

    def convert(key: str, item: Item) -> dict[str, Any]:
        values: dict[str, Any] = {option: as_pause(key, item) or default_ns}
        if not isinstance(item.value, str) and item.raw[-1:] != "m":
            wrong = f'invalid use of field "{key}": {key} should be converted to a duration'
            values["notices"] = [f"{item.file}:{item.line}:{item.column}: {wrong}"]
        return values

    return convert


def _write_timeout(key: str, item: Item) -> bool:
    """Return True if a client that is slower than write_deadline stays while it takes anything."""
    word = as_text(key, item)
    if word not in ("default", "close", "retry"):
        raise item.error("write_timeout must be 'default', 'close' or 'retry'")
    return word == "retry"


PROXY: dict[str, Rule] = {**dict.fromkeys(("key", "public_key"), ("key", lambda key, item: _proxy_key(item)))}


def _proxy_key(item: Item) -> str:
    if not isinstance(item.value, str) or not is_public(item.value, *PUBLIC_KINDS):
        raise item.error(f"invalid proxy key {quoted(str(item.value))}")
    return item.value


def _proxies(key: str, item: Item) -> tuple[str, ...]:
    """Return the public keys of proxies that are trusted."""
    if not isinstance(item.value, dict):
        raise item.error(f"expected proxies to be a map/struct, got {go_kind(item.value)}")
    values = converted(item.value, {"trusted": ("trusted", _trusted)})
    return tuple(values.get("trusted", ()))


def _trusted(key: str, item: Item) -> tuple[str, ...]:
    if not isinstance(item.value, list):
        raise item.error(f"expected proxies' trusted field to be an array, got {go_kind(item.value)}")
    keys: list[str] = []
    for entry in item.value:
        if not isinstance(entry.value, dict):
            raise entry.error(f"expected proxies' trusted entry to be a map/struct, got {go_kind(entry.value)}")
        keys += filter(None, [converted(entry.value, PROXY).get("key", "")])
    return tuple(keys)


def _default_domains(key: str, item: Item) -> tuple[tuple[str, str], ...]:
    """Return pairs of account and domain."""
    if not isinstance(item.value, dict):
        raise item.error(f"error default_js_domain config: unsupported type {go_kind(item.value)}")
    for name, entry in item.value.items():
        domain = as_text(name, entry)
        if not domain:
            raise not_served(key, entry, "the API without a domain does not cross leaf connections; name the domain")
        if not is_literal(domain.encode()) or "." in domain:
            raise entry.error(f"default_js_domain: {quoted(domain)} is not a valid domain")
    return tuple((name, str(entry.value)) for name, entry in item.value.items())


_NOT_TURNED_ON = {
    "js_ack_fc_v2": "subjects of acks keep the form that all clients know",
    "js_api_reply_v2": "answers of the API keep the form that all clients know",
    "js_snapshot_sources": "snapshots keep the form that all releases can restore",
}
"""Features of nats-server that are off by default and change what others see, with the reason why they stay off."""


def _feature_flags(key: str, item: Item) -> dict[str, Any]:
    """Check the flags; those that concern nothing here may have any value."""
    if not isinstance(item.value, dict):
        raise item.error(f"error parsing feature flags: unsupported type {go_kind(item.value)}")
    for name, entry in item.value.items():
        if not isinstance(entry.value, bool):
            raise entry.error(f"error parsing feature flag {quoted(name)}: expected bool, got {go_kind(entry.value)}")
        if entry.value and name in _NOT_TURNED_ON:
            raise not_served(name, entry, _NOT_TURNED_ON[name])
    return {}


def _subscription_tokens(key: str, item: Item) -> int:
    tokens = as_number(key, item)
    if tokens > _MAX_TOKENS:
        raise item.error(f"{key} value is too big")
    if tokens < 0:
        raise item.error(f"{key} value can not be negative")
    return tokens


def _block(kind: str, item: Item) -> dict[str, Item]:
    if not isinstance(item.value, dict):
        raise item.error(f"Expected {kind} to be a map, got {go_kind(item.value)}")
    return item.value


def _gateway(key: str, item: Item) -> dict[str, Any]:
    """Refuse superclusters. An empty block says nothing."""
    if _block("gateway", item):
        raise not_served(key, item, INSTEAD_OF_GATEWAYS)
    return {}


def _mqtt(key: str, item: Item) -> Any:
    """Convert the block by its package. An empty one says nothing."""
    if not _block("mqtt", item):
        return None
    try:
        return extras.load("lakestream.mqtt", "as_mqtt", "mqtt", "mqtt")(key, item)
    except extras.ExtraMissing as error:
        raise item.error(str(error)) from None


def _server_name(key: str, item: Item) -> str:
    name = as_text(key, item)
    if any(char.isspace() for char in name):
        raise item.error("server name cannot contain spaces")
    return name


def _base_path(key: str, item: Item) -> str:
    path = as_text(key, item).strip("/")
    return f"/{path}" if path else ""


def _workers(key: str, item: Item) -> int:
    try:
        return workers_of(item.raw if isinstance(item.value, bool) else str(item.value))
    except ValueError as error:
        raise item.error(f"invalid {key}: {error}") from None


def _tags(key: str, item: Item) -> tuple[str, ...]:
    if isinstance(item.value, str):
        return tuple(item.value.split(","))
    if not isinstance(item.value, list):
        raise item.error(f"error parsing tags: unsupported type {go_kind(item.value)}")
    return tuple(as_text(key, tag) for tag in item.value)


def _metadata(key: str, item: Item) -> dict[str, str]:
    if not isinstance(item.value, dict):
        raise item.error(f"error parsing metadata: unsupported type {go_kind(item.value)}")
    return as_texts(key, item)


# ---------------------------------------------------------------------- authorization


def _auth_timeout(key: str, item: Item) -> int:
    if isinstance(item.value, str):
        try:
            parse_duration(item.value)
        except ValueError:
            wrong = f"error parsing authorization config, 'timeout' time: invalid duration \"{item.value}\""
            raise item.error(wrong) from None
    return as_positive_duration(key, item)


AUTHORIZATION: dict[str, Rule] = {
    **LOGIN,
    "token": ("token", as_text),
    "timeout": ("auth_timeout_ns", _auth_timeout),
    "users": ("users", as_users),
    **dict.fromkeys(("default_permissions", "default_permission", "permissions"), ("permissions", as_permissions)),
    **dict.fromkeys(("auth_callout", "auth_hook"), ("callout", as_callout)),
    "proxy_required": ("proxy_required", as_boolean),
}


def _authorization(key: str, item: Item) -> dict[str, Any]:
    values = converted(as_map(key, item), AUTHORIZATION)
    user, password = values.pop("user", ""), values.pop("password", "")
    if user and "users" in values:
        raise item.error("Can not have a single user/pass and a users array")
    if values.get("token") and (user or "users" in values):
        raise item.error("Cannot have a user/pass and token")
    if password and not user:
        raise item.error("a password requires a user")
    needs_proxy = values.get("proxy_required", False)
    permissions = values.pop("permissions", None)
    if "users" in values:
        check_names(item, values["users"], set())
        values["users"] = with_default(values["users"], permissions)
    elif permissions is not None:
        values["warnings"] = [
            f'{item.file}:{item.line}: "permissions" has no effect here: it applies to the users in `users`'
        ]
    return values | (
        {"users": (User(user, password, proxy_required=needs_proxy),), "single_user": True} if user else {}
    )


def _system_account(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error("system account name must be a string")
    return item.value


# ---------------------------------------------------------------------- jetstream


def _sync_interval(key: str, item: Item) -> dict[str, Any]:
    """Convert sync_interval. `always` is the default here: every ack waits for the disk. A duration relaxes that."""
    if isinstance(item.value, str) and item.value.lower() == "always":
        return {"sync_always": True, "shows_sync_always": True}
    return {"sync_always": False, "shows_sync_always": False, "sync_interval_ns": as_positive_duration(key, item)}


_RESERVED_DOMAINS = ("ACK", "FC", "SNAPSHOT", "EVENT")
"""Names in a domain's place in other subjects of JetStream (`$JS.ACK.…`); nats-server 2.15.3 refuses them."""


def _domain(key: str, item: Item) -> str:
    name = as_text(key, item)
    if any(char in ".*>" for char in name):
        raise StartError("invalid domain name: may not contain ., * or >")
    if any(char.isspace() for char in name):
        raise StartError(f'invalid domain name: derived "$JS.{name}.API.>" is not a valid subject')
    if name in _RESERVED_DOMAINS:
        raise StartError(f'invalid domain name: "{name}" is reserved')
    return name


def _cipher(key: str, item: Item) -> str:
    name = as_text(key, item).lower()
    if name not in ("chacha", "chachapoly", "aes"):
        raise item.error(f'Unknown cipher type: "{name}"')
    return "aes" if name == "aes" else "chachapoly"


def _key(key: str, item: Item) -> str:
    text = as_text(key, item)
    if "\n" in text:
        raise item.error(f"{key} may not have line breaks")
    return text


_STORE_DIR = ("store_dir", "storedir", "store")
BATCH_LIMITS: dict[str, Rule] = {
    "max_inflight_per_stream": ("batches_per_stream", as_limit),
    "max_inflight_total": ("batches_total", as_limit),
    "max_msgs": ("batch_max_msgs", as_limit),
    "timeout": ("batch_timeout_ns", as_pause),
}
LIMITS: dict[str, Rule] = {
    "max_request_batch": ("max_request_batch", as_limit),
    "max_ack_pending": ("max_ack_pending", as_limit),
    "duplicate_window": ("duplicate_window_ns", as_positive_duration),
    "default_max_consumers": ("default_max_consumers", number_in(-1, INT32)),
    "batch": ("*", lambda key, item: converted(as_map(key, item), BATCH_LIMITS)),
}
JETSTREAM: dict[str, Rule] = {
    **dict.fromkeys(("enabled", "enable"), ("enabled", as_boolean)),
    **dict.fromkeys(_STORE_DIR, ("store_dir", as_text)),
    **dict.fromkeys(
        ("max_memory_store", "max_mem_store", "max_mem"),
        ("max_memory", lambda key, item: as_size("max_mem_store", item)),
    ),
    **dict.fromkeys(("max_file_store", "max_file"), ("max_file", lambda key, item: as_size("max_file_store", item))),
    "max_index_memory": ("max_index_memory", as_positive_size),
    "scrub_rate": ("scrub_rate", lambda key, item: max(as_size(key, item), 0)),
    "scrub_interval": ("scrub_interval_ns", as_positive_duration),
    "close_idle_streams": ("close_idle_ns", as_pause),
    "balance_workers": ("balance_workers", as_boolean),
    "verify_rate": ("verify_rate", lambda key, item: max(as_size(key, item), 0)),
    "max_verifications": ("max_verifications", number_in(0, 64)),
    "domain": ("domain", _domain),
    **dict.fromkeys(("sync", "sync_interval"), ("*", _sync_interval)),
    "strict": ("strict", as_boolean),
    "request_queue_limit": ("request_queue_limit", as_limit),
    "info_queue_limit": ("info_queue_limit", as_limit),
    "max_buffered_msgs": ("max_buffered_msgs", as_limit),
    "max_buffered_size": ("max_buffered_size", lambda key, item: max(as_size(key, item), 0)),
    "max_buffered_total": ("max_buffered_total", as_positive_size),
    "limits": ("*", lambda key, item: converted(as_map(key, item), LIMITS, harmless=("max_ha_assets",))),
    "unique_tag": ("unique_tag", as_text),
    "cipher": ("cipher", _cipher),
    **dict.fromkeys(("key", "ek", "encryption_key"), ("encryption_key", _key)),
    **dict.fromkeys(("prev_key", "prev_ek", "prev_encryption_key"), ("prev_encryption_key", _key)),
}
JETSTREAM_MISSING = {"tpm": "the key cannot be kept in a TPM; give it as `key`, from the environment or a file"}
JETSTREAM_HARMLESS = (
    "extension_hint",
    "max_outstanding_catchup",
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
    if not isinstance(item.value, dict):
        raise item.error(f"Expected map, bool or string to define JetStream, got {go_kind(item.value)}")
    block = item.value
    if any(name.lower() in _STORE_DIR and not isinstance(each.value, str) for name, each in block.items()):
        raise item.error('"store_dir" must be a string')  # at the block's place, as in nats-server
    values = {"enabled": True} | converted(block, JETSTREAM, harmless=JETSTREAM_HARMLESS, missing=JETSTREAM_MISSING)
    for size in ("max_memory", "max_file"):
        if values.get(size, 1) <= 0:
            del values[size]
    return values


# ---------------------------------------------------------------------- the lake, our own block


def _lake_url(key: str, item: Item) -> str:
    """Convert a directory or a URL of a cloud."""
    url = as_text(key, item)
    try:
        paths.root(url)
    except UnsupportedLake as error:
        raise item.error(str(error)) from None
    return url


def _lake_defaults(key: str, item: Item) -> dict[str, dict[str, str]]:
    """Convert patterns of stream names with the metadata of their streams."""
    from lakestream.lake.table import defaults  # with much of the lake, which a start without them does not need

    found = {}
    for pattern, block in as_map(key, item).items():
        metadata = {name: _as_metadata(name, value) for name, value in as_map(f"{key}.{pattern}", block).items()}
        try:
            found[pattern] = defaults.checked(metadata)
        except BadPolicy as error:
            raise block.error(f'"{key}" of "{pattern}": {error}') from None
    return found


def _as_metadata(key: str, item: Item) -> str:
    """Convert a value of metadata, whose values are texts."""
    return item.raw if isinstance(item.value, bool) else as_text(key, item)


def _catalogs(key: str, item: Item) -> tuple[str, ...]:
    """Convert an address of a catalog, or a list of them."""
    from lakestream.lake.catalogs.address import BadCatalog, parse_all  # needed by few servers

    found = tuple(as_text(key, each) for each in item.value) if isinstance(item.value, list) else (as_text(key, item),)
    try:
        return tuple(each.text for each in parse_all(found))
    except BadCatalog as error:
        raise item.error(str(error)) from None


def _iceberg(key: str, item: Item) -> str:
    if (found := as_text(key, item)) not in ("off", "v2", "v3"):
        raise item.error(f"{key} must be v3, v2 or off")
    return found


SPARK_CONNECT_PORT = 15002
"""Port of Spark Connect (15002), as in Spark."""
_connect_address = address("spark_connect_host", "spark_connect_port")


def _connect_token(key: str, item: Item) -> str:
    token = as_text(key, item)
    if not token or not token.isascii() or any(char.isspace() or char in ";/" for char in token):
        raise item.error(f"{key} must be ASCII text without blanks, ; and /, as it is a part of clients' URLs")
    return token


SPARK_CONNECT: dict[str, Rule] = {
    "listen": ("*", _connect_address),
    "token": ("spark_connect_token", _connect_token),
}


def _spark_connect(key: str, item: Item) -> dict[str, Any]:
    if isinstance(item.value, bool):
        return {"spark_connect_port": SPARK_CONNECT_PORT if item.value else 0}
    if not isinstance(item.value, dict):
        listen: dict[str, Any] = _connect_address(key, item)
        return listen
    return {"spark_connect_port": SPARK_CONNECT_PORT} | converted(as_map(key, item), SPARK_CONNECT)


def _encryption(key: str, item: Item) -> str:
    """Convert the word for who encrypts the tables."""
    word = as_text(key, item)
    if word not in ("storage", "parquet"):
        raise item.error(f"lake encryption {word!r} is not known; there are storage and parquet")
    return word


LAKE: dict[str, Rule] = {
    "enabled": ("enabled", as_boolean),
    "encryption": ("encryption", _encryption),
    "url": ("url", _lake_url),
    "seal_bytes": ("seal_bytes", as_positive_size),
    "seal_age": ("seal_age_ns", as_positive_duration),
    "retain_bytes": ("retain_bytes", as_bytes),
    "poll": ("poll_ns", as_positive_duration),
    "staged_grace": ("staged_grace_ns", as_pause),
    "staged_grace_bytes": ("staged_grace_bytes", as_bytes),
    "maintain_every": ("maintain_every_ns", as_pause),
    "defaults": ("defaults", _lake_defaults),
    "catalogs": ("catalogs", _catalogs),
    "iceberg": ("iceberg", _iceberg),
    "compactor_metrics": ("*", address("compactor_metrics_host", "compactor_metrics_port")),
    "spark_connect": ("*", _spark_connect),
}


def _lake(key: str, item: Item) -> LakeOptions:
    if isinstance(item.value, str):
        return LakeOptions(url=_lake_url(key, item))
    if isinstance(item.value, bool):
        return LakeOptions(enabled=item.value)
    return LakeOptions(**converted(as_map(key, item), LAKE))


# ---------------------------------------------------------------------- the log


def _syslog_address(key: str, item: Item) -> str:
    from lakestream.syslog import Syslog  # few servers need it

    try:
        Syslog(address := as_text(key, item))
    except ValueError as error:
        raise item.error(f"{key}: {error}") from error
    return address


def _log_format(key: str, item: Item) -> bool:
    """Return True for JSON."""
    if (word := as_text(key, item)) not in ("text", "json"):
        raise item.error(f"log format {word!r} is not known; there are text and json")
    return word == "json"


LOG: dict[str, Rule] = {"format": ("log_json", _log_format)}


def _log(key: str, item: Item) -> bool:
    return bool(converted(as_map(key, item), LOG).get("log_json", False))


# ---------------------------------------------------------------------- the console, our own block


def _hosts(key: str, item: Item) -> tuple[str, ...]:
    if not isinstance(item.value, list):
        return (as_text(key, item),)
    return tuple(as_text(key, each) for each in item.value)


def _history(key: str, item: Item) -> int:
    duration = as_duration(key, item)
    if not 0 <= duration <= MAX_CONSOLE_HISTORY_NS:
        raise item.error(f"{key} is a duration of at most 24h")
    return duration


CONSOLE: dict[str, Rule] = {
    "enabled": ("enabled", as_boolean),
    "allowed_hosts": ("allowed_hosts", _hosts),
    "without_certificate": ("without_certificate", as_boolean),
    "history": ("history_ns", _history),
}


def _console(key: str, item: Item) -> ConsoleOptions:
    if isinstance(item.value, bool):
        return ConsoleOptions(enabled=item.value)
    return ConsoleOptions(**converted(as_map(key, item), CONSOLE))


# ---------------------------------------------------------------------- SQL, our own block


def _queue_group(key: str, item: Item) -> str:
    group = as_text(key, item)
    if not group or any(char.isspace() or char in "*>" for char in group):
        raise item.error(f'{key} "{group}" is not the name of a queue group')
    return group


POSTGRES: dict[str, Rule] = {
    "listen": ("*", address("host", "port")),
    "tls": ("tls", as_tls),
    "max_connections": ("max_connections", number_in(1, 10_000)),
}


def _postgres(key: str, item: Item) -> PostgresOptions:
    return PostgresOptions(**converted(as_map(key, item), POSTGRES))


SQL: dict[str, Rule] = {
    "enabled": ("enabled", as_boolean),
    "queue_group": ("queue_group", _queue_group),
    "row_permissions": ("row_permissions", as_boolean),
    "mask_key": ("mask_key", as_text),
    "max_time": ("max_time_ns", as_positive_duration),
    "max_rows": ("max_rows", number_in(1, INT64)),
    "max_bytes": ("max_bytes", as_positive_size),
    "max_concurrent": ("max_concurrent", number_in(1, 64)),
    "max_account_concurrent": ("max_account_concurrent", number_in(1, 64)),
    "memory": ("memory", as_positive_size),
    "threads": ("threads", number_in(1, 64)),
    "batch_bytes": ("batch_bytes", as_positive_size),
    "window": ("window", number_in(1, 1024)),
    "ack_wait": ("ack_wait_ns", as_positive_duration),
    "flight": ("*", address("flight_host", "flight_port")),
    "postgres": ("postgres", _postgres),
}


def _sql(key: str, item: Item) -> SqlOptions:
    if isinstance(item.value, bool):
        return SqlOptions(enabled=item.value)
    return SqlOptions(**{"enabled": True} | converted(as_map(key, item), SQL))


# ---------------------------------------------------------------------- traces, our own block


def _endpoint(key: str, item: Item) -> str:
    url = as_text(key, item)
    if not url.startswith(("http://", "https://")):
        raise item.error(f'{key} must be the URL of an OTLP/HTTP collector, such as "http://127.0.0.1:4318"')
    return url


AUDIT: dict[str, Rule] = {
    "enabled": ("enabled", as_boolean),
    "max_bytes": ("max_bytes", as_positive_size),
    "max_age": ("max_age_ns", as_duration),
}


def _audit(key: str, item: Item) -> AuditOptions:
    if isinstance(item.value, bool):
        return AuditOptions(enabled=item.value)
    return AuditOptions(**{"enabled": True} | converted(as_map(key, item), AUDIT))


OTEL: dict[str, Rule] = {"endpoint": ("endpoint", _endpoint)}


def _otel(key: str, item: Item) -> OtelOptions:
    return OtelOptions(**converted(as_map(key, item), OTEL))


# ---------------------------------------------------------------------- the file

INSTEAD_OF_GATEWAYS = (
    "clusters are not joined to superclusters; connect them by leaf nodes, or mirror streams between them with "
    "`remotes` (docs/not-served.md#gateways)"
)

TOP: dict[str, Rule] = {
    "listen": ("*", address("host", "port")),
    "port": ("port", as_port),
    **dict.fromkeys(("host", "net"), ("host", as_text)),
    "server_name": ("server_name", _server_name),
    "http": ("*", address("http_host", "http_port")),
    **dict.fromkeys(("http_port", "monitor_port"), ("http_port", as_port)),
    "https": ("*", address("http_host", "https_port")),
    "https_port": ("https_port", as_port),
    "http_base_path": ("http_base_path", _base_path),
    "tls": ("tls", as_tls),
    "allow_non_tls": ("allow_non_tls", as_boolean),
    "ocsp": ("ocsp", as_ocsp),
    "ocsp_cache": ("ocsp_cache", as_ocsp_cache),
    "proxy_protocol": ("proxy_protocol", as_boolean),
    "authorization": ("*", _authorization),
    "accounts": ("accounts", as_accounts),
    **dict.fromkeys(("system_account", "system"), ("system_account", _system_account)),
    "no_auth_user": ("no_auth_user", as_text),
    **dict.fromkeys(("mappings", "maps"), ("mappings", as_mappings)),
    "max_payload": ("max_payload", size_below(1, Options().max_payload)),
    "no_header_support": ("no_header_support", as_boolean),
    "max_control_line": ("max_control_line", size_below(1, Options().max_control_line)),
    "max_pending": ("max_pending", number_in(1, INT64)),
    "max_pending_total": ("max_pending_total", number_in(1, INT64)),
    "max_incomplete_total": ("max_incomplete_total", number_in(1, INT64)),
    "write_deadline": ("*", _interval("write_deadline_ns", Options().write_deadline_ns)),
    "write_timeout": ("write_retry", _write_timeout),
    "feature_flags": ("*", _feature_flags),
    "default_js_domain": ("default_js_domain", _default_domains),
    "proxies": ("proxies", _proxies),
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", as_limit)),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", as_limit)),
    "ping_interval": ("*", _interval("ping_interval_ns", Options().ping_interval_ns)),
    "ping_max": ("ping_max", size_below(1, Options().ping_max)),
    **dict.fromkeys(("max_subscription_tokens", "max_sub_tokens"), ("max_subscription_tokens", _subscription_tokens)),
    "lame_duck_duration": ("lame_duck_duration_ns", _lame_duck),
    "lame_duck_grace_period": ("lame_duck_grace_ns", _lame_duck_grace),
    "debug": ("debug", as_boolean),
    "trace": ("trace", as_boolean),
    "logtime": ("logtime", as_boolean),
    "logtime_utc": ("logtime_utc", as_boolean),
    "log": ("log_json", _log),
    **dict.fromkeys(("log_file", "logfile"), ("log_file", as_text)),
    **dict.fromkeys(("log_size_limit", "logfile_size_limit"), ("log_size_limit", as_limit)),
    **dict.fromkeys(("log_max_num", "logfile_max_num"), ("log_max_num", as_limit)),
    "syslog": ("syslog", as_boolean),
    "remote_syslog": ("remote_syslog", _syslog_address),
    **dict.fromkeys(("pid_file", "pidfile"), ("pid_file", as_text)),
    "ports_file_dir": ("ports_file_dir", as_text),
    "server_tags": ("server_tags", _tags),
    "server_metadata": ("server_metadata", _metadata),
    "workers": ("workers", _workers),
    "jetstream": ("jetstream", _jetstream),
    **dict.fromkeys(("store_dir", "storedir"), ("store_dir", as_text)),
    "cluster": ("cluster", as_cluster),
    "client_advertise": ("client_advertise", as_text),
    **dict.fromkeys(("websocket", "ws"), ("websocket", as_websocket)),
    **dict.fromkeys(("leafnodes", "leaf"), ("leafnodes", as_leafnodes)),
    "lake": ("lake", _lake),
    "console": ("console", _console),
    "sql": ("sql", _sql),
    "otel": ("otel", _otel),
    "audit": ("audit", _audit),
    **dict.fromkeys(("remote", "remotes"), ("remotes", as_remotes)),
    "gateway": ("*", _gateway),
    "mqtt": ("mqtt", _mqtt),
    **OPERATOR_KEYS,
}
TOP_HARMLESS = (
    "max_traced_msg_len",
    "trace_verbose",
    "trace_headers",
    "disable_sublist_cache",
    "no_fast_producer_stall",
    "max_closed_clients",
    "connect_error_reports",
    "reconnect_error_reports",
    "no_system_account",
    "no_system",
    "no_sys_acc",
)
TOP_MISSING = {
    **dict.fromkeys(("prof_port", "prof_block_rate"), "use py-spy on the process"),
}
"""Keys of nats-server that would change what clients see: rejected until they are supported."""
