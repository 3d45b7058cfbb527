"""Fingerprints of Avro schemas.

Belongs here: the one that payloads of the single-object encoding have in front.

Source: Avro specification, "Schema Fingerprints".
"""

from __future__ import annotations

import msgspec
from fastavro.schema import fingerprint as crc
from fastavro.schema import to_parsing_canonical_form


def fingerprint(text: str) -> bytes:
    """Return the CRC-64-AVRO of a schema's canonical form, as it stands in messages."""
    return bytes.fromhex(crc(to_parsing_canonical_form(msgspec.json.decode(text)), "CRC-64-AVRO"))
