"""Storage of an account's streams on other nodes.

Belongs here: asking the other nodes, now and then, what the streams hold of which this node has no replica. What it has
a replica of it knows itself (stream/core/storage_use.py); only accounts with a limit are asked for, and only by nodes
that lead a stream of theirs. In between, an account may come to hold a little more than it may: what the others store
meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from lakestream.account.engine import Engine
from lakestream.account.engines import Engines
from lakestream.meta.node import MetaNode

HELD = "account.held"
"""The call that asks a node what the streams that it leads hold: the body is a list of accounts."""
EVERY_NS = 2_000_000_000
"""Interval at which the other nodes are asked (2 s)."""


class Held(msgspec.Struct, array_like=True, frozen=True):
    """A stream and what all its replicas hold together, in bytes."""

    account: str
    uid: str
    storage: str
    size: int


class ElsewhereUse:
    """The last answers of the other nodes."""

    def __init__(self, engines: Engines, node: MetaNode) -> None:
        self._engines, self._node, self._clock = engines, node, engines.shared.clock
        self._said: dict[str, list[Held]] = {}
        """By node."""
        self._decoder = msgspec.msgpack.Decoder(list[Held])
        self._stopped = False
        self._node.calls.serve(HELD, self._asked)

    def start(self) -> None:
        """Begin to ask."""
        self._clock.call_later(EVERY_NS, self._look)

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True

    def _look(self) -> None:
        if self._stopped:
            return
        self._clock.call_later(EVERY_NS, self._look)
        wanting = [engine.account for engine in self._engines if _wants(engine)]
        if not wanting:
            self._said = {}
            return
        others = self._node.others()
        self._said = {name: said for name, said in self._said.items() if name in others}
        for name in others:
            answered = functools.partial(self._answered, name)
            self._node.calls.call(name, HELD, msgspec.msgpack.encode(wanting), answered, EVERY_NS)

    def _asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        held = []
        for account in msgspec.msgpack.decode(body, type=list[str]):
            engine = self._engines.get(account)
            for stream in engine.streams.values() if engine is not None else ():
                if stream.leading and stream.store.bytes:
                    size = stream.store.bytes * max(1, stream.config.num_replicas)
                    held.append(Held(account, stream.uid, stream.config.storage, size))
        answer(msgspec.msgpack.encode(held))

    def _answered(self, node: str, body: bytes | None, why: str) -> None:
        if body is None or self._stopped:
            return
        self._said[node] = self._decoder.decode(body)
        for engine in self._engines:
            elsewhere = {"memory": 0, "file": 0}
            for said in self._said.values():
                for held in said:
                    if held.account == engine.account and not engine.use.knows(held.uid):
                        elsewhere[held.storage] += held.size
            engine.use.elsewhere = elsewhere


def _wants(engine: Engine) -> bool:
    limits = engine.limits
    limited = limits.max_memory >= 0 or limits.max_file >= 0
    return limited and any(stream.leading for stream in engine.streams.values())
