"""The link between the server's streams and the lake.

Belongs here: staging sealed segments, following the position of each table, releasing segments from the log that the
table holds, and giving streams their history. All file work happens in threads; without a compactor or a lake the
server continues to serve and the log grows (invariant 9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from lakestream.config.options import LakeOptions
from lakestream.lake.delta import policy
from lakestream.lake.delta.position import PositionWatch
from lakestream.lake.delta.verify import Budget
from lakestream.lake.errors import BadPolicy, LakeError, OlderLake, OlderStore
from lakestream.lake.files import paths, staging
from lakestream.lake.files.locks import COMPACTOR_LOCK, is_held
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.store.base import Base, Origin
from lakestream.log.store.store import SealedSegment, Store
from lakestream.logging import Logger
from lakestream.meta.shared import GLOBAL
from lakestream.protocol.api.errors import for_clients
from lakestream.runtime import LoopClock, ThreadIo
from lakestream.server.lake import deleted_streams as leaving
from lakestream.server.lake.clones import LakeClones
from lakestream.server.lake.history import SharedCache, ThreadHistory
from lakestream.server.lake.stream_sync import Found, Grace, Kept, Lag
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.features.time_travel import past_of
from lakestream.stream.mirroring.clone import AS_OF, ONLY_COPIES, can_begin_as_copy
from lakestream.stream.mirroring.clone_replica import BaseUnreadable

LEASE_LOOK_NS = 10_000_000_000
"""Interval (10 s) at which monitoring checks the compactor's lease in an object store."""
LOOKING = 8
"""Number of tables that are read in parallel before their streams serve."""
LOOK_SECONDS = 10.0
"""Maximum time for which a start waits for the positions of tables. It continues without them (invariant 9)."""
OLDER_STORE = "the server's store is an older copy than its lake; the server's log says what to do"
"""Error text for clients of a stream whose store is older than its lake."""
NOT_COMPARED = "its table could not be looked at before it serves, which would show a store that is an older copy"


class LakeKeeper:
    """Implementation of `LakeLink` over a lake in a directory or an object store.

    Args:
        root: the lake's root.
    """

    def __init__(self, root: str, options: LakeOptions, clock: LoopClock, io: ThreadIo, log: Logger) -> None:
        self.root = paths.root(root)
        self.lake_id = ""
        """The lake's id; "" until the lake was reached."""
        self._options = options
        self._clock = clock
        self._io = io
        self._log = log
        self._cache = SharedCache()
        self._kept: dict[tuple[str, str], Kept] = {}
        """By account and name."""
        self._leaving: dict[str, tuple[tuple[str, str], str]] = {}
        """Deleted streams by uid that are not marked in the lake yet: (account, name), and the error."""
        self._started = self._stopped = False
        self._look_seconds = LOOK_SECONDS
        self._budget = Budget()
        self._attended = False
        self._attended_at = 0
        self._clones = LakeClones(self.root, clock, io, log, self._identity_of)

    def _identity_of(self, stream: Stream) -> staging.StreamIdentity | None:
        kept = self._kept.get((stream.account, stream.name))
        return kept.identity if kept is not None and kept.stream is stream else None

    def start(self) -> None:
        """Start to follow the tables, every `poll_ns`."""
        self._started, self._look_seconds = True, LOOK_SECONDS
        self._clock.call_later(self._options.poll_ns, self._poll)
        self._look_for_compactor()

    def stop(self) -> None:
        """Stop following the tables."""
        self._stopped = True

    def lag(self) -> dict[str, Lag]:
        """Return the lag of each stream's table for monitoring. Streams of other accounts than the global one are named
        `account/stream`."""
        now = self._clock.now()
        return {_shown(key): kept.lag(now) for key, kept in self._kept.items()}

    def attended(self) -> bool:
        """Return True if a compactor holds the lake's lock, by the last check."""
        return self._attended

    def troubles(self) -> dict[str, str]:
        """Return the reasons why tables do not follow their streams, for monitoring."""
        found = {_shown(key): trouble for key, trouble in self._leaving.values()}
        return found | {_shown(key): kept.trouble for key, kept in self._kept.items() if kept.trouble}

    # ------------------------------------------------------------------ LakeLink
    def refusal(self, config: StreamConfig) -> str | None:
        try:
            wanted = policy.parse(config.metadata)
        except BadPolicy as error:
            return str(error)
        if wanted.clone_as_of is not None and config.mirror is not None and not can_begin_as_copy(config):
            return f"{AS_OF}: {ONLY_COPIES}"
        return None

    def attached(self, stream: Stream) -> None:
        """Attach a stream, and stage segments that were sealed before a crash."""
        if stream.config.storage == "memory":
            return
        before = self._kept.get((stream.account, stream.name))
        if before is not None:  # a replica whose state came from another node
            self.detached(before.stream)
        kept = Kept(stream, self.root, Grace(self._options.staged_grace_ns, self._options.staged_grace_bytes))
        self._kept[stream.account, stream.name] = kept
        table = paths.table(self.root, stream.name, stream.account)
        stream.history = kept.history = ThreadHistory(table, stream.uid, kept.directory, self._io, self._cache)
        stream.past = past_of(stream, stream.config)
        stream.copying.clones = self._clones
        self._ask(kept)

    def detached(self, stream: Stream) -> None:
        kept = self._kept.get((stream.account, stream.name))
        if kept is not None and kept.stream is stream:
            del self._kept[stream.account, stream.name]
            self._tell(kept, f"stream {stream.name} is not on this server any more")
            if kept.history is not None:
                kept.history.close()

    def position_of(self, uid: str, account: str, name: str, done: Callable[[int], None]) -> None:
        table = paths.table(self.root, name, account)

        def known(position: int | None, error: BaseException | None) -> None:
            if error is not None:
                self._log.warn(f"stream {name}: the lake at {self.root} can not be read: {error}")
            done(position or 0)

        self._io.submit(lambda: PositionWatch(table, uid).read(), known)

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: Origin) -> Base:
        try:
            return self._clones.build(files, directory, paths.table(self.root, name, account), origin)
        except LakeError as error:
            raise BaseUnreadable(str(error)) from error

    def read_base(
        self,
        files: Files,
        directory: str,
        account: str,
        name: str,
        origin: Origin,
        done: Callable[[Base | None, BaseException | None], None],
    ) -> None:
        self._clones.read(lambda: self.make_base(files, directory, account, name, origin), done)

    def keeps(self, create: CreateStream) -> bool:
        identity = leaving.identity_of(create)
        if identity is None or not leaving.keeps(identity):
            return False
        kept = self._kept.get((identity.account, identity.name))
        return kept is None or kept.stream.uid != identity.uid or not kept.ahead

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        kept = [stream for stream in streams if stream.config.storage != "memory"]
        if not kept:
            return []
        pool = ThreadPoolExecutor(min(LOOKING, len(kept)), thread_name_prefix="lake-look")
        began = time.monotonic()
        looks = {pool.submit(Kept(stream, self.root, Grace(0, 0)).older_store): stream for stream in kept}
        done, late = wait(looks, self._look_seconds)
        if not self._started:  # one start, however many accounts
            self._look_seconds = max(self._look_seconds - (time.monotonic() - began), 0.0)
        pool.shutdown(wait=False, cancel_futures=True)
        found = []
        for look in done:
            stream, error = looks[look], look.exception()
            if error is not None:
                self._log.warn(f"stream {stream.name}: {NOT_COMPARED}: {error}")
            elif (older := look.result()) is not None:
                found.append((stream, LogError(str(older), OLDER_STORE)))
        if late:
            names = sorted(looks[look].name for look in late)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            self._log.warn(
                f"streams {', '.join(names[:5])}{more}: {NOT_COMPARED}: the lake at {self.root} did not answer in time"
            )
        return found

    def left(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        identity = leaving.identity_of(create)
        if identity is None:
            done()
            return
        kept = self._kept.get((identity.account, identity.name))
        if kept is None or kept.stream.uid != identity.uid:
            self._see_off(identity, directory, done)
            return
        del self._kept[identity.account, identity.name]
        self._tell(kept, f"stream {identity.name} was deleted")
        if kept.history is not None:
            kept.history.close()
        if kept.asking:  # that task would stage anew what the compactor then takes away
            kept.on_deleted = lambda: self._see_off(identity, directory, done)
        else:
            self._see_off(identity, directory, done)

    def _see_off(self, identity: staging.StreamIdentity, directory: str, done: Callable[[], None]) -> None:
        """Mark a deleted stream in the lake, and stage what its table lacks.

        Failed attempts are repeated, now and after the next start: otherwise its table would stay forever, and readers
        would take the stream for a live one.
        """

        def settled(_: object, error: BaseException | None) -> None:
            if error is None:
                self._leaving.pop(identity.uid, None)
                done()
            elif not self._stopped:
                if identity.uid not in self._leaving:
                    self._log.error(f"stream {identity.name}: cannot tell the lake yet that it is deleted: {error}")
                self._leaving[identity.uid] = (identity.account, identity.name), str(error)
                self._clock.call_later(self._options.poll_ns, lambda: self._see_off(identity, directory, done))

        self._io.submit(lambda: leaving.settle(self.root, identity, directory, self._log), settled)

    # ------------------------------------------------------------------ flushes
    def when_staged(self, stream: Stream, done: Callable[[str], None]) -> None:
        """Stage everything sealed of a stream by now, then call `done("")`, or with the error."""
        kept = self._kept.get((stream.account, stream.name))
        if kept is None or kept.stream.closed:
            done(f"stream {stream.name} is not kept in the lake")
            return
        if not kept.stream.leading:
            done(f"another server leads stream {stream.name} now")
            return
        through, _ = kept.stream.store.sealed_through
        staged = through <= max(kept.staged_through, kept.position) and not kept.owes_schema()
        if kept.checked and not kept.trouble and staged:
            done("")
            return
        kept.waiting.append(done)
        self._ask(kept)

    @staticmethod
    def _tell(kept: Kept, wrong: str) -> None:
        waiting, kept.waiting = kept.waiting, []
        for done in waiting:
            done(wrong)

    # ------------------------------------------------------------------ the tables
    def _poll(self) -> None:
        if self._stopped:
            return
        # First the next look: one stream's trouble must not end it for all.
        self._clock.call_later(self._options.poll_ns, self._poll)
        self._budget = Budget()
        self._look_for_compactor()
        for kept in list(self._kept.values()):
            self._ask(kept)

    def _look_for_compactor(self) -> None:
        """Check whether the compactor's lock is held; in an object store less often."""
        now, path = self._clock.now(), f"{self.root}/{COMPACTOR_LOCK}"
        if self._attended_at and not paths.is_local(path) and now - self._attended_at < LEASE_LOOK_NS:
            return
        self._attended_at = now

        def seen(held: bool | None, error: BaseException | None) -> None:
            self._attended = bool(held)

        self._io.submit(lambda: is_held(path), seen)

    def _ask(self, kept: Kept) -> None:
        """Stage sealed segments and read the position; at most one such task of a stream runs."""
        store = kept.stream.store
        store.seal_if_old()
        # Cheap for a stream where nothing happens: there may be a thousand of them, each with its retained segments.
        if kept.asking or kept.stream.closed or kept.idle(store.left_through, store.sealed_through[0]):
            return
        sealed = list(store.sealed())
        kept.asking = True
        served, kept.waiting = kept.waiting, []
        leads = kept.stream.leading
        # A copy that a stream began with was never in its log, and its table has it since the log's first entry.
        left, floor = max(store.left_through, int(store.upkeep.based)), store.local_floor
        applied, budget = store.applied, self._budget
        fresh = bool(sealed) and sealed[-1].last_index > kept.staged_through
        identity = kept.identity if leads and (fresh or kept.owes_schema()) else None

        def settled(found: Found | None, error: BaseException | None) -> None:
            kept.asking = False
            for done in served:
                staged = found is not None and leads and kept.on_deleted is None
                gone = "the stream was deleted, or another server leads it now"
                done("" if staged else for_clients(error) if error is not None else gone)
            if kept.on_deleted is not None:
                kept.on_deleted()
                return
            if kept.waiting:  # they came while this task was under way
                self._clock.call_soon(lambda: self._ask(kept))
            if found is None:
                self._troubled(kept, error or OSError("no answer"))
                return
            self._note(kept, found.trouble)
            if leads and sealed:
                kept.staged_through = max(kept.staged_through, sealed[-1].last_index)
            if identity is not None:
                kept.told = identity
            self._moved(kept, found, left)
            if found.held is not None and not kept.stream.closed:
                self._let_go(kept.stream, store, found.held)

        self._io.submit(lambda: kept.look(sealed, identity, leads, left, floor, applied, budget), settled)

    def _moved(self, kept: Kept, found: Found, left: int) -> None:
        """Record the table's position."""
        position = found.position or 0
        if position < kept.position:  # an older copy of the lake that the log still reaches: stage anew
            kept.staged_through = position
        kept.position, kept.held = position, found.held or 0
        if kept.history is not None:
            kept.history.refusal = ""
            kept.history.damaged = found.damaged or position < left

    def _troubled(self, kept: Kept, error: BaseException) -> None:
        """Apply the consequences of an older copy of the store or of the lake, which a person has to repair."""
        self._note(kept, str(error))
        if isinstance(error, OlderStore):
            kept.ahead = True
            kept.stream.group.give_up(LogError(str(error), OLDER_STORE))
        elif isinstance(error, OlderLake) and kept.history is not None:
            kept.history.refusal = str(error)

    def _note(self, kept: Kept, trouble: str) -> None:
        """Record an error of a table for monitoring; log it once."""
        if trouble and trouble != kept.trouble:
            self._log.error(f"stream {kept.stream.name}: the lake at {self.root}: {trouble}")
        kept.trouble = trouble

    def _let_go(self, stream: Stream, store: Store, position: int) -> None:
        """Release segments from the log that a visible commit of the table holds (invariants 7 and 10), in whole
        files."""
        if store.checkpoint_frees(position):
            stream.checkpoint()
        dropped: list[SealedSegment] = store.drop_through(position)
        if dropped and self._log.debugging:
            self._log.debug(f"stream {stream.name}: {len(dropped)} segments left the log, the lake holds them")


def _shown(key: tuple[str, str]) -> str:
    """Return a stream's account and name as one name, as in SQL."""
    account, name = key
    return name if account == GLOBAL else f"{account}/{name}"
