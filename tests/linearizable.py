"""Linearizability checker for histories of concurrent clients.

Belongs here: the search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe
("Testing for Linearizability", 2017), and the model of a key whose writes may expect a last sequence. Clients and
failures are elsewhere (tests/key_clients.py and the tests).

An operation takes effect at one moment between its call and its answer. Each key is an object of its own, and a history
is linearizable if the history of each object is, so keys are searched one by one. The search goes through calls and
answers in the order of time. A call whose effect the model allows now is removed from the history with its answer, and
the search starts again at the front. When it meets an answer whose call is still there, that operation should have
taken effect earlier: the operation removed last is put back, and the search continues behind it. Configurations (set of
completed operations, state) that were searched before are skipped.

**Unknown outcomes.** An operation without an answer may have taken effect at any moment after its call, or never. If
its server is known to be dead since some time, it took effect before that, or never.
"""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

NEVER = math.inf
"""End of an operation that was not answered and may still take effect."""


class Outcome(enum.Enum):
    """Outcome of an operation."""

    OK = "ok"
    """Answered; a write is stored."""
    REFUSED = "refused"
    """The write was refused because of the key's last sequence."""
    UNKNOWN = "unknown"
    """Unanswered: the write may be stored or not."""


class Operation(NamedTuple):
    """One operation of a client on one key, with its times (of one clock, in any unit).

    Fields:
        key: the key.
        began, ended: times of the call and of the answer, or `NEVER`.
        value: the value written, unique in the history; or read, "" for none.
        write: True for a write, False for a read.
        expected: last sequence that the write expected; None for any.
        outcome: see `Outcome`; a read without an answer is left out of the history.
        seq: sequence given to the write, or read, or named by the refusal; 0 for none.
        client: index of the client, for the report.
    """

    key: str
    began: float
    ended: float
    value: str
    write: bool
    expected: int | None
    outcome: Outcome
    seq: int
    client: int = 0


State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """Sequential specification of an object."""

    def initial(self) -> State:
        """Return the state before the first operation."""

    def after(self, state: State, operation: Operation) -> Iterable[State]:
        """Return the states in which the operation may leave the object; none if it cannot have had this outcome."""

    def chain(self, history: Sequence[Operation]) -> Sequence[int]:
        """Return indices of operations that can only have happened in this order."""


class Held(NamedTuple):
    """State of a key: sequence and value of its last message; 0 and "" before the first write."""

    seq: int
    value: str


class Key:
    """Key of a bucket: a write gives it a new value and a larger sequence, and may expect the previous sequence.

    Args:
        strangers: sequences that clients saw and that belong to no write with a known outcome. A write of unknown
            outcome has one of these, or else its sequence was never seen and nothing depends on it, so it may be left
            out.
    """

    def __init__(self, strangers: Iterable[int] = ()) -> None:
        self._strangers = sorted(strangers)

    def initial(self) -> Held:
        """Return the state of a key that was never written."""
        return Held(0, "")

    def after(self, state: Held, operation: Operation) -> Iterable[Held]:
        """Return the next states; see `Model.after`."""
        if not operation.write:
            return (state,) if state == (operation.seq, operation.value) else ()
        if operation.outcome is Outcome.REFUSED:
            return (state,) if state.seq == operation.seq != operation.expected else ()
        given = self._strangers if operation.outcome is Outcome.UNKNOWN else [operation.seq]
        if operation.expected not in (None, state.seq):
            given = []
        stored = [Held(seq, operation.value) for seq in given if seq > state.seq]
        # An operation without an end may be left out altogether, so not happening needs no branch.
        return [*stored, state] if operation.outcome is Outcome.UNKNOWN and operation.ended < NEVER else stored

    def chain(self, history: Sequence[Operation]) -> Sequence[int]:
        """Return the stored writes in the order of their sequences.

        Without this order the writes of sixteen concurrent clients would be tried in every permutation.
        """
        stored = [n for n, each in enumerate(history) if each.write and each.seq and each.outcome is Outcome.OK]
        return sorted(stored, key=lambda n: history[n].seq)


class Violation(NamedTuple):
    """History that no sequential order explains.

    Fields:
        key: the key.
        explained: the longest prefix of an order that was found.
        stuck: operations that were open at the end of that prefix; the first of them cannot follow.
    """

    key: str
    explained: Sequence[Operation]
    stuck: Sequence[Operation]

    def __str__(self) -> str:
        lines = [f"no order explains what was told of {self.key!r}; the longest that was found ends so:"]
        lines += [f"    {_shown(each)}" for each in self.explained[-12:]]
        lines.append("and then none of these can follow:")
        lines += [f"    {_shown(each)}" for each in self.stuck[:24]]
        return "\n".join(lines)


def _shown(operation: Operation) -> str:
    kind = "write" if operation.write else "read"
    asked = "" if operation.expected is None else f" on top of {operation.expected}"
    when = f"{operation.began:.6f} to {operation.ended:.6f}, client {operation.client}"
    return f"{kind} {operation.value!r}{asked}: {operation.outcome.value} {operation.seq} ({when})"


class _Event:
    """Call or answer, as an element of the linked list of events still to be explained."""

    __slots__ = ("answer", "before", "behind", "number", "time")

    def __init__(self, number: int, time: float, answer: _Event | None) -> None:
        self.number = number
        self.time = time
        self.answer = answer
        """For a call its answer, None if it needs no explanation; for an answer the event itself."""
        self.before: _Event | None = None
        self.behind: _Event | None = None

    @property
    def is_answer(self) -> bool:
        """Return True for an answer, False for a call."""
        return self.answer is self

    def take(self) -> None:
        """Remove the event from the list."""
        assert self.before is not None
        self.before.behind = self.behind
        if self.behind is not None:
            self.behind.before = self.before

    def put_back(self) -> None:
        """Put the event back in its place; events removed after it must have been put back before."""
        assert self.before is not None
        self.before.behind = self
        if self.behind is not None:
            self.behind.before = self


def _linked(events: list[_Event]) -> _Event:
    """Link the events in the order of time behind a sentinel; return the sentinel.

    At equal times calls come first: the operations are taken as concurrent.
    """
    front = last = _Event(-1, -math.inf, None)
    for event in sorted(events, key=lambda event: (event.time, event.is_answer)):
        last.behind, event.before = event, last
        last = event
    return front


def _events(history: Sequence[Operation]) -> tuple[_Event, _Event]:
    """Return two linked lists.

    The first has the events that must be explained, the second the calls of operations that may not have happened.
    """
    needed: list[_Event] = []
    optional: list[_Event] = []
    for number, operation in enumerate(history):
        assert operation.began <= operation.ended, operation
        if operation.ended == NEVER:
            optional.append(_Event(number, operation.began, None))
            continue
        answer = _Event(number, operation.ended, None)
        answer.answer = answer
        needed += [_Event(number, operation.began, answer), answer]
    return _linked(needed), _linked(optional)


class _Search(Generic[State]):
    """Search through the history of one object.

    Operations that may not have happened are tried last: most of them did not, or did at the latest possible moment.
    """

    def __init__(self, model: Model[State], history: Sequence[Operation]) -> None:
        self._model = model
        self._history = history
        self._front, self._optional = _events(history)
        self._left = sum(operation.ended < NEVER for operation in history)
        chain = model.chain(history)
        self._behind = dict(zip(chain[1:], chain, strict=False))
        """By operation: the one that must have happened before it."""
        self._taken: list[tuple[_Event, State, list[State]]] = []
        self._done = 0
        self._met: set[tuple[int, Hashable]] = set()
        self.best: list[int] = []
        self.stuck: list[int] = []

    def run(self) -> bool:
        """Return True if a sequential order was found."""
        state = self._model.initial()
        at = self._front.behind
        while self._left:
            if at is not None and at.is_answer:
                at = self._optional.behind
            if at is None or (at.answer is None and at.time > self._limit().time):
                self._note()
                step = self._undo()
                if step is None:
                    return False
                at, state = step
                continue
            found = self._take(at, state, self._ways(at.number, state))
            if found is None:
                at = at.behind
            else:
                at, state = self._front.behind, found
        return True

    def _limit(self) -> _Event:
        """Return the first remaining answer: an operation called after it cannot have happened before it."""
        event = self._front.behind
        while event is not None and not event.is_answer:
            event = event.behind
        assert event is not None, "an answer is left"
        return event

    def _ways(self, number: int, state: State) -> list[State]:
        """Return the states that an operation may lead to now."""
        behind = self._behind.get(number)
        if behind is not None and not self._done >> behind & 1:
            return []
        return [*self._model.after(state, self._history[number])]

    def _take(self, call: _Event, state: State, ways: list[State]) -> State | None:
        """Apply an operation, in the first of these states that was not searched yet.

        Removes its events from the lists and returns that state, or None if all were searched.
        """
        done = self._done | 1 << call.number
        while ways:
            way = ways.pop(0)
            if (done, way) in self._met:
                continue
            self._met.add((done, way))
            self._taken.append((call, state, ways))
            self._done = done
            call.take()
            if call.answer is not None:
                call.answer.take()
                self._left -= 1
            return way
        return None

    def _undo(self) -> tuple[_Event | None, State] | None:
        """Put the last operation back; return where to continue and in which state, or None if no operation is left."""
        if not self._taken:
            return None
        call, state, ways = self._taken.pop()
        if call.answer is not None:
            call.answer.put_back()
            self._left += 1
        call.put_back()
        self._done &= ~(1 << call.number)
        other = self._take(call, state, ways)
        return (call.behind, state) if other is None else (self._front.behind, other)

    def _note(self) -> None:
        """Keep the present order for the report if it is the longest so far."""
        if len(self._taken) < len(self.best) and self.stuck:
            return
        self.best = [call.number for call, _, _ in self._taken]
        answer = self._limit()
        self.stuck = [answer.number]
        event = self._front.behind
        while event is not None and event is not answer:
            if event.number != answer.number:
                self.stuck.append(event.number)
            event = event.behind


def explain(history: Iterable[Operation]) -> Violation | None:
    """Return a violation if the history of some key is not linearizable, else None.

    Raises:
        AssertionError: two writes have the same value.
    """
    by_key: dict[str, list[Operation]] = collections.defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key, operations in sorted(by_key.items()):
        stored = [each for each in operations if each.write and each.outcome is not Outcome.REFUSED]
        written = collections.Counter(each.value for each in stored)
        twice = [value for value, count in written.items() if count > 1]
        assert not twice, f"written twice: {twice}"
        known, strangers = informed(operations)
        told = sorted(known, key=lambda operation: operation.began)
        search = _Search(Key(strangers), told)
        if not search.run():
            return Violation(key, [told[n] for n in search.best], [told[n] for n in search.stuck])
    return None


def informed(history: Sequence[Operation]) -> tuple[list[Operation], set[int]]:
    """Return the history of one key with outcomes deduced from later answers, and the strangers (see `Key`).

    A value that was read has been stored, at the sequence that was read. If every sequence that a client saw belongs to
    a known write, the writes that were never read are left out.
    """
    seen = {each.value: each.seq for each in history if not each.write and each.seq}
    told = [
        each._replace(outcome=Outcome.OK, seq=seen[each.value])
        if each.outcome is Outcome.UNKNOWN and each.value in seen
        else each
        for each in history
    ]
    known = {each.seq for each in told if each.write and each.outcome is Outcome.OK} | set(seen.values())
    named = {each.expected for each in told if each.outcome is not Outcome.REFUSED and each.expected}
    named |= {each.seq for each in told if each.outcome is Outcome.REFUSED and each.seq}
    strangers = named - known
    return [each for each in told if strangers or each.outcome is not Outcome.UNKNOWN], strangers


def out_of_order(history: Iterable[Operation]) -> list[tuple[Operation, Operation]]:
    """Return pairs of stored writes, of any keys, that contradict real time.

    The second write of a pair began after the ack of the first, but its sequence is not larger.
    """
    stored = [each for each in history if each.write and each.outcome is Outcome.OK]
    by_begin = sorted(stored, key=lambda each: each.began)
    by_end = sorted(stored, key=lambda each: each.ended)
    found: list[tuple[Operation, Operation]] = []
    newest: Operation | None = None
    at = 0
    for operation in by_begin:
        while at < len(by_end) and by_end[at].ended < operation.began:
            if newest is None or by_end[at].seq > newest.seq:
                newest = by_end[at]
            at += 1
        if newest is not None and newest.seq >= operation.seq:
            found.append((newest, operation))
    return found
