"""Discovery of the service (ADR-32): `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.

Belongs here: the subjects and the responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lakestream import __version__
from lakestream.ops.sql.figures import SqlFigures
from lakestream.ports import Bus, ClientInfo, Single, Subscribed, singly
from lakestream.protocol import sql
from lakestream.protocol.gotime import format_time

NAME = "lakestream-sql"
"""Name of the service."""
DESCRIPTION = "SQL on the streams of the account"
ENDPOINTS = (("sql", sql.QUERY), ("sql-stream", f"{sql.QUERY_STREAM}*"))
_NS = 1_000_000_000


class Discovery:
    """Answers discovery in one account, until closed.

    Args:
        identifier: of this instance.
        queue_group: of the endpoints.
        figures: of the endpoints in this account, by name.
        started_ns: time of the start, ns since the epoch.
    """

    def __init__(
        self, bus: Bus, identifier: str, queue_group: str, figures: Callable[[str], SqlFigures], started_ns: int
    ) -> None:
        self._bus, self._id, self._group, self._figures = bus, identifier, queue_group, figures
        self._started = format_time(started_ns)
        pages: dict[str, Callable[[], dict[str, Any]]] = {"PING": dict, "INFO": self._info, "STATS": self._stats}
        self._subscriptions: list[Subscribed] = []
        for verb, page in pages.items():
            for subject in (f"$SRV.{verb}", f"$SRV.{verb}.{NAME}", f"$SRV.{verb}.{NAME}.{identifier}"):
                self._subscriptions.append(bus.subscribe(subject.encode(), singly(self._answer(verb, page))))

    def close(self) -> None:
        """Stop answering."""
        for subscription in self._subscriptions:
            subscription.cancel()

    def _answer(
        self, verb: str, page: Callable[[], dict[str, Any]]
    ) -> Callable[[bytes, bytes, bytes, bytes, ClientInfo], None]:
        def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            if not reply:
                return
            who: dict[str, Any] = {"type": f"io.nats.micro.v1.{verb.lower()}_response", "name": NAME, "id": self._id}
            who |= {"version": __version__, "metadata": {}}
            self._bus.send(Single(reply, payload=msgspec.json.encode(who | page())))

        return asked

    def _info(self) -> dict[str, Any]:
        endpoints = [
            {"name": name, "subject": subject, "queue_group": self._group, "metadata": {}}
            for name, subject in ENDPOINTS
        ]
        return {"description": DESCRIPTION, "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        endpoints = []
        for name, subject in ENDPOINTS:
            figures = self._figures(name)
            requests, total = figures.queries + figures.refused, int(figures.seconds * _NS)
            endpoints.append(
                {
                    "name": name,
                    "subject": subject,
                    "queue_group": self._group,
                    "num_requests": requests,
                    "num_errors": figures.refused + figures.failed,
                    "last_error": figures.last_error,
                    "processing_time": total,
                    "average_processing_time": total // requests if requests else 0,
                }
            )
        return {"started": self._started, "endpoints": endpoints}
