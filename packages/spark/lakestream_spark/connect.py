"""Spark Connect: the warm Spark of the compactor, for other programs.

Belongs here: the settings with which the compactor's JVM serves it, starting and stopping the service, the note in the
lake by which programs of the same user find address and token, and the session of a client.

Whoever has the token can do everything that the compactor's user can: Spark runs any code for its clients. So the
service listens on the loopback interface, the token is a secret of this user, and other users are confined to
statements by Spark's own parser (jvm/, Confinement.java).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream_spark.lake_session import LAKE_SETTING, LAKE_VARIABLE
from lakestream_spark.session import JAVA_OPTIONS, PUSHDOWN, under_spark_submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTE = "spark_connect.json"
"""File with address and token, beside the checkpoint of the compactor."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Spark's own variable for the token, of servers and of clients."""
PUSHDOWN_VARIABLE = "SPARK_LAKESTREAM_PUSHDOWN"
"""Set for Python workers whose sessions allow pushed filters (pyspark_lakestream.py)."""
HEAP_MIB = 1024
"""Heap of a JVM that serves queries beside compaction (1 GiB)."""
RESULT_SHARE = 8
"""A result may take this part of the heap (an eighth); a larger one is an error of its query."""
PARTITION_BYTES = 32 << 20
"""Bytes of a table that one task reads (32 MiB), so that a slot is soon free for compaction."""
STREAM_S = 5
"""Time of one response stream (5 s), after which a client asks for the next: only then is one missed that is gone."""
DETACHED_S = 10
"""Time without a response stream after which a query ends (10 s)."""
REACH_S = 2.0
"""Time for reaching the service of a note (2 s)."""
STATEMENTS = "spark.lakestream.statements"
"""Setting of a session: the statements that it accepts (jvm/, Statements.java)."""


class NoSparkConnect(LakeError):
    """Raised where a query needs the warm Spark of the compactor, and there is none."""

    code = 503

    def __init__(self) -> None:
        super().__init__(
            "no compactor serves Spark Connect for this lake here: start the server with `lakestream up` and "
            "`lake { spark_connect: true }`"
        )


class ConnectNote(msgspec.Struct, frozen=True):
    """Address and token of the service. `machine`: the host on which a loopback address means it; `started_ns`: when
    its sessions began, ns since 1970."""

    host: str
    port: int
    token: str
    machine: str
    started_ns: int

    @property
    def url(self) -> str:
        """Return the URL for `SparkSession.builder.remote`. A client sends a token without TLS to `localhost` only."""
        host = "localhost" if self.host in ("127.0.0.1", "::1") else self.host
        return f"sc://{host}:{self.port}/;token={self.token}"


_NOTE = JsonDecoder(ConnectNote)


class ConnectServer:
    """The service of a compactor.

    Args:
        lake: the lake's root.
        where: host and port.

    Attributes:
        spark: the session that was started with its settings.
    """

    def __init__(self, lake: str, where: tuple[str, int]) -> None:
        self._lake, (self._host, self._port) = lake, where
        self._token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
        self.spark: SparkSession | None = None
        self._serving = False

    @property
    def address(self) -> str:
        """Return host and port as in a URL."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def settings(self, heap_mib: int) -> dict[str, str]:
        """Return the settings of the Spark that is to serve; also prepares the environment of its JVM."""
        # Not as settings of the command line, which every user of the machine may read.
        os.environ[TOKEN_VARIABLE] = self._token
        os.environ[LAKE_VARIABLE] = self._lake
        os.environ[PUSHDOWN_VARIABLE] = "1"
        settings = {
            LAKE_SETTING: open_storage(self._lake).spark_path(self._lake),
            PUSHDOWN: "true",
            "spark.connect.grpc.binding.address": self._host,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.execute.manager.detachedTimeout": f"{DETACHED_S}s",
            "spark.connect.execute.manager.maintenanceInterval": f"{STREAM_S}s",
            "spark.connect.execute.reattachable.senderMaxStreamDuration": f"{STREAM_S}s",
            # Compaction continues where it was; `lakestream up` starts the program again.
            "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:+ExitOnOutOfMemoryError",
            "spark.driver.maxResultSize": f"{heap_mib // RESULT_SHARE}m",
            "spark.scheduler.allocation.file": Path(__file__).with_name("pools.xml").as_uri(),
            "spark.scheduler.mode": "FAIR",
            "spark.sql.connect.ui.retainedSessions": "5",
            "spark.sql.connect.ui.retainedStatements": "5",
            "spark.sql.files.maxPartitionBytes": str(PARTITION_BYTES),
        }
        if under_spark_submit():  # its JVM has an environment of its own
            settings["spark.connect.authenticate.token"] = self._token
        return settings

    def start(self) -> None:
        """Serve the sessions of clients by this one's Spark, and write the note; nothing if it serves already.

        Raises:
            Py4JJavaError: mostly because the port is taken.
        """
        from lakestream_spark import functions

        spark: Any = self.spark
        if self._serving:
            return
        functions.serve_views(spark, self._lake)
        context = spark.sparkContext._jsc.sc()
        spark._jvm.io.lakestream.spark.Preemption.start(context)
        self._service().start(context)
        self._serving = True
        if paths.is_local(self._lake):
            note = ConnectNote(self._host, self._port, self._token, socket.gethostname(), time.time_ns())
            _write(self._lake, note)

    def stop(self) -> None:
        """Remove the note, and end the service with its queries."""
        if not self._serving:
            return
        self._serving = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(self._lake))
        spark: Any = self.spark
        none = spark._jvm.scala.Option.empty()
        self._service().stop(none, none)

    def _service(self) -> Any:
        spark: Any = self.spark
        return spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService


def _path(lake: str) -> str:
    return f"{paths.checkpoint(lake)}/{NOTE}"


def _write(lake: str, note: ConnectNote) -> None:
    """Write the note, readable only by its user from the first moment on."""
    path = _path(lake)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}.new")
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(note))
    os.replace(f"{path}.new", path)


def read_note(lake: str) -> ConnectNote | None:
    """Return the note of a lake's compactor, if a service answers at its address; None otherwise."""
    root = paths.root(lake)
    if not paths.is_local(root):
        return None
    try:
        note = _NOTE.decode(Path(_path(root)).read_bytes())
        if note.machine != socket.gethostname():
            return None
        socket.create_connection((note.host, note.port), timeout=REACH_S).close()
    except (OSError, *DECODE_ERRORS):
        return None
    return note


def client(note: ConnectNote) -> SparkSession:
    """Return a new session of the service. Raises ImportError without grpcio and the other packages of its client."""
    # Not pyspark.sql.SparkSession, which makes every later session of the process one of Spark Connect.
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session: Any = RemoteSession.builder.remote(note.url).create()
    found: SparkSession = session
    return found
