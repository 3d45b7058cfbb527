"""A lake with tables for tests of catalogs, made without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import write_deltalake

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage

ORDERS = pa.table(
    {
        "subject": ["orders.de", "orders.fr"],
        "seq": [1, 2],
        "order_id": ["o1", "o2"],
        "price": pa.array(["9.50", "12.00"]).cast(pa.decimal128(10, 2)),
        "address": pa.array(
            [{"zip": "10115", "tags": ["a"]}, None], pa.struct([("zip", "string"), ("tags", pa.list_(pa.string()))])
        ),
    }
)


class CatalogLake:
    """A lake in which streams get tables and new columns.

    Args:
        root: its directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        lakes.require(self.root, create=True)

    def write(self, stream: str, rows: pa.Table = ORDERS, account: str = "$G") -> str:
        """Append rows to a stream's table; return its path."""
        path = paths.table(self.root, stream, account)
        write_deltalake(path, rows, mode="append", schema_mode="merge", partition_by=["subject"])
        return path

    def describe(self, stream: str, uid: str, description: str) -> None:
        """Give a stream a description, and its table the stream's uid."""
        config = msgspec.Raw(json.dumps({"name": stream, "description": description}).encode())
        identity = StreamIdentity(stream, "$G", uid, 1, config)
        lakes.require(self.root, create=True)
        staging.introduce(open_storage(self.root), staging.directory_of(self.root, identity), identity)
        log = Path(paths.table(self.root, stream), "_delta_log", f"{0:020d}.json")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "metaData" in line:
                line["metaData"]["configuration"] = {"lakestream.uid": uid, "lakestream.stream": stream}
        log.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n")
