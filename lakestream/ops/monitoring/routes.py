"""The monitoring pages of other nodes.

Belongs here: /routez. There is one connection to each node, so a route is a node here. Only messages of clients are
counted, not those of Raft groups and heartbeats.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.query import Query
from lakestream.protocol.durations import format_duration, uptime_text
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from lakestream.net.peers.link import Link
    from lakestream.net.peers.remote_node import RemoteNode


def routez(node: Monitored, query: Query) -> dict[str, Any]:
    """Return the page; `subs=1` lists the interest of each node, `subs=detail` with queue groups."""
    subs = query.flag_or_detail("subs")
    now = time.time_ns()
    routes = [_route(link, remote, now, subs) for link, remote in node.cluster.links()]
    return {
        "server_id": node.identity.server_id,
        "server_name": node.identity.server_name,
        "now": format_time(now),
        "num_routes": len(routes),
        "routes": routes,
    }


def _route(link: Link, remote: RemoteNode, now: int, subs: str) -> dict[str, Any]:
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
        "in_msgs": remote.in_msgs,
        "out_msgs": remote.out_msgs,
        "in_bytes": remote.in_bytes,
        "out_bytes": remote.out_bytes,
        "subscriptions": len(remote.subscriptions),
        "link": {
            "alive": not link.silent,
            "in_buffers": link.in_msgs,
            "in_bytes": link.in_bytes,
            "out_buffers": link.out_msgs,
            "out_bytes": link.out_bytes,
            "dropped": link.dropped,
        },
    }
    if subs and remote.subscriptions:
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
