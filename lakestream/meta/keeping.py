"""The streams on the disk of a server without other nodes.

Belongs here: opening them at the start or at their first use, and closing them while nobody uses them, or while their
account has no JetStream. A stream that serves and is not open is dormant: a record says what is known of it
(`stream/dormant.py`). One of an account without JetStream is not served: its configuration is not loaded. Streams in
memory are removed with their account's JetStream, as in nats-server.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.pieces import Pieces
from lakestream.log.store.segment_log import SegmentLog
from lakestream.meta import deleted_streams
from lakestream.meta.assignments import AssignStream
from lakestream.meta.meta import SoloMeta
from lakestream.meta.node import Keeping, MetaNode
from lakestream.meta.recovery import RecoveredLog, recover
from lakestream.meta.site import OpenedReplica, group_id
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import NEVER
from lakestream.stream.core.operations import CreateStream, encode
from lakestream.stream.core.pipeline import nothing_left

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant


MAX_WAITING = 10_000
"""Requests that may wait until an account's streams are open, or a dormant one; further ones fail with 10008."""
MAX_HELD_BYTES = 64 << 20
"""Bytes of the messages that may wait for dormant streams to be open (64 MiB); further ones have no responders."""
OPENED_AT_ONCE = 2
"""Dormant streams that are opened at the same time: each takes the interpreter from the event loop for a while."""
IDLE_LOOKS = 4
"""Looks at each stream within `close_idle_streams`."""
SETTLE_NS = 10_000_000
"""Interval at which a stream that is being closed is checked for uncommitted entries (10 ms)."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


class SoloKeeping(Keeping):
    """Opens and closes the streams of a server without other nodes, or of a worker."""

    def __init__(self, node: MetaNode, meta: SoloMeta) -> None:
        self._node, self._meta, self._shared = node, meta, node.shared
        self._unserved: dict[str, list[str]] = {}
        """Names of streams that are not served, by account."""
        self._moving: set[tuple[str, str]] = set()
        """Streams (account, name) that are being opened or closed."""
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._opening: dict[tuple[str, str], list[Callable[[], None]]] = {}
        """Dormant streams that are being opened, and what waits for each."""
        self._queued: deque[tuple[str, str]] = deque()
        """Those of them that wait for others, in order."""
        self._under_way = self._held_bytes = 0
        """Number of those that do not, and bytes of what waits for any."""
        self._left: list[tuple[Replica, Dormant]] | None = None
        """Open streams that need not be opened at the next start; None until the server stops."""
        self._idle_ns = self._shared.options.close_idle_ns if node.alone else 0
        self._due: dict[tuple[str, str], int] = {}
        """Steady times (ns) at which dormant streams are to be opened for a verification; some are open again."""
        self._unused: dict[str, tuple[int, int]] = {}
        """By uid of an open stream, the newest entry at the last look, and the looks for which nobody has used it."""

    # ------------------------------------------------------------------ start
    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """Open every stream of accounts with JetStream. One with a damaged log is offline with its reason (invariant
        3)."""
        names: dict[str, list[str]] = {}
        for account, name in found:
            names.setdefault(account, []).append(name)
        for account, theirs in names.items():
            if self._node.accounts.of(account).serving:
                known = {name: dormant for name in theirs if (dormant := self._known(account, name)) is not None}
                for number, dormant in enumerate(known.values(), 1):
                    self._rest(dormant)
                    after = self._shared.options.scrub_interval_ns * number // len(known)  # not all at once
                    self._due[account, dormant.name] = self._shared.clock.steady() + after
                self._open([recover(self._node.replicas.site, account, name) for name in theirs if name not in known])
                if known:
                    self._shared.log.info(f"  Restored {len(known):,} streams of '{account}', to be opened when used")
            else:
                self._unserved[account] = theirs
                many = f"{len(theirs)} streams" if len(theirs) > 1 else f"stream {theirs[0]}"
                self._shared.log.warn(f'account "{account}" has no JetStream: {many} on disk not served')

    def _open(self, opened: list[RecoveredLog]) -> None:
        for each in opened:
            self.take(each)
        ahead = self._ahead(opened)
        served = [each for each in opened if self._serve(each, ahead) is not None]
        self._shared.log.info_all(map(_restored, served))

    def _ahead(self, opened: list[RecoveredLog]) -> dict[str, LogError]:
        """Return the streams whose table is ahead of their log: they must not assign a sequence twice. Block."""
        streams = [each.stream for each in opened if each.stream is not None]
        return {stream.name: error for stream, error in self._shared.lake.ahead(streams)}

    def take(self, found: RecoveredLog) -> None:
        """Add a stream that was opened, or could not be; do nothing if the log never had a stream."""
        account, name = found.account, found.name
        if found.stream is None and found.error is None:
            return
        replicas, stream = self._node.replicas, found.stream
        if stream is not None:
            config, uid, created_ns = stream.store.config, stream.uid, stream.created_ns
        else:
            config, uid, created_ns = _known(found)
        create = CreateStream(uid, account, config, created_ns)
        self._meta.learn(AssignStream(uid, account, name, config, (self._node.me,), created_ns))
        if stream is None:
            assert found.error is not None
            replica = replicas.take(create, found.error)
            replica.unopened = found.create
        else:
            member = replicas.site.groups.member(group_id(stream.uid), "", Membership(()))
            replicas.take(create, OpenedReplica(member, stream.store, stream))

    def _serve(self, found: RecoveredLog, ahead: dict[str, LogError]) -> Replica | None:
        """Start serving a stream that was opened; return its replica."""
        stream = found.stream
        replica = self._node.replicas.by_uid.get(stream.uid) if stream is not None else None
        if stream is None or replica is None:
            return None
        self._node.replicas.serve(replica)
        if found.name in ahead:
            stream.group.give_up(ahead[found.name])
        return replica

    # ------------------------------------------------------------------ dormant streams
    def _known(self, account: str, name: str) -> Dormant | None:
        """Return what the last stop has left of a stream that need not be opened now; None if it is to be. Block."""
        stores = self._shared.stores
        dormant = stores.dormant.pop((account, name), None) if self._idle_ns else None
        if dormant is None or dormant.acts_at <= self._shared.clock.steady():
            return None
        with contextlib.suppress(OSError):
            if dormant.stamp_in(stores.files, stores.directory(account, name)) == dormant.stamp:
                return dormant
        return None

    def _rest(self, dormant: Dormant) -> None:
        """Serve a stream without opening it, until its first use, or the time at which it has something to do."""
        uid, account, name, me = dormant.uid, dormant.account, dormant.name, (self._node.me,)
        self._meta.learn(AssignStream(uid, account, name, dormant.stored, me, dormant.created_ns))
        streams, clock = self._node.accounts.of(account), self._shared.clock
        streams.rest(dormant)
        self._due[account, name] = clock.steady() + self._shared.options.scrub_interval_ns

        def act() -> None:
            if streams.dormant.get(name) is dormant:
                self.open(account, name, nothing_left)

        if dormant.acts_at < NEVER:
            clock.call_later(dormant.acts_at - clock.steady(), act)

    def open(self, account: str, name: str, then: Callable[[], None], size: int = 0) -> bool:
        key = account, name
        waiting = self._opening.get(key, [])
        if self._left is not None or len(waiting) >= MAX_WAITING or self._held_bytes + size > MAX_HELD_BYTES:
            return False

        def opened() -> None:
            self._held_bytes -= size
            then()

        self._held_bytes += size
        waiting.append(opened)
        if key not in self._opening:
            self._opening[key] = waiting
            self._queued.append(key)
            self._open_next()
        return True

    def _open_next(self) -> None:
        while self._queued and self._under_way < OPENED_AT_ONCE:
            self._under_way += 1
            key = self._queued.popleft()
            self._open_later(*key, functools.partial(self._opened, key))

    def _opened(self, key: tuple[str, str]) -> None:
        self._under_way -= 1
        self._open_next()
        self._run_held(key)

    def _run_held(self, key: tuple[str, str]) -> None:
        """Go on with what waited for a stream."""
        for then in self._opening.pop(key):
            try:
                then()
            except Exception as error:  # the others still get an answer
                self._shared.log.exception(f"stream {key[1]}: a request that waited for it failed", error)

    def _resting(self, replica: Replica, ending: bool = False) -> Dormant | None:
        """Return what others see of an open stream that need not be open, None if it is at work. `ending`: the server
        stops, which settles new logs (log/store/journal.py)."""
        stream, lake = replica.stream, self._shared.lake
        if stream is None or replica.memory or not replica.leading or not lake.rests(stream):
            return None
        from lakestream.stream.dormant import Dormant  # with the first stream

        with contextlib.suppress(LogError):  # whoever reads it next finds the damage
            acts_at, log = stream.acts_at(), stream.store.log
            if acts_at and isinstance(log, SegmentLog) and (ending or log.birth is None):
                staged = not lake.rests(stream, compacted=True)
                return Dormant.of(stream, acts_at, staged, os.path.basename(log.open_segment.path))
        return None

    def compacting(self) -> None:
        for dormant in [each for account in self._node.accounts for each in account.dormant.values() if each.staged]:
            self.open(dormant.account, dormant.name, nothing_left)

    def start(self) -> None:
        """Close streams from now on that nobody uses."""
        if self._idle_ns and self._left is None:
            self._shared.clock.call_later(self._idle_ns // IDLE_LOOKS, self.start)
            self._shared.share.run_in_steps(self._close_idle())

    def _close_idle(self) -> Iterator[None]:
        """Close the streams that were not used for `IDLE_LOOKS` looks, one after the other. Open dormant ones within
        `scrub_interval`: what is open is verified."""
        now, scrubs = self._shared.clock.steady(), self._shared.options.scrub_rate > 0
        for (account, name), due in list(self._due.items()):
            if due <= now:
                del self._due[account, name]
                if scrubs and name in self._node.accounts.of(account).dormant:
                    self.open(account, name, nothing_left)
            yield
        before, self._unused = self._unused, {}
        for replica in list(self._node.replicas.by_uid.values()):
            stream = replica.stream
            if stream is None or stream.closed or self._left is not None:
                continue
            applied, looks = before.get(replica.uid, (-1, 0))
            store, waits = stream.store, any(each.num_waiting for each in stream.consumers.values())
            looks = 0 if store.used or waits or applied != store.applied else looks + 1
            self._unused[replica.uid], store.used = (store.applied, looks), False
            dormant = self._resting(replica) if looks >= IDLE_LOOKS else None
            if dormant is not None and dormant.acts_at > self._shared.clock.steady() + self._idle_ns:
                self._close_unused(replica, stream, dormant)
            yield

    def _close_unused(self, replica: Replica, stream: Stream, dormant: Dormant) -> None:
        """Close a stream until its next use; what comes meanwhile waits."""
        key, stores = replica.key, self._shared.stores

        def close() -> None:
            stream.store.close(state)
            dormant.stamp = dormant.stamp_in(stores.files, stores.directory(*key))

        def closed(_: None, error: BaseException | None) -> None:
            if error is not None:  # it is opened from what is there
                self._shared.log.error(f"stream {key[1]}: cannot write its last checkpoint: {error!r}")
            if self._opening[key]:
                self._queued.append(key)
                self._open_next()
                return
            del self._opening[key]
            if not self._node.accounts.of(key[0]).serving:
                self._unserve(key[0])

        state = self._release(replica, stream)
        self._opening[key] = []
        self._rest(dormant)
        self._shared.io.submit(close, closed)

    def stop(self) -> None:
        """Note which streams need not be opened at the next start, while they serve."""
        if self._left is None and self._idle_ns:
            made = [(replica, self._resting(replica, ending=True)) for replica in self._node.replicas.by_uid.values()]
            self._left = [(replica, dormant) for replica, dormant in made if dormant is not None]

    def close(self) -> None:
        stores = self._shared.stores
        streams = [each for account in self._node.accounts for each in account.dormant.values()]
        try:
            for replica, dormant in self._left or ():
                store = replica.stream.store if replica.stream is not None else None
                if store is not None and store.applied in (1, store.checkpoint_index):
                    dormant.stamp = dormant.stamp_in(stores.files, stores.directory(*replica.key))
                    streams.append(dormant)
            if streams:
                from lakestream.stream.dormant import leave

                leave(stores.files, stores.root, streams)
        except OSError as error:
            self._shared.log.warn(f"the next start opens all streams: {stores.root} cannot be written: {error}")

    # ------------------------------------------------------------------ accounts
    def served(self, account: str) -> None:
        for name in self._unserved.pop(account, []):
            self._open_unserved(account, name)

    def withdrawn(self, account: str) -> None:
        self._unserve(account)
        for replica in self._node.replicas.of(account):
            if replica.stream is not None:
                self._close(replica, replica.stream)

    def _unserve(self, account: str) -> None:
        """Cease to serve the dormant streams of an account."""
        streams = self._node.accounts.of(account)
        for name, dormant in list(streams.dormant.items()):
            if (account, name) not in self._opening:
                streams.detach(name)
                self._meta.forget(dormant.uid)
                self._unserved.setdefault(account, []).append(name)

    def settling(self, account: str) -> bool:
        return any(owner == account for owner, _ in self._moving)

    def when_settled(self, account: str, callback: Callable[[], None]) -> bool:
        waiting = self._waiting.setdefault(account, [])
        if len(waiting) >= MAX_WAITING:
            return False
        waiting.append(callback)
        return True

    def _close(self, replica: Replica, stream: Stream) -> None:
        """Close a stream once its proposals are committed."""
        account, name = replica.key
        if self._node.accounts.of(account).serving or stream.closed:
            return
        if stream.pipeline.uncommitted() and stream.failed is None:
            self._shared.clock.call_later(SETTLE_NS, lambda: self._close(replica, stream))
            return
        self._moving.add(replica.key)
        state = self._release(replica, stream)

        def closed(_: object, error: BaseException | None) -> None:
            if error is not None:  # the next start replays the log
                self._shared.log.error(f"stream {name}: cannot write its last checkpoint: {error!r}")
            self._moving.discard(replica.key)
            if stream.config.storage != "memory":
                self._unserved.setdefault(account, []).append(name)
                if self._node.accounts.of(account).serving:
                    self.served(account)
            self._run_waiting(account)

        self._shared.io.submit(lambda: stream.store.close(state), closed)

    def _release(self, replica: Replica, stream: Stream) -> Pieces:
        """Forget an open stream, and return its part of the checkpoint: its store is to be closed."""
        self._node.replicas.release(replica)
        self._meta.forget(replica.uid)
        self._shared.lake.detached(stream)
        return stream.dump()

    def _open_unserved(self, account: str, name: str) -> None:
        """Open a stream of an account that has got JetStream."""

        def ended() -> None:
            self._moving.discard((account, name))
            self._run_waiting(account)

        self._moving.add((account, name))
        self._open_later(account, name, ended)

    def _open_later(self, account: str, name: str, ended: Callable[[], None]) -> None:
        """Open a stream while the server runs, and call `ended`."""

        def recovered() -> tuple[RecoveredLog, dict[str, LogError]]:
            found = recover(self._node.replicas.site, account, name)
            return found, self._ahead([found])

        def opened(result: tuple[RecoveredLog, dict[str, LogError]] | None, error: BaseException | None) -> None:
            found, ahead = result or (RecoveredLog(account, name, error=error), {})
            streams = self._node.accounts.of(account)
            if (dormant := streams.dormant.get(name)) is not None:
                self._meta.forget(dormant.uid)  # what is found counts
            if found.stream is None:
                streams.detach(name)
            self.take(found)
            replica = self._serve(found, ahead)
            if replica is not None and found.stream is not None:
                self._shared.log.info(_restored(found))
                self._close(replica, found.stream)  # if the account has lost JetStream meanwhile
            ended()

        self._shared.io.submit(recovered, opened)

    def _run_waiting(self, account: str) -> None:
        if not self.settling(account):
            for callback in self._waiting.pop(account, []):
                callback()

    def discard(self, account: str) -> None:
        for name in self._unserved.pop(account, []):
            self._discard(account, name)

    def _discard(self, account: str, name: str) -> None:
        shared = self._shared

        def removed(left: tuple[CreateStream, str] | None, error: BaseException | None) -> None:
            if error is not None:
                shared.log.error(f"stream {name}: {error}")
            elif left is not None:
                deleted_streams.release(shared, *left)

        def remove() -> tuple[CreateStream, str] | None:
            found = recover(self._node.replicas.site, account, name)
            if found.error is not None:
                raise found.error
            if found.stream is None:
                return None
            create = deleted_streams.creation(found.stream)
            return create, found.stream.store.leave(encode(create), shared.lake.keeps(create))

        shared.io.submit(remove, removed)


def _restored(found: RecoveredLog) -> str:
    """Return the log line for a stream that serves again."""
    assert found.stream is not None
    return f"  Restored {found.stream.store.msgs:,} messages for stream '{found.account} > {found.name}'"


def _known(found: RecoveredLog) -> tuple[bytes, str, int]:
    """Return configuration, uid and time of creation of a stream that cannot be opened, as far as they are known. This
    release may not be able to decode the configuration of a newer one."""
    create = found.create
    if create is None:
        return msgspec.json.encode({"name": found.name}), f"{found.account} {found.name}", 0
    try:
        _STREAM_CONFIG.decode(create.config)
    except DECODE_ERRORS:
        return msgspec.json.encode({"name": found.name}), create.uid, create.created_ns
    return create.config, create.uid, create.created_ns
