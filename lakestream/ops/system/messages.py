"""What messages of the server itself begin with.

Belongs here: which server speaks, the number of the message, and the head of an event. What the messages go on to say
is in requests.py, account.py and events.py.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.identity import NATS_VERSION, Identity
from lakestream.ports import Clock
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid


class Named(Protocol):
    """A cluster's name."""

    @property
    def name(self) -> str:
        """As it is now."""


class Speaker(Protocol):
    """The server that speaks; the node is one."""

    options: Options
    identity: Identity
    log: Logger

    @property
    def cluster(self) -> Named | None:
        """None without a cluster."""


class SystemMessages:
    """Heads of messages, numbered in the order in which they are made."""

    def __init__(self, node: Speaker, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self._numbers = itertools.count(1)

    def server(self) -> dict[str, Any]:
        """What a message of the system says of this server; each has a number of its own."""
        identity, options, cluster = self._node.identity, self._node.options, self._node.cluster
        page: dict[str, Any] = {
            "name": identity.server_name,
            "host": identity.host,
            "id": identity.server_id,
        }
        if cluster is not None:
            page["cluster"] = cluster.name
        if identity.domain:
            page["domain"] = identity.domain
        page["ver"] = NATS_VERSION
        if options.server_tags:
            page["tags"] = list(options.server_tags)
        if options.server_metadata:
            page["metadata"] = options.server_metadata
        # Of nats-server's flags only the first is about clients: that there is JetStream.
        page |= {"jetstream": identity.jetstream, "flags": int(identity.jetstream)}
        return page | {"seq": next(self._numbers), "time": format_time(self._clock.now())}

    def event(self, kind: str) -> dict[str, Any]:
        """The head of an event: its type, an id of its own, when and where."""
        return {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": nuid(),
            "timestamp": format_time(self._clock.now()),
            "server": self.server(),
        }
