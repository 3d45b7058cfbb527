"""Sealing a whole store: beginning, converting, changing the master key.

Belongs here: what happens to the files of a store before a server uses them. The key in the store's own directory says
which master key the store has, and with `WHOLE` that every file is sealed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from lakestream.log.format.errors import LogError, StoreLocked
from lakestream.log.format.files import Files
from lakestream.log.sealing.content import MAGIC
from lakestream.log.sealing.files import PLAIN, SealedFiles
from lakestream.log.sealing.keys import SUFFIX, VARIABLE, WHOLE, Keyring
from lakestream.log.store.journal import KEY
from lakestream.log.store.root import Tell, require_own


class SealedStore(LogError):
    """Raised when a store is sealed and there is no key, or it should be and is not."""


def opened_store(root: str, files: Files, keys: Keyring | None) -> Files:
    """Return the files of a store as it is: sealed if it was begun so. Block.

    Raises:
        SealedStore, WrongKey, LogError, OSError.
    """
    path = os.path.join(root, KEY)
    if not files.exists(path):
        return files
    if keys is None:
        raise SealedStore(
            f"{root} is encrypted; set jetstream {{ key }} to the key that it was begun with (for tools, the variable "
            f"{VARIABLE})"
        )
    keys.unwrap(path, files.read(path))
    return SealedFiles(files, root, keys)


def sealed_store(root: str, files: Files, keys: Keyring | None, tell: Tell) -> Files:
    """Return the files with which a server uses the store at `root`: sealed if there are keys.

    Plain files of the store are sealed first, as nats-server does it. A store that is sealed with an older one of the
    keys gets the newest. Block.

    Raises:
        SealedStore, WrongKey: nothing was changed.
        LogError, OSError: it can be repeated.
    """
    if keys is None:
        return opened_store(root, files, None)
    path = os.path.join(root, KEY)
    found = keys.unwrap(path, files.read(path)) if files.exists(path) else None
    if found is not None and found.current and found.flags & WHOLE:
        return SealedFiles(files, root, keys)
    require_own(root, files)
    files.make_directory(root)
    with _locked(root, files):
        if found is not None and not found.current:
            tell(f"  Changing the key of {rotate(root, files, keys)} directories of {root}")
        sealed = SealedFiles(files, root, keys)
        key = sealed.key_at(os.path.abspath(root))
        if found is None or not found.flags & WHOLE:
            _convert(root, files, sealed, tell)
            files.write_whole(path, [keys.wrap(key, WHOLE)])
    return sealed


def rotate_store(root: str, keys: Keyring) -> int:
    """Wrap all keys of a store that no server uses with the newest master key; return their number. Block.

    Raise SealedStore if it is not encrypted, StoreLocked, WrongKey, LogError, OSError.
    """
    files = Files()
    if not files.exists(os.path.join(root, KEY)):
        raise SealedStore(f"{root} is not encrypted: a start with jetstream {{ key }} encrypts it")
    with _locked(root, files):
        return rotate(root, files, keys)


@contextlib.contextmanager
def _locked(root: str, files: Files) -> Iterator[None]:
    try:
        lock = files.lock(os.path.join(root, "LOCK"))
    except BlockingIOError:
        raise StoreLocked(f"{root}: another server uses this store; stop it or choose another store_dir") from None
    try:
        yield
    finally:
        files.close(lock)


def rotate(root: str, files: Files, keys: Keyring) -> int:
    """Wrap all keys below a directory with the newest master key; return their number. Block.

    The directory's own comes last: after a kill the rest is done again. Raise WrongKey, LogError, OSError.
    """
    changed = 0
    own = os.path.join(root, KEY)
    found = [path for path in _below(root, files) if path.endswith(SUFFIX) and path != own]
    for path in [*found, own] if files.exists(own) else found:
        record = keys.unwrap(path, files.read(path))
        if not record.current:
            files.write_whole(path, [keys.wrap(record.key, record.flags)])
            changed += 1
    return changed


def _convert(root: str, files: Files, sealed: SealedFiles, tell: Tell) -> None:
    """Seal all plain files of a store, each in one step. What is sealed already stays."""
    streams: set[str] = set()
    for path in _below(root, files):
        if os.path.basename(path) in PLAIN or path.endswith(SUFFIX):
            continue
        with files.opened(path) as fd:
            if files.read_at(fd, len(MAGIC), 0) == MAGIC:
                continue
        directory = os.path.dirname(path)
        directory = os.path.dirname(directory) if os.path.basename(directory) == "log" else directory
        if directory not in streams and os.path.basename(os.path.dirname(directory)) == "streams":
            streams.add(directory)
            tell(f"  Encrypting stream '{os.path.basename(directory)}'")
        sealed.write_whole(path, [files.read(path)])


def _below(directory: str, files: Files) -> Iterator[str]:
    """Yield the paths of all files below a directory."""
    for name in files.names(directory):
        path = os.path.join(directory, name)
        if files.is_directory(path):
            yield from _below(path, files)
        else:
            yield path
