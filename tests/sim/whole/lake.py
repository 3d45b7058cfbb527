"""The lake of a simulated cluster: an object store in memory, and what processes see of it.

Belongs here: the objects, requests with their duration, and outages. `SimStorage` is what `open_storage` returns for an
address of an object store while a simulation runs. The store itself is consistent and loses nothing, as S3 promises. A
request may take long, fail, or succeed although its answer is lost; of a process that ends, requests not yet sent never
arrive.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any, BinaryIO
from unittest.mock import patch

import msgspec

from lakestream.lake.errors import StorageFailed
from lakestream.lake.storage.storage import Entries, FileEntry, Names, Storage
from lakestream.lake.table.log import TableVersion
from lakestream.log.format.files import Files
from tests.sim.events import EPOCH, MS, Events, S
from tests.sim.whole.fibers import Fibers, InlineExecutor, Threading
from tests.sim.whole.surroundings import Current

ROOT = "s3://lakehouse/lake"
"""Address of the lake."""
STORE = "/store"
"""Directory of the servers' stores on their simulated disks."""
LEASE_SECONDS = 6.0
"""Duration of leases; shorter than usual, so that they expire within a run."""
_BEHIND = chr(ord("/") + 1)
"""Behind the name of a directory, this sorts behind the paths of all that is in it."""
_SIMULATED = 1 << 30
"""Added to descriptors of simulated files."""


class _Object(msgspec.Struct, frozen=True):
    data: bytes
    tag: str
    modified_ns: int


class Lake:
    """The objects, and the state of the store.

    Attributes:
        away: requests fail.
        slow: factor of the duration of requests.
        flaky: share of the requests that fail, half of them after they took effect.
        cut: hosts whose requests fail.
        requests: made so far; dropped: segments that have left a log.
        states: of tables, as checks have found them last, by stream; with number and last tag of the files of the log.
        contents: of data files, as checks have found them, by path; with their tags.
        note: called with each change.
    """

    def __init__(self, events: Events, current: Current, fibers: Fibers, random: Random) -> None:
        self.events, self.current, self.fibers, self.random = events, current, fibers, random
        self.objects: dict[str, _Object] = {}
        self.away = False
        self.slow = 1
        self.flaky = 0.0
        self.cut: set[str] = set()
        self.contents: dict[str, tuple[str, dict[int, tuple[bytes, bytes, bytes, int]]]] = {}
        self.states: dict[str, tuple[tuple[int, str], TableVersion | None]] = {}
        self.requests = self.dropped = 0
        self.note: Callable[[str], None] = lambda text: None
        self._tags = 0
        self._paths: list[str] = []  # of the objects, sorted

    def calm(self) -> None:
        """End all outages."""
        self.away, self.slow, self.flaky = False, 1, 0.0
        self.cut.clear()

    def request(self, what: str, path: str, *, changes: bool = False) -> bool:
        """Take the time of a request; return True if its answer will be lost.

        Raises:
            StorageFailed: there is no answer.
        """
        self.fibers.check()
        self.requests += 1
        random = self.random
        if self.fibers.current is not None and (changes or self.slow > 1 or random.random() < 0.1):
            self.fibers.sleep(random.randrange(MS, 20 * MS) * self.slow / S)
        if self.away or self.current.machine.address in self.cut:
            if self.fibers.current is not None:
                self.fibers.sleep(random.choice((0.01, 0.5, 8.0)))
            raise StorageFailed(what, path, "no connection")
        if self.flaky and random.random() < self.flaky:
            if changes and random.random() < 0.5:
                return True
            raise StorageFailed(what, path, "503 SlowDown")
        return False

    def put(self, path: str, data: bytes) -> str:
        """Replace an object; return its tag."""
        self._tags += 1
        if path not in self.objects:
            insort(self._paths, path)
        self.objects[path] = _Object(data, f'"{self._tags}"', EPOCH + self.events.now)
        self.note(f"lake: {path} has {len(data)} bytes")
        return f'"{self._tags}"'

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        if self.objects.pop(path, None) is not None:
            del self._paths[bisect_left(self._paths, path)]
            self.note(f"lake: {path} is deleted")

    def below(self, directory: str) -> list[str]:
        """Return the paths of all objects below a directory, sorted."""
        start = directory.rstrip("/")
        return self._paths[bisect_left(self._paths, f"{start}/") : bisect_left(self._paths, f"{start}{_BEHIND}")]

    def directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory, sorted."""
        start = directory.rstrip("/") + "/"
        at, found = bisect_left(self._paths, start), []
        while at < len(self._paths) and self._paths[at].startswith(start):
            name, slash, _ = self._paths[at][len(start) :].partition("/")
            if slash:
                found.append(name)
            at = bisect_left(self._paths, f"{start}{name}{_BEHIND}") if slash else at + 1
        return sorted(found)

    def entry(self, path: str) -> FileEntry:
        """Return the entry of an object. Raise FileNotFoundError."""
        found = self.objects.get(path)
        if found is None:
            raise FileNotFoundError(path)
        return FileEntry(path, len(found.data), found.tag, found.modified_ns)


class SimStorage(Storage):
    """The lake as the running process sees it."""

    local = False

    def __init__(self, lake: Lake, root: str, brief: bool = False) -> None:
        self.root = root
        self._lake = lake

    def _request(self, what: str, path: str, *, changes: bool = False) -> bool:
        return self._lake.request(what, path, changes=changes)

    def read(self, path: str) -> bytes:
        return self.read_entry(path)[0]

    def read_entry(self, path: str) -> tuple[bytes, FileEntry]:
        self._request("read", path)
        entry = self._lake.entry(path)
        return self._lake.objects[path].data, entry

    def read_end(self, path: str, size: int) -> tuple[bytes, int]:
        data = self.read(path)
        return data[max(0, len(data) - size) :], len(data)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self.read(path)[start : start + size]

    def stat(self, path: str) -> FileEntry | None:
        self._request("look up", path)
        return self._lake.entry(path) if path in self._lake.objects else None

    def list(self, directory: str) -> Entries:
        self._request("list", directory)
        start = len(directory.rstrip("/")) + 1
        return [self._lake.entry(path) for path in self._lake.below(directory) if path.find("/", start) < 0]

    def directories(self, directory: str) -> Names:
        self._request("list", directory)
        return self._lake.directories(directory)

    def tree(self, directory: str) -> Entries:
        self._request("list", directory)
        return [self._lake.entry(path) for path in self._lake.below(directory)]

    def write(self, path: str, data: bytes) -> None:
        lost = self._request("write", path, changes=True)
        self._lake.put(path, data)
        self._answer(lost, "write", path)

    def create(self, path: str, data: bytes) -> bool:
        """Create an object; after a lost answer the client gives up, or repeats the request and finds the object."""
        lost = self._request("create", path, changes=True)
        if path in self._lake.objects:
            return False
        self._lake.put(path, data)
        self._answer(lost and self._lake.random.random() < 0.5, "create", path)
        return not lost

    def swap(self, path: str, data: bytes, tag: str | None) -> str | None:
        lost = self._request("replace", path, changes=True)
        found = self._lake.objects.get(path)
        if tag != (None if found is None else found.tag):
            return None
        new = self._lake.put(path, data)
        return None if lost else new

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        content = _Kept()
        yield content
        self._put(path, content.content())

    def put_file(self, path: str, local_file: str | os.PathLike[str]) -> bool:
        return self._put(path, _local(self._lake.current).read(os.fspath(local_file)))

    def _put(self, path: str, data: bytes) -> bool:
        if self.create(path, data):
            return True
        if self.read(path) != data:
            raise FileExistsError(path)
        return False

    @contextlib.contextmanager
    def fetch(self, path: str) -> Iterator[str]:
        data = self.read(path)
        with tempfile.NamedTemporaryFile(prefix="lakestream-sim-") as file:
            file.write(data)
            file.flush()
            yield file.name

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def delete_all(self, files: Iterable[str]) -> None:
        """Delete objects; a process that ends meanwhile has deleted some of them."""
        for path in files:
            lost = self._request("delete", path, changes=True)
            self._lake.delete(path)
            self._answer(lost, "delete", path)

    def delete_tree(self, directory: str) -> None:
        self.delete_all(entry.path for entry in self.tree(directory))

    def spark_path(self, path: str) -> str:
        return path

    def delta_options(self) -> dict[str, str]:
        raise AssertionError("deltalake has no simulated store")

    def _answer(self, lost: bool, what: str, path: str) -> None:
        if lost:
            raise StorageFailed(what, path, "no answer in time")


class Observer(SimStorage):
    """The lake as it is, for checks: requests take no time and do not fail."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, ROOT)

    def _request(self, what: str, path: str, *, changes: bool = False) -> bool:
        assert not changes
        return False


class _Kept(io.BytesIO):
    """A file whose content outlives its end: its writer may close it."""

    kept = b""

    def close(self) -> None:
        if not self.closed:
            self.kept = self.getvalue()
        super().close()

    def content(self) -> bytes:
        """Return what was written."""
        return self.kept if self.closed else self.getvalue()


def _local(current: Current) -> Files:
    """Return the files of the machine whose turn it is."""
    files: Files | None = current.machine.files
    assert files is not None, "only servers have files"
    return files


class LocalFiles(Files):
    """`Files()` of the machine whose turn it is; of the real one for what `fetch` has put there."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def _of(self, path: str) -> Files | None:
        return _local(self._current) if path.startswith(STORE) else None

    def open(self, path: str, write: bool = False) -> int:
        files = self._of(path)
        return super().open(path, write) if files is None else files.open(path, write) + _SIMULATED

    def close(self, fd: int) -> None:
        if fd < _SIMULATED:
            super().close(fd)
        else:
            _local(self._current).close(fd - _SIMULATED)

    def size(self, fd: int) -> int:
        return super().size(fd) if fd < _SIMULATED else _local(self._current).size(fd - _SIMULATED)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        if fd < _SIMULATED:
            return super().read_at(fd, length, offset)
        return _local(self._current).read_at(fd - _SIMULATED, length, offset)

    def read(self, path: str) -> bytes:
        files = self._of(path)
        return super().read(path) if files is None else files.read(path)

    def names(self, path: str) -> list[str]:
        files = self._of(path)
        return super().names(path) if files is None else files.names(path)


def _wait_in_order(
    futures: Iterable[Future[Any]], timeout: float | None = None
) -> tuple[list[Future[Any]], list[None]]:
    """Return the futures of an InlineExecutor, which are done; as a set they would have a random order."""
    return list(futures), []


@contextlib.contextmanager
def reachable(lake: Lake) -> Iterator[None]:
    """Let processes reach the lake, in threads of their own, for the duration of the block."""
    threads = Threading(lake.fibers)

    def files() -> Files:
        return LocalFiles(lake.current)

    replaced: dict[str, object] = {
        "time.sleep": lake.fibers.sleep,
        "lakestream.lake.storage.object_storage.ObjectStorage": partial(SimStorage, lake),
        "lakestream.lake.storage.locks._proven": set(),
        "lakestream.lake.storage.locks.LEASE_SECONDS": LEASE_SECONDS,
        "lakestream.log.format.segment.Files": files,
        "lakestream.lake.staging.sealed.Files": files,
        "lakestream_spark.write.lake_compaction.wait": _wait_in_order,
    }
    for module in ("storage.locks", "read.history.history", "read.history.cache", "table.state"):
        replaced[f"lakestream.lake.{module}.threading"] = threads
    for module in (
        "lakestream.lake.read.history.scan",
        "lakestream.server.lake.keeper",
        "lakestream.server.lake.history",
    ):
        replaced[f"{module}.ThreadPoolExecutor"] = InlineExecutor
    for module in ("lake_compaction", "clone_worker"):
        replaced[f"lakestream_spark.write.{module}.ThreadPoolExecutor"] = InlineExecutor
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(
            patch(
                "lakestream.lake.staging.quarantine.open",
                lambda path, mode: io.BytesIO(files().read(path)),
                create=True,
            )
        )
        yield
