"""Defaults of streams' `lakestream.*` metadata by name.

Belongs here: the metadata that a stream gets by the pattern that its name matches, where a request does not set it. The
Key-Value and Object Store APIs of clients cannot set metadata, so buckets get theirs from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table.policy import CLONE_AS_OF_KEY, LAKE_KEY, PREFIX, TIME_TRAVEL_PROPERTY, parse

Metadata = dict[str, str]
Complete = Callable[[Mapping[str, str], Mapping[str, str] | None, Metadata], Metadata]
"""Completes requested metadata: `of_creation` or `of_update`."""

BUILT_IN = {pattern: {TIME_TRAVEL_PROPERTY: "7d"} for pattern in ("KV_*", "OBJ_*")}
"""Buckets can be read as of any time of the last 7 days, the maintainer's default retention of versions."""
_OPEN = {LAKE_KEY, TIME_TRAVEL_PROPERTY}
"""Keys that may have had a default when a stream was created."""


def checked(settings: Mapping[str, str]) -> Metadata:
    """Return metadata from keys without the prefix `lakestream.`.

    Raises:
        BadPolicy: an unknown key, or a value outside its grammar.
    """
    metadata = {PREFIX + key: value for key, value in settings.items()}
    if CLONE_AS_OF_KEY in metadata:
        raise BadPolicy(CLONE_AS_OF_KEY, "has no default, each mirror names its own point")
    parse(metadata)
    return metadata


def of_name(name: str, defaults: Mapping[str, Mapping[str, str]]) -> Metadata:
    """Return the metadata for a stream's name.

    Args:
        name: of the stream.
        defaults: metadata by pattern (`*` any characters, `?` one, `[…]` one of these). The first pattern that matches
            and has a key decides it; the built-in ones come last.
    """
    found: Metadata = {}
    for pattern, metadata in (*defaults.items(), *BUILT_IN.items()):
        if fnmatchcase(name, pattern):
            found = {**metadata, **found}
    return found


def of_creation(metadata: Mapping[str, str], existing: Mapping[str, str] | None, found: Metadata) -> Metadata:
    """Return the metadata of a creation: keys that it does not set have their defaults.

    If the stream exists, they are what they are there, so a client that creates its bucket at each start does not fail
    after a change of the defaults.

    Args:
        metadata: as requested.
        existing: of the stream, if it exists.
        found: the defaults.
    """
    if existing is not None:
        found = {key: value for key, value in existing.items() if key in _OPEN or key in found}
    return {**found, **metadata}


def of_update(metadata: Mapping[str, str], existing: Mapping[str, str] | None, found: Metadata) -> Metadata:
    """Return the metadata of an update: as of a creation, but whether the stream is in the lake stays as it is."""
    others = {key: value for key, value in found.items() if key != LAKE_KEY}
    kept = {key: value for key, value in (existing or {}).items() if key == LAKE_KEY}
    return {**others, **kept, **metadata}
