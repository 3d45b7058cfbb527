"""The streams of one account.

Belongs here: creating, finding, recovering and deleting streams, and their subscriptions. What the engines of all
accounts share is shared.py's; what one stream does is in stream/; what a client asks in JSON is in api/.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from lakestream.account.get.direct import DirectGet
from lakestream.log.format.errors import LogError, LogFrozen
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.store import Store
from lakestream.meta import leaving
from lakestream.meta.shared import EngineOptions as EngineOptions
from lakestream.meta.shared import LakeLink, Shared
from lakestream.meta.shared import Stores as Stores
from lakestream.ports import Bus, Subscribed
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, UNLIMITED, JetStreamLimits
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.stream.assembly import Stream
from lakestream.stream.consumer.acks import Acks
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.events import StreamEvents
from lakestream.stream.core.operations import CreateStream, decode_operation, stream_name
from lakestream.stream.core.state import StreamState
from lakestream.stream.core.storage_use import AccountUse

if TYPE_CHECKING:
    from lakestream.meta.node import JetStreamCluster

ACCOUNT = GLOBAL_ACCOUNT

MAX_WAITING = 10_000
"""Requests that may wait until an account's streams are open; further ones are refused (10008)."""
FROZEN_AGAIN_NS = 60_000_000_000
"""A frozen stream is logged again after this long (1 minute)."""
SETTLE_NS = 10_000_000
"""How soon to look again whether what a stream has taken is on disk (10 ms)."""


class Engine:
    """The streams of one account on this server.

    Args:
        bus: the account's part of core NATS.
        limits: what the account may have.
    """

    def __init__(self, account: str, shared: Shared, bus: Bus, limits: JetStreamLimits = UNLIMITED) -> None:
        self.account, self.shared, self.bus, self.limits = account, shared, bus, limits
        self.clock, self.io, self.stores = shared.clock, shared.io, shared.stores
        self.options, self.log = shared.options, shared.log
        self.batches, self.turns = shared.batches, shared.turns
        self.use = AccountUse(shared.use, shared.clock.now, shared.log.warn)
        self.use.limit(limits)
        self.events = StreamEvents(bus, shared.clock, shared.options.domain)
        self.serving = False
        """Whether the account has JetStream: else its streams hear nothing of its clients."""
        self.lying: list[str] = []
        """Streams on disk that are not open, because the account has no JetStream."""
        self._moving: set[str] = set()
        """Streams that are being opened or closed because of that."""
        self._waiting: list[Callable[[], None]] = []
        self.streams: dict[str, Stream] = {}
        self.offline: dict[str, str] = {}
        """Streams that can not be served, with the reason: their log is damaged, or they need a newer server."""
        self._offline_creations: dict[str, CreateStream] = {}
        """How they were created, as far as their log still tells."""
        self.direct = DirectGet(self)
        self._creating: dict[str, StreamConfig] = {}
        self._deleting: dict[str, list[Callable[[], None]]] = {}
        """Streams that are being deleted, and the creations that wait for their names."""
        self._subscriptions: dict[str, list[Subscribed]] = {}
        self.acks = Acks(self)

    @property
    def lake(self) -> LakeLink:
        """Who keeps the lake."""
        return self.shared.lake

    @property
    def cluster(self) -> JetStreamCluster | None:
        """The cluster that this server is in."""
        return self.shared.cluster

    @property
    def server_name(self) -> str:
        return self.options.server_name

    @property
    def server_id(self) -> str:
        return self.options.server_id

    @property
    def domain(self) -> str:
        return self.options.domain

    def configs(self) -> list[StreamConfig]:
        """Configurations of all streams, also of those being created or offline: what a new one must not overlap."""
        offline = [config for name in self._offline_creations if (config := self.config_of(name)) is not None]
        return [stream.config for stream in self.streams.values()] + list(self._creating.values()) + offline

    def foreign_configs(self) -> list[StreamConfig]:
        """Those of the other accounts' streams: the server's storage has to do for all."""
        return [config for engine in self.shared.engines() if engine is not self for config in engine.configs()]

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
        create = CreateStream(secrets.token_hex(8), self.account, encoded, self.clock.now(), restoring)

        def opened(store: Store | None, error: BaseException | None) -> None:
            if store is None:
                del self._creating[name]
                self.log.error(f"stream {name}: cannot create its store: {error}")
                done(api_error(10049, err=f"cannot create the store: {for_clients(error)}"))
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
            self.io.submit(lambda: self.stores.create(self.account, name, create.uid, memory=memory), opened)

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
        """Remove a stream with everything it holds; `done(None)` once nothing can bring it back.

        What its table is owed, if that is kept, is sealed by then, and comes to the lake behind the answer.
        """
        stream = self.streams.get(name)
        if stream is None:
            done(api_error(10059))
            return
        create = leaving.creation(stream)
        keeps = self.lake.keeps(create)
        if keeps and stream.failed is not None:
            why = (
                f"its table is to be kept, and what is not in it yet cannot be sealed before a restart: {stream.failed}"
            )
            done(api_error(10050, err=why))
            return
        del self.streams[name]
        waiting = self._deleting[name] = []
        self._unsubscribe(name)
        self.use.forget(stream)
        stream.stop(deleted=True)

        def left(directory: str | None, error: BaseException | None) -> None:
            del self._deleting[name]
            if error is not None:
                self.log.error(f"stream {name}: {error}")
                done(api_error(10050, err=for_clients(error)))
            else:
                leaving.begin(self.shared, create, directory or "")
                done(None)
            for begin in waiting:
                begin()

        self.io.submit(lambda: stream.store.leave(leaving.note(create), keeps), left)

    def delete_offline(self, name: str, done: Callable[[ApiError | None], None]) -> None:
        """Remove an offline stream; `done(None)` once nothing can bring it back. A table that is kept gets what was
        sealed: the rest of its log cannot be told good from bad."""
        waiting = self._deleting[name] = []
        reason, create = self.offline.pop(name), self._offline_creations.pop(name, None)

        def remove() -> str:
            if create is not None:
                return self.stores.leave(self.account, name, leaving.note(create))
            self.stores.remove(self.account, name)
            return ""

        def removed(directory: str | None, error: BaseException | None) -> None:
            del self._deleting[name]
            if error is not None:
                self.offline[name] = reason
                self.log.error(f"stream {name}: {error}")
                done(api_error(10050, err=for_clients(error)))
            else:
                if create is not None:
                    leaving.begin(self.shared, create, directory or "")
                else:
                    self.log.warn(f"stream {name}: its log did not tell who it was, its table stays if it has one")
                done(None)
            for begin in waiting:
                begin()

        self.io.submit(remove, removed)

    def _stream(self, create: CreateStream, store: Store) -> Stream:
        return Stream(create, store, self.bus, self.clock, self.io, self.options.domain, batches=self.batches)

    def _serve(self, stream: Stream) -> None:
        self.attach(stream)
        stream.start()

    def attach(self, stream: Stream) -> None:
        """Have a stream among this server's. Again: its store is another now."""
        self.streams[stream.name] = stream
        stream.store.subjects.share()
        self.offline.pop(stream.name, None)
        stream.on_updated, stream.on_failed = self.refresh, self._failed
        stream.use = self.use
        self.use.note(stream)
        self.refresh(stream)
        self.lake.attached(stream)

    def _failed(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, LogFrozen) and error.out_of_space:
            self.shared.out_of_storage(stream.name)
        if self.cluster is None:  # else the replica has logged it
            self.log.error(f"stream {stream.name}: takes no more messages: {error}")
        self.clock.call_later(FROZEN_AGAIN_NS, lambda: self._still_frozen(stream, error))

    def _still_frozen(self, stream: Stream, error: Exception) -> None:
        if not stream.closed and self.streams.get(stream.name) is stream:
            self.log.error(f"stream {stream.name}: still takes no messages: {error}")
            self.clock.call_later(FROZEN_AGAIN_NS, lambda: self._still_frozen(stream, error))

    def refresh(self, stream: Stream) -> None:
        """Its subjects may have changed, or whether it takes messages here."""
        self._unsubscribe(stream.name)
        self._subscribe(stream)

    def detach(self, name: str, trouble: str = "") -> None:
        """A stream is no longer among this server's. `trouble`: its log can not be read, which is why."""
        self._unsubscribe(name)
        stream = self.streams.pop(name, None)
        if stream is not None:
            self.use.forget(stream)
        if trouble:
            self.offline[name] = trouble

    def _subscribe(self, stream: Stream) -> None:
        if not self.serving:
            return
        if stream.leading and not stream.group.handing_over:
            self._subscriptions[stream.name] = [
                self.bus.subscribe(subject.encode(), stream.ingest) for subject in stream.config.subjects
            ]
        readable = self.cluster is None or self.cluster.replicas.readable(stream.uid)
        if readable and stream.config.allow_direct:
            self.direct.attach(stream)
        if readable and stream.mirroring.answers_for:
            self.direct.attach_as(stream, stream.mirroring.answers_for)

    def _unsubscribe(self, name: str) -> None:
        for subscription in self._subscriptions.pop(name, []):
            subscription.cancel()
        self.direct.detach(name)

    # ------------------------------------------------------------------ recovery and end
    def serve(self, limits: JetStreamLimits) -> None:
        """The account has JetStream, within these limits."""
        self.limits, began = limits, not self.serving
        self.use.limit(limits)
        if not began:
            return
        self.serving = True
        for stream in self.streams.values():
            self.refresh(stream)
        if self.cluster is None:
            self.acks.listen()
        else:
            self.cluster.replicas.served(self.account)
        lying, self.lying = self.lying, []
        for name in lying:
            self._take_up(name)

    def withdraw(self) -> None:
        """The account has JetStream no more. Its streams stay on disk; what was in memory is gone (as in nats-server).

        In a cluster their replicas go on, and none of them leads here.
        """
        if not self.serving:
            return
        self.serving = False
        self.acks.close()
        for stream in list(self.streams.values()):
            self.refresh(stream)
            if self.cluster is None:
                self._put_away(stream)
        if self.cluster is not None:
            self.cluster.replicas.withdrawn(self.account)

    def _put_away(self, stream: Stream) -> None:
        """Close a stream, once what it has taken is on disk."""
        if self.serving or stream.closed:
            return
        if stream.uncommitted() and stream.failed is None:
            self.clock.call_later(SETTLE_NS, lambda: self._put_away(stream))
            return
        self.detach(stream.name)
        self._moving.add(stream.name)
        stream.stop()
        self.lake.detached(stream)
        state = stream.dump()

        def closed(_: object, error: BaseException | None) -> None:
            if error is not None:  # it is replayed from its log
                self.log.error(f"stream {stream.name}: no last checkpoint was written: {error!r}")
            self._moving.discard(stream.name)
            if stream.config.storage != "memory" and self.serving:
                self._take_up(stream.name)
            elif stream.config.storage != "memory":
                self.lying.append(stream.name)
            self._go_on()

        self.io.submit(lambda: stream.store.close(state), closed)

    def _take_up(self, name: str) -> None:
        """Open a stream found on disk, while the server runs."""

        def recover() -> Stream | None:
            stream = self._recover(name)
            if stream is not None:
                self._compare([stream])
            return stream

        def opened(stream: Stream | None, error: BaseException | None) -> None:
            self._moving.discard(name)
            self._opened(name, stream, error)
            if self.cluster is not None:
                self.cluster.adoption.start()
            elif stream is not None:
                self._put_away(stream)  # if the account has lost JetStream meanwhile
            self._go_on()

        self._moving.add(name)
        self.io.submit(recover, opened)

    def _go_on(self) -> None:
        if not self._moving:
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()

    @property
    def settling(self) -> bool:
        """Whether streams are being opened or closed because the account has got or lost JetStream: then nobody knows
        which names and subjects are taken."""
        return bool(self._moving)

    def when_settled(self, go_on: Callable[[], None]) -> bool:
        """Call back once it is not `settling`. False: too many wait for that."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(go_on)
        return True

    def purge(self) -> None:
        """Remove every stream."""
        for name in list(self.streams):
            self.delete_stream(name, lambda error: None)
            self.events.stream_action(name, "DELETED", "delete")
        for name in list(self.offline):
            self.delete_offline(name, lambda error: None)
        lying, self.lying = self.lying, []
        for name in lying:
            self._discard(name)

    def _discard(self, name: str) -> None:
        """Remove a stream that lies on disk and does not serve."""

        def removed(left: tuple[CreateStream, str] | None, error: BaseException | None) -> None:
            if error is not None:
                self.log.error(f"stream {name}: {error}")
            elif left is not None:
                leaving.begin(self.shared, *left)

        def remove() -> tuple[CreateStream, str] | None:
            stream = self._recover(name)
            if stream is None:
                return None
            create = leaving.creation(stream)
            return create, stream.store.leave(leaving.note(create), self.lake.keeps(create))

        self.io.submit(remove, removed)

    def recover(self, names: Iterable[str]) -> None:
        """Open these streams, found on disk. A damaged one is set aside with its reason; the others serve (invariant
        3)."""
        found: list[tuple[str, Stream | None, Exception | None]] = []
        for name in names:
            try:
                found.append((name, self._recover(name), None))
            except Exception as error:  # a damaged log, no room, no permission, or a fault of ours: the others serve
                found.append((name, None, error))
        self._compare([stream for _, stream, _ in found if stream is not None])
        for name, stream, trouble in found:
            self._opened(name, stream, trouble)

    def _compare(self, streams: list[Stream]) -> None:
        """Freeze those of which the lake has more than their logs, before they could give a sequence twice. Blocks."""
        if self.cluster is None:  # else other replicas may have what is missing here
            for stream, error in self.lake.ahead(streams):
                stream.group.give_up(error)

    def _opened(self, name: str, stream: Stream | None, error: BaseException | None) -> None:
        """A stream found on disk is open, or is not (nor was it ever made, without an error)."""
        if error is not None:
            reason = str(error) if isinstance(error, LogError | OSError) else repr(error)
            self.offline[name] = for_clients(error)
            self.log.error(f"stream {name} is offline: {reason}")
        elif stream is not None and self.cluster is not None:
            self.cluster.adoption.found(stream)
        elif stream is not None:
            self._serve(stream)
            self.log.info(f"  Restored {stream.store.msgs:,} messages for stream '{self.account} > {name}'")

    def _recover(self, name: str) -> Stream | None:
        store = self.stores.open(self.account, name)
        for note in store.notes:
            self.log.warn(f"stream {name}: {note}")
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
            self._own(name, state.create)
            self._offline_creations[name] = state.create  # until it is in service
            stream = self._stream(state.create, store)
            stream.load(store.extra)
        else:
            first = next(frames, None)
            if first is None:
                # Killed between making the directory and its first entry: nobody was told that the stream exists.
                store.check_unused()
                self.log.warn(f"stream {name}: an unfinished creation is removed: {store.directory}")
                store.destroy()
                return None
            before = [first]
            while before[-1][0].kind in (Kind.NOOP, Kind.MEMBERSHIP):  # a replica's log, see docs/replication.md
                following = next(frames, None)
                if following is None:
                    break
                before.append(following)
            create = self._creation(before[-1][0])
            self._own(name, create)
            self._offline_creations[name] = create
            stream = self._stream(create, store)
            for frame, at in before:
                stream.apply_frame(frame, at)
        for frame, at in frames:
            stream.apply_frame(frame, at)
        if stream.restoring:
            # Nobody was told that it is restored; who sent it does it again.
            self.log.warn(f"stream {name}: an unfinished restore is removed")
            store.destroy()
            return None
        stream.hidden = False
        return stream

    def _own(self, name: str, create: CreateStream) -> None:
        """Raise LogError unless the directory `name` of this account holds the stream of that name."""
        theirs = stream_name(create)
        if (theirs, create.account) != (name, self.account):
            raise LogError(
                f'its directory holds the log of stream {theirs} of account "{create.account}": a copied or renamed '
                "directory is never served; move it back, or away"
            )

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
        for stream in self.streams.values():
            stream.stop()

    def close(self) -> None:
        """Write the last checkpoints, but for replicas. Blocks; after `stop`."""
        for stream in self.streams.values():
            if self.cluster is not None and stream.uid in self.cluster.replicas.by_uid:
                continue
            try:
                stream.store.close(stream.dump())
            except Exception as error:  # the others get their checkpoints; this one is replayed from its log
                self.log.error(f"stream {stream.name}: no last checkpoint was written: {error!r}")
