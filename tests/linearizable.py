"""A checker of histories: whether what concurrent clients were told could have happened one after the other.

Belongs here: the search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe
("Testing for Linearizability", 2017), and the model of a key whose writes may ask for its last sequence. How clients
use a server, and what becomes of a server meanwhile, is the tests' business.

An operation took effect at one moment between its call and its answer. Each key is an object of its own, and a history
is linearizable when the history of each object is, so that keys are searched one by one. The search goes through the
calls and answers in the order of time. A call whose effect the model allows now is taken out of the history with its
answer, and the search begins again at the front; where it meets an answer whose call is still there, the operation
should have had its effect before: the last one taken is put back, and the search goes on behind it. Configurations
(which operations are done, in which state) that were met before are not searched again.

**Unknown outcomes.** An operation without an answer may have had its effect at any moment after its call, or never. One
whose server is known to be dead since some time has had it before that, or never.
"""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

NEVER = math.inf
"""When an operation ends that was not answered, and whose effect may still come."""


class Outcome(enum.Enum):
    """What is known of an operation."""

    OK = "ok"
    """It was answered; a write is stored."""
    REFUSED = "refused"
    """The write was refused because of the key's last sequence."""
    UNKNOWN = "unknown"
    """Nobody knows whether the write is stored."""


class Operation(NamedTuple):
    """One operation of a client on one key, with its times (of one clock, in any unit).

    Fields:
        key: what it was about.
        began, ended: the call, and the answer or `NEVER`.
        value: what was written, unique among all values of the history; or read, "" for nothing there.
        write: it is a write, else a read.
        expected: the last sequence that the write asked for; None for any.
        outcome: see there; a read without an answer tells nothing and is left out of the history.
        seq: the sequence that was given to the write, or that was read, or that the refusal named; 0 where none was.
        client: who did it, for the report.
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
    """An object as a program of one thread would see it."""

    def initial(self) -> State:
        """Before the first operation."""

    def after(self, state: State, operation: Operation) -> Iterable[State]:
        """The states in which the operation may leave the object; none when it cannot have ended so."""

    def chain(self, history: Sequence[Operation]) -> Sequence[int]:
        """Places in the history of operations that can only have happened in this order."""


class Held(NamedTuple):
    """What a key holds: its last sequence and value; 0 and "" before the first write."""

    seq: int
    value: str


class Key:
    """A key of a bucket: writes give it another value and a larger sequence, and may ask for the sequence before.

    Args:
        strangers: sequences that somebody was told and that belong to no write whose outcome is known. A write that
            happened without anybody's knowing is one of these: if nobody was told its sequence, nothing depends on it,
            and it is as good as if it had not happened.
    """

    def __init__(self, strangers: Iterable[int] = ()) -> None:
        self._strangers = sorted(strangers)

    def initial(self) -> Held:
        """Nothing was written."""
        return Held(0, "")

    def after(self, state: Held, operation: Operation) -> Iterable[Held]:
        """See `Model.after`."""
        if not operation.write:
            return (state,) if state == (operation.seq, operation.value) else ()
        if operation.outcome is Outcome.REFUSED:
            return (state,) if state.seq == operation.seq != operation.expected else ()
        given = self._strangers if operation.outcome is Outcome.UNKNOWN else [operation.seq]
        if operation.expected not in (None, state.seq):
            given = []
        stored = [Held(seq, operation.value) for seq in given if seq > state.seq]
        # What has no end need not be taken at all: that it may not have happened is no way of its own.
        return [*stored, state] if operation.outcome is Outcome.UNKNOWN and operation.ended < NEVER else stored

    def chain(self, history: Sequence[Operation]) -> Sequence[int]:
        """Stored writes in the order of their sequences: one that is left out could not happen any more.

        Sixteen clients who write at the same time would else be tried in every order.
        """
        stored = [n for n, each in enumerate(history) if each.write and each.seq and each.outcome is Outcome.OK]
        return sorted(stored, key=lambda n: history[n].seq)


class Violation(NamedTuple):
    """A history that no order explains.

    Fields:
        key: whose.
        explained: the longest beginning of an order that was found.
        stuck: operations that were open when that went no further; the first has to be explained and is not.
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
    """A call or an answer in a list of those that are still there."""

    __slots__ = ("answer", "before", "behind", "number", "time")

    def __init__(self, number: int, time: float, answer: _Event | None) -> None:
        self.number = number
        self.time = time
        self.answer = answer
        """Of a call: its answer; None where none has to be explained. Of an answer: itself."""
        self.before: _Event | None = None
        self.behind: _Event | None = None

    @property
    def is_answer(self) -> bool:
        """It is an answer."""
        return self.answer is self

    def take(self) -> None:
        """Out of the list."""
        assert self.before is not None
        self.before.behind = self.behind
        if self.behind is not None:
            self.behind.before = self.before

    def put_back(self) -> None:
        """Where it was; what was taken after it is back already."""
        assert self.before is not None
        self.before.behind = self
        if self.behind is not None:
            self.behind.before = self


def _linked(events: list[_Event]) -> _Event:
    """A list of these in the order of time, behind an element that is none of them.

    At equal times calls come first: the operations are taken as concurrent.
    """
    front = last = _Event(-1, -math.inf, None)
    for event in sorted(events, key=lambda event: (event.time, event.is_answer)):
        last.behind, event.before = event, last
        last = event
    return front


def _events(history: Sequence[Operation]) -> tuple[_Event, _Event]:
    """The calls and answers of what has to be explained, and the calls of what need not have happened."""
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
    """The search through the history of one object.

    What need not have happened is tried last: mostly it did not, or at the latest moment that explains an answer.
    """

    def __init__(self, model: Model[State], history: Sequence[Operation]) -> None:
        self._model = model
        self._history = history
        self._front, self._optional = _events(history)
        self._left = sum(operation.ended < NEVER for operation in history)
        chain = model.chain(history)
        self._behind = dict(zip(chain[1:], chain, strict=False))
        """By operation: the one that must have happened before."""
        self._taken: list[tuple[_Event, State, list[State]]] = []
        self._done = 0
        self._met: set[tuple[int, Hashable]] = set()
        self.best: list[int] = []
        self.stuck: list[int] = []

    def run(self) -> bool:
        """Whether an order was found."""
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
        """The first answer that is still there: what was called later can not have happened before it."""
        event = self._front.behind
        while event is not None and not event.is_answer:
            event = event.behind
        assert event is not None, "an answer is left"
        return event

    def _ways(self, number: int, state: State) -> list[State]:
        """Where an operation may lead now."""
        behind = self._behind.get(number)
        if behind is not None and not self._done >> behind & 1:
            return []
        return [*self._model.after(state, self._history[number])]

    def _take(self, call: _Event, state: State, ways: list[State]) -> State | None:
        """Let an operation have its effect, in the first of these ways that leads somewhere new."""
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
        """Put the last operation back; where to go on, in which state. None: there is nothing left to put back."""
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
        """Keep what the report needs, where the search got further than ever."""
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
    """Whether an order of the operations on each key explains all answers; None when one does.

    Two writes of one value are the mistake of whoever wrote the history: AssertionError.
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
    """The history of one key, with what later answers tell of writes whose outcome is unknown; and the strangers.

    A value that was read has been stored, at the sequence that was read. Where every sequence that anybody was told
    belongs to a write that is known, the writes that nobody read are left out; see `Key`.
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
    """Pairs of stored writes, of any keys, of which the second began after the first was acked and got a smaller
    sequence, or the same."""
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
