"""Files whose content is sealed.

Belongs here: `SealedFiles`, which every other part of the server uses as it uses `Files`, and the key of each file by
its place in the store. The bytes on disk are those of content.py; names, links and locks are as in plain files.

Each stream's directory has a key of its own (`sealing.key`), with which everything in it is sealed; so have the
directory of the meta group, and the store for the rest. A key that is deleted makes the files of its directory
unreadable. A file is opened with the key that its header names, wherever it was linked or moved to.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Sequence
from typing import IO, Any

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files
from lakestream.log.sealing.content import HEADER_SIZE, Content, Unsealed, is_plain, key_of
from lakestream.log.sealing.keys import SUFFIX, Keyring, ScopeKey, id_in
from lakestream.log.store.journal import KEY

PLAIN = frozenset({"VERSION", "LOCK", KEY, "VERSION.tmp", KEY + ".tmp", "audit.seed"})
"""Names of files that are not sealed: they have nothing that a client sent. The seed of an audit trail is read by a
package that knows nothing of stores."""
_DEPTH = 3
"""Parts of the path of a stream's directory in a store: account, `streams`, name."""
_META = "_meta_"
"""Begins the name of the directory of the meta group, also of one that was received or replaced."""


class _Shared:
    """State that sealed files have in common with those without syncs over the same store."""

    def __init__(self) -> None:
        self.by_fd: dict[int, Content] = {}
        self.by_path: dict[str, Content] = {}
        self.scopes: dict[str, ScopeKey] = {}
        self.keys: dict[bytes, ScopeKey] = {}
        self.unsynced: set[str] = set()
        """Key files that the next sync of their directory makes durable."""
        self.lock, self.making = threading.Lock(), threading.Lock()


class SealedFiles(Files):
    """Files of a store, sealed.

    Args:
        inner: the files below.
        root: the directory of a store, in which every file is sealed; "": files are only read, wherever they are.
        keys: master keys.
        shared: of the files without syncs.
    """

    def __init__(self, inner: Files, root: str, keys: Keyring, shared: _Shared | None = None) -> None:
        self.keys = keys
        self.durable = inner.durable
        self.sealed = bool(root)
        self.inner = inner
        self._root = os.path.join(os.path.abspath(root), "") if root else ""
        self._shared = shared or _Shared()

    # ------------------------------------------------------------------ keys
    def _scope(self, path: str) -> str:
        """Return the directory whose key seals a new file at this path; "" for a file that is not sealed."""
        if not self._root or not path.startswith(self._root) or os.path.basename(path) in PLAIN:
            return ""
        parts = path[len(self._root) :].split(os.sep)
        if len(parts) > _DEPTH:
            return os.path.join(self._root, *parts[:_DEPTH])
        return os.path.join(self._root, parts[0]) if parts[0].startswith(_META) and len(parts) > 1 else self._root[:-1]

    def key_at(self, scope: str) -> ScopeKey:
        """Return the key of a directory, which is made if it has none. Raise WrongKey, LogError, OSError."""
        shared = self._shared
        with shared.making:
            found = shared.scopes.get(scope)
            if found is not None:
                return found
            path = os.path.join(scope, KEY)
            try:
                found = self.keys.unwrap(path, self.inner.read(path)).key
            except FileNotFoundError:
                found = self.keys.new()
                self.inner.write_whole(path, [self.keys.wrap(found)])
                if not self.durable:
                    shared.unsynced.add(path)
            shared.scopes[scope] = shared.keys[found.id] = found
            return found

    def learn(self, path: str, content: bytes) -> None:
        """Note the key in the content of a key file. Raise WrongKey, LogError."""
        key = self.keys.unwrap(path, content).key
        self._shared.keys[key.id] = key

    def key_named(self, key_id: bytes, path: str) -> ScopeKey:
        """Return the key with this id, of the file at `path`. Raise CorruptLog if neither this process nor a directory
        above the file has it."""
        known, why = self._shared.keys, "its key is missing"
        if key_id not in known and (content := key_file(self.inner, key_id, path)):
            try:
                self.learn(os.path.dirname(path), content)
            except LogError as error:
                why = str(error)
        if key_id not in known:
            raise CorruptLog(path, 0, f"it is sealed, and cannot be opened: {why}")
        return known[key_id]

    # ------------------------------------------------------------------ opening and closing
    def open(self, path: str, write: bool = False) -> int:
        fd = self.inner.open(path, write)
        try:
            self._opened(fd, path)
        except BaseException:
            self.inner.close(fd)
            raise
        return fd

    def _opened(self, fd: int, path: str) -> None:
        shared, place = self._shared, os.path.abspath(path)
        while not self._shares(fd, place):
            scope, header = self._scope(place), self.inner.read_at(fd, HEADER_SIZE, 0)
            try:
                key = self.key_named(key_of(header), place)
            except Unsealed:
                if not scope:
                    return  # not a file of the store
                if is_plain(header):
                    raise CorruptLog(
                        place, 0, "it is a plain file in an encrypted store; restore it from a backup of this store"
                    ) from None
                key = self.key_at(scope)
            loaded = Content(self.keys, key, place)
            loaded.load(self.inner, fd)
            if loaded.damaged:  # a device may do better the next time
                loaded = Content(self.keys, key, place)
                loaded.load(self.inner, fd)
            with shared.lock:
                shared.by_path.setdefault(place, loaded)

    def _shares(self, fd: int, place: str) -> bool:
        """Let a descriptor use the content that others have of this path; return False if none has any."""
        with self._shared.lock:
            content = self._shared.by_path.get(place)
            if content is not None:
                content.users += 1
                self._shared.by_fd[fd] = content
            return content is not None

    def create(self, path: str) -> int:
        place = os.path.abspath(path)
        scope = self._scope(place)
        key = self.key_at(scope) if scope else self._shared.scopes.get("")
        fd = self.inner.create(path)
        if key is not None:
            with self._shared.lock:
                content = self._shared.by_path[place] = self._shared.by_fd[fd] = Content(self.keys, key, place)
                content.users = 1
        return fd

    def close(self, fd: int) -> None:
        with self._shared.lock:
            content = self._shared.by_fd.pop(fd, None)
            if content is not None:
                content.users -= 1
                if not content.users and self._shared.by_path.get(content.path) is content:
                    del self._shared.by_path[content.path]
        self.inner.close(fd)

    # ------------------------------------------------------------------ content
    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        content = self._shared.by_fd.get(fd)
        if content is None:
            self.inner.write(fd, buffers, offset)
        else:
            content.write(self.inner, fd, buffers, offset)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        content = self._shared.by_fd.get(fd)
        if content is None:
            return self.inner.read_at(fd, length, offset)
        return content.read(self.inner, fd, length, offset)

    def read(self, path: str) -> bytes:
        with self.opened(path) as fd:
            return self.read_at(fd, self.size(fd), 0)

    def length(self, path: str) -> int:
        with self.opened(path) as fd:
            return self.size(fd)

    def stamp(self, path: str) -> tuple[int, int]:
        return self.inner.stamp(path)

    def size(self, fd: int) -> int:
        content = self._shared.by_fd.get(fd)
        return self.inner.size(fd) if content is None else content.end

    def truncate(self, fd: int, length: int) -> None:
        content = self._shared.by_fd.get(fd)
        if content is None:
            self.inner.truncate(fd, length)
        else:
            content.truncate(self.inner, fd, length)

    def scratch(self, directory: str) -> IO[bytes]:
        return io.BufferedRandom(_Scratch(self, os.path.join(directory, f"{KEY}.scratch-{self.keys.random(8).hex()}")))

    def gather(self, path: str) -> bool:
        with self.opened(path) as fd:
            content = self._shared.by_fd.get(fd)
            if content is None or not content.scattered:
                return False
            whole = self.read_at(fd, self.size(fd), 0)
        self.write_whole(path, [whole])
        return True

    def sync(self, fd: int) -> None:
        self.inner.sync(fd)

    def sync_file(self, path: str) -> None:
        self.inner.sync_file(path)

    def sync_directory(self, path: str) -> None:
        if self.durable and (key := os.path.join(os.path.abspath(path), KEY)) in self._shared.unsynced:
            self.inner.sync_file(key)
            self._shared.unsynced.discard(key)
        self.inner.sync_directory(path)

    # ------------------------------------------------------------------ names
    def replace(self, source: str, target: str) -> None:
        self._keep_key(source, target)
        every = self.inner.is_directory(source)
        self.inner.replace(source, target)
        self._forget(source, every)
        self._forget(target, every)

    def _keep_key(self, source: str, target: str) -> None:
        """Copy the key of a file that leaves its stream's directory to where it goes."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        scope = self._scope(source)
        if not scope or scope == self._root[:-1] or self._scope(target) == scope:
            return
        with contextlib.suppress(FileNotFoundError):
            key = self.inner.read(os.path.join(scope, KEY))
            path = os.path.join(os.path.dirname(target), id_in(key).hex() + SUFFIX)
            if not self.inner.exists(path):
                self.inner.write_whole(path, [key])

    def link(self, source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.opened(source):
            pass  # so that its key is known, if the target is where it is not found
        self.inner.link(source, target)
        self._forget(target)

    def remove(self, path: str) -> None:
        self.inner.remove(path)
        self._forget(path)

    def remove_tree(self, path: str) -> None:
        self.inner.remove_tree(path)
        self._forget(path, every=True)

    def _forget(self, path: str, every: bool = False) -> None:
        """Forget a file, or everything in a directory: another one may get its name. Open files stay open."""
        shared, place = self._shared, os.path.abspath(path)
        inside = os.path.join(place, "")
        with shared.lock:
            shared.by_path.pop(place, None)
            if every:
                for path in [path for path in shared.by_path if path.startswith(inside)]:
                    del shared.by_path[path]
                for path in [path for path in shared.scopes if path == place or path.startswith(inside)]:
                    del shared.scopes[path]

    def names(self, path: str) -> list[str]:
        return self.inner.names(path)

    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def salt(self) -> int:
        return self.inner.salt()

    def lock(self, path: str, *, shared: bool = False, create: bool = True) -> int:
        return self.inner.lock(path, shared=shared, create=create)

    def over(self, inner: Files) -> Files:
        shared = _Shared()
        shared.keys = self._shared.keys
        if not self._root:  # a tool's temporary copies: nobody else reads them
            key = shared.scopes[""] = self.keys.new()
            shared.keys[key.id] = key
        return SealedFiles(inner, self._root, self.keys, shared)

    def unsynced(self) -> Files:
        return SealedFiles(self.inner.unsynced(), self._root, self.keys, self._shared)


class _Scratch(io.RawIOBase):
    """A sealed file without a name, as an object of Python's."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._fd, self._at = files, files.create(path), 0
        files.remove(path)

    def readable(self) -> bool:
        return True

    writable = seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._files.size(self._fd))[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._files.read_at(self._fd, len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        self._files.write(self._fd, [bytes(data)], self._at)
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._files.close(self._fd)
        super().close()


def key_file(files: Files, key_id: bytes, path: str) -> bytes:
    """Return the content of the key file with this key in a directory above a file, or b"" if none has it."""
    directory = os.path.dirname(os.path.abspath(path))
    for _ in range(_DEPTH + 1):
        for name in (KEY, key_id.hex() + SUFFIX):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                content = files.read(os.path.join(directory, name))
                if id_in(content) == key_id:
                    return content
        directory = os.path.dirname(directory)
    return b""
