"""Account information.

Belongs here: `$JS.API.INFO`: the storage that the account's streams use, its limits, and the API's own counters. In a
cluster these are sums over all nodes and replicas.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import msgspec

from lakestream.account.engine import Engine
from lakestream.meta.ports import of_account
from lakestream.protocol.accounts import JetStreamLimits, tier_of
from lakestream.protocol.api.request import API_LEVEL, HandlerRegistry, Request, Where
from lakestream.protocol.decoding import PackDecoder

USAGE = "account.usage"
"""The call that asks a node for its `Usage`."""
USAGE_WAIT_NS = 500_000_000
"""Longest wait for the usage of other nodes (0.5 s); a node that does not answer counts as 0."""


class TierUsage(msgspec.Struct, frozen=True):
    """The usage of one node in one tier, with the fields of `Usage`."""

    memory: int = 0
    file: int = 0
    reserved_memory: int = 0
    reserved_file: int = 0
    consumers: int = 0


class Usage(msgspec.Struct, frozen=True):
    """The usage of one node. Sizes in bytes; `consumers` counts those that it leads. `tiers`: where there are any."""

    memory: int = 0
    file: int = 0
    reserved_memory: int = 0
    reserved_file: int = 0
    streams: int = 0
    consumers: int = 0
    total: int = 0
    errors: int = 0
    tiers: dict[str, TierUsage] = {}

    def __add__(self, other: Usage) -> Usage:
        *mine, tiers = msgspec.structs.astuple(self)
        *its, more = msgspec.structs.astuple(other)
        both = {name: _sum(tiers.get(name, _NOTHING), more.get(name, _NOTHING)) for name in {*tiers, *more}}
        return msgspec.structs.replace(Usage(*map(operator.add, mine, its)), tiers=both)


_USAGE = PackDecoder(Usage)


_NOTHING = TierUsage()


def _sum(one: TierUsage, other: TierUsage) -> TierUsage:
    return TierUsage(*map(operator.add, msgspec.structs.astuple(one), msgspec.structs.astuple(other)))


class AccountApi:
    """Serves account information. `counts` returns the number of API responses, and of those with an error."""

    def __init__(self, engine: Engine, counts: Callable[[], tuple[int, int]]) -> None:
        self._engine, self._counts = engine, counts
        engine.node.peers.serve(
            of_account(USAGE, engine.account),
            lambda node, body, answer: self._when_applied(lambda: answer(msgspec.msgpack.encode(self._own_usage()))),
        )

    def register(self, routes: HandlerRegistry) -> None:
        routes.route("INFO", "account_info_response", self._info, where=Where.META)

    def _info(self, request: Request) -> None:
        self._when_applied(lambda: request.run(lambda: self._gather(lambda usage: request.respond(self._shown(usage)))))

    def _when_applied(self, then: Callable[[], None]) -> None:
        self._engine.when_applied(self._engine.streams.values(), then)

    def _own_usage(self) -> Usage:
        tiers: dict[str, TierUsage] = {}
        for stream in self._engine.shown():
            size, reserved = stream.store.bytes, stream.config.reserved_bytes
            consumers = (len(stream.consumers) or stream.consumer_count) if stream.leading else 0
            in_memory = stream.config.storage == "memory"
            one = (
                TierUsage(size, 0, reserved, 0, consumers) if in_memory else TierUsage(0, size, 0, reserved, consumers)
            )
            name = tier_of(stream.config.num_replicas)
            tiers[name] = _sum(tiers.get(name, _NOTHING), one)
        whole = functools.reduce(_sum, tiers.values(), _NOTHING)
        total, errors = self._counts()
        return Usage(
            memory=whole.memory,
            file=whole.file,
            reserved_memory=whole.reserved_memory,
            reserved_file=whole.reserved_file,
            streams=len(self._engine.shown()) + len(self._engine.offline),
            consumers=whole.consumers,
            total=total,
            errors=errors,
            tiers=tiers if self._engine.limits.tiers else {},
        )

    def _tiers(self, usage: dict[str, TierUsage]) -> dict[str, Any]:
        node, account = self._engine.node, self._engine.account
        configs = [node.config_of(each) for each in node.assignments(account)]
        shown = {}
        for name, limits in self._engine.limits.tiers:
            own = usage.get(name, _NOTHING)
            streams = [config for config in configs if tier_of(config.num_replicas) == name]
            # As the limits of a tier, what is reserved is that of one replica of each stream.
            reserved = {"memory": 0, "file": 0}
            for config in streams:
                reserved[config.storage] += config.reserved_bytes
            shown[name] = {
                "memory": own.memory,
                "storage": own.file,
                "reserved_memory": reserved["memory"],
                "reserved_storage": reserved["file"],
                "streams": len(streams),
                "consumers": own.consumers,
                "limits": limits_shown(limits),
            }
        return shown

    def _gather(self, done: Callable[[Usage], None]) -> None:
        """Call `done` with the usage of all nodes that can be reached."""
        usage, node = self._own_usage(), self._engine.node

        def answered(bodies: list[bytes]) -> None:
            whole = sum((_USAGE.decode(body) for body in bodies), usage)
            done(msgspec.structs.replace(whole, streams=len(node.assignments(self._engine.account))))

        method = of_account(USAGE, self._engine.account)
        node.ask_each(method, dict.fromkeys(sorted(node.others()), b""), answered, USAGE_WAIT_NS)

    def _shown(self, usage: Usage) -> dict[str, Any]:
        limits = self._engine.limits
        info: dict[str, Any] = {
            "memory": usage.memory,
            "storage": usage.file,
            "reserved_memory": usage.reserved_memory,
            "reserved_storage": usage.reserved_file,
            "streams": usage.streams,
            "consumers": usage.consumers,
            "limits": limits_shown(limits if not limits.tiers else _ZERO),
        }
        if limits.tiers:
            info["tiers"] = self._tiers(usage.tiers)
        if self._engine.domain:
            info["domain"] = self._engine.domain
        info["api"] = {"level": API_LEVEL, "total": usage.total, "errors": usage.errors}
        return info


_ZERO = JetStreamLimits(
    max_memory=0,
    max_file=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    disk_max_stream_bytes=0,
)
"""Shown instead of the limits of an account with tiers, as by nats-server."""


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
