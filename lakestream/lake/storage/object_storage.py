"""A lake in an object store.

Belongs here: the operations of storage.py over `obstore` (the Rust `object_store` crate), and the texts of its errors;
clouds/ has what differs between the clouds. Credentials and addresses come from the environment or the instance, as
object_store resolves them. This module never holds a secret, and never passes on the text of an answer, which may name
the access key and the signed request.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, BinaryIO, TypeVar, cast

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from lakestream.lake.errors import LakeError, StorageFailed
from lakestream.lake.storage.clouds.cloud import Cloud
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream.lake.storage.storage import SINGLE_PUT_BYTES, Entries, FileEntry, Names, Storage

T = TypeVar("T")

MAX_RETRIES = 4
RETRY_SECONDS = 30
"""Seconds for which a request is retried. Callers retry after a longer pause, so nothing is lost by giving up."""
TIMEOUT = "60s"
CONNECT_TIMEOUT = "10s"
DELETE_BATCH = 1000
CHUNK_BYTES = 4 * 1024 * 1024

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z \-]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_INSECURE = "it is not https (set {insecure}=true if that is meant)"
_TRANSPORT = (
    ("tcp connect error", "no connection"),
    ("dns error", "its host name is unknown"),
    ("operation timed out", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("URL scheme is not allowed", _INSECURE),
    ("builder error", _INSECURE),
    ("error sending request", "no connection"),
)
_DENIED = ("403", "401", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")

BRIEF_RETRIES = 1
BRIEF_RETRY_SECONDS = 3
BRIEF_TIMEOUT = "4s"
"""The same for requests that only look whether the store answers."""

_stores: dict[tuple[int, str, str, bool], ObjectStore] = {}
_stores_lock = threading.Lock()


class ObjectStorage(Storage):
    """Objects of one bucket. All instances of a process share the connections to a bucket."""

    local = False

    def __init__(self, root: str, brief: bool = False) -> None:
        self.root = root
        self._brief = brief
        cloud = cloud_of(root)
        assert cloud is not None, "Invariant: the root is a canonical URL"
        self.cloud = cloud
        self._bucket = root.partition("://")[2].partition("/")[0]
        self._start = f"{cloud.scheme}://{self._bucket}/"

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    def read(self, path: str) -> bytes:
        return self.read_entry(path)[0]

    def read_entry(self, path: str) -> tuple[bytes, FileEntry]:

        def ask(store: ObjectStore, key: str) -> tuple[bytes, FileEntry]:
            found = obstore.get(store, key)
            return found.bytes().to_bytes(), self._entry(found.meta)

        return self._do("read", path, ask)

    def read_end(self, path: str, size: int) -> tuple[bytes, int]:

        def ask(store: ObjectStore, key: str) -> tuple[bytes, int]:
            whole = obstore.head(store, key)["size"]
            if not whole:
                return b"", 0
            start = max(0, whole - size)
            return obstore.get_range(store, key, start=start, end=whole).to_bytes(), whole

        return self._do("read", path, ask)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if size <= 0:
            return b""
        return self._do(
            "read", path, lambda store, key: obstore.get_range(store, key, start=start, length=size).to_bytes()
        )

    def stat(self, path: str) -> FileEntry | None:

        try:
            return self._do("look up", path, lambda store, key: self._entry(obstore.head(store, key)))
        except FileNotFoundError:
            return None

    def list(self, directory: str) -> Entries:
        return sorted(self._children(directory)[0])

    def directories(self, directory: str) -> Names:
        return sorted(self._children(directory)[1])

    def tree(self, directory: str) -> Entries:
        """List all objects below a directory, one request for each thousand."""

        def ask(store: ObjectStore, key: str) -> Entries:
            found = (self._entry(each) for chunk in obstore.list(store, key, chunk_size=1000) for each in chunk)
            entries = sorted(entry for entry in found if not self._is_marker(entry, directory))
            above = {entry.path.rpartition("/")[0] for entry in entries}
            return [entry for entry in entries if entry.size or entry.path not in above]

        return self._do("list", directory, ask)

    def write(self, path: str, data: bytes) -> None:
        self._do("write", path, lambda store, key: self._put(store, key, data, None))

    def create(self, path: str, data: bytes) -> bool:
        """Create an object if there is none.

        After a broken connection the answer may be False although this call created the object; a caller that must know
        writes unique content and reads it back.
        """
        return self._do("create", path, lambda store, key: self._put(store, key, data, "create")) is not None

    def swap(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Replace an object by compare-and-swap; a broken connection has the same effect as in `create`."""

        def ask(store: ObjectStore, key: str) -> str | None:
            if tag is None:
                return self._put(store, key, data, "create")
            mode: dict[str, str | None] = {"e_tag": tag}
            if self.cloud.revision == "version":
                found = obstore.head(store, key)
                if _tag(found) != tag:
                    return None
                mode = {"version": found["version"]}
            return self._put(store, key, data, mode)

        try:
            return self._do("replace", path, ask)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        with tempfile.NamedTemporaryFile() as content:
            yield cast(BinaryIO, content)
            content.flush()
            self.put_file(path, content.name)

    def put_file(self, path: str, local_file: str | os.PathLike[str]) -> bool:
        size = os.path.getsize(local_file)
        if size > SINGLE_PUT_BYTES:
            entry = self.stat(path)
            if entry is None:
                self._do("write", path, lambda store, key: self._put_parts(store, key, local_file))
                return True
        else:
            with open(local_file, "rb") as file:
                data = file.read()
            if self.create(path, data):
                return True
        self._compare(path, local_file, size)
        return False

    def copy_file(self, path: str, source: str, storage: Storage) -> None:
        """Copy a file; within one bucket the store copies it by itself."""
        if not source.startswith(self._start):
            super().copy_file(path, source, storage)
            return

        self._do("copy to", path, lambda store, key: obstore.copy(store, self._key(source), key))

    def _compare(self, path: str, local_file: str | os.PathLike[str], size: int) -> None:
        entry = self.stat(path)
        if entry is not None and entry.size == size:
            with self.fetch(path) as there:
                if filecmp.cmp(local_file, there, shallow=False):
                    return
        raise FileExistsError(path)

    @contextlib.contextmanager
    def fetch(self, path: str) -> Iterator[str]:
        """Download an object to a temporary file."""
        with tempfile.TemporaryDirectory(prefix="lakestream-") as directory:
            target = os.path.join(directory, path.rpartition("/")[2])

            def ask(store: ObjectStore, key: str) -> None:
                with open(target, "wb") as file:
                    for chunk in obstore.get(store, key).stream(min_chunk_size=CHUNK_BYTES):
                        file.write(chunk)

            self._do("read", path, ask)
            yield target

    def sign(self, files: Sequence[str], seconds: int) -> Names:
        keys = [self._key(path) for path in files]
        if not keys:
            return []

        def ask(store: Any, key: str) -> Names:  # some kinds of store sign nothing
            return list(obstore.sign(store, "GET", keys, expires_in=timedelta(seconds=seconds)))

        return self._do("sign", files[0], ask)

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def delete_all(self, files: Iterable[str]) -> None:
        waiting = [self._key(path) for path in files]
        for at in range(0, len(waiting), DELETE_BATCH):
            some = waiting[at : at + DELETE_BATCH]

            def ask(store: ObjectStore, key: str, some: Names = some) -> None:
                obstore.delete(store, some)

            try:
                self._do("delete", f"{self._start}{some[0]}", ask)
            except FileNotFoundError:
                if len(some) > 1:  # where each object is a request of its own, the rest may be there still
                    for each in some:
                        self.delete(f"{self._start}{each}")

    def delete_tree(self, directory: str) -> None:
        self.delete_all(entry.path for entry in self.tree(directory))

    def spark_path(self, path: str) -> str:
        return self.cloud.spark_path(path)

    def delta_options(self) -> dict[str, str]:
        return {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT, **self.cloud.delta_options()}

    # Requests

    def _do(self, what: str, path: str, ask: Callable[[ObjectStore, str], T]) -> T:
        """Make a request.

        Raises:
            FileNotFoundError: there is no such object.
            StorageFailed: anything else, without the text of the answer.
        """
        key = self._key(path)
        try:
            return ask(_store(self.cloud, self._bucket, self._brief), key)
        except LakeError:
            raise
        except OSError as error:
            if error.errno is not None:
                raise  # of this machine's own files
            absent = isinstance(error, FileNotFoundError)
            reason = describe(error, self.cloud)
        except Exception as error:
            absent, reason = False, describe(error, self.cloud)
        # Outside of the handlers, so that the original error does not become the context.
        if absent and not any(code in reason for code in _NO_BUCKET):
            raise FileNotFoundError(path)
        raise StorageFailed(what, path, reason)

    def _put(self, store: ObjectStore, key: str, data: bytes, mode: Any) -> str | None:
        try:
            return _tag(obstore.put(store, key, data, mode=mode, use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            return None

    def _put_parts(self, store: ObjectStore, key: str, local_file: str | os.PathLike[str]) -> None:
        with open(local_file, "rb") as file:
            obstore.put(store, key, file, use_multipart=True, chunk_size=2 * CHUNK_BYTES, max_concurrency=4)

    def _children(self, directory: str) -> tuple[Entries, Names]:
        def ask(store: ObjectStore, key: str) -> tuple[Entries, Names]:
            found = obstore.list_with_delimiter(store, key)
            entries = [self._entry(each) for each in found["objects"]]
            names = [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]
            markers = {f"{self._start}{each.rstrip('/')}" for each in found["common_prefixes"]}
            files = [each for each in entries if not self._is_marker(each, directory)]
            return [each for each in files if each.size or each.path not in markers], names

        return self._do("list", directory, ask)

    def _is_marker(self, entry: FileEntry, directory: str) -> bool:
        """Return True for the empty objects with which some clients, Hadoop's too, represent directories."""
        return entry.size == 0 and entry.path == directory.rstrip("/")

    def _entry(self, meta: Any) -> FileEntry:
        modified: datetime = meta["last_modified"]
        modified_ns = int(modified.timestamp()) * 1_000_000_000 + modified.microsecond * 1000
        return FileEntry(f"{self._start}{meta['path']}", meta["size"], _tag(meta), modified_ns)

    def _key(self, path: str) -> str:
        if not path.startswith(self._start):
            assert path == self._start.rstrip("/"), "a path of another bucket"
            return ""
        return path[len(self._start) :].rstrip("/")


def _tag(meta: Any) -> str:
    """Return an object's entity tag; listings of some stores omit the quotes."""
    found = meta["e_tag"] or ""
    return found if not found or found.endswith('"') else f'"{found}"'


def describe(error: BaseException, cloud: Cloud) -> str:
    """Return an error's text without anything of the request or the answer but its code."""
    text = str(error)
    if any(word in text for word in cloud.absent):
        return f"no credentials: {cloud.credentials}"
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        parts = [status.group(1).strip() if status else "", code.group(1) if code else ""]
        said = " ".join(part for part in parts if part)
        if any(word in said for word in _DENIED):
            return f"{said}: do the credentials ({cloud.credentials}) allow it?"
        return said
    for sign, meaning in _TRANSPORT:
        if sign in text:
            return meaning.format(insecure=cloud.insecure)
    return type(error).__name__


def _store(cloud: Cloud, bucket: str, brief: bool = False) -> ObjectStore:
    """Return this process's connections to a bucket. A forked process makes its own."""
    which = (os.getpid(), f"{cloud.scheme}://{bucket}", cloud.endpoint() or "", brief)
    with _stores_lock:
        found = _stores.get(which)
        if found is None:
            timeout, connect = (BRIEF_TIMEOUT, BRIEF_TIMEOUT) if brief else (TIMEOUT, CONNECT_TIMEOUT)
            retries, seconds = (BRIEF_RETRIES, BRIEF_RETRY_SECONDS) if brief else (MAX_RETRIES, RETRY_SECONDS)
            found = cloud.store(
                bucket,
                {"timeout": timeout, "connect_timeout": connect, "allow_http": cloud.allows_http()},
                {"max_retries": retries, "retry_timeout": timedelta(seconds=seconds)},
            )
            _stores[which] = found
        return found
