"""SQL over the streams of a lake: Spark's dialect on DuckDB, and the functions and views that Spark gets."""

TAIL_BYTES = 1 << 30
"""Default maximum size of one stream's uncompacted segments that are read into memory, in bytes. With a running
compactor they are seconds of messages; the limit is reached where none runs."""
