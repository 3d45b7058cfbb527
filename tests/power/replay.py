"""Crashes at chosen operations of a recording, and the audit of each.

Belongs here: the choice of crash points, the images, and the command that repeats a finding.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from tests.power.audit import audit, audit_compaction
from tests.power.cluster_audit import audit_cluster, screen
from tests.power.disk import ONE_DISK, Image, Loss, PowerDisk
from tests.power.journal import Journal, Kind, Operation
from tests.power.lake_job import LakeJob
from tests.power.workload import Recording

PLACES = (
    "_delta_log",
    "_departures",
    "_erasures",
    "_clones",
    "_compactor",
    "segments",
    "lake",
    "base",
    "log",
    "streams",
)
FIRST = (
    "LINK _delta_log .json",  # a commit
    "UNLINK log .seg",  # the log lets go of a segment
    "UNLINK segments .seg",  # and of the staged segment
    "RENAME log .outline",
    "LINK segments .seg",
    "RENAME streams",  # a stream's checkpoint; a deleted stream
)
"""Steps at which crashes are tried first."""
NAMING = {Kind.CREATE, Kind.RENAME, Kind.LINK, Kind.UNLINK, Kind.RMDIR, Kind.MKDIR}


class Crash(msgspec.Struct, frozen=True):
    """A power loss right before operation `point` of a recording; `seed` decides what of a torn image is left."""

    point: int
    loss: Loss
    seed: int


class Finding(msgspec.Struct, frozen=True):
    """Problems that a crash has caused."""

    crash: Crash
    problems: list[str]

    def describe(self, directory: str) -> str:
        """Return the problems and the command that repeats the crash."""
        crash = self.crash
        again = f"python -m tests.power replay {directory} --point {crash.point} --loss {crash.loss.value}"
        return "\n    ".join([f"{again} --seed {crash.seed}", *self.problems])


def category(operation: Operation) -> str:
    """Return the kind of step that an operation is part of; crashes are spread evenly over the steps."""
    path = Path(operation.target or operation.path)
    if operation.kind not in NAMING:
        return operation.kind.name
    if path.name.startswith("."):
        return "temporary"
    place = next((place for place in PLACES if place in path.parts), "server")
    return f"{operation.kind.name} {place} {path.suffix}".rstrip()


def choose(operations: Sequence[Operation], count: int, random: Random) -> list[int]:
    """Choose crash points: the end, then in turns near a step of each category, and at random."""
    by_category: dict[str, list[int]] = defaultdict(list)
    for number, operation in enumerate(operations):
        by_category[category(operation)].append(number)
    categories = list(by_category)
    random.shuffle(categories)
    categories.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    # Later crashes have more to lose, so the last steps are preferred.
    groups = [sorted(by_category[name], key=lambda number: number * random.random()) for name in categories]
    chosen = {len(operations)}
    while len(chosen) < min(count, len(operations)):
        for numbers in groups:
            if numbers and len(chosen) < count:
                chosen.add(min(len(operations), numbers.pop() + random.choice((0, 1, 1, 2, 5))))
        if len(chosen) < count:
            chosen.add(random.randrange(len(operations)))
    return sorted(chosen)


def images(
    journal: Journal, operations: Sequence[Operation], crashes: Sequence[Crash]
) -> Iterator[tuple[Crash, Image]]:
    """Yield the image of each crash, in the order of their points."""
    disk = PowerDisk(journal)
    done = 0
    for crash in sorted(crashes, key=lambda crash: crash.point):
        while done < crash.point:
            disk.apply(operations[done])
            done += 1
        yield crash, disk.lose(crash.loss, Random(crash.seed))


def moment(operations: Sequence[Operation], point: int) -> int:
    """Return the latest time at which a crash there can have been."""
    return operations[point].time_ns if point < len(operations) else operations[-1].time_ns + 1


class Replay:
    """A recording with the operations of its journal. Images are made where the original was."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.journal = recording.journal
        self.operations = self.journal.operations()
        self.distinct = 0
        """Number of distinct images so far; crashes with identical images are audited once."""

    def differences(self) -> list[str]:
        """Return the paths in which the whole journal's replay differs from the directory that was recorded."""
        disk = PowerDisk(self.journal)
        for operation in self.operations:
            disk.apply(operation)
        return disk.seen().differences(Image.read(self.journal.root))

    def crashes(self, points: int, random: Random) -> list[Crash]:
        """Choose crashes: of one server with each kind of loss at each point, of a cluster with one, mostly mixed."""
        chosen = choose(self.operations, points, random)
        if self.recording.members:
            kinds = (Loss.MIXED, *ONE_DISK, Loss.MIXED)
            return [Crash(point, random.choice(kinds), random.getrandbits(32)) for point in chosen]
        return [Crash(point, loss, random.getrandbits(32)) for point in chosen for loss in ONE_DISK]

    def run(self, crashes: Sequence[Crash], report: Callable[[Finding], None] = lambda finding: None) -> list[Finding]:
        """Audit a server after each crash; call `report` with each finding at once."""
        findings = []
        seen: dict[bytes, list[str]] = {}
        for crash, image in images(self.journal, self.operations, crashes):
            at_ns = moment(self.operations, crash.point)
            digest = _digest(image, at_ns)
            if digest not in seen:
                self.place(image)
                seen[digest] = self._audit(at_ns, crash)
                self.distinct += 1
                if seen[digest]:
                    findings.append(Finding(crash, seen[digest]))
                    report(findings[-1])
        return findings

    def screen(
        self, crashes: Sequence[Crash], report: Callable[[Finding], None] = lambda finding: None
    ) -> list[Finding]:
        """Examine the images of a cluster without starting it."""
        findings = []
        for crash, image in images(self.journal, self.operations, crashes):
            self.place(image)
            problems = screen(self.recording, moment(self.operations, crash.point))
            if problems:
                findings.append(Finding(crash, problems))
                report(findings[-1])
        return findings

    def _audit(self, at_ns: int, crash: Crash) -> list[str]:
        """Return the problems with the image that was placed."""
        if self.recording.members:
            return screen(self.recording, at_ns) + audit_cluster(self.recording, at_ns, Random(crash.seed))
        return audit(self.journal.root, self.recording.streams, at_ns)

    def run_compactions(
        self, crashes: Sequence[Crash], job: LakeJob, report: Callable[[Finding], None] = lambda finding: None
    ) -> list[Finding]:
        """Audit server and compactor after each crash."""
        findings = []
        for crash, image in images(self.journal, self.operations, crashes):
            self.place(image)
            at_ns = moment(self.operations, crash.point)
            problems = audit_compaction(self.journal.root, self.recording.streams, at_ns, job)
            if problems:
                findings.append(Finding(crash, problems))
                report(findings[-1])
        return findings

    def place(self, image: Image) -> None:
        """Write an image to the recorded path, because paths in a clone's table are absolute."""
        shutil.rmtree(self.journal.root, ignore_errors=True)
        image.write(self.journal.root)

    def trace(self, name: str, point: int) -> list[str]:
        """Return the operations on every file whose path contains `name`, up to a point."""
        inodes = {each.inode for each in self.operations[:point] if name in each.path or name in each.target} - {0}
        return [
            f"{number}: {each.describe(str(self.journal.root))}"
            for number, each in enumerate(self.operations[:point])
            if each.inode in inodes or name in each.path or name in each.target
        ]


def _digest(image: Image, at_ns: int) -> bytes:
    digest = hashlib.blake2b(b"%d" % at_ns)
    for path in sorted(image.folders):
        digest.update(b"%b\0" % os.fsencode(path))
    for path, content in sorted(image.files.items()):
        digest.update(b"%b\0%d\0" % (os.fsencode(path), len(content)))
        digest.update(content)
    return digest.digest()
