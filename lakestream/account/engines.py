"""The accounts of a server that have streams.

Belongs here: finding and making their engines, and the start and end of all of them together. The streams of one
account are in engine.py, what all share in `meta/shared.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lakestream.account.engine import Engine
from lakestream.meta import deleted_streams
from lakestream.meta.assignments import AbandonStream, RemoveStream
from lakestream.meta.node import MetaNode
from lakestream.meta.shared import Shared
from lakestream.meta.solo import solo_node
from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits
from lakestream.stream.assembly import Stream

MARK_NS = 1_000_000_000
"""Pause between two rounds in which the synced marks of all logs are brought up to date (log/store/synced.py)."""


class Engines:
    """See the module.

    An engine is made when it is asked for: an account may hold replicas here that this server's own configuration does
    not know. It serves clients only once `serve` names its account.

    Args:
        node: makes this server's part in its cluster; by default there is none.
    """

    def __init__(self, shared: Shared, node: Callable[[Shared, Engines], MetaNode] = solo_node) -> None:
        self.shared = shared
        self._engines: dict[str, Engine] = {}
        self._unmarked: set[str] = set()
        """Streams, by uid, of which it was said that their synced marks cannot be written."""
        self.node = node(shared, self)
        shared.cluster_name = lambda: self.node.name

    def of(self, account: str) -> Engine:
        """Return the engine of an account; make it if there is none."""
        engine = self._engines.get(account)
        if engine is None:
            engine = self._engines[account] = Engine(account, self.shared, self.shared.bus_of(account))
            engine.node = self.node
        return engine

    def get(self, account: str) -> Engine | None:
        """Return the engine of an account, or None."""
        return self._engines.get(account)

    def __iter__(self) -> Iterator[Engine]:
        return iter(list(self._engines.values()))

    def streams(self) -> Iterator[Stream]:
        """Iterate over the streams of all accounts."""
        for engine in self:
            yield from list(engine.streams.values())

    # ------------------------------------------------------------------ life
    def serve(self, account: str, limits: JetStreamLimits = UNLIMITED) -> Engine:
        """Serve an account's clients within these limits."""
        engine = self.of(account)
        engine.serve(limits)
        return engine

    def withdraw(self, account: str) -> None:
        """Stop serving an account that has no JetStream any more; its streams stay."""
        engine = self._engines.get(account)
        if engine is not None:
            engine.withdraw()

    def purge(self, account: str) -> None:
        """Remove all streams of an account, on the node that decides."""
        for assignment in self.node.assignments(account, restoring=True):
            gone = AbandonStream if assignment.restoring else RemoveStream
            self.node.meta.propose(gone(assignment.uid), lambda outcome: None)
        self.node.keeping.discard(account)

    def recover(self) -> None:
        """Open every stream on disk. Block, at start. Raise LogError, OSError.

        The streams of accounts that do not serve stay where they are, until their account has JetStream again. In a
        cluster replicas are opened whatever their account: the others count on them.
        """
        found = self.shared.stores.found(self.shared.log.error)
        deleted_streams.resume(self.shared)
        self.node.keeping.recover(found)

    def start(self) -> None:
        """Start the timers."""
        if self.shared.options.sync_interval_ns:
            self.shared.clock.call_later(self.shared.options.sync_interval_ns, self._sync_all)

        self.shared.clock.call_later(MARK_NS, self._mark_all)

    def _mark_all(self) -> None:
        """Note of every log that grew how far it is synced, one after the other in one thread: a thousand busy logs
        take longer, and no more of the disk's time."""
        clock = self.shared.clock
        due = [stream for stream in self.streams() if stream.store.mark_due]
        if not due:
            clock.call_later(MARK_NS, self._mark_all)
            return

        def mark() -> None:
            for stream in due:
                try:
                    stream.store.mark()
                except OSError as error:
                    if stream.uid not in self._unmarked:
                        self._unmarked.add(stream.uid)
                        self.shared.log.warn(
                            f"stream {stream.name}: its synced mark cannot be written: {error}; until it can, damage "
                            "at the end of its log may not be noticed at a start"
                        )
                else:
                    self._unmarked.discard(stream.uid)

        def marked(_: object, __: BaseException | None) -> None:
            clock.call_later(MARK_NS, self._mark_all)

        self.shared.io.submit(mark, marked)

    def _sync_all(self) -> None:
        self.shared.clock.call_later(self.shared.options.sync_interval_ns, self._sync_all)
        for stream in self.streams():
            stream.group.sync()

    def cease(self) -> None:
        """Take no more messages; see `Engine.cease`."""
        for engine in self:
            engine.cease()

    def stop(self) -> None:
        """Serve no more, in the event loop and while clients can still be told (409 Server Shutdown)."""
        self.node.stop()

    def close(self) -> None:
        """Stop all streams and write their last checkpoints. Block; nothing may be in flight that matters."""
        self.stop()
        self.node.close()
