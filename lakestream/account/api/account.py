"""Account information.

Belongs here: `$JS.API.INFO`: the storage that the account's streams use, its limits, and the API's own counters. In a
cluster these are sums over all nodes and replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lakestream.account.engine import Engine
from lakestream.meta.ports import of_account
from lakestream.protocol.accounts import JetStreamLimits
from lakestream.protocol.api.request import API_LEVEL, Request, Routes, Where

USAGE = "account.usage"
"""The call that asks a node for its `Usage`."""
USAGE_WAIT_NS = 500_000_000
"""Longest wait for the usage of other nodes (0.5 s); a node that does not answer counts as 0."""


class Usage(msgspec.Struct, frozen=True):
    """The usage of one node. Sizes in bytes; `consumers` counts those that it leads."""

    memory: int = 0
    file: int = 0
    reserved_memory: int = 0
    reserved_file: int = 0
    streams: int = 0
    consumers: int = 0
    total: int = 0
    errors: int = 0

    def __add__(self, other: Usage) -> Usage:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(*(mine + its for mine, its in pairs))


class AccountApi:
    """Serves account information. `counts` returns the number of API responses, and of those with an error."""

    def __init__(self, engine: Engine, counts: Callable[[], tuple[int, int]]) -> None:
        self._engine, self._counts = engine, counts
        engine.node.calls.serve(
            of_account(USAGE, engine.account),
            lambda node, body, answer: self._when_applied(lambda: answer(msgspec.msgpack.encode(self._own_usage()))),
        )

    def register(self, routes: Routes) -> None:
        routes.route("INFO", "account_info_response", self._info, where=Where.META)

    def _info(self, request: Request) -> None:
        self._when_applied(lambda: request.run(lambda: self._gather(lambda usage: request.respond(self._shown(usage)))))

    def _when_applied(self, then: Callable[[], None]) -> None:
        self._engine.when_applied(self._engine.streams.values(), then)

    def _own_usage(self) -> Usage:
        streams = list(self._engine.streams.values())
        total, errors = self._counts()
        used = {"memory": 0, "file": 0}
        reserved = {"memory": 0, "file": 0}
        for stream in streams:
            used[stream.config.storage] += stream.store.bytes
            reserved[stream.config.storage] += max(0, stream.config.max_bytes)
        return Usage(
            memory=used["memory"],
            file=used["file"],
            reserved_memory=reserved["memory"],
            reserved_file=reserved["file"],
            streams=len(streams) + len(self._engine.offline),
            consumers=sum(len(stream.consumers) for stream in streams if stream.leading),
            total=total,
            errors=errors,
        )

    def _gather(self, done: Callable[[Usage], None]) -> None:
        """Call `done` with the usage of all nodes that can be reached."""
        usage, node = self._own_usage(), self._engine.node

        def answered(bodies: list[bytes]) -> None:
            whole = sum((msgspec.msgpack.decode(body, type=Usage) for body in bodies), usage)
            done(msgspec.structs.replace(whole, streams=len(node.assignments(self._engine.account))))

        method = of_account(USAGE, self._engine.account)
        node.ask_each(method, dict.fromkeys(sorted(node.others()), b""), answered, USAGE_WAIT_NS)

    def _shown(self, usage: Usage) -> dict[str, Any]:
        info: dict[str, Any] = {
            "memory": usage.memory,
            "storage": usage.file,
            "reserved_memory": usage.reserved_memory,
            "reserved_storage": usage.reserved_file,
            "streams": usage.streams,
            "consumers": usage.consumers,
            "limits": limits_shown(self._engine.limits),
        }
        if self._engine.domain:
            info["domain"] = self._engine.domain
        info["api"] = {"level": API_LEVEL, "total": usage.total, "errors": usage.errors}
        return info


def limits_shown(limits: JetStreamLimits) -> dict[str, Any]:
    """Return an account's limits under their names in the API; -1: no limit."""
    return {
        "max_memory": limits.max_memory,
        "max_storage": limits.max_file,
        "max_streams": limits.max_streams,
        "max_consumers": limits.max_consumers,
        "max_ack_pending": limits.max_ack_pending,
        "memory_max_stream_bytes": limits.memory_max_stream_bytes,
        "storage_max_stream_bytes": limits.disk_max_stream_bytes,
        "max_bytes_required": limits.max_bytes_required,
    }
