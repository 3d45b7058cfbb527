"""The staging area: sealed segments on their way to the table.

Belongs here: how a sealed segment file gets into the lake and out again, and how the compactor finds it. The server
puts segments in and takes them out once the table holds them; the compactor only reads, except that it takes away the
whole directory of a stream that the server has marked as deleted. Every function may be repeated after a crash.

Invariant: a file with its final name is complete and never changes.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
from collections.abc import Iterator

import msgspec

from lakestream.lake import paths
from lakestream.lake.errors import StagingConflict


class StreamIdentity(msgspec.Struct, frozen=True):
    """Whose segments a staging directory holds. `config` is the stream's configuration as JSON text."""

    name: str
    account: str
    uid: str
    created_ns: int
    config: msgspec.Raw = msgspec.Raw(b"{}")


class StagedSegment(msgspec.Struct, frozen=True, order=True):
    """One staged file: the log entries `first_index` to `last_index`, `size` bytes."""

    first_index: int
    last_index: int
    path: str
    size: int


class StagedStream(msgspec.Struct, frozen=True):
    """A staging directory: its stream, and whether that stream has been deleted."""

    directory: str
    identity: StreamIdentity
    deleted: bool


def stage(sealed: str | os.PathLike[str], first_index: int, last_index: int, stream: StreamIdentity, lake: str) -> str:
    """Put a sealed segment into the lake's staging area and return its path there.

    A hard link where the file system allows it (no byte is copied), else a copy that appears under its name only when
    it is complete and synced. Staging the same segment again does nothing.

    Args:
        sealed: the segment file, sealed and synced.
        first_index: log index of its first entry, last_index: of its last.
        stream: whose segment it is.
        lake: the lake's root.

    Raises:
        UnsupportedLake: the lake is not a directory.
        StagingConflict: another segment with other content has that place.
        OSError: the file system refuses.
    """
    directory = _directory(lake, stream)
    _write_identity(directory, stream)
    target = os.path.join(directory, paths.segment_name(first_index, last_index))
    try:
        os.link(sealed, target)
    except FileExistsError:
        if not os.path.samefile(sealed, target) and not filecmp.cmp(sealed, target, shallow=False):
            raise StagingConflict(target) from None
        return target
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        _copy(sealed, target)
    _sync_directory(directory)
    return target


def unstage_through(lake: str, stream: StreamIdentity, index: int) -> int:
    """Delete the staged segments that end at or before log index `index`; returns how many there were.

    Only call it with a position read from the table: from then on the table is the lake's only copy.
    """
    removed = 0
    for segment in segments(_directory(lake, stream)):
        if segment.last_index <= index:
            _unlink(segment.path)
            removed += 1
    return removed


def mark_deleted(lake: str, stream: StreamIdentity) -> None:
    """Tell the compactor that the stream is gone: its staged segments go now, its table when the compactor sees it."""
    directory = _directory(lake, stream)
    _write_identity(directory, stream)
    _write_whole(os.path.join(directory, paths.DELETED_FILE), b"")
    for segment in segments(directory):
        _unlink(segment.path)


def segments(directory: str) -> list[StagedSegment]:
    """The staged segments of one stream in log order; none when the directory is not there."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                indexes = paths.parse_segment_name(entry.name)
                if indexes is not None:
                    found.append(StagedSegment(indexes[0], indexes[1], entry.path, _size(entry)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found.sort()
    return [segment for segment in found if segment.size >= 0]


def scan(lake: str) -> list[StagedStream]:
    """Every stream that has a staging directory, of all accounts, oldest stream first."""
    root = paths.local_root(lake)
    found = []
    for directory in _stream_directories(root):
        identity = read_identity(directory)
        if identity is not None:
            deleted = os.path.exists(os.path.join(directory, paths.DELETED_FILE))
            found.append(StagedStream(directory, identity, deleted))
    found.sort(key=lambda stream: (stream.identity.created_ns, stream.identity.uid))
    return found


def current(streams: list[StagedStream]) -> tuple[list[StagedStream], list[StagedStream]]:
    """Split a scan into (streams that live, streams that are gone).

    Of several streams with one name only the one created last can be alive; `deleted` settles the rest.
    """
    newest = {(each.identity.account, each.identity.name): each.directory for each in streams}
    live: list[StagedStream] = []
    gone: list[StagedStream] = []
    for each in streams:
        alive = not each.deleted and newest[each.identity.account, each.identity.name] == each.directory
        (live if alive else gone).append(each)
    return live, gone


def read_identity(directory: str) -> StreamIdentity | None:
    """Whose staging directory it is; None while it is being made or taken away."""
    try:
        with open(os.path.join(directory, paths.STREAM_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=StreamIdentity)
    except (FileNotFoundError, NotADirectoryError):
        return None


def discard(directory: str) -> None:
    """Take away the staging directory of a deleted stream. The compactor calls it after the table is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    # The stream's name directory stays for its next incarnation, unless this was the last one.
    try:
        os.rmdir(os.path.dirname(directory))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _directory(lake: str, stream: StreamIdentity) -> str:
    return paths.staging(paths.local_root(lake), stream.name, stream.uid, stream.account)


def _stream_directories(root: str) -> Iterator[str]:
    yield from _children(_children([os.path.join(root, paths.SEGMENTS)]))
    for account in _children([os.path.join(root, paths.ACCOUNTS)]):
        yield from _children(_children([os.path.join(account, paths.SEGMENTS)]))


def _children(parents: Iterator[str] | list[str]) -> Iterator[str]:
    for parent in parents:
        try:
            with os.scandir(parent) as entries:
                names = [entry.path for entry in entries if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from sorted(names)


def _write_identity(directory: str, stream: StreamIdentity) -> None:
    path = os.path.join(directory, paths.STREAM_FILE)
    content = msgspec.json.encode(stream)
    try:
        with open(path, "rb") as file:
            if file.read() == content:
                return
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)
    _write_whole(path, content)


def _write_whole(path: str, content: bytes) -> None:
    """Make `path` appear with all of its content, and stay."""
    partial = f"{path}.{os.getpid()}.tmp"
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync_directory(os.path.dirname(path))


def _copy(source: str | os.PathLike[str], target: str) -> None:
    partial = f"{target}.{os.getpid()}.tmp"
    with open(source, "rb") as reader, open(partial, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
    os.replace(partial, target)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # taken out between listing and looking
        return -1


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
