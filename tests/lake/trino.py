"""Trino with its connectors for Delta Lake and Iceberg: fetched from Maven's repository, one process on a free port.

Trino 476 is the last release of which Maven's repository has the server. It needs Java 24 or newer, found in
/usr/lib/jvm, beside the Java 17 of Spark.
"""

from __future__ import annotations

import glob
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests import maven
from tests.cluster.nodes import free_ports

VERSION = "476"
MINIMUM_JAVA = 24
CONNECTORS = ("delta-lake", "iceberg")
UNPACK_SECONDS = 1200.0
START_SECONDS = 300.0
POLL_SECONDS = 0.5
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


class TrinoError(Exception):
    """Raised with Trino's own message when a statement fails."""


def java() -> str:
    """Return the path of the newest Java. Fail if none is new enough for Trino."""
    found = [
        (int(version[1]), str(Path(release).parent / "bin" / "java"))
        for release in glob.glob("/usr/lib/jvm/*/release")
        if (version := _RELEASE.search(Path(release).read_text())) is not None
    ]
    version, path = max(found, default=(0, ""))
    assert version >= MINIMUM_JAVA, f"Trino {VERSION} needs Java {MINIMUM_JAVA} or newer in /usr/lib/jvm"
    return path


def fetch(directory: Path) -> Path:
    """Fetch Trino (821 MB) unless Maven has it, unpack the server and the connectors; return the directory."""
    maven.copy_to(directory, f"io.trino:trino-server:{VERSION}:tar.gz")
    archive = directory / f"trino-server-{VERSION}.tar.gz"
    root = f"trino-server-{VERSION}"
    # Files of the connectors are hard links to the same files of plugins that come before them.
    wanted = [f"{root}/lib", f"{root}/plugin/[a-i]*"]
    subprocess.run(
        ["tar", "-xzf", archive, "-C", directory, "--wildcards", *wanted], check=True, timeout=UNPACK_SECONDS
    )
    archive.unlink()
    for plugin in (directory / root / "plugin").iterdir():
        if plugin.name not in CONNECTORS:
            shutil.rmtree(plugin)
    return directory / root


class Trino:
    """A Trino server that can read the tables below one directory, and the Iceberg tables of a REST catalog."""

    def __init__(self, directory: Path, tables: Path, rest: str) -> None:
        server = fetch(directory)
        [self._port] = free_ports(1)
        catalog = directory / "catalog"
        catalog.mkdir()
        (tables / "metastore").mkdir()
        (catalog / "delta.properties").write_text(
            "connector.name=delta_lake\n"
            "hive.metastore=file\n"
            "hive.metastore.catalog.dir=local:///metastore\n"
            "fs.native-local.enabled=true\n"
            f"local.location={tables}\n"
            "delta.register-table-procedure.enabled=true\n"
        )
        (catalog / "iceberg.properties").write_text(
            "connector.name=iceberg\n"
            "iceberg.catalog.type=rest\n"
            f"iceberg.rest-catalog.uri={rest}\n"
            "iceberg.rest-catalog.security=OAUTH2\n"
            "iceberg.rest-catalog.oauth2.credential=alice:secret\n"
            "iceberg.rest-catalog.case-insensitive-name-matching=true\n"  # its own names are small
            "fs.hadoop.enabled=true\n"  # paths without a scheme
        )
        config = directory / "config.properties"
        config.write_text(
            "coordinator=true\n"
            "node-scheduler.include-coordinator=true\n"
            f"http-server.http.port={self._port}\n"
            f"discovery.uri=http://127.0.0.1:{self._port}\n"
            "node.internal-address=127.0.0.1\n"
            f"plugin.dir={server / 'plugin'}\n"
            f"catalog.config-dir={catalog}\n"
        )
        command = [java(), "-cp", f"{server / 'lib'}/*", "-Xmx1500M", "--add-modules=jdk.incubator.vector"]
        command += [f"-Dconfig={config}", "-Dnode.environment=test", "-Dnode.id=one"]
        command += [f"-Dnode.data-dir={directory / 'data'}", "io.trino.server.TrinoServer"]
        self._log = directory / "server.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        end = time.monotonic() + START_SECONDS
        while "SERVER STARTED" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < end, self._log.read_text()[-4000:]
            time.sleep(POLL_SECONDS)

    def ask(self, statement: str) -> list[list[Any]]:
        """Return the rows of a statement, with values in JSON's types (bytes in Base64)."""
        headers = {"X-Trino-User": "tests", "X-Trino-Catalog": "delta", "X-Trino-Schema": "streams"}
        url = f"http://127.0.0.1:{self._port}/v1/statement"
        answer = self._get(urllib.request.Request(url, statement.encode(), headers))
        rows = list(answer.get("data", []))
        while "nextUri" in answer:
            answer = self._get(urllib.request.Request(answer["nextUri"]))
            rows += answer.get("data", [])
        if "error" in answer:
            raise TrinoError(answer["error"]["message"])
        return rows

    def _get(self, request: urllib.request.Request) -> dict[str, Any]:
        with urllib.request.urlopen(request) as response:
            found: dict[str, Any] = json.load(response)
            return found

    def stop(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
