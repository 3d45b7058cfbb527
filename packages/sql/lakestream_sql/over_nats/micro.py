"""Discovery of the service (ADR-32): `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.

Belongs here: the subjects and the responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lakestream import __version__
from lakestream.ports import Bus, ClientInfo, Single, Subscribed, singly
from lakestream.protocol import sql
from lakestream.protocol.gotime import format_time
from lakestream_sql.over_nats.figures import SqlFigures

NAME = "lakestream-sql"
"""Name of the service."""
DESCRIPTION = "SQL on the streams of the account"
ENDPOINTS = (("sql", sql.QUERY), ("sql-stream", f"{sql.QUERY_STREAM}*"))
_NS = 1_000_000_000


def answer_discovery(
    bus: Bus, identifier: str, queue_group: str, figures: Callable[[str], SqlFigures], started_ns: int
) -> list[Subscribed]:
    """Answer discovery in one account, until the subscriptions are cancelled.

    Args:
        identifier: of this instance.
        queue_group: of the endpoints.
        figures: of the endpoints in this account, by name.
        started_ns: time of the start, ns since the epoch.
    """
    endpoints = [{"name": name, "subject": subject, "queue_group": queue_group} for name, subject in ENDPOINTS]
    pages: dict[str, Callable[[], dict[str, Any]]] = {
        "PING": dict,
        "INFO": lambda: {"description": DESCRIPTION, "endpoints": [each | {"metadata": {}} for each in endpoints]},
        "STATS": lambda: {
            "started": format_time(started_ns),
            "endpoints": [each | _counts(figures(each["name"])) for each in endpoints],
        },
    }

    def subscribe(verb: str, subject: str) -> Subscribed:
        def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            if not reply:
                return
            who: dict[str, Any] = {"type": f"io.nats.micro.v1.{verb.lower()}_response", "name": NAME, "id": identifier}
            who |= {"version": __version__, "metadata": {}}
            bus.send(Single(reply, payload=msgspec.json.encode(who | pages[verb]())))

        return bus.subscribe(subject.encode(), singly(asked))

    return [
        subscribe(verb, f"$SRV.{verb}{more}") for verb in pages for more in ("", f".{NAME}", f".{NAME}.{identifier}")
    ]


def _counts(figures: SqlFigures) -> dict[str, Any]:
    requests, total = figures.queries + figures.refused, int(figures.seconds * _NS)
    return {
        "num_requests": requests,
        "num_errors": figures.refused + figures.failed,
        "last_error": figures.last_error,
        "processing_time": total,
        "average_processing_time": total // requests if requests else 0,
    }
