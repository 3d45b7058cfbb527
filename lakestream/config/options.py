"""The settings of a server, as records.

Belongs here: every setting with its unit and default; those of accounts are in account_options.py. The syntax of the
configuration file is in conf.py, its keys in settings.py and the modules of its blocks, the command line in
cli/flags.py; loading.py makes these records of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from lakestream.config.account_options import AccountOptions, CalloutOptions, SubjectMapping, User
from lakestream.protocol.accounts import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from lakestream.protocol import jwt  # with time zones, which a server without operators does without

SECOND = 1_000_000_000
MAX_CONSOLE_HISTORY_NS = 24 * 3600 * SECOND
"""Longest history of the console's plots (24 h)."""
MINUTE = 60 * SECOND
KIB, MIB = 1024, 1024 * 1024
MAX_PORT = 65535
FREE_PORT = -1
"""Port value: the system chooses a free port."""

STANDARD, WEBSOCKET, LEAFNODE, MQTT, MQTT_WS = "STANDARD", "WEBSOCKET", "LEAFNODE", "MQTT", "MQTT_WS"
LEAFNODE_WS = "LEAFNODE_WS"
"""Kinds of connections, as `allowed_connection_types` names them: clients over TCP or TLS, clients over WebSocket, leaf
nodes, and clients of MQTT."""
CLIENT_TYPES = {STANDARD: "nats", WEBSOCKET: "websocket", MQTT: "mqtt", MQTT_WS: "mqtt"}
"""Types of clients in monitoring, events and requests to auth callouts."""


def lower_limit(one: int, other: int) -> int:
    """Return the lower of two limits; -1: none. Another limit below 0, of a token, lets nothing pass."""
    return one if other == -1 else other if one == -1 else min(one, other)


# ---------------------------------------------------------------------- operators


class ResolverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the store of accounts' tokens.

    Attributes:
        kind: `memory`: the configuration, and what is pushed until the server stops; `full`: a directory that the
            servers of a cluster exchange; `cache`: a directory of tokens that others were asked for; `url`: an HTTP
            server.
        directory: exists.
        url: ends with a slash.
        tls: with the HTTP server; None: the system's authorities, and no certificate.
        limit: tokens in the directory. A cache drops those that were used least recently, else new ones are refused.
        ttl_ns: age at which a cache drops a token; 0: none.
        interval_ns: between two exchanges with another server.
        timeout_ns: for an answer of other servers, or of the HTTP server.
        allow_delete: operators may delete accounts; `hard_delete`: their files, too, which are renamed else.
    """

    kind: Literal["memory", "full", "cache", "url"] = "memory"
    directory: str = ""
    url: str = ""
    tls: TlsOptions | None = None
    limit: int = 1_000_000
    ttl_ns: int = 0
    interval_ns: int = MINUTE
    timeout_ns: int = 2 * SECOND
    allow_delete: bool = False
    hard_delete: bool = False


class OperatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Operator mode: operators sign accounts, which sign users.

    Attributes:
        operators: tokens of the trusted operators.
        trusted_keys: public keys that are trusted instead.
        resolver: where tokens of accounts come from.
        preload: tokens of accounts by their keys.
        pinned_accounts: the only accounts, besides the system account, whose users may log in; empty: all.
        sentinel: the user token of clients without one; "": they are rejected.
    """

    operators: tuple[jwt.Token[jwt.Operator], ...] = ()
    trusted_keys: tuple[str, ...] = ()
    resolver: ResolverOptions = ResolverOptions()
    preload: tuple[tuple[str, str], ...] = ()
    pinned_accounts: tuple[str, ...] = ()
    sentinel: str = ""


# ---------------------------------------------------------------------- remote servers

LEAF = "nats-leaf"
PORTS = {"nats": 4222, "tls": 4222, LEAF: 7422}
"""Schemes of a remote's URL, and their default ports."""


WEBSOCKETS = ("ws", "wss")
"""Schemes of a leaf remote's URL over WebSocket."""


class RemoteAddress(NamedTuple):
    """Address of a remote and credentials there; `user` "": those of the block. `path`: of a URL of WebSocket."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""
    path: str = ""

    @property
    def shown(self) -> str:
        """Return the URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class RemoteTls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS with a remote. PEM files; `ca_file` "": the system's authorities, `cert_file` "": no client certificate.

    `insecure` accepts any certificate (encrypted, but without protection from a man in the middle). `first`: TLS begins
    before INFO. `server_name`: the name in the certificate, "": the host of the URL. `ca`, `cert` and `key`: PEM texts
    instead of files, of a temporary link. The other options are those of `TlsOptions`.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    first: bool = False
    server_name: str = ""
    timeout_ns: int = 5 * SECOND
    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    pinned_certs: tuple[str, ...] = ()


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Another NATS server that this one connects to.

    Attributes:
        urls: members of its cluster, tried in turn.
        domain: its JetStream domain here.
        remote_domain: its domain there; "": the one that answers `$JS.API`.
        account: the account in which it is known here.
        user, password, token, nkey, jwt, nkey_file, credentials: credentials there. `nkey` is a seed, `jwt` the token
            of its user; the last two name files, which are read for every connection.
        tls: None: as the URL or the remote requires.
        subjects: subjects whose messages from there are published here; for a leaf node.
        ignore_discovered: do not dial members of its cluster that are not in `urls`.
    """

    urls: tuple[RemoteAddress, ...]
    domain: str = ""
    remote_domain: str = ""
    account: str = GLOBAL_ACCOUNT
    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    jwt: str = ""
    nkey_file: str = ""
    credentials: str = ""
    tls: RemoteTls | None = None
    subjects: tuple[str, ...] = ()
    ignore_discovered: bool = False

    @property
    def leaf(self) -> bool:
        """Return True if it is connected to as a leaf node."""
        return self.urls[0].scheme == LEAF

    @property
    def name(self) -> str:
        """Return its name in the log and monitoring."""
        return self.domain or self.urls[0].shown


# ---------------------------------------------------------------------- the server


class JetStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of JetStream.

    `max_memory` and `max_file` are bytes over all streams. `default_max_consumers` is per stream (-1: no limit). 0 is
    the default for limits of batches, queues and buffers, and no limit for others. `shows_sync_always`: monitoring
    shows `sync_always`, because it is configured and not only the default. `temporary_store`: no store was configured,
    so it is in the temporary directory. `max_index_memory`: bytes of all subject indexes in memory; the rest is in
    files (log/index/memory_limit.py). `scrub_rate`: bytes of sealed segments verified in a second (0: none), all of
    them every `scrub_interval_ns`. `close_idle_ns`: streams that were not used for so long are closed (0: none), and
    those that were at rest when a server stopped are opened when they are used first. `balance_workers`: busy streams
    move between running workers. `verify_rate`: bytes of logs that a verification reads in a second (0: any).
    `max_verifications`: replicas verified at the same time (0: none). `unique_tag`: a prefix of server tags; no two
    replicas of a stream are on nodes with the same such tag. `encryption_key`: the master key of the store ("": it is
    not encrypted), `prev_encryption_key` the one before, `cipher` that of new files.
    """

    store_dir: str
    max_memory: int
    max_file: int
    domain: str = ""
    strict: bool = True
    sync_always: bool = True
    shows_sync_always: bool = False
    sync_interval_ns: int = 2 * MINUTE
    duplicate_window_ns: int = 0
    max_ack_pending: int = 0
    max_request_batch: int = 0
    default_max_consumers: int = 1000
    request_queue_limit: int = 0
    info_queue_limit: int = 0
    max_buffered_msgs: int = 0
    max_buffered_size: int = 0
    max_buffered_total: int = 512 * MIB
    max_index_memory: int = 512 * MIB
    scrub_rate: int = 8 * MIB
    scrub_interval_ns: int = 24 * 60 * MINUTE
    close_idle_ns: int = 60 * MINUTE
    balance_workers: bool = True
    verify_rate: int = 64 * MIB
    max_verifications: int = 1
    batches_per_stream: int = 0
    batches_total: int = 0
    batch_max_msgs: int = 0
    batch_timeout_ns: int = 0
    temporary_store: bool = False
    unique_tag: str = ""
    encryption_key: str = ""
    prev_encryption_key: str = ""
    cipher: str = "chachapoly"


class LakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the lake. An empty `url` means `<store_dir>/lake`. Not `enabled`: streams stay in their logs.

    A segment is sealed at `seal_bytes` or when `seal_age_ns` old; `retain_bytes` of each stream's log stay local even
    when the lake holds them; the position of the tables is read every `poll_ns`. The compactor of `lakestream up`
    maintains the tables every `maintain_every_ns` (0: never). A staged segment that its table holds stays for
    `staged_grace_ns`, for running readers, but at most `staged_grace_bytes` of a stream. `defaults` are those of
    streams' metadata by patterns of their names. The compactor of
    `lakestream up` serves its metrics at `compactor_metrics_host` and `_port`; port 0: nowhere. It keeps the tables
    registered in `catalogs`, given by their addresses, and streams that do not say otherwise have Iceberg tables of the
    format `iceberg` ("": none). It serves Spark Connect at `spark_connect_host` and `_port`
    (0: nowhere) to clients with the token ("": one that it makes). `encryption` says who encrypts the tables where the
    store is encrypted: `storage`, lakestream (`parquet`), or nobody has said ("").
    """

    enabled: bool = True
    encryption: str = ""
    url: str = ""
    seal_bytes: int = 16 * MIB
    seal_age_ns: int = 10 * SECOND
    retain_bytes: int = 64 * MIB
    poll_ns: int = SECOND
    staged_grace_ns: int = 300 * SECOND
    staged_grace_bytes: int = 1024 * MIB
    maintain_every_ns: int = 600 * SECOND
    defaults: dict[str, dict[str, str]] = {}
    compactor_metrics_host: str = "127.0.0.1"
    compactor_metrics_port: int = 0
    catalogs: tuple[str, ...] = ()
    iceberg: str = ""
    spark_connect_host: str = "127.0.0.1"
    spark_connect_port: int = 0
    spark_connect_token: str = ""


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the audit trail. `max_bytes`, `max_age_ns` (0: none): limits of its stream in each account."""

    enabled: bool = False
    max_bytes: int = 1024 * MIB
    max_age_ns: int = 0


class OtelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of traces. `endpoint`: URL of an OTLP/HTTP collector; "": that of OpenTelemetry's variables, if any."""

    endpoint: str = ""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of one listener.

    Attributes:
        cert_file, key_file: PEM files, or several pairs of them in `certs`, chosen by the name that a client asks for.
        ca_file: PEM file of the authorities that sign the other side's certificate; "": the system's.
        insecure: a dialling node accepts any certificate (encrypted, but without protection from a man in the middle).
        timeout_ns: of the handshake.
        verify: clients need a certificate; with `verify_and_map` it tells which user they are, or that a node is one.
        known_urls: that of a node may also name the host of a route.
        verify_optional: they need none, but one that they have must be good.
        first: TLS begins before INFO; after `fallback_ns` (0: never) INFO is sent to a client that sends nothing.
        min_version: `1.2` or `1.3`; "": 1.2.
        cipher_suites: of TLS 1.2, IANA's names; empty: all that are considered secure.
        curves: names as in the configuration; empty: OpenSSL's defaults.
        pinned_certs: SHA-256 of the public keys of accepted certificates; empty: any.
        rate_limit: handshakes per second; 0: no limit.
    """

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    insecure: bool = False
    verify: bool = False
    verify_optional: bool = False
    timeout_ns: int = 2 * SECOND
    verify_and_map: bool = False
    known_urls: bool = False
    first: bool = False
    fallback_ns: int = 0
    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    pinned_certs: tuple[str, ...] = ()
    rate_limit: int = 0
    certs: tuple[tuple[str, str], ...] = ()

    @property
    def needs_certificates(self) -> bool:
        """Return True if each client needs a certificate."""
        return self.verify or self.verify_and_map


class WebSocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the listener for WebSocket.

    Attributes:
        port: -1: a free one, 0: no listener.
        advertise: `host:port` for clients; "": the listener's own.
        no_tls: plain text is accepted, where there is no `tls`.
        same_origin, allowed_origins: the pages that may connect; without either: all.
        compression: permessage-deflate, for clients that offer it.
        handshake_timeout_ns: of TLS and HTTP; 0: no limit.
        user_cookie, pass_cookie, token_cookie, jwt_cookie: cookies whose values stand for the fields that CONNECT does
            not have; "": none.
        user, token: of clients over WebSocket, instead of those at the top; `no_auth_user` likewise.
        auth_timeout_ns, ping_interval_ns: 0: as at the top.
        headers: fields of the answer to a handshake.
        serves_mqtt: clients of MQTT may come, because there is a block `mqtt`.
    """

    host: str = "0.0.0.0"
    port: int = 0
    advertise: str = ""
    no_tls: bool = False
    tls: TlsOptions | None = None
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    compression: bool = False
    handshake_timeout_ns: int = 0
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    jwt_cookie: str = ""
    user: User | None = None
    token: str = ""
    no_auth_user: str = ""
    auth_timeout_ns: int = 0
    ping_interval_ns: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    serves_mqtt: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        """Return the scheme of the listener's URLs."""
        return "ws" if self.tls is None else "wss"


OFF, ACCEPT, S2_AUTO = "off", "accept", "s2_auto"
COMPRESSIONS = (OFF, ACCEPT, S2_AUTO, "s2_uncompressed", "s2_fast", "s2_better", "s2_best")
"""Modes of compression between servers, as nats-server names them."""


class LeafLogin(msgspec.Struct, frozen=True):
    """A user of the listener for leaf nodes. `account`: ""; the global account."""

    user: User
    account: str = ""


class HttpProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy of HTTP that passes connections on (CONNECT); `user` "": without a login."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    timeout_ns: int = 5 * SECOND


class LeafRemote(msgspec.Struct, frozen=True, kw_only=True):
    """A server that this one joins as a leaf node.

    Attributes:
        dial: its addresses and the credentials there; `account` is the one that is joined here.
        deny_imports: subjects whose messages are not taken from there; `deny_exports`: not sent there.
        compression: one of COMPRESSIONS.
        isolate: ask for no interest of its other leaf nodes; `isolated`: tell it no interest of other leaf nodes.
        disabled: do not dial.
        ws_compression: ask for compression over WebSocket; `ws_no_masking`: ask to send frames without masks.
        proxy: the way over WebSocket; None: connect directly.
    """

    dial: RemoteOptions
    deny_imports: tuple[str, ...] = ()
    deny_exports: tuple[str, ...] = ()
    compression: str = S2_AUTO
    isolate: bool = False
    isolated: bool = False
    disabled: bool = False
    ws_compression: bool = False
    ws_no_masking: bool = False
    proxy: HttpProxy | None = None


class LeafOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of leaf nodes: the listener for them, and the servers that this one joins as one.

    Attributes:
        port: -1: a free one, 0: no listener.
        advertise: `host:port` for leaf nodes; "": the listener's own.
        no_advertise: tell leaf nodes no addresses of the cluster.
        logins: users of the listener instead of those of the server; () with `account`: everybody is in that account.
        single_login: `logins` is one that `authorization` names without an array.
        account: the account of all leaf nodes, or of that one login; "": the global account.
        auth_timeout_ns: time until a leaf node must have logged in.
        compression: one of COMPRESSIONS.
        min_version: `major.minor.patch` of nats-server that a leaf node must have; "": any.
        isolate: no leaf node is told the interest of others.
        reconnect_ns: pause between attempts to join a server.
        remotes: the servers to join.
        ping_interval_ns, ping_max: of leaf connections in both directions; 0: as elsewhere.
    """

    host: str = "0.0.0.0"
    port: int = 0
    advertise: str = ""
    no_advertise: bool = False
    tls: TlsOptions | None = None
    logins: tuple[LeafLogin, ...] = ()
    single_login: bool = False
    account: str = ""
    auth_timeout_ns: int = 2 * SECOND
    compression: str = S2_AUTO
    min_version: str = ""
    isolate: bool = False
    reconnect_ns: int = SECOND
    remotes: tuple[LeafRemote, ...] = ()
    ping_interval_ns: int = 0
    ping_max: int = 0
    warnings: tuple[str, ...] = ()


class BoundPorts(msgspec.Struct, frozen=True):
    """Ports of open listeners that may have been any free ones; 0: none."""

    clients: int = 0
    cluster: int = 0
    leafnodes: int = 0
    websocket: int = 0


NOT_BOUND = BoundPorts()


class RouteUrl(msgspec.Struct, frozen=True):
    """Another node's route listener, and the credentials there."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    @property
    def address(self) -> str:
        """Return `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the cluster.

    Attributes:
        name: "" generates one (not with JetStream).
        port: of the route listener; -1: a free one, 0: no cluster.
        routes: nodes to connect to; this one may be among them.
        user, password: required of a connecting node, and used for discovered nodes. `password` is plain text or a
            bcrypt hash.
        advertise: `host:port` that other nodes dial; "": the listener's own.
        no_advertise: do not show clients the other nodes.
        connect_retries: attempts at a node that is not in `routes` before it is forgotten; 0: `dialler.FORGET_AFTER`.
        insecure: allow a listener without authorization and TLS at an address that is not loopback.
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


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the web console.

    Attributes:
        allowed_hosts: names under which it is served without a login, besides the machine's own.
        without_certificate: its users need no client certificate where other clients do.
        history_ns: time for which figures are kept for its plots, at most `MAX_CONSOLE_HISTORY_NS`; 0: none are.
    """

    enabled: bool = True
    allowed_hosts: tuple[str, ...] = ()
    without_certificate: bool = False
    history_ns: int = MAX_CONSOLE_HISTORY_NS


class PostgresOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the listener for Postgres' protocol.

    Attributes:
        port: 0: there is none; -1: a free one.
        tls: of clients; None: as of the clients of NATS.
        max_connections: at the same time.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsOptions | None = None
    max_connections: int = 64


class SqlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of SQL over NATS.

    Attributes:
        queue_group: of the servers that answer.
        row_permissions: a user sees the rows of subjects that it may subscribe to; else all of each stream.
        mask_key: of the hashes that users see instead of masked fields; "": there are none.
        max_time_ns: of a query, from the time its process takes it to the last message.
        max_rows, max_bytes: of a result; bytes of all its batches.
        max_concurrent: queries at the same time, of all accounts; max_account_concurrent: of one.
        memory: bytes of DuckDB for one query; `threads` likewise.
        batch_bytes: size of a batch; `window`: batches that may be under way without an acknowledgement.
        ack_wait_ns: time for an acknowledgement when the window is full.
        flight_host, flight_port: of the listener for Flight SQL; port 0: none, -1: a free one.
        postgres: of the listener for Postgres' protocol.
    """

    enabled: bool = False
    queue_group: str = "sql"
    row_permissions: bool = True
    mask_key: str = ""
    max_time_ns: int = 30 * SECOND
    max_rows: int = 1_000_000
    max_bytes: int = 256 * MIB
    max_concurrent: int = 4
    max_account_concurrent: int = 2
    memory: int = 512 * MIB
    threads: int = 2
    batch_bytes: int = 256 * KIB
    window: int = 8
    ack_wait_ns: int = 10 * SECOND
    flight_host: str = "127.0.0.1"
    flight_port: int = 0
    postgres: PostgresOptions = PostgresOptions()


LOOPBACK = "127.0.0.1"


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line; None where a flag is absent. A flag takes precedence over the configuration file.

    `http_host`: of `lakestream up`, which has no flag for it. `local`: listen for clients on the loopback interface,
    unless flag or file say otherwise, or clients need a login.
    """

    config: str = ""
    host: str | None = None
    port: int | None = None
    server_name: str | None = None
    http_host: str | None = None
    http_port: int | None = None
    https_port: int | None = None
    local: bool = False
    tls: bool | None = None
    tls_verify: bool | str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    debug: bool | None = None
    trace: bool | None = None
    logtime: bool | None = None
    logtime_utc: bool | None = None
    log_file: str | None = None
    log_size_limit: int | None = None
    syslog: bool | None = None
    remote_syslog: str | None = None
    pid_file: str | None = None
    workers: str | None = None
    ports_file_dir: str | None = None
    client_advertise: str | None = None
    jetstream: bool | None = None
    store_dir: str | None = None
    lake: str | None = None
    no_lake: bool | None = None
    no_console: bool | None = None
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
        client_advertise: `host:port` for clients; "": the server's addresses.
        port, http_port, https_port: -1: a free one; `http_port` and `https_port` 0: no monitoring.
        tls: of clients and of monitoring at `https_port`; None: plain text.
        allow_non_tls: clients may do without TLS.
        proxy_protocol: clients may come through a load balancer that tells their addresses.
        users, mappings: of the global account; `accounts`: the others, with `system_account` among them ("": `$SYS`).
        single_user: `users` is one that `authorization` names without an array.
        no_auth_user: the user of clients without credentials.
        operators: operator mode; None: users and accounts are configured.
        callout: a service decides about logins; None: none does.
        max_connections, max_subscriptions: of the server, and of one connection; 0: no limit.
        max_subscription_tokens: of the subject of a subscription; 0: no limit.
        proxies: public keys of proxies; `proxy_required`: clients with the token must come through one of them.
        write_retry: a client that takes anything within write_deadline stays.
        log_size_limit: bytes of the log file at which a new one begins; `log_max_num`: of these files the newest ones
            stay; 0: no limit.
        syslog: log to the syslog daemon of this machine; `remote_syslog`: to that of a URL. A `log_file` comes first.
        workers: processes that serve together as this server; 1: this process serves alone.
        remotes: other servers that this one connects to.
        mqtt: settings of the listener of packages/mqtt, its `MqttOptions`; None: there is none.
        config_file: the file that was read, for reload and /varz; `config_digest`: its SHA-256.
        warnings: lines for the log at start (settings without effect here); `notices`: lines for stderr, as
            nats-server prints them (settings in an odd form).
        flags: the command line, so that a reload keeps its precedence.
    """

    host: str = "0.0.0.0"
    port: int = 4222
    server_name: str = ""
    http_host: str = ""
    http_port: int = 0
    https_port: int = 0
    http_base_path: str = ""
    tls: TlsOptions | None = None
    allow_non_tls: bool = False
    proxy_protocol: bool = False
    users: tuple[User, ...] = ()
    single_user: bool = False
    token: str = ""
    accounts: tuple[AccountOptions, ...] = ()
    system_account: str = ""
    no_auth_user: str = ""
    operators: OperatorOptions | None = None
    callout: CalloutOptions | None = None
    mappings: tuple[SubjectMapping, ...] = ()
    default_js_domain: tuple[tuple[str, str], ...] = ()
    proxies: tuple[str, ...] = ()
    proxy_required: bool = False
    auth_timeout_ns: int = 2 * SECOND
    max_payload: int = MIB
    no_header_support: bool = False
    max_control_line: int = 4 * KIB
    max_pending: int = 64 * MIB
    max_pending_total: int = 1024 * MIB
    max_incomplete_total: int = 1024 * MIB
    max_connections: int = 65_536
    max_subscriptions: int = 0
    max_subscription_tokens: int = 0
    ping_interval_ns: int = 2 * MINUTE
    ping_max: int = 2
    write_deadline_ns: int = 10 * SECOND
    write_retry: bool = False
    lame_duck_duration_ns: int = 2 * MINUTE
    lame_duck_grace_ns: int = 10 * SECOND
    debug: bool = False
    trace: bool = False
    logtime: bool = True
    logtime_utc: bool = False
    log_json: bool = False
    log_file: str = ""
    log_size_limit: int = 0
    log_max_num: int = 0
    syslog: bool = False
    remote_syslog: str = ""
    pid_file: str = ""
    ports_file_dir: str = ""
    client_advertise: str = ""
    server_tags: tuple[str, ...] = ()
    server_metadata: dict[str, str] = {}
    workers: int = 1
    jetstream: JetStreamOptions | None = None
    cluster: ClusterOptions = ClusterOptions()
    websocket: WebSocketOptions = WebSocketOptions()
    leafnodes: LeafOptions = LeafOptions()
    lake: LakeOptions = LakeOptions()
    console: ConsoleOptions = ConsoleOptions()
    sql: SqlOptions = SqlOptions()
    otel: OtelOptions = OtelOptions()
    audit: AuditOptions = AuditOptions()
    remotes: tuple[RemoteOptions, ...] = ()
    mqtt: Any = None
    config_file: str = ""
    config_digest: str = ""
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    flags: Flags = Flags()
