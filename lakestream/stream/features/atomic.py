"""Atomic batches: messages that a stream stores all together or not at all (ADR-50,
docs/internals/streams.md#atomic-batches).

Belongs here: gathering the members of a batch, judging all of them when its commit comes, and what ends a batch before
that. Members are held in the leader's memory alone; a commit becomes one entry of the log, so that no crash and no
change of leader can tear it. Fast batches are in fast.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core import limits, publish
from lakestream.stream.core.batch import Effect
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.publish import Publish
from lakestream.stream.core.view import OverlayView
from lakestream.stream.features.batches import (
    MAX_ID_CHARS,
    MAX_STAGED_BYTES,
    BatchRoom,
    OpenBatches,
    check_size,
    number,
    without_level,
)

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

MAX_ATOMIC_BYTES = 48 << 20
"""Bytes (48 MiB) of one atomic batch: it is one entry of the log, which goes to the other nodes in one piece."""

ID, SEQUENCE, COMMIT = b"Nats-Batch-Id", b"Nats-Batch-Sequence", b"Nats-Batch-Commit"


class _Staged(msgspec.Struct):
    """An open batch: its members as they came."""

    id: bytes
    members: list[Publish] = []
    size: int = 0
    touched_ns: int = 0


class _Later(Exception):
    """What is in flight may yet make room for the batch: it is judged again once that is stored."""


class Atomic:
    """The atomic batches of one stream, on the node that leads it. A part of the stream, and a route of its intake."""

    def __init__(self, stream: Stream, room: BatchRoom) -> None:
        self._stream, self._room = stream, room
        self._open: OpenBatches[_Staged] = OpenBatches(stream.clock, room.timeout_ns, self._idle)

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """See `Part.start`: an earlier leader's batches are unknown here."""

    def stop(self) -> None:
        """See `Part.stop`. Nobody is told; whoever goes on with a batch hears that it is incomplete."""
        for batch in self._open.clear():
            self._release(batch)

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration: where atomic batches are off, none is open."""
        if not config.allow_atomic:
            self.stop()

    # ------------------------------------------------------------------ members
    def route(self, message: Publish) -> bool:
        """Take a message over if it belongs to a batch; see `Intake.routes`."""
        batch_id = headers.get(message.header, ID)
        if not batch_id:
            return False
        if self._stream.config.no_ack:
            message.reply = b""
        try:
            self._member(batch_id, message)
        except ApiError as error:
            self._stream.intake.reject(message, error)
        return True

    def _member(self, batch_id: bytes, message: Publish) -> None:
        """One member, in the order of nats-server's checks: some end the batch, others leave it as it was."""
        config = self._stream.config
        check_size(config, message)
        if not config.allow_atomic:
            raise api_error(10174)
        if len(batch_id) > MAX_ID_CHARS:
            raise api_error(10179)
        seq = number(headers.get(message.header, SEQUENCE) or b"")
        if seq < 0:
            raise api_error(10175)
        commit = headers.get(message.header, COMMIT)
        batch = self._open.get(batch_id) or self._begin(batch_id, seq, seq - (commit == b"eob"))
        if commit is not None and commit not in (b"1", b"eob"):
            self._end(batch)
            raise api_error(10200)
        try:
            message.header = without_level(message.header)
        except ApiError:
            self._abandon(batch, "unsupported")
            raise
        if seq != len(batch.members) + 1 or (commit == b"eob" and seq == 1):
            self._abandon(batch, "incomplete")
            raise api_error(10176)
        if commit == b"eob":
            last = batch.members[-1]
            last.header = headers.append(last.header, [(COMMIT, b"1")])
        else:
            self._stage(batch, message)
        if commit is not None:
            self._end(batch)
            self._commit(batch, message)
            return
        self._open.touch(batch)
        if message.reply:
            self._stream.bus.publish(message.reply, b"", b"", b"")

    def _begin(self, batch_id: bytes, seq: int, count: int) -> _Staged:
        """Open a batch with its first member; `count`: how many it would have with this one."""
        max_msgs = self._room.max_msgs
        if seq != 1:
            # Less than none is, as in nats-server, too many.
            raise api_error(10176) if 0 <= count <= max_msgs else api_error(10199, size=max_msgs)
        if not self._room.for_atomic(len(self._open)):
            raise api_error(10210)
        batch = _Staged(batch_id)
        self._room.atomic += 1
        self._open.touch(batch)
        return batch

    def _stage(self, batch: _Staged, message: Publish) -> None:
        max_msgs = self._room.max_msgs
        size = message.size
        if len(batch.members) >= max_msgs or batch.size + size > MAX_ATOMIC_BYTES:
            self._abandon(batch, "large")
            raise api_error(10199, size=max_msgs if len(batch.members) >= max_msgs else f"{MAX_ATOMIC_BYTES} bytes")
        if self._room.staged + size > MAX_STAGED_BYTES:
            self._abandon(batch, "large")
            raise api_error(10167)
        batch.members.append(message)
        batch.size += size
        self._room.staged += size

    # ------------------------------------------------------------------ ends
    def _release(self, batch: _Staged) -> None:
        self._room.atomic -= 1
        self._room.staged -= batch.size

    def _end(self, batch: _Staged) -> None:
        self._open.close(batch)
        self._release(batch)

    def _abandon(self, batch: _Staged, reason: str) -> None:
        self._end(batch)
        self._tell(batch, reason)

    def _idle(self, batch: _Staged) -> None:
        self._release(batch)
        self._tell(batch, "timeout")

    def _tell(self, batch: _Staged, reason: str) -> None:
        fields: dict[str, object] = {"batch": batch.id.decode("utf-8", "replace"), "reason": reason}
        self._stream.advise("BATCH_ABANDONED", "stream_batch_abandoned", fields)

    # ------------------------------------------------------------------ commit
    def _commit(self, batch: _Staged, commit: Publish) -> None:
        """Judge all members as they are stored one after the other, and store all or none."""
        stream, reply = self._stream, commit.reply
        intake = stream.intake

        def again() -> None:
            self._commit(batch, commit)

        unsettled = any(intake.view.unsettled(each.subject, each.header) for each in batch.members)
        if unsettled or intake.waiting or stream.operations:
            intake.defer(again, reply, batch.size)
            return
        try:
            accepted = self._judge(batch)
        except publish.NotHere as missing:
            intake.defer(again, reply, batch.size)
            intake.fetch(missing.seq)
        except _Later:
            intake.defer(again, reply, batch.size)
        except ApiError as error:
            intake.reject(commit, error)
        else:
            last = accepted[-1][0]
            last.reply, last.client = reply, commit.client  # it is the commit whose trace tells
            shown = msgspec.json.encode(batch.id.decode("utf-8", "replace"))
            last.tail = b',"batch":%b,"count":%d' % (shown, len(accepted))
            intake.take_whole(accepted)

    def _judge(self, batch: _Staged) -> list[tuple[Publish, Effect]]:
        """Every member with what it does once stored. Raises ApiError with the first that fails, NotHere, _Later."""
        stream = self._stream
        config = stream.config
        if config.sealed:
            raise api_error(10109)
        if not config.allow_atomic:
            raise api_error(10174)
        view = OverlayView(stream)
        accepted = []
        for staged in batch.members:
            message = msgspec.structs.replace(staged, reply=b"")  # the rules rewrite it; it may be judged again
            if view.in_flight and stream.view.unsettled(message.subject, message.header):
                raise _Later
            effect = Effect(0) if _unconditional(config, message.header) else _check(view, message)
            length = limits.accounted(config, message.subject, message.header, message.payload)
            refused = view.room(message.subject, length, bool(effect.rollup))
            if refused is not None:
                raise _Later if view.in_flight else refused
            view.add(message, length, effect.msg_id)
            message.tail = b""
            accepted.append((message, effect))
        return accepted


def _unconditional(config: StreamConfig, header: bytes) -> bool:
    """Whether no rule can refuse a member, since its header block says nothing but to which batch it belongs."""
    if config.allow_msg_counter or len(header) > publish.MAX_HEADER_BYTES:
        return False
    return header.count(b"\r\nNats-") == header.count(b"\r\nNats-Batch-")


def _check(view: OverlayView, message: Publish) -> Effect:
    _check_first(view, message)
    effect = publish.check(view, message)
    if isinstance(effect, publish.Duplicate):
        raise api_error(10201)
    _check_rollup(view, message, effect)
    return effect


def _check_first(view: OverlayView, message: Publish) -> None:
    """What is judged otherwise, or earlier, than in a plain publish."""
    config, header = view.config, message.header
    if b"\r\nNats-" not in header:
        return
    given = headers.given(header)
    if b"Nats-Expected-Last-Msg-Id" in given:
        raise api_error(10177, header="Nats-Expected-Last-Msg-Id")
    publish.check_increment(config, message, given)
    publish.check_stream(config, given)
    if b"Nats-TTL" in given and not config.allow_msg_ttl:
        raise api_error(10166)
    publish.check_ttl(given)
    msg_id = given.get(b"Nats-Msg-Id")
    if msg_id and view.seen(msg_id):
        raise api_error(10201)
    if b"Nats-Stream-Source" in given:
        raise api_error(10227)
    if config.allow_msg_counter and b"Nats-Incr" not in given:
        raise api_error(10169)
    expected = given.get(b"Nats-Expected-Last-Sequence")
    if expected and len(view):
        # Only the first member can know the last sequence. What is said of another one is nats-server's.
        last = view.last_seq()
        raise api_error(10164) if number(expected) == last else api_error(10071, seq=last)
    other = given.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
    if b"Nats-Expected-Last-Subject-Sequence" in given and view.holds(other or message.subject):
        raise api_error(10164)


def _check_rollup(view: OverlayView, message: Publish, effect: Effect) -> None:
    """A rollup must not remove what the same batch stores."""
    if effect.rollup == b"all" and len(view):
        raise api_error(10111, err="batch rollup all invalid")
    if effect.rollup == b"sub" and view.holds(message.subject):
        raise api_error(10111, err="batch rollup sub invalid")
