"""The start of a new consumer.

Belongs here: deliver policies as sequences (docs/internals/consumers.md#start). They are computed before the consumer
is proposed, since applying an entry reads neither clock nor lake. Whatever takes long, or waits for the lake, does not
block the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.log.index.histories import MASK
from lakestream.log.store.store import Store
from lakestream.ports import Io
from lakestream.protocol.gotime import time_ns
from lakestream.protocol.subjects import chooser, is_literal
from lakestream.stream.awaiting import in_thread
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.reader import Reader

AT_ONCE = 20_000
"""With more subjects than this the newest message of each is looked up in a thread."""


class ConsumerStart(msgspec.Struct, frozen=True):
    """Start of a consumer: `picked` messages are delivered first, ascending, then those from `seq` on."""

    seq: int
    picked: list[int] = []


def needs_lookup(config: ConsumerConfig, store: Store) -> bool:
    """Return True if finding the start takes long or may read the lake: then use `start_found`, not `start_of`."""
    match config.deliver_policy:
        case "by_start_time":
            return True
        case "last_per_subject":
            return len(store.subjects) > AT_ONCE and not all(map(is_literal, config.filters))
        case _:
            return False


async def start_found(config: ConsumerConfig, store: Store, reader: Reader, io: Io) -> ConsumerStart:
    """Return the start where `needs_lookup`; messages stored in the meantime come after it."""
    if config.deliver_policy == "last_per_subject":
        return await _last_of_many(config.filters, store, io)
    assert config.opt_start_time is not None, "checked by rules.check"
    seq = await reader.first_at(time_ns(config.opt_start_time))
    return ConsumerStart(seq or store.last_seq + 1)


async def _last_of_many(filters: Sequence[bytes], store: Store, io: Io) -> ConsumerStart:
    subjects = store.subjects.snapshot()
    following = store.last_seq + 1

    def pick() -> list[int]:
        choose, found = chooser(filters, b""), list[int]()
        for rows in subjects.rows():
            found += [rows[name] & MASK for name in choose(list(rows))]
        return sorted(found)

    picked = await in_thread(io, pick)
    return ConsumerStart(following, picked) if picked else _from_the_last(store, following - 1)


def start_of(config: ConsumerConfig, store: Store, next_seq: int) -> ConsumerStart:
    """Return the start for every policy but by_start_time, at once. `next_seq`: of the next message."""
    first = max(store.first_seq, 1)
    match config.deliver_policy:
        case "new":
            return ConsumerStart(next_seq)
        case "by_start_sequence":
            return ConsumerStart(max(config.opt_start_seq, first))
        case "last":
            return ConsumerStart(_last(config, store) or first)
        case "last_per_subject":
            index = store.subjects
            subjects = {subject for one in config.filters for subject in index.matching(one)}
            picked = sorted(filter(None, map(index.last, subjects)))
            return ConsumerStart(store.last_seq + 1, picked) if picked else _from_the_last(store, store.last_seq)
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
