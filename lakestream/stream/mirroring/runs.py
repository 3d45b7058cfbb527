"""Runs: plain messages of an origin that came together, as columns.

Belongs here: choosing, among the messages that an origin's consumer sent at once, those that need no individual
processing. The others (a heartbeat, a flow control request, a message with headers of the protocol) come one by one, as
in session.py. Processing messages one by one costs three times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise

from lakestream.ports import Delivery
from lakestream.stream.core.batch import Run

MIN_RUN = 4
"""Fewer messages are processed one by one."""
MAX_TIME_NS = 1 << 63

_ACK = b"$JS.ACK."
_AT = {9: 5, 11: 7, 12: 7}
"""Index of the stream sequence among the tokens of an ack subject, by number of tokens; consumer sequence, time and
number of pending messages follow it."""
_MEANT = b"\r\nNats-"
"""Contained in every header block with a header of the protocol, which may have an effect."""
_CONTROL = b"NATS/1.0 "
"""Beginning of a header block with a status line, which stored messages hardly ever have."""


def run_of(messages: Sequence[Delivery], first: int, expected: int, highest: int) -> Run | None:
    """Return the longest run that begins at a place in `messages`, None if the message there has to be processed alone.

    Args:
        first: the place.
        expected: the next consumer sequence.
        highest: sequences from this on are not valid.
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
    # Consecutive consumer sequences prove that every subject had the same number of tokens.
    if order != list(range(expected, expected + count)):
        return None
    if seqs[0] <= 0 or seqs[-1] >= highest or min(times) < 0 or max(times) >= MAX_TIME_NS:
        return None
    if seqs[-1] - seqs[0] != count - 1 and any(low >= high for low, high in pairwise(seqs)):
        return None
    return Run(seqs, times, subjects, headers, payloads, pending)
