"""A stream's Delta table: its format, its states and its rows.

Belongs here: the transaction log and its only reader, states that follow it, rows of a version, the check of files,
schema, table properties, deletion vectors, and the rows that a staged segment adds. Nothing here needs Spark, and
nothing commits to a table.

In reading order:

- `actions.py`: Actions of a Delta transaction log, as the log's reader decodes them.
- `log.py`: The only reader of Delta transaction logs.
- `state.py`: State of a stream's Delta table, followed commit by commit.
- `scan.py`: Rows of one version of a Delta table.
- `check.py`: Verification that the files of a table match its Delta log and are on stable storage.
- `ends.py`: Checksum of the end of a data file: its page indexes and its Parquet footer.
- `deletion_vectors.py`: Deletion vectors: which rows of a data file are deleted.
- `progress.py`: Progress and position of a stream in its Delta table.
- `at.py`: Time travel: from a time or a sequence to a version of a stream's Delta table.
- `schema.py`: Columns of a stream's table, and their translation from and to messages.
- `policy.py`: Policy of a stream's table, from the stream's metadata.
- `masks.py`: Masks: fields of a stream's payloads that SQL hides from users without a role.
- `defaults.py`: Defaults of streams' `lakestream.*` metadata by name.
- `batches.py`: Changes that staged segments bring to a stream's table.
- `segments.py`: Decoding sealed segments to Arrow.
- `schema_catalog.py`: Schemas of one account as the lake has them, read once.
- `typed_columns.py`: Typed columns of a table: which column a field of a schema has, and how they grow.
- `typed_rows.py`: Typed columns of messages: batches of decoded segments with the fields of their payloads.
- `ddl.py`: Spark's lists of columns: `price DOUBLE, tags ARRAY<STRING> NOT NULL`.
- `json_schema.py`: Typed columns of JSON payloads: the grammar and meaning of `lakestream.json_schema`.
- `departures.py`: Departures: which messages of a batch left their stream, and when, in a file beside the table.
- `erasures.py`: Notes of erasures (secure delete): messages whose bytes must not stay in any file of a table.
- `foreign_commits.py`: Changes of a stream's table by other programs.
- `conditions.py`: Conditions on rows that are pushed down into tables and uncompacted segments.
- `schema_files.py`: Schemas in the lake: the versions that tables refer to.
- `row_groups.py`: Row groups of data files: which of them a message may be in, by the bounds in the files' footers.
- `pages.py`: Single cells of a row group, decoded from the pages that they are in.
- `encryption.py`: Encrypted tables (`lake { encryption: parquet }`): the key of each, and its Parquet files.
- `misfits.py`: The table of misfits of a stream, for readers.
"""
