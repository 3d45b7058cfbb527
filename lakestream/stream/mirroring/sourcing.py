"""What an origin makes of the consumers that mirrors and sources ask for.

Belongs here: the one request that they send whatever the origin is (docs/internals/streams.md#mirrors-and-sources), as
the consumer that this stream needs: hidden and without acks where limits alone remove messages, a durable one whose
acks come with flow control where messages go once they are acked.
"""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakestream.stream.consumer.config import ConsumerConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

_LETTERS = string.digits + string.ascii_letters


def as_served(config: ConsumerConfig, stream: Stream) -> ConsumerConfig:
    """The configuration of the consumer that serves a mirror or a source which asked for `config`."""
    name = config.name
    if stream.config.retention == "limits":
        # Each attempt has one of its own: that of an earlier one goes when nobody listens to it any more.
        return replace(config, name=f"{name}-{''.join(random.choices(_LETTERS, k=8))}") if name else config
    known = stream.consumers.get(name)
    if known is not None:  # what it has not acked has to come again, and nothing else: it goes on where it is
        began = known.config
        config = replace(
            config,
            deliver_policy=began.deliver_policy,
            opt_start_seq=began.opt_start_seq,
            opt_start_time=began.opt_start_time,
        )
    return replace(
        config,
        durable_name=name,
        ack_policy="flow_control",
        ack_wait=0,
        max_deliver=-1,
        inactive_threshold=0,
        direct=False,
    )
