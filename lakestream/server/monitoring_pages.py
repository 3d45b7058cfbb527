"""What the monitoring port says.

Belongs here: the pages as functions of a query and the server's state, without sockets: /varz, /connz, /subsz,
/accountz, /healthz and the index. JetStream's page is in monitoring_jetstream.py, that of the other nodes in
monitoring_routes.py. Field names and their order are nats-server's; fields that this server does not measure are left
out rather than invented.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lakestream import __version__
from lakestream.jetstream.durations import format_duration
from lakestream.jetstream.engine import ACCOUNT
from lakestream.jetstream.gotime import format_time
from lakestream.jetstream.jsonio import dumps
from lakestream.protocol.subjects import matches, valid_literal
from lakestream.server.identity import NATS_VERSION
from lakestream.server.interest import Subscription
from lakestream.server.monitored import Monitored
from lakestream.server.monitoring_jetstream import Health, JetStreamPages
from lakestream.server.monitoring_query import BadQuery, Query
from lakestream.server.monitoring_routes import cluster_settings, routed, routez
from lakestream.server.monitoring_text import resident_bytes, uptime_text
from lakestream.server.options import SECOND

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
PAGES = ("varz", "jsz", "connz", "accountz", "subsz", "routez", "healthz")
DEFAULT_LIMIT = 1024
"""Entries of a list on one page when the query has no `limit`."""


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[Query], Answer]


class Pages:
    """The pages of one server."""

    def __init__(self, node: Monitored) -> None:
        self._node = node
        self._requests: dict[str, int] = {}
        jetstream = JetStreamPages(node)
        self._health = jetstream
        pages: dict[str, Page] = {
            "/": self._index,
            "/varz": self._varz,
            "/connz": self._connz,
            "/subsz": self._subsz,
            "/subscriptionsz": self._subsz,
            "/accountz": self._accountz,
            "/routez": lambda query: json_answer(routez(node, query)),
            "/healthz": self._healthz,
            "/jsz": lambda query: json_answer(jetstream.jsz(query)),
        }
        base = node.options.http_base_path
        self._pages = {base + path: page for path, page in pages.items()}
        if base:
            self._pages[base] = self._index

    def answer(self, path: str, query: str) -> Answer:
        """The answer to a request for `path` with this query string."""
        page = self._pages.get(path)
        if page is None:
            return Answer(404, TEXT, b"404 page not found\n")
        self._requests[path] = self._requests.get(path, 0) + 1
        try:
            return page(Query(query))
        except BadQuery as error:
            return Answer(400, TEXT, str(error).encode())

    # ------------------------------------------------------------------ /
    def _index(self, query: Query) -> Answer:
        base = self._node.options.http_base_path
        links = "".join(f'<li><a href="{base}/{page}">/{page}</a></li>\n' for page in PAGES)
        return Answer(
            200,
            "text/html; charset=utf-8",
            f"<!DOCTYPE html>\n<html lang=en>\n<title>lakestream</title>\n<h1>lakestream {__version__}</h1>\n"
            f"<ul>\n{links}</ul>\n</html>\n".encode(),
        )

    # ------------------------------------------------------------------ /varz
    def _varz(self, query: Query) -> Answer:
        node, now = self._node, time.time_ns()
        options, identity = node.options, node.identity
        page: dict[str, Any] = {
            "server_id": identity.server_id,
            "server_name": identity.server_name,
            "version": NATS_VERSION,
            "lakestream": __version__,
            "proto": 1,
            "host": identity.host,
            "port": identity.port,
        }
        if identity.auth_required:
            page["auth_required"] = True
        if node.cluster is not None and (urls := node.cluster.connect_urls.now()):
            page["connect_urls"] = urls
        page |= {
            "max_connections": options.max_connections,
            **({"max_subscriptions": options.max_subscriptions} if options.max_subscriptions else {}),
            "ping_interval": options.ping_interval_ns,
            "ping_max": options.ping_max,
            "http_host": options.http_host or options.host,
            "http_port": node.bound_http_port,
            "http_base_path": options.http_base_path,
            "https_port": 0,
            "auth_timeout": options.auth_timeout_ns / SECOND,
            "max_control_line": options.max_control_line,
            "max_payload": options.max_payload,
            "max_pending": options.max_pending,
            "cluster": cluster_settings(node.cluster),
            "gateway": {},
            "leaf": {},
            "mqtt": {},
            "websocket": {},
            "jetstream": self._health.varz(),
            "write_deadline": options.write_deadline_ns,
        }
        page |= self._process(now) | self._traffic()
        page["http_req_stats"] = dict(sorted(self._requests.items()))
        page["config_load_time"] = format_time(node.config_loaded_ns)
        page["config_digest"] = options.config_digest
        if options.server_tags:
            page["tags"] = list(options.server_tags)
        if options.server_metadata:
            page["metadata"] = options.server_metadata
        if node.keeper is not None:
            page["lake"] = {
                "url": node.keeper.root,
                "lag": node.keeper.lag(),
                "errors": node.keeper.troubles(),
            }
        return json_answer(page)

    def _process(self, now: int) -> dict[str, Any]:
        cores = os.cpu_count() or 1
        uptime = max(1, now - self._node.started_ns)
        return {
            "start": format_time(self._node.started_ns),
            "now": format_time(now),
            "uptime": uptime_text(uptime),
            "mem": resident_bytes(),
            "cores": cores,
            "cpu": round(time.process_time_ns() * 100 / uptime, 2),
        }

    def _traffic(self) -> dict[str, Any]:
        node, statistics = self._node, self._node.statistics
        live = list(node.connections.values())
        in_msgs = statistics.in_msgs + sum(one.in_msgs for one in live)
        in_bytes = statistics.in_bytes + sum(one.in_bytes for one in live)
        out_msgs = statistics.out_msgs + sum(one.out_msgs for one in live)
        out_bytes = statistics.out_bytes + sum(one.out_bytes for one in live)
        nodes = routed(node.cluster)
        return {
            "connections": len(live),
            "total_connections": statistics.total_connections,
            "routes": nodes.nodes,
            "remotes": nodes.nodes,
            "leafnodes": 0,
            "in_msgs": in_msgs + nodes.in_msgs,
            "in_bytes": in_bytes + nodes.in_bytes,
            "in_client_msgs": in_msgs,
            "in_client_bytes": in_bytes,
            "out_msgs": out_msgs + nodes.out_msgs,
            "out_bytes": out_bytes + nodes.out_bytes,
            "out_client_msgs": out_msgs,
            "out_client_bytes": out_bytes,
            "slow_consumers": statistics.slow_consumers + nodes.slow_consumers,
            "stale_connections": statistics.stale_connections + nodes.stale_connections,
            "subscriptions": node.subscription_count(),
        }

    # ------------------------------------------------------------------ /connz
    def _connz(self, query: Query) -> Answer:
        now = time.time_ns()
        state = query.choice("state", {"": "open", "open": "open", "closed": "closed", "any": "any", "all": "any"})
        subs, auth, cid = query.flag_or_detail("subs"), query.flag("auth"), query.unsigned("cid")
        sort = _sorting(query.text("sort"), state)
        offset, limit = query.page(DEFAULT_LIMIT)
        live: list[Any] = list(self._node.connections.values()) if state != "closed" else []
        every = live + (list(self._node.statistics.closed) if state != "open" else [])
        chosen = [one for one in every if _wanted(one, query)]
        total = len(chosen)
        if cid:
            chosen, offset, limit = [one for one in chosen if one.id == cid], 0, 1
        key, descending = sort
        chosen.sort(key=lambda one: key(one, now), reverse=descending)
        shown = [_connection(one, now, subs, auth) for one in chosen[offset : offset + limit]]
        return json_answer(
            {
                "server_id": self._node.identity.server_id,
                "now": format_time(now),
                "num_connections": len(shown),
                "total": total,
                "offset": offset,
                "limit": limit,
                "connections": shown,
            }
        )

    # ------------------------------------------------------------------ /subsz
    def _subsz(self, query: Query) -> Answer:
        subs, test, account = query.flag("subs"), query.text("test"), query.text("acc")
        if test and not valid_literal(test.encode()):
            raise BadQuery(f"invalid test subject, must be valid publish subject: {test}")
        offset, limit = query.page(DEFAULT_LIMIT)
        found = [] if account not in ("", ACCOUNT) else self._client_subscriptions(test.encode())
        page: dict[str, Any] = {
            "server_id": self._node.identity.server_id,
            "now": format_time(time.time_ns()),
            "num_subscriptions": self._node.subscription_count() if account in ("", ACCOUNT) else 0,
            "total": len(found) if subs else 0,
            "offset": offset,
            "limit": limit,
        }
        if subs:
            page["subscriptions_list"] = found[offset : offset + limit]
        return json_answer(page)

    def _client_subscriptions(self, test: bytes) -> list[dict[str, Any]]:
        return [
            {"account": ACCOUNT, "account_tag": ACCOUNT} | _subscription(sub, connection.id)
            for connection in self._node.connections.values()
            for sub in connection.subs.values()
            if not test or matches(sub.subject, test)
        ]

    # ------------------------------------------------------------------ /accountz
    def _accountz(self, query: Query) -> Answer:
        account = query.text("acc")
        page: dict[str, Any] = {"server_id": self._node.identity.server_id, "now": format_time(time.time_ns())}
        if not account:
            return json_answer(page | {"accounts": [ACCOUNT]})
        if account != ACCOUNT:
            raise BadQuery(f"Account {account} does not exist")
        page["account_detail"] = {
            "account_name": ACCOUNT,
            "update_time": format_time(self._node.started_ns),
            "expired": False,
            "complete": True,
            "jetstream_enabled": self._node.engine is not None,
            "leafnode_connections": 0,
            "client_connections": len(self._node.connections),
            "subscriptions": self._node.subscription_count(),
            "name_tag": ACCOUNT,
        }
        return json_answer(page)

    # ------------------------------------------------------------------ /healthz
    def _healthz(self, query: Query) -> Answer:
        health = self._health.healthz(query)
        if health.status == 200:
            return Answer(200, JSON, b'{"status":"ok"}')
        self._node.log.warn(f'Healthcheck failed: "{health.reason}"')
        return Answer(health.status, JSON, dumps(_unhealthy(health, query.flag("details"))))


def _unhealthy(health: Health, details: bool) -> dict[str, Any]:
    if details:
        error = {"type": health.kind, "account": health.account, "stream": health.stream, "consumer": health.consumer}
        error = {name: value for name, value in error.items() if value}
        return {"status": "error", "errors": [error | {"error": health.reason}]}
    return {"status": "error" if health.status in (400, 500) else "unavailable", "error": health.reason}


# ---------------------------------------------------------------------- connections

Key = Callable[[Any, int], Any]
_SORTS: dict[str, tuple[Key, bool]] = {
    "": (lambda one, now: one.id, False),
    "cid": (lambda one, now: one.id, False),
    "start": (lambda one, now: one.start_ns, False),
    "subs": (lambda one, now: len(getattr(one, "subs", ())), True),
    "pending": (lambda one, now: getattr(one, "pending_bytes", 0), True),
    "msgs_to": (lambda one, now: one.out_msgs, True),
    "msgs_from": (lambda one, now: one.in_msgs, True),
    "bytes_to": (lambda one, now: one.out_bytes, True),
    "bytes_from": (lambda one, now: one.in_bytes, True),
    "last": (lambda one, now: one.last_ns, True),
    "idle": (lambda one, now: now - one.last_ns, True),
    "uptime": (lambda one, now: getattr(one, "stop_ns", now) - one.start_ns, True),
    "rtt": (lambda one, now: one.rtt_ns, True),
    "stop": (lambda one, now: getattr(one, "stop_ns", now), True),
    "reason": (lambda one, now: one.close_reason, False),
}


def _sorting(name: str, state: str) -> tuple[Key, bool]:
    if name not in _SORTS:
        raise BadQuery(f"invalid sorting option: {name}")
    if name in ("stop", "reason") and state != "closed":
        raise BadQuery(f"sort by {name} only valid on closed connections")
    return _SORTS[name]


def _wanted(one: Any, query: Query) -> bool:
    user, account, subject = query.text("user"), query.text("acc"), query.text("filter_subject").encode()
    if user and one.user != user:
        return False
    if account and account != ACCOUNT:
        return False
    return not subject or any(matches(sub.subject, subject) for sub in getattr(one, "subs", {}).values())


def _connection(one: Any, now: int, subs: str, auth: bool) -> dict[str, Any]:
    stop = getattr(one, "stop_ns", 0)
    end = stop or now
    page: dict[str, Any] = {
        "cid": one.id,
        "kind": "Client",
        "type": "nats",
        "ip": one.host,
        "port": one.port,
        "start": format_time(one.start_ns),
        "last_activity": format_time(one.last_ns),
    }
    if stop:
        page |= {"stop": format_time(stop), "reason": one.close_reason}
    if one.rtt_ns:
        page["rtt"] = format_duration(one.rtt_ns)
    held = list(getattr(one, "subs", {}).values())
    page |= {
        "uptime": uptime_text(end - one.start_ns),
        "idle": uptime_text(end - one.last_ns),
        "pending_bytes": getattr(one, "pending_bytes", 0),
        "in_msgs": one.in_msgs,
        "out_msgs": one.out_msgs,
        "in_bytes": one.in_bytes,
        "out_bytes": one.out_bytes,
        "subscriptions": len(held),
    }
    page |= {name: value for name in ("name", "lang", "version") if (value := getattr(one, name))}
    if auth:
        page |= ({"authorized_user": one.user} if one.user else {}) | {"name_tag": ACCOUNT}
    if subs == "list" and held:
        page["subscriptions_list"] = [sub.subject.decode("utf-8", "replace") for sub in held]
    if subs == "detail" and held:
        page["subscriptions_list_detail"] = [_subscription(sub, one.id) for sub in held]
    return page


def _subscription(sub: Subscription, cid: int) -> dict[str, Any]:
    queue = {"qgroup": sub.queue.decode("utf-8", "replace")} if sub.queue else {}
    return {
        "subject": sub.subject.decode("utf-8", "replace"),
        **queue,
        "sid": sub.sid.decode("utf-8", "replace"),
        "msgs": sub.delivered,
        **({"max": sub.maximum} if sub.maximum else {}),
        "cid": cid,
    }


# ---------------------------------------------------------------------- forms


def json_answer(page: Mapping[str, Any] | Sequence[Any]) -> Answer:
    """A page as indented JSON with Go's escapes."""
    return Answer(200, JSON, msgspec.json.format(dumps(page), indent=2))
