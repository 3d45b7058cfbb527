"""Next-state relation of Release.tla over recorded runs.

Belongs here: the events of a lake (tests/sim/whole/traced.py records them), the model's state that they lead to, and
the guards of each step. The model has one table, and segments by number; a run has a table for each stream, and
segments by their entries. A deletion of rows replaces files by others, which is no step of the model: the new files
stand for the entries of those that they replace. A table that is removed with its stream begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.spec.trace import Event, NotPermitted


class OfTable(Event, frozen=True):
    """A step at the table of a stream."""

    table: str


class Stage(OfTable, frozen=True):
    """A segment with these entries is in the staging area."""

    first: int
    last: int


class Unstage(OfTable, frozen=True):
    """The staged segment is deleted."""

    last: int


class Begin(OfTable, frozen=True):
    """A data file is written."""

    path: str


class Planned(OfTable, frozen=True):
    """A compactor is about to commit entries through `through`, behind the position `at` at which its batch began."""

    at: int
    through: int


class Made(OfTable, frozen=True):
    """A version names these files, and no longer those; it moves the position, or leaves it (None)."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    position: int | None


class Gone(OfTable, frozen=True):
    """A data file is deleted; "": the table is."""

    path: str


class Taken(OfTable, frozen=True):
    """Another program, or a disk, takes a data file."""

    path: str


class Verified(OfTable, frozen=True):
    """A server has found every file whole, and the position to be `held`."""

    held: int


class Released(OfTable, frozen=True):
    """The log of a server has dropped its segments through entry `last`."""

    last: int


class _Table(msgspec.Struct):
    """State of one table."""

    staged: dict[int, int] = {}  # last entry → first
    position: int = 0
    named: dict[str, tuple[int, int]] = {}  # file of the newest version → the entries of its commit
    exists: set[str] = set()
    planned: dict[str, Planned] = {}
    verified: dict[str, int] = {}


class ReleaseRelation:
    """State of the model for each table, and the permitted steps from it.

    Attributes:
        steps: how often each kind of event was permitted.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._tables: dict[str, _Table] = {}
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

    def _lacking(self, table: _Table) -> list[str]:
        return sorted(table.named.keys() - table.exists)

    def _on_stage(self, event: Stage, table: _Table) -> None:
        first = table.staged.setdefault(event.last, event.first)
        self._require(first == event.first, "Seal", f"{event} differs from the one that begins with {first}")

    def _on_begin(self, event: Begin, table: _Table) -> None:
        table.exists.add(event.path)

    def _on_planned(self, event: Planned, table: _Table) -> None:
        table.planned[event.node] = event

    def _on_made(self, event: Made, table: _Table) -> None:
        lacking = sorted(set(event.added) - table.exists)
        self._require(not lacking, "CommitSyncs", f"{lacking} are named, and not there")
        replaced = [table.named.pop(path) for path in event.removed if path in table.named]
        entries = (min((first for first, _ in replaced), default=0), max((last for _, last in replaced), default=0))
        if event.position is not None:
            entries = self._moved(event, table, event.position)
        for path in event.added:
            table.named[path] = entries

    def _moved(self, event: Made, table: _Table, position: int) -> tuple[int, int]:
        plan = table.planned.get(event.node)
        if position < table.position:
            self._require(bool(self._lacking(table)), "Repair", f"the position goes back to {position}")
            table.position = position
            table.verified = {node: min(held, position) for node, held in table.verified.items()}
            return 0, position
        self._require(plan is not None and plan.through == position, "Begin", f"{plan} leads to {position}")
        assert plan is not None
        self._require(plan.at == table.position, "ChecksPosition", f"it follows {plan.at}, not {table.position}")
        at = position
        while at > plan.at:
            self._require(at in table.staged, "Begin", f"no segment that ends with {at} is staged")
            at = table.staged[at] - 1
        table.position = position
        return plan.at + 1, position

    def _on_gone(self, event: Gone, table: _Table) -> None:
        if not event.path:
            self._tables[event.table] = _Table(staged=table.staged, exists=table.exists)
            return
        named = table.named.get(event.path)
        self._require(named is None, "ReadsOutcome", f"the newest version names {event.path}, entries {named}")
        table.exists.discard(event.path)

    def _on_taken(self, event: Taken, table: _Table) -> None:
        table.exists.discard(event.path)

    def _on_verified(self, event: Verified, table: _Table) -> None:
        self._require(event.held <= table.position, "Verify", f"{event.held} is verified of {table.position}")
        lacking = self._lacking(table)
        self._require(not lacking, "Verifies", f"{lacking} are not there")
        table.verified[event.node] = event.held

    def _may_delete(self, table: _Table, last: int, guard: str) -> None:
        held = table.verified.get(self._event.node, 0)
        self._require(last <= held, guard, f"{last} goes, {held} is verified")
        lacking = self._lacking(table)
        self._require(not lacking, "LooksBeforeDeleting", f"{last} goes, and {lacking} are not there")

    def _on_unstage(self, event: Unstage, table: _Table) -> None:
        if event.last in table.staged:
            self._may_delete(table, event.last, "StaysForRepair")
            del table.staged[event.last]

    def _on_released(self, event: Released, table: _Table) -> None:
        self._may_delete(table, event.last, "WaitsForTheTable")
