"""The message schedules of one stream.

Belongs here: the schedules of a stream and the next time of each, and publishing what they produce, on the leader. The
meaning of the headers is in schedule_rules.py.

State changes only where entries are applied (invariant 2): a stored schedule enters, and the message that it produces
says in its own headers when the schedule fires next, or that it is over. Both are one entry of the log, so a schedule
fires once for each time, whatever happens to the leader in between. Times that passed without a leader are made up for
by one message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import msgspec

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Clock, Timer
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey, Given
from lakestream.stream.core.feature import NEVER, Feature, Stored
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.proposer import Proposer
from lakestream.stream.core.publish import ANY, IncomingMessage, PublishRule
from lakestream.stream.core.reader import Reader
from lakestream.stream.features import schedule_rules, ttl

MIN_DELAY_NS = 50_000_000
"""Minimum time until the next look (50 ms)."""
MAX_DELAY_NS = 60_000_000_000
"""Maximum time until the next look (1 minute) while there are schedules, so that a clock that jumps is noticed."""
LATE_NS = 1_000_000
"""Timers are set a little late, since one that comes early finds nothing to do."""
RETRY_NS = 1_000_000_000
"""A schedule whose message can not be read or stored at the moment is tried again after this."""
ROUNDED_NS = 500_000_000
"""By how much a time by interval may be rounded up."""
MAX_FIRES = 500
"""Schedules that fire in one turn of the event loop; the others follow in the next."""
SLACK = 1024
"""Schedules whose messages are gone are forgotten once there are this many, and as many as live ones."""


SCHEDULE: EffectKey[bytes] = EffectKey("schedule", removes=True)
"""Header block of a message that is a schedule, or says what becomes of one."""


def _read(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    if config.allow_msg_schedules:
        SCHEDULE.put(effect, header)


class _State(msgspec.Struct):
    schedules: list[tuple[bytes, int, int]] = []
    """(subject, sequence, when it fires next)."""
    intervals: list[tuple[bytes, int]] = []
    """(subject, interval) of those that fire at intervals."""


_STATE = PackDecoder(_State)


class ScheduleEntry(msgspec.Struct):
    """One schedule: its message, and when it fires next. It is alive as long as the message is in the stream."""

    seq: int
    next_ns: int
    every_ns: int = 0
    """Interval of a periodic schedule, 0 for others; a change of the system clock never makes it wait longer."""
    latest_ns: int = 0
    """Time by the steady clock at which it fires at the latest. Only on the leader."""


class Schedules(Feature):
    """The schedules of one stream, by subject: there is one on each at most.

    Args:
        created_ns: when the stream was created.
        supersede: removes the messages of a subject before a sequence, when its schedule is over.
        no_room: returns why server or account have no room for so many more bytes.
    """

    rules = (PublishRule(schedule_rules.check, ANY, single=60, replicated=100),)
    effects = ((schedule_rules.PATTERN, _read), (schedule_rules.SCHEDULER, _read))

    def __init__(
        self,
        created_ns: int,
        clock: Clock,
        store: Store,
        reader: Reader,
        pipeline: Pipeline,
        proposer: Proposer,
        supersede: Callable[[int, bytes], None],
        no_room: Callable[[int], ApiError | None],
    ) -> None:
        self._created_ns, self._clock, self._store, self._reader = created_ns, clock, store, reader
        self._pipeline, self._proposer, self._supersede, self._no_room = pipeline, proposer, supersede, no_room
        self._config = StreamConfig()
        self._entries: dict[bytes, ScheduleEntry] = {}
        self._sweep_at = SLACK
        self._running = False
        self._timer: Timer | None = None
        self._armed_for = self._fires_ns = 0
        self._due: list[tuple[int, int, bytes]] = []
        """(when to look at a schedule, its sequence, its subject). Outdated entries are passed over."""
        self._latest: list[tuple[int, int, bytes]] = []
        """The same of those with intervals, by the steady clock."""
        self._firing: dict[bytes, ScheduleEntry] = {}
        """Schedules by subject whose message is on its way, or can not be stored at all."""

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------------ apply
    def configure(self, config: StreamConfig) -> None:
        self._config = config

    def stored(self, stored: Stored) -> None:
        if not self._entries and not stored.effects:
            return
        over: list[tuple[bytes, int]] = []
        for effect in stored.effects:
            header = SCHEDULE.of(effect)
            if header is not None:
                self._take(effect, header, over)
        if self._entries:
            for seq, subject in enumerate(stored.subjects, stored.first_seq):
                entry = self._entries.get(subject)
                if entry is not None and entry.seq < seq:
                    del self._entries[subject]  # an ordinary message on its subject ends a schedule for good
        self._arm()
        if not stored.archived:
            for subject, end in over:
                self._supersede(end, subject)

    def _take(self, effect: Effect, header: bytes, over: list[tuple[bytes, int]]) -> None:
        # A message that is older than the stream came with a backup or an import: its times count from then on.
        meaning = schedule_rules.meaning(header, max(effect.time_ns, self._created_ns))
        if meaning is None:
            return
        if meaning.next_ns is not None:
            self._move(meaning.scheduler, effect.seq, meaning.next_ns)
        elif meaning.scheduler:
            over.append((meaning.scheduler, effect.seq))
            self._end(meaning.scheduler, effect.seq)
        if meaning.first_ns is not None and effect.seq in self._store.live:
            self._enter(effect.subject, ScheduleEntry(effect.seq, meaning.first_ns, meaning.every_ns))

    def _enter(self, subject: bytes, entry: ScheduleEntry) -> None:
        if len(self._entries) >= self._sweep_at:
            live = self._store.live
            self._entries = {name: entry for name, entry in self._entries.items() if entry.seq in live}
            self._sweep_at = 2 * len(self._entries) + SLACK
            self._firing = {name: entry for name, entry in self._firing.items() if name in self._entries}
        self._entries[subject] = entry
        self._firing.pop(subject, None)
        self._watch(subject, entry)

    def _move(self, subject: bytes, seq: int, next_ns: int) -> None:
        entry = self._entries.get(subject)
        if entry is not None and entry.seq < seq:
            entry.next_ns = next_ns
            self._firing.pop(subject, None)
            self._watch(subject, entry)

    def _end(self, subject: bytes, seq: int) -> None:
        entry = self._entries.get(subject)
        if entry is not None and entry.seq < seq:
            del self._entries[subject]
            self._firing.pop(subject, None)

    def dump(self) -> dict[str, object]:
        live, entries = self._store.live, self._entries.items()
        schedules = [(subject, entry.seq, entry.next_ns) for subject, entry in entries if entry.seq in live]
        return {
            "schedules": schedules,
            "intervals": [(subject, entry.every_ns) for subject, entry in entries if entry.every_ns],
        }

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        every = dict(state.intervals)
        self._entries = {subject: ScheduleEntry(seq, at, every.get(subject, 0)) for subject, seq, at in state.schedules}
        self._sweep_at = 2 * len(self._entries) + SLACK

    # ------------------------------------------------------------------ lead
    def lead(self, recovered: bool) -> None:
        self._running = True
        self._due = [(entry.next_ns, entry.seq, subject) for subject, entry in self._entries.items()]
        heapq.heapify(self._due)
        self._latest = []
        for subject, entry in self._entries.items():
            self._limit(subject, entry)
        self._arm()

    def follow(self) -> None:
        self._running = False
        self._due, self._latest = [], []
        self._firing.clear()
        self._disarm()

    def _watch(self, subject: bytes, entry: ScheduleEntry) -> None:
        """Look at a schedule when it fires next."""
        self._look(entry.next_ns, entry.seq, subject)
        if self._running:
            self._limit(subject, entry)

    def _limit(self, subject: bytes, entry: ScheduleEntry) -> None:
        if entry.every_ns:
            # Half a second: intervals begin at whole ones.
            entry.latest_ns = self._clock.steady() + entry.every_ns + ROUNDED_NS
            heapq.heappush(self._latest, (entry.latest_ns, entry.seq, subject))

    def _look(self, when: int, seq: int, subject: bytes) -> None:
        if not self._running:
            return
        heapq.heappush(self._due, (when, seq, subject))
        if len(self._due) > 2 * len(self._entries) + SLACK:
            # A replaced schedule leaves its old time here. Schedules that are firing now are added again afterwards.
            self._due = [
                (entry.next_ns, entry.seq, name)
                for name, entry in self._entries.items()
                if name not in self._firing or name == subject
            ]
            heapq.heapify(self._due)

    def acts_at(self) -> int:
        return 0 if self._entries else NEVER

    def _arm(self) -> None:
        """Make sure a timer runs for what is due next. Cheap when one does."""
        if not self._due or not self._running or self._config.sealed:
            return
        when = self._due[0][0]
        if self._latest:
            clock = self._clock
            when = min(when, self._latest[0][0] - clock.steady() + clock.now())
        if self._timer is None or when < self._armed_for:
            self._armed_for = when
            self._set_timer(when + LATE_NS - self._clock.now())

    def _set_timer(self, delay_ns: int) -> None:
        """Set the timer, or let it fire earlier than it would, never later: each stored message may come here."""
        delay = min(max(delay_ns, MIN_DELAY_NS), MAX_DELAY_NS)
        fires_ns = self._clock.steady() + delay
        if self._timer is None or fires_ns < self._fires_ns:
            self._disarm()
            self._fires_ns = fires_ns
            self._timer = self._clock.call_later(delay, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        """Publish what is due, in the order in which the schedules were stored."""
        self._disarm()
        if not self._running or self._config.sealed:
            return
        if not self._proposer.settled:
            # What is in flight may end a schedule: this waits for it like any publish, or a while when too many do.
            self._proposer.defer(self._fire, b"", 0)
            self._armed_for = 0
            self._set_timer(RETRY_NS)
            return
        now = self._clock.now()
        overdue = self._overdue()
        due: dict[bytes, ScheduleEntry] = {}
        ending = self._ending()
        while (overdue or (self._due and self._due[0][0] <= now)) and len(due) < MAX_FIRES:
            late = bool(overdue)
            _, seq, subject = overdue.pop() if late else heapq.heappop(self._due)
            entry = self._entries.get(subject)
            if entry is None or entry.seq != seq or subject in self._firing or (entry.next_ns > now and not late):
                continue
            if seq not in self._store.live:
                del self._entries[subject]
            elif self._stands(subject, entry, ending):
                due[subject] = entry
        self._firing.update(due)
        self._begin(sorted(due.items(), key=lambda item: item[1].seq))
        self._arm()

    def _overdue(self) -> list[tuple[int, int, bytes]]:
        """Take off the list what has waited for its interval though the system clock says that it is not due."""
        found: list[tuple[int, int, bytes]] = []
        steady = self._clock.steady()
        while self._latest and self._latest[0][0] <= steady and len(found) < MAX_FIRES:
            latest, seq, subject = heapq.heappop(self._latest)
            entry = self._entries.get(subject)
            if entry is not None and entry.latest_ns == latest:  # else it has fired since
                found.append((latest, seq, subject))
        return found

    def _ending(self) -> set[bytes]:
        """Return the subjects of schedules that a message on its way ends, or gives another next time."""
        effects = [effect for batch in self._pipeline.batches() for effect in batch.effects]
        blocks = [block for effect in effects if (block := SCHEDULE.of(effect)) is not None]
        return {headers.get(block, schedule_rules.SCHEDULER) or b"" for block in blocks}

    def _stands(self, subject: bytes, entry: ScheduleEntry, ending: set[bytes]) -> bool:
        """Return True if no message, stored or on its way, has replaced or ended a schedule."""
        return subject not in ending and self._proposer.view.last_of(subject) == entry.seq

    def _begin(self, due: Sequence[tuple[bytes, ScheduleEntry]]) -> None:
        """Publish for these, at once where their messages are in the log."""
        store = self._store
        elsewhere = []
        for subject, entry in due:
            schedule = store.read(entry.seq) if store.is_local(entry.seq) else None
            source = self._source_of(schedule)
            if schedule is None or (source and not store.is_local(source)):
                elsewhere.append((subject, entry))
            else:
                self._publish(subject, entry, schedule, store.read(source) if source else None)
        if elsewhere:
            self._clock.spawn(self._begin_with_history(elsewhere))

    def _source_of(self, schedule: Record | None) -> int:
        """Return the last sequence of the subject that a schedule names as its source, 0 if there is none."""
        source = headers.get(schedule.header, schedule_rules.SOURCE) if schedule is not None else None
        return self._store.subjects.last(source) if source else 0

    async def _begin_with_history(self, due: Sequence[tuple[bytes, ScheduleEntry]]) -> None:
        """Publish for these where only the lake has what is needed."""
        reader = self._reader
        for position, (subject, entry) in enumerate(due):
            due_ns = entry.next_ns
            try:
                schedule = await reader.fetch(entry.seq)
                source = self._source_of(schedule)
                content = await reader.fetch(source) if source else None
            except BaseException:
                for each in due[position:]:
                    self._again(*each)
                raise
            if not self._running or self._entries.get(subject) is not entry or entry.next_ns != due_ns:
                continue  # another node led, or it fired, while the lake was read
            if self._proposer.settled and self._stands(subject, entry, self._ending()):
                self._publish(subject, entry, schedule, content)
            else:
                self._again(subject, entry)

    def _again(self, subject: bytes, entry: ScheduleEntry) -> None:
        """Try this one later."""
        self._firing.pop(subject, None)
        self._look(self._clock.now() + RETRY_NS, entry.seq, subject)
        self._arm()

    def _publish(self, subject: bytes, entry: ScheduleEntry, schedule: Record | None, content: Record | None) -> None:
        made = None
        if schedule is not None:
            made = schedule_rules.produced(schedule, content, entry.next_ns, self._clock.now())
        if made is None:
            return  # there is nothing that it could publish; `_entries` is for what is applied to change
        header = ttl.raised(made.header, self._config)
        size = len(header) + len(made.data)
        if self._no_room(size) is not None or 0 < self._config.max_msg_size < size:
            return  # it stays away until another node leads, as in nats-server
        proposer = self._proposer
        message = IncomingMessage(proposer.renamed(made.subject), b"", header, made.data)  # no rule refuses it
        if not proposer.settled or not proposer.store([(message, proposer.effect_of(header))]):
            self._again(subject, entry)
