"""The options of a server, from its command line and configuration file.

Belongs here: precedence (flag, then file, then default), defaults that depend on the machine, checks between settings,
and what a reload may change. The readers of the file are imported when there is one: a start without a configuration
file takes 15 ms less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lakestream.config.account_options import User
from lakestream.config.errors import StartError
from lakestream.config.options import (
    FREE_PORT,
    LOOPBACK,
    MIB,
    NOT_BOUND,
    SECOND,
    BoundPorts,
    ClusterOptions,
    ConsoleOptions,
    Flags,
    JetStreamOptions,
    LakeOptions,
    LeafOptions,
    Options,
    RemoteOptions,
    TlsOptions,
    WebSocketOptions,
)
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.durations import format_duration

RELOADABLE = frozenset(
    {
        "users",
        "single_user",
        "accounts",
        "mappings",
        "token",
        "tls",
        "auth_timeout_ns",
        "max_payload",
        "max_control_line",
        "client_advertise",
        "max_pending",
        "max_pending_total",
        "max_incomplete_total",
        "max_connections",
        "max_subscriptions",
        "max_subscription_tokens",
        "ping_interval_ns",
        "ping_max",
        "write_deadline_ns",
        "write_retry",
        "lame_duck_duration_ns",
        "lame_duck_grace_ns",
        "debug",
        "trace",
        "logtime",
        "logtime_utc",
        "log_json",
        "log_file",
        "server_tags",
        "server_metadata",
        "remotes",
        "config_digest",
        "warnings",
        "notices",
    }
)
"""Options that SIGHUP may change in a running server."""


LARGE_PAYLOAD = 8 * MIB
"""Size of messages above which a warning is logged, as in nats-server."""

_ADDRESSES = ("host", "port", "http_host", "http_port", "https_port")
_LARGE = "Maximum payloads over 8.00 MB are generally discouraged and could lead to poor performance"


def load(flags: Flags) -> Options:
    """Return the settings of the command line and the configuration file that it names.

    Raises:
        StartError: the file is invalid (with file and line), or flag and file contradict each other.
    """
    from_file: dict[str, Any] = {}
    if flags.config:
        from lakestream.config.settings import read_settings

        from_file = read_settings(flags.config, store_dir_given=flags.store_dir is not None)
    values: dict[str, Any] = {name: value for name, value in from_file.items() if name in Options.__struct_fields__}
    values |= {
        name: getattr(flags, name)
        for name in (*_ADDRESSES, "server_name", "client_advertise", *_LOGGING)
        if getattr(flags, name) is not None
    }
    if flags.workers is not None:
        from lakestream.config.values import workers_of

        try:
            values["workers"] = workers_of(flags.workers)
        except ValueError as error:
            raise StartError(f"invalid --workers: {error}") from None
    _credentials(flags, values)
    values["tls"] = tls = _tls(flags, values.get("tls"))
    if flags.local and not _asks_who(values):
        values.setdefault("host", LOOPBACK)
    if tls is not None:
        values.setdefault("auth_timeout_ns", tls.timeout_ns + SECOND)
    values["jetstream"] = _jetstream(flags, from_file.get("jetstream"))
    values["lake"] = _lake(flags, values.get("lake", LakeOptions()), values["jetstream"])
    if flags.no_console:
        values["console"] = msgspec.structs.replace(values.get("console", ConsoleOptions()), enabled=False)
    values["cluster"] = cluster = _cluster(flags, values.get("cluster", ClusterOptions()))
    websocket = values.get("websocket", WebSocketOptions())
    mqtt = values.get("mqtt")
    if mqtt is not None and mqtt.port and values.get("workers", 1) == 1:  # else its sessions are in one process alone
        values["websocket"] = msgspec.structs.replace(websocket, serves_mqtt=True)
    blocks = (cluster, websocket, values.get("leafnodes", LeafOptions()), mqtt)
    inner = [line for block in blocks if block is not None for line in block.warnings]
    values["warnings"] = (*flags.warnings, *values.get("warnings", ()), *inner)
    if values.get("max_payload", 0) > LARGE_PAYLOAD:
        values["warnings"] += (_LARGE,)
    options = Options(flags=flags, config_file=flags.config, **values)
    if options.default_js_domain:
        from lakestream.config.accounts import with_default_domains

        options = with_default_domains(options)
    _check(options)
    return options


_LOGGING = (
    *("debug", "trace", "logtime", "logtime_utc", "log_file", "log_size_limit", "syslog", "remote_syslog"),
    *("pid_file", "ports_file_dir"),
)


def reload(
    options: Options, bound: BoundPorts = NOT_BOUND, share: Callable[[Options], Options] | None = None
) -> tuple[Options, list[str]]:
    """Read the configuration file again under the same command line.

    Args:
        options: those in force.
        bound: ports of the listeners. Such a port and `-1` are the same, whichever the file had before.
        share: returns the part of the settings that concerns this process; None: all do.

    Returns:
        The new options and the names of those that changed.

    Raises:
        StartError: the file is invalid, or it changes what only a restart can change; the old options stay in force.
    """
    if not options.config_file:
        raise StartError("there is no configuration file to reload; start with -c FILE")
    new = load(options.flags)
    return reloadable(options, share(new) if share is not None else new, bound)


def reloadable(options: Options, new: Options, bound: BoundPorts = NOT_BOUND) -> tuple[Options, list[str]]:
    """Return `new` as a server with `options` takes it, perhaps of another file, and the names of those that change.

    Raises:
        StartError: it changes what only a restart can change.
    """
    new = msgspec.structs.replace(new, flags=options.flags, config_file=options.config_file)
    # Default size limits of JetStream follow the machine's free memory and disk: not a change.
    if new.jetstream is not None and options.jetstream is not None:
        same = msgspec.structs.replace(
            new.jetstream, max_memory=options.jetstream.max_memory, max_file=options.jetstream.max_file
        )
        if same == options.jetstream:
            new = msgspec.structs.replace(new, jetstream=options.jetstream)
    if _is_same_port(options.port, new.port, bound.clients):
        new = msgspec.structs.replace(new, port=options.port)
    for block in ("cluster", "leafnodes", "websocket"):
        old, now = getattr(options, block), getattr(new, block)
        if _is_same_port(old.port, now.port, getattr(bound, block)):
            new = msgspec.structs.replace(new, **{block: msgspec.structs.replace(now, port=old.port)})
    changed = [name for name in Options.__struct_fields__ if getattr(new, name) != getattr(options, name)]
    old_rate, new_rate = (each.tls.rate_limit if each.tls is not None else 0 for each in (options, new))
    if old_rate != new_rate:
        raise StartError(f"config reload not supported for TLSRateLimit: old={old_rate}, new={new_rate}")
    for name in changed:
        if name == "allow_non_tls":
            old, now = (str(each.allow_non_tls).lower() for each in (options, new))
            raise StartError(f"config reload not supported for AllowNonTLS: old={old}, new={now}")
        if name == "cluster":
            from lakestream.config import cluster as cluster_settings

            cluster_settings.check_reload(options.config_file, options.cluster, new.cluster)
        elif name == "accounts":
            # The first account added, and the last one removed, change whether the global account has streams.
            if options.jetstream is not None and bool(options.accounts) != bool(new.accounts):
                raise StartError(
                    f"{new.config_file}: with JetStream a reload cannot add the first account or remove the last one; "
                    "restart the server for that"
                )
        elif name == "operators":
            from lakestream.config import operators as operator_settings

            operator_settings.check_reload(options.operators, new.operators)
        elif name == "callout":
            raise StartError("config reload not supported for AuthCallout; restart the server for that")
        elif name == "websocket":
            from lakestream.config import websocket as websocket_settings

            websocket_settings.check_reload(options.websocket, new.websocket)
        elif name == "leafnodes":
            from lakestream.config import leafnodes as leaf_settings

            leaf_settings.check_reload(options.leafnodes, new.leafnodes)
        elif name not in RELOADABLE:
            raise StartError(f"{options.config_file}: a reload cannot change {name!r}; restart the server for that")
    return new, changed


def _is_same_port(old: int, new: int, bound: int) -> bool:
    return old == new or {old, new} == {FREE_PORT, bound}


def _credentials(flags: Flags, values: dict[str, Any]) -> None:
    """Let --user/--pass and --auth replace the credentials of the global account in the file."""
    flag = "--user" if flags.user is not None else "--auth" if flags.token is not None else ""
    if flag and any(account.users for account in values.get("accounts", ())):
        what = "a token" if flag == "--auth" else "a single user/pass"
        raise StartError(f"Can not have {what} and accounts: leave out {flag}, or the users of the accounts")
    if flags.user is not None:
        values["users"] = (User(flags.user, flags.password or ""),)
        values["single_user"] = True
        values["token"] = ""
    elif flags.password is not None:
        raise StartError("--pass needs --user")
    if flags.token is not None:
        if flags.user is not None:
            raise StartError("--auth cannot be used together with --user")
        values["token"] = flags.token
        values["users"] = ()
        values["single_user"] = False


def _asks_who(values: dict[str, Any]) -> bool:
    """Return True if clients need a login."""
    tls = values["tls"]
    return (
        any(values.get(name) for name in ("users", "token", "operators", "callout"))
        or any(account.users for account in values.get("accounts", ()))
        or (tls is not None and (tls.verify or tls.verify_and_map))
    )


def _tls(flags: Flags, from_file: TlsOptions | None) -> TlsOptions | None:
    """Return TLS for clients. Flags replace the certificate and the verification of the file."""
    given = (flags.tls_cert, flags.tls_key, flags.tls_ca)
    if flags.tls is False:
        return None
    if not flags.tls and not flags.tls_verify and not any(given):
        return from_file
    if not flags.tls_cert:
        raise StartError("TLS Server certificate must be present and valid")
    if not flags.tls_key:
        raise StartError("TLS Server private key must be present and valid")
    from lakestream.config.tls import check_files

    cert_file, key_file, ca_file = (name or "" for name in given)
    timeout_ns = from_file.timeout_ns if from_file is not None else TlsOptions().timeout_ns
    tls = TlsOptions(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        verify=flags.tls_verify is True,
        verify_optional=flags.tls_verify == "optional",
        timeout_ns=timeout_ns,
    )
    try:
        check_files(tls)
    except ValueError as error:
        raise StartError(str(error)) from error
    return tls


def _jetstream(flags: Flags, from_file: dict[str, Any] | None) -> JetStreamOptions | None:
    values: dict[str, Any] = dict(from_file or {})
    enabled = values.pop("enabled", from_file is not None)
    if flags.jetstream is not None:
        enabled = flags.jetstream
    if flags.store_dir is not None:
        values["store_dir"] = flags.store_dir
    if not enabled:
        return None
    if not values.get("store_dir"):
        import tempfile  # several ms at every start; few servers need it

        values["store_dir"] = os.path.join(tempfile.gettempdir(), "lakestream")
        values["temporary_store"] = True
    values["store_dir"] = os.path.abspath(values["store_dir"])
    values.setdefault("max_memory", default_max_memory())
    if "max_file" not in values:
        values["max_file"] = default_max_file(values["store_dir"])
    return JetStreamOptions(**values)


def _lake(flags: Flags, lake: LakeOptions, jetstream: JetStreamOptions | None) -> LakeOptions:
    if flags.lake is not None and jetstream is None:
        raise StartError("--lake needs JetStream: add -js, or a jetstream block to the configuration file")
    url = lake.url if flags.lake is None else flags.lake
    if url and "://" not in url:
        url = os.path.abspath(url)
    enabled = lake.enabled if flags.no_lake is None else not flags.no_lake
    if flags.no_lake and flags.lake is not None:
        raise StartError("--lake cannot be used together with --no-lake")
    if jetstream is not None and enabled:
        from lakestream.lake.errors import UnsupportedLake  # with addresses of object stores
        from lakestream.lake.storage import paths

        try:
            paths.root(url or os.path.join(jetstream.store_dir, "lake"))
        except UnsupportedLake as error:
            raise StartError(str(error)) from None
    return msgspec.structs.replace(lake, url=url, enabled=enabled)


def _cluster(flags: Flags, cluster: ClusterOptions) -> ClusterOptions:
    given = (flags.cluster, flags.cluster_name, flags.routes, flags.cluster_advertise)
    if cluster == ClusterOptions() and all(value is None for value in given):
        return cluster
    from lakestream.config.cluster import with_flags

    return with_flags(flags, cluster)


def _check_workers(options: Options) -> None:
    """Check that the server can be several processes. Raises StartError."""
    if options.cluster.port:
        raise StartError(
            "`workers` and a `cluster` block cannot be used together: run one server for each node, with `workers: 1`, "
            "and several nodes on one machine if it has many cores"
        )
    if options.operators is not None and options.operators.resolver.kind not in ("memory", "url"):
        raise StartError(
            "`workers` cannot be used with a resolver that keeps account JWTs in a directory: use `resolver: MEMORY` "
            "with `resolver_preload`, or a URL resolver, or `workers: 1`"
        )


def _check(options: Options) -> None:
    if options.workers > 1:
        _check_workers(options)
    if options.cluster.port and options.jetstream is not None:
        if not options.server_name:
            raise StartError("jetstream cluster requires `server_name` to be set")
        if not options.cluster.name:
            raise StartError("jetstream cluster requires `cluster.name` to be set")
    _check_encryption(options)
    if options.remotes:
        own = options.jetstream.domain if options.jetstream is not None else ""
        _check_remotes(options.remotes, [account.name for account in options.accounts], own)
    if any(char.isspace() for char in options.server_name):
        raise StartError("server name cannot contain spaces")
    if options.lame_duck_grace_ns >= options.lame_duck_duration_ns:
        grace, duration = map(format_duration, (options.lame_duck_grace_ns, options.lame_duck_duration_ns))
        raise StartError(
            f"lame duck grace period ({grace}) should be strictly lower than lame duck duration ({duration})"
        )
    if options.operators is not None:
        from lakestream.config.operators import check_operators

        check_operators(options, options.operators)
    elif options.accounts or options.system_account or options.no_auth_user or options.callout is not None:
        from lakestream.config.account_checks import check_options

        check_options(options)
    if options.leafnodes != LeafOptions():
        from lakestream.config.leafnodes import check_leafnodes

        check_leafnodes(options)
    if options.websocket.port:
        from lakestream.config.websocket import check_websocket

        check_websocket(options)
    if options.mqtt is not None:
        options.mqtt.check(options)
    if options.max_payload > options.max_pending:
        raise StartError(
            f"max_payload ({options.max_payload}) cannot be higher than max_pending ({options.max_pending})"
        )


def _check_encryption(options: Options) -> None:
    """Check that somebody encrypts everything if the store is encrypted. Raises StartError."""
    jetstream = options.jetstream
    if jetstream is None:
        return
    if jetstream.prev_encryption_key and not jetstream.encryption_key:
        raise StartError("jetstream { prev_key } needs `key`, the new one")
    if jetstream.encryption_key and options.lake.enabled and not options.lake.encryption:
        raise StartError(
            "jetstream { key } encrypts the store, and not the lake's tables: say `lake { encryption: parquet }`, or "
            "`storage` if the lake's disk or bucket encrypts them, or turn the lake off with `lake: false`"
        )
    if options.lake.encryption == "parquet":
        if not jetstream.encryption_key:
            raise StartError("lake { encryption: parquet } needs jetstream { key }, which wraps the keys of tables")
        if "://" in options.lake.url:
            raise StartError(
                "lake { encryption: parquet } needs a lake in a directory; say `storage` and let the "
                "bucket encrypt (SSE-KMS)"
            )
        if options.lake.iceberg:
            raise StartError(
                "lake { encryption: parquet } and `iceberg` exclude each other: Iceberg's metadata have "
                "bounds of columns, and few of its readers know encrypted Parquet"
            )


def _check_remotes(remotes: Iterable[RemoteOptions], accounts: Iterable[str], domain: str) -> None:
    """Check the remotes against other settings. Raises StartError.

    Args:
        accounts: the configured accounts.
        domain: of this server's JetStream.
    """
    known, seen = {GLOBAL_ACCOUNT, *accounts}, set[tuple[str, str]]()
    for remote in remotes:
        if remote.account not in known:
            raise StartError(f"remote {remote.name!r}: there is no account {remote.account!r}")
        if remote.leaf:
            if not domain:
                raise StartError(
                    f"remote {remote.name}: set jetstream.domain, by which its mirrors address this server"
                )
            continue
        if remote.domain == domain:
            raise StartError(
                f"remote {remote.name!r}: this server's JetStream uses domain {domain} too; choose another"
            )
        if (remote.account, remote.domain) in seen:
            raise StartError(
                f"remote {remote.name!r}: account {remote.account} has another remote with domain {remote.domain}"
            )
        seen.add((remote.account, remote.domain))


def default_max_memory() -> int:
    """Return the default limit of memory streams in bytes: 75 % of the machine's memory, 256 MiB if that is unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 256 * MIB
    return total // 4 * 3


def default_max_file(store_dir: str) -> int:
    """Return the default limit of file streams in bytes: 75 % of the disk space that is free or used by the store.

    Without the part that the store uses, a restart would lower the limit below what is stored. 1 TiB when the system
    does not report it.
    """
    place = store_dir
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        disk = os.statvfs(place)
        return (disk.f_bavail * disk.f_frsize + size_of(store_dir)) // 4 * 3
    except OSError:
        return MIB * MIB


def size_of(folder: str) -> int:
    """Return the bytes of all files below a directory; 0 if it does not exist."""
    total = 0
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # a fresh store, or a file that the compactor replaced meanwhile
    return total
