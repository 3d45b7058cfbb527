"""Tests of finding a table whose log is not whole: what commits make up for is mended, anything else is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakestream.lake.errors import DamagedLog
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.schema import UID_PROPERTY
from lakestream_spark.write.table import StreamTable

pytestmark = pytest.mark.unit

SESSION = cast(Any, SimpleNamespace(conf=SimpleNamespace(set=lambda *setting: None)))
"""Session of a program that only finds tables, which needs no Spark."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the log of a table with four commits and a checkpoint of the third."""
    path = tmp_path / "streams" / "S"
    schema = pa.schema([("seq", pa.int64())])
    DeltaTable.create(path, schema, configuration={UID_PROPERTY: "U"}, raise_if_key_not_exists=False)
    for number in range(1, 4):
        write_deltalake(path, pa.table({"seq": [number]}), mode="append")
        if number == 2:
            DeltaTable(path).create_checkpoint()
    return path / "_delta_log"


def found(log: Path) -> str | None:
    table = log.parent
    stream = StreamIdentity(name="S", account="$G", uid="U", created_ns=1)
    there = StreamTable(SESSION, open_storage(table.parent.parent), stream, str(table)).find()
    return None if there is None else there.uid


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
    ],
    ids=["deleted", "cut", "zeros"],
)
def test_a_damaged_checkpoint_is_no_obstacle_while_all_commits_are_there(
    log: Path, harm: Callable[[Path], object]
) -> None:
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    harm(checkpoint)
    assert found(log) == "U"
    assert not checkpoint.exists()
    assert DeltaTable(log.parent).version() == 3, "other readers, too"


def test_a_missing_commit_is_named(log: Path) -> None:
    (log / f"{3:020d}.json").rename(log / f"{5:020d}.json")
    with pytest.raises(DamagedLog, match=r"0003\.json is damaged: it is missing"):
        found(log)
