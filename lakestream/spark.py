"""Spark over the streams of a lake.

Belongs here: the name by which programs and notebooks know the session of the package lakestream-spark, which is loaded
when a session is asked for.

    from lakestream.spark import session

    spark = session("data/lake")
    spark.sql("SELECT subject, count(*) FROM delta.`streams/ORDERS` GROUP BY subject").show()
"""

from __future__ import annotations

from typing import Any

from lakestream import extras

ENTRY_POINTS = "lakestream.spark"
"""Group of entry points: what the package has for the commands of lakestream, and `session` for programs."""
_NAMES = ("LakeNotFound", "default_lake", "session")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(extras.load(ENTRY_POINTS, "session", "lake", "a Spark session"), name)
