"""Where a new consumer begins.

Belongs here: deliver policies as sequences (consumers.md §2). They are worked out before the consumer is proposed,
because applying an entry reads neither clock nor lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.jetstream.consumer_config import ConsumerConfig
from lakestream.jetstream.gotime import time_ns

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream


class Start(msgspec.Struct, frozen=True):
    """`seq`: the first sequence to look at; `picked`: what goes out before that, ascending."""

    seq: int
    picked: list[int] = []


def needs_lookup(config: ConsumerConfig) -> bool:
    """Whether finding the start may have to wait for the lake."""
    return config.deliver_policy == "by_start_time"


def start_of(config: ConsumerConfig, stream: Stream) -> Start:
    """The start for every policy but by_start_time."""
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
            return Start(store.last_seq + 1, picked) if picked else Start(max(store.last_seq, 1))
        case _:
            return Start(first)


def _last(config: ConsumerConfig, stream: Stream) -> int:
    """The newest wanted message, 0 when there is none."""
    index = stream.store.subjects
    if not config.filters or b">" in config.filters:
        return stream.store.live.previous_at_or_before(stream.store.last_seq)
    return max((index.last(subject) for one in config.filters for subject in index.matching(one)), default=0)


async def start_at_time(config: ConsumerConfig, stream: Stream) -> Start:
    """The start for by_start_time: the first message at or after that instant, else what comes next."""
    assert config.opt_start_time is not None, "checked by consumer_rules.check"
    seq = await stream.first_at(time_ns(config.opt_start_time))
    return Start(seq or stream.store.last_seq + 1)
