"""Next-state relation of GroupCommit.tla and Membership.tla over recorded runs.

Belongs here: the events of a run (tests/sim/traced.py records them), the models' state that they lead to, and the
guards of each step. In the models a message and its answer are one step; in a run they take time. So a copy counts for
a commit once it is on a disk, also of a member that has gone to a newer term meanwhile, and a vote counts from the
moment when it is on disk. Damaged and restored disks are no steps of the models: runs with them cannot be checked.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakestream.log.format.frame import Kind

Entry = tuple[int, int, bytes]
"""Term, kind, body."""


class NotPermitted(AssertionError):
    """Raised at a step that the models do not have; `guard` names what it breaks."""

    def __init__(self, number: int, event: Event, guard: str, text: str) -> None:
        super().__init__(f"step {number}, {type(event).__name__} of {event.node}: {guard}: {text}")
        self.guard = guard


class Event(msgspec.Struct, frozen=True):
    """A step of a node."""

    node: str


class Term(Event, frozen=True):
    """Term and vote are on disk."""

    term: int
    vote: str


class Claim(Event, frozen=True):
    """A candidate asks for votes, with the end of its log."""

    term: int
    last_index: int
    last_term: int


class Lead(Event, frozen=True):
    """A candidate leads its term; `terms` are those of its entries from the first one on, -1: behind a snapshot."""

    term: int
    terms: tuple[int, ...]


class Change(Event, frozen=True):
    """A leader puts a membership into its log."""

    term: int
    index: int
    voters: tuple[str, ...]


class Write(Event, frozen=True):
    """Entries are on disk behind those that were."""

    first: int
    entries: tuple[Entry, ...]


class Cut(Event, frozen=True):
    """The entries after `last` leave the disk: they are gone if `done`, else they may be."""

    last: int
    done: bool


class Reopen(Event, frozen=True):
    """A process starts and finds these entries behind a snapshot through `base`."""

    base: int
    entries: tuple[Entry, ...]


class Installed(Event, frozen=True):
    """A snapshot replaces the log through `index`."""

    index: int


class Commit(Event, frozen=True):
    """A leader takes the entries through `index` for committed."""

    term: int
    index: int


class Ack(Event, frozen=True):
    """A client was told that its entry is stored."""

    index: int


class Relation:
    """State of the models, and the permitted steps from it.

    Attributes:
        steps: how often each kind of event was permitted.
    """

    def __init__(self, founders: tuple[str, ...]) -> None:
        self.steps: dict[str, int] = {}
        self._founders = founders
        self._term: dict[str, int] = {}
        self._votes: dict[int, dict[str, str]] = {}  # term → voter → candidate
        self._claims: dict[tuple[str, int], tuple[int, int]] = {}
        self._log: dict[str, list[Entry]] = {}  # on disk, from the first entry on
        self._cutting: dict[str, int] = {}
        self._leader: dict[int, str] = {}
        self._began: dict[int, int] = {}  # term → last index of its leader's log before it led
        self._voters: dict[int, tuple[str, ...]] = {}  # term → voters that its leader counts
        self._changes: dict[tuple[int, int], tuple[str, ...]] = {}  # (index, term) → voters
        self._newest: dict[int, int] = {}  # term → index of the newest membership in its leader's log
        self._commit: dict[int, int] = {}  # term → what its leader committed
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}  # with the term of the one before
        self._chosen: list[Entry] = []
        self._early: Ack | None = None
        self._event: Event
        self._number = 0

    def run(self, events: Iterable[Event]) -> None:
        """Take the steps.

        Raises:
            NotPermitted: at the first one that the models do not have.
        """
        for self._number, self._event in enumerate(events, 1):
            event = self._event
            if self._early is not None and not isinstance(event, Ack) and event.node != self._early.node:
                self._told()
            name = type(event).__name__
            getattr(self, f"_on_{name.lower()}")(event)
            self.steps[name] = self.steps.get(name, 0) + 1
        self._told()

    def _require(self, holds: bool, guard: str, text: str) -> None:
        if not holds:
            raise NotPermitted(self._number, self._event, guard, text)

    # ------------------------------------------------------------------ elections
    def _on_term(self, event: Term) -> None:
        before = self._term.get(event.node, 0)
        self._require(event.term >= before, "Elect", f"from term {before} back to {event.term}")
        self._term[event.node] = event.term
        if not event.vote:
            voted = self._votes.get(event.term, {}).get(event.node, "")
            self._require(not voted, "Elect", f"the vote for {voted} in term {event.term} is gone")
            return
        other = self._votes.setdefault(event.term, {}).setdefault(event.node, event.vote)
        self._require(other == event.vote, "Elect", f"votes for {other} and {event.vote} in term {event.term}")
        if event.vote != event.node:
            claim = self._claims.get((event.vote, event.term))
            self._require(claim is not None, "Elect", f"{event.vote} has not asked for votes in term {event.term}")
            log = self._log.get(event.node, [])
            mine = (log[-1][0] if log else 0, len(log))
            if event.node not in self._cutting:
                self._require(claim is None or claim >= mine, "VotesForTheNewest", f"{claim} is older than {mine}")

    def _on_claim(self, event: Claim) -> None:
        known = self._claims.setdefault((event.node, event.term), (event.last_term, event.last_index))
        self._require(known == (event.last_term, event.last_index), "Elect", "a candidate's log changes")

    def _on_lead(self, event: Lead) -> None:
        other = self._leader.setdefault(event.term, event.node)
        self._require(other == event.node, "OneLeader", f"{other} leads term {event.term}")
        own = [index for index, term in enumerate(event.terms, 1) if term == event.term]
        self._began[event.term] = own[0] - 1 if own else len(event.terms)
        held = [place for place in self._changes if place[0] <= len(event.terms) and self._holds(event.terms, place)]
        newest = max(held, default=(0, 0))
        self._newest[event.term] = newest[0]
        voters = self._voters[event.term] = self._changes.get(newest, self._founders)
        for_it = {voter for voter, candidate in self._votes.get(event.term, {}).items() if candidate == event.node}
        if voters == (event.node,):
            for_it.add(event.node)  # it asks nobody: its vote has to be on disk before its first entry is (_written)
        self._require(
            2 * len(for_it & set(voters)) > len(voters), "VotersDecide", f"{sorted(for_it)} of {voters} voted for it"
        )

    def _holds(self, terms: tuple[int, ...], place: tuple[int, int]) -> bool:
        index, term = place
        if terms[index - 1] >= 0:
            return terms[index - 1] == term
        return len(self._chosen) >= index and self._chosen[index - 1][0] == term

    # ------------------------------------------------------------------ entries
    def _on_change(self, event: Change) -> None:
        term = event.term
        self._require(self._leader.get(term) == event.node, "Change", f"{event.node} does not lead term {term}")
        committed, now = self._commit.get(term, 0), self._voters[term]
        self._require(len(set(now) ^ set(event.voters)) <= 1, "OneMember", f"{now} becomes {event.voters}")
        self._require(committed > self._began[term], "OwnEntryFirst", f"{committed} of term {term} is committed")
        self._require(committed >= self._newest[term], "OneAtATime", f"the one at {self._newest[term]} is pending")
        self._changes[event.index, term] = self._voters[term] = event.voters
        self._newest[term] = event.index

    def _on_write(self, event: Write) -> None:
        log = self._log.setdefault(event.node, [])
        self._require(event.first == len(log) + 1, "Replicate", f"{event.first} comes after {len(log)}")
        for entry in event.entries:
            self._written(event.node, log, entry)

    def _written(self, node: str, log: list[Entry], entry: Entry) -> None:
        index, term = len(log) + 1, entry[0]
        before = log[-1][0] if log else 0
        leader = self._leader.get(term)
        self._require(leader is not None, "Publish", f"{index} of term {term}, which nobody has led")
        self._require(self._term.get(node, 0) >= term, "Replicate", f"{index} of term {term} in an older one")
        self._require(index > self._began[term], "Publish", f"{index} of term {term} was there before it began")
        if index == self._began[term] + 1:
            self._require(entry[1] == Kind.NOOP, "Elect", f"term {term} begins with another entry: {entry}")
        if entry[1] == Kind.MEMBERSHIP:
            self._require((index, term) in self._changes, "Change", f"no leader has changed members at {index}")
        known = self._entries.setdefault((index, term), (entry, before))
        self._require(known == (entry, before), "Replicate", f"{index} of term {term} differs: {entry} and {known}")
        log.append(entry)

    def _on_cut(self, event: Cut) -> None:
        log = self._log.setdefault(event.node, [])
        for index in range(event.last + 1, min(len(log), len(self._chosen)) + 1):
            self._require(log[index - 1] != self._chosen[index - 1], "Replicate", f"committed entry {index} is cut")
        if event.done:
            self._cutting.pop(event.node, None)
            del log[event.last :]
        else:
            self._cutting[event.node] = event.last

    def _on_reopen(self, event: Reopen) -> None:
        had = self._log.get(event.node, [])
        had = had[: self._cutting.pop(event.node, len(had))]
        found = [*had[: event.base], *event.entries]
        self._require(len(had) >= event.base and found[: len(had)] == had, "PowerLoss", "what was on disk is not there")
        log = self._log[event.node] = list(had)
        for entry in found[len(had) :]:
            self._written(event.node, log, entry)

    def _on_installed(self, event: Installed) -> None:
        self._require(event.index <= len(self._chosen), "Replicate", f"{event.index} was not committed")
        self._log[event.node] = self._chosen[: event.index]
        self._cutting.pop(event.node, None)

    # ------------------------------------------------------------------ commits
    def _on_commit(self, event: Commit) -> None:
        term, index = event.term, event.index
        self._require(self._leader.get(term) == event.node, "Ack", f"{event.node} does not lead term {term}")
        if index <= len(self._chosen):
            return  # a leader before it has counted that
        self._require(index > self._began[term], "CommitsItsOwnTerm", f"{index} is of a term before {term}")
        holding = [node for node, log in self._log.items() if len(log) >= index and self._is(log, index, term)]
        voters = self._voters[term]
        having = set(holding) & set(voters)
        self._require(2 * len(having) > len(voters), "AckedIsOnAMajority", f"{sorted(having)} of {voters} have {index}")
        self._commit[term] = index
        log = self._log[min(having)]
        for place, entry in enumerate(log[:index]):
            if place < len(self._chosen):
                self._require(self._chosen[place] == entry, "OneEntry", f"{place + 1} is committed as another entry")
            else:
                self._chosen.append(entry)

    @staticmethod
    def _is(log: list[Entry], index: int, term: int) -> bool:
        return log[index - 1][0] == term

    def _on_ack(self, event: Ack) -> None:
        if event.index > len(self._chosen):
            self._early = event  # its leader counts in the same turn, which is noted at its end

    def _told(self) -> None:
        if self._early is not None:
            self._require(self._early.index <= len(self._chosen), "Ack", f"{self._early} is not committed")
            self._early = None
