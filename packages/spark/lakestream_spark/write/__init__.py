"""Changing Delta tables, with Spark.

Belongs here: compaction of staged segments, maintenance of tables, and clones. All changes of a table are made here.

In reading order:

- `errors.py`: Errors that changes of tables raise.
- `compactor.py`: The compactor: one streaming query over all streams of a lake.
- `source.py`: The streaming source `lakestream_segments`: what is staged and not in its table yet, for Spark.
- `news.py`: News in the staging area, for a source that waits.
- `backlog.py`: Staged log entries that are not in the tables of a lake yet.
- `stream_compaction.py`: Compaction of one stream: its part of a micro-batch, into its Delta table, exactly once.
- `tasks.py`: The Spark tasks that write the data files of a micro-batch.
- `data_files.py`: Data files of one commit, written from Arrow without Spark's row format.
- `file_ends.py`: Checksum of the end of a data file, as the writer of the file computes it.
- `file_statistics.py`: Statistics of data files, as the commit states them: numbers of rows and NULLs, least and
  greatest values.
- `layouts.py`: Layout that a stream's table should have, and its partitions as Spark writes them.
- `table.py`: A stream's Delta table for the writer.
- `widening.py`: Further columns of a table.
- `misfits.py`: The table of misfits of a stream: messages whose payloads do not fit their schema.
- `replay.py`: Replay of misfits: their rows get typed columns, once a schema is mended.
- `outages.py`: Outages of the lake, as the compactor outlasts them.
- `repair.py`: Repair of a damaged table.
- `upkeep.py`: Maintenance beside a compactor, in the same JVM.
- `maintenance_plan.py`: Decisions of maintenance, from a table's log.
- `maintainer.py`: Maintenance of tables: OPTIMIZE, VACUUM, checkpoints, log clean-up.
- `rewrite.py`: Rewriting chosen data files of a table in a better order: the maintainer's OPTIMIZE.
- `vacuum.py`: Files of a table's directory that have to be deleted: unneeded ones, and those with messages to be
  erased.
- `clone_worker.py`: Clone work beside the compactor's batches.
- `clone_point.py`: The point of its origin at which a mirror begins: a version of the table, and rows to leave out.
- `clone_maker.py`: Making the table of a mirror that begins as a clone, with Spark.
- `detach.py`: Detaching a clone: making it independent of the tables whose files it references.
- `spans.py`: Spans of commits to tables, for messages that carry `traceparent`.
- `metrics.py`: The metrics of the compactor.
- `lake_compaction.py`: The compaction of a lake: its streams through micro-batches.
- `commit.py`: Commits to a table, through Delta's own transaction.
- `clones.py`: Registry of shallow clones, and the files of other tables that they reference.
- `deletion.py`: Deletion of a table's rows by sequence, by deletion vectors that are written here.
- `field_ids.py`: Ids of columns for Iceberg.
- `iceberg_files.py`: Files of the Iceberg table over a Delta table, without Iceberg's library (packages/iceberg writes
  them).
- `keyed_rows.py`: Changes of an upsert table that follow from messages, in columns.
- `keyed_table.py`: The upsert table of a stream (`lakestream.table: latest`): one row for each key, as of the last
  message.
"""
