"""Advisories about snapshots and restores.

Belongs here: `$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_…` and `RESTORE_…` (docs/internals/api.md#advisories).
"""

from __future__ import annotations

from typing import Any

from lakestream.account.engine import Engine
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.api.request import Request
from lakestream.protocol.client import client_shown
from lakestream.protocol.gotime import format_time


class BackupEvents:
    """Sends the advisories of one snapshot or restore.

    Args:
        what: `SNAPSHOT` or `RESTORE`.
        request: the client's request, with the node that received it.
    """

    def __init__(self, engine: Engine, what: str, stream: str, request: Request) -> None:
        self._engine, self._what, self._stream = engine, what, stream
        self._client = client_shown(request.client, engine.node.shown_server(request.origin), engine.node.name)
        self._begun_ns = engine.clock.now()

    def begun(self, **fields: Any) -> None:
        """Send the advisory of the beginning."""
        self._send("CREATE", {"stream": self._stream, **fields, "client": self._client})

    def ended(self, *, error: str = "", **fields: Any) -> None:
        """Send the advisory of the end, with or without an error."""
        span = {"start": format_time(self._begun_ns), "end": format_time(self._engine.clock.now())}
        shown = {"stream": self._stream, **span, **fields, "client": self._client}
        self._send("COMPLETE", {**shown, "error": error} if error else shown)

    def _send(self, stage: str, fields: dict[str, Any]) -> None:
        kind, engine = f"{self._what}_{stage}", self._engine
        advise(engine.bus, engine.clock, engine.domain, f"STREAM.{kind}.{self._stream}", kind.lower(), fields)
