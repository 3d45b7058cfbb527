"""Outages of the lake: it is away, slow, full, throttled or refuses the credentials, and comes back.

Belongs here: the cases, and the ways in which a lake goes away. While an outage lasts publishing goes on, recent
messages are read, reads of history say when to try again, and `status` names the outage; afterwards everything resumes
without a restart.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.plan import Call, Plan, Rule
from tests.lake_faults.cases import ACK_S, Broken, Case, Site, Traffic
from tests.s3_proxy import EXPIRED, FULL, HANGING, THROTTLED, Fault, Proxy

PROMISE = "publishing goes on; reads of history say when to try again; status names it; all resumes without a restart"
GOES_ON = "publishing goes on; history is read or says when to try again; all resumes without a restart"
STARTS = "the server starts, takes messages and says what is wrong; all resumes without another restart"
MANAGED = "creating, deleting and mirroring streams is answered, and its effects on the lake come once it is back"


def _away(site: Site, traffic: Traffic, since: float) -> None:
    """Check all promises while the lake is away, for as long as an outage lasts."""
    site.until(lambda: "cannot be reached" in site.warnings(), "status names the outage", 60)
    if site.is_reachable():
        raise Broken("the metric says that the lake can be reached")
    while time.monotonic() < since + site.outage_s:
        site.goes_on(traffic, since)
        site.reads_recent(traffic)
        _refuses_history(site, traffic)


def _refuses_history(site: Site, traffic: Traffic) -> None:
    frame = site.direct(traffic, 1)
    if not frame.status or "Nats-Retry-After" not in frame.headers:
        raise Broken(f"a read of history does not say when to try again: {frame.header.decode()!r}")
    error = site.api(f"STREAM.MSG.GET.{traffic.name}", {"seq": 1}).get("error", {})
    if error.get("code") != 503 or "try again in" not in error.get("description", ""):
        raise Broken(f"a get of history does not say when to try again: {error}")


def _resumes(site: Site, traffic: Traffic, since: float) -> None:
    """Check that everything is as if there had been no outage."""
    site.goes_on(traffic, since)
    site.until(lambda: "cannot be reached" not in site.warnings(), "status is clean again")
    if not site.is_reachable():
        raise Broken("the metric says that the lake cannot be reached")
    site.follows(traffic)


@contextlib.contextmanager
def _moved(site: Site) -> Iterator[None]:
    """Rename the directory of the lake, as if it was unmounted; rename it back."""
    aside = site.place.with_name("aside")
    site.place.rename(aside)
    try:
        yield
        if site.place.exists():
            raise Broken("a new lake was made where the old one is away")
    finally:
        shutil.rmtree(site.place, ignore_errors=True)  # so that the other cases of the site have their lake
        aside.rename(site.place)


def _renamed(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    with _moved(site):
        _away(site, traffic, since)
    _resumes(site, traffic, since)


def without_its_mount(site: Site) -> None:
    """Let the directory of the lake be an empty one, and bring it back."""
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    aside = site.place.with_name("aside")
    site.place.rename(aside)
    site.place.mkdir()  # the directory on which it was mounted
    _away(site, traffic, since)
    left = [path for path in site.place.rglob("*") if path.is_file()]
    if left:
        raise Broken(f"files of the lake in the place where it is not mounted: {left[:3]}")
    site.place.rename(site.place.with_name("mount-point"))
    aside.rename(site.place)
    _resumes(site, traffic, since)


def _consumer(site: Site) -> None:
    """Consumers that read history wait for the lake, and get every message once."""
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    with site.wire() as wire:
        with _moved(site):
            config = {"durable_name": "D", "ack_policy": "explicit", "deliver_policy": "all"}
            site.api(f"CONSUMER.DURABLE.CREATE.{traffic.name}.D", {"stream_name": traffic.name, "config": config})
            sid = wire.subscribe("inbox")
            request = b'{"batch":%d,"expires":120000000000}' % site.history
            wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{traffic.name}.D", request, "inbox")
            _away(site, traffic, since)
        for seq in range(1, site.history + 1):
            if wire.delivered(sid, 60).data != traffic.acked[seq]:
                raise Broken(f"the consumer does not deliver message {seq} next")
    _resumes(site, traffic, since)


def _managed(site: Site) -> None:
    """Streams are created, deleted and mirrored while the lake is away."""
    traffic, doomed = site.traffic(), site.traffic()
    site.in_table(traffic, site.history)
    site.in_table(doomed, site.history)
    since = time.monotonic()
    with _moved(site):
        site.until(lambda: "cannot be reached" in site.warnings(), "status names the outage", 60)
        doomed.end()
        began = time.monotonic()
        if not site.api(f"STREAM.DELETE.{doomed.name}").get("success"):
            raise Broken("a stream cannot be deleted")
        fresh = site.traffic()
        mirror = f"{traffic.name}-mirror"
        answer = site.api(f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": traffic.name}})
        if "error" in answer:
            raise Broken(f"a mirror cannot be created: {answer['error']}")
        if time.monotonic() - began > 3 * ACK_S:
            raise Broken("creating and deleting streams waits for the lake")
        _away(site, traffic, since)
        site.goes_on(fresh, began)
    _resumes(site, traffic, since)
    site.follows(fresh)
    marks = site.place / "segments" / doomed.name
    site.until(lambda: any(marks.glob("*/deleted")), "the deleted stream is marked for the compactor")
    through = traffic.last

    def mirrored() -> bool:
        return bool(site.api(f"STREAM.INFO.{mirror}").get("state", {}).get("last_seq", 0) >= through)

    site.until(mirrored, "the mirror follows its origin")


def away_at_the_start(site: Site) -> None:
    """The server starts while the directory is away."""
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    with _moved(site):
        site.restart()
        _away(site, traffic, since)
    _resumes(site, traffic, since)


def _compactor_away(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    site.stop_compactor()
    site.until(lambda: "no compactor is running" in site.warnings(), "status names it", 60)
    site.goes_on(traffic, since)
    site.reads_history(traffic)
    site.start_compactor()
    _resumes(site, traffic, since)


def _failing(rule: Rule, named: str) -> Callable[[Site], None]:
    """Return a case in which files of the lake fail for server and compactor."""

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, site.history)
        since = time.monotonic()
        assert site.plan is not None
        site.plan.set(rule)
        site.until(lambda: named in site.warnings(), f"status says {named}", 60)
        while time.monotonic() < since + site.outage_s:
            site.goes_on(traffic, since)
            site.reads_recent(traffic)
            site.reads_history(traffic)
        site.plan.set()
        _resumes(site, traffic, since)

    return run


def _store(*faults: Fault, away: bool = True, streams: int = 1) -> Callable[[Site], None]:
    """Return a case in which requests to the object store fail; without faults connections are refused.

    `streams`: so many have publishers, more than the log has threads, say.
    """

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, site.history)
        others = [site.traffic(pause_s=1.0) for _ in range(1, streams)]
        proxy = _proxy(site)
        since = time.monotonic()
        proxy.fail(*faults) if faults else proxy.refuse()
        if away:
            _away(site, traffic, since)
        for other in others:
            site.goes_on(other, since, 1)
        while time.monotonic() < since + site.outage_s:
            site.goes_on(traffic, since)
            site.reads_recent(traffic)
            frame = site.direct(traffic, 1)
            if frame.data != traffic.acked[1] and "Nats-Retry-After" not in frame.headers:
                raise Broken(f"a read of history has no data, and no time to try again: {frame.header.decode()!r}")
        proxy.pass_all()
        for other in others:
            other.end()
        _resumes(site, traffic, since)

    return run


def _commits(fault: Fault) -> Callable[[Site], None]:
    """Return a case in which the store fails just when the compactor commits."""

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, site.history)
        proxy, since = _proxy(site), time.monotonic()
        proxy.fail(fault)
        site.until(lambda: proxy.hits >= 3, "commits fail")
        site.goes_on(traffic, since)
        site.reads_history(traffic)
        proxy.pass_all()
        _resumes(site, traffic, since)

    return run


def _store_at_start(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, site.history)
    since = time.monotonic()
    _proxy(site).fail(HANGING)
    site.restart()
    _away(site, traffic, since)
    _proxy(site).pass_all()
    _resumes(site, traffic, since)


def _proxy(site: Site) -> Proxy:
    assert site.proxy is not None
    return site.proxy


def _planned(directory: Path) -> Plan:
    """Return a plan by which files of the lake fail."""
    (directory / "lake").mkdir(parents=True, exist_ok=True)
    return Plan(directory / "plan", directory / "lake")


_WRITES = Call.WRITE | Call.CREATE | Call.MKDIR | Call.LINK
COMMIT = "lakes/*_delta_log/*.json"


def _case(name: str, fault: str, run: Callable[[Site], None], promise: str = PROMISE, **more: object) -> Case:
    return Case(name, "outages", fault, promise, run, **{"compactor": "small", **more})  # type: ignore[arg-type]


CASES = (
    _case("directory-away", "directory of the lake renamed, and back", _renamed),
    _case("not-mounted", "directory of the lake is an empty one, as without its mount, and back", without_its_mount),
    _case("consumer", "directory away while a consumer reads history", _consumer),
    _case("managed", "directory away while streams are created, deleted and mirrored", _managed, MANAGED),
    _case("start", "directory away at the start of the server", away_at_the_start, STARTS),
    _case("compactor-away", "no compactor", _compactor_away, GOES_ON, compactor="spark"),
    _case("compactor-outlasts", "directory of the lake renamed under Spark, and back", _renamed, compactor="spark"),
    _case("full", "directory of the lake full", _failing(Rule(_WRITES, "*", error=errno.ENOSPC), "full"), GOES_ON,
          plan=_planned, own=True),
    _case("s3-refused", "object store refuses connections", _store(), lake="s3"),
    _case("s3-hanging", "object store does not answer", _store(HANGING, streams=12), lake="s3",
          own=True),
    _case("s3-slow", "each request to the object store takes 1 s longer", _store(Fault(delay_s=1.0), away=False),
          GOES_ON, lake="s3"),
    _case("s3-throttled", "object store answers 503 SlowDown", _store(THROTTLED), lake="s3"),
    _case("s3-expired", "object store answers 403 ExpiredToken, then takes the credentials", _store(EXPIRED),
          lake="s3"),
    _case("s3-full", "object store answers 507 to writes", _store(FULL, away=False), GOES_ON, lake="s3"),
    _case("s3-cut", "every second answer of the object store is cut", _store(Fault(cut=True, every=2), away=False),
          GOES_ON, lake="s3"),
    _case("s3-commit", "object store fails at commits (503)",
          _commits(Fault(COMMIT, ("PUT",), status=503, code="SlowDown")), GOES_ON, lake="s3"),
    _case("s3-commit-cut", "answers to commits are cut, so that their outcome is unknown",
          _commits(Fault(COMMIT, ("PUT",), cut=True)), GOES_ON, lake="s3"),
    _case("s3-start", "object store does not answer at the start of the server", _store_at_start, STARTS, lake="s3"),
)  # fmt: skip
"""Cases, the cheap ones first."""
