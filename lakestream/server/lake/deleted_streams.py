"""Marking a deleted stream in the lake.

Belongs here: staging what a retained table still lacks, from the files that the stream has left, and marking the stream
as deleted for the compactor. One attempt, which blocks and may be repeated: the caller retries until it succeeds, and
keeps the files until then.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.errors import BadPolicy, StagingConflict
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check, policy, state
from lakestream.log.store.root import sealed_in
from lakestream.logging import Logger
from lakestream.protocol.decoding import JsonDecoder
from lakestream.stream.core.config import in_lake
from lakestream.stream.core.operations import CreateStream


class _Config(msgspec.Struct):
    """The needed part of a stream's configuration, which may be a newer release's."""

    name: str
    storage: str = "file"
    metadata: dict[str, str] = {}


_CONFIG = JsonDecoder(_Config)


def identity_of(create: CreateStream) -> StreamIdentity | None:
    """Return a deleted stream's identity in the lake; None for one that the lake never had."""
    config = _CONFIG.decode(create.config)
    if not in_lake(config.storage, config.metadata):
        return None
    return StreamIdentity(config.name, create.account, create.uid, create.created_ns, msgspec.Raw(create.config))


def keeps(stream: StreamIdentity) -> bool:
    """Return True if the stream's table outlives it."""
    try:
        return policy.of_config(bytes(stream.config)).keep_table
    except BadPolicy:
        return False  # the compactor reports the error


def settle(lake: str, stream: StreamIdentity, directory: str, log: Logger) -> None:
    """Stage what its table lacks of the files in `directory`, and mark the stream as deleted.

    Every replica of a stream does this with its own files: files of one range of entries hold the same, and a replica
    that has applied less has a shorter last file, which may or may not be in the table by the time of the longer one.

    Raises:
        OSError, LakeError: try again later. The files have to stay.
    """
    from lakestream.lake.staging.sealed import store_files  # only with a deleted stream

    storage, kept = open_storage(lake), keeps(stream)
    before = state.reached(storage, stream) if kept else 0
    damaged = check.damaged(storage, stream) if before and directory else []
    # Invariant 10: these files are the last segments that the store has. A damaged table needs all of them.
    reached = min(before, state.reached(storage, stream)) if kept and not damaged else 0
    owed = [each for each in sealed_in(store_files(), directory) if each[2] > reached] if kept and directory else []
    for path, first_index, last_index in owed:
        try:
            staging.stage(path, first_index, last_index, stream, lake)
        except StagingConflict as error:
            log.error(f"stream {stream.name}: {error}")  # the file there was staged before the deletion
    if damaged:
        log.error(f"stream {stream.name}: {check.describe(state.table_of(storage, stream), damaged)}")
        check.ask(lake, stream, damaged)
    staging.mark_deleted(lake, stream, kept)
    # The compactor may just have compacted another replica's segments and removed the directory.
    missing = staging.missing(lake, stream, [each[2] for each in owed])
    if missing and missing[-1] > state.reached(storage, stream):
        raise OSError(f"the staged segments of {stream.name} through entry {missing[-1]} are gone")
