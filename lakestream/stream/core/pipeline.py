"""Proposals of one stream on their way into its log.

Belongs here: what was decided and is not committed yet (batches of messages, operations, progress), handing it over to
the group, and the numbers that the next message gets. While a write is under way the next one gathers (group commit).
Deciding on messages is in proposer.py, applying committed entries in applier.py.
"""

# The problem. A message gets its sequence and its time when it is decided on, long before it is durable, and the rules
# for the next message must see it: a duplicate, an expected last sequence, a limit. Yet only what is committed exists.
# So a stream is at two places at once: where the store ends, and where its proposals end. This module has what lies
# between.
#
#     decided                              handed over                      committed
#     `_open`: gathers for the next write  `_flying`: the group has it      the store: applied, gone from here
#        add_batch, propose, log_progress     flush                            committed, landed
#
# Order. Proposals are committed in the order in which they were decided, so a decision may rely on all earlier ones.
# Messages are added to the newest proposal as long as that is a batch; anything else that is proposed closes it (`batch
# = None`), or a later message would come before an earlier operation.
#
#     Invariant: next_seq is the store's last sequence + 1 + the messages in _flying and _open. An operation that may
#     move sequences or change the rules (`on_change`) breaks that, so publishes wait until it is applied (proposer.py).
#
# Group commit. While the group writes, `_open` gathers; when it has written, all that has gathered is one write. An
# idle stream proposes at the end of the turn of the event loop, so one publish waits for no timer, and those of many
# clients that were read in one turn share a sync. A timer would be worse at both ends: it delays the lone publish, and
# under load the sync itself is the better clock.
#
# Bounds. A slow disk lets much gather, and applying it all at once would hold up other streams. So one write takes 1
# MiB, or 4 MiB behind a slow write, where fewer syncs matter more (`_next_write`). Not in a replicated stream: each of
# its writes must end with the positions of open fast batches, which are proposed last. And all streams of the server
# together may hold `Uncommitted.limit` bytes, except that each may have a little (`SPARED_BYTES`), so that a stream
# with a good disk is not refused for one with a bad disk.
#
# Losing leadership. What flies may still be committed, by the next leader. So its proposers are not told that it
# failed: publishers get no answer and ask again (with a message id that is safe), callers of the API get 10008
# (temporarily unavailable). `rewind` lets the next leadership go on after what is stored; decisions beyond are
# forgotten, also by the features (`rewound`).
#
# Failing. A failed write freezes the group, and `failed` is the answer to everything from then on. Nothing here is
# retried: the kernel may have dropped the pages (invariant 4).

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import msgspec

from lakestream.log.format.frame import Kind
from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.raft.core.ready import NotLeader
from lakestream.raft.group.group import Group, Proposal
from lakestream.stream.core.batch import Batch
from lakestream.stream.core.feature import Hooks
from lakestream.stream.core.operations import (
    ConsumerProgress,
    DeleteMessage,
    Operation,
    Purge,
    Removing,
    UpdateStream,
    encode,
)
from lakestream.stream.core.state import Done, Foreign, PendingOperation

WRITE_BYTES = 1 << 20
"""Messages that one write of a stream without replicas takes (1 MiB), at least one batch: what has gathered behind a
slow disk is neither written nor applied all at once, which would delay other streams."""

SLOW_WRITE_BYTES = 4 << 20
"""The same (4 MiB) behind a write that took longer than SLOW_WRITE_NS: fewer syncs matter more there."""

SLOW_WRITE_NS = 50_000_000
"""Time of a write, from its proposal to its commit (50 ms), from which the disk counts as slow."""

OPERATION_BYTES = 1 << 18
"""Share of it that an operation counts for (256 KiB): applying one takes as long as some hundred messages."""

DELETE_BYTES = 1 << 13
"""The same for the deletion of one message (8 KiB)."""

MAX_UNCOMMITTED_BYTES = 512 << 20
"""Default limit of the uncommitted messages of all streams of a server (512 MiB), those included that wait for an
operation."""

WAITING_BYTES = 1024
"""Memory for a publish that waits for an operation, beside its header block and payload (1 KiB)."""

MAX_AWAITING = 10_000
"""Direct gets of a mirror, or of a stream with sources, that wait for one write; further ones get what is stored."""

SPARED_BYTES = 1 << 20
"""Uncommitted messages that a stream may have beyond that limit (1 MiB): one whose disk is fast does not need more, and
does not have to wait for those whose disk is slow."""


class Uncommitted:
    """Uncommitted messages of all streams of a server.

    Args:
        limit: most bytes of them; 0: `MAX_UNCOMMITTED_BYTES`.

    Attributes:
        total: their record bytes, and those of publishes that wait for an operation.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit or MAX_UNCOMMITTED_BYTES
        self.total = 0


class Pipeline:
    """Proposals of one stream, and its right to propose.

    Args:
        uncommitted: shared by the streams of the server.

    Attributes:
        leading: this node decides for the stream. Only then does it take messages and operations.
        serving: consumers deliver and messages expire here.
        failed: why the stream is frozen, None while it is not.
        closed: the stream has ended here.
        next_seq: sequence of the next message.
        last_time: time (ns) of the newest message, proposed ones included.
        pending_bytes: record bytes of proposed messages.
        crowded: the streams of this server hold too much together when this one took its last message.
        operations: number of operations that are proposed and not applied.
        batch: the batch that is being filled; None: the next message begins one.
        on_change: called before an operation is proposed that may move the sequence or change the rules.
        on_lost: called with the contexts of proposals when the group says that another node leads.
    """

    def __init__(
        self, clock: Clock, store: Store, hooks: Hooks, leading: bool, uncommitted: Uncommitted | None = None
    ) -> None:
        self._clock, self._store, self._hooks = clock, store, hooks
        self._uncommitted = uncommitted or Uncommitted()
        self.crowded = False
        self.leading, self.serving = leading, False
        self.failed: ApiError | None = None
        self.closed = False
        self.group: Group
        self.next_seq, self.last_time = 1, 0
        self.pending_bytes = self.operations = self._waiting_bytes = 0
        self.batch: Batch | None = None
        self.on_change: Callable[[], None] = nothing_left
        self.on_lost: Callable[[list[object]], None] = lambda contexts: None
        self._open: deque[Proposal] = deque()
        self._flying: deque[Proposal] = deque()
        self._committed = 0  # of these, the oldest: they are committed, and the group has handed them out
        self._scheduled = False
        self._began_ns, self._write_bytes = 0, WRITE_BYTES

    @property
    def accepts(self) -> bool:
        """Return True if something can be proposed here now."""
        return self.leading and self.failed is None and not self.closed

    @property
    def replicated(self) -> bool:
        """Return True if other nodes hold this stream too; False before it has its group, which it recovers without."""
        return hasattr(self, "group") and self.group.replicated

    # ------------------------------------------------------------------ proposals in flight
    def __len__(self) -> int:
        return len(self._flying) + len(self._open)

    @property
    def gathering(self) -> bool:
        """Return True if something waits for the next write."""
        return bool(self._open)

    def uncommitted(self) -> list[Proposal]:
        """Return everything proposed and not committed, oldest first."""
        return [*self._flying, *self._open]

    def batches(self) -> list[Batch]:
        """Return the uncommitted batches, newest first."""
        return [each.context for each in reversed(self.uncommitted()) if isinstance(each.context, Batch)]

    def when_stored(self, subject: bytes, then: Callable[[], None]) -> None:
        """Call `then` once the messages of this subject that were taken are committed, at once if there is none, or if
        too much waits for the disk already; never if they are lost here."""
        batches = self.batches()
        if any(batch.last(subject) for batch in batches) and len(batches[0].after) < MAX_AWAITING:
            self.when_safe(then)
        else:
            then()

    def pending_operations(self) -> list[Operation]:
        """Return the uncommitted operations, oldest first."""
        return [each.context.operation for each in self.uncommitted() if isinstance(each.context, PendingOperation)]

    # ------------------------------------------------------------------ bytes
    def hold(self, size: int) -> None:
        """Count the record bytes of messages that were added to a batch."""
        self.pending_bytes += size
        every = self._uncommitted
        every.total += size
        if every.total > every.limit:
            self.crowded = self.pending_bytes > SPARED_BYTES

    def let_go(self, size: int) -> None:
        """Count messages that are committed, or forgotten."""
        size = min(size, self.pending_bytes)
        self.pending_bytes -= size
        self._uncommitted.total -= size

    def is_crowded(self) -> bool:
        """Return True if the streams of this server hold too much together, and this one more than a little of it."""
        every = self._uncommitted
        self.crowded = every.total > every.limit and self.pending_bytes > SPARED_BYTES
        return self.crowded

    def hold_waiting(self, size: int) -> bool:
        """Count a publish of `size` bytes that waits for an operation; return False if the streams of this server hold
        too much together, and this one more than a little of it."""
        if self.closed:
            return True  # what waits is forgotten with the stream
        size += WAITING_BYTES
        every = self._uncommitted
        if every.total + size > every.limit and self._waiting_bytes + size > SPARED_BYTES:
            return False
        every.total += size
        self._waiting_bytes += size
        return True

    def let_waiting_go(self) -> None:
        """Count no publish as waiting any more."""
        self._uncommitted.total -= self._waiting_bytes
        self._waiting_bytes = 0

    def close(self) -> None:
        """Take nothing more: the stream has ended here."""
        self.closed = True
        self.let_go(self.pending_bytes)
        self.let_waiting_go()

    # ------------------------------------------------------------------ propose
    def add_batch(self, batch: Batch) -> None:
        """Begin to fill a batch; it goes into the log after what was proposed before it."""
        self.batch = batch
        self._open.append(Proposal(Kind.MESSAGES, batch.records, 0, batch))
        self.flush_soon()

    def propose(self, operation: Operation, done: Done | None = None, *, volatile: bool = False) -> None:
        """Log an operation; `done(result)` after it is applied, or `done(ApiError)` when that is not certain.

        `volatile`: as of `Proposal`.

        The error is the stream's own when it has failed, and 10008 when another node leads: what was proposed here
        before may still be applied there.
        """
        if not self.accepts:
            if done is not None:
                done(self._refusal())
            return
        self.operations += 1
        if isinstance(operation, Removing):
            operation = msgspec.structs.replace(operation, at_ns=self._removal_time(operation))
        if isinstance(operation, Purge | UpdateStream):
            self.on_change()
        self._add(Proposal(Kind.OPERATION, encode(operation), 0, PendingOperation(operation, done), volatile))

    def propose_deletions(self, seqs: Sequence[int], erase: bool, done: Callable[[int, object], None]) -> None:
        """Log deletions of messages as `propose` does; `done(place, result)` for each. Invariant: `accepts`."""
        at_ns, add = self._removal_time(DeleteMessage(seqs[0])), self._open.append
        for place, seq in enumerate(seqs):
            operation = DeleteMessage(seq, erase, at_ns)
            context = PendingOperation(operation, partial(done, place))
            add(Proposal(Kind.OPERATION, encode(operation), 0, context))
        self.operations += len(seqs)
        self.batch = None
        self.flush_soon()

    def propose_foreign(self, kind: Kind, body: bytes, count: int, done: Callable[[ApiError | None], None]) -> None:
        """Log an entry of an archive with `count` messages; `done(None)` once it is applied, `done(ApiError)` if it is
        refused."""
        if not self.accepts:
            done(self._refusal())
            return
        self._add(Proposal(kind, body, count, Foreign(done)))

    def log_progress(self, entries: list[ConsumerProgress], done: Callable[[], object] | None = None) -> None:
        """Log these entries after what was proposed before; `done` once they are committed."""
        self._add(Proposal(Kind.PROGRESS, encode(entries), 0, done or nothing_left))

    def _add(self, proposal: Proposal) -> None:
        self.batch = None
        self._open.append(proposal)
        self.flush_soon()

    def _refusal(self) -> ApiError:
        return self.failed or api_error(10059 if self.closed else 10008)

    def _removal_time(self, operation: Removing) -> int:
        for each in self._hooks.removal_time:
            if at_ns := each.removal_time(operation):
                return at_ns
        return self.last_time

    # ------------------------------------------------------------------ hand over
    def flush_soon(self) -> None:
        """Hand over what is proposed at the end of this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self.flush)

    def settle(self) -> None:
        """Let the features propose what is due in this turn, before anything else is handed over."""
        for each in self._hooks.before_flush:
            each.before_flush()

    def flush(self) -> None:
        """Hand over what was gathered, unless a write is under way: then go on gathering."""
        self.settle()
        self._scheduled = False
        if self.group.in_flight or not self._open or self.failed is not None or self.closed:
            return
        for each in self._hooks.before_write:
            each.before_write()
        proposals = self._next_write()
        for proposal in proposals:
            if isinstance(proposal.context, Batch):
                proposal.count = len(proposal.context.subjects)
        # Earlier ones may still be on their way to other members: they come back first.
        self._flying += proposals
        self._began_ns = self._clock.steady()
        try:
            self.group.propose(proposals)
        except NotLeader:
            self.on_lost(self.flying())

    def _next_write(self) -> list[Proposal]:
        """Take what one write is to have from what was gathered."""
        waiting, taken, size = self._open, list[Proposal](), 0
        # In a replicated stream each write has the positions of open fast batches, which were proposed last.
        parted = len(waiting) > 1 and not self.replicated
        while waiting:
            if parted:
                context = waiting[0].context
                size += context.size if isinstance(context, Batch) else _share(context)
                if taken and size > self._write_bytes:
                    return taken
            taken.append(waiting.popleft())
        self.batch = None
        return taken

    def flying(self) -> list[object]:
        """Return the contexts of what was handed over and is not committed, oldest first."""
        return [proposal.context for proposal in islice(self._flying, self._committed, None)]

    def committed(self, count: int) -> None:
        """Note that the next `count` proposals are committed. `landed` follows for each, as it is applied."""
        # Entries that went to the group past this pipeline, such as those of an offline stream, are not in it.
        self._committed = min(self._committed + count, len(self._flying))
        if self._committed == len(self._flying):
            slow = self._clock.steady() - self._began_ns > SLOW_WRITE_NS
            self._write_bytes = SLOW_WRITE_BYTES if slow else WRITE_BYTES

    def landed(self) -> None:
        """Forget the oldest proposal, which is committed and about to be applied."""
        if self._committed:  # else leadership was lost meanwhile, and all were forgotten
            self._committed -= 1
            self._flying.popleft()

    def operated(self) -> None:
        """Note that an operation is applied."""
        self.operations = max(0, self.operations - 1)  # none is counted any more if leadership was lost meanwhile

    def put_back(self, proposals: Sequence[Proposal]) -> None:
        """Take back committed proposals that could not be applied, and count those behind them as such, too."""
        self._flying.extendleft(reversed(proposals))
        self._committed = 0

    def take_all(self) -> tuple[list[object], list[object]]:
        """Forget all proposals; return the contexts of those that were handed over, and of those that were not."""
        flying, unproposed = self.flying(), [proposal.context for proposal in self._open]
        self._flying, self._open, self._committed, self.operations = deque(), deque(), 0, 0
        self.let_go(self.pending_bytes)
        return flying, unproposed

    def refuse_all(self, error: ApiError) -> None:
        """Forget all proposals; tell the proposers of operations and foreign entries."""
        flying, unproposed = self.take_all()
        refuse([*flying, *unproposed], error)

    # ------------------------------------------------------------------ numbers
    def rewind(self) -> None:
        """Go on after what is stored: messages that were decided beyond that do not count."""
        self.next_seq, self.last_time = self._store.last_seq + 1, self._store.last_time
        self.let_go(self.pending_bytes)
        self.batch = None
        for each in self._hooks.rewound:
            each.rewound(self._store.last_seq)

    def skip(self, through: int) -> None:
        """Skip the sequences through this one, before the operation that skips them is proposed."""
        self.batch = None
        self.next_seq = through + 1

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` once every message taken so far is committed; never if they are lost here, because a write
        failed or this node ceased to lead."""
        if not self.accepts:
            return
        batches = self.batches()
        if batches:
            newest = batches[0]
            newest.after.append((newest.first_seq, newest.last_time, lambda _, __: then()))
        else:
            then()


def refuse(contexts: Iterable[object], error: ApiError) -> None:
    """Call the proposers of operations and foreign entries with an error: not applied, or not known to be."""
    for context in contexts:
        if isinstance(context, PendingOperation | Foreign) and context.done is not None:
            context.done(error)


def nothing_left() -> None:
    """Do nothing: the context of entries whose proposer does not wait for them."""


def _share(context: object) -> int:
    """Return the share of one write that an operation counts for."""
    is_short = isinstance(context, PendingOperation) and isinstance(context.operation, DeleteMessage)
    return DELETE_BYTES if is_short else OPERATION_BYTES
