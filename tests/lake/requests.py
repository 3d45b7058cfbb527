"""Faults of each request with which an operation changes the tables of an object store.

    echo OPERATION | python -m tests.lake.requests LAKE       all faults, in a new lake below this one (a URL)

Belongs here: the requests of one run, recorded at a proxy before the store, and what becomes of them. The steps of
steps.py are calls of this process; a request is what the JVM and the other libraries make of them, with their own
retries. Requests for locks, for checksums of versions, which are only hints, and for data files that nothing names yet
are left alone.

A run costs seconds, so there is none that could not differ from others. Of a program that is killed nothing remains but
the requests that the store has got: they are sent again from the record, instead of running the program. After a
request that was refused, doubled, or whose answer was lost, libraries repeat it or do not notice, and the operation
goes on: all requests have that fate in one run. Commits have runs of their own, since the store refuses their
repetition, and so have late requests for a path of which there are several, since one could hide another. If the run of
all ends with an error, each request has its own.
"""

from __future__ import annotations

import enum
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.managers import BaseManager
from typing import Any, NamedTuple

from tests.lake.steps import Prepared, serve
from tests.s3_proxy import Fault, Passed, Proxy


def changes(method: str, path: str) -> bool:
    """Return True for a request that commits, deletes, or writes another file of a table's state."""
    if "/_locks/" in path or ".crc" in path or method not in ("PUT", "POST", "DELETE"):
        return False
    return method == "DELETE" or "/_delta_log/" in path or not path.endswith(".parquet")


def is_commit(method: str, path: str) -> bool:
    """Return True for the request that gives a commit its name."""
    return method == "PUT" and "/_delta_log/" in path and path.endswith(".json")


def is_no_lock(method: str, path: str) -> bool:
    """Return True for a request that is not one for a lock."""
    return "/_locks/" not in path


def is_other(paths: frozenset[str], method: str, path: str) -> bool:
    """Return True for a request of `changes` that is no commit, and for none of these paths."""
    return changes(method, path) and not is_commit(method, path) and path not in paths


GONE = Fault(status=403, code="AccessDenied", when=is_no_lock)
"""Fault of all requests of a program that is killed: none of them arrives. No library repeats after this answer."""


class Fate(enum.Enum):
    """Outcomes of one request."""

    KILLED = "killed"
    """The program ends behind it."""
    REFUSED = "refused"
    """Answered with 503 SlowDown, once."""
    LOST = "lost"
    """Done; the connection ends without an answer, and libraries repeat the request."""
    DOUBLED = "doubled"
    """Done twice; the second answer arrives."""
    LATE = "late"
    """No answer; done once the program has ended, whether or not it has repeated the request."""
    ON_THE_WAY = "on the way"
    """The program ends, and the request is done once the operation was repeated; commits only, as a program whose
    request may arrive late keeps its lock for so long that others do not."""

    def fault(self, **which: Any) -> Fault:
        """Return the fault of some requests of a program that is not killed before."""
        match self:
            case Fate.REFUSED:
                return Fault(**which, status=503, code="SlowDown")
            case Fate.LOST:
                return Fault(**which, drop=True)
            case Fate.DOUBLED:
                return Fault(**which, twice=True)
            case Fate.LATE:
                return Fault(**which, late=True, drop=True)
            case Fate.ON_THE_WAY:
                return Fault(**which, late=True, drop=True, then=GONE)
            case Fate.KILLED:
                raise AssertionError("it makes no more requests")


class Proxies(BaseManager):
    """Process of the proxy: deltalake holds the interpreter of this one while it waits for an answer."""


Proxies.register(
    "proxy", Proxy, exposed=("start", "stop", "fail", "release", "told", "record", "recorded", "repeat")
)  # fmt: skip


class Trial(NamedTuple):
    """Result of a fault: the requests, their fate and number, and the error if a promise was broken."""

    requests: str
    fate: Fate
    number: int
    error: BaseException | None


def trials(prepared: Prepared, proxy: Any) -> Iterator[Trial]:
    """Run an operation with each fate of each of its requests."""
    passed = _recorded(prepared, proxy)
    for end, one in enumerate(passed, 1):
        if changes(one.method, one.path):
            yield _trial(_told(one), Fate.KILLED, partial(_killed, prepared, proxy, passed[:end]))[0]
    found = [one for one in passed if changes(one.method, one.path)]
    counted = Counter(one.path for one in found)
    several = frozenset(path for path, number in counted.items() if number > 1)
    for fate in (Fate.REFUSED, Fate.LOST, Fate.DOUBLED, Fate.LATE):
        others = partial(is_other, several if fate is Fate.LATE else frozenset[str]())
        together = sum(others(one.method, one.path) for one in found)
        if together:
            fault = fate.fault(when=others, first=True)
            trial, failed = _trial(f"{together} others", fate, partial(_run, prepared, proxy, fault, fate))
            yield trial
            together = 0 if failed or trial.error is not None else together
        for number, one in enumerate(found):
            if not (together and others(one.method, one.path)):
                fault = fate.fault(when=changes, skip=number, times=1)
                yield _trial(_told(one), fate, partial(_run, prepared, proxy, fault, fate))[0]
    for number, one in enumerate(found):
        if is_commit(one.method, one.path):
            fault = Fate.ON_THE_WAY.fault(when=changes, skip=number, times=1)
            yield _trial(_told(one), Fate.ON_THE_WAY, partial(_run, prepared, proxy, fault, Fate.ON_THE_WAY))[0]


def _told(one: Passed) -> str:
    return f"{one.method} {one.path}"


def _trial(requests: str, fate: Fate, work: Callable[[], tuple[int, bool]]) -> tuple[Trial, bool]:
    """Return the result of a run, and True if the operation ended with an error."""
    try:
        number, failed = work()
    except Exception as error:
        return Trial(requests, fate, 1, error), True
    return Trial(requests, fate, number, None), failed


def _recorded(prepared: Prepared, proxy: Any) -> list[Passed]:
    """Run an operation twice without a fault; return the requests of the first run but those for locks."""
    prepared.put_back()
    proxy.record()
    prepared.work()
    found = [one for one in proxy.recorded() if is_no_lock(one.method, one.path)]
    prepared.work()
    prepared.is_done()
    return found


def _killed(prepared: Prepared, proxy: Any, done: Sequence[Passed]) -> tuple[int, bool]:
    """Run an operation behind one whose program ended with these requests."""
    prepared.put_back()
    assert proxy.repeat([one.content for one in done]) == [one.status for one in done]
    prepared.is_whole()
    prepared.work()
    prepared.is_done()
    return 1, True


def _run(prepared: Prepared, proxy: Any, fault: Fault, fate: Fate) -> tuple[int, bool]:
    """Run an operation with a fault, then repeat it without one; check both times.

    Return the number of requests that failed, and True if the first run ended with an error.
    """
    failed = False
    prepared.put_back()
    proxy.fail(fault)
    try:
        try:
            prepared.work()
        except Exception:
            failed = True
        _, hits, seen = proxy.told()
        proxy.fail()
        if fate is Fate.LATE:
            proxy.release()
        prepared.is_whole()
        prepared.work()
    finally:
        proxy.fail()
        proxy.release()
    prepared.is_done()
    assert hits, f"the fault did not happen: {seen}"
    return 1 if fault.then is not None else hits, failed


def main(lake: str) -> None:
    """Run operations with all faults; see `tests.lake.steps.serve`."""
    with Proxies() as proxies:
        proxy = proxies.proxy(os.environ["AWS_ENDPOINT_URL"])  # type: ignore[attr-defined]
        proxy.start()
        os.environ["AWS_ENDPOINT_URL"] = proxy.told()[0]
        serve(lake, lambda prepared: _tried(prepared, proxy))
        proxy.stop()


def _tried(prepared: Prepared, proxy: Any) -> tuple[int, int]:
    faults = broken = 0
    began = time.monotonic()
    for each in trials(prepared, proxy):
        faults, broken = faults + each.number, broken + (each.error is not None)
        told = f"{time.monotonic() - began:5.0f} s  {each.fate.value:10} {each.number:3}  {each.requests}"
        print(told, file=sys.stderr, flush=True)
        if each.error is not None:
            traceback.print_exception(each.error)
    assert faults, "the operation makes no request that changes a table"
    return faults, broken


if __name__ == "__main__":
    main(*sys.argv[1:])
