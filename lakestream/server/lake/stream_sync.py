"""Synchronisation of one stream with its table in the lake.

Belongs here: the server's state of one stream's table, and one look at it: does it belong to the log, are its files on
stable storage, which segments have to be staged, which staged segments can be deleted. `look` blocks and runs in a
thread; one at a time.

Invariant 10 (`Invariant:`): a commit counts as holding a segment only once the files that it names were found undamaged
and synced; until then the segment stays, in the log and in the staging area. Before segments are deleted, all files of
the table are looked up once more, by name and size alone (invariant 13): another program may have deleted some since.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.lake.errors import BadSegment, LakeError, OlderLake, OlderStore
from lakestream.lake.staging import quarantine, staging
from lakestream.lake.staging.staging import StagedSegment
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.lake.table import check
from lakestream.lake.table.check import Budget, TableCheck
from lakestream.lake.table.foreign_commits import (
    ForeignCommit,
    ForeignCommits,
    RowChange,
    Run,
    described,
    joined,
    with_messages,
)
from lakestream.lake.table.schema import JSON_SCHEMA_PROPERTY
from lakestream.lake.table.state import Head, TableFollower, TableState
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import InlineIo, Io
from lakestream.log.format.segment import SealedSegment
from lakestream.ops.monitoring.monitored import StreamLag
from lakestream.server.lake.early_seals import EarlySeals
from lakestream.server.lake.history import ThreadHistory
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.consumer.dead_letters import ListedMisfit, Misfits


MOST_FILES = 1_000
"""Maximum number of compacted segments of one stream that stay staged, the newest first: each is checked repeatedly."""


class LookResult(msgspec.Struct, frozen=True):
    """Result of a look at a table.

    `position` is the log index through which the table holds the stream (None: there is no table), `held` the one
    through which its files were verified. `trouble` is an error; `damaged`: files are damaged; `changes`: by other
    programs, None while they are not known. `misfits`: those to be sent, None if none were looked for, and `begun` of
    the feature that sends them.
    """

    position: int | None
    held: int | None = None
    trouble: str = ""
    damaged: bool = False
    changes: list[tuple[ForeignCommit, RowChange]] | None = None
    misfits: list[ListedMisfit] | None = None
    begun: int = 0


class StreamSync:
    """Synchronisation of one stream.

    Args:
        stream: the stream.
        lake: the lake's root.
        grace: retention of staged segments after compaction.
        early: budget of early seals.
        io: threads for its work; by default `InlineIo`.
        require: raises LakeAway unless the lake is there.
        encrypted: the stream's table is to be encrypted.
    """

    def __init__(
        self,
        stream: Stream,
        lake: str,
        grace: Grace,
        early: EarlySeals,
        io: Io | None = None,
        require: Callable[[], None] = lambda: None,
        encrypted: bool = False,
    ) -> None:
        self.stream, self._encrypted = stream, encrypted
        self._require = require
        self.io = io or InlineIo()
        self._config: StreamConfig | None = None
        self._identity: staging.StreamIdentity | None = None
        self._lake = lake
        self.table = paths.table(lake, stream.name, stream.account)
        self.directory = paths.staging(lake, stream.name, stream.uid, stream.account)
        self._seen = 0, -1
        """Epoch and version up to which commits of other programs are known."""
        self._told = ""
        self.undone: set[int] = set()
        """Commits of other programs that have no effect on the stream any more; the next look forgets them."""
        self._grace = grace
        self._early = early
        self.history: ThreadHistory | None = None
        self.waiting: list[Callable[[str], None]] = []
        """Callbacks for when everything sealed by now is staged."""
        self.staged_through = 0
        self.written_identity: staging.StreamIdentity | None = None
        """The identity in the staging area, as far as this server has written it."""
        self.position = 0
        self.held = 0
        """The log index through which the table holds the stream in files that were verified."""
        self.last_seq = 0
        """The last sequence of the table's last commit."""
        self.committed_ns = 0
        self.misfits = 0
        self.asking = False
        self.on_deleted: Callable[[], None] | None = None
        """Callback for a stream that was deleted while a task was running."""
        self.trouble = ""
        """Reason why the table does not follow the stream; empty when it does."""
        self.damage = ""
        """Reason why messages may be unreadable: files of the table are damaged or missing; empty when they are not."""
        self.is_new = False
        """True if this process has created the stream, and has seen all that became of it in the lake."""
        self.checked = False
        self.ahead = False
        """True if the store is an older copy than the table, so that nothing has to be staged for it."""
        self.looked_at = -1
        """Number of the compactor's visits (`LakeKeeper.visits`) when the last look began that was answered."""
        self._listed = 0, -1
        """`begun` of the feature that sends misfits, and the position at which their table had no more."""
        self._unchecked = 0
        self._asked = ""
        """Tag of the request for a repair, by another program, for which all files were checked."""
        self._looked_up = (0, 0)
        """Position and last sealed log index at which the table's files were last looked up."""

    # Made for the first look: most of many new streams never have one.
    @functools.cached_property
    def _storage(self) -> Storage:
        return open_storage(self._lake)

    @functools.cached_property
    def follower(self) -> TableFollower:
        """Return what follows the table, for its history too."""
        return TableFollower(self.table, self.stream.uid)

    @functools.cached_property
    def _files(self) -> TableCheck:
        return TableCheck(self._storage, self.follower)

    @functools.cached_property
    def _foreign(self) -> ForeignCommits:
        return ForeignCommits(self._storage, self.table, self.directory)

    @functools.cached_property
    def _sending(self) -> Misfits:
        from lakestream.stream.consumer.dead_letters import Misfits  # it is loaded with the first stream

        return self.stream.feature(Misfits)

    def seal_early(self, now_ns: int, attended: bool) -> bool:
        """Have the open segment sealed if the budget of early seals allows it; return True if so.

        Args:
            now_ns: a monotonic clock.
            attended: a compactor is at work.
        """
        store = self.stream.store
        sealed = store.sealed_through[0]
        caught_up = attended and self.checked and not self.trouble and self.position >= sealed
        leading = self.stream.leading
        if not self._early.due(now_ns, sealed, leading and store.has_unsealed, caught_up):
            return False
        store.ask_seal()
        return True

    def renew(self) -> None:
        """Read and stage again what may have changed or gone in an outage."""
        self.staged_through = self.position
        self.written_identity = None
        self.is_new = False

    @property
    def is_known(self) -> bool:
        """Return True if the lake may have anything of the stream."""
        store, mirror = self.stream.store, self.stream.config.mirror
        if not self.is_new or self.asking or mirror is not None or self.stream.replicated:
            return True
        return self.written_identity is not None or store.sealed_through[0] > 0

    def is_idle(self, attended: bool, visits: int) -> bool:
        """Return True if polls may skip the stream: nothing has to be staged, and its table has not moved.

        Args:
            attended: a compactor is at work.
            visits: the number of times that one was seen.
        """
        store = self.stream.store
        sealed_through = store.sealed_through[0]
        if sealed_through > store.left_through:
            if self.stream.leading and sealed_through > self.staged_through:
                return False
            # Without a compactor what is staged waits, for days perhaps, and no look finds anything.
            if sealed_through > self.position and (attended or visits != self.looked_at):
                return False
        if not self.checked or self.trouble or self.waiting or self.held < self.position:
            return False
        if self.misfits_after() is not None:
            return False
        return not self.has_unstaged_schema() and (self.history is None or not self.history.has_failed)

    def misfits_after(self) -> tuple[int, int] | None:
        """Return the sequence after which misfits are to be looked for and sent, and how often that has begun; None
        while there is nothing to be looked for."""
        sending = self._sending
        if sending.after is None or not self.position or self._listed == (sending.begun, self.position):
            return None
        return sending.after, sending.begun

    def take_misfits(self, found: LookResult) -> None:
        """Send the misfits that a look has found; without more of them, look again once the table has moved."""
        from lakestream.stream.consumer.dead_letters import MOST_MISFITS

        sending, listed = self._sending, found.misfits or []
        if found.begun != sending.begun:
            return
        if len(listed) < MOST_MISFITS:
            self._listed = found.begun, found.position or 0
        sending.send(listed)

    def is_at_rest(self, attended: bool, visits: int) -> bool:
        """Return True if the stream needs no poll before its next entry: `is_idle` stays true, and there is nothing to
        seal."""
        suspect = self.history is not None and self.history.is_suspect
        return not suspect and not self.stream.store.has_unsealed and self.is_idle(attended, visits)

    def lag(self, now_ns: int) -> StreamLag:
        """Return the lag of the table. Removals that have not reached the table do not count."""
        store = self.stream.store
        behind = store.live.count(self.last_seq + 1, store.last_seq) if store.last_seq > self.last_seq else 0
        age = 0
        if behind:
            try:
                age = max(0, now_ns - (store.time_of(store.live.next_at_or_after(self.last_seq + 1)) or now_ns))
            except LogError:  # the log reports the error itself
                age = 0
        return StreamLag(behind, age, self.committed_ns, self.misfits)

    def has_unstaged_schema(self) -> bool:
        """Return True if readers cannot know yet the typed columns that the stream names."""
        written = self.written_identity
        if not self.stream.leading or (written is None and JSON_SCHEMA_PROPERTY not in self.stream.config.metadata):
            return False
        return written is not self.identity

    def older_store(self) -> OlderStore | None:
        """Return the error of a log that ends before what the lake holds of its stream, or None. Blocks."""
        try:
            staged = staging.segments(self.directory)
            self._check(self.follower.position() or 0, 0, self.stream.store.applied, staged)
        except OlderStore as error:
            return error
        return None

    @property
    def identity(self) -> staging.StreamIdentity:
        """Return the stream's identity with its present configuration."""
        stream = self.stream
        if self._identity is None or self._config is not stream.config:
            self._config = stream.config
            self._identity = staging.StreamIdentity(
                name=stream.name,
                account=stream.account,
                uid=stream.uid,
                created_ns=stream.created_ns,
                config=msgspec.Raw(msgspec.json.encode(stream.config)),
                encrypted=self._encrypted,
            )
        return self._identity

    # ------------------------------------------------------------------ a look
    def look(
        self,
        sealed: Sequence[SealedSegment],
        identity: staging.StreamIdentity | None,
        leads: bool,
        left: int,
        floor: int,
        applied: int,
        budget: Budget,
        misfits: tuple[int, int] | None = None,
    ) -> LookResult:
        """Read the position, check the table's files, stage sealed segments, delete staged ones. Blocks.

        Args:
            sealed: the sealed segments of the log.
            identity: the identity to write to the staging area, when it may be new.
            leads: this replica stages segments and deletes staged ones.
            left: the log index through which segments have left the log.
            floor: the lowest sequence of a message in the log.
            applied: the log index through which it was applied before.
            budget: limits the number of files that are checked.
            misfits: of `misfits_after`.

        Raises:
            OlderLake, OlderStore: table and log do not belong together.
            LakeAway: the lake has gone meanwhile.
        """
        self._require()  # it may have waited for a thread
        if self.history is not None and self.history.take_failure():
            self._files.recheck()
        head = self.follower.newest()
        position = head.position
        needs_list = leads or not self.checked or (position or 0) < left
        entries = self._storage.list(self.directory) if needs_list else []
        staged = staging.staged_segments(entries)
        self._check(position or 0, left, applied, staged)
        asked = next((entry.tag for entry in entries if entry.name == check.REQUEST_FILE), "")
        if asked not in ("", self._asked) and not self._files.damaged:  # by the maintainer, or before a restart
            self._asked = asked
            self._files.recheck()
        whole, trouble = (True, "") if position is None else self._verify(head, budget)
        if position is not None and self._files.state is not None and self._files.version > head.version:
            # Invariant: the verified version is not older than the position. A repair in between lowers it.
            head = self._files.state.head
            position = min(position, head.position or 0)
        progress = head.progress
        self.last_seq = progress.last_seq if progress is not None else _seq_at(sealed, position or 0, floor)
        self.committed_ns = head.committed_ms * 1_000_000
        self.misfits = progress.misfits if progress is not None else 0
        damaged = position is not None and whole and bool(self._files.damaged)
        held = position if whole and not damaged and not self._files.is_vacuumed else None
        if damaged:
            trouble = self._damage(sealed, staged)
        elif position is not None and whole:
            trouble = trouble or self._files.obstacle
        state = self._files.state
        changes = None
        if position is not None and not damaged and state is not None:
            changes = self._changes(state, entries, leads)
        due = self._grace.due(staged, held, time.monotonic_ns()) if held is not None and leads else []
        if held is not None and not self._may_release(sealed, held, due):
            held = None
        if not leads:
            return LookResult(position, held, trouble, damaged, changes)
        self._require()  # files that are missing may be those of a lake that has just gone: no new one must begin
        quarantined = quarantine.find(self.directory, position or 0)
        if quarantined is not None and quarantine.replace(quarantined.path, sealed):
            quarantined = None
        if identity is not None:
            staging.introduce(self._storage, self.directory, identity)
        self._stage(sealed, position, {segment.last_index for segment in staged} if damaged else None)
        if damaged:
            check.ask(self._lake, self.identity, list(self._files.damaged.values()))
        elif held is not None:
            if asked:
                check.settle(self._storage, self.directory)
            self._storage.delete_all(due)
        if not trouble and quarantined is None and staged and staged[-1].last_index > (position or 0):
            trouble = staging.refusal(self._storage, self.directory, entries)
        found = LookResult(position, held, trouble or str(quarantined or ""), damaged, changes)
        if misfits is None:
            return found
        after, begun = misfits
        from lakestream.lake.table import misfits as listed  # few streams send theirs
        from lakestream.stream.consumer.dead_letters import MOST_MISFITS, ListedMisfit

        try:
            rows = listed.rows(self._storage, self.table, self.stream.uid, after, MOST_MISFITS)
        except Exception as error:  # of the query engine; everything else goes on, and the next look tries again
            unread = f"the misfits of {self.table} cannot be read, and are not sent: {error}"
            return msgspec.structs.replace(found, trouble=found.trouble or unread)
        return msgspec.structs.replace(found, misfits=[ListedMisfit(*row) for row in rows], begun=begun)

    def _may_release(self, sealed: Sequence[SealedSegment], held: int, due: Sequence[str]) -> bool:
        """Return True if segments through log index `held` may be deleted; looks up the table's files if there are any
        that were not there at the last time."""
        mark = (held, sealed[-1].last_index if sealed else 0)
        if not due and (not sealed or sealed[0].last_index > held or mark == self._looked_up):
            return True
        if not self._files.are_there():
            return False
        self._looked_up = mark
        return True

    def _changes(
        self, state: TableState, entries: Sequence[FileEntry], leads: bool
    ) -> list[tuple[ForeignCommit, RowChange]]:
        """Return what other programs have changed in the table, as far as it is not undone."""
        epoch, seen = self._seen
        new = [each for each in state.foreign if epoch != state.head.epoch or each.version > seen]
        undone, self.undone = self.undone, set()
        self._foreign.settle(undone, state.head.moved, leads)
        listed = [] if undone else entries  # which were listed before
        found = list(self._foreign.look(new, listed, state.version, leads).values())
        self._seen = state.head.epoch, state.version
        return found

    def told(self, changes: Sequence[tuple[ForeignCommit, RowChange]] | None) -> str:
        """Return the text for changes by other programs that concern messages of the stream; note those that do not.

        To be called by the event loop: messages may have been removed meanwhile, which settles a change.
        """
        if changes is None:
            return self._told
        live = self.stream.store.live
        changed: list[Run] = []
        texts = []
        newest = self._files.version + 1
        while any(commit.version == newest - 1 for commit, _ in changes):
            newest -= 1
        for commit, left in changes:
            held = with_messages([run for run in left.changed if live.count(*run)], live.iter_missing)
            if not held and not left.inserted:
                self.undone.add(commit.version)
                continue
            changed += held
            count = sum(live.count(*run) for run in held)
            texts.append(described(self.table, commit, left, held, count, newest))
        if self.history is not None:
            self.history.exclude(joined(changed))
        self._told = "; ".join(texts)
        return self._told

    def _check(self, position: int, left: int, applied: int, staged: Sequence[StagedSegment]) -> None:
        """Raise an error unless table and log belong together.

        A table behind the log's first entry is acceptable when staged segments cover the gap.
        """
        if position < left and not _covers(staged, position, left):
            raise OlderLake(self.table, position, left)
        # Only the first time: later the compactor may be ahead of our look, and a replica may be behind.
        if not self.checked and not self.stream.replicated:
            if position > applied:
                raise OlderStore(self.table, position, applied)
            if staged and staged[-1].last_index > applied:
                raise OlderStore(self.directory, staged[-1].last_index, applied)
        self.checked = True

    def _verify(self, head: Head, budget: Budget) -> tuple[bool, str]:
        """Check the table's files; return (True if all were checked, the reason why they cannot be)."""
        try:
            whole = self._files.look(head, budget)
        except (OSError, ValueError, LakeError) as error:
            self._unchecked += 1
            if self._unchecked == 1:  # it may be being removed
                return False, ""
            return False, f"the files of {self.table} cannot be checked: {error}; its stream's segments are kept"
        self._unchecked = 0
        return whole, ""

    def _stage(self, sealed: Sequence[SealedSegment], position: int | None, staged: set[int] | None) -> None:
        """Stage new segments; for a damaged table, whose staged segments are given, all segments."""
        through = self.staged_through if staged is None else 0
        for segment in sealed:
            if staged is not None and segment.last_index in staged:
                continue
            if staged is None and position is not None and segment.last_index <= position:
                continue
            if segment.last_index > through:
                staging.stage(segment.path, segment.first_index, segment.last_index, self.identity, self._lake)

    def _damage(self, sealed: Sequence[SealedSegment], staged: Sequence[StagedSegment]) -> str:
        """Return the text that names the damaged files and what happens next."""
        damaged = self._files.damaged.values()
        said = f"{check.describe(self.table, damaged)}; its stream's segments are kept"
        first, last = check.span(damaged)
        begins = _first_seq(sealed, staged)
        if begins and begins <= first:
            return f"{said}; the compactor makes it whole again from them"
        end = min(last, begins - 1) if begins else last
        return (
            f"{said}, but have no message with a sequence from {first} to {end}: those of the damaged files cannot be "
            "read unless the compactor finds an older version that has them; else bring the files back from a copy of "
            "the lake"
        )


def _covers(staged: Sequence[StagedSegment], position: int, through: int) -> bool:
    """Return True if staged segments have every log entry after `position` through `through`."""
    for segment in staged:
        if segment.first_index <= position + 1 <= segment.last_index:
            position = segment.last_index
    return position >= through


def _seq_at(sealed: Sequence[SealedSegment], position: int, floor: int) -> int:
    """Return the stream's last sequence at a position of the table, as far as the log tells."""
    held = [segment.last_seq for segment in sealed if segment.last_index <= position]
    return max(held, default=max(floor - 1, 0) if position else 0)


def _first_seq(sealed: Sequence[SealedSegment], staged: Sequence[StagedSegment]) -> int:
    """Return the sequence from which on segments have the stream's messages, in the log or staged; 0: none has."""
    found = next((segment.first_seq for segment in sealed if segment.first_seq), 0)
    for segment in staged:
        if sealed and segment.first_index >= sealed[0].first_index:
            break
        try:
            footer = staging.footer(segment.path)
        except (BadSegment, FileNotFoundError):
            continue
        if footer.count:
            return min(footer.first_seq, found) if found else footer.first_seq
    return found


class Grace:
    """Retention of one stream's staged segments after compaction: a reader that planned its view before the commit
    still reads them. Not for use by two threads at once.

    Args:
        time_ns: time for which a segment stays after the table was first seen to hold it.
        most_bytes: maximum size of the segments that stay for that reason, the newest first.
    """

    def __init__(self, time_ns: int, most_bytes: int) -> None:
        self._time_ns = time_ns
        self._most_bytes = most_bytes
        self._held_since: dict[str, int] = {}

    def due(self, staged: Sequence[StagedSegment], position: int, now_ns: int) -> list[str]:
        """Return the paths of the segments to delete.

        Args:
            staged: the staged segments, in log order.
            position: the log index through which the table holds the stream.
            now_ns: a monotonic clock.
        """
        held = [segment for segment in staged if segment.last_index <= position]
        since = {segment.path: self._held_since.get(segment.path, now_ns) for segment in held}
        kept_bytes = 0
        gone = []
        for number, segment in enumerate(reversed(held)):
            kept_bytes += segment.size
            too_many = number >= MOST_FILES or kept_bytes > self._most_bytes
            if too_many or now_ns - since[segment.path] >= self._time_ns:
                gone.append(segment.path)
        for path in gone:
            del since[path]
        self._held_since = since
        return gone
