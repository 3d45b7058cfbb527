"""Runs: messages of an origin that came together, as columns.

Belongs here: reading what an origin's consumer sent at once, and choosing how many of those messages are processed
together: plain ones, and those whose origin has them from others. A heartbeat, a flow control request or a message with
other headers of the protocol ends a run.
Processing messages one by one costs three times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

from lakestream.ports import Single
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.stream.core.batch import Run
from lakestream.stream.core.effect import MARK, STREAM_SOURCE

MIN_RUN = 4
"""Fewer messages are processed one by one."""
MAX_RUN = 1000
"""More are processed in parts."""
MAX_SEQ, MAX_TIME_NS = 1 << 62, 1 << 63
"""Sequences and times from these on are not of a JetStream origin, and ignored."""

_ACK = b"ACK"
_AT = {9: 5, 11: 7, 12: 7}
"""Index of the stream sequence among the tokens of an ack subject, by number of tokens; consumer sequence, time and
number of pending messages follow it: `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<seq>.
<consumer seq>.<time>.<pending>[.<random>]`."""
_SOURCED = b"\r\n" + STREAM_SOURCE + b":"
CONTROL = b"NATS/1.0 "
"""Beginning of a header block with a status line, which stored messages hardly ever have."""


def run_of(messages: Sequence[Single], first: int) -> tuple[int, Run] | None:
    """Return a run that begins at a place in `messages`, and the consumer sequence of its first message; those of the
    others follow it. None if the message there is not sent by an origin."""
    count = 0
    for one in islice(messages, first, first + MAX_RUN):
        header = one.header
        if header and (header.startswith(CONTROL) or (MARK in header and not _only_sourced(header))):
            break
        count += 1
    found = _columns(messages[first : first + count]) if count >= MIN_RUN else None
    return found or _columns(messages[first : first + 1])


def runs_in(block: FirstDeliveries, begin: int, end: int) -> Iterator[tuple[int, Run]]:
    """Yield messages that came as columns as `run_of` returns them."""
    columns: Any = map(list, zip(*block.fields(begin, end), strict=True))
    seqs, times, subjects, headers, payloads = columns
    whole = Run(seqs, times, subjects, headers, payloads, list(range(block.left - begin, block.left - end, -1)))
    apart = [at for at, header in enumerate(headers) if MARK in header and not _only_sourced(header)]
    for low, high in pairwise(sorted({0, *apart, *(at + 1 for at in apart), end - begin})):
        yield block.consumer + begin + low, whole[low:high]


def _only_sourced(header: bytes) -> bool:
    """Return True if `Nats-Stream-Source` is the only header of the protocol."""
    return header.count(MARK) == 1 and _SOURCED in header


def _columns(messages: Sequence[Single]) -> tuple[int, Run] | None:
    """Return messages as `run_of` does; None if they are no run."""
    replies, count = [one.reply for one in messages], len(messages)
    width = replies[0].count(b".") + 1
    at, tokens = _AT.get(width, 0), b".".join(replies).split(b".")
    if not at or len(tokens) != width * count or tokens[1::width] != [_ACK] * count:
        return None
    try:
        seqs, order, times, pending = (list(map(int, tokens[at + each :: width])) for each in range(4))
    except ValueError:
        return None
    # Consecutive consumer sequences prove that every subject had the same number of tokens.
    if order != list(range(order[0], order[0] + count)):
        return None
    if seqs[0] <= 0 or seqs[-1] >= MAX_SEQ or min(times) < 0 or max(times) >= MAX_TIME_NS:
        return None
    if seqs[-1] - seqs[0] != count - 1 and any(low >= high for low, high in pairwise(seqs)):
        return None
    subjects, headers = [one.subject for one in messages], [one.header for one in messages]
    return order[0], Run(seqs, times, subjects, headers, [one.payload for one in messages], pending)
