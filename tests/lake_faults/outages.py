"""Outages of the lake: it is away, slow, full, throttled or refuses the credentials, and comes back.

Belongs here: the cases, and the ways in which a lake goes away. While an outage lasts publishing goes on, recent
messages are read, reads of history say when to try again, and `status` names the outage; afterwards everything resumes
without a restart.
"""

from __future__ import annotations

import time

from tests.lake_faults.cases import Broken, Case, Site, Traffic

OUTAGE_S = 12.0
"""Duration of an outage, s: longer than one request to the lake."""
HISTORY = 150
"""Messages that have left the log when an outage begins."""
PROMISE = "publishing goes on; reads of history say when to try again; status names it; all resumes without a restart"


def _away(site: Site, traffic: Traffic, since: float) -> None:
    """Check all promises while the lake is away, for as long as an outage lasts."""
    site.until(lambda: "cannot be reached" in site.warnings(), "status names the outage", 60)
    while time.monotonic() < since + OUTAGE_S:
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


def _renamed(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    since = time.monotonic()
    aside = site.place.with_name("aside")
    site.place.rename(aside)
    try:
        _away(site, traffic, since)
        if site.place.exists():
            raise Broken("a new lake was made where the old one is away")
    finally:
        if not site.place.exists():
            aside.rename(site.place)
    site.goes_on(traffic, since)
    site.follows(traffic)


CASES = (Case("directory-away", "outages", "directory of the lake renamed and back", PROMISE, _renamed),)
