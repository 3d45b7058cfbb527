"""Samples of a stream's messages.

Belongs here: reading some messages from all parts of a stream.
"""

from __future__ import annotations

from lakestream.cli.link import ClientLink, TransferFailed
from lakestream.log.format.record import Record
from lakestream.protocol.subjects import matches

MAX_COUNT = 10_000
"""Maximum number of messages of a sample."""
MAX_BYTES = 64 << 20
"""Maximum size of their payloads, together."""
PARTS = 10
"""Number of places of a stream, at equal distances, from which messages are taken."""


def sampled(link: ClientLink, stream: str, subject: str, count: int) -> list[Record]:
    """Return up to `count` messages, ascending: all if there are no more, else the first ones of `PARTS` parts.

    Args:
        stream: its name.
        subject: pattern of the messages that count; others are read and left out.

    Raises:
        TransferFailed: there is no such stream, or the server does not answer.
    """
    info = link.stream(stream)
    if info is None:
        raise TransferFailed(f"there is no stream {stream}")
    first, last = info["state"]["first_seq"], info["state"]["last_seq"]
    parts = PARTS if info["state"]["messages"] > count else 1
    found: list[Record] = []
    size = 0
    for part in range(parts):
        low = first + (last - first + 1) * part // parts
        high = first + (last - first + 1) * (part + 1) // parts - 1
        until = count * (part + 1) // parts
        for block in link.messages(stream, low, high):
            for record in block:
                if len(found) >= until:
                    break
                if matches(subject.encode(), record.subject):
                    size += len(record.data)
                    if size > MAX_BYTES:
                        return found
                    found.append(record)
            if len(found) >= until:
                break
    return found
