"""The accounts of a server that have streams.

Belongs here: finding and creating their engines, and starting and stopping all of them. engine.py has the streams of
one account, `meta/shared.py` the services that all share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lakestream.account.engine import Engine
from lakestream.meta import deleted_streams
from lakestream.meta.assignments import AbandonStream, RemoveStream
from lakestream.meta.node import MetaNode
from lakestream.meta.shared import Shared
from lakestream.meta.solo import solo_node
from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


MARK_NS = 1_000_000_000
"""Pause between two rounds that update the synced marks of all logs (1 s, log/store/synced.py)."""
CROWDED_NS = 50_000_000
"""The same while the journal of the store fills quickly (50 ms)."""


class Engines:
    """The engines of all accounts.

    Engines are created on demand: this node may hold replicas of accounts that its own configuration does not have. An
    engine serves clients only after `serve`.

    Args:
        node: creates this server's meta node; by default that of a server without a cluster.
        needed: called with each account that gets an engine, which may have it served.
    """

    def __init__(
        self,
        shared: Shared,
        node: Callable[[Shared, Engines], MetaNode] = solo_node,
        needed: Callable[[str], None] = lambda account: None,
    ) -> None:
        self.shared = shared
        self._marking = shared.io.lane(background=True)
        self._made = needed
        self._engines: dict[str, Engine] = {}
        self._unmarked: set[str] = set()
        """Streams whose failure to write the synced mark was logged."""
        self.node = node(shared, self)
        shared.cluster_name = lambda: self.node.name

    def of(self, account: str) -> Engine:
        """Return the engine of an account; create it if there is none."""
        engine = self._engines.get(account)
        if engine is None:
            engine = self._engines[account] = Engine(account, self.shared, self.shared.bus_of(account))
            engine.node = self.node
            self._made(account)
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
        """Remove all streams of an account; on the meta leader."""
        for assignment in self.node.assignments(account, restoring=True):
            gone = AbandonStream if assignment.restoring else RemoveStream
            remove = functools.partial(self.node.meta.propose, gone(assignment.uid), lambda outcome: None)
            if not self.of(account).opening(assignment.name, remove):
                remove()
        self.node.keeping.discard(account)

    def recover(self) -> None:
        """Open every stream on disk. Block, at start. Raise LogError, OSError.

        The streams of accounts without JetStream stay unopened until their account has it again. In a cluster the
        replicas of all accounts are opened, as their groups need them.
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
        """Update the synced mark of every log that grew; see `FileStores.mark`."""
        clock, stores = self.shared.clock, self.shared.stores
        if not stores.unmarked:
            clock.call_later(MARK_NS, self._mark_all)
            return

        def marked(failed: list[tuple[str, Exception]] | None, error: BaseException | None) -> None:
            if error is not None:
                self.shared.log.exception("synced marks were not written", error)
            known, self._unmarked = self._unmarked, {name for name, _ in failed or ()}
            for name, wrong in failed or ():
                if name not in known:
                    self.shared.log.warn(
                        f"stream {name}: its synced mark cannot be written: {wrong}; until it can, damage at the end "
                        "of its log may not be noticed at a start"
                    )
            clock.call_later(MARK_NS if not stores.crowded else CROWDED_NS, self._mark_all)

        self._marking.submit(stores.mark, marked)

    def _sync_all(self) -> None:
        self.shared.clock.call_later(self.shared.options.sync_interval_ns, self._sync_all)
        for stream in self.streams():
            stream.group.sync()

    def cease(self) -> None:
        """Accept no further messages; see `Engine.cease`."""
        for engine in self:
            engine.cease()

    def stop(self) -> None:
        """Stop serving while clients can still be notified (409 Server Shutdown). In the event loop."""
        self.node.stop()

    def close(self) -> None:
        """Stop all streams and write their last checkpoints. Block; call once no acked operation is in flight."""
        self.stop()
        self.node.close()
