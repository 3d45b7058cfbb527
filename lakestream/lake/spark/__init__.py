"""Spark for lakestream: Java, JARs, a session, and the common parts of the jobs.

Belongs here: starting Spark with Delta and with lakestream's own classes. Nothing here knows a stream.

In reading order:

- `pins.py`: Names, sizes and checksums of the JARs that are fetched for Spark.
- `jars.py`: Java and the JARs that Spark needs: two of Delta, lakestream's own, and those of a cloud.
- `session.py`: A Spark session that knows Delta.
- `job.py`: Common parts of the Spark programs (`jobs/*.py`).
"""
