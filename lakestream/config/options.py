"""What a server is told, as records.

Belongs here: every setting of a server with its unit and default, and the order of precedence (flag, then
configuration file, then default). How the file is written is in conf.py, which key sets which option in settings.py,
how a command line is written in cli/flags.py.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from lakestream.config.account_options import AccountOptions, SubjectMapping, User
from lakestream.config.errors import StartError
from lakestream.config.remote_options import RemoteOptions
from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.files import paths

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
KIB, MIB = 1024, 1024 * 1024
MAX_PORT = 65535
FREE_PORT = -1
"""As a port: let the system choose a free one."""


class JetStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """JetStream's part.

    `max_memory` and `max_file` are bytes over all streams. `default_max_consumers` is per stream (-1 no limit);
    of the limits of batches 0 means the default, of the others none. `temporary_store`: nobody named a store, so it
    lies in the temporary directory.
    `max_index_memory`: bytes of all subject indexes in memory; what is beyond lies in files
    (log/index/memory_limit.py). `unique_tag`: a prefix of server tags; no two replicas of a stream lie on nodes with
    the same such tag.
    """

    store_dir: str
    max_memory: int
    max_file: int
    domain: str = ""
    strict: bool = True
    sync_always: bool = True
    sync_interval_ns: int = 2 * MINUTE
    duplicate_window_ns: int = 0
    max_ack_pending: int = 0
    max_request_batch: int = 0
    default_max_consumers: int = 1000
    request_queue_limit: int = 0
    max_index_memory: int = 512 * MIB
    batches_per_stream: int = 0
    batches_total: int = 0
    batch_max_msgs: int = 0
    batch_timeout_ns: int = 0
    temporary_store: bool = False
    unique_tag: str = ""


class LakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The lake's part. An empty `url` means `<store_dir>/lake`. Not `enabled`: streams stay in their logs alone.

    A segment is sealed at `seal_bytes` or when `seal_age_ns` old; `retain_bytes` of each stream's log stay local even
    when the lake holds them; the position of the tables is looked up every `poll_ns`. The compactor of `lakestream up`
    looks after the tables every `maintain_every_ns` (0: never). A staged segment that its table holds stays for
    `staged_grace_ns`, for readers that are at it, but at most `staged_grace_bytes` of a stream.
    """

    enabled: bool = True
    url: str = ""
    seal_bytes: int = 16 * MIB
    seal_age_ns: int = 10 * SECOND
    retain_bytes: int = 64 * MIB
    poll_ns: int = SECOND
    staged_grace_ns: int = 300 * SECOND
    staged_grace_bytes: int = 1024 * MIB
    maintain_every_ns: int = 600 * SECOND


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates of one listener, as PEM files. `ca_file` "": the system's. `insecure`: a dialling node takes any
    certificate (encrypted, but not protected from somebody in the middle)."""

    cert_file: str
    key_file: str
    ca_file: str = ""
    insecure: bool = False
    timeout_ns: int = 2 * SECOND


class RouteUrl(msgspec.Struct, frozen=True):
    """Another node's route listener, and who this node says it is there."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's part.

    Attributes:
        name: "" makes one up (not with JetStream).
        port: of the listener for other nodes; -1 a free one, 0: no cluster.
        routes: nodes to connect to, this one may be among them.
        user, password: what a connecting node must say; also what this node says to nodes it learnt of. `password`
            is plain text or a bcrypt hash.
        advertise: `host:port` that other nodes are told to dial, "" the listener's own.
        no_advertise: clients are not told of the other nodes.
        connect_retries: how often a node that is not in `routes` is dialled again before it is forgotten, 0: as
            `peer_dial.FORGET_AFTER` says.
        insecure: a listener without authorization and TLS is wanted although it is not at a loopback address.
        warnings: lines for the log at start.
    """

    name: str = ""
    host: str = "0.0.0.0"
    port: int = 0
    routes: tuple[RouteUrl, ...] = ()
    user: str = ""
    password: str = ""
    auth_timeout_ns: int = 2 * SECOND
    tls: TlsOptions | None = None
    advertise: str = ""
    no_advertise: bool = False
    connect_retries: int = 0
    insecure: bool = False
    warnings: tuple[str, ...] = ()


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None where it says nothing. A flag wins over the configuration file."""

    config: str = ""
    host: str | None = None
    port: int | None = None
    server_name: str | None = None
    http_port: int | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    debug: bool | None = None
    trace: bool | None = None
    logtime: bool | None = None
    logtime_utc: bool | None = None
    log_file: str | None = None
    pid_file: str | None = None
    ports_file_dir: str | None = None
    client_advertise: str | None = None
    jetstream: bool | None = None
    store_dir: str | None = None
    lake: str | None = None
    no_lake: bool | None = None
    cluster: str | None = None
    cluster_name: str | None = None
    cluster_advertise: str | None = None
    routes: str | None = None
    no_advertise: bool | None = None
    connect_retries: int | None = None
    warnings: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server. Durations are ns, sizes bytes.

    Attributes:
        client_advertise: `host:port` that clients are told to reach this node at; "": its addresses.
        port, http_port: -1 a free one; `http_port` 0: no monitoring.
        users, mappings: of the global account; `accounts`: the others, perhaps with `system_account` ("": `$SYS`).
        no_auth_user: who clients are that do not say.
        max_connections, max_subscriptions: of the server, and of one connection; 0: no limit.
        remotes: other servers that this one connects to.
        config_file: what was read, for reload and /varz; `config_digest` its SHA-256.
        warnings: lines for the log at start (settings without effect here).
        flags: the command line, so that a reload keeps its precedence.
    """

    host: str = "0.0.0.0"
    port: int = 4222
    server_name: str = ""
    http_host: str = ""
    http_port: int = 0
    http_base_path: str = ""
    users: tuple[User, ...] = ()
    token: str = ""
    accounts: tuple[AccountOptions, ...] = ()
    system_account: str = ""
    no_auth_user: str = ""
    mappings: tuple[SubjectMapping, ...] = ()
    auth_timeout_ns: int = 2 * SECOND
    max_payload: int = MIB
    max_control_line: int = 4 * KIB
    max_pending: int = 64 * MIB
    max_pending_total: int = 1024 * MIB
    max_connections: int = 65_536
    max_subscriptions: int = 0
    ping_interval_ns: int = 2 * MINUTE
    ping_max: int = 2
    write_deadline_ns: int = 10 * SECOND
    lame_duck_duration_ns: int = 2 * MINUTE
    lame_duck_grace_ns: int = 10 * SECOND
    debug: bool = False
    trace: bool = False
    logtime: bool = True
    logtime_utc: bool = False
    log_file: str = ""
    pid_file: str = ""
    ports_file_dir: str = ""
    client_advertise: str = ""
    server_tags: tuple[str, ...] = ()
    server_metadata: dict[str, str] = {}
    jetstream: JetStreamOptions | None = None
    cluster: ClusterOptions | None = None
    lake: LakeOptions = LakeOptions()
    remotes: tuple[RemoteOptions, ...] = ()
    config_file: str = ""
    config_digest: str = ""
    warnings: tuple[str, ...] = ()
    flags: Flags = Flags()


RELOADABLE = frozenset(
    {
        "users",
        "accounts",
        "mappings",
        "token",
        "auth_timeout_ns",
        "max_payload",
        "max_control_line",
        "max_pending",
        "max_pending_total",
        "max_connections",
        "max_subscriptions",
        "ping_interval_ns",
        "ping_max",
        "write_deadline_ns",
        "lame_duck_duration_ns",
        "lame_duck_grace_ns",
        "debug",
        "trace",
        "logtime",
        "logtime_utc",
        "log_file",
        "server_tags",
        "server_metadata",
        "remotes",
        "config_digest",
        "warnings",
    }
)
"""Options that SIGHUP may change in a running server."""


def load(flags: Flags) -> Options:
    """Settings from the command line and the configuration file that it names.

    Raises:
        StartError: the file is wrong (with file and line), or flag and file contradict each other.
    """
    from_file: dict[str, Any] = {}
    if flags.config:
        from lakestream.config.settings import read_settings  # the parser is not needed without a file

        from_file = read_settings(flags.config)
    values: dict[str, Any] = {name: value for name, value in from_file.items() if name in Options.__struct_fields__}
    values |= {
        name: getattr(flags, name)
        for name in ("host", "port", "server_name", "http_port", "client_advertise", *_LOGGING)
        if getattr(flags, name) is not None
    }
    _credentials(flags, values)
    values["jetstream"] = _jetstream(flags, from_file.get("jetstream"))
    values["lake"] = _lake(flags, values.get("lake", LakeOptions()), values["jetstream"])
    values["cluster"] = cluster = _cluster(flags, values.get("cluster"))
    values["warnings"] = (*flags.warnings, *values.get("warnings", ()), *(cluster.warnings if cluster else ()))
    options = Options(flags=flags, config_file=flags.config, **values)
    _check(options)
    return options


_LOGGING = ("debug", "trace", "logtime", "logtime_utc", "log_file", "pid_file", "ports_file_dir")


def reload(options: Options) -> tuple[Options, list[str]]:
    """Read the configuration file again under the same command line.

    Returns:
        The new options and the names of those that changed.

    Raises:
        StartError: the file is wrong, or it changes what only a restart can change; the old options stay good.
    """
    if not options.config_file:
        raise StartError("there is no configuration file to reload; start with -c FILE")
    new = load(options.flags)
    # The size limits of JetStream follow the machine's free memory and disk when nobody set them: not a change.
    if new.jetstream is not None and options.jetstream is not None:
        same = msgspec.structs.replace(
            new.jetstream, max_memory=options.jetstream.max_memory, max_file=options.jetstream.max_file
        )
        if same == options.jetstream:
            new = msgspec.structs.replace(new, jetstream=options.jetstream)
    changed = [name for name in Options.__struct_fields__ if getattr(new, name) != getattr(options, name)]
    for name in changed:
        if name == "cluster":
            from lakestream.config.cluster import check_reload

            check_reload(options.config_file, options.cluster, new.cluster)
        elif name == "accounts":
            from lakestream.config.accounts import check_reload as check_accounts

            check_accounts(options, new)
        elif name not in RELOADABLE:
            raise StartError(f"{options.config_file}: a reload cannot change {name!r}; restart the server for that")
    return new, changed


def _credentials(flags: Flags, values: dict[str, Any]) -> None:
    """--user/--pass and --auth replace whatever the file says about who may connect to the global account."""
    flag = "--user" if flags.user is not None else "--auth" if flags.token is not None else ""
    if flag and values.get("accounts"):
        from lakestream.config.accounts import conflict_with_flags

        conflict_with_flags(values["accounts"], flag)
    if flags.user is not None:
        values["users"] = (User(flags.user, flags.password or ""),)
        values["token"] = ""
    elif flags.password is not None:
        raise StartError("--pass needs --user")
    if flags.token is not None:
        if flags.user is not None:
            raise StartError("--auth cannot be used together with --user")
        values["token"] = flags.token
        values["users"] = ()


def _jetstream(flags: Flags, from_file: dict[str, Any] | None) -> JetStreamOptions | None:
    values: dict[str, Any] = dict(from_file or {})
    enabled = values.pop("enabled", from_file is not None)
    if flags.jetstream is not None:
        enabled = flags.jetstream
    in_file = values.get("store_dir", "")
    if flags.store_dir is not None:
        if in_file:
            raise StartError(
                f"{flags.config}: Duplicate 'store_dir' configuration: -sd {flags.store_dir} and {in_file}"
            )
        values["store_dir"] = flags.store_dir
    if not enabled:
        return None
    if not values.get("store_dir"):
        import tempfile

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
        try:
            paths.root(url or os.path.join(jetstream.store_dir, "lake"))
        except UnsupportedLake as error:
            raise StartError(str(error)) from None
    return msgspec.structs.replace(lake, url=url, enabled=enabled)


def _cluster(flags: Flags, cluster: ClusterOptions | None) -> ClusterOptions | None:
    said = (flags.cluster, flags.cluster_name, flags.routes, flags.cluster_advertise)
    if cluster is None and all(value is None for value in said):
        return None
    from lakestream.config.cluster import with_flags  # a single server has no use for it

    return with_flags(flags, cluster)


def _check(options: Options) -> None:
    for name in ("port", "http_port"):
        port = getattr(options, name)
        if not FREE_PORT <= port <= MAX_PORT:
            raise StartError(f"{name} {port} is out of range: use 1 to {MAX_PORT}, or -1 for a free one")
    if options.cluster is not None and options.jetstream is not None:
        if not options.server_name:
            raise StartError("jetstream cluster requires `server_name` to be set")
        if not options.cluster.name:
            raise StartError("jetstream cluster requires `cluster.name` to be set")
    if options.remotes:
        from lakestream.config.remote_options import check

        own = options.jetstream.domain if options.jetstream is not None else ""
        check(options.remotes, [account.name for account in options.accounts], own)
    if any(char.isspace() for char in options.server_name):
        raise StartError(f"server name {options.server_name!r} cannot contain spaces")
    if options.accounts or options.system_account or options.no_auth_user:
        from lakestream.config.account_checks import check_options  # few configurations have accounts

        check_options(options)
    if options.max_payload > options.max_pending:
        raise StartError(
            f"max_payload ({options.max_payload}) cannot be higher than max_pending ({options.max_pending})"
        )


def default_max_memory() -> int:
    """Bytes for memory streams when nobody says: 75 % of the machine's memory, 256 MiB if that is unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 256 * MIB
    return total // 4 * 3


def default_max_file(store_dir: str) -> int:
    """Bytes for file streams when nobody says: 75 % of what the store's disk has free or already given to the store.

    Without the part that the store itself fills, a restart would lower the limit below what is stored. 1 TiB when the
    system does not say.
    """
    place = store_dir
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        disk = os.statvfs(place)
        return (disk.f_bavail * disk.f_frsize + _size_of(store_dir)) // 4 * 3
    except OSError:
        return MIB * MIB


def _size_of(folder: str) -> int:
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
