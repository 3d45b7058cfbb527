"""Verification of a store directory.

Belongs here: locking a store that no server uses, and walking over everything in it. Memory is bounded by the indexes
of one stream and its longest segment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import msgspec

from lakestream.log.format.files import Files
from lakestream.log.format.segment import LOG_DIRECTORY
from lakestream.log.store.root import StoreRoot, require_own
from lakestream.log.verify.findings import Finding, FindingKind, Repair
from lakestream.log.verify.overlay import Overlay
from lakestream.verify.meta import check_meta
from lakestream.verify.repair import Fix, StreamRepair
from lakestream.verify.streams import StreamCheck

JETSTREAM = "jetstream"
"""Directory of the streams in a server's store directory."""


class NoStore(Exception):
    """Raised when a directory is no store."""


def root_of(directory: str) -> str:
    """Return the directory of the streams for a server's store directory, or for itself.

    Raises:
        NoStore: it is no store.
        ForeignStore: it is a store of nats-server.
    """
    for path in (os.path.join(directory, JETSTREAM), directory):
        if os.path.isfile(os.path.join(path, "VERSION")):
            return path
        require_own(path, Files())
    raise NoStore(f"{directory} is not a store: it has no {JETSTREAM}/VERSION; name the server's store_dir")


class StoreCheck:
    """Verification of a store that no server uses.

    Args:
        root: as `root_of` returned it.
        wanted: returns True for (account, stream) of the streams to verify.
        lake: root of the lake to compare with; "" without.
        every_row: see `LakeCheck`.
        alone: lock the store for changes.

    Raises:
        StoreLocked, StoreVersionError, OSError: the store cannot be used.
    """

    def __init__(
        self,
        root: str,
        wanted: Callable[[str, str], bool],
        lake: str = "",
        every_row: bool = False,
        alone: bool = False,
    ) -> None:
        self.files = Files()
        self.root = StoreRoot.inspect(root, self.files, alone=alone)
        self._wanted, self._lake, self._every_row = wanted, lake, every_row
        self._left: list[tuple[str, str, str]] = []
        self.streams = self.bytes = 0
        """Streams and bytes of logs that were verified."""

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self.root.close()

    def streams_in(self) -> tuple[list[tuple[str, str]], list[Finding]]:
        """Return (account, stream) of the wanted streams, and the findings about what else lies in the store. Note the
        deleted streams whose files the lake still needs."""
        said: list[str] = []
        with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
            survey = self.root.survey(Overlay(scratch), said.append)
        found = [
            Finding(kind=FindingKind.UNKNOWN, file=self.root.path, what=line, harmless=True, repair=Repair.NONE)
            for line in said
        ]
        self._left = [each for each in survey.left if self._wanted(*each[:2])]
        return [each for each in survey.streams if self._wanted(*each)], found

    def total(self) -> int:
        """Return the bytes of the logs that are verified."""
        streams, _ = self.streams_in()
        directories = [self.root.stream_directory(*each) for each in streams] + [path for _, _, path in self._left]
        return sum(_bytes_in(os.path.join(each, LOG_DIRECTORY)) for each in directories)

    def findings(self, advance: Callable[[int], None]) -> Iterator[Finding]:
        """Yield everything that is wrong in the store. Block. `advance` is called with numbers of bytes."""

        def done(count: int) -> None:
            self.bytes += count
            advance(count)

        streams, found = self.streams_in()
        yield from found
        yield from check_meta(self.files, self.root.path, done)
        for account, name in streams:
            self.streams += 1
            directory = self.root.stream_directory(account, name)
            check = StreamCheck(self.files, directory, account, name, done, self._lake, self._every_row)
            yield from check.findings()
        for account, name, directory in self._left:
            check = StreamCheck(self.files, directory, account, name, done, self._lake, self._every_row)
            for finding in check.findings():
                # Every node keeps its own files of a deleted stream, and sends none.
                alone = finding.repair is Repair.REPLICAS
                yield msgspec.structs.replace(finding, repair=Repair.NONE) if alone else finding

    def fix(self, finding: Finding) -> Fix | None:
        """Return the repair of a finding, or None."""
        if finding.repair is not Repair.REPAIR:
            return None
        left = (path for _, _, path in self._left if finding.file.startswith(f"{path}/"))
        directory = next(left, self.root.stream_directory(finding.account, finding.stream))
        return StreamRepair(self.files, directory, finding.account, finding.stream, self._lake).fix(finding)


def _bytes_in(directory: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory))
    except OSError:
        return 0
