"""The streams on the disk of a server without other nodes.

Belongs here: opening them at the start, and closing them while their account has no JetStream. A stream that is not
open is dormant: its files stay, its configuration is not loaded. Memory streams are removed with their account's
JetStream, as in nats-server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.meta import deleted_streams
from lakestream.meta.assignments import AssignStream
from lakestream.meta.meta import SoloMeta
from lakestream.meta.node import Keeping, MetaNode
from lakestream.meta.recovery import RecoveredLog, recover
from lakestream.meta.site import OpenedReplica, group_id
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream, encode

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica
    from lakestream.stream.assembly import Stream


MAX_WAITING = 10_000
"""Requests that may wait until an account's streams are open; further ones fail with 10008."""
SETTLE_NS = 10_000_000
"""Interval at which a stream that is being closed is checked for uncommitted entries (10 ms)."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


class SoloKeeping(Keeping):
    """Opens and closes the streams of a server without other nodes, or of a worker."""

    def __init__(self, node: MetaNode, meta: SoloMeta) -> None:
        self._node, self._meta, self._shared = node, meta, node.shared
        self._dormant: dict[str, list[str]] = {}
        """Names of dormant streams, by account."""
        self._moving: set[tuple[str, str]] = set()
        """Streams (account, name) that are being opened or closed."""
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    # ------------------------------------------------------------------ start
    def recover(self, found: Sequence[tuple[str, str]]) -> None:
        """Open every stream of accounts with JetStream. One with a damaged log is offline with its reason (invariant
        3)."""
        names: dict[str, list[str]] = {}
        for account, name in found:
            names.setdefault(account, []).append(name)
        for account, theirs in names.items():
            if self._node.accounts.of(account).serving:
                self._open([recover(self._node.replicas.site, account, name) for name in theirs])
            else:
                self._dormant[account] = theirs
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

    # ------------------------------------------------------------------ accounts
    def served(self, account: str) -> None:
        for name in self._dormant.pop(account, []):
            self._open_dormant(account, name)

    def withdrawn(self, account: str) -> None:
        for replica in self._node.replicas.of(account):
            if replica.stream is not None:
                self._close(replica, replica.stream)

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
        self._node.replicas.release(replica)
        self._meta.forget(replica.uid)
        self._shared.lake.detached(stream)
        state = stream.dump()

        def closed(_: object, error: BaseException | None) -> None:
            if error is not None:  # the next start replays the log
                self._shared.log.error(f"stream {name}: cannot write its last checkpoint: {error!r}")
            self._moving.discard(replica.key)
            if stream.config.storage != "memory":
                self._dormant.setdefault(account, []).append(name)
                if self._node.accounts.of(account).serving:
                    self.served(account)
            self._run_waiting(account)

        self._shared.io.submit(lambda: stream.store.close(state), closed)

    def _open_dormant(self, account: str, name: str) -> None:
        """Open a dormant stream while the server runs."""
        io = self._shared.io

        def opened(result: RecoveredLog | None, error: BaseException | None) -> None:
            found = result if result is not None else RecoveredLog(account, name, error=error)
            self.take(found)
            io.submit(lambda: self._ahead([found]), lambda ahead, _: compared(found, ahead or {}))

        def compared(found: RecoveredLog, ahead: dict[str, LogError]) -> None:
            self._moving.discard((account, name))
            replica = self._serve(found, ahead)
            if replica is not None and found.stream is not None:
                self._shared.log.info(_restored(found))
                self._close(replica, found.stream)  # if the account has lost JetStream meanwhile
            self._run_waiting(account)

        self._moving.add((account, name))
        io.submit(lambda: recover(self._node.replicas.site, account, name), opened)

    def _run_waiting(self, account: str) -> None:
        if not self.settling(account):
            for callback in self._waiting.pop(account, []):
                callback()

    def discard(self, account: str) -> None:
        for name in self._dormant.pop(account, []):
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
