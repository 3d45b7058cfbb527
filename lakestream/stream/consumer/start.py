"""Where a new consumer begins.

Belongs here: deliver policies as sequences (docs/internals/consumers.md#start). They are worked out before the consumer
is proposed, because applying an entry reads neither clock nor lake. What takes long, or has to wait, is done beside the
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lakestream.protocol.gotime import time_ns
from lakestream.protocol.subjects import Filters, is_literal, to_regex
from lakestream.stream.awaiting import in_thread
from lakestream.stream.consumer.config import ConsumerConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


AT_ONCE = 20_000
"""With more subjects than this their newest messages are picked in a thread."""


class Start(msgspec.Struct, frozen=True):
    """`seq`: the first sequence to look at; `picked`: what goes out before that, ascending."""

    seq: int
    picked: list[int] = []


def needs_lookup(config: ConsumerConfig, stream: Stream) -> bool:
    """Whether finding the start takes long, or may have to wait for the lake: ask `start_found`, not `start_of`."""
    match config.deliver_policy:
        case "by_start_time":
            return True
        case "last_per_subject":
            return len(stream.store.subjects) > AT_ONCE and not all(map(is_literal, config.filters))
        case _:
            return False


async def start_found(config: ConsumerConfig, stream: Stream) -> Start:
    """The start for every policy; what is stored while it is looked for comes after it."""
    if config.deliver_policy == "last_per_subject":
        return await _last_of_many(config.filters, stream)
    if config.deliver_policy != "by_start_time":
        return start_of(config, stream)
    assert config.opt_start_time is not None, "checked by consumer_rules.check"
    seq = await stream.first_at(time_ns(config.opt_start_time))
    return Start(seq or stream.store.last_seq + 1)


async def _last_of_many(filters: Sequence[bytes], stream: Stream) -> Start:
    subjects = stream.store.subjects.snapshot()
    following = stream.store.last_seq + 1

    def pick() -> list[int]:
        match = to_regex(filters[0]).fullmatch if len(filters) == 1 else Filters(filters).match
        return sorted(seq for name, seq in subjects.newest() if match(name))

    picked = await in_thread(stream.io, pick)
    return Start(following, picked) if picked else _from_the_last(stream, following - 1)


def start_of(config: ConsumerConfig, stream: Stream) -> Start:
    """The start for every policy but by_start_time, found at once."""
    store = stream.store
    first = max(store.first_seq, 1)
    match config.deliver_policy:
        case "new":
            return Start(stream.next_seq)
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


def _from_the_last(stream: Stream, last: int) -> Start:
    """The last sequence itself, which is not wanted; of a purged stream it is gone, and the next one is the first."""
    return Start(max(last, stream.store.first_seq, 1))


def _last(config: ConsumerConfig, stream: Stream) -> int:
    """The newest wanted message, 0 when there is none."""
    index = stream.store.subjects
    if not config.filters or b">" in config.filters:
        return stream.store.live.previous_at_or_before(stream.store.last_seq)
    return max((index.last(subject) for one in config.filters for subject in index.matching(one)), default=0)
