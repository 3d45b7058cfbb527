"""The ledger: a consumer's state, and how that is written to the log.

Belongs here: delivered sequences, pending messages, ack floor and redelivery counts as plain data with the rules of
nats-server 2.15.1 for moving them (docs/internals/consumers.md), and the encodings of that data: the delta of a
PROGRESS entry and the snapshot of a checkpoint. No timers, no clients, no stream.

A delta carries values, not actions: "sequence 7 is pending, 8 is done, the floor is 5". Applying it twice, or over a
state that is already further on, changes nothing, so a checkpoint may be taken at any moment between two deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import msgspec

LAST_SEQ = (1 << 64) - 1
"""The highest sequence, which is also the highest that can be logged."""


class Delta(msgspec.Struct, array_like=True, gc=False):
    """Changes since the last delta. Times in ns since the epoch."""

    epoch: int
    """Number of resets: a delta of an earlier epoch is ignored."""
    delivered_consumer: int
    delivered_stream: int
    floor_consumer: int
    floor_stream: int
    next_seq: int
    last_delivered_ns: int
    last_ack_ns: int
    pending: list[tuple[int, int, int]]
    """(stream sequence, consumer sequence of the first delivery, deadline)."""
    redelivered: list[tuple[int, int]]
    """(stream sequence, deliveries beyond the first)."""
    gone: list[int]
    """Sequences above the floor that are neither pending nor have a redelivery count any more."""
    whole: bool = False
    """True if this is the whole state, which replaces what was known before."""
    runs: list[tuple[int, int, int, int]] = []
    """Pending as well: (stream sequence, number of consecutive ones, consumer sequence of the first, deadline)."""


class ConsumerSnapshot(msgspec.Struct, array_like=True):
    """A consumer in a checkpoint."""

    config: bytes
    created_ns: int
    picked: list[int]
    state: Delta


MAX_FREE_PLACES = 1024
"""Places of removed entries in `Ledger.pending` above which the dict is made anew."""


class Ledger:
    """Deliveries and acks of one consumer. `seq` is a stream sequence."""

    __slots__ = (
        "_acked",
        "_dirty",
        "_front_acked",
        "_inserted",
        "_moved",
        "_uncounted",
        "deadline",
        "delivered_consumer",
        "delivered_stream",
        "epoch",
        "floor_consumer",
        "floor_stream",
        "last_ack_ns",
        "last_delivered_ns",
        "logged",
        "next_seq",
        "pending",
        "redelivered",
    )

    def __init__(self, delivered_stream: int, next_seq: int) -> None:
        self.epoch = 0
        self.logged = True
        """False if deltas are never taken: then nothing is kept for them."""
        self.delivered_consumer = 0
        self.delivered_stream = delivered_stream
        self.floor_consumer = 0
        self.floor_stream = delivered_stream
        self.next_seq = next_seq
        """First sequence to scan for the next new message; above `delivered_stream` if none in between matched."""
        self.last_delivered_ns = 0
        self.last_ack_ns = 0
        self.pending: dict[int, int] = {}
        """Sequence → consumer sequence of its first delivery. Invariant: ascending in both, in insertion order."""
        self.deadline: dict[int, int] = {}
        """Sequence → when its ack is due, 0 = never: it is held back, or acked by flow control. Invariant: the same
        keys as `pending`."""
        self.redelivered: dict[int, int] = {}
        """Sequence → deliveries beyond the first; kept after max_deliver, until it is acked or removed."""
        self._dirty: set[int] = set()
        self._uncounted: set[int] = set()
        self._moved = False
        self._acked = self._front_acked = False
        self._inserted = 0  # entries put into `pending` since it was made anew, removed ones included

    def begin(self, delivered_stream: int) -> None:
        """Begin behind `delivered_stream`. Only before the first delivery."""
        assert not self.delivered_consumer, "a consumer begins once"
        self.delivered_stream = self.floor_stream = delivered_stream

    # ------------------------------------------------------------------ delivering
    def deliver(self, seqs: Sequence[int], now: int, deadline: int) -> None:
        """Record that new messages were delivered whose acks are due at `deadline` (ns; 0: never)."""
        if not self.pending:
            self._settle_floor()
        first = self.delivered_consumer + 1
        self.delivered_consumer += len(seqs)
        self.delivered_stream = seqs[-1]
        self.pending.update(zip(seqs, range(first, first + len(seqs)), strict=True))
        self._inserted += len(seqs)
        self.deadline.update(dict.fromkeys(seqs, deadline))
        if self.logged:
            self._dirty.update(seqs)
        self.last_delivered_ns = now
        self._moved = True

    def deliver_unacked(self, count: int, last: int, now: int) -> None:
        """Record that `count` new messages through `last` were delivered, for which no ack is expected."""
        self.delivered_consumer += count
        self.delivered_stream = last
        self.floor_consumer, self.floor_stream = self.delivered_consumer, last
        self.last_delivered_ns = now
        self._moved = True

    def redeliver(self, seq: int, now: int, deadline: int) -> None:
        """Record that a pending message was delivered again, or one that was held back for the first time."""
        self.delivered_consumer += 1
        if self.deadline.get(seq) != 0:
            self.redelivered[seq] = self.redelivered.get(seq, 0) + 1
            self._uncounted.discard(seq)
        self.deadline[seq] = deadline
        if self.logged:
            self._dirty.add(seq)
        self.last_delivered_ns = now
        self._moved = True

    def postpone(self, seq: int, deadline: int) -> None:
        """Set another deadline (ns) for a pending message."""
        self.deadline[seq] = deadline
        if self.logged:
            self._dirty.add(seq)
        self._moved = True

    def hold(self, seqs: Iterable[int]) -> None:
        """Record that pending messages are held back (order_by_key.py): no client has them."""
        self.deadline.update(held := dict.fromkeys(seqs, 0))
        if self.logged:
            self._dirty.update(held)
        self._moved = True

    def held(self) -> list[int]:
        """Return the messages that are held back, ascending. Only under ack policy explicit."""
        return [seq for seq in self.pending if not self.deadline[seq]]

    def deliveries(self, seq: int) -> int:
        """Return how often a delivered message was delivered; 0 if it is held back."""
        return self.redelivered.get(seq, 0) + (self.deadline.get(seq) != 0)

    def exhausted(self, seq: int, now: int) -> None:
        """Record that a message reached max_deliver: it is no longer pending.

        If it was the oldest one, the floor stays below it until nothing is pending.
        """
        self._settle_floor()
        if self.pending.pop(seq, 0):
            del self.deadline[seq]
        self.last_delivered_ns = now
        if self.logged:
            self._dirty.add(seq)
        self._moved = True

    # ------------------------------------------------------------------ acks
    def ack(self, seq: int, now: int) -> bool:
        """Record an ack. Return False if the message was not pending: then the floor stays, as in nats-server."""
        self.last_ack_ns = now
        self._moved = True
        if self.redelivered and self.redelivered.pop(seq, 0) and self.logged:
            self._uncounted.add(seq)
        consumer = self.pending.pop(seq, 0)
        if not consumer:
            return False
        self._acked = True
        if consumer == self.floor_consumer + 1:
            self._front_acked = True
        del self.deadline[seq]
        if self.logged:
            self._dirty.add(seq)
        return True

    def ack_run(self, seqs: Sequence[int], now: int) -> list[int]:
        """Record acks as `ack` does each of them. Return those of messages that were pending."""
        if self.redelivered:
            return [seq for seq in seqs if self.ack(seq, now)]
        self.last_ack_ns = now
        self._moved = True
        take, drop, front = self.pending.pop, self.deadline.pop, self.floor_consumer + 1
        acked: list[int] = []
        for seq in seqs:
            consumer = take(seq, 0)
            if consumer:
                drop(seq)
                acked.append(seq)
                if consumer == front:
                    self._front_acked = True
        self._acked = self._acked or bool(acked)
        if self.logged:
            self._dirty.update(acked)
        return acked

    def ack_through(self, seq: int, now: int, consumer_seq: int = 0) -> list[int]:
        """Record an ack of everything ≤ `seq` (ack policy all). Return what was pending.

        As in nats-server 2.15.3 the floor's consumer sequence is that of the first delivery of `seq` if it was pending,
        else that of the delivery that was acked; if nothing is pending any more, the floor is the last delivery.
        """
        if seq <= self.floor_stream:
            return []
        self.last_ack_ns = now
        self._moved = True
        done, consumer = self._take_through(seq)
        if self.redelivered:
            uncounted = [other for other in done if self.redelivered.pop(other, 0)]
            if self.logged:
                self._uncounted.update(uncounted)
        self._raise_floor(seq, consumer_seq, consumer if done and done[-1] == seq else 0)
        return done

    def _raise_floor(self, seq: int, consumer_seq: int, first: int) -> None:
        """Move the floor to `seq`, which was acked as delivery `consumer_seq` and pending since delivery `first`."""
        self.floor_stream = seq
        self.floor_consumer = max(first or min(consumer_seq, self.delivered_consumer), self.floor_consumer)
        if not self.pending:
            self.floor_consumer, self.floor_stream = self.delivered_consumer, self.delivered_stream

    def confirm(self, consumer_seq: int, seq: int, now: int) -> list[int]:
        """Record that a client confirmed everything ≤ `seq` (ack policy flow_control). Return what was acked by that.

        The floor moves as by `ack_through`. A sequence that was not delivered yet acks nothing, but what was pending no
        longer counts against max_ack_pending.
        """
        self.last_ack_ns = now
        self._moved = True
        had, consumer = self._take_through(seq)
        if self.logged:
            self._dirty.update(had)
        if seq > self.delivered_stream:
            return []
        if seq > self.floor_stream:
            self._raise_floor(seq, consumer_seq, consumer if had and had[-1] == seq else 0)
        return had

    def _take_through(self, seq: int) -> tuple[list[int], int]:
        """Remove everything ≤ `seq` from `pending`. Return what was removed and the highest consumer sequence of it."""
        pending = self.pending
        if not pending:
            return [], 0
        if next(reversed(pending)) <= seq:  # all of it, perhaps a million
            done, consumer = list(pending), next(reversed(pending.values()))
            self.pending, self.deadline, self._inserted = {}, {}, 0
            return done, consumer
        self._tidy()
        pending = self.pending
        done = list(takewhile(lambda other: other <= seq, pending))
        consumer = pending[done[-1]] if done else 0
        for other in done:
            del pending[other], self.deadline[other]
        return done, consumer

    def _tidy(self) -> None:
        """Make `pending` anew: finding its first entry steps over the places of removed ones."""
        if self._inserted > 2 * len(self.pending) + MAX_FREE_PLACES:
            self.pending = dict(self.pending)
            self._inserted = len(self.pending)

    def removed(self, seq: int, now: int, log: bool = True) -> bool:
        """Treat a delivered message that the stream removed as acked. Return True if it was pending.

        `log`: note it for the next delta. A follower takes no deltas and would note such messages for ever; the entry
        that removed this one tells it the same.
        """
        if self.redelivered.pop(seq, 0):
            self._uncounted.add(seq)
            self._moved = True
        pending = self.ack(seq, now) if seq in self.pending else False
        if not (log and self.logged):
            self._dirty.discard(seq)
            self._uncounted.discard(seq)
        return pending

    def floor(self) -> tuple[int, int]:
        """Return the ack floor as (consumer sequence, stream sequence)."""
        self._settle_floor()
        return self.floor_consumer, self.floor_stream

    def _settle_floor(self) -> None:
        """Compute the floor after acks: when it is read, not for each ack."""
        if not self._acked:
            return
        front, self._acked, self._front_acked = self._front_acked, False, False
        if not self.pending:
            self.floor_consumer, self.floor_stream = self.delivered_consumer, self.delivered_stream
        elif front:
            self._tidy()
            seq, consumer = next(iter(self.pending.items()))
            self.floor_consumer = max(self.floor_consumer, consumer - 1)
            self.floor_stream = max(self.floor_stream, seq - 1)

    # ------------------------------------------------------------------ jumps
    def purged(self, first_seq: int) -> bool:
        """Skip everything before `first_seq`, which was removed. Return True if that changes the next delivery."""
        jumped = first_seq - 1 > self.delivered_stream
        if jumped:
            self.delivered_stream = first_seq - 1
            self.next_seq = max(self.next_seq, first_seq)
            self._moved = True
        if not self.pending and self.floor_stream < self.delivered_stream:
            self.redelivered.clear()
            self.floor_consumer, self.floor_stream = self.delivered_consumer, self.delivered_stream
            self._moved = True
        return jumped

    def reset(self, seq: int) -> None:
        """Start anew: the next delivery has consumer sequence 1 and is from `seq` on."""
        epoch, logged = self.epoch + 1, self.logged
        Ledger.__init__(self, seq - 1, seq)
        self.epoch, self.logged = epoch, logged

    # ------------------------------------------------------------------ encoding
    def take_delta(self) -> bytes | None:
        """Return the changes since the last call, encoded; None if there are none."""
        if not self._moved:
            return None
        self._settle_floor()
        floor, pending, redelivered, deadline = self.floor_stream, self.pending, self.redelivered, self.deadline
        changed = sorted(seq for seq in self._dirty if seq > floor or seq in redelivered)
        delta = self._delta(
            _runs((seq, pending[seq], deadline[seq]) for seq in changed if seq in pending),
            [(seq, redelivered[seq]) for seq in changed if seq in redelivered] if redelivered else [],
            [*self._uncounted, *(seq for seq in changed if seq not in pending and seq not in redelivered)],
        )
        self._dirty.clear()
        self._uncounted.clear()
        self._moved = False
        return _encode(delta)

    def take_whole(self) -> bytes:
        """Return the whole state, encoded so that it replaces what others know. Later deltas are relative to it."""
        whole = msgspec.structs.replace(self.whole(), whole=True)
        self._dirty.clear()
        self._uncounted.clear()
        self._moved = False
        return _encode(whole)

    def _delta(
        self, runs: list[tuple[int, int, int, int]], redelivered: list[tuple[int, int]], gone: list[int]
    ) -> Delta:
        return Delta(
            self.epoch,
            self.delivered_consumer,
            self.delivered_stream,
            self.floor_consumer,
            self.floor_stream,
            min(self.next_seq, LAST_SEQ),
            self.last_delivered_ns,
            self.last_ack_ns,
            [],
            redelivered,
            gone,
            runs=runs,
        )

    def whole(self) -> Delta:
        """Return the whole state as one delta."""
        self._settle_floor()
        deadline = self.deadline
        return self._delta(
            _runs((seq, consumer, deadline[seq]) for seq, consumer in self.pending.items()),
            list(self.redelivered.items()),
            [],
        )

    def apply(self, state: bytes | Delta) -> None:
        """Apply a delta, at recovery and on replicas."""
        delta = state if isinstance(state, Delta) else _decode(state)
        if delta.whole:
            logged = self.logged
            Ledger.__init__(self, 0, 0)
            self.logged = logged
        if delta.epoch < self.epoch:
            return
        self.epoch = delta.epoch
        self.delivered_consumer = max(self.delivered_consumer, delta.delivered_consumer)
        self.delivered_stream = max(self.delivered_stream, delta.delivered_stream)
        self.next_seq = max(self.next_seq, delta.next_seq)
        self.floor_consumer = max(self.floor_consumer, delta.floor_consumer)
        self.floor_stream = max(self.floor_stream, delta.floor_stream)
        self.last_delivered_ns = max(self.last_delivered_ns, delta.last_delivered_ns)
        self.last_ack_ns = max(self.last_ack_ns, delta.last_ack_ns)
        for seq in delta.gone:
            self.forget(seq)
        for seq, _ in delta.redelivered:
            # A message that reached max_deliver has a count and is not pending; `runs` below put back those that are.
            self.pending.pop(seq, 0)
            self.deadline.pop(seq, 0)
        last = next(reversed(self.pending), 0)
        runs = delta.runs or [(seq, 1, consumer, deadline) for seq, consumer, deadline in delta.pending]
        for seq, count, consumer, deadline in runs:
            self.pending.update(zip(range(seq, seq + count), range(consumer, consumer + count), strict=True))
            self.deadline.update(dict.fromkeys(range(seq, seq + count), deadline))
            self._inserted += count
        self.redelivered.update(delta.redelivered)
        if runs and runs[0][0] < last:
            self.pending = dict(sorted(self.pending.items()))
        gone, _ = self._take_through(self.floor_stream)
        if self.redelivered:
            for seq in gone:
                self.redelivered.pop(seq, 0)

    def forget(self, seq: int) -> None:
        """Drop everything about one sequence, without moving the floor."""
        self.pending.pop(seq, 0)
        self.deadline.pop(seq, 0)
        self.redelivered.pop(seq, 0)


def _runs(pending: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Join (sequence, consumer sequence, deadline), ascending, into the `runs` of a delta."""
    runs: list[tuple[int, int, int, int]] = []
    first = begin = due = 0
    count = 0
    for seq, consumer, deadline in pending:
        if seq == first + count and consumer == begin + count and deadline == due:
            count += 1
            continue
        if count:
            runs.append((first, count, begin, due))
        first, begin, due, count = seq, consumer, deadline, 1
    if count:
        runs.append((first, count, begin, due))
    return runs


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delta).decode
_decode_snapshot = msgspec.msgpack.Decoder(ConsumerSnapshot).decode


def encode_snapshot(snapshot: ConsumerSnapshot) -> bytes:
    """Encode a consumer for the stream's checkpoint."""
    return _encode(snapshot)


def encode_delta(delta: Delta) -> bytes:
    """Encode a state for a PROGRESS entry that is not taken from a ledger."""
    return _encode(delta)


def decode_snapshot(data: bytes) -> ConsumerSnapshot:
    """Decode a consumer of a checkpoint. Raise `msgspec.DecodeError` if it is damaged."""
    return _decode_snapshot(data)


def pending_with_deadline(ledger: Ledger) -> Iterable[tuple[int, int]]:
    """Return (seq, deadline) of the pending messages that have a deadline, ascending by sequence."""
    deadlines = ledger.deadline
    return ((seq, deadlines[seq]) for seq in ledger.pending if deadlines[seq])
