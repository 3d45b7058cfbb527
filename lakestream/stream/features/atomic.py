"""Atomic batches: messages that a stream stores all together or not at all (ADR-50,
docs/internals/streams.md#atomic-batches).

Belongs here: gathering the members of a batch, judging all of them when its commit comes, and what ends a batch before
that. Members are held in the leader's memory alone; a commit becomes one entry of the log, so that no crash and no
change of leader can tear it. Fast batches are in fast.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.log.format.record import MAX_FIXED
from lakestream.ports import Bus, Clock, Single
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, Given
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Accepted, Proposer
from lakestream.stream.core.publish import MAX_HEADER_BYTES, Duplicate, IncomingMessage, Postponed, PublishRule, View
from lakestream.stream.features.batches import (
    MAX_ID_CHARS,
    MAX_STAGED_BYTES,
    Batches,
    BatchRoom,
    OverlayView,
    check_size,
    is_no_member,
    number,
    without_level,
)

MAX_ATOMIC_BYTES = 48 << 20
"""Bytes (48 MiB) of one atomic batch: it is one entry of the log, which goes to the other nodes in one piece."""

ID, SEQUENCE, COMMIT = b"Nats-Batch-Id", b"Nats-Batch-Sequence", b"Nats-Batch-Commit"
_LAST = b"Nats-Expected-Last-Sequence"
_OF_SUBJECT, _SUBJECT = b"Nats-Expected-Last-Subject-Sequence", b"Nats-Expected-Last-Subject-Sequence-Subject"


class _Staged(msgspec.Struct):
    """An open batch: its members as they came."""

    id: bytes
    members: list[IncomingMessage] = []
    size: int = 0
    touched_ns: int = 0


class _Later(Exception):
    """Raised when messages in flight may yet make room for the batch: it is judged again once they are stored."""


def _refuse_last_id(view: View, message: IncomingMessage, given: Given) -> None:
    raise api_error(10177, header="Nats-Expected-Last-Msg-Id")


def _check_last(view: View, message: IncomingMessage, given: Given) -> None:
    """Let only the first member expect the last sequence; other members get nats-server's errors."""
    assert isinstance(view, OverlayView), "only members are checked"
    if len(view):
        last = view.last_seq()
        raise api_error(10164) if number(given[_LAST]) == last else api_error(10071, seq=last)


def _check_of_subject(view: View, message: IncomingMessage, given: Given) -> None:
    """Refuse an expectation about the last sequence of a subject that an earlier member has."""
    assert isinstance(view, OverlayView), "only members are checked"
    if view.holds(given.get(_SUBJECT) or message.subject):
        raise api_error(10164)


class Atomic(Batches[_Staged]):
    """The atomic batches of one stream, on the node that leads it.

    Args:
        advise: publishes an advisory of the stream: (event, kind, fields).
    """

    rules = (
        PublishRule(_refuse_last_id, frozenset({b"Nats-Expected-Last-Msg-Id"}), member=10),
        PublishRule(_check_last, frozenset({_LAST}), member=90),
        PublishRule(_check_of_subject, frozenset({_OF_SUBJECT}), member=100),
    )

    def __init__(
        self,
        room: BatchRoom,
        clock: Clock,
        pipeline: Pipeline,
        proposer: Proposer,
        bus: Bus,
        advise: Callable[[str, str, dict[str, object]], None],
    ) -> None:
        super().__init__(room, clock, pipeline, proposer)
        self._bus, self._advise = bus, advise

    # ------------------------------------------------------------------ life
    def configure(self, config: StreamConfig) -> None:
        """Take a configuration: where atomic batches are off, none is open."""
        self._config = config
        if not config.allow_atomic:
            self.follow()

    # ------------------------------------------------------------------ members
    def takes_over(self, message: IncomingMessage) -> bool:
        """Take a message over if it belongs to a batch."""
        batch_id = headers.get(message.header, ID)
        if not batch_id or is_no_member(self._config, message):
            return False
        if self._config.no_ack:
            message.reply = b""
        try:
            self._member(batch_id, message)
        except ApiError as error:
            self._proposer.reject(message, error)
        return True

    def _member(self, batch_id: bytes, message: IncomingMessage) -> None:
        """Take one member, in the order of nats-server's checks: some end the batch, others leave it as it was."""
        config = self._config
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
        self._touch(batch)
        if message.reply:
            self._bus.send(Single(message.reply))

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
        self._touch(batch)
        return batch

    def _stage(self, batch: _Staged, message: IncomingMessage) -> None:
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
    def _released(self, batch: _Staged) -> None:
        self._room.atomic -= 1
        self._room.staged -= batch.size

    def _abandon(self, batch: _Staged, reason: str) -> None:
        self._end(batch)
        self._tell(batch, reason)

    def _idle(self, batch: _Staged) -> None:
        self._tell(batch, "timeout")

    def _tell(self, batch: _Staged, reason: str) -> None:
        fields: dict[str, object] = {"batch": batch.id.decode("utf-8", "replace"), "reason": reason}
        self._advise("BATCH_ABANDONED", "stream_batch_abandoned", fields)

    # ------------------------------------------------------------------ commit
    def _commit(self, batch: _Staged, commit: IncomingMessage) -> None:
        """Judge all members as they are stored one after the other, and store all or none."""
        reply, proposer = commit.reply, self._proposer

        def again() -> None:
            self._commit(batch, commit)

        view = proposer.view
        unsettled = len(self._pipeline) and any(view.unsettled(each.subject, each.header) for each in batch.members)
        if unsettled or proposer.waiting or self._pipeline.operations:
            proposer.defer(again, reply, batch.size)
            return
        try:
            accepted = self._judge(batch)
        except Postponed as missing:
            proposer.defer(again, reply, batch.size)
            proposer.procure(missing)
        except _Later:
            proposer.defer(again, reply, batch.size)
        except ApiError as error:
            proposer.reject(commit, error)
        else:
            last = accepted[-1][0]
            last.reply, last.observer = reply, commit.observer  # it is the commit whose trace tells
            shown = msgspec.json.encode(batch.id.decode("utf-8", "replace"))
            last.tail = b',"batch":%b,"count":%d' % (shown, len(accepted))
            proposer.store(accepted)

    def _judge(self, batch: _Staged) -> list[Accepted]:
        """Return every member with its effect. Raise ApiError with the first that fails, Postponed, _Later."""
        config, proposed = self._config, self._proposer.view
        if config.sealed:
            raise api_error(10109)
        if not config.allow_atomic:
            raise api_error(10174)
        if self._passes(batch):
            for each in batch.members:
                each.reply = b""
            return [(each, None) for each in batch.members]
        view = OverlayView(proposed)
        accepted: list[Accepted] = []
        for staged in batch.members:
            message = msgspec.structs.replace(staged, reply=b"")  # the rules rewrite it; it may be judged again
            plain = len(message.header) <= MAX_HEADER_BYTES and _unconditional(config, message.header)
            effect = Effect(0) if plain else self._check(view, message)
            length = limits.accounted(config, message.subject, message.header, message.payload)
            refused = view.room(message.subject, length, bool(effect.rollup))
            if refused is not None:
                raise _Later if view.in_flight else refused
            view.add(message, length, effect)
            message.tail = b""
            accepted.append((message, effect))
        return accepted

    def _passes(self, batch: _Staged) -> bool:
        """Return True if nothing but limits judges the members, and they let all of them pass as they are."""
        size = batch.size + MAX_FIXED * len(batch.members)
        subjects = [each.subject for each in batch.members]
        if self._proposer.judging or not self._proposer.view.has_room(subjects, size):
            return False
        blocks = [each.header for each in batch.members]
        return max(map(len, blocks)) <= MAX_HEADER_BYTES and _unconditional(self._config, b"".join(blocks))

    def _check(self, view: OverlayView, message: IncomingMessage) -> Effect:
        rules = self._proposer.rules
        effect = rules.check_member(view, message) or rules.check(view, message, member=True)
        if isinstance(effect, Duplicate):
            raise api_error(10201)
        _check_rollup(view, message, effect)
        return effect


def _unconditional(config: StreamConfig, blocks: bytes) -> bool:
    """Return True if no rule can refuse members with these header blocks: they have batch headers only."""
    if config.allow_msg_counter or config.validates:
        return False
    return blocks.count(b"\r\nNats-") == blocks.count(b"\r\nNats-Batch-")


def _check_rollup(view: OverlayView, message: IncomingMessage, effect: Effect) -> None:
    """Refuse a rollup that would remove messages of its own batch."""
    if effect.rollup == b"all" and len(view):
        raise api_error(10111, err="batch rollup all invalid")
    if effect.rollup == b"sub" and view.holds(message.subject):
        raise api_error(10111, err="batch rollup sub invalid")
