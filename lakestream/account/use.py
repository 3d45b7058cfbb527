"""Storage of an account's streams on other nodes.

Belongs here: polling the other nodes for the sizes of streams without a replica here; stream/core/storage_use.py counts
those with one. Only accounts with a limit are polled, by nodes that lead a stream of theirs. Between two polls an
account may exceed its limit by what other nodes store meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from lakestream.account.engine import Engine
from lakestream.account.engines import Engines
from lakestream.meta.node import MetaNode

HELD = "account.held"
"""The call that asks a node for the sizes of the streams that it leads; its body is a list of accounts."""
POLL_NS = 2_000_000_000
"""Interval at which the other nodes are polled (2 s)."""


class StreamSize(msgspec.Struct, array_like=True, frozen=True):
    """The size of a stream: the bytes of all its replicas together."""

    account: str
    uid: str
    storage: str
    size: int
    replicas: int = 1


class ElsewhereUse:
    """Polls the other nodes and updates `elsewhere` of every account's use."""

    def __init__(self, engines: Engines, node: MetaNode) -> None:
        self._engines, self._node, self._clock = engines, node, engines.shared.clock
        self._sizes: dict[str, list[StreamSize]] = {}
        """Last answers, by node."""
        self._decoder = msgspec.msgpack.Decoder(list[StreamSize])
        self._stopped = False
        self._node.peers.serve(HELD, self._asked)

    def start(self) -> None:
        """Start polling."""
        self._clock.call_later(POLL_NS, self._poll)

    def stop(self) -> None:
        """Stop polling."""
        self._stopped = True

    def _poll(self) -> None:
        if self._stopped:
            return
        self._clock.call_later(POLL_NS, self._poll)
        accounts = [engine.account for engine in self._engines if _needs_poll(engine)]
        if not accounts:
            self._sizes = {}
            return
        others = self._node.others()
        self._sizes = {name: sizes for name, sizes in self._sizes.items() if name in others}
        for name in others:
            answered = functools.partial(self._answered, name)
            self._node.peers.call(name, HELD, msgspec.msgpack.encode(accounts), answered, POLL_NS)

    def _asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        held = []
        for account in msgspec.msgpack.decode(body, type=list[str]):
            engine = self._engines.get(account)
            for stream in engine.streams.values() if engine is not None else ():
                if stream.leading and stream.store.bytes:
                    size = stream.store.bytes * max(1, stream.config.num_replicas)
                    held.append(
                        StreamSize(account, stream.uid, stream.config.storage, size, stream.config.num_replicas)
                    )
        answer(msgspec.msgpack.encode(held))

    def _answered(self, node: str, body: bytes | None, why: str) -> None:
        if body is None or self._stopped:
            return
        self._sizes[node] = self._decoder.decode(body)
        for engine in self._engines:
            elsewhere: dict[tuple[str, str], int] = {}
            for sizes in self._sizes.values():
                for held in sizes:
                    if held.account == engine.account and not engine.use.knows(held.uid):
                        pool = engine.use.pool(held.storage, held.replicas)
                        elsewhere[pool] = elsewhere.get(pool, 0) + held.size
            engine.use.elsewhere = elsewhere


def _needs_poll(engine: Engine) -> bool:
    limits = engine.limits
    limited = limits.max_memory >= 0 or limits.max_file >= 0 or bool(limits.tiers)
    return limited and any(stream.leading for stream in engine.streams.values())
