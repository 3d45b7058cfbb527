"""Names of accounts, and the JetStream limits of one.

Belongs here: what every part needs to know of accounts. Users, imports and exports are configuration.
"""

from __future__ import annotations

import msgspec

GLOBAL_ACCOUNT = "$G"
"""The account of clients without one of their own."""

SYSTEM_ACCOUNT = "$SYS"
"""The default name of the system account."""


class JetStreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`jetstream` of an account: bytes and counts; -1: no limit. `max_consumers` applies to each stream.

    0 means no limit too, except for `max_memory` and `max_file`, where it allows nothing (as in nats-server).
    `tiers`: limits by number of replicas (`R1`, `R3`), instead of the others.
    """

    max_memory: int = -1
    max_file: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    disk_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    tiers: tuple[tuple[str, JetStreamLimits], ...] = ()

    def storage(self, storage: str) -> int:
        """Return the limit of all streams of one storage type together."""
        return self.max_memory if storage == "memory" else self.max_file

    def tier(self, replicas: int) -> JetStreamLimits | None:
        """Return the limits of streams with so many replicas; None: there may be none."""
        return dict(self.tiers).get(tier_of(replicas)) if self.tiers else self


def tier_of(replicas: int) -> str:
    """Return the name of the tier of a stream."""
    return f"R{max(1, replicas)}"


UNLIMITED = JetStreamLimits()
