"""Order by key: a consumer's clients have one message of a key at a time, in the order of the stream.

Belongs here: the setting in a consumer's metadata, the keys of messages, and which messages are held back.
"""

# The next message of a key is delivered once the one before it is settled: acked, refused (+TERM), given up
# (max_deliver), stored as a dead letter, or removed from the stream. So the clients of a consumer need not be told
# apart: whoever asks next gets the next message of any key that is free, clients come and go, and there is nothing to
# rebalance. Several messages of a key for the same client would be faster, but a -NAK could not call back those behind
# it, which that client has already.
#
# A message that is held back is pending in the ledger without a deadline, as if it were delivered to nobody. It counts
# for max_ack_pending, which limits how far a consumer reads ahead of its slowest key; it stays in a work queue; and it
# is logged. So a new leader, or a restarted server, knows the order from the ledger and from the keys of what is
# pending.
#
#     Invariant: of the pending messages of a key only the first has a deadline, or is in the queue of redelivery.py.

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from lakestream.log.store.store import Store
from lakestream.ports import Clock
from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.redelivery import RETRY_NS, Redelivery
from lakestream.stream.core.reader import HistoryUnavailableError, Reader

KEY = "lakestream.key"
MAX_GONE = 1024
"""Settled messages that a key's line may keep (1,024), beyond as many as are pending."""

_SETTING = re.compile(r"token:([1-9]\d?)|header:([!-9;-~]+)")


class KeyRule(msgspec.Struct, frozen=True):
    """The place of a message's key: the n-th token of the subject, or a header."""

    token: int = 0
    header: bytes = b""

    def key_of(self, subject: bytes, header: bytes) -> bytes:
        """Return the key of a message, b"" if it has none: then it is delivered without regard to others."""
        if self.header:
            return headers.get(header, self.header) or b""
        tokens = subject.split(b".", self.token)
        return tokens[self.token - 1] if len(tokens) >= self.token else b""


def stored_rule(config: ConsumerConfig) -> KeyRule | None:
    """Return the rule of a consumer, None without one or if it is not understood."""
    found = _SETTING.fullmatch(config.metadata.get(KEY, ""))
    return KeyRule(int(found[1] or 0), (found[2] or "").encode()) if found else None


def check(config: ConsumerConfig) -> None:
    """Raise ApiError if a consumer's setting cannot be followed."""
    text = config.metadata.get(KEY)
    if not text:
        return
    refusal = ""
    if stored_rule(config) is None:
        refusal = f"{text!r} is neither token:N, N from 1 to 99, nor header:Name"
    elif config.push:
        refusal = "it needs a pull consumer"
    elif config.ack_policy != "explicit":
        refusal = "it needs ack policy explicit"
    elif config.max_ack_pending <= 0:
        refusal = "it needs a max_ack_pending, which limits the messages that are held back"
    elif config.replay_policy != "instant":
        refusal = "it needs replay policy instant"
    if refusal:
        raise api_error(10052, err=f"{KEY}: {refusal}")


class KeyOrder:
    """The pending messages of each key, in the order of the stream. The first of a key is out, the others wait."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._lines: dict[bytes, deque[int]] = {}
        """Key → its messages, ascending. Those settled before their turn stay until then; the first one is pending."""

    def __contains__(self, key: bytes) -> bool:
        """Return True if messages of this key are pending."""
        return key in self._lines

    def add(self, seq: int, key: bytes) -> bool:
        """Add a message behind those of its key. Return True if it is the first, or has no key."""
        if not key:
            return True
        self._keys[seq] = key
        line = self._lines.setdefault(key, deque())
        line.append(seq)
        return len(line) == 1

    def settle(self, seq: int) -> int:
        """Remove a message. Return the one of its key whose turn has come by that, 0 if there is none."""
        key = self._keys.pop(seq, b"")
        if not key:
            return 0
        line = self._lines[key]
        if line[0] != seq:
            if len(line) > 2 * len(self._keys) + MAX_GONE:
                self._lines[key] = deque(filter(self._keys.__contains__, line))
            return 0
        while line and line[0] not in self._keys:
            line.popleft()
        if line:
            return line[0]
        del self._lines[key]
        return 0


class OrderByKey:
    """The order of one consumer's messages, on the node that leads its stream.

    Args:
        wake: called when the consumer should look for messages.
    """

    def __init__(
        self,
        rule: KeyRule,
        ledger: Ledger,
        redelivery: Redelivery,
        store: Store,
        reader: Reader,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.rule = rule
        self._ledger, self._redelivery, self._store, self._reader = ledger, redelivery, store, reader
        self._clock, self._wake = clock, wake
        self._order = KeyOrder()
        self.loading = False
        """True while the keys of pending messages are not known: nothing may be delivered."""

    def start(self) -> None:
        """Find out which messages are held back: at start, and after the ledger has jumped."""
        self._order = KeyOrder()
        self.loading = bool(self._ledger.pending)
        if self.loading:
            self._clock.spawn(self._load(self._order))

    def stop(self) -> None:
        """Forget everything."""
        self._order = KeyOrder()

    # ------------------------------------------------------------------ deliveries and acks
    def free(self, keys: Sequence[bytes]) -> list[int]:
        """Return which of the next messages, by place, may be delivered now."""
        order, chosen = self._order, set[bytes]()
        free = []
        for at, key in enumerate(keys):
            if not key or not (key in order or key in chosen):
                free.append(at)
                chosen.add(key)
        return free

    def took(self, seqs: Sequence[int], keys: Sequence[bytes]) -> list[int]:
        """Take messages with their keys, of which those were delivered that were free. Return the others."""
        return [seq for seq, key in zip(seqs, keys, strict=False) if not self._order.add(seq, key)]

    def settled(self, seqs: Iterable[int]) -> None:
        """Note that messages are not pending any more: deliver the next ones of their keys."""
        settle = self._order.settle
        following = [seq for seq in map(settle, seqs) if seq]
        # Settled itself a moment later, among the same acks, it is taken from the queue as not pending.
        if following:
            self._redelivery.enqueue(following)
            self._wake()

    # ------------------------------------------------------------------ the beginning
    async def _load(self, order: KeyOrder) -> None:
        """Read the keys of pending messages; those of header come from the log or the lake."""
        try:
            found = await self._pending_keys()
        except Exception as error:
            self._clock.call_later(RETRY_NS, lambda: self.start() if self._order is order else None)
            if isinstance(error, HistoryUnavailableError) and error.retry_s:
                return  # the lake is away, which is logged once
            raise
        if self._order is not order:
            return
        ledger = self._ledger
        behind = [seq for seq in list(ledger.pending) if not order.add(seq, found.get(seq, b""))]
        for seq in behind:
            self._redelivery.dequeue(seq)
        ledger.hold(seq for seq in behind if ledger.deadline[seq])
        waiting = set(behind)
        self._redelivery.enqueue([seq for seq in ledger.held() if seq not in waiting])
        self.loading = False
        self._wake()

    async def _pending_keys(self) -> dict[int, bytes]:
        seqs, key_of = [seq for seq in self._ledger.pending if seq in self._store.live], self.rule.key_of
        if self.rule.token:
            return {seq: key_of(self._store.subject_of(seq), b"") for seq in seqs}
        return {record.seq: key_of(b"", record.header) for record in await self._reader.fetch_many(seqs)}
