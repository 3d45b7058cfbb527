"""The data source `lakestream` for every Spark that has this package on its Python path.

Belongs here: the class that Spark looks for in modules whose names begin with `pyspark_`. Sessions of Spark Connect
have the source by it; other programs may register one for their lake (`lakestream_spark.datasource.register`).
"""

from __future__ import annotations

import os

from lakestream_spark.connect import PUSHDOWN_VARIABLE
from lakestream_spark.datasource import LakestreamSource
from lakestream_spark.lake_session import LAKE_VARIABLE


class DefaultSource(LakestreamSource):
    """The source, for the lake in $LAKESTREAM_LAKE if the option `lake` names no other.

    Spark rejects a source with pushed filters in a session without that setting, so it is the server's to say.
    """

    default_lake = os.environ.get(LAKE_VARIABLE)
    pushes = PUSHDOWN_VARIABLE in os.environ
