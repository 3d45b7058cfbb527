"""Expiry: messages whose time has run out (max_age and `Nats-TTL`), and the delete markers that take their place.

Belongs here: when the next message of a stream runs out, what a marker looks like (ADR-43,
docs/internals/streams.md#ttls-and-markers), and the proposals that remove messages or leave a marker. Only the leader
looks at the clock; what it finds goes through the log as Expire, Remove or a message, so that replicas and recovery
remove the same messages. A marker rolls up its subject, so that storing it is what removes the message: the two are one
entry of the log.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.protocol import headers
from lakestream.protocol.decoding import PackDecoder
from lakestream.protocol.durations import format_duration
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import NEVER, Feature, Stored
from lakestream.stream.core.operations import (
    CreateConsumer,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Operation,
    Remove,
    ResetConsumer,
    UpdateConsumer,
    UpdateStream,
)
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer
from lakestream.stream.core.publish import IncomingMessage
from lakestream.stream.core.reader import Reader
from lakestream.stream.features.ages import Ages
from lakestream.stream.features.ttl import SECOND, TTL

MIN_DELAY_NS = 50_000_000
"""Minimum time between two looks (50 ms); messages that run out in between are removed together."""

MAX_DELAY_NS = 60_000_000_000
"""Maximum time between two looks (1 minute) while anything can run out: timers do not count the time of a suspend."""

RETRY_NS = 5_000_000_000
"""The next look after one that failed, because the lake did not answer, say."""

SLACK = 1024
"""TTLs of messages that limits removed first are forgotten once there are this many, and as many as messages."""

MAX_MARKED = 200
"""Messages of a stream with delete markers that one look deals with: each is read. The next look follows at once."""

MAX_MARKED_BYTES = 32 << 20
"""Bytes of these that are read at a time, and a message."""

MAX_SINGLE = 2000
"""Messages that one look removes one by one. The next look follows at once."""


REASON = b"Nats-Marker-Reason"


def marker_block(config: StreamConfig) -> bytes:
    """Return the header block of the stream's markers; they have no payload. Lifetimes are cut to seconds."""
    lifetime = config.subject_delete_marker_ttl // SECOND * SECOND
    return headers.build(
        [(REASON, b"MaxAge"), (b"Nats-TTL", format_duration(lifetime).encode()), (b"Nats-Rollup", b"sub")]
    )


def leaves_markers(config: StreamConfig) -> bool:
    """Return True if the last message of a subject leaves a marker when it runs out, and the stream takes that.

    A counter stream takes nothing but increments, a sealed one nothing, and max_msg_size holds for everything. There
    messages leave without a marker, where nats-server tries again and again and never lets them go.
    """
    refuses = config.subject_delete_marker_ttl <= 0 or config.allow_msg_counter or config.sealed
    return not refuses and not 0 < config.max_msg_size < len(marker_block(config))


def wants_marker(header: bytes) -> bool:
    """Return True if the message with this header block leaves a marker: one that is itself an end does not."""
    return not headers.get(header, REASON) and headers.get(header, b"KV-Operation") != b"PURGE"


class _State(msgspec.Struct):
    ttls: list[tuple[int, int]] = []
    """(deadline by the steady clock, sequence) of every TTL; deadline -1 means never."""


_STATE = PackDecoder(_State)


class Expiry(Feature):
    """The expiry of one stream's messages. Nothing is scanned: the oldest message says when to look."""

    def __init__(
        self, clock: Clock, store: Store, reader: Reader, pipeline: Pipeline, proposer: Proposer, ages: Ages
    ) -> None:
        self._clock, self._store, self._reader = clock, store, reader
        self._pipeline, self._proposer, self._ages = pipeline, proposer, ages
        self._config = StreamConfig()
        self._ttls: list[tuple[int, int]] = []
        self._forever: dict[int, None] = {}
        """Messages that never expire, as keys: an empty set would take three times the memory."""
        self._cursor = 0
        """No message below this sequence can expire by max_age."""
        self._timer: Timer | None = None
        self._due = self._max_age = 0
        """Time at which the timer fires, and the max_age for which it was set."""
        self._may_age = False
        """True if there was a message then that max_age can expire."""
        self._running = False
        self._not_before = 0
        self._more = False
        """The look that is under way leaves messages for another one."""
        self._look = 0
        """Number of the look that is under way, or of the next."""
        self._looking = False
        self._taken: list[tuple[int, int]] = []
        """TTLs that the look handles."""
        self._proposed = 0
        """Number of its proposals that are not applied, plus one until it has proposed all."""

    def configure(self, config: StreamConfig) -> None:
        self._config = config

    def stored(self, stored: Stored) -> None:
        for effect in stored.effects:
            ttl_ns = TTL.of(effect)
            if ttl_ns and (not stored.archived or effect.seq in self._store.live):
                self._track(effect.seq, effect.time_ns, ttl_ns)
        if not stored.archived:
            self.arm()

    def applied(self, operation: Operation, own: bool) -> None:
        if isinstance(operation, UpdateStream):
            self.arm()

    def rebased(self) -> None:
        self.arm()

    def _track(self, seq: int, time_ns: int, ttl_ns: int) -> None:
        """Note a message with a TTL of its own (-1: never expires, not even by max_age)."""
        if ttl_ns > 0:
            heapq.heappush(self._ttls, (self._ages.stored_ns(seq, time_ns) + ttl_ns, seq))
        else:
            self._forever[seq] = None
        if len(self._ttls) + len(self._forever) > 2 * self._store.msgs + SLACK:
            live = self._store.live
            self._forever = {seq: None for seq in self._forever if seq in live}
            self._ttls = [entry for entry in self._ttls if entry[1] in live]
            heapq.heapify(self._ttls)

    def dump(self) -> dict[str, object]:
        return {"ttls": [*self._ttls, *self._taken, *((-1, seq) for seq in self._forever)]}

    def load(self, checkpoint: bytes) -> None:
        ttls, behind = _STATE.decode(checkpoint).ttls, self._ages.behind_ns
        self._cursor = 0
        self._forever = {seq: None for deadline, seq in ttls if deadline < 0}
        self._ttls = [(max(0, deadline - behind), seq) for deadline, seq in ttls if deadline >= 0]
        heapq.heapify(self._ttls)

    # ------------------------------------------------------------------ when
    def lead(self, recovered: bool) -> None:
        self._running = True
        self.arm()

    def follow(self) -> None:
        """Cease to watch. The next leader finds what runs out by itself."""
        self._running = False
        self._disarm()
        self._give_back()

    def arm(self) -> None:
        """Make sure that a timer runs if anything can run out. Cheap when it fires early enough."""
        if not self._running or self._looking or self._pipeline.failed is not None:
            return
        max_age = self._config.max_age
        if self._timer is not None:
            sooner = bool(self._ttls) and self._ttls[0][0] < self._due - MIN_DELAY_NS
            first = max_age > 0 and not self._may_age and self._store.last_seq >= self._cursor
            if not sooner and not first and max_age == self._max_age:
                return
        elif not self._ttls and max_age <= 0:
            self._max_age, self._may_age = max_age, False
            return
        due, self._max_age = self._first_due(), max_age
        if due == NEVER:
            self._disarm()
            return
        now = self._clock.steady()
        soonest = now if self._more else now + MIN_DELAY_NS
        self._more = False
        due = min(max(due, soonest, self._not_before), now + MAX_DELAY_NS)
        # Never later than before: every message that is stored while something is overdue comes here.
        if self._timer is None or due < self._due:
            self._disarm()
            self._due = due
            self._timer = self._clock.call_later(due - now, self._fire)

    def acts_at(self) -> int:
        return 0 if self._looking else self._first_due()

    def _first_due(self) -> int:
        """Return when the first message runs out, `NEVER` if none does."""
        due, max_age = self._ttls[0][0] if self._ttls else NEVER, self._config.max_age
        oldest = self._mortal() if max_age > 0 else 0
        self._may_age = bool(oldest)
        if oldest:
            time_ns = self._store.time_of(oldest)
            due = min(due, self._ages.stored_ns(oldest, time_ns) + max_age if time_ns else 0)
        return due

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _mortal(self) -> int:
        """Return the oldest message that max_age applies to, 0 if there is none."""
        live = self._store.live
        seq = live.next_at_or_after(max(self._cursor, 1))
        while seq and seq in self._forever:
            seq = live.next_at_or_after(seq + 1)
        self._cursor = seq or self._store.last_seq + 1
        return seq

    # ------------------------------------------------------------------ looks
    def _fire(self) -> None:
        self._timer = None
        if self._running:
            self._looking, self._proposed = True, 1
            self._clock.spawn(self._expire(self._look))

    async def _expire(self, look: int) -> None:
        """Find what has run out and propose what becomes of it. It may lie in the lake, hence asynchronous."""
        now = self._clock.steady()
        self._not_before = 0
        try:
            config = self._config
            if leaves_markers(config):
                await self._expire_marked(look, now)
            else:
                await self._expire_plainly(look, now)
        except Exception:
            self._not_before = now + RETRY_NS
            raise
        finally:
            self._settled(look)

    def _settled(self, look: int) -> None:
        """Note the end of one part of a look. The look ends once all its proposals are applied or lost."""
        if look != self._look:
            return  # leading has ended since
        self._proposed -= 1
        if not self._proposed:
            self._give_back()
            self.arm()

    def _give_back(self) -> None:
        """End the look; another one handles its messages that still exist."""
        for entry in self._taken:
            if entry[1] in self._store.live:
                heapq.heappush(self._ttls, entry)
        self._taken, self._looking, self._proposed = [], False, 0
        self._look += 1

    def _waits(self, look: int) -> Callable[..., None]:
        """Return the callback for a proposal of this look: called when it is applied, or lost."""
        self._proposed += 1
        return lambda *_: self._settled(look)

    def _overdue(self, now: int, limit: int) -> list[int]:
        """Take messages whose TTL has run out off the list."""
        seqs: list[int] = []
        while self._ttls and self._ttls[0][0] <= now and len(seqs) < limit:
            entry = heapq.heappop(self._ttls)
            if entry[1] in self._store.live:
                self._taken.append(entry)
                seqs.append(entry[1])
        self._more = self._more or bool(self._ttls and self._ttls[0][0] <= now)
        return seqs

    async def _aged(self, now: int) -> int:
        """Return the last message whose max_age has run out, 0 if there is none."""
        store, max_age = self._store, self._config.max_age
        if max_age <= 0 or not store.msgs:
            return 0
        low, time_ns, high = self._ages.through(now - max_age)
        first = await self._reader.first_at(time_ns + 1)
        through = max(low - 1, min(first - 1 if first else store.last_seq, high))
        return through if through >= store.first_seq else 0

    def _mortals(self, through: int, limit: int) -> list[int]:
        """Return the messages ≤ `through` that max_age applies to, oldest first."""
        first = self._mortal()
        if not first or first > through:
            return []
        seqs = self._store.live.members(first, MAX_SINGLE, through)
        found = [seq for seq in seqs if seq not in self._forever]
        self._more = self._more or len(seqs) == MAX_SINGLE or len(found) > limit
        return found[:limit]

    async def _expire_plainly(self, look: int, now: int) -> None:
        through = await self._aged(now)
        if look != self._look:
            return
        doomed = self._overdue(now, MAX_SINGLE)
        if through and self._forever:
            doomed += self._mortals(through, MAX_SINGLE)
        elif through:
            self._pipeline.propose(Expire(through), self._waits(look))
        if doomed:
            self._pipeline.propose(Remove(doomed), self._waits(look))

    # ------------------------------------------------------------------ markers
    async def _expire_marked(self, look: int, now: int) -> None:
        """Expire as `_expire_plainly` does, but leave a marker where all messages of a subject have run out."""
        through = await self._aged(now)
        if look != self._look:
            return
        doomed = self._overdue(now, MAX_MARKED)
        if through:
            doomed += self._mortals(through, MAX_MARKED - len(doomed))
        groups = self._by_subject(doomed)
        found = await self._records(sorted(seqs[-1] for subject, seqs in groups.items() if self._ends(subject, seqs)))
        if look == self._look:
            self._leave(look, groups, {record.subject for record in found if wants_marker(record.header)})

    def _by_subject(self, seqs: Iterable[int]) -> dict[bytes, list[int]]:
        """Return messages by their subject, oldest first."""
        found: dict[bytes, list[int]] = {}
        for seq in sorted(set(seqs)):
            found.setdefault(self._store.subject_of(seq), []).append(seq)
        return found

    def _ends(self, subject: bytes, seqs: Sequence[int]) -> bool:
        """Return True if these are all messages that a subject has or is about to get."""
        held = self._store.subjects.count(subject)
        return held == len(seqs) and self._proposer.view.last_of(subject) == seqs[-1]

    async def _records(self, seqs: Sequence[int]) -> list[Record]:
        """Read these messages, for their headers; in parts, to bound the memory."""
        store, reader = self._store, self._reader
        found: list[Record] = []
        part: list[int] = []
        size = 0
        for seq in seqs:
            part.append(seq)
            size += store.size_of(seq)
            if size > MAX_MARKED_BYTES or seq == seqs[-1]:
                records = await reader.fetch_many(part)
                found += [msgspec.structs.replace(record, data=b"") for record in records]
                part, size = [], 0
        return found

    def _leave(self, look: int, groups: dict[bytes, list[int]], marked: set[bytes]) -> None:
        """Store the markers, and remove the messages without one."""
        leaving = _leaving(self._pipeline.pending_operations())
        if leaving is None:
            self._more = False
            return  # a purge, say: what it leaves is looked at again
        block = marker_block(self._config)
        effect = self._proposer.effect_of(block)
        stored, doomed = [], []
        for subject, seqs in sorted(groups.items(), key=lambda group: group[1][-1]):
            left = [seq for seq in seqs if seq in self._store.live and seq not in leaving]
            # Asked again in the turn in which the marker is stored: a new message may be on its way.
            if left and subject in marked and self._ends(subject, left):
                # Under the subject as it is stored, and past the rules: none refuses it.
                stored.append((IncomingMessage(subject, b"", block, b""), copy.copy(effect)))
            else:
                doomed += left
        if stored:
            stored[-1][0].after = self._waits(look)
            if not self._proposer.store(stored):
                self._proposed, self._more = self._proposed - 1, False  # too much is in flight: another look
        if doomed:
            self._pipeline.propose(Remove(doomed), self._waits(look))


def _leaving(operations: Iterable[Operation]) -> set[int] | None:
    """Return the messages whose removal is on its way; None if an operation may remove more than single messages."""
    seqs: set[int] = set()
    for operation in operations:
        match operation:
            case Remove():
                seqs.update(operation.seqs)
            case DeleteMessage():
                seqs.add(operation.seq)
            case CreateConsumer() | UpdateConsumer() | ResetConsumer() | DeleteConsumer():
                pass
            case _:
                return None
    return seqs
