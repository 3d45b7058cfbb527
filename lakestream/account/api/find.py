"""Finding streams by name, and their StreamInfo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakestream.meta.assignments import Assignment
from lakestream.meta.node import MetaNode
from lakestream.meta.ports import AccountStreams
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.gotime import format_time
from lakestream.stream.info import config_shown, info_shown

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant


def find(account: AccountStreams, name: str, *, led: bool = True) -> Stream:
    """Return the stream `name`.

    Raise ApiError 10059, 10194 when its log cannot be read, 10008 when `led` is set and this node does not lead it.
    """
    stream = account.streams.get(name)
    if stream is None:
        raise api_error(10194, err=account.offline[name]) if name in account.offline else api_error(10059)
    if led and not stream.leading:
        raise api_error(10008)
    return stream


def info_of(node: MetaNode, stream: Stream | Dormant, *, domain: str = "", **more: Any) -> dict[str, Any]:
    """Return StreamInfo; in a cluster it always has the `cluster` object and the domain."""
    shown = node.shown.cluster(stream.uid)
    if shown:
        more["cluster"] = shown
    if node.clustered:
        domain = node.shared.options.domain
    return info_shown(stream, node.shared.clock.now(), domain=domain, **more)


def info_of_new(node: MetaNode, assignment: Assignment) -> dict[str, Any]:
    """Return StreamInfo of a stream that is assigned and has no leader yet: it is empty."""
    config = node.config_of(assignment)
    first, nothing = config.first_seq, format_time(0)
    return {
        "config": config_shown(config, versions=True),
        "created": format_time(assignment.created_ns),
        "state": {
            "messages": 0,
            "bytes": 0,
            "first_seq": first,
            "first_ts": nothing,
            "last_seq": max(first - 1, 0),
            "last_ts": nothing,
            "consumer_count": 0,
        },
        "domain": node.shared.options.domain,
        "cluster": {"name": node.name},
        "ts": format_time(node.shared.clock.now()),
    }
