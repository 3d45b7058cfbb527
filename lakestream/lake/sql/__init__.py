"""SQL over the streams of a lake: Spark's dialect on DuckDB, and the functions and views that Spark gets."""
