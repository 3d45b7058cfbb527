"""Messages whose time has run out.

Belongs here: max_age and per-message TTL of one stream: when the next message runs out, and the proposal that removes
it or leaves a marker in its place (markers.py). How old a message is, ages.py knows. Only the leader looks at the
clock; what it finds goes through the log as Expire, Remove or a message, so that replicas and recovery remove the same
messages.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import Timer
from lakestream.raft.group.group import Proposal
from lakestream.stream.core import publish
from lakestream.stream.core.operations import (
    CreateConsumer,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Remove,
    ResetConsumer,
    UpdateConsumer,
)
from lakestream.stream.core.state import Asked
from lakestream.stream.features import markers

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

MIN_DELAY_NS = 50_000_000
"""Expiry looks at most every 50 ms; what runs out in between goes together."""

MAX_DELAY_NS = 60_000_000_000
"""And at least every minute while anything can run out: timers do not count the time that the machine was asleep."""

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


class Expiry:
    """Watches the head of a stream and its TTLs. Nothing is scanned: the oldest message says when to look again."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ttls: list[tuple[int, int]] = []
        self._forever: set[int] = set()
        self._cursor = 0
        """No message below it runs out by max_age."""
        self._timer: Timer | None = None
        self._due = self._max_age = 0
        """When the timer fires, and the max_age that it was set for."""
        self._ages = False
        """Whether there was a message then that max_age can end."""
        self._running = False
        self._not_before = 0
        self._more = False
        """The look that is under way leaves messages for another one."""
        self._look = 0
        """Number of the look that is under way, or of the next."""
        self._looking = False
        self._taken: list[tuple[int, int]] = []
        """TTLs that it deals with."""
        self._proposed = 0
        """What it has proposed and is not applied, and one more until it has proposed everything."""

    def track(self, seq: int, time_ns: int, ttl_ns: int) -> None:
        """A message was stored with a TTL of its own (-1: never expires, not even by max_age)."""
        if ttl_ns > 0:
            heapq.heappush(self._ttls, (self._stream.ages.stored(seq, time_ns) + ttl_ns, seq))
        else:
            self._forever.add(seq)
        if len(self._ttls) + len(self._forever) > 2 * self._stream.store.msgs + SLACK:
            live = self._stream.store.live
            self._forever = {seq for seq in self._forever if seq in live}
            self._ttls = [entry for entry in self._ttls if entry[1] in live]
            heapq.heapify(self._ttls)

    def dump(self) -> list[tuple[int, int]]:
        """(deadline, seq) of every TTL; deadline -1 means never."""
        return [*self._ttls, *self._taken, *((-1, seq) for seq in self._forever)]

    def load(self, ttls: list[tuple[int, int]], behind_ns: int = 0) -> None:
        """Take back what `dump` gave. `behind_ns`: see `Ages.load`."""
        self._cursor = 0
        self._forever = {seq for deadline, seq in ttls if deadline < 0}
        self._ttls = [(max(0, deadline - behind_ns), seq) for deadline, seq in ttls if deadline >= 0]
        heapq.heapify(self._ttls)

    # ------------------------------------------------------------------ when
    def start(self) -> None:
        """Begin to watch."""
        self._running = True
        self.arm()

    def stop(self) -> None:
        """Cease to watch. Who leads next finds what runs out by itself."""
        self._running = False
        self._disarm()
        self._give_back()

    def arm(self) -> None:
        """Make sure that a timer runs if anything can run out. Cheap when it fires early enough."""
        if not self._running or self._looking or self._stream.failed is not None:
            return
        max_age = self._stream.config.max_age
        if self._timer is not None:
            sooner = bool(self._ttls) and self._ttls[0][0] < self._due - MIN_DELAY_NS
            first = max_age > 0 and not self._ages and self._stream.store.last_seq >= self._cursor
            if not sooner and not first and max_age == self._max_age:
                return
            self._disarm()
        due = self._ttls[0][0] if self._ttls else 1 << 63
        oldest = self._mortal() if max_age > 0 else 0
        self._ages = bool(oldest)
        if oldest:
            time_ns = self._stream.store.time_of(oldest)
            due = min(due, self._stream.ages.stored(oldest, time_ns) + max_age if time_ns else 0)
        if due == 1 << 63:
            return
        now = self._stream.clock.steady()
        soonest = now if self._more else now + MIN_DELAY_NS
        self._more = False
        self._due = min(max(due, soonest, self._not_before), now + MAX_DELAY_NS)
        self._max_age = max_age
        self._timer = self._stream.clock.call_later(self._due - now, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _mortal(self) -> int:
        """The oldest message that max_age can end; 0 when there is none."""
        live = self._stream.store.live
        seq = live.next_at_or_after(max(self._cursor, 1))
        while seq and seq in self._forever:
            seq = live.next_at_or_after(seq + 1)
        self._cursor = seq or self._stream.store.last_seq + 1
        return seq

    # ------------------------------------------------------------------ looks
    def _fire(self) -> None:
        self._timer = None
        if self._running:
            self._looking, self._proposed = True, 1
            self._stream.clock.spawn(self._expire(self._look))

    async def _expire(self, look: int) -> None:
        """Find what has run out and propose what becomes of it. It may lie in the lake, hence asynchronous."""
        now = self._stream.clock.steady()
        self._not_before = 0
        try:
            config = self._stream.config
            if markers.marks(config) and markers.takes(config):
                await self._expire_marked(look, now)
            else:
                await self._expire_plainly(look, now)
        except Exception:
            self._not_before = now + RETRY_NS
            raise
        finally:
            self._settled(look)

    def _settled(self, look: int) -> None:
        """A part of a look is done; all of it is once all that it proposed is applied, or will not be."""
        if look != self._look:
            return  # leading has ended since
        self._proposed -= 1
        if not self._proposed:
            self._give_back()
            self.arm()

    def _give_back(self) -> None:
        """The look is over; what it dealt with and is still there is dealt with again."""
        for entry in self._taken:
            if entry[1] in self._stream.store.live:
                heapq.heappush(self._ttls, entry)
        self._taken, self._looking, self._proposed = [], False, 0
        self._look += 1

    def _waits(self, look: int) -> Callable[..., None]:
        """What to call when something that the look proposes now is applied, or lost."""
        self._proposed += 1
        return lambda *_: self._settled(look)

    def _overdue(self, now: int, limit: int) -> list[int]:
        """Messages whose TTL has run out, taken off the list."""
        seqs: list[int] = []
        while self._ttls and self._ttls[0][0] <= now and len(seqs) < limit:
            entry = heapq.heappop(self._ttls)
            if entry[1] in self._stream.store.live:
                self._taken.append(entry)
                seqs.append(entry[1])
        self._more = self._more or bool(self._ttls and self._ttls[0][0] <= now)
        return seqs

    async def _aged(self, now: int) -> int:
        """The last message that max_age has ended, as far as it can be; 0 when there is none."""
        stream = self._stream
        if stream.config.max_age <= 0 or not stream.store.msgs:
            return 0
        low, time_ns, high = stream.ages.through(now - stream.config.max_age)
        first = await stream.reader.first_at(time_ns + 1)
        through = max(low - 1, min(first - 1 if first else stream.store.last_seq, high))
        return through if through >= stream.store.first_seq else 0

    def _mortals(self, through: int, limit: int) -> list[int]:
        """Messages ≤ `through` that max_age can end, oldest first."""
        first = self._mortal()
        if not first or first > through:
            return []
        seqs = self._stream.store.live.members(first, MAX_SINGLE, through)
        found = [seq for seq in seqs if seq not in self._forever]
        self._more = self._more or len(seqs) == MAX_SINGLE or len(found) > limit
        return found[:limit]

    async def _expire_plainly(self, look: int, now: int) -> None:
        stream = self._stream
        through = await self._aged(now)
        if look != self._look:
            return
        doomed = self._overdue(now, MAX_SINGLE)
        if through and self._forever:
            doomed += self._mortals(through, MAX_SINGLE)
        elif through:
            stream.propose(Expire(through), self._waits(look))
        if doomed:
            stream.propose(Remove(doomed), self._waits(look))

    # ------------------------------------------------------------------ markers
    async def _expire_marked(self, look: int, now: int) -> None:
        """As `_expire_plainly`, but where all messages of a subject have run out, the last gives way to a marker."""
        through = await self._aged(now)
        if look != self._look:
            return
        doomed = self._overdue(now, MAX_MARKED)
        if through:
            doomed += self._mortals(through, MAX_MARKED - len(doomed))
        groups = self._by_subject(doomed)
        found = await self._records(sorted(seqs[-1] for subject, seqs in groups.items() if self._ends(subject, seqs)))
        if look == self._look:
            self._leave(look, groups, {record.subject for record in found if markers.wanted(record.header)})

    def _by_subject(self, seqs: Iterable[int]) -> dict[bytes, list[int]]:
        """Messages by their subject, oldest first."""
        found: dict[bytes, list[int]] = {}
        for seq in sorted(set(seqs)):
            found.setdefault(self._stream.store.subject_of(seq), []).append(seq)
        return found

    def _ends(self, subject: bytes, seqs: Sequence[int]) -> bool:
        """Whether these are all messages that a subject has or is about to get."""
        held = self._stream.store.subjects.count(subject)
        return held == len(seqs) and self._stream.view.last_of(subject) == seqs[-1]

    async def _records(self, seqs: Sequence[int]) -> list[Record]:
        """These messages, which say by their headers whether a marker follows them; in parts, lest they fill memory."""
        store, reader = self._stream.store, self._stream.reader
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
        """Store the markers, and remove what none is for."""
        stream = self._stream
        leaving = _leaving(stream.uncommitted())
        if leaving is None:
            self._more = False
            return  # a purge, say: what it leaves is looked at again
        block = markers.block(stream.config)
        effect = publish.effect_of(block, stream.config)
        stored, doomed = [], []
        for subject, seqs in sorted(groups.items(), key=lambda group: group[1][-1]):
            left = [seq for seq in seqs if seq in stream.store.live and seq not in leaving]
            # Asked again in the turn in which the marker is stored: a new message may be on its way.
            if left and subject in marked and self._ends(subject, left):
                # Under the subject as it is stored, and past the rules: none refuses it.
                stored.append((publish.Publish(subject, b"", block, b""), copy.copy(effect)))
            else:
                doomed += left
        if stored:
            stored[-1][0].after = self._waits(look)
            if not stream.intake.take_whole(stored):
                self._proposed, self._more = self._proposed - 1, False  # too much is in flight: another look
        if doomed:
            stream.propose(Remove(doomed), self._waits(look))


def _leaving(proposals: Iterable[Proposal]) -> set[int] | None:
    """Messages whose removal is on its way; None when something is that may do more than remove single messages."""
    seqs: set[int] = set()
    for proposal in proposals:
        if not isinstance(proposal.context, Asked):
            continue
        match proposal.context.operation:
            case Remove() as removal:
                seqs.update(removal.seqs)
            case DeleteMessage() as deletion:
                seqs.add(deletion.seq)
            case CreateConsumer() | UpdateConsumer() | ResetConsumer() | DeleteConsumer():
                pass
            case _:
                return None
    return seqs
