"""All of lakestream that runs in Spark: the compactor, maintenance, and sessions over a lake.

Belongs here: starting Spark with Delta and with lakestream's own classes, changing tables (write/), and reading streams
in Spark. The server loads none of it: server and compactor meet in the lake.

In reading order:

- `pins.py`: Names, sizes and checksums of the JARs that are fetched for Spark.
- `jars.py`: Java and the JARs that Spark needs: two of Delta, lakestream's own, and those of Iceberg or a cloud.
- `session.py`: A Spark session that knows Delta.
- `job.py`: Common parts of the Spark programs (`jobs/*.py`).
- `write/`: Changing Delta tables, with Spark.
- `commands.py`: The Spark programs as commands.
- `datasource.py`: The Spark data source `lakestream`: a live view of a stream, as a batch and as a stream.
- `functions.py`: Functions and views of lakestream in Spark: as_of, and the typed views of JSON payloads.
- `lake_session.py`: Sessions of Spark over the streams of a lake.
- `connect.py`: Spark Connect: the warm Spark of the compactor, for other programs.
- `sql_engine.py`: Queries of the lake with Spark.
- `metrics_port.py`: The page of a program without an event loop, over HTTP.
"""
