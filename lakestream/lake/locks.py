"""Who may write what in a lake.

Belongs here: locks between the programs that commit to the tables of one lake, and where their files lie. A JVM holds
a lock, not the interpreter that drives it: it is the JVM that commits, and it may outlive the interpreter for a moment.
When it dies, however it dies, the system lets go of its locks.

On a local file system Delta's own way to be the one that writes version N is a look whether the file exists and then a
rename: atomic within a JVM, not between two. So compactor and maintainer, which are two, take turns at each table.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAINTAINER_LOCK = "_maintainer.lock"
"""Held by the lake's maintainer, in the lake's root."""
LOCKS = "_locks"
"""Directory of the tables' locks, in the lake's root."""


class JvmLock:
    """An exclusive lock on a file, held by Spark's JVM. Not for use by two threads at once.

    Args:
        spark: a session of the JVM that takes the lock.
        path: the file; it is made when it is not there, and stays.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._channel: Any = None

    def acquire(self) -> bool:
        """Take the lock; False while anybody else has it, be it in this very JVM."""
        assert self._channel is None
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        channel = jvm.java.io.RandomAccessFile(self._path, "rw").getChannel()
        try:
            lock = channel.tryLock()
        except Exception as error:
            channel.close()
            if "OverlappingFileLockException" not in str(error):
                raise
            return False
        if lock is None:
            channel.close()
            return False
        self._channel = channel
        return True

    def release(self) -> None:
        """Let go of the lock; nothing happens when it is not held."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def table_lock(lake: str, table: str) -> str:
    """Path of the lock that whoever commits to `table`, or takes it away, has to hold.

    It lies beside the table, not in it, as it has to outlast the table. Names may be too long for one more suffix, so
    the file is named after a hash.
    """
    name = os.path.relpath(table, lake)
    return os.path.join(lake, LOCKS, hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ".lock")
