"""Staged segments of encrypted stores: their keys beside them, and reading them.

Belongs here: putting the wrapped key of a segment into its staging directory, as `<id of the key>.key`, and the files
with which a program that has the master key reads it. Master keys come from the environment (`keys.VARIABLE`): a
command line can be seen by others, and Spark logs its settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lakestream.lake.errors import SegmentSealed
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files
from lakestream.log.sealing.content import HEADER_SIZE, MAGIC, Unsealed, key_of
from lakestream.log.sealing.files import SealedFiles, key_file
from lakestream.log.sealing.keys import SUFFIX, VARIABLE, Keyring, from_environment
from lakestream.log.sealing.stores import opened_store
from lakestream.log.store.journal import KEY


def reader(local: str, path: str = "") -> Files:
    """Return the files that read a sealed or plain segment.

    Args:
        local: the file on this machine.
        path: the staged file of which it is a copy; "": it is the file itself.

    Raises:
        SegmentSealed: there is no key for it.
        OSError, StorageFailed.
    """
    files = Files()
    key_id = _key_id(files, local)
    if not key_id:
        return files
    keys = from_environment()
    if keys is None:
        raise SegmentSealed(path or local, f"set {VARIABLE} to the key of the server's jetstream {{ key }}")
    sealed = SealedFiles(files, "", keys)
    try:
        if path and path != local:
            place = f"{os.path.dirname(path)}/{key_id.hex()}{SUFFIX}"
            sealed.learn(place, open_storage(path).read(place))
        sealed.key_named(key_id, local)
    except (LogError, FileNotFoundError) as error:
        reason = error.what if isinstance(error, CorruptLog) else str(error)
        raise SegmentSealed(path or local, f"{reason}; add the keys of all nodes to {VARIABLE}") from None
    return sealed


def store_files(root: str = "") -> Files:
    """Return the files of a store on this machine, sealed or plain.

    Args:
        root: the store's directory; "": they are read only, wherever they are.

    Raises:
        SealedStore, WrongKey: there is no key for it.
    """
    keys = from_environment()
    if root and Files().exists(os.path.join(root, KEY)):
        return opened_store(root, Files(), keys)
    return Files() if keys is None or root else SealedFiles(Files(), "", keys)


def is_sealed(segment: str) -> bool:
    """Return True if a segment on this machine is encrypted."""
    return bool(_key_id(Files(), segment))


def put_key(storage: Storage, directory: str, segment: str) -> None:
    """Put the wrapped key of a sealed segment into its staging directory, unless it is there; of others nothing."""
    files = Files()
    if key_id := _key_id(files, segment):
        content, target = key_file(files, key_id, segment), f"{directory}/{key_id.hex()}{SUFFIX}"
        if content and not (storage.exists(target) and storage.read(target) == content):
            storage.write(target, content)


def rotate(lake: str, keys: Keyring) -> int:
    """Wrap all keys of staging areas and encrypted tables with the newest master key; return their number.

    Those of other nodes' master keys stay. Raise OSError, StorageFailed.
    """
    storage, changed = open_storage(lake), 0
    for path in _keys(storage):
        try:
            found = keys.unwrap(path, storage.read(path))
        except (LogError, FileNotFoundError):
            continue
        if not found.current:
            storage.write(path, keys.wrap(found.key, found.flags))
            changed += 1
    return changed


def _keys(storage: Storage) -> Iterator[str]:
    """Yield the paths of keys in a lake."""
    accounts = f"{storage.root}/{paths.ACCOUNTS}"
    for base in (storage.root, *(f"{accounts}/{name}" for name in storage.directories(accounts))):
        staged = storage.tree(f"{base}/{paths.SEGMENTS}")
        yield from (entry.path for entry in staged if entry.name.endswith(SUFFIX))
        for tables in (f"{base}/{paths.STREAMS}", f"{base}/{paths.KEPT}"):
            yield from (f"{tables}/{name}/{paths.TABLE_KEY}" for name in storage.directories(tables))


def _key_id(files: Files, path: str) -> bytes:
    """Return the id of the key of a sealed file, or b"" for a plain one."""
    with files.opened(path) as fd:
        header = files.read_at(fd, HEADER_SIZE, 0)
    if not header.startswith(MAGIC):
        return b""
    try:
        return key_of(header)
    except Unsealed as error:
        raise SegmentSealed(path, str(error)) from None
