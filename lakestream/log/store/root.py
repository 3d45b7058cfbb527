"""The store directory of a server and the stream directories in it.

Belongs here: the version and the lock of a store, the spelling of accounts as directories, the survey of what lies in a
store, and the removal of stream directories. The lake spells names of its own accord (lake/storage/paths.py).

Removal. One rename decides: before it the stream is whole, behind it the name is free and no start takes the directory
for a stream. A directory that is no longer needed (`discard`) is removed soon, or by the next start. One of which
the lake is still owed something (`leave`) stays with a note until `clear`; a start finds it again (`Survey.left`).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog, ForeignStore, StoreLocked, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.format.segment import LOG_DIRECTORY, first_index_of, is_segment_name, read_footer
from lakestream.log.store.journal import KEY, Journal
from lakestream.log.store.journal import NAME as JOURNAL

RESERVED = frozenset({"VERSION", "LOCK", "_meta_"})
"""Other names beside the directories of accounts."""
DORMANT = "_meta_.dormant"
"""Name of the file of `stream/dormant.py`. Earlier releases leave what begins with a reserved name and a dot alone."""

_UNSAFE = re.compile(r"[\x00-#%-,./:-@\[-^`{-\x7f]")
_SPELLED = re.compile(r"~([0-9A-F]{2})")


def account_directory(account: str) -> str:
    """Return the directory name of an account.

    Letters, digits, `_`, `-`, `$` and all characters beyond ASCII are kept; any other character becomes `~` and two hex
    digits, as does the last one of a reserved name.
    """
    spelled = _UNSAFE.sub(lambda found: f"~{ord(found.group()):02X}", account)
    return spelled if spelled not in RESERVED else f"{spelled[:-1]}~{ord(spelled[-1]):02X}"


def account_of(directory: str) -> str:
    """Return the account of a directory name; the inverse of `account_directory`."""
    return _SPELLED.sub(lambda found: chr(int(found.group(1), 16)), directory)


PLAIN_VERSION, SEALED_VERSION = 1, 2
"""Versions of a plain store and of an encrypted one. Releases without encryption know the first only, and refuse the
other."""
JOURNALED = 2
"""Added to the version while there is a journal that earlier releases do not read: after a kill, they refuse the store;
a clean stop leaves none."""
STREAMS = "streams"
"""Directory of the streams in an account's directory."""


FOREIGN = "meta.inf"
"""File in each directory of a stream of nats-server, and in none of lakestream's."""

INCOMING = ".incoming"
"""Suffix of the directory that receives a replica's state from another node."""
UNKNOWN = "it is left as it is; move it away if it is not meant to be here"

Tell = Callable[[str], None]
"""Takes a line for the server's log about something that was found and cannot be used."""


class Survey(msgspec.Struct, frozen=True):
    """Content of a store: (account, stream) of every stream, ascending, and (account, stream, directory) of every
    deleted stream that `leave` left."""

    streams: list[tuple[str, str]]
    left: list[tuple[str, str, str]]


class StoreRoot:
    """The directory of all streams of a server, locked for this process."""

    def __init__(self, path: str, lock: int, files: Files) -> None:
        self.path = path
        self.journal = Journal(path, files, lambda: self._set_version(JOURNALED), lambda: self._set_version(0))
        self.notes: list[str] = []
        """Lines for the server's log about streams that `open` made anew."""
        self._lock = lock
        self._files = files
        self._version = _check_version(os.path.join(path, "VERSION"), files)

    @classmethod
    def open(cls, path: str, files: Files | None = None) -> StoreRoot:
        """Lock the store at `path`; make it if it is missing.

        Raise StoreLocked when another process has it, StoreVersionError when a newer release wrote it, ForeignStore,
        OSError.
        """
        files = files or Files()
        files.make_directory(path)
        require_own(path, files)
        name = os.path.join(path, "VERSION")
        try:
            lock = files.lock(os.path.join(path, "LOCK"))
        except BlockingIOError:
            raise StoreLocked(f"{path}: another server uses this store; stop it or choose another store_dir") from None
        try:
            wanted = SEALED_VERSION if files.sealed else PLAIN_VERSION
            version = _check_version(name, files) if files.exists(name) else 0
            more = JOURNALED if version > SEALED_VERSION else 0
            if version - more < wanted:
                files.write_whole(name, [b"%d\n" % (wanted + more)])
            made = cls(path, lock, files)
            made._settle(files)
            made._set_version(0)
        except BaseException:
            files.close(lock)
            raise
        return made

    def _settle(self, files: Files) -> None:
        """Sync the names down to the accounts' directories.

        A process that was killed between making a directory and syncing its name leaves one that looks made, and
        would go with everything in it when the power fails.
        """
        files.sync_directory(os.path.dirname(os.path.abspath(self.path)))
        files.sync_directory(self.path)
        self.notes = self.journal.recover(time.time_ns())
        for account in self.accounts(files):
            files.sync_directory(os.path.join(self.path, account_directory(account)))

    def _set_version(self, more: int) -> None:
        """Write the version of the store, `more` than without a journal, unless it is there. Raise OSError."""
        wanted = (self._version - PLAIN_VERSION) % JOURNALED + PLAIN_VERSION + more
        if self._version != wanted:
            self._files.write_whole(os.path.join(self.path, "VERSION"), [b"%d\n" % wanted])
            self._version = wanted

    @classmethod
    def inspect(cls, path: str, files: Files, *, alone: bool = False) -> StoreRoot:
        """Lock the store at `path` without creating anything: no server can start meanwhile, and with `alone` nobody
        else inspects it.

        Raise StoreLocked when a server uses it, StoreVersionError when a newer release wrote it, ForeignStore, OSError.
        """
        require_own(path, files)
        _check_version(os.path.join(path, "VERSION"), files)
        try:
            lock = files.lock(os.path.join(path, "LOCK"), shared=not alone, create=False)
        except FileNotFoundError:  # a copy of a store
            lock = -1
        except BlockingIOError:
            raise StoreLocked(f"{path}: a server uses this store; stop it first") from None
        return cls(path, lock, files)

    def stream_directory(self, account: str, stream: str) -> str:
        return os.path.join(self.path, account_directory(account), STREAMS, stream)

    def accounts(self, files: Files) -> list[str]:
        """Return every account that ever had streams, ascending by directory."""
        found = [name for name in files.names(self.path) if name not in RESERVED]
        return [account_of(name) for name in found if files.is_directory(os.path.join(self.path, name, STREAMS))]

    def survey(self, files: Files, tell: Tell) -> Survey:
        """Return the content of the store. Block. Raise OSError if the store itself cannot be listed.

        Remains of discarded streams are removed. Entries that cannot be read or are unknown are reported, one line
        each, and left alone: they never hide the rest.
        """
        found, foreign = Survey([], []), list[str]()
        for name in files.names(self.path):
            base = os.path.join(self.path, name, STREAMS)
            if name.partition(".")[0] in RESERVED or name.startswith(
                (JOURNAL, KEY)
            ):  # also temporary names beside them
                continue
            try:
                inside = files.names(os.path.dirname(base))
                if files.is_directory(base):
                    self._look(account_of(name), base, files, found, foreign, tell)
                    for each in inside:
                        if each not in (STREAMS, ASIDE):
                            tell(f"{os.path.join(os.path.dirname(base), each)} is not part of a store: {UNKNOWN}")
                elif inside or not files.is_directory(os.path.dirname(base)):
                    tell(f"{os.path.join(self.path, name)} has no directory `{STREAMS}`: {UNKNOWN}")
            except OSError as error:
                tell(f'account "{account_of(name)}": {base} cannot be read: {error}; its streams are not served')
        if foreign:
            tell(_described(self.path, foreign))
        return found

    def _look(self, account: str, base: str, files: Files, found: Survey, foreign: list[str], tell: Tell) -> None:
        for name in files.names(base):
            path = os.path.join(base, name)
            if name.endswith(OWING):
                found.left.append((account, name.partition(GONE)[0], path))
            elif GONE in name:
                self._remove(files, path, tell)
            elif name.endswith(INCOMING):
                continue  # a replica removes or uses it
            elif not files.is_directory(path):
                tell(f"{path} is not a stream's directory: {UNKNOWN}")
            elif "." in name:
                tell(f"{path}: no stream can have this name: {UNKNOWN}")
            elif files.exists(os.path.join(path, FOREIGN)):
                foreign.append(name)
            else:
                found.streams.append((account, name))

    @staticmethod
    def _remove(files: Files, path: str, tell: Tell) -> None:
        try:
            if files.is_directory(path):
                files.remove_tree(path)
            else:
                files.remove(path)
        except OSError as error:
            tell(f"{path} is left of a deleted stream and cannot be removed: {error}; retrying at each start")

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):  # the next start does it
                self.journal.close()
            self._files.close(self._lock)
            self._lock = -1


def move(files: Files, here: str, there: str) -> None:
    """Give a stream's directory, which is settled and not open, to another store, durably. One rename decides."""
    files.make_directory(os.path.dirname(there))
    files.replace(here, there)
    files.sync_directory(os.path.dirname(there))
    files.sync_directory(os.path.dirname(here))


def require_own(path: str, files: Files) -> None:
    """Raise ForeignStore if there are streams and nats-server wrote all: nothing is to be written beside them."""
    found: list[str] = []
    for account in files.names(path):
        base = os.path.join(path, account, STREAMS)
        for name in files.names(base) if account not in RESERVED and files.is_directory(base) else ():
            if not files.exists(os.path.join(base, name, FOREIGN)):
                return
            found.append(name)
    if found:
        raise ForeignStore(f"{_described(path, found)}, or choose another store_dir")


def _described(path: str, streams: list[str]) -> str:
    more = f" and {len(streams) - 1} more" if len(streams) > 1 else ""
    return (
        f"{path} has streams of nats-server ({streams[0]}{more}), which lakestream does not read: they are left "
        "as they are; to bring them over, start nats-server on that directory and run `lakestream move`"
    )


def _check_version(name: str, files: Files) -> int:
    remedy = f"if the directory is a store of this release, write {PLAIN_VERSION} into that file and start again"
    try:
        version = int(files.read(name))
    except ValueError:
        raise StoreVersionError(f"{name} does not hold a number: the file is damaged; {remedy}") from None
    except OSError as error:
        raise StoreVersionError(f"{name} cannot be read ({error.strerror}); {remedy}") from error
    newest = SEALED_VERSION + JOURNALED
    if version > newest:
        raise StoreVersionError(
            f"{name} says that a newer lakestream (store version {version}) wrote this store, this release reads "
            f"{newest}: run the newer release, or choose another store_dir"
        )
    if version < PLAIN_VERSION:
        raise StoreVersionError(f"{name} says store version {version}, which no release of lakestream wrote")
    return version


GONE = ".deleted-"
"""Marks the name of a directory that is no stream's any more; stream names cannot contain a dot."""
OWING = "-owing"
"""Suffix of such a directory that must not be removed before its note was processed. Releases that do not know the
suffix remove it because of GONE."""
ASIDE = "aside"
"""Directory beside an account's streams for files that could not be used. They may be the only copy of something, so no
server, of this release or an earlier one, opens or removes anything there."""
NOTE = "leaving"
"""Name of the note that identifies the deleted stream: magic, u32 crc of the rest, note. Earlier releases wrote the
note alone."""
_NOTE_MAGIC = b"LKNT"
_NOTE_HEAD = 8  # magic and crc


def discard(files: Files, directory: str) -> str:
    """Rename an unused directory, so that no restart finds it; return what remains to be removed, "" if it is missing.
    Block."""
    if not files.is_directory(directory):
        return ""
    gone = f"{directory}{GONE}{time.time_ns()}"
    files.replace(directory, gone)
    files.sync_directory(os.path.dirname(directory))
    return gone


def leave(files: Files, directory: str, note: bytes) -> str:
    """Rename an unused directory to one that waits with a note; return its name, "" if it is missing. Block.

    Invariant: the note is durable before the rename, which alone decides. A kill between them leaves a stream with a
    note that is never read.
    """
    if not files.is_directory(directory):
        return ""
    files.write_whole(os.path.join(directory, NOTE), [encode_note(note)])
    gone = f"{directory}{GONE}{time.time_ns()}{OWING}"
    files.replace(directory, gone)
    files.sync_directory(os.path.dirname(directory))
    return gone


def set_aside(files: Files, path: str, directory: str = "") -> str:
    """Rename an unusable file or directory, into `directory` or else beside itself, so that it is not opened again.

    Return its new path. Block. Raise OSError.
    """
    beside = os.path.dirname(path)
    target = os.path.join(directory or beside, f"{os.path.basename(path)}.{ASIDE}-{time.time_ns()}")
    files.make_directory(os.path.dirname(target))
    files.replace(path, target)
    files.sync_directory(os.path.dirname(target))
    files.sync_directory(beside)
    return target


def encode_note(note: bytes) -> bytes:
    """Return the content of a note's file."""
    return _NOTE_MAGIC + crc32(note).to_bytes(4, "little") + note


def note_in(files: Files, directory: str) -> bytes:
    """Return the note that `leave` wrote into a directory. Raise OSError, CorruptLog.

    A note without the magic is one of an earlier release, or does not decode.
    """
    path = os.path.join(directory, NOTE)
    content = files.read(path)
    if not content.startswith(_NOTE_MAGIC):
        return content
    note = content[_NOTE_HEAD:]
    if content != encode_note(note):
        raise CorruptLog(path, len(_NOTE_MAGIC), "the crc of the note does not match")
    return note


def clear(files: Files, directory: str) -> None:
    """Remove a directory that `leave` renamed, once it is not needed any more. Block.

    Invariant: the name by which the note is looked for is durably gone before the note is. Else a power loss could
    leave the name without its note.
    """
    if files.is_directory(directory):
        trash = directory.removesuffix(OWING)
        files.replace(directory, trash)
        files.sync_directory(os.path.dirname(directory))
        files.remove_tree(trash)


def sealed_in(files: Files, directory: str) -> list[tuple[str, int, int]]:
    """Return (path, first index, last index) of the sealed segments of a stream that is not open, ascending. Block.

    The next file name tells where a segment ends, so that a damaged one is found too: its reader reports the damage.
    Only the footer of the newest file, which may be an open segment, is read.
    """
    log = os.path.join(directory, LOG_DIRECTORY)
    names = [name for name in files.names(log) if is_segment_name(name)]
    firsts = [first_index_of(name) for name in names]
    paths = [os.path.join(log, name) for name in names]
    found = [(path, first, after - 1) for path, first, after in zip(paths, firsts, firsts[1:], strict=False)]
    if paths:
        try:
            footer, _, _ = read_footer(paths[-1], files)
        except CorruptLog:
            return found
        found.append((paths[-1], firsts[-1], footer.last_index))
    return found
