"""The monitoring pages of accounts: /accountz and /accstatz.

Belongs here: the list of accounts, their exports, imports and mappings, and the traffic of their clients. An account
shows the requests to the system account among its imports: they are answered without imports here. Field names and
their order are nats-server's.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lakestream.config.account_options import (
    Latency,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from lakestream.config.options import SECOND
from lakestream.net.accounts.accounts import Account
from lakestream.net.accounts.responses import Responses
from lakestream.ops.monitoring.monitored import Monitored, account_of, configured, sublist_stats
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.protocol import jwt  # with time zones, which a server without operators does without

MAX_PATHS_SHOWN = 1024
"""Open reply paths of an account that /accountz shows; others are left out."""

_RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}

_SYSTEM_EXPORTS = (
    ("$SYS.DEBUG.SUBSCRIBERS", "Singleton"),
    ("$SYS.REQ.ACCOUNT.*.CONNZ", "Streamed"),
    ("$SYS.REQ.ACCOUNT.*.STATZ", "Streamed"),
    ("$SYS.REQ.USER.*.INFO", "Singleton"),
    ("$JS.API.>", "Singleton"),
)

_COMMON_IMPORTS = (
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ", False),
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ", False),
    ("$SYS.REQ.ACCOUNT.{}.STATZ", "$SYS.REQ.ACCOUNT.PING.STATZ", False),
    ("$SYS.REQ.USER.{}.INFO", "$SYS.REQ.USER.INFO", True),
    ("$JS.API.>", "$JS.API.>", True),
)
"""Imports from the system account that every account has: the subject there, the one here, and `share`."""


# ---------------------------------------------------------------------- /accountz
def accountz(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page; `acc`: with details. Raises BadQuery for an unknown account."""
    name, system = query.text("acc"), node.accounts.system.name
    page: dict[str, Any] = {
        "server_id": node.identity.server_id,
        "now": format_time(time.time_ns()),
        "system_account": system,
    }
    if not name:
        return page | {"accounts": sorted(account.name for account in configured(node))}
    return page | {"account_detail": account_detail(node, name)}


def account_detail(node: Monitored, name: str) -> dict[str, Any]:
    """Return one account. Raises BadQuery when it is unknown."""
    account = account_of(node, name)
    if account is None:
        raise BadQuery(f"Account {name} does not exist")
    signed = node.signed
    updated_ns = signed.updated.get(name, 0) if signed is not None else 0
    page: dict[str, Any] = {"account_name": name, "update_time": format_time(updated_ns or node.config_loaded_ns)}
    if account.is_system:
        page["is_system"] = True
    page |= {
        "expired": signed is not None and name in signed.ended,
        "complete": account.complete,
        "jetstream_enabled": node.jetstream is not None and name in node.jetstream.served,
        "leafnode_connections": len(account.leaves),
        "client_connections": len(account.connections),
        "subscriptions": len(account.hub.interest_graph),
    }
    options, system = account.options, node.accounts.system.name
    if account.hub.mappings is not None:
        page["mappings"] = account.hub.mappings.shown()
    if exports := _exports(options.exports, account.is_system):
        page["exports"] = exports
    page["imports"] = [_import(node, one) for one in account.imports] + _common_imports(name, system, account.is_system)
    page |= _signed(options.token) if options.token is not None else {}
    page["name_tag"] = options.shown
    page["sublist_stats"] = sublist_stats(node, [account])
    ways = account.hub.responses
    if isinstance(ways, Responses) and (shown := _reply_paths(ways)):
        page["responses"] = shown
    return page


def _signed(token: jwt.Token[jwt.AccountClaims]) -> dict[str, Any]:
    """Return what is shown of an account's token."""
    from lakestream.protocol.jwt import claims_of  # loaded already where there are tokens

    page: dict[str, Any] = {"jwt": token.text, "issuer_key": token.iss, "decoded_jwt": claims_of(token.text)}
    if token.nats.tags:
        page["tags"] = list(token.nats.tags)
    if token.nats.revocations:
        page["revoked_user"] = {key: format_time(at * SECOND) for key, at in token.nats.revocations.items()}
    return page


def _reply_paths(ways: Responses) -> dict[str, Any]:
    """Return the open reply paths of an account, by subject."""
    shown = {}
    for subject, way in itertools.islice(ways, MAX_PATHS_SHOWN):
        local = subject.decode("utf-8", "replace")
        reply = way.reply.decode("utf-8", "replace")
        page = _imported(reply, way.back.hub.account, {"to": local}, local, "service")
        # Type 2 is "service" again. A reply path does not know `share`.
        shown[local] = page | {"type": 2, "tracking": way.measured is not None}
    return shown


def _exports(exports: Iterable[StreamExport | ServiceExport], is_system: bool) -> list[dict[str, Any]]:
    services = [_service(one) for one in exports if isinstance(one, ServiceExport)]
    if is_system:
        services += [
            {"subject": subject, "type": "service", "response_type": response} for subject, response in _SYSTEM_EXPORTS
        ]
    streams = [
        {"subject": one.subject, "type": "stream"} | _approved(one) for one in exports if isinstance(one, StreamExport)
    ]
    return services + streams


def _service(export: ServiceExport) -> dict[str, Any]:
    page = {"subject": export.subject, "type": "service", "response_type": _RESPONSES[export.response]}
    latency = {"service_latency": _latency(export.latency)} if export.latency is not None else {}
    return page | _approved(export) | latency


def _approved(export: StreamExport | ServiceExport) -> dict[str, Any]:
    page: dict[str, Any] = {"approved_accounts": sorted(export.accounts)} if export.accounts else {}
    if export.activated:
        page["token_req"] = True
    if export.revoked:
        page["revoked_activations"] = {account: format_time(at * SECOND) for account, at in export.revoked}
    return page


def _latency(latency: Latency) -> dict[str, Any]:
    return {"sampling": latency.sampling or "headers", "results": latency.subject}


def _import(node: Monitored, one: StreamImport | ServiceImport) -> dict[str, Any]:
    if isinstance(one, StreamImport):
        local = one.to or (f"{one.prefix}.{one.subject}" if one.prefix else one.subject)
        return _imported(one.subject, one.account, {}, local, "stream")
    local = one.to or one.subject
    page = _imported(one.subject, one.account, {"to": local}, local, "service", share=one.share)
    exporter = node.accounts.get(one.account)
    for export in exporter.options.exports if exporter is not None else ():
        if isinstance(export, ServiceExport) and export.subject == one.subject and export.latency is not None:
            page["latency"] = _latency(export.latency)
    return page


def _imported(
    subject: str, account: str, to: dict[str, str], local: str, kind: str, share: bool = False
) -> dict[str, Any]:
    page: dict[str, Any] = {"subject": subject, "account": account, **to, "local_subject": local, "type": kind}
    return page | {"invalid": False, "share": share, "tracking": False}


def _common_imports(name: str, system: str, is_system: bool) -> list[dict[str, Any]]:
    """Return the imports that every account has; the system account has the requests under its own subjects."""
    return [
        _imported(subject.format(name), system, {"to": local}, local, "service", share)
        for subject, local, share in _COMMON_IMPORTS
        if not is_system or local == "$SYS.REQ.USER.INFO"
    ]


# ---------------------------------------------------------------------- /accstatz
def accstatz(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page; `unused=1`: with accounts without connections."""
    name = query.text("names")
    return statz(node, [name] if name else None, unused=query.flag("unused"))


def statz(node: Monitored, names: Sequence[str] | None, *, unused: bool) -> dict[str, Any]:
    """Return the traffic of these accounts, None: all; `unused`: with those without connections."""
    found = [account for account in configured(node) if (names is None or account.name in names)]
    return {
        "server_id": node.identity.server_id,
        "now": format_time(time.time_ns()),
        "account_statz": [account_traffic(node, account) for account in found if unused or account.connections],
    }


def account_traffic(node: Monitored, account: Account) -> dict[str, Any]:
    """Return the connections of an account and the traffic of its clients."""
    clients = account.connections.values()
    leaves = node.leafnodes.in_account(account) if node.leafnodes is not None else []
    traffic = node.statistics.account(account.name, clients)
    return {
        "acc": account.name,
        "name": account.options.shown,
        "conns": len(clients),
        "leafnodes": len(leaves),
        "total_conns": len(clients) + len(leaves),
        "num_subscriptions": len(account.hub.interest_graph),
        "sent": _moved(traffic.out_msgs, traffic.out_bytes, _sum(leaves, "out_msgs"), _sum(leaves, "out_bytes")),
        "received": _moved(traffic.in_msgs, traffic.in_bytes, _sum(leaves, "in_msgs"), _sum(leaves, "in_bytes")),
        "slow_consumers": traffic.slow_consumers,
    }


def _sum(leaves: Sequence[object], counter: str) -> int:
    return sum(getattr(leaf, counter) for leaf in leaves)


def _moved(msgs: int, size: int, leaf_msgs: int, leaf_bytes: int) -> dict[str, Any]:
    """Return traffic; that of leaf nodes is part of the total."""
    page: dict[str, Any] = {"msgs": msgs + leaf_msgs, "bytes": size + leaf_bytes}
    page |= {link: {"msgs": 0, "bytes": 0} for link in ("gateways", "routes")}
    return page | {"leafs": {"msgs": leaf_msgs, "bytes": leaf_bytes}}
