"""Program that test_hive_catalog.py runs in a process of its own: a Spark that knows tables by a Hive metastore alone.

Prints one JSON object with what it reads.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lakestream_spark import session as sessions


def main(uri: str, warehouse: str, elsewhere: str) -> dict[str, Any]:
    extra = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": warehouse,
        "spark.hadoop.hive.metastore.uris": uri,
    }
    spark = sessions.session("reader", extra=extra)

    def rows(query: str) -> list[Any]:
        return [list(row) for row in spark.sql(query).collect()]

    try:
        spark.sql(f"CREATE TABLE events.mine USING delta LOCATION '{elsewhere}' AS SELECT 1 AS x")
        return {
            "tables": sorted(row.tableName for row in spark.sql("SHOW TABLES IN events").collect()),
            "typed": rows("SELECT seq, order_id, price, city FROM events.orders ORDER BY seq"),
            "nested": rows("SELECT address.zip, address.street FROM events.orders WHERE seq = 1"),
            "misfits": rows("SELECT seq, rule FROM events.orders_misfits"),
            "version": rows("SELECT count(*) FROM events.orders VERSION AS OF 1"),
            "account": rows("SELECT count(*) FROM events_acme.audit"),
            "provider": [row[1] for row in rows("DESCRIBE TABLE EXTENDED events.orders") if row[0] == "Provider"],
            "comment": rows("SHOW TBLPROPERTIES events.orders ('lakestream.stream')"),
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
