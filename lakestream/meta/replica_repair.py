"""Finding and repairing damage in the files of replicas while the server runs.

Belongs here: repairing damage found by a read, and scrubbing: sealed segments are verified after each start and again
and again, at a bounded rate. A damaged sealed segment is replaced by another member's file of the same entries; if all
of these are damaged, by one made of the frames that are intact in any of them, and of the table's messages for the
others. If the others have released theirs to
the lake, they send their state, with outlines of those entries. For any other damage the replica is reopened, which
truncates its log to the intact entries and lets the group send the rest (invariant 3). A group of one has no other
copy: its damage is reported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.record import Record
from lakestream.log.format.segment import LOG_DIRECTORY, Header, Segment
from lakestream.log.store.repair import DamagedEverywhere, assemble, readable, verify
from lakestream.log.store.store import Store
from lakestream.meta.replica_transfer import Fetch, Offer
from lakestream.meta.site import Site
from lakestream.ports import History, Timer
from lakestream.stream.core.reader import HistoryUnavailableError

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica


SCRUB_DELAY_NS = 5_000_000_000
"""Delay after opening a replica before its sealed segments are verified (5 s), one at a time on a node."""

ROUND_NS = 60_000_000_000
"""Minimum time between the end of a round and the begin of the next one (1 min)."""

PAUSE_FACTOR = 9
"""Pause after each segment, as a multiple of the time that its verification took."""

MIN_PAUSE_NS = 20_000_000

RETRY_NS = 5_000_000_000
"""Pause before a segment that could not be repaired is tried again (5 s); each further one is twice as long."""

MOST_DOUBLED = 6
"""Pauses that are doubled: the longest is 5 min 20 s."""


class Repairs:
    """Finds and repairs damage on one node."""

    def __init__(self, site: Site, on_damage: Callable[[Replica, str], None]) -> None:
        self._site, self._on_damage = site, on_damage
        self._known: dict[Replica, None] = {}  # a dict, for its order
        self._failed: Counter[str] = Counter()  # attempts to repair a segment, by its path
        self._queued: deque[tuple[Replica, Segment]] = deque()  # whose damaged copies are gathered, the first one now
        self._unverified: deque[tuple[Replica, Store, Segment]] = deque()
        self._scrubbing = False
        self._began = 0
        self._next: Timer | None = None
        self.repaired = 0
        """Number of damaged segments repaired since the start."""
        self.damages = 0
        """Number of damages found since the start: segments by the scrubber, files by reads."""
        self.scrubbed_bytes = 0
        """Bytes of segments verified since the start."""

    # ------------------------------------------------------------------ scrubbing
    def scrub(self, replica: Replica) -> None:
        """Verify the sealed segments of a replica that was just opened, one after the other, and from now on in every
        round."""
        if replica.stream is None or replica.memory or not self._site.shared.options.scrub_rate:
            return
        self._known[replica] = None
        self._add(replica)
        if not self._scrubbing and self._unverified:
            if not self._began:
                self._began = self._site.shared.clock.steady()
            self._begin(SCRUB_DELAY_NS)
        elif self._next is None and not self._scrubbing:
            self._wait()

    def forget(self, replica: Replica) -> None:
        """Drop a replica that has ended."""
        self._known.pop(replica, None)

    def _add(self, replica: Replica) -> None:
        if replica.stream is not None:
            store = replica.stream.store
            found = (store.sealed_at(each.path) for each in store.sealed())
            self._unverified.extend((replica, store, segment) for segment in found if segment is not None)

    def _begin(self, delay_ns: int) -> None:
        self._scrubbing = True
        self._site.shared.clock.call_later(delay_ns, self._scrub_next)

    def _wait(self) -> None:
        """Begin the next round `scrub_interval` after this one began. Replicas that are opened meanwhile, which are
        verified at once, do not put it off."""
        if self._next is not None:
            return
        clock, interval = self._site.shared.clock, self._site.shared.options.scrub_interval_ns
        self._next = clock.call_later(max(self._began + interval - clock.steady(), ROUND_NS), self._round)

    def _round(self) -> None:
        self._next = None
        if self._scrubbing or not self._known:
            return
        for replica in self._known:
            self._add(replica)
        self._began = self._site.shared.clock.steady()
        self._begin(0)

    def _scrub_next(self) -> None:
        if not self._unverified:
            self._scrubbing = False
            self._wait()
            return
        replica, store, segment = self._unverified.popleft()
        if replica.closed or replica.stream is None or replica.stream.store is not store:
            self._site.shared.clock.call_soon(self._scrub_next)
            return
        shared, began = self._site.shared, time.monotonic_ns()

        def verified(_: object, error: BaseException | None) -> None:
            took = time.monotonic_ns() - began
            self.scrubbed_bytes += segment.file_bytes
            # The segment may have left the log meanwhile.
            if isinstance(error, CorruptLog) and store.sealed_at(segment.path) is not None:
                self._scrubbed(replica, error)
            pause = max(PAUSE_FACTOR * took, segment.file_bytes * 1_000_000_000 // shared.options.scrub_rate - took)
            shared.clock.call_later(max(pause, MIN_PAUSE_NS), self._scrub_next)

        shared.io.submit(lambda: verify(shared.stores.files, segment.path), verified)

    def _scrubbed(self, replica: Replica, error: CorruptLog) -> None:
        """Repair a damaged segment, or report it if no other node has it."""
        if replica.refillable:
            self.found(replica, error)
        elif replica.stream is not None and not replica.closed:
            self._report(replica, error)
            self._site.log.error(
                f"stream {replica.name}: no other replica has it: messages in it are read from the lake if that has "
                "them; stop the server and run `lakestream repair`, or restore the file from a backup"
            )

    def _report(self, replica: Replica, error: CorruptLog) -> None:
        """Log damage, count it and send the advisory."""
        assert replica.stream is not None, "it was found in its files"
        self.damages += 1
        self._site.log.error(f"stream {replica.name}: {error.file}: damaged at offset {error.offset}: {error.what}")
        self._on_damage(replica, str(error))
        fields: dict[str, object] = {
            "server": self._site.shared.options.server_name,
            "file": os.path.basename(error.file),
            "offset": error.offset,
            "reason": error.what,
            "replicated": replica.refillable,
        }
        replica.stream.advise("DAMAGED", "stream_damaged", fields)

    # ------------------------------------------------------------------ repairing
    def verified(self, replica: Replica, error: CorruptLog) -> None:
        """Report damage found by a verification that was requested. A sealed segment is repaired like after scrubbing;
        other files are left to the one who requested it."""
        if replica.stream is None or replica.closed:
            return
        if replica.stream.store.sealed_at(error.file) is not None:
            self._scrubbed(replica, error)
        else:
            self._report(replica, error)

    def found(self, replica: Replica, error: CorruptLog) -> None:
        """Repair damage found in a replica's files. In the event loop, perhaps within a read that fails."""
        stream = replica.stream
        if stream is None or replica.closed or not replica.refillable or error.file in replica.repairing:
            return
        self._report(replica, error)
        segment = stream.store.sealed_at(error.file)
        if segment is None:
            self._site.shared.clock.call_soon(lambda: replica.give_up(error))
            return
        self._repair(replica, segment)

    def _repair(self, replica: Replica, segment: Segment) -> None:
        replica.repairing.add(segment.path)
        self._ask(replica, segment, self._others(replica), 0)

    def _others(self, replica: Replica) -> list[str]:
        return [name for name in replica.membership.voters if name != self._site.peers.me]

    def _ask(self, replica: Replica, segment: Segment, members: Sequence[str], released: int) -> None:
        """Fetch the segment from one member after the other; `released` of those before have released it."""
        if not members:
            if 2 * released > len(replica.membership.voters):
                self._refill(replica, segment)
            else:
                self._queued.append((replica, segment))
                if len(self._queued) == 1:
                    self._gather(replica, segment, self._others(replica), [])
            return

        def fetched(path: str, offer: Offer) -> None:
            if path:
                self._replace(
                    replica, segment, path, members[0], lambda: self._ask(replica, segment, members[1:], released)
                )
            else:
                self._ask(replica, segment, members[1:], released + offer.released)

        self._fetch(replica, segment, members[0], fetched)

    def _fetch(
        self,
        replica: Replica,
        segment: Segment,
        member: str,
        fetched: Callable[[str, Offer], None],
        *,
        damaged: bool = False,
    ) -> None:
        """Fetch a member's file of a segment: `fetched(path, offer)`, "" if it cannot be had."""
        if replica.closed:
            replica.repairing.discard(segment.path)
            return

        def done(offer: Offer, directory: str, wrong: str) -> None:
            fetched("" if wrong else os.path.join(directory, offer.parts[0].name), offer)

        wanted = (segment.first_index, segment.last_index)
        Fetch(self._site, replica, member, 0, done, segment=wanted, damaged=damaged).begin()

    def _gather(self, replica: Replica, segment: Segment, members: Sequence[str], copies: list[bytes]) -> None:
        """Fetch the damaged files of one member after the other; then make a whole one of them and of this member's."""
        shared, rows = self._site.shared, dict[int, Record]()
        asked = set[int]()
        if replica.closed:
            replica.repairing.discard(segment.path)
            self._gather_next()
            return

        async def read(history: History, seqs: Sequence[int]) -> None:
            asked.update(seqs)
            with contextlib.suppress(HistoryUnavailableError):  # the lake is away, say; the repair is tried again
                rows.update((row.seq, row) for row in await history.read_many(seqs))
            shared.io.submit(lambda: self._assembled(replica, segment, copies, rows), made)

        def made(path: str | None, error: BaseException | None) -> None:
            stream = replica.stream
            history = None if stream is None else stream.reader.history
            if isinstance(error, DamagedEverywhere) and history is not None and not asked.issuperset(error.seqs):
                shared.clock.spawn(read(history, error.seqs))
                return
            self._gather_next()
            if path is None:
                self._later(replica, segment, error)
            else:
                self._replace(replica, segment, path, "all members", lambda: self._later(replica, segment, None))

        if not members:
            shared.io.submit(lambda: self._assembled(replica, segment, copies, rows), made)
            return

        def fetched(path: str, _: Offer) -> None:
            if path:
                shared.io.submit(lambda: readable(shared.stores.files, path, segment.end), kept)
            else:
                self._gather(replica, segment, members[1:], copies)

        def kept(content: bytes | None, _: BaseException | None) -> None:
            self._gather(replica, segment, members[1:], copies if content is None else [*copies, content])

        self._fetch(replica, segment, members[0], fetched, damaged=True)

    def _gather_next(self) -> None:
        """Go on with the next segment of which no member has a good copy: the copies of one are in memory at a time."""
        self._queued.popleft()
        if self._queued:
            replica, segment = self._queued[0]
            self._gather(replica, segment, self._others(replica), [])

    def _assembled(self, replica: Replica, segment: Segment, copies: list[bytes], rows: Mapping[int, Record]) -> str:
        """Write a segment made of all copies, and of rows of the table; return its path. Block. Raise CorruptLog,
        OSError."""
        stores, name = self._site.shared.stores, os.path.basename(segment.path)
        own = readable(stores.files, segment.path, segment.end)
        path = os.path.join(stores.repairing(replica.directory, segment.first_index, []), LOG_DIRECTORY, name)
        assemble(stores.files, segment, [own, *copies], path, rows)
        return path

    def _refill(self, replica: Replica, segment: Segment) -> None:
        """Let the other members, a majority, send their state instead of the segment."""

        def refill() -> None:
            replica.repairing.discard(segment.path)
            if self._is_wanted(replica, segment):
                self.repaired += 1
                replica.refill(f"{segment.path} is damaged, and the other members have released it to the lake")

        self._site.shared.clock.call_soon(refill)

    def _is_wanted(self, replica: Replica, segment: Segment) -> bool:
        stream = replica.stream
        if stream is None or replica.closed or not replica.refillable:
            return False
        return stream.store.sealed_at(segment.path) is segment

    def _later(self, replica: Replica, segment: Segment, error: BaseException | None) -> None:
        """Repeat a repair without success after a pause."""
        text = f"stream {replica.name}: {segment.path}: no other member had a good copy so far"
        reason = f"{error.what} at offset {error.offset}" if isinstance(error, CorruptLog) else error
        self._site.log.error(f"{text}; {reason}" if reason is not None else text)

        def again() -> None:
            replica.repairing.discard(segment.path)
            if self._is_wanted(replica, segment):
                self._repair(replica, segment)

        doubled = min(self._failed[segment.path], MOST_DOUBLED)
        self._failed[segment.path] += 1
        self._site.shared.clock.call_later(RETRY_NS << doubled, again)

    def _replace(
        self, replica: Replica, segment: Segment, path: str, source: str, otherwise: Callable[[], None]
    ) -> None:
        """Put a file, which comes from `source`, in the place of a damaged one; if that fails, call `otherwise`."""
        stream = replica.stream
        if stream is None or stream.store.sealed_at(segment.path) is not segment:
            replica.repairing.discard(segment.path)
            return
        store = stream.store

        def replaced(header: Header | None, error: BaseException | None) -> None:
            if header is None:
                self._site.log.warn(f"stream {replica.name}: the copy of {source} cannot be used: {error}")
                otherwise()
                return
            replica.repairing.discard(segment.path)
            self._failed.pop(segment.path, None)
            if replica.stream is not stream:
                return
            store.mended(segment, header)
            self.repaired += 1
            self._site.log.info(f"stream {replica.name}: {segment.path} was repaired from {source}")
            for consumer in list(stream.consumers.values()):
                consumer.recover()

        self._site.shared.io.submit(lambda: store.mend(segment, path), replaced)
