"""The start of a new consumer.

Belongs here: deliver policies as sequences (docs/internals/consumers.md#start). They are computed before the consumer
is proposed, since applying an entry reads neither clock nor lake. Whatever takes long, or waits for the lake, does not
block the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from lakestream.log.store.store import Store
from lakestream.protocol.gotime import time_ns
from lakestream.protocol.subjects import Steps
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.reader import Reader

PART_BITS = 12
"""Chosen sequences that have all bits but so many in common are put in order together, in one step (0.5 ms)."""
STEP_SEQS = 2048
"""Number of sequences that are put into their parts in one step (0.3 ms)."""


class ConsumerStart(msgspec.Struct, frozen=True):
    """Start of a consumer: `picked` messages are delivered first, ascending, then those from `seq` on."""

    seq: int
    picked: list[int] = []


async def start_by_time(config: ConsumerConfig, store: Store, reader: Reader) -> ConsumerStart:
    """Return the start for by_start_time, which may read the lake; messages stored in the meantime come after it."""
    assert config.opt_start_time is not None, "checked by rules.check"
    seq = await reader.first_at(time_ns(config.opt_start_time))
    return ConsumerStart(seq or store.last_seq + 1)


def last_of_each(filters: Sequence[bytes], store: Store) -> Steps[ConsumerStart]:
    """Find the start for last_per_subject, in steps; messages stored in the meantime come after it. Raise LogError.

    A million sequences are not sorted at once: that takes 0.2 s.
    """
    through = store.last_seq
    parts: dict[int, list[int]] = defaultdict(list)
    for some in store.subjects.newest(filters, through):
        for at in range(0, len(some), STEP_SEQS):
            for seq in some[at : at + STEP_SEQS]:
                parts[seq >> PART_BITS].append(seq)
            yield
    picked: list[int] = []
    for part in sorted(parts):
        picked += sorted(set(parts.pop(part)))  # a subject may come twice
        yield
    if picked[:1] == [0]:  # a subject without a message up to there
        del picked[0]
    return ConsumerStart(through + 1, picked) if picked else _from_the_last(store, through)


def start_of(config: ConsumerConfig, store: Store, next_seq: int) -> ConsumerStart:
    """Return the start for every policy but by_start_time and last_per_subject, at once. `next_seq`: of the next
    message."""
    first = max(store.first_seq, 1)
    match config.deliver_policy:
        case "new":
            return ConsumerStart(next_seq)
        case "by_start_sequence":
            return ConsumerStart(max(config.opt_start_seq, first))
        case "last":
            return ConsumerStart(_last(config, store) or first)
        case _:
            return ConsumerStart(first)


def _from_the_last(store: Store, last: int) -> ConsumerStart:
    """Return the start at the stream's last sequence, or at its first one after a purge."""
    return ConsumerStart(max(last, store.first_seq, 1))


def _last(config: ConsumerConfig, store: Store) -> int:
    """Return the sequence of the newest matching message, 0 if there is none."""
    index = store.subjects
    if not config.filters or b">" in config.filters:
        return store.live.previous_at_or_before(store.last_seq)
    return max((index.last(subject) for one in config.filters for subject in index.matching(one)), default=0)
