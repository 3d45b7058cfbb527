"""Reading the metrics of a server from its state.

Belongs here: the values of the metrics in names.py. Nothing is counted for them but what the server counts anyway,
except for a few histograms that are observed once per group commit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from lakestream import __version__
from lakestream.metrics.family import Sheet
from lakestream.ops.metrics import names
from lakestream.ops.monitoring.jetstream import raft_groups
from lakestream.ops.monitoring.monitored import Lag, Monitored, Queries, Serving, Streams
from lakestream.ops.monitoring.pages import Pages
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.gotime import time_ns
from lakestream.raft.group.group import Group
from lakestream.stream.assembly import Stream
from lakestream.stream.consumer.consumer import Consumer
from lakestream.stream.dormant import Dormant

METRICS_STREAMS = 1_000
"""Streams with metrics of their own; further ones count in the totals and in `lakestream_metrics_left_out`."""
METRICS_CONSUMERS = 5_000
"""Consumers with metrics of their own."""


class ServerMetrics:
    """The metrics of one server.

    Args:
        pages: the monitoring pages, which have the totals of connections.
    """

    def __init__(self, node: Monitored, pages: Pages) -> None:
        self._node, self._pages = node, pages

    def collect(self, sheet: Sheet) -> Iterator[None]:
        """Fill the sheet; yield after each small piece of work, so that the caller can let the event loop go on."""
        node = self._node
        identity = node.identity
        self._server = {"server_id": identity.server_id, "server_name": identity.server_name}
        self._name = {"server_name": identity.server_name}
        sheet.put(names.INFO, 1, {"version": __version__, "nats_version": NATS_VERSION})
        counters = self._pages.counters() | self._pages.machine() | {"max_connections": node.options.max_connections}
        varz = [counters[family.name.removeprefix("gnatsd_varz_")] for family in names.VARZ]
        sheet.add(names.VARZ, self._server, varz)
        yield
        sheet.put(names.PENDING, node.unsent.total, self._server)
        waits = node.io.waits()
        sheet.put(names.STALL_SECONDS, node.stalls.seconds.read())
        sheet.put(names.LONGEST_STALL, node.stalls.longest.length_ns / 1e9, {"step": node.stalls.longest.step})
        sheet.put(names.IO_WAITING, node.io.waiting)
        sheet.put(names.IO_WAITS, waits.waits)
        sheet.put(names.IO_WAIT_SECONDS, waits.total_ns / 1e9)
        self._certificates(sheet)
        yield
        if node.sql is not None:
            self._sql(sheet, node.sql)
        jetstream = node.jetstream
        if jetstream is None:
            sheet.add(names.JETSTREAM, self._server, (1, 0, 0, 0, 0, 0, 0))
            return
        yield from self._jetstream(sheet, jetstream)

    def _sql(self, sheet: Sheet, sql: Queries) -> None:
        for account, each in sql.totals().items():
            values = (each.queries, each.refused, each.failed, each.rows, each.bytes, each.seconds)
            sheet.add(names.SQL, {"account": account}, values)
        sheet.put(names.SQL_RUNNING, sql.running)

    def directory(self) -> str:
        """Return the directory whose file system is measured (`store_space`); "" without JetStream."""
        jetstream = self._node.jetstream
        return jetstream.stores.root if jetstream is not None else ""

    def _certificates(self, sheet: Sheet) -> None:
        listeners = self._node.listeners
        clients, websocket = listeners.tls, listeners.websocket
        for listener, until in (
            ("client", clients.not_after if clients is not None else ""),
            ("websocket", websocket.not_after if websocket is not None else ""),
        ):
            if until:
                sheet.put(names.CERTIFICATE, time_ns(until) / 1e9, {"listener": listener})

    # ------------------------------------------------------------------ JetStream
    def _jetstream(self, sheet: Sheet, jetstream: Streams) -> Iterator[None]:
        served = dict(jetstream.served)
        sheet.put(names.API_REQUESTS, sum(each.api.total for each in served.values()))
        sheet.put(names.API_ERRORS, sum(each.api.errors for each in served.values()))
        writes, indexes = jetstream.stores.figures, jetstream.stores.indexes
        sheet.put(names.SYNC_SECONDS, writes.sync_seconds.read())
        sheet.put(names.WRITE_MESSAGES, writes.messages.read())
        sheet.put(names.WRITE_BYTES, writes.bytes.read())
        sheet.put(names.ACK_SECONDS, jetstream.ack_seconds.read())
        sheet.put(names.INDEX_BYTES, indexes.used)
        sheet.put(names.INDEX_LIMIT, indexes.limit)
        repairs = jetstream.node.replicas.repairs
        sheet.put(names.SCRUBBED, repairs.scrubbed_bytes)
        sheet.put(names.DAMAGES, repairs.damages)
        sheet.put(names.REPAIRED, repairs.repaired)
        keeper = jetstream.keeper
        if keeper is not None:
            self._lake(sheet, keeper)
        yield
        totals = _Totals()
        for account, serving in served.items():
            yield from self._account(sheet, totals, account, serving, keeper)
        options = self._node.options.jetstream
        limits = (options.max_memory, options.max_file) if options is not None else (0, 0)
        server = (0, totals.streams, totals.consumers, totals.messages, totals.bytes, *limits)
        sheet.add(names.JETSTREAM, self._server, server)
        sheet.put(names.STREAMS_FAILED, totals.failed)
        sheet.put(names.LEFT_OUT, max(0, totals.streams - METRICS_STREAMS), {"kind": "streams"})
        sheet.put(names.LEFT_OUT, max(0, totals.consumers - totals.consumers_shown), {"kind": "consumers"})
        yield
        for number, (account, name, group) in enumerate(raft_groups(self._node, jetstream)):
            if number < METRICS_STREAMS:
                _raft(sheet, account, name, group)
                yield

    def _account(
        self, sheet: Sheet, totals: _Totals, account: str, serving: Serving, keeper: Lag | None
    ) -> Iterator[None]:
        used: Counter[str] = Counter()
        for stream in serving.engine.shown():
            used[stream.config.storage] += stream.store.bytes
            totals.streams += 1
            totals.messages += stream.store.msgs
            totals.bytes += stream.store.bytes
            totals.failed += stream.failed is not None
            consumers = [each for each in list(stream.consumers.values()) if not each.config.direct]
            totals.consumers += stream.consumer_count
            if totals.streams <= METRICS_STREAMS and not stream.closed:
                yield from self._stream(sheet, totals, account, stream, consumers)
                if keeper is not None and (lag := keeper.lag_of(account, stream.name)) is not None:
                    values = (lag.messages, lag.age_ns / 1e9, lag.committed_ns / 1e9)
                    sheet.add(names.LAKE, {"account": account, "stream_name": stream.name}, values)
            yield
        totals.failed += len(serving.engine.offline)
        known = self._node.accounts.get(account)
        limits = known.jetstream if known is not None else None
        most = (limits.max_memory, limits.max_file) if limits is not None else (-1, -1)
        sheet.add(names.ACCOUNTS, self._name | {"account": account}, (used["memory"], used["file"], *most))

    def _stream(
        self, sheet: Sheet, totals: _Totals, account: str, stream: Stream | Dormant, consumers: list[Consumer]
    ) -> Iterator[None]:
        store, config, leads = stream.store, stream.config, "true" if stream.leading else "false"
        labels = self._name | {"account": account, "stream_name": stream.name, "is_stream_leader": leads}
        state = (store.msgs, store.bytes, store.first_seq, store.last_seq, stream.consumer_count, len(store.subjects))
        sheet.add(names.STREAMS, labels, (*state, config.max_msgs, config.max_bytes))
        for consumer in consumers[: METRICS_CONSUMERS - totals.consumers_shown]:
            totals.consumers_shown += 1
            yield
            if stream.closed:
                return
            floor, ledger = consumer.ledger.floor(), consumer.ledger
            values = (
                ledger.delivered_consumer,
                ledger.delivered_stream,
                *floor,
                len(ledger.pending),
                len(ledger.redelivered),
                consumer.num_waiting,
                consumer.feed.pending(),
            )
            sheet.add(names.CONSUMERS, labels | {"consumer_name": consumer.name, "is_consumer_leader": leads}, values)

    def _lake(self, sheet: Sheet, keeper: Lag) -> None:
        sheet.put(names.LAKE_FAILING, len(keeper.troubles()))
        sheet.put(names.LAKE_DAMAGED, len(keeper.damages()))
        sheet.put(names.COMPACTOR_ALIVE, float(keeper.attended))
        sheet.put(names.LAKE_REACHABLE, float(keeper.outage() is None))
        history = keeper.history()
        sheet.put(names.HISTORY_SECONDS, history.seconds)
        sheet.put(names.HISTORY_FAILURES, history.failures)
        sheet.put(names.HISTORY_HITS, history.hits)
        sheet.put(names.HISTORY_MISSES, history.misses)
        sheet.put(names.HISTORY_BYTES, history.bytes)


class _Totals:
    """Sums over the streams of a server."""

    def __init__(self) -> None:
        self.streams = self.consumers = self.messages = self.bytes = self.failed = 0
        self.consumers_shown = 0


def store_space(sheet: Sheet, directory: str) -> None:
    """Add the space of the file system of a directory. Block."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return  # the log reports a disk that is gone
    sheet.put(names.STORE_FREE, found.f_bavail * found.f_frsize)
    sheet.put(names.STORE_SIZE, found.f_blocks * found.f_frsize)


def _raft(sheet: Sheet, account: str, name: str, group: Group) -> None:
    labels = {"account": account, "group": name}
    state = (group.is_leader, bool(group.leader), group.term, group.commit_index, group.snapshot().index)
    rest = (len(list(group.membership.members)), group.recovering)
    sheet.add(names.RAFT, labels, tuple(map(float, (*state, *rest))))
    for each in group.progress():
        if each.name != group.me:
            sheet.put(names.RAFT_LAG, max(0, group.last_index - each.match), labels | {"peer": each.name})
