"""Settings of the registry: compatibility and mode of the account and of subjects, and deleted versions.

Belongs here: the entries of the key-value bucket `SCHEMA_REGISTRY` and their meaning. The schemas themselves are in the
bucket `SCHEMAS`, where a deleted version stays: rows of tables and messages of streams refer to it.

    global              the account
    subject.<name>      a subject, by the name of its schema
"""

from __future__ import annotations

import msgspec

from lakestream.account.schemas import bucket
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

BUCKET = "SCHEMA_REGISTRY"
STREAM = f"KV_{BUCKET}"
SUBJECTS = f"$KV.{BUCKET}."
GLOBAL = "global"
OF_SUBJECT = "subject."
LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
DEFAULT_LEVEL, DEFAULT_MODE = "BACKWARD", "READWRITE"


class RegistrySettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry. `level`, `mode`: "" for those of the account, or the defaults; `deleted`: versions that only requests
    with `deleted=true` see; `removed`: versions that no request sees."""

    level: str = ""
    mode: str = ""
    deleted: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


_ENTRY = JsonDecoder(RegistrySettings)
NOTHING = RegistrySettings()


def entry_of(raw: bytes) -> RegistrySettings:
    """Return an entry; one that does not decode counts as none."""
    try:
        return _ENTRY.decode(raw)
    except DECODE_ERRORS:
        return NOTHING


def stream_config(replicas: int) -> dict[str, object]:
    """Return the configuration of the bucket's stream: that of the schemas' bucket, with one message for each key."""
    own = {"name": STREAM, "description": "Settings of the schema registry (lakestream)", "subjects": [f"{SUBJECTS}>"]}
    return bucket.stream_config(replicas) | own | {"max_msgs_per_subject": 1}
