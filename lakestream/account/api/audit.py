"""The audit trail of the JetStream API.

Belongs here: the advisory `$JS.EVENT.ADVISORY.API` about each request and its answer
(docs/internals/api.md#advisories). It is sent only when somebody listens, by the node that answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakestream.ports import Bus, Clock
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import PREFIX, Request
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid

SUBJECT = b"$JS.EVENT.ADVISORY.API"


class Audit:
    """Tells of requests. `server` is this node's name."""

    def __init__(self, bus: Bus, clock: Clock, server: str, domain: str) -> None:
        self._bus, self._clock, self._server, self._domain = bus, clock, server, domain

    def answered(self, request: Request, response: bytes, client: dict[str, Any] | None) -> None:
        """A request of a client, shown like this, has its answer."""
        if not self._bus.interest(SUBJECT):
            return
        event: dict[str, Any] = {
            "type": "io.nats.jetstream.advisory.v1.api_audit",
            "id": nuid(),
            "timestamp": format_time(self._clock.now()),
            "server": self._server,
            "client": client,
            "subject": PREFIX.decode() + subject_of(request.pattern, request.tokens),
        }
        if request.body:
            event["request"] = request.body.decode("utf-8", "replace")
        event["response"] = response.decode("utf-8", "replace")
        if self._domain:
            event["domain"] = self._domain
        self._bus.publish(SUBJECT, b"", b"", dumps(event))


def subject_of(pattern: str, tokens: Sequence[str]) -> str:
    """The subject, without its prefix, that matched `pattern` with these tokens at its wildcards."""
    left = iter(tokens)
    return ".".join(next(left, part) if part in ("*", ">") else part for part in pattern.split("."))
