"""The start of a new consumer.

Belongs here: deliver policies as sequences (docs/internals/consumers.md#start). They are computed before the consumer
is proposed, since applying an entry reads neither clock nor lake. Whatever takes long, or waits for the lake, does not
block the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.protocol.gotime import time_ns
from lakestream.protocol.subjects import Filters, is_literal, to_regex
from lakestream.stream.awaiting import in_thread
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.stream import StreamCore

AT_ONCE = 20_000
"""With more subjects than this the newest message of each is looked up in a thread."""


class Start(msgspec.Struct, frozen=True):
    """Start of a consumer: `picked` messages are delivered first, ascending, then those from `seq` on."""

    seq: int
    picked: list[int] = []


def needs_lookup(config: ConsumerConfig, stream: StreamCore) -> bool:
    """Return True if finding the start takes long or may read the lake: then use `start_found`, not `start_of`."""
    match config.deliver_policy:
        case "by_start_time":
            return True
        case "last_per_subject":
            return len(stream.store.subjects) > AT_ONCE and not all(map(is_literal, config.filters))
        case _:
            return False


async def start_found(config: ConsumerConfig, stream: StreamCore) -> Start:
    """Return the start for any policy; messages stored in the meantime come after it."""
    if config.deliver_policy == "last_per_subject":
        return await _last_of_many(config.filters, stream)
    if config.deliver_policy != "by_start_time":
        return start_of(config, stream)
    assert config.opt_start_time is not None, "checked by rules.check"
    seq = await stream.reader.first_at(time_ns(config.opt_start_time))
    return Start(seq or stream.store.last_seq + 1)


async def _last_of_many(filters: Sequence[bytes], stream: StreamCore) -> Start:
    subjects = stream.store.subjects.snapshot()
    following = stream.store.last_seq + 1

    def pick() -> list[int]:
        match = to_regex(filters[0]).fullmatch if len(filters) == 1 else Filters(filters).match
        return sorted(seq for name, seq in subjects.newest() if match(name))

    picked = await in_thread(stream.io, pick)
    return Start(following, picked) if picked else _from_the_last(stream, following - 1)


def start_of(config: ConsumerConfig, stream: StreamCore) -> Start:
    """Return the start for every policy but by_start_time, at once."""
    store = stream.store
    first = max(store.first_seq, 1)
    match config.deliver_policy:
        case "new":
            return Start(stream.pipeline.next_seq)
        case "by_start_sequence":
            return Start(max(config.opt_start_seq, first))
        case "last":
            return Start(_last(config, stream) or first)
        case "last_per_subject":
            index = store.subjects
            subjects = {subject for one in config.filters for subject in index.matching(one)}
            picked = sorted(filter(None, map(index.last, subjects)))
            return Start(store.last_seq + 1, picked) if picked else _from_the_last(stream, store.last_seq)
        case _:
            return Start(first)


def _from_the_last(stream: StreamCore, last: int) -> Start:
    """Return the start at the stream's last sequence, or at its first one after a purge."""
    return Start(max(last, stream.store.first_seq, 1))


def _last(config: ConsumerConfig, stream: StreamCore) -> int:
    """Return the sequence of the newest matching message, 0 if there is none."""
    index = stream.store.subjects
    if not config.filters or b">" in config.filters:
        return stream.store.live.previous_at_or_before(stream.store.last_seq)
    return max((index.last(subject) for one in config.filters for subject in index.matching(one)), default=0)
