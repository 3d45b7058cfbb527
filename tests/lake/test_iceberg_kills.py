"""Tests of Iceberg commits that end in the middle: readers find the version before, and the next commit is right.

One goes through the files of a commit in their order. The other kills real compactors as soon as a file of a chosen
kind is there, LAKESTREAM_ICEBERG_KILLS times (default 8), while a reader reads on.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.record import Record
from tests.lake.iceberg import HINT, READERS, IcebergStream, by_pyiceberg, record
from tests.lake.model import StreamModel, flights
from tests.lake.test_compact_job import Job
from tests.lake.test_compactor import until

pytestmark = pytest.mark.lake

KILLS = int(os.environ.get("LAKESTREAM_ICEBERG_KILLS", "8"))
KINDS = ("*.puffin", "*-m0.avro", "snap-*.avro", "*.metadata.json", "v*.metadata.json", HINT)
"""Files of a commit, in the order in which they are written."""


def found(table: str) -> list[Record]:
    return [record(row) for row in by_pyiceberg(table)]


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_a_crash_at_any_file_of_a_commit_leaves_a_version_that_readers_find(
    spark: Any, lake: Path, tmp_path: Path, form: str
) -> None:
    stream = IcebergStream(spark, lake, tmp_path / "log", {"lakestream.iceberg": form})
    stream.publish(20)
    stream.model.remove([2])
    stream.compact()
    stream.check()
    there, before, after = Path(stream.table, "metadata"), tmp_path / "before", tmp_path / "after"
    shutil.copytree(there, before)
    rows = stream.model.expected()
    stream.publish(5)
    stream.model.remove([3])
    stream.compact()
    stream.check()
    changed = [path for path in there.iterdir() if not (before / path.name).exists() or path.name == HINT]
    names = [path.name for path in sorted(changed, key=lambda path: path.stat().st_ctime_ns)]
    assert names[-1] == HINT
    assert len(names) > 5
    there.rename(after)
    for count, name in enumerate(names):
        for torn in (False, True):
            shutil.rmtree(there, ignore_errors=True)
            shutil.copytree(before, there)
            for each in names[:count]:
                shutil.copy(after / each, there)
            if torn:  # these two get their names once they are complete
                renamed = name == HINT or name.startswith("v")
                content = (after / name).read_bytes()
                (there / (f"x.{name}" if renamed else name)).write_bytes(content[: len(content) // 2])
            assert found(stream.table) == rows, (name, torn)
            stream.anew()
            stream.export.run()
            for reader, read in READERS.items():
                assert [record(row) for row in read(stream.table)] == stream.model.expected(), (name, torn, reader)


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Yield the list of a test's jobs; kill those that still run at its end."""
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


@pytest.mark.heavy
@pytest.mark.timeout(600 * KILLS)  # each starts a JVM of its own
def test_compactors_that_are_killed_in_the_middle_of_iceberg_commits(
    lake: Path, tmp_path: Path, started: list[Job]
) -> None:
    model = StreamModel(tmp_path / "log")
    table, stopping = model.table(lake), threading.Event()
    there = Path(table, "metadata")
    states: list[list[Record]] = [[]]  # a table is created before its first rows, and Iceberg may follow in between
    wrong: list[object] = []

    def read_on() -> None:
        reached = 0
        while not stopping.wait(0.05):
            if not (there / HINT).exists():
                continue
            try:
                rows = found(table)
            except FileNotFoundError as error:  # the table is made anew, or the version was deleted meanwhile
                wrong.extend([] if str(there) in str(error) else [error])
            except Exception as error:
                wrong.append(error)
            else:
                at = states.index(rows) if rows in states else -1
                wrong.extend([] if at >= reached else [(reached, at, rows)])  # a version never goes backwards
                reached = max(reached, at)

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for number in range(KILLS):
            kind = KINDS[(number + 1) % len(KINDS)]
            model.publish(flights(50))
            model.remove([number])  # of an earlier commit, so with a deletion vector
            model.seal()
            states.append(model.expected())
            job = Job(lake, "--iceberg", "v3", "--interval", "0.2", "--maintain-every", "0", "--create")
            started.append(job)
            job.wait_for("compactor ready")
            before = _seen(there, kind)
            model.stage(lake, model.sealed[-1])
            until(lambda before=before, kind=kind: bool(_seen(there, kind) - before))  # type: ignore[misc]
            job.kill()
        model.publish(flights(1))
        model.stage(lake)
        states.append(model.expected())
        last = Job(lake, "--once", "--iceberg", "v3")
        started.append(last)
        assert last.end() == 0, last.lines
        assert found(table) == model.expected()
    finally:
        stopping.set()
        reader.join()
    assert wrong == []


def _seen(there: Path, kind: str) -> set[tuple[str, int]]:
    """Return the files of a kind with their times of modification."""
    seen = set()
    for path in there.glob(kind):
        try:
            seen.add((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # renamed meanwhile
            seen.add((path.name, 0))
    return seen
