"""Message ids: publishes that repeat a message of the duplicate window are not stored again
(docs/internals/streams.md#publish-headers).

Belongs here: the rules of `Nats-Msg-Id` and of `Nats-Expected-Last-Msg-Id`, and when ids are added and forgotten.
message_ids.py keeps them.
"""

from __future__ import annotations

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.pieces import array_of
from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.protocol.api.errors import api_error, for_clients
from lakestream.protocol.decoding import PackDecoder
from lakestream.protocol.publishes import Publishes
from lakestream.stream.core.batch import STEP_NS, Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey, Given
from lakestream.stream.core.feature import Feature, Stored
from lakestream.stream.core.publish import Duplicate, IncomingMessage, PublishRule, View
from lakestream.stream.features.ages import Ages
from lakestream.stream.features.message_ids import IdsDump, MessageIds

FORGET_NS = 10_000_000
"""Shortest time between two looks for ids that have left the window (10 ms)."""

MSG_ID: EffectKey[bytes] = EffectKey("msg_id", acts=False)
_HEADER, _EXPECTED = b"Nats-Msg-Id", b"Nats-Expected-Last-Msg-Id"


def _read(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    if config.mirror is None:
        MSG_ID.put(effect, given[_HEADER])


class _State(msgspec.Struct):
    dedupe: list[tuple[int, bytes, int]] = []
    """(time, id, sequence) as releases before `ids` kept them."""
    last_msg_id: bytes = b""
    last_msg_id_seq: int = 0
    ids: list[bytes] = []
    """Entries of the duplicate window; see `MessageIds.dump`."""
    older_ids: list[bytes] = []
    """Columns about those in blocks."""


_STATE = PackDecoder(_State)


def _check_id(view: View, message: IncomingMessage, given: Given) -> Duplicate | None:
    seq = view.staged(MSG_ID, given[_HEADER]) or view.feature(Dedupe).seen(given[_HEADER])
    return Duplicate(seq) if seq else None


def _check_last(view: View, message: IncomingMessage, given: Given) -> None:
    ids = view.feature(Dedupe).ids
    last_id = ids.last_id if ids.last_seq == view.last_seq() else b""
    if given[_EXPECTED] != last_id:
        wanted, last = given[_EXPECTED].decode("utf-8", "replace"), last_id.decode("utf-8", "replace")
        raise api_error(10070, id=last).called(f'last msgid mismatch: "{wanted}" vs "{last}"')


class Dedupe(Feature):
    """The duplicate window of one stream."""

    rules = (
        PublishRule(_check_id, frozenset({_HEADER}), single=80, replicated=50, member=60),
        PublishRule(_check_last, frozenset({_EXPECTED}), single=90, replicated=120),
    )
    effects = ((_HEADER, _read),)
    columnar = frozenset({_HEADER})

    def __init__(self, clock: Clock, store: Store, ages: Ages) -> None:
        self._clock, self._store, self._ages = clock, store, ages
        self.ids = MessageIds(0, lambda: store.last_seq)
        store.move(self.ids)
        self._leading = False
        self._timer: Timer | None = None

    def configure(self, config: StreamConfig) -> None:
        self.ids.window_ns = config.duplicate_window

    def memory(self) -> dict[str, int]:
        return {"message_ids": self.ids.bytes_in_memory()}

    def seen(self, msg_id: bytes) -> int:
        """Return the sequence stored under `msg_id` within the window, or 0.

        Raise ApiError 10167, see `ids.seen`; 10077 if a file with older ids cannot be read.
        """
        try:
            return self.ids.seen(msg_id, self._clock.steady())
        except LogError as error:
            raise api_error(10077, err=for_clients(error)) from error

    def duplicate_of(self, effect: Effect) -> int:
        msg_id = MSG_ID.of(effect)
        return self.seen(msg_id) if msg_id and self.ids.window_ns else 0

    def taken(self, effect: Effect) -> None:
        msg_id = MSG_ID.of(effect)
        if msg_id:
            self.ids.add(msg_id, effect.seq, self._ages.stored_ns(effect.seq, effect.time_ns))
            self._watch()

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        if _HEADER not in run.own:
            return end
        return begin + self.ids.unknown(run.values(_HEADER)[begin:end], self._clock.steady())

    def taken_run(self, batch: Batch, run: Publishes, begin: int, end: int) -> None:
        if _HEADER in run.own:
            number, ids = end - begin, run.values(_HEADER)[begin:end]
            seq, last_ns = batch.first_seq + len(batch) - number, batch.last_time
            stored_ns = self._ages.stored_ns(seq + number - 1, last_ns) - (number - 1) * STEP_NS
            which = [at for at, each in enumerate(ids) if each]
            if which:
                times = [stored_ns + at * STEP_NS for at in which]
                self.ids.add_all([each for each in ids if each], [seq + at for at in which], times)
                self._watch()

    def received(self, stored: Stored) -> None:
        if stored.effects and not stored.archived:
            some = [(msg_id, each.seq, each.time_ns) for each in stored.effects if (msg_id := MSG_ID.of(each))]
            if some:
                ids, seqs, times = (list(column) for column in zip(*some, strict=True))
                self.ids.add_all(ids, seqs, list(map(self._ages.stored_ns, seqs, times)))
            self.ids.trim(self._ages.stored_ns(stored.first_seq, stored.last_time))

    def skipped(self, before: int, last_seq: int) -> None:
        self.ids.moved(before, last_seq)

    def rewound(self, last_seq: int) -> None:
        self.ids.forget_after(last_seq)

    def dump(self) -> dict[str, object]:
        stored = self._store.last_seq
        last_id, last_seq = self.ids.last_through(stored)
        dump = self.ids.dump(self._clock.steady(), stored)
        ids = array_of(dump.ids)
        ids.blocks = dump.blocks
        older = {"older_ids": dump.columns} if dump.blocks else {}
        return {"dedupe": [], "last_msg_id": last_id, "last_msg_id_seq": last_seq, "ids": ids} | older

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        dump = IdsDump(state.ids, state.older_ids, list(self._store.blocks))
        self._store.blocks = ()
        self.ids.load(dump, state.last_msg_id, state.last_msg_id_seq, state.dedupe, self._ages.behind_ns)

    # ------------------------------------------------------------------ ids leave without publishes
    def lead(self, recovered: bool) -> None:
        self._leading = True
        self._watch()

    def follow(self) -> None:
        self._leading = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Have the oldest ids forgotten when they leave the window: memory and disk are given back without publishes.
        Few ids wait for the next publish."""
        if self._timer is None and self._leading and (due_ns := self.ids.due_ns) is not None:
            self._timer = self._clock.call_later(max(due_ns - self._clock.steady(), FORGET_NS), self._forget)

    def _forget(self) -> None:
        self._timer = None
        self.ids.trim(self._clock.steady())
        self._watch()
