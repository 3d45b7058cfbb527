"""How a stream's directory goes.

Belongs here: the names by which a directory that is no stream's any more is known, and the two ways there. One rename
decides: before it the stream is whole, behind it the name is free and no start takes the directory for a stream.
What is only thrown away (`discard`) is removed at once, or by the next start. What leaves (`leave`) stays with a note
until somebody who is still owed something of it has that, and `clear`s it; a start finds it again (`left`).
"""

from __future__ import annotations

import os
import time

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.segment import first_index_of, is_segment_name, read_footer

GONE = ".deleted-"
"""A stream's directory whose name goes on like this is no stream's; stream names cannot contain a dot."""
OWING = "-owing"
"""One whose name also ends like this is not to be removed before its note has been seen to. Releases that do not know
it remove it, as the rest of its name tells them to."""
ASIDE = "aside"
"""Where, beside an account's streams, lies what could not be used: it may be the only copy of something, so nothing
there is ever opened or removed by a server, this release's or an earlier one's."""
NOTE = "leaving"
"""The note in it: whose it is, in the words of whoever gave it."""
LOG = "log"


def discard(files: Files, directory: str) -> None:
    """Remove a directory that nobody uses, if it is there. Blocks."""
    if os.path.isdir(directory):
        gone = f"{directory}{GONE}{time.time_ns()}"
        files.replace(directory, gone)
        files.sync_directory(os.path.dirname(directory))
        files.remove_tree(gone)


def leave(files: Files, directory: str, note: bytes) -> str:
    """Have a directory that nobody uses wait under another name; that name, "" when it is not there. Blocks.

    Invariant: the note is durable before the rename, which alone decides. A kill between them leaves a stream with a
    note that nobody reads.
    """
    if not os.path.isdir(directory):
        return ""
    files.write_whole(os.path.join(directory, NOTE), [note])
    gone = f"{directory}{GONE}{time.time_ns()}{OWING}"
    files.replace(directory, gone)
    files.sync_directory(os.path.dirname(directory))
    return gone


def set_aside(files: Files, path: str, directory: str = "") -> str:
    """Rename what cannot be used, into `directory` or else beside itself, so that nobody takes it for what it was.

    Return its new path. Blocks. Raise OSError.
    """
    beside = os.path.dirname(path)
    target = os.path.join(directory or beside, f"{os.path.basename(path)}.{ASIDE}-{time.time_ns()}")
    files.make_directory(os.path.dirname(target))
    files.replace(path, target)
    files.sync_directory(os.path.dirname(target))
    files.sync_directory(beside)
    return target


def note_in(files: Files, directory: str) -> bytes:
    """The note that `leave` put into a directory. Raises OSError."""
    return files.read(os.path.join(directory, NOTE))


def clear(files: Files, directory: str) -> None:
    """Remove a directory that `leave` named, of which everybody has what they were owed. Blocks.

    Invariant: the name by which the note is looked for is durably gone before the note is. Else a power loss could
    leave the name without its note.
    """
    if os.path.isdir(directory):
        trash = directory.removesuffix(OWING)
        files.replace(directory, trash)
        files.sync_directory(os.path.dirname(directory))
        files.remove_tree(trash)


def sealed_in(files: Files, directory: str) -> list[tuple[str, int, int]]:
    """(path, first index, last index) of the sealed segments of a stream that is not open, ascending. Blocks.

    Names tell where a segment ends, so that a damaged one is found too: its reader says what is wrong with it. Only of
    the newest file, which may be an open one, the footer is asked.
    """
    log = os.path.join(directory, LOG)
    names = [name for name in files.names(log) if is_segment_name(name)]
    firsts = [first_index_of(name) for name in names]
    paths = [os.path.join(log, name) for name in names]
    found = [(path, first, after - 1) for path, first, after in zip(paths, firsts, firsts[1:], strict=False)]
    if paths:
        try:
            footer, _, _ = read_footer(paths[-1])
        except CorruptLog:
            return found
        found.append((paths[-1], firsts[-1], footer.last_index))
    return found
