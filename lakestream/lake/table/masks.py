"""Masks: fields of a stream's payloads that SQL hides from users without a role.

Belongs here: the metadata keys, their grammar, and finding the masks of a table. packages/sql applies them.

    lakestream.mask         {"email": "hash", "$.address.street": "null", "ssn": "last4"}
    lakestream.mask_clear   ["alice", "tag:support"]     users, and tags of users, that see them

A field is a path into the payload; one of a single name is the typed column of that name, too. The bytes on NATS and
in the files stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Literal

import msgspec

from lakestream.lake.errors import BadPolicy
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.log import TableLog, has_log
from lakestream.lake.table.schema import CLEAR_KEY, MASK_KEY, UID_PROPERTY
from lakestream.protocol.decoding import DECODE_ERRORS

MAX_MASKS = 64
"""Maximum number of fields and of roles of one stream."""
MAX_DEPTH = 16
"""Maximum number of names of a path."""
MISFITS, LATEST = "_misfits", "_latest"

How = Literal["hash", "null", "last4"]
_PATH = re.compile(r"(?:\$\.)?([^.\[\]$*\s]+(?:\.[^.\[\]$*\s]+)*)")


class Mask(msgspec.Struct, frozen=True):
    """A field, by the names on the way to it, and what takes the place of its value: a keyed hash, NULL, or its last
    four letters."""

    path: tuple[str, ...]
    how: How


class Masks(msgspec.Struct, frozen=True):
    """The masks of a stream. `clear`: roles that see the fields."""

    fields: tuple[Mask, ...] = ()
    clear: tuple[str, ...] = ()

    def hide_from(self, roles: Collection[str]) -> bool:
        """Return True if a user with these roles does not see the fields."""
        return bool(self.fields) and not set(roles).intersection(self.clear)


NO_MASKS = Masks()
_FIELDS, _ROLES = msgspec.json.Decoder(dict[str, How]), msgspec.json.Decoder(list[str])


@lru_cache(maxsize=256)
def parse(text: str | None, clear: str | None = None) -> Masks:
    """Return the masks of a stream's metadata. Raises BadPolicy."""
    if text is None:
        if clear is not None:
            raise BadPolicy(CLEAR_KEY, f"there is nothing to see clear without {MASK_KEY}")
        return NO_MASKS
    try:
        fields = _FIELDS.decode(text)
    except DECODE_ERRORS as error:
        expected = 'an object of fields is expected, each with hash, null or last4: {"$.card": "hash", "email": "null"}'
        raise BadPolicy(MASK_KEY, f"{expected} ({error})") from None
    if not 0 < len(fields) <= MAX_MASKS:
        raise BadPolicy(MASK_KEY, f"1 to {MAX_MASKS} fields are expected")
    return Masks(tuple(Mask(_path(name), how) for name, how in fields.items()), _roles(clear))


def _path(name: str) -> tuple[str, ...]:
    found = _PATH.fullmatch(name)
    names = tuple(found[1].split(".")) if found is not None else ()
    if not 0 < len(names) <= MAX_DEPTH:
        reason = "write email or $.address.street; a field in a list is that of each item"
        raise BadPolicy(MASK_KEY, f"{name!r} is not a field: {reason}")
    return names


def _roles(clear: str | None) -> tuple[str, ...]:
    try:
        roles = _ROLES.decode(clear or "[]")
    except DECODE_ERRORS as error:
        raise BadPolicy(CLEAR_KEY, f'a list is expected: ["alice", "tag:support"] ({error})') from None
    if len(roles) > MAX_MASKS or not all(roles):
        raise BadPolicy(CLEAR_KEY, f"at most {MAX_MASKS} names are expected")
    return tuple(roles)


class _Config(msgspec.Struct):
    metadata: dict[str, str] | None = None


_CONFIG = msgspec.json.Decoder(_Config)


def of_config(config: bytes) -> Masks:
    """Return the masks of a stream with this configuration, as JSON. Raises BadPolicy."""
    try:
        metadata = _CONFIG.decode(config or b"{}").metadata or {}
    except DECODE_ERRORS as error:
        raise BadPolicy(MASK_KEY, f"the stream's configuration does not decode: {error}") from None
    return parse(metadata.get(MASK_KEY), metadata.get(CLEAR_KEY))


def of_table(storage: Storage, table: str) -> Masks:
    """Return the masks of the stream of a table, or of a table beside it (misfits, upsert table): those of the live
    stream, and for what a deleted stream has left those of the table, which follow with its next commit.

    Args:
        table: path of the table, whether it exists or not.
    """
    base, _, name = table.rpartition(f"/{paths.STREAMS}/")
    found = [_of(storage, base, name)]
    beside = name.rstrip("_")  # where the name was taken, it has further underscores
    found += [_of(storage, base, beside.removesuffix(end)) for end in (MISFITS, LATEST) if beside.endswith(end)]
    return max(found, key=lambda masks: len(masks.fields))


def _of(storage: Storage, base: str, name: str) -> Masks:
    identity = staging.live_identity(storage, f"{base}/{paths.SEGMENTS}/{name}")
    table = f"{base}/{paths.STREAMS}/{name}"
    if has_log(storage, table):
        log = TableLog(storage, table)
        properties = log.metadata_of(log.latest).get("configuration") or {}
        if identity is None or properties.get(UID_PROPERTY) != identity.uid:
            kept = parse(properties.get(MASK_KEY), properties.get(CLEAR_KEY))
            return kept if identity is None or kept.fields else of_config(bytes(identity.config))
    return NO_MASKS if identity is None else of_config(bytes(identity.config))
