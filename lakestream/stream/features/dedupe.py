"""Message ids: publishes that repeat a message of the duplicate window are not stored again
(docs/internals/streams.md#publish-headers).

Belongs here: the bounded memory of `Nats-Msg-Id` values, and the rules of that header and of
`Nats-Expected-Last-Msg-Id`. Ids are kept in chunks in the order in which they came, so that forgetting and saving many
of them never holds the event loop for long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lakestream.log.format.pieces import array_of
from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.decoding import PackDecoder
from lakestream.protocol.publishes import Publishes
from lakestream.stream.core.batch import STEP_NS, Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey, Given
from lakestream.stream.core.feature import Feature, Stored
from lakestream.stream.core.publish import Duplicate, IncomingMessage, PublishRule, View
from lakestream.stream.features.ages import Ages

ID_BYTES = 200
"""Bytes of memory of a message id."""
MAX_IDS = 4_000_000
"""Ids of one stream that are remembered at once, some 800 MB. Beyond them a message with an id is refused with 10167
until older ones leave the window: forgetting them earlier could let a duplicate in."""

CHUNK_IDS = 8192
FORGOTTEN_AT_ONCE = 2
"""Chunks that one call forgets at most; what is left goes with the next calls."""

TRIM_IDS = 1024
"""Above this number of ids, old ones are also removed without publishes (on followers)."""


class _Chunk:
    """Some ids in order of arrival. Times and sequences ascend."""

    __slots__ = ("ids", "packed", "seqs", "times")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.times = array("q")
        self.seqs = array("Q")
        self.packed = b""  # what `pack` gave when the chunk was full

    def pack(self, start: int, stop: int) -> bytes:
        """Return the entries from `start` to before `stop`, for `unpack`."""
        if self.packed and (start, stop) == (0, CHUNK_IDS):
            return self.packed
        part = slice(start, stop)
        packed = msgspec.msgpack.encode((self.times[part].tobytes(), self.seqs[part].tobytes(), self.ids[part]))
        if (start, stop) == (0, CHUNK_IDS):
            self.packed = packed
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> _Chunk:
        """Return the chunk that `pack` packed."""
        made = cls()
        times, seqs, made.ids = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, list[bytes]])
        made.times.frombytes(times)
        made.seqs.frombytes(seqs)
        return made

    def pop(self) -> None:
        """Drop the newest entry."""
        self.packed = b""
        del self.ids[-1], self.times[-1], self.seqs[-1]


class MessageIds:
    """Message ids seen within `window_ns`, oldest forgotten first.

    Args:
        window_ns: how long an id is remembered; 0 remembers nothing.
    """

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.last_id = b""
        self.last_seq = 0
        """The message that carried `last_id`."""
        self._seqs: dict[bytes, int] = {}
        self._chunks: list[_Chunk] = []
        """Oldest first, none empty. On followers, which do not look ids up, an id may be here twice: once expired, and
        once with the message that carries it now."""
        self._head = 0  # entries of the first chunk that are forgotten

    def __len__(self) -> int:
        return len(self._seqs)

    def seen(self, msg_id: bytes, now_ns: int) -> int:
        """Return the sequence stored under `msg_id` within the window, or 0.

        Raise ApiError 10167 if it is not known and no more ids can be remembered.
        """
        self._forget(now_ns)
        seq = self._seqs.get(msg_id, 0)
        if seq and not self._outdated(seq, now_ns):
            return seq
        if len(self._seqs) >= MAX_IDS and self.window_ns > 0:
            raise api_error(10167)
        return 0

    def add(self, msg_id: bytes, seq: int, time_ns: int) -> None:
        """Remember an id of a message stored at `time_ns` by the steady clock; see `Ages.stored_ns`."""
        self.add_all([msg_id], [seq], [time_ns])

    def add_all(self, ids: list[bytes], seqs: Sequence[int], times: Sequence[int]) -> None:
        """Remember the ids of some messages, ascending by sequence and time."""
        self.last_id, self.last_seq = ids[-1], seqs[-1]
        if self.window_ns <= 0:
            return
        self._seqs.update(zip(ids, seqs, strict=True))
        at = 0
        while at < len(ids):
            if not self._chunks or len(self._chunks[-1].ids) >= CHUNK_IDS:
                self._chunks.append(_Chunk())
            chunk = self._chunks[-1]
            stop = at + CHUNK_IDS - len(chunk.ids)
            some = times[at:stop]
            if chunk.times and some[0] < chunk.times[-1]:  # another leader's clock may have been ahead
                some = [max(time_ns, chunk.times[-1]) for time_ns in some]
            chunk.ids += ids[at:stop]
            chunk.times.extend(some)
            chunk.seqs.extend(seqs[at:stop])
            if len(chunk.ids) == CHUNK_IDS:
                chunk.pack(0, CHUNK_IDS)  # now: a checkpoint would pack all chunks at once
            at = stop

    def unknown(self, ids: Sequence[bytes | None], now_ns: int) -> int:
        """Return how many of these ids, from the first on, are new, each before the next is added; None and b"" are no
        ids. None of them is if there may not be room for all."""
        if self.window_ns <= 0:
            return len(ids)
        self._forget(now_ns)
        known = self._seqs.keys()
        if len(known) + len(ids) > MAX_IDS:
            return 0
        some = set(ids)
        if len(some) == len(ids) and known.isdisjoint(some):
            return len(ids)
        before: set[bytes] = set()
        for at, each in enumerate(ids):
            if each:
                if each in before or each in known:
                    return at
                before.add(each)
        return len(ids)

    def moved(self, before: int, last_seq: int) -> None:
        """Note that a purge gave the sequences after `before` through `last_seq` to no message."""
        if self.last_seq == before:
            self.last_seq = last_seq

    def forget_after(self, last_seq: int) -> None:
        """Forget the ids of messages above `last_seq`: these may not be stored."""
        self.last_id, self.last_seq = self.last_through(last_seq)
        while self._chunks and self._chunks[-1].seqs[-1] > last_seq:
            chunk = self._chunks[-1]
            if len(chunk.ids) > (self._head if chunk is self._chunks[0] else 0):
                self._drop(chunk, len(chunk.ids) - 1, len(chunk.ids))
            chunk.pop()
            if not chunk.ids:
                self._chunks.pop()
        if not self._chunks or self._head >= len(self._chunks[0].ids):
            self._head = 0
            del self._chunks[:1]

    def trim(self, time_ns: int) -> None:
        """Forget ids that had left the window at `time_ns`; for followers, which never ask."""
        if len(self._seqs) > TRIM_IDS:
            self._forget(time_ns)

    def _forget(self, now_ns: int) -> None:
        horizon, chunks = now_ns - self.window_ns, self._chunks
        for _ in range(FORGOTTEN_AT_ONCE):
            if not chunks or chunks[0].times[self._head] > horizon:
                return
            chunk = chunks[0]
            stop = bisect_right(chunk.times, horizon, self._head)
            self._drop(chunk, self._head, stop)
            self._head = stop
            if stop == len(chunk.ids):
                del chunks[0]
                self._head = 0

    def _drop(self, chunk: _Chunk, start: int, stop: int) -> None:
        seqs = self._seqs
        for msg_id, seq in zip(chunk.ids[start:stop], chunk.seqs[start:stop], strict=True):
            # Not when a later message has the id: it is in the window for longer.
            if seqs.get(msg_id) == seq:
                del seqs[msg_id]

    def _outdated(self, seq: int, now_ns: int) -> bool:
        """Return True if an id that is still known has left the window: there was too much to forget at once."""
        horizon = now_ns - self.window_ns
        if self._chunks[0].times[self._head] > horizon:
            return False
        chunk = next(chunk for chunk in self._chunks if chunk.seqs[-1] >= seq)
        return chunk.times[bisect_right(chunk.seqs, seq) - 1] <= horizon

    def dump(self, now_ns: int, through: int) -> list[bytes]:
        """Return the ids of messages ≤ `through`, for the checkpoint.

        An id of a message in flight must not get there: were that message lost, its publisher's next try would be
        taken for a duplicate.
        """
        self._forget(now_ns)
        packed = []
        for number, chunk in enumerate(self._chunks):
            start, stop = 0 if number else self._head, bisect_right(chunk.seqs, through)
            if start < stop:
                packed.append(chunk.pack(start, stop))
        return packed

    def last_through(self, through: int) -> tuple[bytes, int]:
        """Return the newest id of a message ≤ `through`, and its sequence; `(b"", 0)` if none is remembered."""
        if self.last_seq <= through:
            return self.last_id, self.last_seq
        for chunk in reversed(self._chunks):
            at = bisect_right(chunk.seqs, through)
            if at > (self._head if chunk is self._chunks[0] else 0):
                return chunk.ids[at - 1], chunk.seqs[at - 1]
        return b"", 0

    def load(
        self,
        packed: list[bytes],
        last_id: bytes,
        last_seq: int,
        older: Iterable[tuple[int, bytes, int]] = (),
        behind_ns: int = 0,
    ) -> None:
        """Load what `dump` returned, or the (time, id, seq) of releases before it. `behind_ns`: see `Ages`."""
        self._chunks = list(map(_Chunk.unpack, packed))
        if behind_ns:
            for chunk in self._chunks:
                chunk.times = array("q", (each - behind_ns for each in chunk.times))
        self._head = 0
        self._seqs = {msg_id: seq for msg_id, seq, _ in self.entries()}
        for time_ns, msg_id, seq in older:
            self.add(msg_id, seq, time_ns)
        self.last_id, self.last_seq = last_id, last_seq

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (id, sequence, time in ns) of everything remembered, oldest first."""
        for number, chunk in enumerate(self._chunks):
            first = 0 if number else self._head
            yield from zip(chunk.ids[first:], chunk.seqs[first:], chunk.times[first:], strict=True)


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
        self.ids = MessageIds(0)

    def configure(self, config: StreamConfig) -> None:
        self.ids.window_ns = config.duplicate_window

    def memory(self) -> dict[str, int]:
        return {"message_ids": ID_BYTES * len(self.ids)}

    def seen(self, msg_id: bytes) -> int:
        """Return the sequence stored under `msg_id` within the window, or 0. Raise ApiError 10167; see `ids.seen`."""
        return self.ids.seen(msg_id, self._clock.steady())

    def duplicate_of(self, effect: Effect) -> int:
        msg_id = MSG_ID.of(effect)
        return self.seen(msg_id) if msg_id and self.ids.window_ns else 0

    def taken(self, effect: Effect) -> None:
        msg_id = MSG_ID.of(effect)
        if msg_id:
            self.ids.add(msg_id, effect.seq, self._ages.stored_ns(effect.seq, effect.time_ns))

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

    def received(self, stored: Stored) -> None:
        if stored.effects and not stored.archived:
            for effect in stored.effects:
                self.taken(effect)
            self.ids.trim(self._ages.stored_ns(stored.first_seq, stored.last_time))

    def skipped(self, before: int, last_seq: int) -> None:
        self.ids.moved(before, last_seq)

    def rewound(self, last_seq: int) -> None:
        self.ids.forget_after(last_seq)

    def dump(self) -> dict[str, object]:
        stored = self._store.last_seq
        last_id, last_seq = self.ids.last_through(stored)
        ids = self.ids.dump(self._clock.steady(), stored)
        return {"dedupe": [], "last_msg_id": last_id, "last_msg_id_seq": last_seq, "ids": array_of(ids)}

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        self.ids.load(state.ids, state.last_msg_id, state.last_msg_id_seq, state.dedupe, self._ages.behind_ns)
