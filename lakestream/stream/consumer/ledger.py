"""What a consumer has delivered and what became of it, and how that is written to the log.

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
"""The highest sequence there can be. What comes after it is nothing, and could not be logged."""


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What changed since the last delta. Times in ns since the epoch."""

    epoch: int
    """Counts resets: a delta from before a reset says nothing about the time after it."""
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
    """Sequences above the floor that are neither pending nor counted any more."""
    whole: bool = False
    """This is all there is: what was known before does not count."""
    runs: list[tuple[int, int, int, int]] = []
    """Pending as well: (stream sequence, how many that follow each other, consumer sequence of the first, deadline)."""


class Snapshot(msgspec.Struct, array_like=True):
    """A consumer in a checkpoint."""

    config: bytes
    created_ns: int
    picked: list[int]
    state: Delta


SPARSE = 1024
"""So many places of messages that are done may lie before the oldest pending one."""


class Ledger:
    """Deliveries and acks of one consumer. `seq` is always a stream sequence."""

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
        """False when deltas are never taken: then nothing is kept for them."""
        self.delivered_consumer = 0
        self.delivered_stream = delivered_stream
        self.floor_consumer = 0
        self.floor_stream = delivered_stream
        self.next_seq = next_seq
        """Where to look for the next new message; may be far above `delivered_stream` when nothing between matched."""
        self.last_delivered_ns = 0
        self.last_ack_ns = 0
        self.pending: dict[int, int] = {}
        """Sequence → consumer sequence of its first delivery. Invariant: ascending in both, in insertion order."""
        self.deadline: dict[int, int] = {}
        """Sequence → when its ack is due, 0 = never. Invariant: the same keys as `pending`."""
        self.redelivered: dict[int, int] = {}
        """Sequence → deliveries beyond the first; kept after max_deliver, until it is acked or removed."""
        self._dirty: set[int] = set()
        self._uncounted: set[int] = set()
        self._moved = False
        self._acked = self._front_acked = False
        self._inserted = 0  # since `pending` was made anew: its places, of which some are free

    def begin(self, delivered_stream: int) -> None:
        """Nothing was delivered yet; count as if everything through `delivered_stream` had been."""
        assert not self.delivered_consumer, "a consumer begins once"
        self.delivered_stream = self.floor_stream = delivered_stream

    # ------------------------------------------------------------------ delivering
    def deliver(self, seqs: Sequence[int], now: int, deadline: int) -> None:
        """New messages went out and wait for acks until `deadline` (ns; 0: for ever)."""
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
        """`count` new messages through `last` went out, for which no ack is wanted."""
        self.delivered_consumer += count
        self.delivered_stream = last
        self.floor_consumer, self.floor_stream = self.delivered_consumer, last
        self.last_delivered_ns = now
        self._moved = True

    def redeliver(self, seq: int, now: int, deadline: int) -> None:
        """A pending message went out again."""
        self.delivered_consumer += 1
        self.redelivered[seq] = self.redelivered.get(seq, 0) + 1
        self._uncounted.discard(seq)
        self.deadline[seq] = deadline
        self._dirty.add(seq)
        self.last_delivered_ns = now
        self._moved = True

    def postpone(self, seq: int, deadline: int) -> None:
        """Another deadline (ns) for a pending message."""
        self.deadline[seq] = deadline
        self._dirty.add(seq)
        self._moved = True

    def deliveries(self, seq: int) -> int:
        """How often a delivered message went out."""
        return self.redelivered.get(seq, 0) + 1

    def exhausted(self, seq: int, now: int) -> None:
        """max_deliver is reached: no longer pending.

        The floor does not pass a message that ended so while it was the oldest, until nothing is pending.
        """
        self._settle_floor()
        if self.pending.pop(seq, 0):
            del self.deadline[seq]
        self.last_delivered_ns = now
        self._dirty.add(seq)
        self._moved = True

    # ------------------------------------------------------------------ acks
    def ack(self, seq: int, now: int) -> bool:
        """One message is done; False when it was not pending: then the floor stays, as in nats-server."""
        self.last_ack_ns = now
        self._moved = True
        if self.redelivered and self.redelivered.pop(seq, 0):
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

    def ack_through(self, seq: int, now: int, consumer_seq: int = 0) -> list[int]:
        """Ack policy all: everything ≤ `seq` is done. Returns what was pending.

        As in nats-server the floor's consumer sequence is that of the delivery that was acked, if that is known.
        """
        if seq <= self.floor_stream:
            return []
        self.last_ack_ns = now
        self._moved = True
        done, consumer = self._take_through(seq)
        if self.redelivered:
            self._uncounted.update(other for other in done if self.redelivered.pop(other, 0))
        self.floor_stream = seq
        if not self.pending:
            self.floor_stream = self.delivered_stream
            consumer = self.delivered_consumer
        if consumer_seq:
            consumer = min(consumer_seq, self.delivered_consumer)
        self.floor_consumer = max(consumer, self.floor_consumer)
        return done

    def confirm(self, consumer_seq: int, seq: int, now: int) -> list[int]:
        """Ack policy flow_control: a client has had everything ≤ `seq`. Returns what was pending and is done.

        As in nats-server the floor is what the client says, and nothing is done by a word about the future; but what
        was pending does not stand in the way of more.
        """
        self.last_ack_ns = now
        self._moved = True
        had, _ = self._take_through(seq)
        if self.logged:
            self._dirty.update(had)
        if seq > self.delivered_stream:
            return []
        if seq > self.floor_stream:
            self.floor_consumer, self.floor_stream = max(consumer_seq, self.floor_consumer), seq
        return had

    def _take_through(self, seq: int) -> tuple[list[int], int]:
        """Nothing ≤ `seq` is pending any more. Returns what was, and the highest consumer sequence of that."""
        pending = self.pending
        if not pending:
            return [], 0
        if next(reversed(pending)) <= seq:  # all of it, of which there may be a million
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
        """Looking for the oldest pending message steps over the places of those before it that are done."""
        if self._inserted > 2 * len(self.pending) + SPARSE:
            self.pending = dict(self.pending)
            self._inserted = len(self.pending)

    def removed(self, seq: int, now: int, log: bool = True) -> bool:
        """The stream let a delivered message go: as if acked. True when it was pending.

        `log`: note it for the next delta. Who takes none (a follower) would note such messages for ever; the entry that
        removed this one says it, too.
        """
        if self.redelivered.pop(seq, 0):
            self._uncounted.add(seq)
            self._moved = True
        pending = self.ack(seq, now) if seq in self.pending else False
        if not log:
            self._dirty.discard(seq)
            self._uncounted.discard(seq)
        return pending

    def floor(self) -> tuple[int, int]:
        """The ack floor as (consumer sequence, stream sequence)."""
        self._settle_floor()
        return self.floor_consumer, self.floor_stream

    def _settle_floor(self) -> None:
        """Work out the floor after acks. Done when it is looked at, not for each ack."""
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
        """There is nothing to deliver before `first_seq` any more. Returns whether the next delivery is another one."""
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
        """Begin again: the next delivery is consumer sequence 1, from `seq` on."""
        epoch, logged = self.epoch + 1, self.logged
        Ledger.__init__(self, seq - 1, seq)
        self.epoch, self.logged = epoch, logged

    # ------------------------------------------------------------------ encoding
    def take_delta(self) -> bytes | None:
        """What changed since the last call, encoded; None when nothing did."""
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
        """The whole state, encoded so that it replaces what others know; what follows are changes of it."""
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
        """The whole state as one delta."""
        self._settle_floor()
        deadline = self.deadline
        return self._delta(
            _runs((seq, consumer, deadline[seq]) for seq, consumer in self.pending.items()),
            list(self.redelivered.items()),
            [],
        )

    def apply(self, state: bytes | Delta) -> None:
        """Take in a delta: at recovery, and on replicas."""
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
            # All that a delta tells of a message is in it: one that has reached max_deliver is counted, not pending.
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
        """Drop everything kept about one sequence, without moving the floor."""
        self.pending.pop(seq, 0)
        self.deadline.pop(seq, 0)
        self.redelivered.pop(seq, 0)


def _runs(pending: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """(sequence, consumer sequence, deadline) of messages, ascending, as the `runs` of a delta."""
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
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A consumer's part of the stream's checkpoint."""
    return _encode(snapshot)


def encode_delta(delta: Delta) -> bytes:
    """A state for a PROGRESS entry that no ledger of this process had."""
    return _encode(delta)


def decode_snapshot(data: bytes) -> Snapshot:
    """Read what `encode_snapshot` wrote. Raises `msgspec.DecodeError`."""
    return _decode_snapshot(data)


def pending_with_deadline(ledger: Ledger) -> Iterable[tuple[int, int]]:
    """(seq, deadline) of everything pending that has a deadline, ascending by sequence."""
    deadlines = ledger.deadline
    return ((seq, deadlines[seq]) for seq in ledger.pending if deadlines[seq])
