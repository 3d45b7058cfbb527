"""Compaction of one stream, for tests of tables: what a micro-batch does with a stream that it offers.

The rows come from the streaming source's own reader; only Spark's engine around it is missing.
"""

from __future__ import annotations

from typing import Any

from lakestream.lake.staging.staging import StagedStream
from lakestream_spark.write.source import SCHEMA
from lakestream_spark.write.stream_compaction import CommitPlan, CompactionOptions, Outcome, StreamCompaction
from lakestream_spark.write.tasks import Output, written


def write(spark: Any, plan: CommitPlan) -> Output:
    """Return the output of the Spark job that writes the files of a plan."""
    rows = [("stream", part.path, part.after, part.last_index, part.size) for part in plan.batch.parts]
    return written(spark.createDataFrame(rows, SCHEMA), {"stream": plan.task})["stream"]


def run(spark: Any, compaction: StreamCompaction, through: int, commits: int | None = None) -> Outcome:
    """Commit what is staged through a log index; return the sum of the outcomes."""
    total = Outcome()
    while total.commits != commits and (plan := compaction.plan(through)) is not None:
        try:
            while (revised := compaction.revise(plan, output := write(spark, plan))) is not None:
                plan = revised
            one = compaction.commit(plan, output)
            compaction.clear()
        finally:
            compaction.release()
        total = Outcome(
            total.commits + one.commits,
            total.segments + one.segments,
            total.rows + one.rows,
            one.position,
            total.misfits + one.misfits,
        )
    return total


def compact(spark: Any, lake: object, stream: StagedStream, options: CompactionOptions | None = None) -> Outcome:
    """Compact all that is staged of a stream."""
    compaction = StreamCompaction(spark, str(lake), stream, options)
    return run(spark, compaction, stream.last_index)
