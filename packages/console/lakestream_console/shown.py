"""Messages as the page gets them.

Belongs here: their JSON, in which payloads are base64. Pure functions.
"""

from __future__ import annotations

from typing import Any

from lakestream.protocol import headers
from lakestream.protocol.commands import Single


def shown(message: Single, most: int | None = None) -> dict[str, Any]:
    """Return a message. `most`: bytes of the payload that are shown; None: all."""
    payload = message.payload if most is None else message.payload[:most]
    page: dict[str, Any] = {
        "subject": message.subject.decode("utf-8", "replace"),
        "headers": headers_shown(message.header),
        "data_base64": payload,  # which msgspec encodes as base64
        "size": len(message.payload),
    }
    if message.reply:
        page["reply"] = message.reply.decode("utf-8", "replace")
    status = headers.status(message.header)
    if status.code:
        page |= {"status": status.code, "description": status.text.decode("utf-8", "replace")}
    return page


def headers_shown(block: bytes) -> dict[str, list[str]]:
    """Return the headers of a block, each with its values."""
    found: dict[str, list[str]] = {}
    for name, value in headers.parse(block):
        found.setdefault(name.decode("utf-8", "replace"), []).append(value.decode("utf-8", "replace"))
    return found
