"""Program that reads Iceberg tables with Spark and Iceberg's runtime for it, for tests/lake/test_iceberg_engines.py.

It runs with a PySpark of its own, without lakestream: `iceberg_spark.py RUNTIME_JAR`. For each line of JSON with the
member `query` and settings of the catalog `lake` it writes the pickled rows, or the error's text, behind their length.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.memory": "700m",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def main() -> None:
    """Answer until the input ends."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1])
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for number, line in enumerate(sys.stdin):
        asked: dict[str, str] = json.loads(line)
        query, catalog = asked.pop("query"), f"lake{number}"  # a catalog keeps tables that it has opened
        spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
        for name, value in asked.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}.{name}", value)
        answer: Any
        try:
            answer = [row.asDict(recursive=True) for row in spark.sql(query.replace("lake.", f"{catalog}.")).collect()]
        except Exception as error:  # the test's business
            answer = str(error)
        content = pickle.dumps(answer)
        sys.stdout.buffer.write(len(content).to_bytes(8, "big") + content)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
