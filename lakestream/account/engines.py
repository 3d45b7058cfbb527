"""The engines of a server, one for each account that has streams here.

Belongs here: finding and making them, dealing out what lies on disk, and the start and end of all of them together.
What one account's streams are is engine.py's, what all share shared.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakestream.account.engine import Engine
from lakestream.meta import leaving
from lakestream.meta.shared import LakeLink, Shared
from lakestream.stream.assembly import Stream
from lakestream.stream.core.account_limits import UNLIMITED, JetStreamLimits

MARK_NS = 1_000_000_000
"""Pause between two rounds in which the synced marks of all logs are brought up to date (log/store/synced.py)."""


class Engines:
    """See the module.

    An engine is made when it is asked for: an account may hold replicas here that this server's own configuration does
    not know. It serves clients only once `serve` names its account.

    Args:
        shared: what every engine has.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._engines: dict[str, Engine] = {}
        self._unmarked: set[str] = set()
        """Streams, by uid, of which it was said that their synced marks cannot be written."""
        self.shared.engines = lambda: list(self)

    def of(self, account: str) -> Engine:
        """The engine of an account, which is made if there is none."""
        engine = self._engines.get(account)
        if engine is None:
            engine = self._engines[account] = Engine(account, self.shared, self.shared.bus_of(account))
        return engine

    def get(self, account: str) -> Engine | None:
        """The engine of an account, if it has one."""
        return self._engines.get(account)

    def __iter__(self) -> Iterator[Engine]:
        return iter(list(self._engines.values()))

    def streams(self) -> Iterator[Stream]:
        """The streams of all accounts."""
        for engine in self:
            yield from list(engine.streams.values())

    @property
    def lake(self) -> LakeLink:
        """Who keeps the lake."""
        return self.shared.lake

    @lake.setter
    def lake(self, lake: LakeLink) -> None:
        self.shared.lake = lake

    # ------------------------------------------------------------------ life
    def serve(self, account: str, limits: JetStreamLimits = UNLIMITED) -> Engine:
        """Have an account's streams serve its clients."""
        engine = self.of(account)
        engine.serve(limits)
        return engine

    def withdraw(self, account: str) -> None:
        """An account has JetStream no more: its streams stay, and serve nobody."""
        engine = self._engines.get(account)
        if engine is not None:
            engine.withdraw()

    def purge(self, account: str) -> None:
        """Remove all streams of an account, on a server without a cluster."""
        engine = self._engines.get(account)
        if engine is not None:
            engine.purge()

    def recover(self) -> None:
        """Open every stream on disk. Blocks, at start.

        The streams of accounts that do not serve stay where they are, until their account has JetStream again. Replicas
        are opened whatever their account: the cluster counts on them.
        """
        found, cluster = self.shared.stores.found(self.shared.log.error), self.shared.cluster
        leaving.resume(self.shared)
        if cluster is not None:
            found = cluster.recover(found)
        names: dict[str, list[str]] = {}
        for account, name in found:
            names.setdefault(account, []).append(name)
        for account, theirs in names.items():
            engine = self.of(account)
            if engine.serving:
                engine.recover(theirs)
            else:
                engine.lying = theirs
                many = f"{len(theirs)} streams" if len(theirs) > 1 else f"stream {theirs[0]}"
                self.shared.log.warn(f'account "{account}" has no JetStream: {many} on disk not served')

    def start(self) -> None:
        """Begin what runs by the clock."""
        if self.shared.options.sync_interval_ns:
            self.shared.clock.call_later(self.shared.options.sync_interval_ns, self._sync_all)

        self.shared.clock.call_later(MARK_NS, self._mark_all)

    def _mark_all(self) -> None:
        """Note of every log that grew how far it is synced: one log after the other, in one thread, so that a thousand
        busy ones take longer and the disk no more of its time."""
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
        """Cease to serve, in the event loop and while clients can still be told (409 Server Shutdown)."""
        if self.shared.cluster is not None:
            self.shared.cluster.stop()
        for engine in self:
            engine.stop()

    def close(self) -> None:
        """Stop all streams and write their last checkpoints. Blocks; nothing may be in flight that matters."""
        self.stop()
        if self.shared.cluster is not None:
            self.shared.cluster.close()
        for engine in self:
            engine.close()
