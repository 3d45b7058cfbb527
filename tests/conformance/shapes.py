"""Answers compared by what they consist of: names and kinds, without the values.

What belongs here: what a page shows is the server's own, its fields are not; which fields only one of the two servers
has, with the reason.
"""

from __future__ import annotations

from typing import Any

OURS_ALONE = {"lakestream", "lake", "sync_always"}
"""Fields that nats-server does not have."""

NOT_MEASURED = {
    # About Go, or parts that this server does not have.
    "git_commit",
    "go",
    "gomaxprocs",
    "tls_timeout",
    "feature_flags",
    "disk_io_wait_stats",
    "stalled_clients",
    # nats-server's cache of its subject tree.
    "num_cache",
    "num_inserts",
    "num_removes",
    "num_matches",
    "cache_hit_rate",
    "max_fanout",
    "avg_fanout",
    "sublist_stats",
    # When it is first measured is up to the server.
    "rtt",
    # A sync interval where every ack waits for the disk would mislead.
    "sync_interval",
}


def shape(value: Any) -> Any:
    """Names and kinds, without the values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items() if name not in OURS_ALONE | NOT_MEASURED}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        if shapes and isinstance(shapes[0], dict):
            return [{name: item for one in sorted(shapes, key=str) for name, item in one.items()}]
        return shapes[:1]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def order(value: Any) -> list[str]:
    """Field names of a page, outermost, in order."""
    return [name for name in value if name not in OURS_ALONE | NOT_MEASURED]
