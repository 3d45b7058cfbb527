"""Account information.

Belongs here: `$JS.API.INFO`: what the account's streams use, its limits, and the API's own counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lakestream.jetstream.api_request import API_LEVEL, Request, Routes

if TYPE_CHECKING:
    from lakestream.jetstream.engine import Engine

UNLIMITED = -1


class ApiCounters(Protocol):
    """How much the API was used."""

    total: int
    errors: int


class AccountApi:
    """Serves account information. The account itself has no limits; the server's own are applied at STREAM.CREATE."""

    def __init__(self, engine: Engine, counters: ApiCounters) -> None:
        self._engine = engine
        self._counters = counters

    def register(self, routes: Routes) -> None:
        """See `ApiPart.register`."""
        routes.route("INFO", "account_info_response", self._info)

    def _info(self, request: Request) -> None:
        request.respond(self.usage())

    def usage(self) -> dict[str, Any]:
        """The fields of an account info reply (api.md §2)."""
        streams = list(self._engine.streams.values())
        used = {"memory": 0, "file": 0}
        reserved = {"memory": 0, "file": 0}
        for stream in streams:
            used[stream.config.storage] += stream.store.bytes
            reserved[stream.config.storage] += max(0, stream.config.max_bytes)
        info: dict[str, Any] = {
            "memory": used["memory"],
            "storage": used["file"],
            "reserved_memory": reserved["memory"],
            "reserved_storage": reserved["file"],
            "streams": len(streams),
            "consumers": sum(len(stream.consumers) for stream in streams),
            "limits": {
                "max_memory": UNLIMITED,
                "max_storage": UNLIMITED,
                "max_streams": UNLIMITED,
                "max_consumers": UNLIMITED,
                "max_ack_pending": UNLIMITED,
                "memory_max_stream_bytes": UNLIMITED,
                "storage_max_stream_bytes": UNLIMITED,
                "max_bytes_required": False,
            },
        }
        if self._engine.domain:
            info["domain"] = self._engine.domain
        info["api"] = {"level": API_LEVEL, "total": self._counters.total, "errors": self._counters.errors}
        return info
