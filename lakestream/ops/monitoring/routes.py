"""The monitoring pages of other nodes.

Belongs here: /routez, the `cluster` object of /varz, and the traffic between nodes. There is one connection to each
node, so a route is a node here. Only messages of clients are counted, not those of Raft groups and heartbeats.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from lakestream.config.options import SECOND
from lakestream.net.peers.cluster import Cluster
from lakestream.net.peers.link import Link
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.query import Query
from lakestream.protocol.durations import format_duration, uptime_text
from lakestream.protocol.gotime import format_time


class Routed(NamedTuple):
    """Traffic with the connected nodes, and connections that ended badly."""

    nodes: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0


def routed(cluster: Cluster | None) -> Routed:
    """Return the traffic with all nodes; zero without a cluster."""
    if cluster is None:
        return Routed()
    nodes = list(cluster.routes.nodes.values())
    return Routed(
        len(nodes),
        sum(node.in_msgs for node in nodes),
        sum(node.in_bytes for node in nodes),
        sum(node.out_msgs for node in nodes),
        sum(node.out_bytes for node in nodes),
        cluster.peers.slow_consumers,
        cluster.peers.stale_connections,
    )


def cluster_settings(cluster: Cluster | None) -> dict[str, Any]:
    """Return the `cluster` object of /varz; empty without a cluster."""
    if cluster is None:
        return {}
    options = cluster.options
    page: dict[str, Any] = {
        "name": cluster.name,
        "addr": options.host,
        "cluster_port": cluster.peers.bound_port,
        "auth_timeout": options.auth_timeout_ns / SECOND,
    }
    if options.routes:
        page["urls"] = [url.address for url in options.routes]
    if options.tls is not None:
        page |= {"tls_timeout": options.tls.timeout_ns / SECOND, "tls_required": True, "tls_verify": True}
    return page


def routez(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page; `subs=1` lists the interest of each node, `subs=detail` with queue groups."""
    subs = query.flag_or_detail("subs")
    now = time.time_ns()
    routes = (
        [] if node.cluster is None else [_route(node.cluster, link, now, subs) for link in node.cluster.peers.links()]
    )
    return {
        "server_id": node.identity.server_id,
        "server_name": node.identity.server_name,
        "now": format_time(now),
        "num_routes": len(routes),
        "routes": routes,
    }


def _route(cluster: Cluster, link: Link, now: int, subs: str) -> dict[str, Any]:
    remote = cluster.routes.nodes.get(link.name)
    idle = max(0, time.monotonic_ns() - link.heard_ns)
    page: dict[str, Any] = {
        "rid": link.number,
        "remote_id": link.remote.server_id if link.remote is not None else "",
        "remote_name": link.name,
        "did_solicit": link.dialled,
        "is_configured": link.target is not None and link.target.explicit,
        "ip": link.host,
        "port": link.port,
        "start": format_time(link.start_ns),
        "last_activity": format_time(now - idle),
    }
    if link.rtt_ns:
        page["rtt"] = format_duration(link.rtt_ns)
    page |= {
        "uptime": uptime_text(now - link.start_ns),
        "idle": uptime_text(idle),
        "pending_size": link.pending_bytes,
        "in_msgs": remote.in_msgs if remote is not None else 0,
        "out_msgs": remote.out_msgs if remote is not None else 0,
        "in_bytes": remote.in_bytes if remote is not None else 0,
        "out_bytes": remote.out_bytes if remote is not None else 0,
        "subscriptions": len(remote.subscriptions) if remote is not None else 0,
        "link": {
            "alive": not link.silent,
            "in_buffers": link.in_msgs,
            "in_bytes": link.in_bytes,
            "out_buffers": link.out_msgs,
            "out_bytes": link.out_bytes,
            "dropped": link.dropped,
        },
    }
    if subs and remote is not None and remote.subscriptions:
        held = [
            (account, sub.subject.decode("utf-8", "replace"), sub.queue.decode("utf-8", "replace"))
            for account, sub in remote.subscriptions
        ]
        if subs == "list":
            page["subscriptions_list"] = [subject for _, subject, _ in held]
        else:
            page["subscriptions_list_detail"] = [
                {"account": account, "subject": subject} | ({"qgroup": queue} if queue else {})
                for account, subject, queue in held
            ]
    return page
