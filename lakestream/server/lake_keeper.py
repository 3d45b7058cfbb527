"""Between the log and the lake.

Belongs here: getting sealed segments into the lake's staging area, noticing how far each table is, letting the log go
of what the table holds, and giving streams their history. All file work happens in threads; without a compactor or a
lake the server serves on and the log just grows (invariant 9).
"""

from __future__ import annotations

import msgspec

from lakestream.jetstream.stream import Stream
from lakestream.lake import paths, staging
from lakestream.lake.position import PositionWatch
from lakestream.log.store import SealedSegment, Store
from lakestream.server.history import SharedCache, ThreadHistory
from lakestream.server.logging import Logger
from lakestream.server.options import LakeOptions
from lakestream.server.runtime import LoopClock, ThreadIo


class _Kept:
    """One stream and what is known of its table."""

    def __init__(self, stream: Stream, lake: str) -> None:
        self.stream = stream
        self.identity = staging.StreamIdentity(
            name=stream.name,
            account=stream.account,
            uid=stream.uid,
            created_ns=stream.created_ns,
            config=msgspec.Raw(msgspec.json.encode(stream.config)),
        )
        self.watch = PositionWatch(paths.table(lake, stream.name, stream.account), stream.uid)
        self.history: ThreadHistory | None = None
        self.staged_through = 0
        self.position = 0
        self.asking = False
        self.deleted = False


class LakeKeeper:
    """`LakeLink` over a lake that is a directory.

    Args:
        root: the lake's root.
    """

    def __init__(self, root: str, options: LakeOptions, clock: LoopClock, io: ThreadIo, log: Logger) -> None:
        self.root = paths.local_root(root)
        self._options = options
        self._clock = clock
        self._io = io
        self._log = log
        self._cache = SharedCache()
        self._kept: dict[str, _Kept] = {}
        self._stopped = False

    def start(self) -> None:
        """Begin to look at the tables every `poll_ns`."""
        self._clock.call_later(self._options.poll_ns, self._poll)

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True

    def lag(self) -> dict[str, int]:
        """Log entries by stream that are not in the table yet: what monitoring shows."""
        return {name: kept.stream.store.applied - kept.position for name, kept in self._kept.items()}

    # ------------------------------------------------------------------ LakeLink
    def attached(self, stream: Stream) -> None:
        """See `LakeLink.attached`. Segments sealed before a crash that did not reach the staging area go now."""
        if stream.config.storage == "memory":
            return
        kept = _Kept(stream, self.root)
        self._kept[stream.name] = kept
        table = paths.table(self.root, stream.name, stream.account)
        stream.history = kept.history = ThreadHistory(table, self._io, self._cache)
        self._ask(kept)

    def deleted(self, stream: Stream) -> None:
        """See `LakeLink.deleted`."""
        kept = self._kept.pop(stream.name, None)
        if kept is None:
            return
        kept.deleted = True
        if not kept.asking:
            self._mark_deleted(kept)

    def _mark_deleted(self, kept: _Kept) -> None:
        """Not while an errand of the stream is under way: it would stage anew what the compactor then takes away."""
        stream = kept.stream
        if kept.history is not None:
            kept.history.close()

        def settled(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._log.error(f"stream {stream.name}: cannot tell the lake that it is deleted: {error}")

        self._io.submit(lambda: staging.mark_deleted(self.root, kept.identity), settled)

    # ------------------------------------------------------------------ the tables
    def _poll(self) -> None:
        if self._stopped:
            return
        # First the next look: one stream's trouble must not end it for all.
        self._clock.call_later(self._options.poll_ns, self._poll)
        for kept in list(self._kept.values()):
            self._ask(kept)

    def _ask(self, kept: _Kept) -> None:
        """Stage what is sealed and read the position; at most one such errand of a stream is under way."""
        store = kept.stream.store
        store.seal_if_old()
        sealed = list(store.sealed())
        if kept.asking or not sealed or kept.stream.closed:
            return
        kept.asking = True
        fresh = [segment for segment in sealed if segment.last_index > kept.staged_through]

        def errand() -> int | None:
            position = kept.watch.read()
            for segment in fresh:
                if position is None or segment.last_index > position:
                    staging.stage(segment.path, segment.first_index, segment.last_index, kept.identity, self.root)
            if position is not None:
                staging.unstage_through(self.root, kept.identity, position)
            return position

        def settled(position: int | None, error: BaseException | None) -> None:
            kept.asking = False
            if kept.deleted:
                self._mark_deleted(kept)
                return
            if error is not None:
                self._log.error(f"stream {kept.stream.name}: the lake at {self.root}: {error}")
                return
            if fresh:
                kept.staged_through = fresh[-1].last_index
            if position is not None and not kept.stream.closed:
                kept.position = max(kept.position, position)
                self._let_go(kept.stream, store, kept.position)

        self._io.submit(errand, settled)

    def _let_go(self, stream: Stream, store: Store, position: int) -> None:
        """Invariant 7: only what a visible commit of the table holds leaves the log."""
        if store.checkpoint_frees(position):
            stream.checkpoint()
        dropped: list[SealedSegment] = store.drop_through(position)
        if dropped and self._log.debugging:
            self._log.debug(f"stream {stream.name}: {len(dropped)} segments left the log, the lake holds them")
