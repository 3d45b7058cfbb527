"""A Hive metastore for tests: the one whose JARs pyspark brings, over a Derby database in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark

from lakestream_spark import jars

START_SECONDS = 180.0
POLL_SECONDS = 0.2
JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "hive.async.log.enabled": "false",  # for which a JAR is missing
}


class HiveServer:
    """The server process. What it prints is in `log`.

    Args:
        base: a directory for its files.
        port: a free one by default.
    """

    def __init__(self, base: Path, port: int = 0) -> None:
        self.log = base / "metastore.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))
            self.port: int = free.getsockname()[1]
        settings = {**SETTINGS, "hive.metastore.warehouse.dir": str(base / "warehouse")}
        home = Path(pyspark.__file__).parent / "jars"
        options = [f"-D{name}={value}" for name, value in settings.items()]
        command = [jars.find_java().program, *JAVA, f"-Dderby.system.home={base}", *options, "-cp", f"{home}/*"]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(command, cwd=base, stdout=output, stderr=output, env=dict(os.environ))

    @property
    def uri(self) -> str:
        """Return the address as Spark has it."""
        return f"thrift://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Return when it answers."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(POLL_SECONDS)
            else:
                return
        raise AssertionError(self.log.read_text(errors="replace")[-3000:])

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
