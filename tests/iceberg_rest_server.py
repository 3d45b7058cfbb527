"""An Iceberg REST catalog for tests: the handlers of Iceberg's own library, in a JVM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from lakestream_spark import jars

SOURCE = Path(__file__).parent / "lake" / "java" / "RestCatalogServer.java"
JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class IcebergRestServer:
    """The server process.

    Args:
        token: what requests must have.
        overwrites: a registration can be overwritten.
    """

    def __init__(self, token: str, overwrites: bool = True) -> None:
        home = Path(pyspark.__file__).parent / "jars"
        path = os.pathsep.join([*map(str, jars.ensure_iceberg()), f"{home}/*"])
        command = [jars.find_java().program, *JAVA, "-cp", path, str(SOURCE), token]
        self._process = subprocess.Popen(
            [*command, "overwrite" if overwrites else "once"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
