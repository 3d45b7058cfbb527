"""Properties that must hold in every run, whatever the faults.

Belongs here: the properties of Raft (Figure 3) and of the log under it, checked at every step against what the machines
really have on their disks: a violation is found when it happens, not when a later fault exposes it.

- Election Safety: a term has one leader.
- Log Matching: entries with the same index and term are the same, and so is everything before them.
- Leader Completeness: a leader's log holds every entry that was committed in an earlier term.
- State Machine Safety: every member gets the same entry for an index, each once, in order.
- Leader Append-Only: a leader never truncates its own log.
- A member answers only after the answer's content is durable: term and vote, and the acknowledged entries.
- A leader commits an entry only if a majority of voters has it durable, and it is of the leader's own term.
- An entry acknowledged to a client is committed, once, in the order of the proposals.
- A read returns an index not lower than anything that was acknowledged when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from lakestream.log.format.frame import Frame
from lakestream.raft.core.messages import Append, AppendReply, HardState, Membership, Message, Vote, VoteReply

Mark = tuple[int, int, bytes]
"""Entry in the checkers' form: term, kind, body."""


class Violation(AssertionError):
    """Raised when a property does not hold."""


def mark_of(frame: Frame) -> Mark:
    """Return an entry in the checkers' form."""
    return (frame.term, int(frame.kind), frame.body)


class Shadow(msgspec.Struct):
    """Durable state of a machine, as the checkers saw it being written: entries after `base`, and the hard state.

    `exposed` is set when bits of its files were flipped: then it may come back with less than it had. `lost` are
    entries (index, term) that were damaged: an acknowledgement of them may still be in flight, and counts, because a
    member that lost entries does not vote before it has recovered them.
    """

    base: int = 0
    base_term: int = 0
    marks: list[Mark] = []
    hard: HardState = HardState()
    exposed: bool = False
    cutting: int = -1
    lost: set[tuple[int, int]] = set()

    @property
    def last(self) -> int:
        return self.base + len(self.marks)

    def term_of(self, index: int) -> int:
        """Return the term of an entry; 0 if there is none, -1 if a snapshot has replaced it."""
        if index <= self.base:
            return self.base_term if index == self.base else -1
        return self.marks[index - self.base - 1][0] if index <= self.last else 0


class Checker:
    """Checker of one group."""

    def __init__(self, names: Iterable[str]) -> None:
        self.shadows = {name: Shadow() for name in names}
        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], tuple[Mark, int]] = {}  # (index, term) → (the entry, the previous term)
        self.committed: list[Mark] = []
        self.acked: set[bytes] = set()
        self.acked_through = 0
        self.commits_checked = 0
        self.broken = ""
        self.segments: dict[int, int] = {}
        self.places: dict[bytes, int] = {}  # command → index at which it was committed
        self._newest: dict[int, int] = {}  # term → highest number of a command committed in it

    # ------------------------------------------------------------------ the log
    def appended(self, node: str, frames: Sequence[Frame]) -> None:
        """Record that entries are durable on a machine."""
        shadow = self.shadows[node]
        for frame in frames:
            self._require(frame.index == shadow.last + 1, f"{node} appends {frame.index} after {shadow.last}")
            before = shadow.term_of(frame.index - 1)
            mark = mark_of(frame)
            known = self.entries.setdefault((frame.index, frame.term), (mark, before))
            self._require(known[0] == mark, f"log matching: {node} has another entry {frame.index} of {frame.term}")
            self._require(
                -1 in (known[1], before) or known[1] == before,
                f"log matching: before entry {frame.index} of term {frame.term} {node} has term {before}, "
                f"elsewhere it is {known[1]}",
            )
            self._require(frame.term >= before, f"{node}: entry {frame.index} has term {frame.term} after {before}")
            shadow.marks.append(mark)

    def truncating(self, node: str, last: int) -> None:
        """Record a truncation in progress: after a power cut the entries after `last` may be there or not."""
        shadow = self.shadows[node]
        self._require(last >= shadow.base, f"{node} cuts its log to {last}, before its snapshot at {shadow.base}")
        for index in range(last + 1, min(shadow.last, len(self.committed)) + 1):
            self._require(
                shadow.marks[index - shadow.base - 1] != self.committed[index - 1],
                f"{node} cut entry {index} from its log, which is committed",
            )
        shadow.cutting = last

    def truncated(self, node: str, last: int) -> None:
        """Record that the entries after `last` are gone from a machine's disk."""
        self.truncating(node, last)
        shadow = self.shadows[node]
        shadow.cutting = -1
        del shadow.marks[last - shadow.base :]

    def damaged(self, node: str, last: int) -> None:
        """Record that a machine's disk lost the entries after `last`."""
        shadow = self.shadows[node]
        gone = shadow.marks[last - shadow.base :]
        shadow.lost.update((index, mark[0]) for index, mark in enumerate(gone, last + 1))
        del shadow.marks[last - shadow.base :]

    def restored(self, node: str, copy: Shadow) -> None:
        """Record that a machine's disk was replaced by an old copy.

        Acknowledgements since that copy may still be in flight, and count.
        """
        before = self.shadows[node]
        last = copy.base + len(copy.marks)
        gone = {(index, before.term_of(index)) for index in range(max(last, before.base) + 1, before.last + 1)}
        shadow = msgspec.structs.replace(copy, marks=list(copy.marks), lost=before.lost | copy.lost | gone)
        self.shadows[node] = shadow

    def parted(self, node: str, conflict: object) -> None:
        """Fail: a member stopped because its committed entries differ from its leader's."""
        self._require(False, f"{node} stopped: {conflict}")

    def reopened(self, node: str, frames: Sequence[Frame], salvaged: bool) -> None:
        """Check the entries of a restarted machine. `salvaged`: it reports itself that its log was damaged."""
        shadow = self.shadows[node]
        had = shadow.marks if shadow.cutting < 0 else shadow.marks[: shadow.cutting - shadow.base]
        shadow.cutting = -1
        marks = [mark_of(frame) for frame in frames if frame.index > shadow.base]
        if frames:
            self._require(frames[0].index <= shadow.base + 1, f"{node} lost the entries before {frames[0].index}")
        if not salvaged:
            lost = marks[: len(had)] != had
            self._require(not lost, f"{node} came back without durable entries: {len(marks)} of {len(had)}, silently")
        else:
            self._require(shadow.exposed, f"{node} says that its log is damaged, which it is not")
        shadow.marks = []
        self.appended(node, [frame for frame in frames if frame.index > shadow.base])
        shadow.exposed = False

    def compacted(self, node: str, index: int) -> None:
        """Record that entries through `index` left a machine's log because its snapshot covers them."""
        shadow = self.shadows[node]
        if index <= shadow.base:
            return
        self._require(index <= len(self.committed), f"{node} compacts {index}, which is not committed")
        shadow.base_term = shadow.term_of(index)
        del shadow.marks[: index - shadow.base]
        shadow.base = index

    def installed(self, node: str, index: int, term: int) -> None:
        """Record that a machine's log was replaced by a snapshot."""
        shadow = self.shadows[node]
        self._require(
            index <= len(self.committed) and self.committed[index - 1][0] == term,
            f"{node} installed {index} of term {term}, which was never committed",
        )
        shadow.base, shadow.base_term, shadow.marks, shadow.exposed = index, term, [], False
        shadow.cutting = -1

    def has(self, node: str, index: int, term: int) -> bool:
        """Return True if a machine has the entry, or a snapshot that includes it, on disk."""
        shadow = self.shadows[node]
        if index < shadow.base:
            return self.committed[index - 1][0] == term
        return shadow.term_of(index) == term

    # ------------------------------------------------------------------ hard state and messages
    def hardened(self, node: str, hard: HardState) -> None:
        """Record a durable hard state."""
        before = self.shadows[node].hard
        self._require(hard.term >= before.term, f"{node} went back from term {before.term} to {hard.term}")
        self._require(
            hard.term > before.term or before.vote in ("", hard.vote),
            f"{node} voted for {before.vote} in term {hard.term}, and now for {hard.vote}",
        )
        self.shadows[node].hard = hard

    def sent(self, node: str, to: str, message: Message) -> None:
        """Check that everything a message promises is durable on the sender."""
        shadow = self.shadows[node]
        term = shadow.hard.term
        if isinstance(message, VoteReply):
            if message.granted and not message.pre:
                self._require(
                    term > message.term or (term == message.term and shadow.hard.vote == to),
                    f"{node} grants {to} its vote in term {message.term}, its disk says {shadow.hard}",
                )
        elif isinstance(message, AppendReply):
            self._require(term >= message.term, f"{node} answers in term {message.term}, its disk says {shadow.hard}")
            if not message.rejected:
                self._require(
                    shadow.last >= message.match,
                    f"{node} says that it has entries through {message.match}, its disk ends at {shadow.last}",
                )
        elif isinstance(message, Append):
            self._require(term >= message.term, f"{node} leads in term {message.term}, its disk says {shadow.hard}")
            self._require(
                self.leaders.get(message.term, node) == node,
                f"election safety: {node} leads term {message.term} beside {self.leaders.get(message.term)}",
            )
        elif isinstance(message, Vote) and not message.pre:
            self._require(
                term >= message.term and (term > message.term or shadow.hard.vote == node),
                f"{node} asks for votes in term {message.term}, its disk says {shadow.hard}",
            )

    # ------------------------------------------------------------------ leaders
    def leads(self, node: str, term: int, base: int, term_of: Callable[[int], int | None]) -> None:
        """Check a new leader. `term_of` returns the terms of its log after `base`, durable or not."""
        other = self.leaders.setdefault(term, node)
        self._require(other == node, f"election safety: {node} and {other} both lead term {term}")
        for index in range(len(self.committed), base, -1):
            committed = self.committed[index - 1]
            if committed[0] < term:
                self._require(
                    term_of(index) == committed[0],
                    f"leader completeness: {node} leads term {term} without entry {index} of term {committed[0]}",
                )
                break  # log matching implies the same for everything before

    def serves(self, node: str, term: int, applied: int) -> None:
        """Check that a new leader has applied everything committed in earlier terms before it serves."""
        known = [index for index, mark in enumerate(self.committed, 1) if mark[0] < term]
        last = known[-1] if known else 0
        self._require(applied >= last, f"{node} serves term {term} with {applied} applied, {last} is committed")

    def sealed(self, node: str, first: int, last: int) -> None:
        """Check that the ranges of a sealed segment are the same on every machine."""
        other = self.segments.setdefault(first, last)
        self._require(other == last, f"{node} seals {first}..{last}, elsewhere that segment ends with {other}")

    # ------------------------------------------------------------------ commits
    def leader_commits(self, node: str, term: int, index: int, voters: Membership) -> None:
        """Check a leader's new commit index, which the leader learns first unless others were told before."""
        if index <= self.commits_checked:
            return
        self.commits_checked = index
        self._require(
            (index, term) in self.entries,
            f"§5.4.2: {node} commits entry {index} in term {term}, and nobody has an entry of that term there",
        )
        having = [
            name for name in voters.voters if self.has(name, index, term) or (index, term) in self.shadows[name].lost
        ]
        self._require(
            2 * len(having) > len(voters.voters),
            f"{node} commits {index} of term {term}, which only {having} of {voters.voters} have on disk",
        )

    def applied(self, node: str, index: int, mark: Mark, commands: Sequence[bytes]) -> None:
        """Check a committed entry that a member applies, and the client commands in it."""
        if index <= len(self.committed):
            known = self.committed[index - 1]
            self._require(known == mark, f"state machine safety: {node} applies {mark} as {index}, it is {known}")
            return
        self._require(index == len(self.committed) + 1, f"{node} applies {index} after {len(self.committed)}")
        self.committed.append(mark)
        for command in commands:
            self._require(command not in self.places, f"{command!r} was committed twice")
            self.places[command] = index
            number, newest = number_of(command), self._newest.get(mark[0], 0)
            self._require(number > newest, f"{number} is committed after {newest}, which was proposed after it")
            self._newest[mark[0]] = number

    def acked_to_client(self, node: str, index: int, commands: Sequence[bytes]) -> None:
        """Record that clients were told that their commands are stored."""
        for command in commands:
            self._require(
                self.places.get(command) == index,
                f"{node} acknowledged {command!r} as {index}, it is {self.places.get(command)}",
            )
            self._require(command not in self.acked, f"{command!r} was acknowledged twice")
            self.acked.add(command)
        self.acked_through = max(self.acked_through, index)

    def read(self, node: str, index: int, acked_before: int) -> None:
        """Check the answer to a read that began when `acked_before` was the highest acknowledged index."""
        self._require(
            index >= acked_before, f"stale read: {node} answers with {index}, {acked_before} was acknowledged before"
        )

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken = self.broken or what
            raise Violation(what)

    def fail(self, what: str) -> None:
        """Fail with another error."""
        self._require(False, what)

    def say(self) -> None:
        """Raise the first violation again, because the code under test may have handled it as a disk error."""
        if self.broken:
            raise Violation(self.broken)


def number_of(command: bytes) -> int:
    """Return the number of a command; numbers ascend in the order of the proposals."""
    return int(command.split(b"-")[1])
