"""Next-state relation of Erase.tla over recorded runs.

Belongs here: the events of the tables of a lake (tests/lake/traced.py records them), the model's state that they lead
to, and the guards of each step. The model has one table and one clone, a run any number; a clone is a table whose
versions name files of another. A message is its sequence. Files of a commit under way are those of `Writing`; of any
other file that no version names it shows later, when one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tests.spec.trace import Event, NotPermitted

Seqs = frozenset[int]


class OfTable(Event, frozen=True):
    """A step at a table, by its path. Files have paths, too."""

    table: str


class Written(OfTable, frozen=True):
    """A data file has these messages."""

    path: str
    rows: Seqs


class Writing(OfTable, frozen=True):
    """A commit under way will name the file."""

    path: str


class Committed(OfTable, frozen=True):
    """A version names these files, with the messages that it marks as deleted in each, and no longer those."""

    version: int
    added: tuple[tuple[str, Seqs], ...] = ()
    removed: tuple[str, ...] = ()


class Cut(OfTable, frozen=True):
    """The log begins with this version."""

    first: int


class Asked(OfTable, frozen=True):
    """The stream has deleted these messages, and their rows are to go."""

    rows: Seqs


class Noted(OfTable, frozen=True):
    """A note says that these messages are to be erased."""

    path: str
    rows: Seqs


class Forgotten(OfTable, frozen=True):
    """The note is deleted: the erasure is complete."""

    path: str


class Expired(OfTable, frozen=True):
    """The retention begins with this version."""

    oldest: int


class Deleted(OfTable, frozen=True):
    """A data file is deleted."""

    path: str


class Registered(OfTable, frozen=True):
    """The registry says that a version is being cloned to `target`, or that it was (`made`)."""

    target: str
    version: int
    made: bool


class Unregistered(OfTable, frozen=True):
    """The entry of the clone `target` is gone."""

    target: str


class Removed(OfTable, frozen=True):
    """The table is removed with all of its files."""


_Version = dict[str, Seqs]
"""File → messages that are marked as deleted in it."""


class _Table(msgspec.Struct):
    """State of one table."""

    versions: dict[int, _Version] = {}
    oldest: int = 0
    asked: set[int] = set()
    notes: dict[str, Seqs] = {}
    done: set[int] = set()

    @property
    def newest(self) -> _Version:
        return self.versions[max(self.versions)] if self.versions else {}

    @property
    def note(self) -> Seqs:
        return frozenset().union(*self.notes.values())


class EraseRelation:
    """State of the model for each table, and the permitted steps from it.

    Attributes:
        steps: how often each kind of event was permitted.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._tables: dict[str, _Table] = {}
        self._content: dict[str, Seqs] = {}
        self._exists: set[str] = set()
        self._gone: dict[str, str] = {}  # files that no version had named when they were deleted → the guard
        self._under_way: set[str] = set()
        self._clones: dict[str, Registered] = {}
        self._event: OfTable
        self._number = 0

    def run(self, events: Iterable[OfTable]) -> None:
        """Take the steps.

        Raises:
            NotPermitted: at the first one that the model does not have.
        """
        for self._number, self._event in enumerate(events, 1):
            event = self._event
            name = type(event).__name__
            getattr(self, f"_on_{name.lower()}")(event, self._tables.setdefault(event.table, _Table()))
            self.steps[name] = self.steps.get(name, 0) + 1

    def _require(self, holds: bool, guard: str, text: str) -> None:
        if not holds:
            raise NotPermitted(self._number, self._event, guard, f"{self._event.table}: {text}")

    def _visible(self, version: _Version) -> Seqs:
        return frozenset().union(*(self._content[path] - dead for path, dead in version.items()))

    def _on_written(self, event: Written, table: _Table) -> None:
        back = event.rows & table.done
        self._require(not back, "ErasedIsGone", f"{event.path} has {sorted(back)}, which are erased")
        self._content[event.path] = event.rows
        self._exists.add(event.path)

    def _on_writing(self, event: Writing, table: _Table) -> None:
        self._under_way.add(event.path)

    def _on_committed(self, event: Committed, table: _Table) -> None:
        before = table.newest
        for path, _ in event.added:
            guard = self._gone.get(path, "NewestIsWhole")
            self._require(path in self._exists, guard, f"version {event.version} names {path}, which is gone")
        self._under_way -= {path for path, _ in event.added}
        kept = {path: dead for path, dead in before.items() if path not in event.removed}
        table.versions[event.version] = now = {**kept, **dict(event.added)}
        lost = self._visible(before) - self._visible(now) - table.asked
        self._require(not lost, "OthersStay", f"version {event.version} lacks {sorted(lost)}, which nobody deleted")

    def _on_cut(self, event: Cut, table: _Table) -> None:
        table.versions = {at: version for at, version in table.versions.items() if at >= event.first}

    def _on_asked(self, event: Asked, table: _Table) -> None:
        table.asked |= event.rows

    def _on_noted(self, event: Noted, table: _Table) -> None:
        there = event.rows & self._visible(table.newest)
        self._require(not there, "NotesFirst", f"the newest version has {sorted(there)}, which are not deleted yet")
        table.notes[event.path] = event.rows

    def _on_forgotten(self, event: Forgotten, table: _Table) -> None:
        rows = table.notes.pop(event.path)
        files = [path for path in self._files_of(event.table) if self._content[path] & rows]
        self._require(not files, "ForgetsLast", f"the note of {sorted(rows)} goes before {files}")
        table.done |= rows

    def _files_of(self, table: str) -> Iterator[str]:
        return (path for path in sorted(self._exists) if path.startswith(f"{table}/"))

    def _on_expired(self, event: Expired, table: _Table) -> None:
        table.oldest = max(table.oldest, event.oldest)

    def _on_registered(self, event: Registered, table: _Table) -> None:
        if not event.made:
            lacking = sorted(table.versions[event.version].keys() - self._exists)
            self._require(not lacking, "Register", f"version {event.version} lacks {lacking}")
        self._clones[event.target] = event

    def _on_unregistered(self, event: Unregistered, table: _Table) -> None:
        self._clones.pop(event.target, None)

    def _on_removed(self, event: Removed, table: _Table) -> None:
        self._exists.difference_update(list(self._files_of(event.table)))
        self._tables[event.table] = _Table()

    def _on_deleted(self, event: Deleted, table: _Table) -> None:
        path = event.path
        self._require(path not in table.newest, "NewestIsWhole", f"the newest version names {path}")
        for target, clone in self._clones.items():
            made = self._tables.get(target, _Table()).versions
            needed = made.values() if clone.made else [self._tables[clone.table].versions.get(clone.version, {})]
            guard = "KnowsClones" if clone.made else "KnowsNewClones"
            self._require(all(path not in version for version in needed), guard, f"the clone {target} needs {path}")
        young = all(path not in version for version in table.versions.values())
        if held := self._content[path] & table.note:
            newest = [each for each in table.newest if self._content[each] & table.note]
            self._require(not newest, "Erase", f"{path} goes with {sorted(held)}, which {newest} of the newest has")
        else:
            within = [at for at, version in table.versions.items() if at >= table.oldest and path in version]
            self._require(not within, "KeepsTheRetention", f"versions {within} name {path}")
            self._require(path not in self._under_way, "SparesTheYoung", f"a commit under way will name {path}")
        if young:
            self._gone[path] = "TakesTheNextVersion" if held else "SparesTheYoung"
        self._exists.discard(path)
