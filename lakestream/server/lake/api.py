"""Requests of clients about a stream's part of the lake.

Belongs here: `$LAKE.API.FLUSH.<stream>`, which seals the stream's open segment and stages it, so that the lake's
staging area has every message that was acked before the request, and `$LAKE.API.MAINTAIN.<stream>` and
`$LAKE.API.REPLAY.<stream>` (decode the misfits again), which pass on to the compactor. A flush waits for the running
write of the log before it seals; without messages or removals it seals nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.flush import FLUSH, RESPONSE_TYPE
from lakestream.ports import ClientInfo, Single, Subscribed, singly
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.config import LAKE

if TYPE_CHECKING:
    from lakestream.account.engine import Engine
    from lakestream.server.lake.keeper import LakeKeeper
    from lakestream.stream.assembly import Stream

MAINTAIN, REPLAY = "$LAKE.API.MAINTAIN.", "$LAKE.API.REPLAY."
WATCH_NS = 500_000_000
"""Interval at which a running flush is checked, in case its stream fails or is deleted."""
MOST_WAITING = 10_000
"""Maximum number of requests for one stream that wait for the next flush; further ones are rejected (503)."""


class _Flushing:
    """One stream's flushes: requests served by the running one, and those waiting for the next."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.served: list[bytes] = []
        self.waiting: list[bytes] = []
        self.through = 0
        self.staging = False


class FlushApi:
    """Serves flush requests for one engine's streams.

    Args:
        engine: the streams.
        keeper: stages segments; None without a lake.
    """

    def __init__(self, engine: Engine, keeper: LakeKeeper | None) -> None:
        self._engine, self._keeper = engine, keeper
        self._bus, self._clock = engine.bus, engine.clock
        self._under_way: dict[str, _Flushing] = {}
        self._subscriptions: list[Subscribed] = [
            self._bus.subscribe(f"{FLUSH}*".encode(), singly(engine.when_open(self._asked))),
            self._bus.subscribe(f"{MAINTAIN}*".encode(), singly(engine.when_open(self._maintain))),
            self._bus.subscribe(f"{REPLAY}*".encode(), singly(engine.when_open(self._maintain))),
        ]

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.cancel()

    def _maintain(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Pass a request to maintain the stream's table now, or to replay its misfits, to the compactor."""
        try:
            stream = self._in_lake(subject.rpartition(b".")[2].decode("utf-8", "replace"))
        except ApiError as error:
            self._fail([reply], error)
            return
        if stream is None:
            return
        name = stream.name

        def passed(wrong: str) -> None:
            if wrong:
                self._fail([reply], ApiError(503, 0, wrong))
            else:
                self._answer([reply], {"stream": name, "success": True})

        assert self._keeper is not None
        self._keeper.maintain(stream, passed, subject.startswith(REPLAY.encode()))

    def _asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        try:
            self._join(subject.rpartition(b".")[2].decode("utf-8", "replace"), reply)
        except ApiError as error:
            self._fail([reply], error)

    def _in_lake(self, name: str) -> Stream | None:
        """Return a stream that has a table; None if another node answers for it. Raises ApiError."""
        stream = self._engine.node.asked_here(self._engine.account, name)
        if stream is None:
            return None
        if stream.closed:
            raise api_error(10059)
        if self._keeper is None:
            raise ApiError(503, 0, "this server keeps no lake (lake.enabled: false)")
        if stream.config.storage == "memory":
            raise ApiError(400, 0, f"stream {name} has memory storage: its messages are not in the lake")
        if not stream.config.in_lake:
            raise ApiError(400, 0, f"stream {name} is not in the lake (its metadata has {LAKE}: off)")
        if stream.failed is not None:
            raise stream.failed
        return stream

    def _join(self, name: str, reply: bytes) -> None:
        stream = self._in_lake(name)
        if stream is None:
            return
        flushing = self._under_way.get(name)
        if flushing is not None and flushing.stream is stream:
            if len(flushing.waiting) >= MOST_WAITING:
                raise ApiError(503, 0, f"more than {MOST_WAITING} flush requests wait for stream {name}")
            # The running flush may have begun before this request's messages were stored.
            flushing.waiting.append(reply)
            return
        flushing = self._under_way[name] = _Flushing(stream)
        flushing.waiting.append(reply)
        self._begin(flushing)

    def _begin(self, flushing: _Flushing) -> None:
        flushing.served, flushing.waiting = flushing.waiting, []
        flushing.staging = False
        store = flushing.stream.store
        flushing.through = store.ask_seal()
        store.on_settled = lambda: self._advance(flushing)
        self._clock.call_later(WATCH_NS, lambda: self._watch(flushing, flushing.served))
        self._advance(flushing)

    def _advance(self, flushing: _Flushing) -> None:
        """Stage if everything is sealed, else seal. Called after a write or a seal."""
        store = flushing.stream.store
        if flushing.staging:
            return
        if store.sealed_through[0] < flushing.through:
            store.seal_if_old()
            return
        store.on_settled = None
        flushing.staging = True
        assert self._keeper is not None
        served, (index, seq) = flushing.served, store.sealed_through
        self._keeper.when_staged(flushing.stream, lambda wrong: self._staged(flushing, served, index, seq, wrong))

    def _watch(self, flushing: _Flushing, served: list[bytes]) -> None:
        """Answer for a stream that has failed or was deleted, which does not call back."""
        if flushing.served is not served or not served:
            return
        stream = flushing.stream
        if stream.closed or stream.failed is not None or not stream.leading:
            self._end(flushing, stream.failed or api_error(10059 if stream.closed else 10008))
            return
        self._advance(flushing)
        self._clock.call_later(WATCH_NS, lambda: self._watch(flushing, served))

    def _staged(self, flushing: _Flushing, served: list[bytes], index: int, seq: int, wrong: str) -> None:
        if flushing.served is not served:
            return  # they were answered already with the failure
        if wrong:
            self._end(flushing, ApiError(503, 0, f"the stream could not be staged: {wrong}"))
            return
        assert self._keeper is not None
        body = {"stream": flushing.stream.name, "uid": flushing.stream.uid, "last_index": index, "last_seq": seq}
        self._answer(served, {**body, "lake": self._keeper.root})
        self._next(flushing)

    def _end(self, flushing: _Flushing, error: ApiError) -> None:
        flushing.stream.store.on_settled = None
        self._fail(flushing.served, error)
        self._next(flushing)

    def _next(self, flushing: _Flushing) -> None:
        flushing.served = []
        stream = flushing.stream
        if not flushing.waiting or stream.closed or stream.failed is not None:
            self._fail(flushing.waiting, stream.failed or api_error(10059))
            if self._under_way.get(stream.name) is flushing:
                del self._under_way[stream.name]
            return
        self._begin(flushing)

    def _fail(self, replies: list[bytes], error: ApiError) -> None:
        self._answer(replies, {"error": error.as_dict()})

    def _answer(self, replies: list[bytes], fields: dict[str, Any]) -> None:
        who = {"server_id": self._engine.server_id, "account": self._engine.account}
        if self._keeper is not None:
            who["lake_id"] = self._keeper.lake_id
        body = msgspec.json.encode({"type": RESPONSE_TYPE, **fields, **who})
        for reply in replies:
            if reply:
                self._bus.send(Single(reply, payload=body))
