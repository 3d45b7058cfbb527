"""Common parts of the Spark programs (`jobs/*.py`).

Belongs here: their common options, signals, taking the lock that makes them the only one of their kind at work on a
lake, and the end: an exit code and one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from lakestream import extras
from lakestream.lake.errors import JarsMissing, LakeError
from lakestream.lake.progress import waiting
from lakestream.lake.storage.clouds import urls
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream.lake.storage.lake import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakestream.metrics.family import Sheet
    from lakestream_spark.metrics_port import MetricsServer

LOCK_POLL_SECONDS = 1.0
UMASK = 0o027
"""Umask: directories and files in a lake have the modes of the store, 0750 and 0640."""
DEFAULT_CORES = 2
DEFAULT_HEAP_MIB = 512
METRICS_HOST = "127.0.0.1"
"""Host of an address for metrics that names none."""


class JobParser(argparse.ArgumentParser):
    """Command line parser that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with code 2."""
        self.exit(2, f"lakestream: {self.prog}: {message}; see {self.prog} -h\n")


def positive(text: str) -> float:
    """Parse an option's value that has to be a number above 0."""
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def not_negative(text: str) -> float:
    """Parse an option's value that has to be a number, 0 or above."""
    value = float(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be below 0")
    return value


def count(text: str) -> int:
    """Parse an option's value that has to be a whole number, 1 or above."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def listening(text: str) -> tuple[str, int]:
    """Parse an option's value that has to be `[host:]port`; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535 or (colon and not host) or (":" in host and not host.startswith("[")):
        raise argparse.ArgumentTypeError(f"{text!r} is no [host:]port, such as 9464 or 0.0.0.0:9464")
    return host.removeprefix("[").removesuffix("]") or METRICS_HOST, int(port)


def serve_metrics(where: tuple[str, int] | None, collect: Callable[[Sheet], None]) -> MetricsServer | None:
    """Serve metrics where an option says so. A port that is taken is reported: the work matters more than its metrics.

    Args:
        collect: fills a sheet.
    """
    if where is None:
        return None
    from lakestream_spark.metrics_port import MetricsServer

    try:
        server = MetricsServer(where, collect)
    except OSError as error:
        complain(f"no metrics: cannot listen on {where[0]}:{where[1]}: {error.strerror or error}")
        return None
    say(f"metrics at http://{where[0]}:{server.port}/metrics")
    return server


def add_lake(parser: argparse.ArgumentParser) -> None:
    """Add the option --lake."""
    parser.add_argument("--lake", required=True, metavar="LAKE", help=f"the lake's root: a directory, {urls.FORMS}")


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options of a local Spark."""
    parser.add_argument(
        "--cores", type=count, default=DEFAULT_CORES, metavar="N", help="threads of a Spark of its own (default: 2)"
    )
    parser.add_argument(
        "--heap",
        type=count,
        default=DEFAULT_HEAP_MIB,
        metavar="MIB",
        help="heap of a Spark of its own in MiB (default: 512)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help="print results as JSON, an object a line")


def run(name: str, work: Callable[[threading.Event], int]) -> int:
    """Run a program's `work` with an event that SIGTERM and SIGINT set; return the exit code.

    An error gives one line on stderr and the code 1: the program can be started again, nothing is lost.
    """
    os.umask(UMASK)  # for this program's own files in the lake and those of its JVM
    logging.disable(logging.ERROR)  # py4j logs errors that it raises anyway
    stop = threading.Event()
    _on_signals(stop, signal.SIGTERM, signal.SIGINT)
    try:
        return work(stop)
    except LakeError as error:
        reason = str(error)
    except ImportError as error:
        reason = str(extras.explain(error, f"the {name}") or f"the {name} ended: {error}")
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = f"the {name} ended: {lines[0]}"
    complain(reason)
    return 1


def start_spark(
    app: str,
    lake: str,
    options: argparse.Namespace,
    stop: threading.Event,
    settings: Mapping[str, str] | None = None,
    iceberg: bool = False,
) -> SparkSession:
    """Start a session for work on a lake, by the options --cores and --heap and further settings, with our
    spark_conf/local if it exists; with `iceberg`, with Iceberg's library too if that is to be had."""
    storage = open_storage(lake)
    cloud = cloud_of(storage.root)
    if cloud is not None:
        storage.list(storage.root)  # missing credentials or bucket: fail before Spark starts
    from lakestream_spark import jars
    from lakestream_spark import session as sessions

    with contextlib.suppress(JarsMissing):  # only for log4j2.properties: without it Spark logs more
        os.environ.setdefault("SPARK_CONF_DIR", os.path.dirname(jars.configuration()))

    extra = dict(settings or {})
    if not sessions.under_spark_submit():
        jars.ensure("" if cloud is None else cloud.name)  # before the line about Spark: a download has a bar of its own
        try:
            iceberg = iceberg and bool(jars.ensure_iceberg())
        except JarsMissing as error:
            complain(f"{error}. Compaction goes on, without Iceberg tables")
            iceberg = False
        # Spark makes this directory, which stays empty; by default in the working directory.
        extra["spark.sql.warehouse.dir"] = os.path.join(tempfile.gettempdir(), f"lakestream-{os.getuid()}", "warehouse")
    with waiting("starting Spark"):
        session = sessions.session(
            app, cores=options.cores, heap_mib=options.heap, lake=lake, extra=extra, iceberg=iceberg
        )
    _on_signals(stop, signal.SIGINT)  # PySpark takes SIGINT for itself when a session starts
    return session


def become_only(acquire: Callable[[], bool], name: str, lake: str, once: bool, stop: threading.Event) -> bool:
    """Take the lock that makes a program the only one of its `name` on a lake, waiting for it unless `once`.

    Return False when it was not taken.
    """
    if acquire():
        return True
    if once:
        complain(f"another {name} is already running on {lake}")
        return False
    say(f"another {name} is already running on {lake}: waiting")
    while not stop.wait(LOCK_POLL_SECONDS):
        if acquire():
            return True
    return False


def say(text: str) -> None:
    """Print a line for people."""
    print(text, flush=True)


def tell(as_json: bool, text: str, **fields: object) -> None:
    """Print a result: a line for people, or its fields as a line of JSON."""
    say(json.dumps(fields, ensure_ascii=False) if as_json else text)


def complain(text: str) -> None:
    """Print an error line."""
    print(f"lakestream: {text}", file=sys.stderr, flush=True)


def leave(code: int) -> None:
    """End the process."""
    sys.stdout.flush()
    sys.exit(code)


def _on_signals(stop: threading.Event, *numbers: signal.Signals) -> None:
    for number in numbers:
        signal.signal(number, lambda *_: stop.set())
