"""The link between the server's streams and the lake.

Belongs here: staging sealed segments, following the position of each table, releasing segments from the log that the
table holds, and giving streams their history. All file work happens in threads; without a compactor or a lake the
server continues to serve and the log grows (invariant 9).
"""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lakestream import extras
from lakestream.config.options import LakeOptions
from lakestream.lake.errors import BadPolicy, LakeAway, LakeError, OlderLake, OlderStore, StorageFailed
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, LockState, lock_state
from lakestream.lake.table import defaults, policy
from lakestream.lake.table.check import Budget
from lakestream.lake.table.state import position_of
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.base import Base, BaseOrigin, BaseUnreadable
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.meta.deleted_streams import creation
from lakestream.meta.shared import Unlimited
from lakestream.ops.monitoring.monitored import HistoryFigures, Outage, StreamLag
from lakestream.ports import Share
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.errors import for_clients
from lakestream.protocol.subjects import covers
from lakestream.runtime import LoopClock, ThreadIo
from lakestream.schemas.naming import MISFITS_SUBJECT_KEY, SCHEMA_KEY
from lakestream.server.heap import trim
from lakestream.server.lake import deleted_streams
from lakestream.server.lake.early_seals import EarlySeals
from lakestream.server.lake.history import READING, SharedCache, ThreadHistory
from lakestream.server.lake.presence import Presence
from lakestream.server.lake.stream_sync import Grace, LookResult, StreamSync
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.core.pipeline import nothing_left
from lakestream.stream.core.stream import StreamCore

if TYPE_CHECKING:
    from lakestream.lake.staging.compactor_files import QueryProgress, UpkeepState
    from lakestream.server.lake.clones import LakeClones
    from lakestream.server.lake.tables import TableFigures
    from lakestream.stream.assembly import Stream

LEASE_LOOK_NS = 10_000_000_000
"""Interval (10 s) at which monitoring checks the compactor's lease in an object store."""
TRIM_AFTER_NS = 5_000_000_000
"""Time (5 s) after the last segments left their logs when the memory of their index is returned to the system."""
LOOKING = 8
"""Number of tables that are read in parallel before their streams serve."""
LOOK_SECONDS = 10.0
"""Maximum time for which a start waits for the positions of tables. It continues without them (invariant 9)."""
STAGE_AFTER_NS = 50_000_000
"""Time (50 ms) for an early seal; what takes longer is staged at the next poll."""
IDLE_POLLS = 30
"""A stream at rest is looked at once in this many polls, for the changes that other programs make to its table."""
IDLE_LOOKS = 8
"""Maximum number of these looks in one poll, however many streams there are. Each takes about 0.5 ms of a thread."""
OLDER_STORE = "the server's store is an older copy than its lake; the server's log says what to do"
"""Error text for clients of a stream whose store is older than its lake."""
NOT_COMPARED = "the table was not compared with the store, so an older copy of the store would go unnoticed"


class LakeKeeper:
    """Implementation of `LakeLink` over a lake in a directory or an object store.

    Args:
        root: the lake's root.
        io: threads for the lake. A slow lake blocks them, so the log has others.
        probes: threads for the probes of the lake; `io` by default.
    """

    def __init__(
        self,
        root: str,
        options: LakeOptions,
        clock: LoopClock,
        io: ThreadIo,
        log: Logger,
        probes: ThreadIo | None = None,
        share: Share | None = None,
    ) -> None:
        self._share = share or Unlimited()
        self.root = paths.root(root)
        self.presence = Presence(self.root, clock, probes or io, log)
        self.presence.on_return.append(self._returned)
        self._options = options
        self._clock = clock
        self._io = io
        self._log = log
        self._cache = SharedCache()
        self._syncs: dict[tuple[str, str], StreamSync] = {}
        """By account and name."""
        self._polled: dict[StreamSync, None] = {}
        """Those that may have something to do. Each of the others comes back with its stream's next entry."""
        self._order: dict[StreamSync, None] = {}
        """All of them, in the order of the looks at those at rest."""
        self._rest_looks = 0.0
        self._absent: set[str] = set()
        """Uids of streams of which the lake had nothing when the server started: their first look is done."""
        self._unmarked: dict[str, tuple[tuple[str, str], str]] = {}
        """Deleted streams by uid that are not marked in the lake yet: (account, name), and the error."""
        self._started = self._stopped = self._polling = False
        self._look_seconds = LOOK_SECONDS
        self._budget = Budget()
        self.owed: Callable[[str], str | None] = lambda account: None
        """Returns why the lake lacks schemas of an account, "" if they are being written; None if it has all."""
        self.on_compactor: Callable[[], None] = nothing_left
        """Called when a compactor has come."""
        self.attended = False
        """True if a compactor holds the lake's lock, by the last check."""
        self.starting = False
        """True if one was started that is not at work yet, as far as whoever started it knows."""
        self.batch: QueryProgress | None = None
        """The last micro-batch of the compactor's query, by the last check."""
        self.upkeep: UpkeepState | None = None
        """The state of the maintenance, by the last check."""
        self.visits = 0
        """Number of checks that found a compactor, or that one has been there since."""
        self._lock = LockState(False)
        self._attended_at = 0
        self._released_at = 0
        """Time at which segments left a log, until the memory of their index was returned to the system; else 0."""

    @functools.cached_property
    def _tables(self) -> TableFigures:
        """Return the reader of tables for monitoring, which is loaded with the first page that shows them."""
        from lakestream.server.lake.tables import TableFigures

        return TableFigures(self._clock, self._io)

    @functools.cached_property
    def _clones(self) -> LakeClones:
        """Return the clones, which are loaded with the first mirror."""
        from lakestream.server.lake.clones import LakeClones

        return LakeClones(self.root, self._clock, self._io, self._log, self._identity_of)

    def _identity_of(self, stream: StreamCore) -> staging.StreamIdentity | None:
        sync = self._syncs.get((stream.account, stream.name))
        return sync.identity if sync is not None and sync.stream is stream else None

    def start(self) -> None:
        """Start to follow the tables, every `poll_ns`."""
        self._started, self._look_seconds = True, LOOK_SECONDS
        self._clock.call_later(self._options.poll_ns, self._poll)
        self._look_for_compactor()

    def stop(self) -> None:
        """Stop following the tables."""
        self._stopped = True

    @property
    def lake_id(self) -> str:
        """Return the lake's id; "" until the lake was reached."""
        return self.presence.probe.lake_id

    def outage(self) -> Outage | None:
        away = self.presence.away
        return None if away is None else Outage(self.presence.since_ns, away.reason, str(away))

    def _returned(self) -> None:
        """Look at all tables: the lake is back."""
        if self._started and not self._stopped:
            syncs = list(self._syncs.values())
            for sync in syncs:
                sync.renew()
                self._polled[sync] = None
            self._share.run_in_steps(self._looks(syncs, anyway=True))

    def lag(self) -> dict[str, StreamLag]:
        """Return the lag of each stream's table for monitoring. Streams of other accounts than the global one are named
        `account/stream`."""
        now = self._clock.now()
        return {_shown(key): sync.lag(now) for key, sync in self._syncs.items()}

    def lag_of(self, account: str, stream: str) -> StreamLag | None:
        sync = self._syncs.get((account, stream))
        return sync.lag(self._clock.now()) if sync is not None else None

    def history(self) -> HistoryFigures:
        return self._cache.figures()

    def troubles(self) -> dict[str, str]:
        """Return the reasons why tables do not follow their streams, for monitoring."""
        if self.presence.away is not None:
            return {}  # one outage, not an error of each table
        found = {_shown(key): trouble for key, trouble in self._unmarked.values()}
        return found | {_shown(key): sync.trouble for key, sync in self._syncs.items() if sync.trouble}

    def damages(self) -> dict[tuple[str, str], str]:
        """Return the streams whose tables are damaged or missing, with the reason, for monitoring."""
        return {key: sync.damage for key, sync in self._syncs.items() if sync.damage}

    def streams(self) -> Collection[tuple[str, str]]:
        return self._syncs.keys()

    async def table(self, stream: tuple[str, str], commits: int) -> dict[str, Any]:
        """Return a stream's table as /lakez shows it, with so many of its last commits."""
        account, name = stream
        sync = self._syncs.get(stream)
        if sync is None:
            return {"account": account, "name": name, "error": f"stream {name} is not on this server any more"}
        lag = sync.lag(self._clock.now())
        page: dict[str, Any] = {
            "account": account,
            "name": name,
            "lag_msgs": lag.messages,
            "lag_seconds": round(lag.age_ns / 1e9, 3),
            "position": sync.position,
        }
        if lag.misfits:
            page["misfits"] = lag.misfits
        away = self.presence.away
        if away is not None:
            return page | {"error": str(away)}
        trouble = sync.trouble
        figures = await self._tables.read(sync.follower)
        if figures.table is not None:
            page |= {"table": figures.table, "commits": figures.commits[:commits]}
        error = trouble or figures.error
        return page | ({"error": error} if error else {})

    def maintain(self, stream: Stream, done: Callable[[str], None], replay: bool = False) -> None:
        """Ask the compactor to maintain a stream's table now; call back with "" once it is asked, or what is wrong.

        Args:
            replay: to decode the stream's misfits again, instead.
        """
        sync = self._syncs.get((stream.account, stream.name))
        if sync is None or not self.attended:
            done("no compactor is running: start one with `lakestream up`, or run `lakestream maintain`")
            return
        if self.upkeep is None:
            done("the compactor does not maintain tables (maintain_every: 0)")
            return

        def ask() -> bool:
            from lakestream.lake.staging import compactor_files

            return compactor_files.ask(self.root, compactor_files.UpkeepRequest(sync.follower.table, replay))

        def asked(accepted: bool | None, error: BaseException | None) -> None:
            done(str(error) if error is not None else "" if accepted else "too many requests wait for the compactor")

        self._io.submit(ask, asked)

    # ------------------------------------------------------------------ LakeLink
    def refusal(self, config: StreamConfig) -> str | None:
        try:
            wanted = policy.parse(config.metadata)
        except BadPolicy as error:
            return str(error)
        letters = config.metadata.get(MISFITS_SUBJECT_KEY, "").encode()
        if letters and any(covers(own.encode(), letters) for own in config.subjects or [config.name]):
            return f"{MISFITS_SUBJECT_KEY}: the stream would get its own misfits on {letters.decode()}"
        if wanted.clone_as_of is not None:
            from lakestream.stream.mirroring.clone import (  # with the first mirror
                AS_OF,
                ONLY_CLONES,
                can_begin_as_clone,
            )

            if config.mirror is not None and not can_begin_as_clone(config):
                return f"{AS_OF}: {ONLY_CLONES}"
            if not wanted.lake:
                return f"{AS_OF}: needs the lake, and {policy.LAKE_KEY} is off"
        return None

    def created(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        return self._with_defaults(config, existing, defaults.of_creation)

    def updated(self, config: StreamConfig, existing: StreamConfig | None) -> StreamConfig:
        return self._with_defaults(config, existing, defaults.of_update)

    def _with_defaults(
        self, config: StreamConfig, existing: StreamConfig | None, complete: defaults.Complete
    ) -> StreamConfig:
        if config.storage == "memory":
            return config
        found = defaults.of_name(config.name, self._options.defaults)
        before = None if existing is None else existing.metadata
        return replace(config, metadata=complete(config.metadata, before, found))

    def attached(self, stream: Stream) -> None:
        """Attach a stream, and stage segments that were sealed before a crash."""
        if not stream.config.in_lake:
            return
        before = self._syncs.get((stream.account, stream.name))
        if before is not None:  # a replica that installed another node's state
            self.detached(before.stream)
        options = self._options
        grace = Grace(options.staged_grace_ns, options.staged_grace_bytes)
        early, lane = EarlySeals(options.seal_age_ns), self._io.lane(background=True)
        encrypted = options.encryption == "parquet"
        sync = StreamSync(stream, self.root, grace, early, lane, self.presence.confirm, encrypted)
        self._syncs[stream.account, stream.name] = sync
        self._polled[sync] = None
        self._order[sync] = None
        stream.reader.history = sync.history = ThreadHistory(
            sync.table,
            lambda: sync.follower,
            stream.uid,
            sync.directory,
            self.presence,
            self._cache,
            self._log.warn_again,
        )
        sync.history.on_failure = functools.partial(self._stir, sync)
        if stream.config.mirror is not None:  # no other stream becomes one later
            stream.mirroring.clones = self._clones
        sync.is_new, sync.checked = stream.is_new, stream.is_new or stream.uid in self._absent
        self._absent.discard(stream.uid)
        if not stream.is_new or not self._rest(sync):
            self._look(sync)

    def detached(self, stream: Stream) -> None:
        sync = self._syncs.get((stream.account, stream.name))
        if sync is not None and sync.stream is stream:
            self._drop(sync, f"stream {stream.name} is not on this server any more")

    def position_of(self, uid: str, account: str, name: str, done: Callable[[int], None]) -> None:
        table = paths.table(self.root, name, account)

        def known(position: int | None, error: BaseException | None) -> None:
            if error is not None:
                self._log.warn(f"stream {name}: the lake at {self.root} cannot be read: {error}")
            done(position or 0)

        self._io.submit(lambda: position_of(table, uid), known)

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin) -> Base:
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
        origin: BaseOrigin,
        done: Callable[[Base | None, BaseException | None], None],
    ) -> None:
        self._clones.read(lambda: self.make_base(files, directory, account, name, origin), done)

    def rests(self, stream: Stream, compacted: bool = False) -> bool:
        sync = self._syncs.get((stream.account, stream.name))
        if sync is None:
            return not stream.config.in_lake
        return not sync.asking and sync.is_at_rest(compacted or self.attended, self.visits)

    def keeps(self, create: CreateStream) -> bool:
        identity = deleted_streams.identity_of(create)
        if identity is None or not deleted_streams.keeps(identity):
            return False
        sync = self._syncs.get((identity.account, identity.name))
        return sync is None or sync.stream.uid != identity.uid or not sync.ahead

    def knows(self, stream: Stream) -> bool:
        if not stream.config.in_lake:
            return False
        sync = self._syncs.get((stream.account, stream.name))
        return sync is None or sync.stream is not stream or sync.is_known or self.keeps(creation(stream))

    def ahead(self, streams: Sequence[Stream]) -> list[tuple[Stream, LogError]]:
        filed = [stream for stream in streams if stream.config.in_lake]
        if not filed:
            return []
        pool = ThreadPoolExecutor(min(LOOKING, len(filed)), thread_name_prefix="lake-look")
        began = time.monotonic()
        survey = pool.submit(self._survey, {stream.account for stream in filed})
        wait([survey], self._look_seconds)
        present = survey.result() if survey.done() and survey.exception() is None else None
        if present is not None:
            absent = [stream for stream in filed if _is_absent(stream, present[stream.account])]
            self._absent.update(stream.uid for stream in absent)
            filed = [stream for stream in filed if stream.uid not in self._absent]
        looks = {
            pool.submit(StreamSync(stream, self.root, Grace(0, 0), EarlySeals(0)).older_store): stream
            for stream in filed
        }
        done, late = wait(looks, max(self._look_seconds - (time.monotonic() - began), 0.0))
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

    def _survey(self, accounts: Collection[str]) -> dict[str, set[str]] | None:
        """Return the names of the directories that the streams of these accounts have in the lake, by account; None if
        it is not known to be this server's lake. Block.

        Raise LakeError, OSError.
        """
        if not self.presence.probe.lake_id:
            return None
        self.presence.probe.check()
        storage = open_storage(self.root)
        return {
            account: {name for parent in paths.parents(self.root, account) for name in storage.directories(parent)}
            for account in accounts
        }

    def deleted(self, create: CreateStream, directory: str, done: Callable[[], None]) -> None:
        identity = deleted_streams.identity_of(create)
        if identity is None:
            done()
            return
        sync = self._syncs.get((identity.account, identity.name))
        if sync is None or sync.stream.uid != identity.uid:
            self._mark_deleted(identity, directory, done)
            return
        self._drop(sync, f"stream {identity.name} was deleted")
        if sync.asking:  # that task would stage segments that the compactor then removes
            sync.on_deleted = lambda: self._mark_deleted(identity, directory, done)
        else:
            self._mark_deleted(identity, directory, done)

    def _mark_deleted(self, identity: staging.StreamIdentity, directory: str, done: Callable[[], None]) -> None:
        """Mark a deleted stream in the lake, and stage what its table lacks.

        Failed attempts are repeated, now and after the next start: otherwise its table would stay forever, and readers
        would take the stream for a live one.
        """

        def settled(_: object, error: BaseException | None) -> None:
            if error is None:
                self._unmarked.pop(identity.uid, None)
                done()
            elif not self._stopped:
                if identity.uid not in self._unmarked and not isinstance(error, LakeAway):
                    self._log.error(f"stream {identity.name}: deletion not recorded in the lake: {error}; retrying")
                self._unmarked[identity.uid] = (identity.account, identity.name), str(error)
                self._clock.call_later(self._options.poll_ns, lambda: self._mark_deleted(identity, directory, done))

        def settle() -> None:
            self.presence.confirm()
            deleted_streams.settle(self.root, identity, directory, self._log)

        self._io.submit(settle, settled)

    # ------------------------------------------------------------------ flushes
    def when_staged(self, stream: Stream, done: Callable[[str], None]) -> None:
        """Stage everything sealed of a stream by now, then call `done("")`, or with the error."""
        sync = self._syncs.get((stream.account, stream.name))
        if sync is None or sync.stream.closed:
            done(f"stream {stream.name} is not in this server's lake")
            return
        if not sync.stream.leading:
            done(f"another server leads stream {stream.name} now")
            return
        through, _ = sync.stream.store.sealed_through
        staged = through <= max(sync.staged_through, sync.position) and not sync.has_unstaged_schema()
        if sync.checked and not sync.trouble and staged:
            done("")
            return
        sync.waiting.append(done)
        self._stir(sync)
        self._look(sync)

    def _drop(self, sync: StreamSync, why: str) -> None:
        """Follow a stream's table no more."""
        del self._syncs[sync.stream.account, sync.stream.name]
        self._polled.pop(sync, None)
        del self._order[sync]
        sync.stream.store.on_entry = None
        self._refuse_flushes(sync, why)
        if sync.history is not None:
            sync.history.close()

    # ------------------------------------------------------------------ the tables
    def _poll(self) -> None:
        if self._stopped:
            return
        if self._released_at and self._clock.now() - self._released_at >= TRIM_AFTER_NS:
            self._released_at = 0
            self._io.submit(trim, lambda _, __: None)
        # Schedule the next poll first: an error of one stream must not end it for all.
        self._clock.call_later(self._options.poll_ns, self._poll)
        if self._polling:
            return  # thousands of streams: the last round goes on
        self._budget = Budget()
        self.presence.poll()
        self._look_for_compactor()
        self._share.run_in_steps(self._round())

    def _round(self) -> Iterator[None]:
        """Do what is due for the streams that are polled, one after the other."""
        self._polling = True
        try:
            yield from self._looks(list(self._polled))
            self._look_at_rest()
            yield from self._seal_early()
            for sync in list(self._polled):
                if sync in self._polled:
                    self._rest(sync)
                yield
        finally:
            self._polling = False

    def _rest(self, sync: StreamSync) -> bool:
        """Poll a stream no more before its next entry, if nothing is to be done for it until then; return True then."""
        if sync.asking or not sync.is_at_rest(self.attended, self.visits):
            return False
        del self._polled[sync]
        sync.stream.store.on_entry = functools.partial(self._stir, sync)
        return True

    def _stir(self, sync: StreamSync) -> None:
        """Poll a stream from now on: something may have to be done for it."""
        sync.stream.store.on_entry = None
        if self._syncs.get((sync.stream.account, sync.stream.name)) is sync:
            self._polled[sync] = None

    def _look_at_rest(self) -> None:
        """Look at the next few streams that are not polled."""
        self._rest_looks = min(self._rest_looks + len(self._syncs) / IDLE_POLLS, IDLE_LOOKS)
        while self._order and self._rest_looks >= 1:
            self._rest_looks -= 1
            sync = next(iter(self._order))
            self._order[sync] = self._order.pop(sync)
            self._look(sync, anyway=True)

    def _seal_early(self) -> Iterator[None]:
        """Seal the segments that are due early, all in one round, and stage them soon: their streams then share the
        compactor's next round."""
        now, sealing = self._clock.steady(), list[StreamSync]()
        for sync in list(self._polled):
            if sync in self._polled and sync.seal_early(now, self.attended):
                sealing.append(sync)
            yield
        if sealing:
            self._clock.call_later(STAGE_AFTER_NS, lambda: self._share.run_in_steps(self._looks(sealing)))

    def _looks(self, syncs: Sequence[StreamSync], *, anyway: bool = False) -> Iterator[None]:
        """Look at these streams, of which some may end meanwhile."""
        for sync in syncs:
            if self._syncs.get((sync.stream.account, sync.stream.name)) is sync and not self._stopped:
                self._look(sync, anyway=anyway)
            yield

    def _look_for_compactor(self) -> None:
        """Check whether the compactor's lock is held; in an object store less often."""
        now, path = self._clock.now(), f"{self.root}/{COMPACTOR_LOCK}"
        if self._attended_at and not paths.is_local(path) and now - self._attended_at < LEASE_LOOK_NS:
            return
        if self.presence.away is not None:
            return
        self._attended_at = now

        def look() -> tuple[LockState, QueryProgress | None, UpkeepState | None]:
            found = lock_state(path)
            if not found.held:
                return found, None, None
            from lakestream.lake.staging import compactor_files

            return found, compactor_files.PROGRESS.read(self.root), compactor_files.UPKEEP.read(self.root)

        def seen(
            looked: tuple[LockState, QueryProgress | None, UpkeepState | None] | None, error: BaseException | None
        ) -> None:
            found, self.batch, self.upkeep = looked or (LockState(False, self._lock.changed_ns), None, None)
            before, self._lock = self._lock, found
            came = not before.held and (found.held or found.changed_ns != before.changed_ns)
            self.attended = found.held
            self.starting = self.starting and not found.held
            if came or found.held or before.held:  # it may have committed after the last look
                self.visits += 1
            if came:
                self.on_compactor()
                for sync in self._syncs.values():
                    self._stir(sync)

        self._io.submit(look, seen)

    def _look(self, sync: StreamSync, *, anyway: bool = False) -> None:
        """Stage sealed segments and read the position; at most one such task of a stream runs.

        Args:
            anyway: also of an idle stream.
        """
        store = sync.stream.store
        store.seal_if_old()
        if sync.asking or sync.stream.closed or (sync.is_idle(self.attended, self.visits) and not anyway):
            return
        if self.presence.away is not None:
            self._refuse_flushes(sync, self.presence.away.for_clients)
            return
        if SCHEMA_KEY in sync.stream.config.metadata and (owed := self.owed(sync.stream.account)) is not None:
            if owed:
                self._report(sync, owed)
            return  # its segments are staged after the versions that their messages have
        sealed = list(store.sealed())
        sync.asking = True
        served, sync.waiting = sync.waiting, []
        leads = sync.stream.leading
        # A clone that a stream began with was never in its log; its table has it since the log's first entry.
        left, floor = max(store.left_through, int(store.based)), store.local_floor
        applied, budget, visits = store.applied, self._budget, self.visits
        fresh = bool(sealed) and sealed[-1].last_index > sync.staged_through
        identity = sync.identity if leads and (fresh or sync.has_unstaged_schema()) else None
        misfits_after = sync.misfits_after()

        def settled(found: LookResult | None, error: BaseException | None) -> None:
            sync.asking = False
            for done in served:
                staged = found is not None and leads and sync.on_deleted is None
                gone = "the stream was deleted, or another server leads it now"
                done("" if staged else for_clients(error) if error is not None else gone)
            if sync.on_deleted is not None:
                sync.on_deleted()
                return
            if sync.waiting:  # they arrived while this task was running
                self._clock.call_soon(lambda: self._look(sync))
            if found is None and isinstance(error, OlderStore | OlderLake):
                self._failed(sync, error)
                return
            if found is None:
                self._judge(sync, error or OSError("no answer"))
                return
            sync.looked_at = visits
            changed = sync.told(found.changes)
            unread = _unreadable() if found.held else ""
            self._report(sync, found.trouble or changed or unread)
            if found.misfits is not None:
                sync.take_misfits(found)
            if leads and sealed:
                sync.staged_through = max(sync.staged_through, sealed[-1].last_index)
                sync.stream.spans.staged(sealed[-1].last_seq)
            if identity is not None:
                sync.written_identity = identity
            self._record_position(sync, found, left)
            if found.held is not None and not unread and not sync.stream.closed:
                self._release(sync.stream, store, found.held)

        sync.io.submit(lambda: sync.look(sealed, identity, leads, left, floor, applied, budget, misfits_after), settled)

    def _record_position(self, sync: StreamSync, found: LookResult, left: int) -> None:
        """Record the table's position."""
        position = found.position or 0
        if position < sync.position:  # an older copy of the lake within reach of the log: stage again
            sync.staged_through = position
        sync.position, sync.held = position, found.held or 0
        if found.damaged or found.held is not None or found.position is None:  # else not all files were checked
            sync.damage = found.trouble if found.damaged else ""
        if sync.history is not None:
            sync.history.refuse("")
            sync.history.note_damage(found.damaged or position < left)

    def _judge(self, sync: StreamSync, error: BaseException) -> None:
        """Apply the error of a look, unless its cause is that the lake is away."""

        def judged() -> None:
            if self.presence.away is None and not sync.stream.closed and not isinstance(error, LakeAway):
                self._failed(sync, error)

        self.presence.suspect(judged)

    @staticmethod
    def _refuse_flushes(sync: StreamSync, why: str) -> None:
        waiting, sync.waiting = sync.waiting, []
        for done in waiting:
            done(why)

    def _failed(self, sync: StreamSync, error: BaseException) -> None:
        """Apply the consequences of an older copy of the store or of the lake, which a person has to repair."""
        self._report(sync, _named(error))
        if isinstance(error, OlderStore):
            sync.ahead = True
            sync.stream.group.give_up(LogError(str(error), OLDER_STORE))
        elif isinstance(error, OlderLake):
            sync.damage = str(error)
            if sync.history is not None:
                sync.history.refuse(sync.damage)

    def _report(self, sync: StreamSync, trouble: str) -> None:
        """Record an error of a table for monitoring; log it once."""
        if trouble and trouble != sync.trouble:
            self._log.error(f"stream {sync.stream.name}: the lake at {self.root}: {trouble}")
        sync.trouble = trouble

    def _release(self, stream: Stream, store: Store, position: int) -> None:
        """Release segments from the log that a visible commit of the table holds (invariants 7 and 10), in whole
        files."""
        if store.checkpoint_frees(position):
            stream.checkpoint()
        dropped: list[SealedSegment] = store.drop_through(position)
        if dropped:
            self._released_at = self._clock.now()
        if dropped and self._log.debugging:
            self._log.debug(f"stream {stream.name}: {len(dropped)} segments left the log, the lake holds them")


def _unreadable() -> str:
    """Return why messages have to stay in the log although the table holds them; "" if they need not."""
    try:
        extras.require("tables", READING)
    except extras.ExtraMissing as error:
        return f"messages stay in the log: {error}"
    return ""


def _named(error: BaseException) -> str:
    """Return an error with what to do if the lake is full, or a library is not installed."""
    if isinstance(error, ImportError):
        return str(extras.explain(error, READING) or error)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or (isinstance(error, StorageFailed) and " 507" in str(error)):
        return f"the lake is full ({error}): free space there, or raise its quota; staging goes on by itself then"
    return str(error)


def _shown(key: tuple[str, str]) -> str:
    """Return a stream's account and name as one name, as in SQL."""
    account, name = key
    return name if account == GLOBAL_ACCOUNT else f"{account}/{name}"


def _is_absent(stream: Stream, present: Collection[str]) -> bool:
    """Return True if the lake has nothing of a stream, and must not have: its whole log is here."""
    store = stream.store
    return not store.left_through and not store.based and paths.directory_name(stream.name) not in present
