"""Faults of commits and deletions: whatever becomes of one, no file is lost that a version names, and no message.

Belongs here: the cases. Real maintainers and compactors are killed, get errors or lose answers at a commit, in a
directory and in an object store, and then run once more, as a scheduler runs them again. The steps of all operations
fail in tests/lake/steps.py, and their requests to an object store in tests/lake/requests.py, in processes of their own.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check
from lakestream.lake.table.actions import table_file
from lakestream.lake.table.log import TableLog
from tests.faults.plan import SOURCE, Action, Call, Plan, Rule
from tests.lake.steps import OPERATIONS
from tests.lake_faults.cases import LEASE_S, SETTLE_S, TOOLS, Broken, Case, Site, Traffic
from tests.power.journal import build
from tests.s3_proxy import Fault

PROMISE = "each file of the newest version exists, before and after the program runs again; every message is read"
HISTORY = 300
"""Messages that have left the log before the fault."""
DELETED = range(10, 60, 9)
"""Messages that clients delete before it, and whose bytes must go at once."""
STEP_S = 3600.0
"""Longest time of all faults of one operation, s."""
LOG = "*_delta_log"
COMMIT = "lakes/*_delta_log/*.json"
KILLED = {
    "link-killed": ("killed before a commit has its name", Rule(Call.LINK, f"{LOG}/*.json", Action.KILL, times=1)),
    "link-eio": ("EIO when a commit gets its name", Rule(Call.LINK, f"{LOG}/*.json", error=errno.EIO, times=1)),
    "sync-killed": ("killed after a commit got its name", Rule(Call.SYNC, LOG, Action.KILL, times=1)),
    "sync-eio": ("EIO from the sync after a commit got its name", Rule(Call.SYNC, LOG, error=errno.EIO, times=1)),
    "full": ("ENOSPC while a commit is written", Rule(Call.WRITE, f"{LOG}/.*.tmp", error=errno.ENOSPC, times=1)),
    "data-full": ("ENOSPC while data files are written", Rule(Call.WRITE, "*.parquet", error=errno.ENOSPC, times=1)),
    "delete-eio": ("EIO when a file is deleted", Rule(Call.UNLINK, "streams/*.parquet", error=errno.EIO, times=1)),
    "delete-killed": ("killed when a file is deleted", Rule(Call.UNLINK, "streams/*.parquet", Action.KILL, times=1)),
}
"""By name: what happens, and the rule of the failing calls."""


def _filled(site: Site) -> Traffic:
    """Return a stream of which messages have left the log and, if Spark compacts it, others were deleted securely;
    nothing publishes."""
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    if not site.has_spark:
        traffic.end()
        site.until(lambda: len(site.rows(traffic)) >= traffic.last, "the table is complete")
        return traffic
    for seq in DELETED:
        site.api(f"STREAM.MSG.DELETE.{traffic.name}", {"seq": seq})
        traffic.removed.add(seq)
    through = traffic.last
    site.until(lambda: traffic.last > through + 20, "messages")
    site.until(lambda: not set(DELETED) & {seq for seq, _ in site.rows(traffic)}, "the table has the deletions")
    traffic.end()
    site.until(lambda: len(site.rows(traffic)) >= len(traffic.live(through)), "the table is complete")
    return traffic


def _maintainer(site: Site, traffic: Traffic, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "lakestream.cli.main", "maintain", "--lake", site.lake, "--once"]
    variables = {**os.environ, **site.environment, "LAKESTREAM_LEASE_SECONDS": LEASE_S, **(environment or {})}
    # Not a pipe: workers of a JVM that was killed may hold it open.
    with _said(site).open("wb") as log:
        arguments = [*program, "--stream", traffic.name, "--min-files", "2"]
        return subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=variables)


def _said(site: Site) -> Path:
    return site.directory / "maintainer.log"


def _end(site: Site, maintainer: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for the end of a maintainer; return its exit code, and what it has said."""
    try:
        return maintainer.wait(SETTLE_S), _said(site).read_text()
    except subprocess.TimeoutExpired:
        _kill(maintainer)  # so that it does not work beside the next case's
        raise Broken(f"the maintainer does not end: {_said(site).read_text()[-600:]}") from None


def _kill(maintainer: subprocess.Popen[bytes]) -> None:
    """Kill a maintainer and its JVM."""
    for each in psutil.Process(maintainer.pid).children(recursive=True):
        each.kill()
    maintainer.kill()
    maintainer.wait()


def _whole(site: Site, traffic: Traffic) -> None:
    """Check that each file of the newest version exists, and that each message is read."""
    os.environ.update(site.options())  # past the proxy
    storage, table = open_storage(site.lake), site.table(traffic)
    if lacking := check.lacking(storage, table, map(table_file, TableLog(storage, table).state().files.values())):
        raise Broken(check.describe(table, lacking))
    wanted = traffic.live(traffic.last)
    if bad := [seq for seq in sorted(wanted)[::10] if site.direct(traffic, seq).data != wanted[seq]]:
        raise Broken(f"messages {bad[:10]} are not read")


def _next(site: Site, traffic: Traffic) -> None:
    """Run the next maintainer; in an object store it waits for the lease of one that was killed."""
    said: list[str] = []

    def done() -> bool:
        code, text = _end(site, _maintainer(site, traffic))
        said.append(text)
        if code and "another maintainer is already running" not in text:
            raise Broken(f"the next maintainer fails: {text[-600:]}")
        return not code

    site.until(done, "a maintainer without faults")


def _again(site: Site, traffic: Traffic) -> None:
    """Check the table, let the maintainer and the compactor run once more, and check again."""
    _whole(site, traffic)
    _next(site, traffic)
    _whole(site, traffic)
    if site.compactor is None or site.compactor.process.poll() is not None:
        site.stop_compactor()
        site.start_compactor()
    site.restart()
    traffic.begin(site.server.address)
    site.goes_on(traffic)
    site.follows(traffic)
    _whole(site, traffic)


def _planned(site: Site, rule: Rule) -> tuple[Plan, dict[str, str]]:
    plan = Plan(site.directory / "plan", site.place)
    plan.set(rule)
    return plan, plan.environment(build(TOOLS, SOURCE))


def maintained(rule: Rule) -> Callable[[Site], None]:
    """Return a case in which calls of a maintainer fail."""

    def run(site: Site) -> None:
        traffic = _filled(site)
        site.stop_compactor()
        plan, environment = _planned(site, rule)
        said = _end(site, _maintainer(site, traffic, environment))
        if not plan.hits():
            raise Broken(f"the fault did not happen: {said}")
        _again(site, traffic)

    return run


def compacted(rule: Rule) -> Callable[[Site], None]:
    """Return a case in which calls of a compactor fail."""

    def run(site: Site) -> None:
        traffic = _filled(site)
        site.stop_compactor()
        plan, environment = _planned(site, rule)
        site.start_compactor(environment)
        traffic.begin(site.server.address)
        site.until(lambda: plan.hits() > 0, "the fault")
        traffic.end()
        _again(site, traffic)

    return run


def _killed(child: str) -> Callable[[Site], None]:
    """Return a case in which the maintainer's process of this name is killed once its commit has appeared."""

    def run(site: Site) -> None:
        traffic = _filled(site)
        site.stop_compactor()
        os.environ.update(site.options())
        log = TableLog(open_storage(site.lake), site.table(traffic))
        storage, path = open_storage(site.lake), log.path(log.commits[-1] + 1)
        maintainer = _maintainer(site, traffic)
        deadline = time.monotonic() + SETTLE_S
        while not storage.exists(path) and time.monotonic() < deadline:
            time.sleep(0.0005 if storage.local else 0.05)
        found = psutil.Process(maintainer.pid)
        victims = [each for each in (found, *found.children(recursive=True)) if child in each.name()]
        if not victims:
            raise Broken(f"no process of that name: {child}")
        victims[0].send_signal(signal.SIGKILL)
        _end(site, maintainer)
        _again(site, traffic)

    return run


def _answers(fault: Fault) -> Callable[[Site], None]:
    """Return a case in which the maintainer's requests for a commit fail."""

    def run(site: Site) -> None:
        traffic = _filled(site)
        site.stop_compactor()
        assert site.proxy is not None
        site.proxy.fail(fault)
        _end(site, _maintainer(site, traffic))
        if not site.proxy.hits:
            raise Broken("the fault did not happen")
        site.proxy.pass_all()
        _again(site, traffic)

    return run


def _late(before: bool) -> Callable[[Site], None]:
    """Return a case in which a maintainer is killed while its request for a commit is on its way.

    `before`: the request arrives before the next maintainer starts, else afterwards.
    """

    def run(site: Site) -> None:
        traffic = _filled(site)
        site.stop_compactor()
        assert site.proxy is not None
        proxy = site.proxy
        proxy.fail(Fault(COMMIT, ("PUT",), late=True))
        maintainer = _maintainer(site, traffic)
        site.until(lambda: proxy.hits > 0, "the commit is on its way")
        _kill(maintainer)
        if before:
            proxy.release()
        _whole(site, traffic)
        proxy.fail()
        _next(site, traffic)
        _whole(site, traffic)
        if taken := [status for status in proxy.release() if status < 400]:
            raise Broken(f"a late commit was taken in the place of another: {taken}")
        _again(site, traffic)

    return run


def each_fault(name: str, module: str = "steps") -> Callable[[Site], int]:
    """Return a case with each fault at each step of an operation, or at each of its requests."""

    def run(site: Site) -> int:
        said = site.ask(f"tests.lake.{module}", name, STEP_S)
        print(f"  {said}", flush=True)
        faults, broken = (int(word) for word in said.split()[1::2])
        if broken:
            raise Broken(said)
        return faults

    return run


def _case(
    name: str, fault: str, run: Callable[[Site], int | None], lake: str = "directory", compactor: str = "small"
) -> Case:
    return Case(name, "commits", fault, PROMISE, run, lake, own=compactor == "spark", compactor=compactor)


def _maintain_case(name: str, fault: str, rule: Rule) -> Case:
    compactor = "spark" if name.startswith("delete") else "small"  # only Spark's deletes rows
    return _case(f"maintain-{name}", f"maintainer: {fault}", maintained(rule), compactor=compactor)


CASES = (
    *(_maintain_case(name, fault, rule) for name, (fault, rule) in KILLED.items()),
    *(
        _case(f"compact-{name}", f"compactor: {fault}", compacted(rule), compactor="spark")
        for name, (fault, rule) in KILLED.items()
        if not name.startswith("delete")
    ),
    *(
        _case(f"{lake}-{child}-killed", f"{what} of the maintainer killed when a commit has appeared, {lake}",
              _killed(child), lake)
        for lake in ("directory", "s3")
        for child, what in (("java", "JVM"), ("python", "Python"))
    ),
    _case("s3-answer-lost", "answers to the maintainer's commits are cut", _answers(Fault(COMMIT, ("PUT",), cut=True)),
          "s3"),
    _case("s3-commit-refused", "the maintainer's commits are answered 503",
          _answers(Fault(COMMIT, ("PUT",), status=503, code="SlowDown")), "s3"),
    _case("s3-late-before", "maintainer killed, its commit arrives before the next one's", _late(before=True), "s3"),
    _case("s3-late-after", "maintainer killed, its commit arrives after the next one's", _late(before=False), "s3"),
    *(
        _case(f"steps-{lake}-{name}", f"each commit and deletion of {name} fails in five ways, {lake}",
              each_fault(name), lake, compactor="")
        for lake in ("directory", "s3")
        for name in OPERATIONS
    ),
    *(
        _case(f"requests-{name}", f"each request of {name} for a commit, a deletion or another file of its state: "
              "refused, its answer lost, done twice or late, the program killed before, behind or during it, s3",
              each_fault(name, "requests"), "s3", compactor="")
        for name in OPERATIONS
    ),
)  # fmt: skip
"""Cases, those with real programs first."""
