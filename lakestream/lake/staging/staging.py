"""The staging area: sealed segments that wait for compaction.

Belongs here: putting a sealed segment file into the lake and deleting it again, and the mark of deleted streams. The
server stages segments and deletes them once the table holds them. The compactor only reads, except that it removes the
directory of a stream that the server has marked as deleted, once the table is complete or gone. Every function may be
repeated after a crash.

Invariant: a file with its final name is complete, and a segment never changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from zlib import crc32

import msgspec

from lakestream.lake.errors import BadIdentity, BadSegment, NewerIdentity, StagingConflict
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.segment import Footer, read_footer
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

REFUSAL_FILE = "refused.txt"
"""File with the compactor's last error about the stream's table, as long as it cannot write it."""


class StreamIdentity(msgspec.Struct, frozen=True):
    """Identity of the stream of a staging directory.

    `config` is the stream's configuration as JSON text; of an `encrypted` one, whose table is encrypted, only its
    `lakestream.*` metadata are written: no subject, no description. `sealed_segments`: its staged segments are
    encrypted.
    """

    name: str
    account: str
    uid: str
    created_ns: int
    config: msgspec.Raw = msgspec.Raw(b"{}")
    encrypted: bool = False
    sealed_segments: bool = False


class _Shown(msgspec.Struct):
    """The part of a configuration that the compactor needs."""

    metadata: dict[str, str] = {}


class _Versioned(msgspec.Struct):
    """Form of the file since format 2, for identities that earlier releases must not act on."""

    format: int = 1
    stream: msgspec.Raw = msgspec.Raw(b"")


FORMAT = 2
"""Newest format of the file: 1 is the identity itself, 2 is `{"format": 2, "stream": identity}`. Releases that cannot
read encrypted segments, or would append plain files to an encrypted table, find no name in the latter: they print a
line about the file and leave the stream alone. A format beyond this one is refused here in the same way."""
_STREAM_IDENTITY = JsonDecoder(StreamIdentity)
_SHOWN = JsonDecoder(_Shown)
_VERSIONED = JsonDecoder(_Versioned)
_CHECK = b',"crc":'
"""Begins the last field of the file: the CRC-32 of the object without it. Earlier releases wrote none."""


def encode_identity(stream: StreamIdentity) -> bytes:
    """Return the content of the file with a stream's identity."""
    if stream.encrypted:
        metadata = _SHOWN.decode(bytes(stream.config)).metadata
        config = _Shown({key: value for key, value in metadata.items() if key.startswith("lakestream.")})
        stream = msgspec.structs.replace(stream, config=msgspec.Raw(msgspec.json.encode(config)))
    plain = msgspec.json.encode(stream)
    if stream.encrypted or stream.sealed_segments:
        plain = b'{"format":%d,"stream":%b}' % (FORMAT, plain)
    return plain[:-1] + _CHECK + b"%d}" % crc32(plain)


def _decode_identity(path: str, content: bytes) -> StreamIdentity:
    """Decode such a file. Raise ValueError for one whose CRC is another, NewerIdentity, one of DECODE_ERRORS."""
    plain, check, crc = content.rpartition(_CHECK)
    if check and crc != b"%d}" % crc32(plain + b"}"):
        raise ValueError("the crc is wrong")
    found = _VERSIONED.decode(content)
    if found.format > FORMAT:
        raise NewerIdentity(path, found.format)
    return _STREAM_IDENTITY.decode(content if found.format == 1 else bytes(found.stream))


class StagedSegment(msgspec.Struct, frozen=True, order=True):
    """A staged file of `size` bytes with the log entries `first_index` to `last_index`."""

    first_index: int
    last_index: int
    path: str
    size: int


class StagedStream(msgspec.Struct, frozen=True):
    """A staging directory.

    `deleted`: the stream was deleted. `last_index`: the last staged log index, 0 for none. `asks`: the server requests
    that the table begin as a clone (clone_request.py). `damaged`: the server has found the table damaged and requests a
    repair. `refused`: the compactor could not write the table at its last attempt.
    """

    directory: str
    identity: StreamIdentity
    deleted: bool
    last_index: int = 0
    asks: bool = False
    damaged: bool = False
    refused: bool = False


def stage(sealed: str | os.PathLike[str], first_index: int, last_index: int, stream: StreamIdentity, lake: str) -> str:
    """Put a sealed segment into the lake's staging area and return its path there.

    The file is hard-linked where the file system allows it, else copied under a temporary name, synced and renamed.
    Staging the same segment again does nothing, whichever replica does it: replicas' files of one range hold the same
    entries, but not the same bytes.

    Args:
        sealed: the segment file, sealed and synced.
        first_index: log index of its first entry, last_index: of its last.
        stream: the segment's stream.
        lake: the lake's root.

    Raises:
        UnsupportedLake: the lake's address cannot hold one.
        StagingConflict: another segment with other content has that place.
        OSError, StorageFailed: the file system or the object store refuses.
    """
    from lakestream.lake.staging.sealed import is_sealed, put_key  # only with the first segment

    storage = open_storage(lake)
    directory = directory_of(lake, stream)
    if is_sealed(os.fspath(sealed)):
        stream = msgspec.structs.replace(stream, sealed_segments=True)
    introduce(storage, directory, stream)
    target = f"{directory}/{paths.segment_name(first_index, last_index)}"
    put_key(storage, directory, os.fspath(sealed))
    try:
        storage.put_file(target, sealed)
    except FileExistsError:
        if not _same_entries(storage, target, sealed):
            raise StagingConflict(target) from None
    announce(lake)
    return target


def announce(lake: str) -> None:
    """Tell a waiting compactor that segments were staged (lakestream_spark/write/news.py)."""
    storage = open_storage(lake)
    storage.touch(f"{storage.root}/{paths.SEGMENTS}")


def _same_entries(storage: Storage, target: str, sealed: str | os.PathLike[str]) -> bool:
    """Return True if a staged segment holds the same entries as another replica's, which differs in salt and sealing
    time."""
    from lakestream.lake.staging.sealed import reader  # only with the first segment

    try:
        footer, tables, end = read_footer(os.fspath(sealed), reader(os.fspath(sealed)))
        with storage.fetch(target) as there:
            staged, staged_tables, staged_end = read_footer(there, reader(there, target))
    except CorruptLog:
        return False
    same = msgspec.structs.replace(staged, closed_ns=footer.closed_ns) == footer
    return same and staged_end == end and staged_tables.lengths == tables.lengths


def mark_deleted(lake: str, stream: StreamIdentity, keep: bool = False) -> None:
    """Mark a stream as deleted; the compactor then removes or completes its table.

    With `keep` the table stays and gets the staged segments first; else they are deleted now. The first mark counts: a
    replica that was away may not know the stream's last configuration.
    """
    storage = open_storage(lake)
    directory = directory_of(lake, stream)
    if is_marked(storage, directory):
        return
    introduce(storage, directory, stream)
    storage.write(f"{directory}/{paths.DELETED_FILE}", b"")
    if not keep:
        storage.delete_all(segment.path for segment in segments(directory))


def is_marked(storage: Storage, directory: str) -> bool:
    """Return True if a staging directory names its stream and marks it as deleted."""
    return all(storage.exists(f"{directory}/{name}") for name in (paths.STREAM_FILE, paths.DELETED_FILE))


def missing(lake: str, stream: StreamIdentity, ends: list[int]) -> list[int]:
    """Return the last indexes of those segments that are not staged; all of them when the directory has no deletion
    mark."""
    directory = directory_of(lake, stream)
    staged = {segment.last_index for segment in segments(directory)}
    return [end for end in ends if end not in staged or not is_marked(open_storage(lake), directory)]


def segments(directory: str) -> list[StagedSegment]:
    """Return the staged segments of one stream in log order; none when there is no directory."""
    return staged_segments(open_storage(directory).list(directory))


def footer(path: str) -> Footer:
    """Read the footer of a sealed segment. Raises BadSegment when it is damaged, SegmentSealed, OSError."""
    from lakestream.lake.staging.sealed import reader  # only with the first segment

    with open_storage(path).fetch(path) as local:
        files = reader(local, path)
        try:
            return read_footer(local, files)[0]
        except CorruptLog as error:
            raise BadSegment(path, error.offset, error.what) from None


def current(streams: list[StagedStream]) -> tuple[list[StagedStream], list[StagedStream]]:
    """Split a scan into (live streams, deleted streams).

    Of several streams with one name only the one created last can be live, unless it is marked as deleted.
    """
    newest = {(each.identity.account, each.identity.name): each.directory for each in streams}
    live: list[StagedStream] = []
    gone: list[StagedStream] = []
    for each in streams:
        alive = not each.deleted and newest[each.identity.account, each.identity.name] == each.directory
        (live if alive else gone).append(each)
    return live, gone


def read_identity(directory: str) -> StreamIdentity | None:
    """Return the stream of a staging directory; None while the directory is being created or removed.

    Raise BadIdentity when the file of its name is damaged, or NewerIdentity.
    """
    path = f"{directory}/{paths.STREAM_FILE}"
    try:
        content = open_storage(directory).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _decode_identity(path, content)
    except (ValueError, *DECODE_ERRORS) as error:
        raise BadIdentity(path, str(error)) from error


def live_identity(storage: Storage, name_directory: str) -> StreamIdentity | None:
    """Return the live stream among the staging directories of one name; None when there is none."""
    found = []
    for uid in storage.directories(name_directory):
        if not storage.exists(f"{name_directory}/{uid}/{paths.DELETED_FILE}"):
            identity = read_identity(f"{name_directory}/{uid}")
            if identity is not None:
                found.append(identity)
    return max(found, key=lambda identity: (identity.created_ns, identity.uid), default=None)


def discard(directory: str) -> None:
    """Remove the staging directory of a deleted stream, after its table is gone."""
    storage = open_storage(directory)
    storage.delete(f"{directory}/{paths.CLONE_FILE}")  # before the deletion mark
    storage.delete_tree(directory)
    _clear_name(storage, directory)


def discard_through(directory: str, stream: StreamIdentity, index: int) -> None:
    """Remove the staging directory of a deleted stream whose retained table holds it through log index `index`.

    A replica that was away may be staging at this moment. So only listed files are deleted, and files that arrive
    meanwhile get a new deletion mark.
    """
    storage = open_storage(directory)
    found = storage.list(directory)
    if any(segment.last_index > index for segment in staged_segments(found)):
        return
    last = (f"{directory}/{paths.DELETED_FILE}", f"{directory}/{paths.STREAM_FILE}")
    storage.delete_all(entry.path for entry in found if entry.path not in last)
    for path in last:
        storage.delete(path)
    if segments(directory):
        introduce(storage, directory, stream)
        storage.write(last[0], b"")
        return
    if storage.local:
        with contextlib.suppress(OSError):  # a replica staged a segment meanwhile, and marks the directory
            os.rmdir(directory)
    _clear_name(storage, directory)


def refuse(storage: Storage, directory: str, reason: str) -> None:
    """Note why the compactor cannot write a stream's table, for the server; "": it can."""
    path = f"{directory}/{REFUSAL_FILE}"
    if not reason:
        storage.delete(path)
    elif storage.exists(f"{directory}/{paths.STREAM_FILE}"):
        storage.write(path, reason.encode())


def refusal(storage: Storage, directory: str, entries: list[FileEntry]) -> str:
    """Return what the compactor has noted, or "". `entries`: the content of the directory."""
    if not any(entry.name == REFUSAL_FILE for entry in entries):
        return ""
    try:
        reason = storage.read(f"{directory}/{REFUSAL_FILE}").decode()
        return f"the compactor cannot write the table (docs/lake.md, Errors of one stream): {reason}"
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def _clear_name(storage: Storage, directory: str) -> None:
    if not storage.local:
        return
    # The name's directory stays if it has other streams.
    try:
        os.rmdir(os.path.dirname(directory))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def staged_segments(files: list[FileEntry]) -> list[StagedSegment]:
    """Return the segments among the files of a staging directory, in log order."""
    found = []
    for entry in files:
        indexes = paths.parse_segment_name(entry.name)
        if indexes is not None:
            found.append(StagedSegment(indexes[0], indexes[1], entry.path, entry.size))
    found.sort()
    return found


def directory_of(lake: str, stream: StreamIdentity) -> str:
    return paths.staging(paths.root(lake), stream.name, stream.uid, stream.account)


def introduce(storage: Storage, directory: str, stream: StreamIdentity) -> None:
    """Write the identity of a staging directory's stream, unless it is there already. What is encrypted stays so: not
    every caller knows of it.

    Raises:
        NewerIdentity: a newer server has written it.
    """
    path = f"{directory}/{paths.STREAM_FILE}"
    try:
        there = storage.read(path)
        with contextlib.suppress(ValueError, *DECODE_ERRORS):  # a damaged one is written anew
            known = _decode_identity(path, there)
            flags = known.encrypted or stream.encrypted, known.sealed_segments or stream.sealed_segments
            stream = msgspec.structs.replace(stream, encrypted=flags[0], sealed_segments=flags[1])
        if there == encode_identity(stream):
            return
    except FileNotFoundError:
        # Once: afterwards files in the directory only need their own names synced.
        storage.make_directory(directory)
    storage.write(path, encode_identity(stream))
