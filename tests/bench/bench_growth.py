"""Measure the files of a table after two days of one commit every 10 s, with and without maintenance.

    python -m tests.bench.bench_growth [--commits 17000] [--every 60] [--retain-hours 168] [--without]
    python -m tests.bench.bench_growth --draw OUTPUT...

The commits are simulated: written file by file as the compactor writes them (a data file for each of three subjects,
ten rows in each; statistics, transaction identifier, user metadata and in-commit timestamp; a checkpoint every 50
commits), 10 s of simulated time apart. Maintenance is the real one, after every so many commits, by the simulated
clock. Prints, as JSON, files and log files and how long the table takes to open (deltalake, with the first message
read) every 500 commits. Needs Java 17 or newer, but for `--without`. `--draw` makes the pictures of what was printed.

Figures: docs/maintenance.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import message_schema

SUBJECTS = ("sensor.1", "sensor.2", "sensor.3")
ROWS = 10
STEP_NS = 10_000_000_000
CHECKPOINT_EVERY = 50
SAMPLE_EVERY = 500
UID = "GROWTH"


class Sample(msgspec.Struct, frozen=True):
    """State of a table after some commits.

    Files of its newest version, data files on disk, files in its log, and the time to open it and to read a message.
    """

    commits: int
    files: int
    on_disk: int
    log_files: int
    open_ms: float


class Simulation:
    """Stream's table that gets commits as from a compactor, in simulated time.

    Args:
        lake: root of a lake; the table's own directory must not exist.
        began_ns: simulated time of the first commit. It must not be in the past, as in-commit timestamps increase.
    """

    def __init__(self, lake: Path, began_ns: int) -> None:
        self.table = Path(paths.table(str(lake), UID))
        self.now_ns = began_ns
        self.commits = 0
        self.rows = 0
        self._log = self.table / "_delta_log"
        self._log.mkdir(parents=True)
        for subject in SUBJECTS:
            (self.table / f"subject={subject}").mkdir()
        self._schema = pa.schema([*message_schema(), pa.field("time", pa.timestamp("us", "UTC"))]).remove(0)
        self._write(
            0, [{"protocol": _PROTOCOL}, {"metaData": {**_METADATA, "createdTime": self._ms()}}], "CREATE TABLE"
        )

    def commit(self) -> None:
        """Commit ten messages on each subject, ten simulated seconds later."""
        self.now_ns += STEP_NS
        self.commits += 1
        version = self.latest() + 1
        adds = [self._add(subject) for subject in SUBJECTS]
        progress = TableProgress(uid=UID, last_index=self.rows, last_seq=self.rows, last_time_ns=self.now_ns)
        transaction = {"txn": {"appId": f"lakestream:{UID}", "version": self.rows, "lastUpdated": self._ms()}}
        self._write(version, [transaction, *adds], "WRITE", msgspec.json.encode(progress).decode())
        if version % CHECKPOINT_EVERY == 0:
            DeltaTable(self.table).create_checkpoint()

    def latest(self) -> int:
        """Return the table's newest version."""
        known = getattr(self, "_latest", -1)
        while (self._log / f"{known + 1:020d}.json").exists():
            known += 1
        self._latest = known
        return known

    def sample(self) -> Sample:
        """Measure the table as it is now."""
        began = time.perf_counter()
        table = DeltaTable(self.table)
        query = QueryBuilder().register("t", table)
        rows = pa.table(query.execute(f"SELECT seq, data FROM t WHERE seq = {self.rows // 2 + 1}").read_all()).num_rows
        took = time.perf_counter() - began
        assert rows == 1
        names = [path.name for path in self._log.iterdir() if path.is_file() and not path.name.startswith(".")]
        on_disk = sum(1 for subject in SUBJECTS for _ in (self.table / f"subject={subject}").glob("*.parquet"))
        return Sample(self.commits, len(table.file_uris()), on_disk, len(names), round(took * 1000, 1))

    def count(self) -> int:
        """Count the rows of the newest version."""
        query = QueryBuilder().register("t", DeltaTable(self.table))
        return int(pa.table(query.execute("SELECT count(DISTINCT seq) AS n FROM t").read_all())["n"][0].as_py())

    def _ms(self) -> int:
        return self.now_ns // 1_000_000

    def _add(self, subject: str) -> dict[str, Any]:
        seqs = range(self.rows + 1, self.rows + ROWS + 1)
        self.rows += ROWS
        times = [self.now_ns - STEP_NS + seq % ROWS for seq in seqs]
        values = {"seq": list(seqs), "time_ns": times, "data": [b"%d " % seq * 16 for seq in seqs]}
        values["time"] = [at // 1000 for at in times]
        columns = [pa.array(values.get(f.name, [None] * ROWS), f.type) for f in self._schema]
        path = self.table / f"subject={subject}" / f"part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        pq.write_table(pa.table(columns, schema=self._schema), path)
        bounds = {
            "minValues": {"seq": seqs[0], "time_ns": times[0]},
            "maxValues": {"seq": seqs[-1], "time_ns": times[-1]},
        }
        stats = json.dumps({"numRecords": ROWS, **bounds, "nullCount": {"seq": 0, "time_ns": 0}, "tightBounds": True})
        return {
            "add": {
                "path": str(path.relative_to(self.table)), "partitionValues": {"subject": subject}, "dataChange": True,
                "size": path.stat().st_size, "modificationTime": self._ms(), "stats": stats,
            }
        }  # fmt: skip

    def _write(self, version: int, actions: list[dict[str, Any]], operation: str, said: str | None = None) -> None:
        previous = getattr(self, "_stamp", 0)
        self._stamp = max(self._ms(), previous + 1)
        info: dict[str, Any] = {
            "inCommitTimestamp": self._stamp, "timestamp": self._stamp, "operation": operation,
            "operationParameters": {}, "txnId": str(uuid.uuid4()),
        }  # fmt: skip
        if said is not None:
            info["userMetadata"] = said
        lines = [json.dumps(action) for action in ({"commitInfo": info}, *actions)]
        (self._log / f"{version:020d}.json").write_text("\n".join(lines) + "\n")


_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "inCommitTimestamp", "invariants", "appendOnly"],
}


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


_HEADERS = {
    "type": "map", "keyType": "string", "valueContainsNull": True,
    "valueType": {"type": "array", "elementType": "string", "containsNull": True},
}  # fmt: skip
_METADATA = {
    "id": str(uuid.uuid4()),
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(
        {
            "type": "struct",
            "fields": [
                _field("subject", "string"),
                _field("seq", "long"),
                _field("time", "timestamp"),
                _field("time_ns", "long"),
                _field("headers", _HEADERS),
                _field("data", "binary"),
                _field("header_block", "binary"),
                _field("subject_bytes", "binary"),
            ],
        }
    ),
    "partitionColumns": ["subject"],
    "configuration": {
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "50",
        "lakestream.uid": UID,
        "lakestream.stream": UID,
    },
}


def grow(simulation: Simulation, commits: int, every: int, look_after: Callable[[], object]) -> Iterator[Sample]:
    """Commit, and maintain the table every `every` commits; yield samples."""
    for number in range(1, commits + 1):
        simulation.commit()
        if number % every == 0:
            look_after()
        if number % SAMPLE_EVERY == 0 or number == commits:
            yield simulation.sample()


def run(commits: int, every: int, retain_hours: float | None, spark: Any) -> list[Sample]:
    """Run one simulation, without maintenance if `retain_hours` is None; print its samples."""
    lake = Path(tempfile.mkdtemp(prefix="growth-"))
    spent: list[float] = []
    rewritten = [0]
    try:
        simulation = Simulation(lake, time.time_ns())

        def nothing() -> None:
            pass

        look_after: Callable[[], object] = nothing
        if retain_hours is not None:
            from lakestream_spark.write.maintainer import Maintainer
            from lakestream_spark.write.maintenance_plan import HOUR_NS, Policy

            policy = Policy(retain_ns=int(retain_hours * HOUR_NS))
            maintainer = Maintainer(spark, str(lake), policy, clock=lambda: simulation.now_ns)

            def maintain() -> None:
                (done,) = maintainer.once()
                assert done.failure is None, done.failure
                spent.append(done.seconds)
                rewritten[0] += done.removed

            look_after = maintain
        samples = []
        for sample in grow(simulation, commits, every, look_after):
            samples.append(sample)
            print(json.dumps({"retain_hours": retain_hours, **msgspec.to_builtins(sample)}), flush=True)
        assert simulation.count() == simulation.rows
        assert TableLog(open_storage(lake), str(simulation.table)).state().files
        if spent:
            rounds = {"rounds": len(spent), "median_s": sorted(spent)[len(spent) // 2], "max_s": max(spent)}
            print(json.dumps({**rounds, "files_rewritten": rewritten[0]}), flush=True)
        return samples
    finally:
        shutil.rmtree(lake)


def draw(outputs: list[str]) -> None:
    """Draw the figures for the documentation."""
    from tests.bench.draw import lines, save

    results: dict[str, list[Sample]] = {}
    for output in outputs:
        for line in Path(output).read_text().splitlines():
            found = json.loads(line)
            if "commits" in found:
                hours = found.pop("retain_hours")
                name = "no maintenance" if hours is None else f"maintained, {hours:g} h kept"
                results.setdefault(name, []).append(msgspec.convert(found, Sample))
    pictures = Path(__file__).parents[2] / "docs" / "pictures"
    for column, title, label in (
        ("files", "Data files of the newest version", "files"),
        ("log_files", "Files in the transaction log", "files"),
        ("open_ms", "Opening the table and reading one message", "ms"),
    ):
        series = {key: [(each.commits, getattr(each, column)) for each in found] for key, found in results.items()}
        path = pictures / f"growth-{column.replace('_', '-')}.svg"
        save(path, lines(title, series, "commits, one every 10 s", label))


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=17_000)
    parser.add_argument("--every", type=int, default=60, help="commits between two rounds of maintenance")
    parser.add_argument("--retain-hours", type=float, default=168.0)
    parser.add_argument("--without", action="store_true", help="nobody looks after the table")
    parser.add_argument("--draw", nargs="+", metavar="OUTPUT", help="draw docs/pictures from what runs have printed")
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return
    if options.without:
        run(options.commits, options.every, None, None)
        return
    from lakestream_spark import session as sessions

    spark = sessions.session("lakestream growth")
    run(options.commits, options.every, options.retain_hours, spark)
    spark.stop()


if __name__ == "__main__":
    main()
