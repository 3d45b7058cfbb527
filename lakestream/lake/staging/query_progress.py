"""The last micro-batch of the compactor's streaming query, for people.

Belongs here: the record, and its file beside the query's checkpoint. Only `status`, the console and metrics read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

PROGRESS_FILE = "progress.json"


class QueryProgress(msgspec.Struct, frozen=True):
    """Spark's progress of a batch (StreamingQueryProgress).

    `batch`: its number; `began`: when, RFC 3339; `segments`: input rows; `seconds`: its duration.
    """

    batch: int = -1
    began: str = ""
    segments: int = 0
    input_per_second: float = 0.0
    processed_per_second: float = 0.0
    seconds: float = 0.0


_PROGRESS = JsonDecoder(QueryProgress)


def of_spark(found: Mapping[str, Any]) -> QueryProgress:
    """Return the record for Spark's own."""
    return QueryProgress(
        batch=int(found.get("batchId", -1)),
        began=str(found.get("timestamp", "")),
        segments=int(found.get("numInputRows", 0)),
        input_per_second=float(found.get("inputRowsPerSecond") or 0.0),
        processed_per_second=float(found.get("processedRowsPerSecond") or 0.0),
        seconds=float(found.get("durationMs", {}).get("triggerExecution", 0)) / 1000,
    )


def write(lake: str, progress: QueryProgress) -> None:
    """Write the record of a lake's compactor."""
    storage = open_storage(lake)
    storage.write(f"{paths.checkpoint(storage.root)}/{PROGRESS_FILE}", msgspec.json.encode(progress))


def read(lake: str) -> QueryProgress | None:
    """Return the record of a lake's compactor; None if there is none."""
    storage = open_storage(lake)
    try:
        return _PROGRESS.decode(storage.read(f"{paths.checkpoint(storage.root)}/{PROGRESS_FILE}"))
    except (FileNotFoundError, NotADirectoryError, *DECODE_ERRORS):
        return None
