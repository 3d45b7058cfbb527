"""Iceberg's library in the JVM of a session.

Belongs here: access to the Java class that calls it, the tables that stay open there, and the meaning of its errors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from lakestream_spark.write.commit import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_REMEMBERED = 2_000
"""Number of snapshots, of all tables together, that the JVM remembers, about 20 KB each. Other tables are read for each
commit."""
_DAMAGE = (
    "com.fasterxml.jackson.",
    "java.io.EOFException",
    "java.io.FileNotFoundException",
    "java.lang.IllegalArgumentException",
    "java.lang.IllegalStateException",
    "java.lang.NullPointerException",
    "org.apache.avro.",
    "org.apache.iceberg.exceptions.NotFoundException",
    "org.apache.iceberg.exceptions.ValidationException",
)
"""Names of Java's errors, or their beginnings, for files that are damaged or not there."""


class IcebergLibrary:
    """Iceberg tables of a lake, of class `IcebergTable` (jvm/). Used by several threads, each with a table of its own.

    Args:
        spark: a session with Iceberg's library.
        root: the lake's root.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark, self._root = spark, root
        self._files: Any = None
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._snapshots: dict[str, int] = {}
        self._guard = threading.Lock()

    def table(self, path: str) -> Any:
        """Return the Iceberg table over a Delta table, whether it exists or not."""
        with self._guard:
            found = self._open.pop(path, None)
            if found is None:
                java = jvm(self._spark).io.lakestream.delta
                if self._files is None:
                    self._files = java.IcebergFiles.open(self._spark._jsparkSession, self._root)
                found = java.IcebergTable.open(self._files, path)
            self._open[path] = found
            return found

    def holds(self, path: str, snapshots: int) -> None:
        """Take the number of a table's snapshots, and forget the tables used longest ago beyond the limit."""
        with self._guard:
            if path in self._open:
                self._snapshots[path] = snapshots
            while sum(self._snapshots.values()) > MAX_REMEMBERED and len(self._open) > 1:
                self._snapshots.pop(self._open.popitem(last=False)[0], None)

    def forget(self, path: str) -> None:
        """Read a table anew when it is used again."""
        with self._guard:
            self._open.pop(path, None)
            self._snapshots.pop(path, None)


def is_damage(error: Any) -> bool:
    """Return True if a Java error says that a file is not there, or that its content makes no sense."""
    while error is not None:
        if error.getClass().getName().startswith(_DAMAGE):
            return True
        error = error.getCause()
    return False
