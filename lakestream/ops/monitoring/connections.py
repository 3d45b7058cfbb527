"""The monitoring pages of clients: /connz and /subsz.

Belongs here: open and closed connections, sorting and filters, and subscriptions by account. Field names and their
order are nats-server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lakestream.config.options import CLIENT_TYPES
from lakestream.net.accounts.accounts import Account, AccountClient
from lakestream.net.interest.subscription import Subscription
from lakestream.net.statistics import Closed
from lakestream.net.tls import TlsState
from lakestream.ops.monitoring.monitored import Monitored, account_of, sublist_stats
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.durations import format_duration, uptime_text
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import matches, overlaps, valid_literal

DEFAULT_LIMIT = 1024
"""Entries of a page when the query has no `limit`."""

_STATES = {"": "open", "open": "open", "closed": "closed", "any": "any", "all": "any"}

_UNFILTERED = ("", ">")
"""Values of `filter_subject` that every client matches."""

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
    "uptime": (lambda one, now: getattr(one, "stop_ns", now) - one.start_ns, False),
    "rtt": (lambda one, now: one.rtt_ns, True),
    "stop": (lambda one, now: getattr(one, "stop_ns", now), True),
    "reason": (lambda one, now: one.close_reason, False),
}


# ---------------------------------------------------------------------- /connz
def connz(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page for a query with state, sort, acc, user, cid, mqtt_client, filter_subject (only with acc), subs,
    auth, offset and limit. Raises BadQuery."""
    now = time.time_ns()
    state = query.choice("state", _STATES)
    subs, auth, cid = query.flag_or_detail("subs"), query.flag("auth"), query.unsigned("cid")
    key, descending = _sorting(query.text("sort"), state)
    offset, limit = (0, 1) if cid else query.page(DEFAULT_LIMIT)
    account = query.text("acc")
    if not account and query.text("filter_subject") not in _UNFILTERED:
        raise BadQuery("filter by subject only valid with account filtering")
    known = not account or account_of(node, account) is not None
    of_account = _connections(node, account, state) if known else []
    chosen = [one for one in of_account if _wanted(one, cid, query)]
    chosen.sort(key=lambda one: (key(one, now), one.id), reverse=descending)  # pages follow each other, as in 2.15.3
    shown = [_connection(one, now, subs, auth) for one in chosen[offset : offset + limit]]
    return {
        "server_id": node.identity.server_id if known else "",
        "now": format_time(now),
        "num_connections": len(shown),
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "connections": shown if known else None,
    }


def _connections(node: Monitored, account: str, state: str) -> Sequence[AccountClient | Closed]:
    """Return the connections of an account, or ("") all."""
    found: list[AccountClient | Closed] = []
    if state != "closed":
        found += [one for one in node.connections.values() if account in ("", one.account.name)]
    if state != "open":
        found += [one for one in node.statistics.closed if account in ("", one.account_name)]
    return found


def _sorting(name: str, state: str) -> tuple[Key, bool]:
    if name not in _SORTS:
        raise BadQuery(f"invalid sorting option: {name}")
    if name in ("stop", "reason") and state != "closed":
        raise BadQuery(f"sort by {name} only valid on closed connections")
    return _SORTS[name]


def _wanted(one: Any, cid: int, query: Query) -> bool:
    user, subject, device = query.text("user"), query.text("filter_subject"), query.text("mqtt_client")
    if (cid and one.id != cid) or (user and one.user != user) or (device and _mqtt_client(one) != device):
        return False
    if subject in _UNFILTERED or isinstance(one, Closed):  # nats-server does not ask either of these
        return True
    return any(overlaps(sub.subject, subject.encode()) for sub in one.subs.values())


def _mqtt_client(one: Any) -> str:
    return getattr(one, "mqtt_client", "")


def _connection(one: Any, now: int, subs: str, auth: bool) -> dict[str, Any]:
    stop = getattr(one, "stop_ns", 0)
    end = stop or now
    page: dict[str, Any] = {
        "cid": one.id,
        "kind": "Client",
        "type": CLIENT_TYPES[one.kind],
        "ip": one.host if one.port else "",  # so also in nats-server
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
    if not stop and one.login.proxy:
        page["proxy"] = {"key": one.login.proxy}
    page |= _tls(one.tls, auth)
    account = (one.account_name if stop else one.account.name) if auth else ""
    if auth and one.user:
        page["authorized_user"] = one.user
    if account not in ("", GLOBAL_ACCOUNT):
        page["account"] = account
    client = None if stop or not auth else one.client
    if client is not None and client.issuer_key:
        page |= ({"jwt": client.jwt} if client.jwt else {}) | {"issuer_key": client.issuer_key}
        page |= {"tags": list(client.tags)} if client.tags else {}
    if device := _mqtt_client(one):
        page["mqtt_client"] = device
    if subs == "list" and held:
        page["subscriptions_list"] = [sub.subject.decode("utf-8", "replace") for sub in held]
    if subs == "detail" and held:
        page["subscriptions_list_detail"] = [_subscription(sub, one.id) for sub in held]
    return page | ({"name_tag": account if stop else one.account.options.shown} if account else {})


def _tls(tls: TlsState | None, auth: bool) -> dict[str, Any]:
    if tls is None:
        return {}
    page: dict[str, Any] = {"tls_version": tls.version, "tls_cipher_suite": tls.cipher}
    if tls.first:
        page["tls_first"] = True
    if auth and tls.chain:
        page["tls_peer_certs"] = [
            {
                **({"subject": subject} if (subject := certificate.shown_subject) else {}),
                "spki_sha256": certificate.key_sha256,
                "cert_sha256": certificate.sha256,
            }
            for certificate in tls.chain
        ]
    return page


# ---------------------------------------------------------------------- /subsz
def subsz(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page for a query with subs, test, acc, offset and limit. Subscriptions of the server itself have cid
    0; those of other nodes are counted but not listed."""
    subs, test, only = query.flag("subs"), query.text("test"), query.text("acc")
    if test and not valid_literal(test.encode()):
        raise BadQuery(f"invalid test subject, must be valid publish subject: {test}")
    offset, limit = query.page(DEFAULT_LIMIT)
    accounts = [account for account in node.accounts if only in ("", account.name)]
    page: dict[str, Any] = {
        "server_id": node.identity.server_id,
        "now": format_time(time.time_ns()),
        **sublist_stats(node, accounts),
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if subs:
        found = [
            {"account": account.name, "account_tag": account.name} | _subscription(sub, cid)
            for account in accounts
            for sub, cid in _held(account)
            if not test or matches(sub.subject, test.encode())
        ]
        found.sort(key=lambda one: (one["cid"], one["sid"], one["subject"]))
        page["total"] = len(found)
        if shown := found[offset : offset + limit]:
            page["subscriptions_list"] = shown
    return page


def _held(account: Account) -> list[tuple[Subscription, int]]:
    """Return the subscriptions of an account on this server, with their client ids."""
    cids = {id(sub): cid for cid, connection in account.connections.items() for sub in connection.subs.values()}
    held = account.hub.interest_graph.subscriptions()
    return [(sub, cids.get(id(sub), 0)) for sub in held if sub.remote is None]


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
