"""The metrics of a server.

Belongs here: name, kind, labels and documentation of each. Where prometheus-nats-exporter has a metric of the same
meaning, name and labels are its own (`gnatsd_varz_…`, `jetstream_…`), and so is the kind: the exporter shows counters
of /varz as gauges. Others begin with `lakestream_` and follow the conventions of Prometheus. docs/reference/metrics.md
is generated from here.
"""

from __future__ import annotations

from lakestream.metrics.family import COUNTER, GAUGE, HISTOGRAM, Family, families

SERVER = ("server_id", "server_name")
ACCOUNT = ("server_name", "account")
STREAM = ("server_name", "account", "stream_name", "is_stream_leader")
CONSUMER = (*STREAM, "consumer_name", "is_consumer_leader")
GROUP = ("account", "group")
"""Labels of a Raft group: the account and the stream, or the system account and `_meta_`."""
TABLE = ("account", "stream_name")


def _gauge(name: str, help: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(name, GAUGE, help, labels)


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(name, COUNTER, help, labels)


def _histogram(name: str, help: str) -> Family:
    return Family(name, HISTOGRAM, help)


INFO = _gauge("lakestream_build_info", "Version of the server as labels; always 1.", ("version", "nats_version"))

VARZ = tuple(
    _gauge(f"gnatsd_varz_{name}", help, SERVER)
    for name, help in (
        ("connections", "Client connections."),
        ("total_connections", "Client connections since the start."),
        ("max_connections", "Limit of client connections; 0: none."),
        ("subscriptions", "Subscriptions of clients, streams and other nodes."),
        ("routes", "Other nodes of the cluster that are connected."),
        ("leafnodes", "Leaf node connections, accepted and dialled."),
        ("in_msgs", "Messages received from clients, other nodes and leaf nodes since the start."),
        ("in_bytes", "Bytes of payload and headers received since the start."),
        ("out_msgs", "Messages sent to clients, other nodes and leaf nodes since the start."),
        ("out_bytes", "Bytes of payload and headers sent since the start."),
        ("slow_consumers", "Connections closed since the start because they read too slowly."),
        ("stale_connections", "Connections closed since the start because they did not answer pings."),
        ("stalled_clients", "Times since the start that a publisher was not read because receivers were congested."),
        ("mem", "Resident memory of the server in bytes."),
        ("cpu", "CPU time since the start in percent of one core."),
        ("cores", "Processors of the machine."),
    )
)
PENDING = _gauge("gnatsd_connz_pending_bytes", "Bytes that wait in the server for all clients to read them.", SERVER)

JETSTREAM = tuple(
    _gauge(f"jetstream_server_{name}", help, SERVER)
    for name, help in (
        ("jetstream_disabled", "1 if the server runs without JetStream, else 0."),
        ("total_streams", "Streams on this server."),
        ("total_consumers", "Consumers on this server."),
        ("total_messages", "Messages in the streams of this server."),
        ("total_message_bytes", "Bytes of the messages in the streams of this server."),
        ("max_memory", "Limit of streams in memory, in bytes; -1: none."),
        ("max_storage", "Limit of streams on disk, in bytes; -1: none."),
    )
)
ACCOUNTS = tuple(
    _gauge(f"jetstream_account_{name}", help, ACCOUNT)
    for name, help in (
        ("memory_used", "Bytes of the account's streams in memory."),
        ("storage_used", "Bytes of the account's streams on disk and in the lake."),
        ("max_memory", "The account's limit of streams in memory, in bytes; -1: none."),
        ("max_storage", "The account's limit of streams on disk, in bytes; -1: none."),
    )
)
STREAMS = tuple(
    _gauge(f"jetstream_stream_{name}", help, STREAM)
    for name, help in (
        ("total_messages", "Messages in the stream, in its log or in the lake."),
        ("total_bytes", "Bytes of the messages in the stream."),
        ("first_seq", "Sequence of the stream's first message."),
        ("last_seq", "Sequence of the stream's last message."),
        ("consumer_count", "Consumers of the stream."),
        ("subject_count", "Subjects with messages in the stream."),
        ("limit_messages", "The stream's max_msgs; -1: none."),
        ("limit_bytes", "The stream's max_bytes; -1: none."),
    )
)
CONSUMERS = tuple(
    _gauge(f"jetstream_consumer_{name}", help, CONSUMER)
    for name, help in (
        ("delivered_consumer_seq", "Deliveries of the consumer: the consumer sequence of the last one."),
        ("delivered_stream_seq", "Stream sequence of the consumer's last delivery."),
        ("ack_floor_consumer_seq", "Consumer sequence up to which every delivery is acked."),
        ("ack_floor_stream_seq", "Stream sequence up to which every message is acked."),
        ("num_ack_pending", "Messages delivered and not acked yet."),
        ("num_redelivered", "Messages delivered more than once and not acked yet."),
        ("num_waiting", "Pull requests that wait for messages."),
        ("num_pending", "Messages that match the consumer and were not delivered yet."),
    )
)

API_REQUESTS = _counter("lakestream_jetstream_api_requests_total", "JetStream API requests since the start.")
API_ERRORS = _counter(
    "lakestream_jetstream_api_errors_total", "JetStream API requests answered with an error since the start."
)
STREAMS_FAILED = _gauge(
    "lakestream_streams_failed", "Streams that take no messages because of an error; /healthz names the first one."
)

SYNC_SECONDS = _histogram(
    "lakestream_log_sync_duration_seconds", "Duration of each fdatasync of stream logs, in seconds."
)
WRITE_MESSAGES = _histogram("lakestream_log_write_messages", "Messages of each write of a stream log (group commit).")
WRITE_BYTES = _histogram(
    "lakestream_log_write_size_bytes", "Size of each write of a stream log (group commit), in bytes."
)
ACK_SECONDS = _histogram(
    "lakestream_publish_ack_duration_seconds",
    "Time from the oldest publish of a group commit until its pub acks are handed to the connections, in seconds.",
)
STALL_SECONDS = _histogram(
    "lakestream_event_loop_stall_seconds",
    "Times for which all clients waited for one step of the server, from 10 ms on, in seconds.",
)
LONGEST_STALL = _gauge(
    "lakestream_event_loop_longest_stall_seconds",
    "Longest of these waits within the last minute or two, in seconds; the label names the function that ran.",
    ("step",),
)
IO_WAITING = _gauge("lakestream_disk_io_waiting", "Disk operations that wait for a thread now.")
IO_WAITS = _counter("lakestream_disk_io_waits_total", "Disk operations that waited over 1 ms for a thread.")
IO_WAIT_SECONDS = _counter("lakestream_disk_io_wait_seconds_total", "Time of those waits, in seconds.")
INDEX_BYTES = _gauge(
    "lakestream_index_memory_bytes", "Memory of the indexes of subjects and message ids of all streams, in bytes."
)
INDEX_LIMIT = _gauge(
    "lakestream_index_memory_limit_bytes",
    "Bytes of subject indexes above which parts move to disk (a third of max_index_memory).",
)
SCRUBBED = _counter(
    "lakestream_scrubbed_bytes_total", "Bytes of sealed segments verified in the background since the start."
)
DAMAGES = _counter(
    "lakestream_log_damages_total", "Damaged files of logs found since the start, by verification and by reads."
)
REPAIRED = _counter(
    "lakestream_log_repaired_total", "Damaged segments replaced by those of other replicas since the start."
)
STORE_FREE = _gauge("lakestream_store_free_bytes", "Free bytes of the file system of the store directory.")
STORE_SIZE = _gauge("lakestream_store_size_bytes", "Size of the file system of the store directory, in bytes.")
CERTIFICATE = _gauge(
    "lakestream_tls_certificate_expiry_timestamp_seconds",
    "End of the validity of the server certificate of a listener, in seconds since the epoch.",
    ("listener",),
)

RAFT = tuple(
    _gauge(f"lakestream_raft_{name}", help, GROUP)
    for name, help in (
        ("is_leader", "1 if this node leads the group, else 0."),
        ("has_leader", "1 if this node knows a leader of the group, else 0."),
        ("term", "Term of the group."),
        ("commit_index", "Index of the newest entry that this node knows to be committed."),
        ("applied_index", "Index of the newest entry that this node has applied."),
        ("members", "Voters and learners of the group."),
        ("recovering", "1 while this node lacks entries that it may have acknowledged, else 0."),
    )
)
RAFT_LAG = _gauge(
    "lakestream_raft_peer_lag_entries",
    "Entries of the group's log that a member lacks, as its leader knows; only on the leader.",
    (*GROUP, "peer"),
)

LAKE = tuple(
    _gauge(f"lakestream_lake_{name}", help, TABLE)
    for name, help in (
        ("lag_messages", "Messages of the stream that its table does not have yet."),
        ("lag_seconds", "Age of the oldest message that the table does not have yet, in seconds; 0: it has all."),
        ("last_commit_timestamp_seconds", "Time of the table's last compaction, since the epoch; 0: unknown, or none."),
    )
)
LAKE_FAILING = _gauge(
    "lakestream_lake_tables_failing", "Tables that cannot follow their streams; `lake.errors` of /varz has the reasons."
)
LAKE_DAMAGED = _gauge(
    "lakestream_lake_tables_damaged",
    "Tables of which files are damaged or missing, so that messages may be unreadable; /healthz?strict=true names one.",
)
COMPACTOR_ALIVE = _gauge("lakestream_lake_compactor_alive", "1 if a compactor is running on the lake, else 0.")
LAKE_REACHABLE = _gauge("lakestream_lake_reachable", "1 if the lake answers, 0 during an outage of it.")

HISTORY_SECONDS = _histogram(
    "lakestream_history_read_duration_seconds", "Duration of each read of old messages from the lake, in seconds."
)
HISTORY_FAILURES = _counter("lakestream_history_read_failures_total", "Reads of old messages that failed.")
HISTORY_HITS = _counter("lakestream_history_cache_hits_total", "Lookups of old messages that the cache had.")
HISTORY_MISSES = _counter(
    "lakestream_history_cache_misses_total", "Lookups of old messages that the cache did not have."
)
HISTORY_BYTES = _gauge("lakestream_history_cache_bytes", "Bytes of old messages in the cache.")

SQL = tuple(
    _counter(f"lakestream_sql_{name}_total", help, ("account",))
    for name, help in (
        ("queries", "Queries over NATS that ran since the start."),
        ("refused", "Queries that did not run, because they were invalid or too many ran."),
        ("failed", "Queries that ended with an error, or were cancelled."),
        ("rows", "Rows of the results of queries."),
        ("bytes", "Bytes of the results of queries."),
        ("seconds", "Duration of queries, in seconds."),
    )
)
SQL_RUNNING = _gauge("lakestream_sql_running", "Queries over NATS that run now.")

LEFT_OUT = _gauge(
    "lakestream_metrics_left_out",
    "Streams and consumers without metrics of their own, because there are more than the page has room for.",
    ("kind",),
)

FAMILIES = families(globals())
"""All of them, in the order of the reference."""

ONCE = (
    INFO,
    *(one for one in VARZ if one.name in ("gnatsd_varz_max_connections", "gnatsd_varz_cores")),
    *(one for one in (*JETSTREAM, *ACCOUNTS) if one.name.endswith(("_max_memory", "_max_storage", "_disabled"))),
    STORE_FREE,
    STORE_SIZE,
    CERTIFICATE,
    COMPACTOR_ALIVE,
    LAKE_REACHABLE,
)
"""Metrics of the machine or the settings, which are the same for all workers of a server."""
