"""Spark standalone cluster of real processes: one master, several workers, and programs submitted to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from lakestream_spark import jars

START_SECONDS = 300.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Daemon:
    """Process of the cluster; its output goes into a file."""

    def __init__(self, main: str, arguments: list[str], log: Path, environ: Mapping[str, str]) -> None:
        self.log = log
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [_bin("spark-class"), main, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environ),
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until the output matches a pattern; return the match."""
        with self._news:
            self._news.wait_for(lambda: self._find(pattern) or self._process.poll() is not None, START_SECONDS)
            found = self._find(pattern)
        assert found is not None, self.lines
        return found

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the process; a worker's executors end with it."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _find(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return next((found for line in self.lines if (found := pattern.search(line))), None)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("w") as file:
            for line in self._process.stdout:
                file.write(line)
                file.flush()
                with self._news:
                    self.lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Cluster:
    """Spark standalone cluster.

    Args:
        directory: for logs and the workers' files.
        environ: environment of master, workers and programs, besides what Spark needs.
        workers: number of workers.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str], workers: int = 2) -> None:
        self.directory = directory
        self.url = ""
        self._wanted = workers
        self.environ = {
            **environ,
            "JAVA_HOME": jars.find_java().home,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(directory / "conf"),
        }
        self.environ.pop("SPARK_HOME", None)
        self._master: Daemon | None = None
        self.workers: list[Daemon] = []

    def start(self) -> None:
        """Start the master, then the workers, and wait until all are registered."""
        (self.directory / "conf").mkdir(parents=True)
        host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        main = "org.apache.spark.deploy.master.Master"
        self._master = Daemon(main, host, self.directory / "master.log", self.environ)
        self.url = self._master.wait_for(_MASTER)[1]
        for number in range(self._wanted):
            work = ["--work-dir", str(self.work[number]), "--cores", "1", "--memory", "1g"]
            main = "org.apache.spark.deploy.worker.Worker"
            log = self.directory / f"worker{number}.log"
            self.workers.append(Daemon(main, [*host, *work, self.url], log, self.environ))
        for worker in self.workers:
            worker.wait_for(_REGISTERED)

    def stop(self) -> None:
        """Stop all processes."""
        for daemon in [*self.workers, *([self._master] if self._master else [])]:
            daemon.stop()

    @property
    def work(self) -> list[Path]:
        """Return the workers' directories, with the executors' output."""
        return [self.directory / f"work{number}" for number in range(self._wanted)]

    def submit(self, program: Path, properties: Path, jars: list[str], executors: int) -> list[str]:
        """Return the command that submits a program in client mode."""
        conf = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.dynamicAllocation.minExecutors": str(executors),
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
            # All machines have the same files here: nothing has to be sent.
            "spark.driver.extraClassPath": os.pathsep.join(jars),
            "spark.executor.extraClassPath": os.pathsep.join(jars),
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [_bin("spark-submit"), "--master", self.url, "--properties-file", str(properties)]
        return [*command, *options, str(program)]

    def logs(self) -> list[Path]:
        """Return all log files of daemons and executors."""
        return [path for path in self.directory.rglob("*") if path.is_file() and path.suffix != ".jar"]


def _bin(name: str) -> str:
    import pyspark

    return os.path.join(os.path.dirname(pyspark.__file__), "bin", name)
