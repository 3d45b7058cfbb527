"""Requests to the server itself under `$SYS.`.

Belongs here: what any client may ask the server over NATS (protocol.md §12). Those that need a system account are not
served: without one they have no responders, as with nats-server.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from lakestream.jetstream.gotime import format_time
from lakestream.jetstream.ports import Bus, ClientInfo, Clock
from lakestream.server.identity import NATS_VERSION, Identity


class SystemRequests:
    """Answers `$SYS.REQ.USER.INFO`."""

    def __init__(self, bus: Bus, clock: Clock, identity: Identity) -> None:
        self._bus, self._clock, self._identity = bus, clock, identity
        self._numbers = itertools.count(1)
        bus.subscribe(b"$SYS.REQ.USER.INFO", self._user_info, local=True)

    def _user_info(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if reply:
            data = {"user": client.user, "account": client.account, "account_name": client.account}
            body = msgspec.json.encode({"server": self.server(), "data": data})
            self._bus.publish(reply, b"", b"", body)

    def server(self) -> dict[str, Any]:
        """What a message of the system says of this server; each has a number of its own."""
        identity = self._identity
        domain = {"domain": identity.domain} if identity.domain else {}
        return {
            "name": identity.server_name,
            "host": identity.host,
            "id": identity.server_id,
            **domain,
            "ver": NATS_VERSION,
            "jetstream": identity.jetstream,
            "seq": next(self._numbers),
            "time": format_time(self._clock.now()),
        }
