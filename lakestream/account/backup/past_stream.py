"""A new stream with the messages that another one held in the past, as an archive to restore.

Belongs here: its configuration, and its archive, without any client: `lakestream restore` and the console send it. The
messages are found in packages/client/lakestream_client/lake/past.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from lakestream.account.backup import archive
from lakestream.log.format.record import Record
from lakestream.protocol import s2

CHUNK_BYTES = 128 << 10
"""Size of a chunk of the archive (128 KiB), unless messages may not have so many bytes."""

_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
_OF_SERVER = ("_nats.ver", "_nats.level")


def restored_config(config: dict[str, Any], to: str, *, unlimited: bool = False) -> dict[str, Any]:
    """Return the configuration of the new stream, which is no mirror any more.

    Args:
        unlimited: without the limits of age and size, which would delete old messages at once.
    """
    left_out = {"mirror", "sources", *(_LIMITS if unlimited else ())}
    kept = {name: value for name, value in config.items() if name not in left_out}
    metadata = kept.get("metadata") or {}
    return kept | {"name": to, "metadata": {key: value for key, value in metadata.items() if key not in _OF_SERVER}}


def empty_state(first_seq: int) -> dict[str, int]:
    """Return a stream state with the first sequence; the number of messages is not known."""
    return {"messages": 0, "bytes": 0, "first_seq": first_seq, "last_seq": first_seq - 1, "consumer_count": 0}


def packed(state: dict[str, int], blocks: Iterable[list[Record]]) -> Iterator[bytes]:
    """Yield the archive as an S2 stream, in pieces."""
    now = time.time_ns()
    yield s2.MAGIC + s2.encode(archive.MAGIC + archive.entry(archive.STATE_NAME, now, body=json.dumps(state).encode()))
    for block in blocks:
        yield s2.encode(archive.messages(block))
    yield s2.encode(archive.END)


def chunks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in chunks of one size; the last one may be shorter."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
