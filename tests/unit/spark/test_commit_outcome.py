"""Tests of the outcome of a commit that raised an error, as the log tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream_spark.write.commit import is_refused

pytestmark = pytest.mark.unit

CONFLICT = Exception("[DELTA_CONCURRENT_DELETE_READ] a concurrent commit removed files")
OURS = "part-1 of us.parquet"


def log(lake: Path, *commits: str) -> TableLog:
    """Return the log of a table whose commits add one file each."""
    table = lake / "streams" / "S"
    (table / "_delta_log").mkdir(parents=True)
    for version, name in enumerate(commits):
        line = json.dumps({"add": {"path": name.replace(" ", "%20"), "size": 1}}, separators=(",", ":"))
        (table / "_delta_log" / f"{version:020d}.json").write_text(line)
    return TableLog(open_storage(lake), str(table))


@pytest.mark.parametrize(
    ("commits", "error", "refused"),
    [
        (("old", "other"), CONFLICT, True),
        (("old", "other", OURS), CONFLICT, False),  # its own first attempt, whose answer was lost, was in the way
        (("old", OURS), ConnectionError("the JVM was killed"), False),
        (("old", "other"), ConnectionError("no answer"), False),  # a later version may still arrive
        (("old",), CONFLICT, False),  # nothing is in the place that it would have
    ],
)
def test_invariant_13_a_commit_failed_only_if_another_one_has_its_place(
    tmp_path: Path, commits: tuple[str, ...], error: Exception, refused: bool
) -> None:
    found = log(tmp_path, *commits)
    assert is_refused(error, found, 0, {f"{found.table}/{OURS}"}) is refused
