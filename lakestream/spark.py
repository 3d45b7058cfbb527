"""Spark over the streams of a lake.

Belongs here: the name by which programs and notebooks know the session of the package lakestream-spark, which is loaded
when a session is asked for.

    from lakestream.spark import session

    spark = session("data/lake")
    spark.sql("SELECT subject, count(*) FROM delta.`streams/ORDERS` GROUP BY subject").show()
"""

from __future__ import annotations

from lakestream import extras

ENTRY_POINTS = "lakestream.spark"
"""Group of entry points: what the package has for the commands of lakestream, and `session` for programs."""

__getattr__ = extras.forwarding(__name__, ENTRY_POINTS, "session", "lake")
