"""All streams of one server.

Belongs here: creating, finding, recovering and deleting streams, their subscriptions, and what they share. What one
stream does is in stream.py; what a client asks in JSON is in api.py and its siblings.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.jetstream.batches import BatchLimits, BatchRoom
from lakestream.jetstream.direct_get import DirectGet
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.operations import CreateStream, decode_operation
from lakestream.jetstream.ports import Bus, Clock, Io, Subscribed
from lakestream.jetstream.storage_use import StorageUse
from lakestream.jetstream.stream import Stream
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.jetstream.stream_events import StreamEvents
from lakestream.jetstream.stream_state import StreamState
from lakestream.jetstream.turns import Turns
from lakestream.log.errors import LogError, LogFrozen
from lakestream.log.frame import Frame, Kind
from lakestream.log.store import Store

if TYPE_CHECKING:
    from lakestream.jetstream.cluster import JetStreamCluster
    from lakestream.jetstream.replicas import ReplicaStores

ACCOUNT = "$G"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and identity that streams and the API see. Bytes; -1 or 0 as in the API where nothing is limited."""

    server_name: str
    server_id: str
    domain: str = ""
    strict: bool = True
    max_memory: int = -1
    max_file: int = -1
    duplicate_window_ns: int = 120_000_000_000
    max_ack_pending: int = 0
    max_request_batch: int = 0
    default_max_consumers: int = 1000
    max_pending: int = 64 << 20
    batches: BatchLimits = BatchLimits()
    request_queue_limit: int = 0
    """See `turns.Turns`."""
    sync_interval_ns: int = 0
    """0: every write is synced before it counts (invariant 1); else the time between syncs, asked for explicitly."""
    spool_dir: str = ""
    """Where backups that come are staged; "" is the system's directory for temporary files."""


class Stores(Protocol):
    """Where streams keep their logs."""

    @property
    def replicas(self) -> ReplicaStores:
        """The files of streams that other nodes hold too."""

    def create(self, account: str, name: str, uid: str, *, memory: bool) -> Store:
        """An empty store. Blocks (fsync); call it in a thread. Raises LogError."""

    def found(self) -> list[tuple[str, str]]:
        """(account, stream) of every log on disk."""

    def open(self, account: str, name: str) -> Store:
        """Open a log. Blocks. Raises LogError naming file and offset when it is damaged."""

    def remove(self, account: str, name: str) -> None:
        """Remove a log that is not open, whatever is in it. Blocks."""


class LakeLink(Protocol):
    """What the engine tells the lake's keeper, and asks it."""

    def refusal(self, config: StreamConfig) -> str | None:
        """Why the lake could not do what a stream's metadata asks for; None when it can."""

    def attached(self, stream: Stream) -> None:
        """A stream serves from now on."""

    def detached(self, stream: Stream) -> None:
        """This server holds the stream no more; other nodes do."""

    def deleted(self, stream: Stream) -> None:
        """A stream is gone for good."""

    def forgotten(self, create: CreateStream) -> None:
        """A stream that was never attached here is gone for good."""


class Log(Protocol):
    """Where the engine reports."""

    def info(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...


class _Lakeless:
    """A server without a lake."""

    def refusal(self, config: StreamConfig) -> str | None:
        return None

    def attached(self, stream: Stream) -> None:
        return

    def detached(self, stream: Stream) -> None:
        return

    def deleted(self, stream: Stream) -> None:
        return

    def forgotten(self, create: CreateStream) -> None:
        return


class Engine:
    """The streams of this server (account `$G`)."""

    def __init__(self, bus: Bus, clock: Clock, io: Io, stores: Stores, options: EngineOptions, log: Log) -> None:
        self.bus, self.clock, self.io = bus, clock, io
        self.stores, self.options, self.log = stores, options, log
        self.lake: LakeLink = _Lakeless()
        self.account = ACCOUNT
        self.batches = BatchRoom(options.batches)
        self.events = StreamEvents(bus, clock, options.domain)
        self.turns = Turns(options.request_queue_limit, self._too_many_requests)
        self.cluster: JetStreamCluster | None = None
        """Set before the API and `recover` when this server is one of several."""
        self.streams: dict[str, Stream] = {}
        self.use = StorageUse(options.max_memory, options.max_file)
        self.offline: dict[str, str] = {}
        """Streams that can not be served, with the reason: their log is damaged, or they need a newer server."""
        self._offline_creations: dict[str, CreateStream] = {}
        """How they were created, as far as their log still tells."""
        self.direct = DirectGet(self)
        self._creating: dict[str, StreamConfig] = {}
        self._deleting: dict[str, list[Callable[[], None]]] = {}
        """Streams whose files are going, and the creations that wait for their names."""
        self._subscriptions: dict[str, list[Subscribed]] = {}

    @property
    def server_name(self) -> str:
        return self.options.server_name

    @property
    def server_id(self) -> str:
        return self.options.server_id

    @property
    def domain(self) -> str:
        return self.options.domain

    def _too_many_requests(self, dropped: int) -> None:
        self.log.warn(f"JetStream API queue limit reached, dropping {dropped} requests")
        self.events.limit_reached(self.server_name, dropped)

    def configs(self) -> list[StreamConfig]:
        """Configurations of all streams, also of those being created or offline: what a new one must not overlap."""
        offline = [config for name in self._offline_creations if (config := self.config_of(name)) is not None]
        return [stream.config for stream in self.streams.values()] + list(self._creating.values()) + offline

    def absent(self, name: str) -> ApiError:
        """Why a stream is not among `streams`: there is none, or it is offline."""
        return api_error(10194, err=self.offline[name]) if name in self.offline else api_error(10059)

    def config_of(self, name: str) -> StreamConfig | None:
        """The configuration of a stream; of an offline one what this release understands of its first, if anything."""
        if name in self.streams:
            return self.streams[name].config
        create = self._offline_creations.get(name)
        return msgspec.json.decode(create.config, type=StreamConfig) if create is not None else None

    # ------------------------------------------------------------------ create, update, delete
    def create_stream(
        self, config: StreamConfig, done: Callable[[Stream | ApiError], None], *, restoring: bool = False
    ) -> None:
        """Make a stream from a validated configuration; `done` once its creation is on disk.

        `restoring`: nobody sees it before `restored`; its name and subjects are taken all the same.
        """
        name = config.name
        if name in self._creating or name in self.streams:
            done(api_error(10058))
            return
        self._creating[name] = config
        encoded = msgspec.json.encode(config)
        create = CreateStream(secrets.token_hex(8), ACCOUNT, encoded, self.clock.now(), restoring)

        def opened(store: Store | None, error: BaseException | None) -> None:
            if store is None:
                del self._creating[name]
                self.log.error(f"stream {name}: cannot create its store: {error}")
                done(api_error(10049, err=f"cannot create the store: {error}"))
                return
            stream = self._stream(create, store)
            stream.propose(create, lambda result: created(stream, result))

        def created(stream: Stream, result: object) -> None:
            if isinstance(result, ApiError):
                self.io.submit(stream.store.destroy, lambda _, __: gone(result))
                return
            if not restoring:
                self.restored(stream)
            done(stream)

        def gone(error: ApiError) -> None:
            del self._creating[name]
            done(error)

        def begin() -> None:
            memory = config.storage == "memory"
            self.io.submit(lambda: self.stores.create(ACCOUNT, name, create.uid, memory=memory), opened)

        if name in self._deleting:
            self._deleting[name].append(begin)  # in the old one's directory the new one would go with it
        else:
            begin()

    def restored(self, stream: Stream) -> None:
        """A stream that was made is whole, and exists from now on."""
        del self._creating[stream.name]
        stream.reveal()
        self.attach(stream)
        stream.start(recovered=False)

    def abandon_restore(self, stream: Stream, done: Callable[[], None]) -> None:
        """A stream that was being restored will not be whole: its files go, and its name is free."""
        stream.stop()

        def gone(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.log.error(f"stream {stream.name}: what was restored of it cannot be removed: {error}")
            self._creating.pop(stream.name, None)
            done()

        self.io.submit(stream.store.destroy, gone)

    def delete_stream(self, name: str, done: Callable[[ApiError | None], None]) -> None:
        """Remove a stream with everything it holds; `done(None)` once its files are gone."""
        stream = self.streams.pop(name, None)
        if stream is None:
            done(api_error(10059))
            return
        waiting = self._deleting[name] = []
        self._unsubscribe(name)
        self.use.forget(name)
        stream.stop(deleted=True)

        def destroyed(_: object, error: BaseException | None) -> None:
            del self._deleting[name]
            if error is not None:
                self.log.error(f"stream {name}: {error}")
                done(api_error(10050, err=str(error)))
            else:
                self.lake.deleted(stream)
                done(None)
            for begin in waiting:
                begin()

        self.io.submit(stream.store.destroy, destroyed)

    def delete_offline(self, name: str, done: Callable[[ApiError | None], None]) -> None:
        """Remove an offline stream; `done(None)` once its files are gone."""
        waiting = self._deleting[name] = []
        reason, create = self.offline.pop(name), self._offline_creations.pop(name, None)

        def removed(_: object, error: BaseException | None) -> None:
            del self._deleting[name]
            if error is not None:
                self.offline[name] = reason
                self.log.error(f"stream {name}: {error}")
                done(api_error(10050, err=str(error)))
            else:
                if create is not None:
                    self.lake.forgotten(create)
                else:
                    self.log.warn(f"stream {name}: its log did not tell who it was, its table stays if it has one")
                done(None)
            for begin in waiting:
                begin()

        self.io.submit(lambda: self.stores.remove(ACCOUNT, name), removed)

    def _stream(self, create: CreateStream, store: Store) -> Stream:
        return Stream(create, store, self.bus, self.clock, self.io, self.options.domain, batches=self.batches)

    def _serve(self, stream: Stream) -> None:
        self.attach(stream)
        stream.start()

    def attach(self, stream: Stream) -> None:
        """Have a stream among this server's. Again: its store is another now."""
        self.streams[stream.name] = stream
        self.offline.pop(stream.name, None)
        stream.on_updated, stream.on_failed = self.refresh, self._failed
        stream.use = self.use
        self.use.note(stream)
        self.refresh(stream)
        self.lake.attached(stream)

    def _failed(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, LogFrozen) and error.out_of_space:
            cluster = self.cluster.name if self.cluster is not None else ""
            self.events.out_of_storage(self.server_name, self.server_id, cluster, stream.name)

    def refresh(self, stream: Stream) -> None:
        """Its subjects may have changed, or whether it takes messages here."""
        self._unsubscribe(stream.name)
        self._subscribe(stream)

    def detach(self, name: str, trouble: str = "") -> None:
        """A stream is no longer among this server's. `trouble`: its log can not be read, which is why."""
        self._unsubscribe(name)
        self.use.forget(name)
        self.streams.pop(name, None)
        if trouble:
            self.offline[name] = trouble

    def _subscribe(self, stream: Stream) -> None:
        if stream.leading:
            self._subscriptions[stream.name] = [
                self.bus.subscribe(subject.encode(), stream.ingest) for subject in stream.config.subjects
            ]
        if stream.config.allow_direct:
            self.direct.attach(stream)

    def _unsubscribe(self, name: str) -> None:
        for subscription in self._subscriptions.pop(name, []):
            subscription.cancel()
        self.direct.detach(name)

    # ------------------------------------------------------------------ recovery and end
    def recover(self) -> None:
        """Open every stream on disk. A damaged one is set aside with its reason; the others serve (invariant 3)."""
        found = self.stores.found()
        if self.cluster is not None:
            found = self.cluster.recover(found)
        for account, name in found:
            try:
                stream = self._recover(account, name)
            except Exception as error:  # a damaged log, no room, no permission, or a fault of ours: the others serve
                reason = str(error) if isinstance(error, LogError | OSError) else repr(error)
                self.offline[name] = reason
                self.log.error(f"stream {name} is offline: {reason}")
                continue
            if stream is not None and self.cluster is not None:
                self.cluster.adoption.found(stream)
            elif stream is not None:
                self._serve(stream)
                self.log.info(f"  Restored {stream.store.msgs:,} messages for stream '{account} > {name}'")

    def start(self) -> None:
        """Begin what runs by the clock."""
        if self.options.sync_interval_ns:
            self.clock.call_later(self.options.sync_interval_ns, self._sync_all)

    def _sync_all(self) -> None:
        self.clock.call_later(self.options.sync_interval_ns, self._sync_all)
        for stream in self.streams.values():
            stream.group.sync()

    def _recover(self, account: str, name: str) -> Stream | None:
        store = self.stores.open(account, name)
        try:
            stream = self._replayed(store, name)
        except BaseException:
            store.abandon()
            raise
        self._offline_creations.pop(name, None)
        return stream

    def _replayed(self, store: Store, name: str) -> Stream | None:
        frames = store.replay()
        state = msgspec.msgpack.decode(store.extra, type=StreamState) if store.extra else None
        if state is not None:
            self._offline_creations[name] = state.create  # until it is in service
            stream = self._stream(state.create, store)
            stream.load(state)
        else:
            first = next(frames, None)
            if first is None:
                # Killed between making the directory and its first entry: nobody was told that the stream exists.
                self.log.warn(f"stream {name}: an unfinished creation is removed")
                store.destroy()
                return None
            self._offline_creations[name] = create = self._creation(first[0])
            stream = self._stream(create, store)
            stream.apply_frame(*first)
        for frame, at in frames:
            stream.apply_frame(frame, at)
        if stream.restoring:
            # Nobody was told that it is restored; who sent it does it again.
            self.log.warn(f"stream {name}: an unfinished restore is removed")
            store.destroy()
            return None
        stream.hidden = False
        return stream

    @staticmethod
    def _creation(frame: Frame) -> CreateStream:
        operation = decode_operation(frame.body) if frame.kind == Kind.OPERATION else None
        if not isinstance(operation, CreateStream):
            raise LogError(f"the log does not begin with the creation of its stream but with a {frame.kind.name} entry")
        return operation

    def cease(self) -> None:
        """Take no more messages: what is in flight can come to its end, however fast clients publish."""
        for subscriptions in self._subscriptions.values():
            while subscriptions:
                subscriptions.pop().cancel()

    def stop(self) -> None:
        """Cease to serve, in the event loop and while clients can still be told (409 Server Shutdown)."""
        if self.cluster is not None:
            self.cluster.stop()
        for stream in self.streams.values():
            stream.stop()

    def close(self) -> None:
        """Stop all streams and write their last checkpoints. Blocks; nothing may be in flight that matters."""
        self.stop()
        if self.cluster is not None:
            self.cluster.close()
        for stream in self.streams.values():
            if self.cluster is not None and stream.uid in self.cluster.replicas.by_uid:
                continue
            try:
                stream.store.close(stream.dump())
            except Exception as error:  # the others get their checkpoints; this one is replayed from its log
                self.log.error(f"stream {stream.name}: no last checkpoint was written: {error!r}")
