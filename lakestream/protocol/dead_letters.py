"""Dead letters: the setting in a consumer's metadata, and the headers of a letter.

Belongs here: what the server writes and `lakestream consumer redrive` reads. A letter about a misfit names no consumer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

KEY = "lakestream.dead_letter"
PREFIX = "Dead-Letter-"
REASON, DELIVERIES, TIME = PREFIX + "Reason", PREFIX + "Deliveries", PREFIX + "Time"
STREAM, CONSUMER, SUBJECT, SEQUENCE = PREFIX + "Stream", PREFIX + "Consumer", PREFIX + "Subject", PREFIX + "Sequence"
SCHEMA = PREFIX + "Schema"


class DeadLetterSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the metadata: where letters go, and after what; "": after any of both."""

    subject: str
    after: str = ""


_SETTING = JsonDecoder(DeadLetterSetting)


def setting_of(metadata: Mapping[str, str]) -> DeadLetterSetting | None:
    """Return a consumer's setting, None without one. Raises ValueError, which says why it is none."""
    text = metadata.get(KEY)
    if not text:
        return None
    if not text.startswith("{"):
        return DeadLetterSetting(text)
    try:
        return _SETTING.decode(text)
    except DECODE_ERRORS as error:
        raise ValueError(f"it is neither a subject nor a JSON object with `subject` and `after`: {error}") from None
