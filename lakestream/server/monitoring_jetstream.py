"""What the monitoring port says of JetStream.

Belongs here: /jsz, JetStream's part of /varz, and the health of the server's streams and consumers.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from lakestream.jetstream.cluster_info import meta_shown, unhealthy
from lakestream.jetstream.consumer_info import consumer_info
from lakestream.jetstream.engine import ACCOUNT, Engine
from lakestream.jetstream.gotime import format_time
from lakestream.jetstream.stream import Stream
from lakestream.jetstream.stream_info import config_shown, state_shown
from lakestream.server.identity import API_LEVEL
from lakestream.server.monitored import Monitored
from lakestream.server.monitoring_query import Query

UNLIMITED = (1 << 64) - 1
"""How nats-server shows that an account reserves nothing (-1 as uint64)."""

DEFAULT_LIMIT = 1024


class Health(NamedTuple):
    """A health report; status 200 is good. `kind` is the error's type with details."""

    status: int
    reason: str = ""
    kind: str = ""
    account: str = ""
    stream: str = ""
    consumer: str = ""


class JetStreamPages:
    """JetStream's pages of one server."""

    def __init__(self, node: Monitored) -> None:
        self._node = node

    # ------------------------------------------------------------------ /varz
    def varz(self) -> dict[str, Any]:
        """The `jetstream` object of /varz; empty without JetStream."""
        engine = self._node.engine
        if engine is None:
            return {}
        page = {"config": self._config(), "stats": self._stats(engine), "limits": self._limits()}
        return page if engine.cluster is None else page | {"meta": meta_shown(engine.cluster)}

    def _config(self) -> dict[str, Any]:
        options = self._node.options.jetstream
        if options is None:
            return {"max_memory": 0, "max_storage": 0}
        config: dict[str, Any] = {
            "max_memory": options.max_memory,
            "max_storage": options.max_file,
            "store_dir": f"{options.store_dir}/jetstream",
        }
        # 0 would mean "never" to a reader of nats-server's page; syncing before every ack is told by its own field.
        config |= {"sync_always": True} if options.sync_always else {"sync_interval": options.sync_interval_ns}
        config |= {"domain": options.domain} if options.domain else {}
        return config | {"strict": options.strict}

    def _limits(self) -> dict[str, Any]:
        options = self._node.options.jetstream
        assert options is not None  # Invariant: there is an engine only with JetStream options.
        limits = {
            "max_batch_inflight_per_stream": options.batches_per_stream,
            "max_batch_inflight_total": options.batches_total,
            "max_batch_size": options.batch_max_msgs,
            "max_batch_timeout": options.batch_timeout_ns,
            "max_request_batch": options.max_request_batch,
            "max_ack_pending": options.max_ack_pending,
            "default_max_consumers": options.default_max_consumers,
        }
        return {name: value for name, value in limits.items() if value}

    def _stats(self, engine: Engine) -> dict[str, Any]:
        return _usage(engine) | {"accounts": 1, "ha_assets": 0, "api": self._api()}

    def _api(self) -> dict[str, int]:
        calls = self._node.api
        total, errors = (calls.total, calls.errors) if calls is not None else (0, 0)
        return {"level": API_LEVEL, "total": total, "errors": errors}

    # ------------------------------------------------------------------ /jsz
    def jsz(self, query: Query) -> dict[str, Any]:
        """The page for a query with acc, accounts, streams, consumers, config, offset and limit."""
        account, config = query.text("acc"), query.flag("config")
        consumers = query.flag("consumers")
        streams = query.flag("streams") or consumers
        detailed = query.flag("accounts") or streams or bool(account)
        offset, _ = query.page(DEFAULT_LIMIT)  # of accounts, and there is one
        engine = self._node.engine
        head = {"server_id": self._node.identity.server_id, "now": format_time(time.time_ns())}
        if engine is None:
            nothing = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0, "accounts": 0}
            api = {"level": 0, "total": 0, "errors": 0}
            empty = {"streams": 0, "consumers": 0, "messages": 0, "bytes": 0, "total": 0}
            return nothing | {"ha_assets": 0, "api": api} | head | {"disabled": True, "config": self._config()} | empty
        page = self._stats(engine) | head | {"config": self._config(), "limits": self._limits()} | _totals(engine)
        if detailed and account in ("", ACCOUNT) and offset == 0:
            details = _usage(engine) | {"reserved_memory": UNLIMITED, "reserved_storage": UNLIMITED, "accounts": 0}
            details = {"name": ACCOUNT, "id": ACCOUNT} | details | {"ha_assets": 0, "api": self._api() | {"level": 0}}
            if streams:
                held = sorted(engine.streams.values(), key=lambda one: one.name)
                details["stream_detail"] = [self._stream(stream, consumers, config) for stream in held]
            page["account_details"] = [details]
        if engine.cluster is not None:
            page["meta_cluster"] = meta_shown(engine.cluster)
        return page | {"total": 1}

    def _stream(self, stream: Stream, consumers: bool, config: bool) -> dict[str, Any]:
        page: dict[str, Any] = {
            "name": stream.name,
            "created": format_time(stream.created_ns),
            "cluster": self._cluster(stream),
        }
        if config:
            page["config"] = config_shown(stream.config, versions=False)
        page["state"] = state_shown(stream)
        if consumers and stream.consumers:
            details = [consumer_info(consumer, listed=True) for _, consumer in sorted(stream.consumers.items())]
            if not config:
                for detail in details:
                    del detail["config"]
            page["consumer_detail"] = details
        return page

    def _cluster(self, stream: Stream) -> dict[str, Any]:
        cluster = self._node.engine.cluster if self._node.engine is not None else None
        return cluster.shown(stream) if cluster is not None else {"leader": self._node.identity.server_name}

    # ------------------------------------------------------------------ /healthz
    def healthz(self, query: Query) -> Health:
        """Health of the server, or of the account, stream or consumer asked for."""
        account, stream, consumer = query.text("account"), query.text("stream"), query.text("consumer")
        if consumer and not stream:
            return Health(400, '"stream" must not be empty when checking consumer health', "BAD_REQUEST")
        if stream and not account:
            return Health(400, '"account" must not be empty when checking stream health', "BAD_REQUEST")
        query.flag("details")
        engine = self._node.engine
        if self._node.lame_duck:
            return Health(500, "server is in lame duck mode and takes no new connections", "CONN")
        if query.flag("js-enabled-only") or query.flag("js-enabled") or query.flag("js-server-only"):
            return Health(200)
        if account and (engine is None or account != ACCOUNT):
            return Health(404, f'JetStream account "{account}" not found', "ACCOUNT", account)
        if engine is None:
            return Health(200)
        return _streams_health(engine, account, stream, consumer) if stream else _all_health(engine)


def _all_health(engine: Engine) -> Health:
    lacking = unhealthy(engine.cluster) if engine.cluster is not None else ""
    if lacking:
        return Health(503, lacking, "JETSTREAM")
    for name, reason in engine.offline.items():
        return _broken(name, reason)
    for stream in engine.streams.values():
        if stream.failed is not None:
            return _broken(stream.name, stream.failed.description)
    return Health(200)


def _streams_health(engine: Engine, account: str, name: str, consumer: str) -> Health:
    if name in engine.offline:
        return _broken(name, engine.offline[name])
    stream = engine.streams.get(name)
    if stream is None:
        return Health(404, f'JetStream stream "{name}" not found on account "{account}"', "STREAM", account, name)
    if stream.failed is not None:
        return _broken(name, stream.failed.description)
    if consumer and consumer not in stream.consumers:
        reason = f'JetStream consumer "{consumer}" not found for stream "{name}" on account "{account}"'
        return Health(404, reason, "CONSUMER", account, name, consumer)
    return Health(200)


def _broken(name: str, reason: str) -> Health:
    return Health(503, f"JetStream stream '{ACCOUNT} > {name}' takes no messages: {reason}", "STREAM", ACCOUNT, name)


def _usage(engine: Engine) -> dict[str, Any]:
    """Bytes stored and reserved."""
    page = dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage"), 0)
    for stream in engine.streams.values():
        kind = "memory" if stream.config.storage == "memory" else "storage"
        page[kind] += stream.store.bytes
        page[f"reserved_{kind}"] += max(0, stream.config.max_bytes)
    return page


def _totals(engine: Engine) -> dict[str, int]:
    streams = engine.streams.values()
    return {
        "streams": len(streams),
        "consumers": sum(len(stream.consumers) for stream in streams),
        "messages": sum(stream.store.msgs for stream in streams),
        "bytes": sum(stream.store.bytes for stream in streams),
    }
