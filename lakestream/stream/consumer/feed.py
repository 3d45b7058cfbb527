"""The feed: new messages for a consumer, in order, from the log or from the lake.

Belongs here: the position of one consumer in its stream: which matching message comes next, how many are left, and
which run of messages is to be read from the lake. How far ahead that is read is read_ahead.py's. Deliveries and acks
are not known here.
"""

# The problem. Thousands of consumers may stand at any point of a stream of a billion messages, each with filters of its
# own. Each must deliver its next match at once, must know exactly how many are left (each delivery states it), must not
# look at messages of others, and must not hold up the event loop while it finds out.
#
# The obvious way is a queue of matching messages for each consumer. It costs memory for what nobody reads, and every
# delete and purge has to visit it. So a feed keeps a position (`ledger.next_seq`) and asks the stream's indexes what is
# next. Removals need no bookkeeping, since the indexes have only what is live.
#
# Where the next messages come from, in this order (`peek`):
#
#     `_ahead`    a run that was read from the lake ahead of time (read_ahead.py)
#     `_picked`   sequences that were chosen at creation (deliver policy last_per_subject): the only list there is
#     selection   a scan or the subject index, from the log (selection.py); if the lake alone has the next candidate,
#                 a read begins and `peek` returns nothing until it has ended
#
# The count. `pending` is `_left` + `_picked_left`, and `_left` is the number of matches from `ledger.next_seq` through
# `_counted`. It is brought up to date when it is asked for, not with each publish: only what came behind `_counted` is
# counted. From the first count on removals have to be reported (`holds`, `removed`), because a message that was counted
# may leave.
#
#     Invariant: _left = matches that are live, in ledger.next_seq … _counted. Whatever moves the position by a jump
#     starts the count anew (`rewind`); what cannot be told message by message does too (`swept`).
#
# Not looking. The filter index notifies the consumers whose filters match a batch (`notify`). What was announced and
# not notified cannot match, so a consumer that wakes up after a million messages for others does not count or scan
# them: `_unseen` is the first that may match, and `_look_from` where the scan begins. This holds only for the range
# that was announced (`Announced`); before, after a jump, or on a new leader the feed looks for itself.
#
# Surveys. Among a million subjects, counting or planning takes a second. Above SURVEY_MSGS it is a generator of steps
# with pauses between them. Everything that needs the result waits: deliveries (`fetching`), requests (`when_counted`).
# Messages may be removed meanwhile, some of them counted already: `_changes` tells, and the survey begins again. After
# three times the count is made in one go: a slow answer is better than none.
#
# What is ugly: three positions (`_counted`, `_unseen`, `_look_from`) describe one thing, how far the feed has looked,
# because counting, being notified and scanning advance separately.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lakestream.log.format.record import Record
from lakestream.log.format.records import chosen, seqs_of, subjects_of
from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.read_ahead import ReadAhead, ReadRun, Room
from lakestream.stream.consumer.selection import Everything, Matches, Selection, selection
from lakestream.stream.core.reader import Reader

BLOCK_BYTES = 1 << 20
"""At most this many bytes (1 MiB) are read for one block; one larger message still comes alone."""

PICKS = 1000
"""At most this many messages chosen at creation are read from the lake at once."""

SURVEY_MSGS = 2048
"""More messages (2,048) than this are not counted, and matches among them not found, before others have had a turn."""

SURVEYS = 3
"""Maximum number of times that a survey begins again; then the count is made at once."""

SLICE_NS = 1_500_000
"""Time (1.5 ms) that a survey takes of one turn of the event loop."""

PAUSE_NS = 1_000_000
"""Time (1 ms) until it goes on."""

SPARSE_PICKS = 32
"""If fewer than one in this many messages was chosen at creation, only the chosen ones are read from the lake."""


class Announced(Protocol):
    """A range of messages that were announced to the consumers that want them."""

    announced_from: int
    announced: int
    """Each message from `announced_from` through `announced` was announced."""


class Feed:
    """The messages that a consumer has not delivered yet.

    Args:
        announced: messages in this range that were not announced to the feed (`notify`) do not match.
        holds: called when messages were counted: `removed` has to be called for those that leave the stream.
        ready: called when a read from the lake has ended, or a survey.

    A *survey* counts the messages that match, or plans in which order they come, in steps: among a million subjects
    each takes a second. Deliveries wait for it, and so does what clients ask of the consumer (`when_counted`). A
    message that is removed meanwhile may have been counted already, so the survey begins again, up to SURVEYS times.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        reader: Reader,
        clock: Clock,
        room: Room,
        announced: Announced,
        holds: Callable[[], None],
        ready: Callable[[], None],
    ) -> None:
        self._store, self._reader, self._announced, self._ledger = store, reader, announced, ledger
        self._clock, self._holds, self._ready = clock, holds, ready
        self._ahead = ReadAhead(clock, room, self._read, self._passed, ready)
        self._picked: list[int] = []
        """Sequences that deliver policy last_per_subject chose, ascending; they come before `ledger.next_seq`."""
        self._picked_left = 0
        self._left = 0
        self._counted = 0
        self._survey: Iterator[None] | None = None
        self._waiting: list[Callable[[], None]] = []
        """Calls that wait for the end of the survey."""
        self._changes = 0
        """Number of removals and jumps so far, which a survey may have missed."""
        self._notified_from = self._unseen = self._look_from = 0

    def choose(self, filters: Sequence[bytes]) -> None:
        """Take these filters (none: every message matches)."""
        self.selection: Selection = selection(self._store, filters)
        self.rewind()

    def rewind(self) -> None:
        """Drop what was read ahead and count again: the ledger's position has jumped."""
        self._ahead.clear()
        self._changes += 1
        self._left, self._counted = 0, self._ledger.next_seq - 1
        self._notified_from, self._unseen, self._look_from = self._store.last_seq + 1, 0, 0
        if self._picked:
            self._picked = self._still_wanted(self._picked[bisect_right(self._picked, self._ledger.delivered_stream) :])
        self._picked_left = len(self._picked)
        if self._picked:
            self._holds()

    def _still_wanted(self, picked: list[int]) -> list[int]:
        """Return those of the messages chosen at creation that exist: most of them, perhaps a million."""
        live = self._store.live
        if not picked or live.count(picked[0], picked[-1]) == picked[-1] - picked[0] + 1:
            return picked
        return live.present(picked)

    def pick(self, seqs: list[int]) -> None:
        """Deliver these messages before all others; ascending."""
        self._picked = seqs
        self.rewind()

    def stop(self) -> None:
        """Drop what was read ahead, and end a survey."""
        self._ahead.clear()
        self._survey = None
        self._call_waiting()

    def reset(self) -> None:
        """Rewind, without the messages chosen at creation."""
        self._picked = []
        self.rewind()

    @property
    def picked(self) -> list[int]:
        """Return what is left of the messages chosen at creation."""
        return [seq for seq in self._picked if seq > self._ledger.delivered_stream]

    def pending(self) -> int:
        """Return the exact number of matching messages that were not delivered.

        Counting takes long where a survey is due: call it in `when_counted`.
        """
        last = self._store.last_seq
        if self._counted < last:
            low = self._first_unseen(self._counted + 1, last)
            if low <= last:
                self._left += self.selection.count(low, last)
                if self._left:
                    self._holds()
            self._counted = last
        return self._left + self._picked_left

    # ------------------------------------------------------------------ surveys
    def when_counted(self, then: Callable[[], None]) -> None:
        """Call `then` when `pending` takes no time: at once, or after a survey."""
        if self._survey is None and self._is_uncounted():
            self._begin(self._counting())
        if self._survey is None:
            then()
        else:
            self._waiting.append(then)

    def _is_uncounted(self) -> bool:
        return self._store.last_seq - self._counted > SURVEY_MSGS and not self.unfiltered

    def _counting(self) -> Iterator[None]:
        for _ in range(SURVEYS):
            changes, low, last = self._changes, self._counted + 1, self._store.last_seq
            self._holds()
            total = yield from self.selection.counting(self._first_unseen(low, last), last)
            if self._counted + 1 != low and changes == self._changes:
                return  # `pending` was asked meanwhile
            if changes == self._changes:
                self._left += total
                self._counted = last
                return
        self.pending()

    def _begin(self, survey: Iterator[None]) -> None:
        """Take the first step of a survey."""
        self._survey = survey
        if self._is_over():
            self._survey = None

    def _go_on(self) -> None:
        """Take the next steps."""
        if not self._is_over():
            return
        self._survey = None
        self._call_waiting()
        self._ready()

    def _is_over(self) -> bool:
        """Go on with the survey for SLICE_NS, then in a later turn; return True at its end."""
        until = self._clock.steady() + SLICE_NS
        for _ in self._survey or ():
            if self._clock.steady() >= until:
                self._clock.call_later(PAUSE_NS, self._go_on)
                return False
        return True

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    @property
    def counted(self) -> int:
        """Return the number of messages that were counted so far and not delivered."""
        return self._left + self._picked_left

    def notify(self, first_seq: int) -> None:
        """Note that messages from `first_seq` on were stored, some of which match."""
        if not self._unseen and first_seq > self._counted:
            self._unseen = first_seq

    def _first_unseen(self, low: int, last: int) -> int:
        """Return the first sequence of `low` through `last` that may match, `last` + 1 if none does."""
        announced, unseen = self._announced, self._unseen
        self._unseen = 0
        if low < max(self._notified_from, announced.announced_from) or last > announced.announced:
            return low
        if not unseen:
            return last + 1
        if not self._left and not self._picked_left:
            self._look_from = unseen  # skip what was stored for others
        return unseen

    def removed(self, seq: int, subject: bytes) -> None:
        """Note that a message was removed from the stream."""
        self._changes += 1
        if seq >= self._ledger.next_seq:
            if seq <= self._counted and self.selection.matches(subject):
                self._left -= 1
        elif self._picked_left:
            at = bisect_left(self._picked, seq)
            if at < len(self._picked) and self._picked[at] == seq and seq > self._ledger.delivered_stream:
                self._picked_left -= 1

    def swept(self) -> None:
        """Note that many messages were removed, of any subjects: `pending` counts again."""
        self._changes += 1
        self._left, self._counted = 0, self._ledger.next_seq - 1
        self._notified_from, self._unseen = self._store.last_seq + 1, 0
        if self._picked_left:
            self._picked_left = len(self._still_wanted(self.picked))

    # ------------------------------------------------------------------ reading
    def peek(self, limit: int) -> Matches:
        """Return the next messages, at most `limit`, without taking them.

        Without records, `resume` beyond the stream's last sequence means that there are none for now, and `remote` that
        a read from the lake is under way after which `ready` is called.
        """
        ahead = self._ahead.peek(limit, self._floor(), self._store.live)
        if ahead is not None:
            return ahead
        if self._picked_left:
            return self._peek_picked(limit)
        if self._is_uncounted():
            self._begin(self._counting())
            if self._survey is not None:
                return Matches([], 0, self._counted + 1)
        left = self.pending()
        if not left:
            return Matches([], max(self._ledger.next_seq, self._store.last_seq + 1), 0)
        start = max(self._ledger.next_seq, self._look_from)
        self._begin(self.selection.planning(start, left))
        if self._survey is not None:
            return Matches([], 0, start)
        found = self.selection.find(start, limit, BLOCK_BYTES, left)
        if found.remote:
            self._ahead.fetch(found.remote)
        return found

    def _floor(self) -> int:
        """Return the sequence below which everything was delivered or does not match."""
        return self._ledger.delivered_stream + 1 if self._picked_left else self._ledger.next_seq

    def _peek_picked(self, limit: int) -> Matches:
        store, picked = self._store, self._picked
        at, live = bisect_left(picked, self._ledger.delivered_stream + 1), store.live
        while at < len(picked) and picked[at] not in live:
            at += 1
        # Invariant: `_picked_left` counts the live ones after the last delivered.
        assert at < len(picked), "messages chosen at creation are counted but gone"
        if store.is_local(picked[at]):
            return Matches(store.records_of(picked[at : at + limit], BLOCK_BYTES), 0, 0)
        self._ahead.fetch(picked[at])
        return Matches([], 0, picked[at])

    def advance(self, found: Matches, taken: int) -> None:
        """Take the first `taken` messages that `peek` returned. To be called before the ledger knows of them."""
        if self._picked_left:
            self._picked_left -= taken
            if not self._picked_left:
                self._picked = []
        else:
            self._left -= taken
            whole = taken == len(found.records)
            self._ledger.next_seq = found.resume if whole else seqs_of(found.records)[taken]
        self._ahead.advance(taken)

    def skip(self, found: Matches) -> bool:
        """Pass over everything below `found.resume`. Return False if that is the end of the stream for now."""
        self._ledger.next_seq = max(found.resume, self._ledger.next_seq)
        return self._ledger.next_seq <= self._store.last_seq

    # ------------------------------------------------------------------ the lake
    @property
    def fetching(self) -> bool:
        """Return True if there is nothing until a read from the lake ends, or a survey."""
        return self._ahead.waiting or self._survey is not None

    def _passed(self, seq: int) -> None:
        """Note that nothing below `seq` matches."""
        if not self._picked_left:
            self._ledger.next_seq = max(self._ledger.next_seq, seq)

    async def _read(self, seq: int, limit: int, size: int) -> ReadRun:
        """Read the run of messages that begins at the candidate `seq`, from where it lies."""
        if self._picked_left:
            return await self._read_picked(seq, limit, size)
        records = await self._reader.fetch_run(seq, limit, size, self.selection.narrowing())
        if not records:
            return ReadRun([], 0, 0)
        resume = seqs_of(records)[-1] + 1
        following = self._store.live.next_at_or_after(resume)
        if following and self._store.is_local(following):
            following = 0
        if not self.unfiltered:
            subjects = subjects_of(records)
            wanted = set(filter(self.selection.matches, set(subjects)))
            if len(wanted) < len(set(subjects)):
                records = chosen(records, [at for at, subject in enumerate(subjects) if subject in wanted])
        return ReadRun(records, resume, following)

    async def _read_picked(self, seq: int, limit: int, size: int) -> ReadRun:
        picked = self._picked
        at = bisect_left(picked, seq)
        seqs = picked[at : at + min(limit, PICKS)]
        records: Sequence[Record]
        if seqs[-1] - seqs[0] >= SPARSE_PICKS * len(seqs):
            records, resume = await self._reader.fetch_many(seqs), seqs[-1] + 1
        else:
            meant, run = set(seqs), await self._reader.fetch_run(seq, limit, size, None)
            there = seqs_of(run)
            records = chosen(run, [at for at, one in enumerate(there) if one in meant])
            resume = there[-1] + 1 if run else seq
        end = bisect_left(picked, resume)
        following = picked[end] if end < len(picked) and not self._store.is_local(picked[end]) else 0
        return ReadRun(records, 0, following)

    @property
    def unfiltered(self) -> bool:
        """Return True if every message matches."""
        return isinstance(self.selection, Everything)
