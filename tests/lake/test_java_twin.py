"""Tests of the two resolvers of time travel: Spark's, in Java, and ours give the same answer for the same log."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JJavaError

from lakestream.lake.table.at import (
    TableAsOf,
    TimeTravelError,
    open_log,
    version_for_message_time,
    version_for_sequence,
)
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from tests.lake.test_log_stores import jvm, plain_java_errors

pytestmark = pytest.mark.lake
__all__ = ["plain_java_errors"]

LOGS = 60
"""Number of random logs."""
GONE = "gone"
"""Answer of a resolver whose version is no longer there."""
Answer = tuple[int | None, int | None] | str
"""The version, and the log index of the commit whose departures count."""


def write_log(table: Path, choose: random.Random) -> tuple[int, int]:
    """Write a random log; return the last time and the last sequence in it."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    seq = time_ns = index = deletes = 0
    moment_ns, keeps, undone = 0, choose.random() < 0.6, list[tuple[int, int]]()
    for version in range(choose.randint(1, 12)):
        info: dict[str, Any] = {"inCommitTimestamp": 1000 * version, "operation": "WRITE"}
        actions: list[dict[str, Any]] = []
        kind = choose.choice(["rows", "rows", "rows", "none", "delete", "optimize", "foreign", "adoption"])
        if kind in ("rows", "none", "adoption"):
            keeps = keeps if choose.random() < 0.8 else not keeps
            index += choose.randint(1, 3)
            for _ in range(choose.randint(1, 2) if kind != "none" else 0):
                first = time_ns = time_ns + choose.choice([0, 1, 5])
                seq, time_ns = seq + choose.randint(1, 3), time_ns + choose.choice([0, 2, 9])
                stats = {"numRecords": 1, "minValues": {"time_ns": first}}
                actions.append({"add": {"path": "x", "stats": json.dumps(stats) if choose.random() < 0.8 else ""}})
            moment_ns = max(moment_ns, time_ns + choose.choice([0, 0, 3]))
            departed = choose.choice([0, 0, 2]) if keeps else -1
            deletes = choose.choice([0, 1, 2]) if departed > 0 else 0
            if version > 2 and choose.random() < 0.1:
                undone = [*undone, (version - 2, version - 1)]
            uid = "another" if version == 0 and choose.random() < 0.2 else "u"
            progress = TableProgress(
                uid=uid,
                last_index=index,
                last_seq=seq,
                last_time_ns=time_ns,
                moment_ns=moment_ns if keeps else 0,
                departed=departed,
                deletes=deletes,
                undone=undone,
            )
            info["userMetadata"] = msgspec.json.encode(progress).decode()
            info["operation"] = "Manual Update" if kind == "adoption" else "WRITE"
        elif kind == "foreign":
            info["userMetadata"] = choose.choice(["by hand", "{}", '{"last_seq": 3}'])
            actions.append({"add": {"path": "y"}})
        else:
            info["operation"] = kind.upper()
        lines = [{"commitInfo": info}, *actions]
        (log / f"{version:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = sorted(log.iterdir())
    for name in names[: min(choose.choice([0, 0, 1, len(names) // 2]), len(names) - 1)]:
        name.unlink()  # as log clean-up does
    return max(time_ns, moment_ns), seq


def ours(log: TableLog, at: int, is_seq: bool) -> Answer:
    """Return the answer of lake/table/at.py."""
    try:
        found: TableAsOf = version_for_sequence(log, at) if is_seq else version_for_message_time(log, at)
    except TimeTravelError:
        return GONE
    return found.version, None if found.progress is None else found.progress.last_index


def test_java_and_python_find_the_same_version_in_the_same_logs(tmp_path: Path) -> None:
    answers = set()
    with jvm() as java:
        spark = java.io.lakestream.spark
        configuration = java.org.apache.hadoop.conf.Configuration(False)

        def theirs(log: Any, at: int, is_seq: bool) -> Answer:
            try:
                found = (spark.MessageTime.ofSequence if is_seq else spark.MessageTime.version)(log, at)
            except Py4JJavaError as error:
                return str(error.java_exception.getClass().getSimpleName()).lower()
            progress = found.departures()
            return found.version(), None if progress is None else progress.lastIndex()

        for number in range(LOGS):
            table = tmp_path / str(number)
            last_ns, last_seq = write_log(table, random.Random(number))
            path = java.org.apache.hadoop.fs.Path(str(table))
            twin = spark.CommitLog.open(str(table), path.getFileSystem(configuration))
            asked = [(at, False) for at in range(last_ns + 2)]
            for at, is_seq in asked + [(at, True) for at in range(1, last_seq + 2)]:
                expected = ours(open_log(table), at, is_seq)
                assert theirs(twin, at, is_seq) == expected, f"log {number}: at {at}, by sequence: {is_seq}"
                answers.add(type(expected))
    assert answers == {tuple, str}, "some are found, and some are gone"
