"""Plain messages of an origin that came together, as columns.

Belongs here: which of the messages that an origin's consumer sent at once can be taken without a look at each. Those
that can not, a heartbeat, a flow control request, a message whose headers mean something to a stream, come one by one
as ever (upstream.py). Taking messages one by one costs three times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise

import msgspec

from lakestream.ports import Delivery

MIN_RUN = 4
"""Fewer messages are taken one by one."""
MAX_TIME_NS = 1 << 63

_ACK = b"$JS.ACK."
_AT = {9: 5, 11: 7, 12: 7}
"""Where sequence, consumer's sequence, time and pending messages begin in an ack subject, by its number of tokens."""
_MEANT = b"\r\nNats-"
"""Some header of the protocol's own: it may be one that acts."""
_CONTROL = b"NATS/1.0 "
"""How a header block with a status begins: no stored message's, except a strange one's."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """Messages in the order of their sequences in the origin, which may leave some out; times in ns."""

    seqs: list[int]
    times: list[int]
    subjects: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]
    pending: list[int]
    """How many come after each."""

    def __len__(self) -> int:
        return len(self.seqs)

    def after(self, seq: int) -> Run:
        """Those with a higher sequence."""
        if self.seqs[0] > seq:
            return self
        at = sum(1 for each in self.seqs if each <= seq)
        columns = (self.seqs, self.times, self.subjects, self.headers, self.payloads, self.pending)
        return Run(*(column[at:] for column in columns))  # type: ignore[arg-type]

    def stretches(self) -> list[tuple[int, int]]:
        """(begin, end) of each part whose sequences follow one another."""
        seqs, count = self.seqs, len(self.seqs)
        if seqs[-1] - seqs[0] == count - 1:
            return [(0, count)]
        jumps = [at for at in range(1, count) if seqs[at] != seqs[at - 1] + 1]
        return list(zip([0, *jumps], [*jumps, count], strict=True))


def run_of(messages: Sequence[Delivery], first: int, expected: int, highest: int) -> Run | None:
    """The longest run that begins at a place in `messages`; None: what is there is to be looked at by itself.

    Args:
        first: the place.
        expected: the consumer's sequence that follows.
        highest: no sequence of a message is so high.
    """
    count = 0
    for _, reply, header, _ in islice(messages, first, None):
        if not reply.startswith(_ACK) or (header and (_MEANT in header or header.startswith(_CONTROL))):
            break
        count += 1
    if count < MIN_RUN:
        return None
    subjects, replies, headers, payloads = map(list, zip(*messages[first : first + count], strict=True))
    width = replies[0].count(b".") + 1
    at, tokens = _AT.get(width, 0), b".".join(replies).split(b".")
    if not at or len(tokens) != width * count:
        return None
    try:
        seqs, order, times, pending = (list(map(int, tokens[at + each :: width])) for each in range(4))
    except ValueError:
        return None
    # Consumer's sequences that follow one another: no subject had more tokens, and another one fewer.
    if order != list(range(expected, expected + count)):
        return None
    if seqs[0] <= 0 or seqs[-1] >= highest or min(times) < 0 or max(times) >= MAX_TIME_NS:
        return None
    if seqs[-1] - seqs[0] != count - 1 and any(low >= high for low, high in pairwise(seqs)):
        return None
    return Run(seqs, times, subjects, headers, payloads, pending)
