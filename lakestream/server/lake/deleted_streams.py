"""What the lake gets of a deleted stream.

Belongs here: staging what a table that outlives its stream still lacks, from the files that the stream has left, and
telling the compactor that the stream is gone. One attempt, which blocks and may be repeated: whoever calls it goes on
until it succeeds, and keeps the files until then.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.delta import policy, position, verify
from lakestream.lake.errors import BadPolicy, StagingConflict
from lakestream.lake.files import staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.staging import StreamIdentity
from lakestream.log.format.files import Files
from lakestream.log.store.root import sealed_in
from lakestream.logging import Logger
from lakestream.stream.core.operations import CreateStream


class _Config(msgspec.Struct):
    """What matters here of a stream's configuration, which may be a newer release's."""

    name: str
    storage: str = "file"


def identity_of(create: CreateStream) -> StreamIdentity | None:
    """A deleted stream as the lake knows it; None when it lived in memory, and the lake never heard of it."""
    config = msgspec.json.decode(create.config, type=_Config)
    if config.storage == "memory":
        return None
    return StreamIdentity(config.name, create.account, create.uid, create.created_ns, msgspec.Raw(create.config))


def keeps(stream: StreamIdentity) -> bool:
    """Whether its table outlives it."""
    try:
        return policy.of_config(bytes(stream.config)).keep_table
    except BadPolicy:
        return False  # the compactor says what is wrong with it


def settle(lake: str, stream: StreamIdentity, directory: str, log: Logger) -> None:
    """Stage what its table is owed of the files in `directory`, and mark it as deleted.

    Every replica of a stream does it for what it has: their files of a range of entries hold the same, and one that has
    applied less has a shorter last file, which the table may have or not have by the time of the longer one.

    Raises:
        OSError, LakeError: not now. The files have to stay.
    """
    storage, kept = open_storage(lake), keeps(stream)
    before = position.reached(storage, stream) if kept else 0
    damaged = verify.damaged(storage, stream) if before and directory else []
    # Invariant 10: these files are the last segments that the store has. A table that is not whole is owed all of them.
    reached = min(before, position.reached(storage, stream)) if kept and not damaged else 0
    owed = [each for each in sealed_in(Files(), directory) if each[2] > reached] if kept and directory else []
    for path, first_index, last_index in owed:
        try:
            staging.stage(path, first_index, last_index, stream, lake)
        except StagingConflict as error:
            log.error(f"stream {stream.name}: {error}")  # what is there was staged while the stream lived
    if damaged:
        log.error(f"stream {stream.name}: {verify.describe(position.own(storage, stream), damaged)}")
        verify.ask(lake, stream, damaged)
    staging.mark_deleted(lake, stream, kept)
    # The compactor may just have been done with what another replica had staged, and cleared the place.
    missing = staging.missing(lake, stream, [each[2] for each in owed])
    if missing and missing[-1] > position.reached(storage, stream):
        raise OSError(f"what was staged of {stream.name} through entry {missing[-1]} was taken away")
