"""Delta tables written by hand, for tests without Spark.

The protocol, properties and columns are those of the tables that the compactor writes.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakestream.lake.table.actions import to_z85

SECOND_MS = 1_000
BEGIN_MS = 1_790_000_000_000
COLUMNS = pa.schema(
    [
        pa.field("subject", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("data", pa.binary()),
        pa.field("price", pa.float64()),
    ]
)
_TYPES = {"string": "string", "int64": "long", "timestamp[us, tz=UTC]": "timestamp", "binary": "binary"}


class HandmadeTable:
    """A table by subject or without partitions.

    Args:
        path: the table's directory.
        partitions: partition columns.
        features: further reader features.
        properties: further properties.
    """

    def __init__(
        self,
        path: Path,
        partitions: tuple[str, ...] = (),
        features: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        begin_ms: int = BEGIN_MS,
    ) -> None:
        self.path, self._partitions = path, partitions
        self.time_ms, self.version = begin_ms, -1
        self.id = str(uuid.uuid4())
        self.files: dict[str, dict[str, Any]] = {}
        """The `add` actions of the newest version, by path."""
        (path / "_delta_log").mkdir(parents=True)
        readers = ["deletionVectors", *features]
        configuration = {
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            "lakestream.uid": "U1",
            **(properties or {}),
        }
        self.commit(
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": readers,
                    "writerFeatures": [*readers, "inCommitTimestamp", "changeDataFeed", "appendOnly", "invariants"],
                }
            },
            self._metadata(configuration),
        )

    def _metadata(self, configuration: dict[str, str]) -> dict[str, Any]:
        fields = [
            {"name": field.name, "type": _TYPES.get(str(field.type), "double"), "nullable": True, "metadata": {}}
            for field in COLUMNS
        ]
        return {
            "metaData": {
                "id": self.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": list(self._partitions),
                "configuration": configuration,
                "createdTime": self.time_ms,
            }
        }

    def commit(self, *actions: dict[str, Any], after_ms: int = SECOND_MS, operation: str = "WRITE") -> int:
        """Write a commit some time after the last one; return its version."""
        self.version += 1
        self.time_ms += after_ms
        info = {"inCommitTimestamp": self.time_ms, "timestamp": self.time_ms, "operation": operation}
        lines = [json.dumps(each) for each in ({"commitInfo": info}, *actions)]
        log = self.path / "_delta_log" / f"{self.version:020d}.json"
        log.write_text("\n".join(lines) + "\n")
        for each in actions:
            if "remove" in each:
                self.files.pop(each["remove"]["path"], None)
        for each in actions:
            if "add" in each:
                self.files[each["add"]["path"]] = each["add"]
        return self.version

    def append(self, rows: Iterable[tuple[str, int]], after_ms: int = SECOND_MS) -> int:
        """Add one file for each partition with messages (subject, seq)."""
        some = list(rows)
        groups: dict[str, list[tuple[str, int]]] = {}
        for subject, seq in some:
            groups.setdefault(subject if self._partitions else "", []).append((subject, seq))
        adds = [{"add": self.write(each, subject)} for subject, each in groups.items()]
        return self.commit(*adds, after_ms=after_ms)

    def write(self, rows: list[tuple[str, int]], partition: str = "") -> dict[str, Any]:
        """Write a data file; return its `add`."""
        seqs = [seq for _, seq in rows]
        table = pa.table(
            [
                [subject for subject, _ in rows],
                seqs,
                pa.array([seq * 1_000_000 for seq in seqs], COLUMNS.field("time").type),
                [b"m%d" % seq for seq in seqs],
                [seq / 2 for seq in seqs],
            ],
            schema=COLUMNS,
        )
        name = f"part-{uuid.uuid4()}.parquet"
        path = self.path / name
        pq.write_table(table.drop_columns(list(self._partitions)), path)
        bounds = {"seq": min(seqs), "subject": min(rows)[0]}, {"seq": max(seqs), "subject": max(rows)[0]}
        kept = [{key: value for key, value in each.items() if key not in self._partitions} for each in bounds]
        stats = {"numRecords": len(rows), "minValues": kept[0], "maxValues": kept[1], "nullCount": {"seq": 0}}
        return {
            "path": name,
            "partitionValues": dict.fromkeys(self._partitions, partition),
            "size": path.stat().st_size,
            "modificationTime": self.time_ms,
            "dataChange": True,
            "stats": json.dumps(stats),
        }

    def delete(self, path: str, positions: Iterable[int], after_ms: int = SECOND_MS) -> int:
        """Mark rows of a file as deleted, in a deletion vector."""
        old = self.files[path]
        body = struct.pack("<i", 1681511377) + BitMap64(positions).serialize()
        name = uuid.uuid4()
        content = b"\x01" + struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        (self.path / f"deletion_vector_{name}.bin").write_bytes(content)
        vector = {
            "storageType": "u",
            "pathOrInlineDv": to_z85(name.bytes),
            "offset": 1,
            "sizeInBytes": len(body),
            "cardinality": len(set(positions)),
        }
        return self.commit(
            {"remove": self.removed(old)},
            {"add": {**old, "deletionVector": vector}},
            after_ms=after_ms,
            operation="DELETE",
        )

    def removed(self, add: dict[str, Any]) -> dict[str, Any]:
        """Return the `remove` of a file."""
        kept = {key: add[key] for key in ("path", "partitionValues", "size", "deletionVector") if key in add}
        return {**kept, "deletionTimestamp": self.time_ms, "dataChange": True, "extendedFileMetadata": True}
