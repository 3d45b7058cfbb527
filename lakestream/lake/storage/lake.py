"""Opening a lake: its storage and its identity.

Belongs here: choosing the storage of an address, and the file `_lake.json`, which has the lake's id and tells a lake
from any other directory or prefix. A server writes it into its lake at its start. Lakes of older releases do not have
it; they are recognised by the directories that every lake has.
"""

from __future__ import annotations

import os
import secrets
import time

import msgspec

from lakestream.lake.errors import NotALake
from lakestream.lake.storage import paths
from lakestream.lake.storage.local_storage import LocalStorage
from lakestream.lake.storage.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder


def open_storage(lake: str | os.PathLike[str], brief: bool = False) -> Storage:
    """Return the storage of a lake, or of anything below one (a table, a staging directory). No request is made.

    With `brief`, requests to an object store fail after some seconds instead of a minute.

    Raises:
        UnsupportedLake: an address that cannot hold a lake; see `paths.root`.
    """
    root = paths.root(os.fspath(lake))
    if paths.is_local(root):
        return LocalStorage(root)
    from lakestream.lake.storage.object_storage import ObjectStorage  # loads obstore

    return ObjectStorage(root, brief)


class LakeFile(msgspec.Struct, frozen=True):
    """Content of `_lake.json`: a random id, and the time of its creation (ns since the epoch)."""

    id: str
    created_ns: int = 0


_LAKE_FILE = JsonDecoder(LakeFile)


def read_id(storage: Storage) -> str:
    """Return the lake's id; "" when it has none, or the file is unreadable."""
    try:
        return _LAKE_FILE.decode(storage.read(paths.lake_file(storage.root))).id
    except (FileNotFoundError, NotADirectoryError, *DECODE_ERRORS):
        return ""


def identify(storage: Storage) -> str:
    """Return the lake's id, creating it when there is none. All of several callers at once get the same id."""
    made = LakeFile(secrets.token_hex(16), time.time_ns())
    found = read_id(storage)
    if not found and not storage.create(paths.lake_file(storage.root), msgspec.json.encode(made)):
        found = read_id(storage)
        if not found:  # a file that does not decode has no owner
            storage.write(paths.lake_file(storage.root), msgspec.json.encode(made))
    return found or made.id


def is_lake(storage: Storage) -> bool:
    """Return True if a server has written to the lake before, of this or an older release."""
    root = storage.root
    if storage.exists(paths.lake_file(root)) or storage.exists(paths.server_file(root)):
        return True
    return not set(paths.MARKS).isdisjoint(storage.directories(root))


def require(lake: str, create: bool = False) -> None:
    """Raise NotALake when there is no lake at an address. With `create`, make an empty one there instead.

    Raises:
        NotALake, UnsupportedLake.
    """
    storage = open_storage(lake)
    if create:
        identify(storage)
    elif not is_lake(storage):
        raise NotALake(storage.root)
