"""Finding streams by name, and their StreamInfo."""

from __future__ import annotations

from typing import Any

from lakestream.meta.node import MetaNode
from lakestream.meta.ports import AccountStreams
from lakestream.protocol.api.errors import api_error
from lakestream.stream.assembly import Stream
from lakestream.stream.info import info_shown


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


def info_of(node: MetaNode, stream: Stream, *, domain: str = "", **more: Any) -> dict[str, Any]:
    """Return StreamInfo; in a cluster it always has the `cluster` object and the domain."""
    shown = node.shown.cluster(stream.uid)
    if shown:
        more["cluster"] = shown
    if node.answers.domain_always:
        domain = node.shared.options.domain
    return info_shown(stream, node.shared.clock.now(), domain=domain, **more)
