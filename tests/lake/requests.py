"""Faults of each request with which an operation changes the tables of an object store.

    python -m tests.lake.requests OPERATION LAKE       all faults, each in a new lake below this one (a URL)

Belongs here: the requests of one run, counted at a proxy before the store, and what becomes of one of them. The steps
of steps.py are calls of this process; a request is what the JVM and the other libraries make of them, with their own
retries. Requests for locks, for checksums of versions, which are only hints, and for data files that nothing names yet
are left alone.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from lakestream.lake.storage.lake import identify
from tests.lake.steps import OPERATIONS, Operation, Stage
from tests.s3_proxy import Fault, Proxy


def changes(method: str, path: str) -> bool:
    """Return True for a request that commits, deletes, or writes another file of a table's state."""
    if "/_locks/" in path or ".crc" in path or method not in ("PUT", "POST", "DELETE"):
        return False
    return method == "DELETE" or "/_delta_log/" in path or not path.endswith(".parquet")


def is_commit(request: str) -> bool:
    """Return True for the request that gives a commit its name."""
    return request.startswith("PUT") and "/_delta_log/" in request and request.endswith(".json")


def is_no_lock(method: str, path: str) -> bool:
    """Return True for a request that is not one for a lock."""
    return "/_locks/" not in path


GONE = Fault(status=403, code="AccessDenied", when=is_no_lock)
"""Fault of all requests of a program that is killed: none of them arrives. No library repeats after this answer."""


class Fate(enum.Enum):
    """Outcomes of one request."""

    REFUSED = "refused"
    """Answered with 503 SlowDown, once."""
    LOST = "lost"
    """Done; the connection ends without an answer, and libraries repeat the request."""
    DOUBLED = "doubled"
    """Done twice; the second answer arrives."""
    LATE = "late"
    """No answer; done once the program has ended, whether or not it has repeated the request."""
    KILLED_BEFORE = "killed before"
    """The program ends before it."""
    KILLED_AFTER = "killed after"
    """The program ends behind it."""
    ON_THE_WAY = "on the way"
    """The program ends, and the request is done once the operation was repeated; commits only, as a program whose
    request may arrive late keeps its lock for so long that others do not."""

    def fault(self, number: int) -> Fault:
        """Return the fault of the request of this number, from 1 on."""
        which: dict[str, Any] = {"when": changes, "skip": number - 1, "times": 1}
        match self:
            case Fate.REFUSED:
                return Fault(**which, status=503, code="SlowDown")
            case Fate.LOST:
                return Fault(**which, drop=True)
            case Fate.DOUBLED:
                return Fault(**which, twice=True)
            case Fate.LATE:
                return Fault(**which, late=True, drop=True)
            case Fate.KILLED_BEFORE:
                return Fault(**which, status=403, code="AccessDenied", then=GONE)
            case Fate.KILLED_AFTER:
                return Fault(**which, drop=True, then=GONE)
            case Fate.ON_THE_WAY:
                return Fault(**which, late=True, drop=True, then=GONE)


class Proxies(BaseManager):
    """Process of the proxy: deltalake holds the interpreter of this one while it waits for an answer."""


Proxies.register("proxy", Proxy, exposed=("start", "stop", "fail", "release", "told"))


def run(spark: Any, operation: Operation, lake: str, place: Path, proxy: Any, number: int, fate: Fate) -> list[str]:
    """Run an operation in a new lake with one request's fault (0: none), then repeat it without one; check both times.

    Return the requests of the first run that matched.
    """
    shutil.rmtree(place / "logs", ignore_errors=True)
    stage = Stage(spark, lake, place / "logs")
    identify(stage.storage)
    work, check = operation.prepare(stage)
    prepared = stage.damaged()
    proxy.fail(fate.fault(number) if number else Fault(when=changes, times=0))
    with contextlib.suppress(Exception) if number else contextlib.nullcontext():
        work()
    _, hits, seen = proxy.told()
    proxy.fail()
    if fate is Fate.LATE:
        proxy.release()
    assert [one for one in stage.damaged() if one not in prepared] == []
    work()
    proxy.release()
    assert stage.damaged() == []
    check()
    assert bool(hits) is bool(number), f"the fault did not happen: {seen}"
    return seen


def each(
    spark: Any, operation: Operation, lake: str, place: Path, proxy: Any, fates: Sequence[Fate]
) -> Iterator[tuple[str, Fate]]:
    """Run an operation with each fate of each of its requests, in lakes of their own; yield each after its run."""
    seen = run(spark, operation, f"{lake}/0", place, proxy, 0, Fate.LOST)
    runs = 0
    for number, request in enumerate(seen, 1):
        for fate in fates:
            if fate is Fate.ON_THE_WAY and not is_commit(request):
                continue
            runs += 1
            try:
                run(spark, operation, f"{lake}/{runs}", place, proxy, number, fate)
            except BaseException as error:
                error.add_note(f"{operation.name}: request {number} of {len(seen)}, {request}: {fate.value}")
                raise
            yield request, fate


def main(name: str, lake: str) -> None:
    """Run one operation with all faults, with a Spark of its own; a promise that does not hold is an exception."""
    from lakestream_spark import session as sessions
    from tests.lake.conftest import SMALL

    with Proxies() as proxies:
        proxy = proxies.proxy(os.environ["AWS_ENDPOINT_URL"])  # type: ignore[attr-defined]
        proxy.start()
        # The operation is repeated at once.
        os.environ |= {"LAKESTREAM_LATE_SECONDS": "0", "AWS_ENDPOINT_URL": proxy.told()[0]}
        spark = sessions.session("lakestream requests", lake=lake, extra=SMALL)
        runs = 0
        with tempfile.TemporaryDirectory() as place:
            for request, fate in each(spark, OPERATIONS[name], f"{lake}/{name}", Path(place), proxy, tuple(Fate)):
                runs += 1
                print(f"  {request}: {fate.value}", file=sys.stderr, flush=True)
        print(f"{name}: {runs} faults", flush=True)
        spark.stop()
        proxy.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
