"""Answering scrapes.

Belongs here: collecting in slices of the event loop's time, rendering in a thread, and sharing one collection among
scrapes that come together, so that a page of any size holds up clients for a few milliseconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakestream.http.exchange import TEXT, HttpAnswer
from lakestream.metrics.family import Sheet
from lakestream.metrics.page import render
from lakestream.ops.metrics import names
from lakestream.ops.metrics.server import ServerMetrics, store_space
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.workers import Together, add_sheets
from lakestream.ports import Clock

SLICE_NS = 2_000_000
"""Time for which a collection keeps the event loop at once (2 ms)."""
PAUSE_NS = 1_000_000
"""Time between two slices (1 ms), which belongs to clients."""

Done = Callable[[HttpAnswer], None]


class Scrapes:
    """Scrapes of one server, one collection at a time.

    Args:
        together: adds up the metrics of the workers of this server; None: it is one process.
    """

    def __init__(self, node: Monitored, clock: Clock, metrics: ServerMetrics, together: Together | None = None) -> None:
        self._node, self._clock, self._metrics, self._together = node, clock, metrics, together
        self._waiting: list[tuple[str, str, Done]] = []
        self._busy = False

    def scrape(self, accept: str, accept_encoding: str, done: Done) -> None:
        """Call `done` with the page, in the event loop.

        Args:
            accept, accept_encoding: the request's headers of these names.
        """
        self._waiting.append((accept, accept_encoding, done))
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        wanted, self._waiting = self._waiting, []

        def collected(sheet: Sheet | Exception) -> None:
            if isinstance(sheet, Exception):
                self._ended(wanted, None, sheet)
            elif self._together is None:
                self._render(sheet, wanted)
            else:
                self._clock.spawn(self._add_up(self._together, sheet, wanted))

        collect(self._metrics, self._clock, collected)

    async def _add_up(self, together: Together, sheet: Sheet, wanted: list[tuple[str, str, Done]]) -> None:
        families = {family.name: family for family in names.FAMILIES}
        self._render(add_sheets(sheet, await together.sheets(), families, names.ONCE), wanted)

    def _render(self, sheet: Sheet, wanted: list[tuple[str, str, Done]]) -> None:
        directory, formats = self._metrics.directory(), [(accept, encoding) for accept, encoding, _ in wanted]

        def work() -> list[HttpAnswer]:
            if directory:
                store_space(sheet, directory)
            pages = {each: render(sheet, *each) for each in dict.fromkeys(formats)}
            return [pages[each] for each in formats]

        self._node.io.submit(work, lambda pages, error: self._ended(wanted, pages, error))

    def _ended(
        self, wanted: list[tuple[str, str, Done]], pages: list[HttpAnswer] | None, error: BaseException | None
    ) -> None:
        self._busy = False
        if self._waiting:
            self._begin()
        if pages is None:
            assert error is not None  # Invariant: see `Io.submit`.
            self._node.log.exception("monitoring page /metrics failed", error)
            pages = []
        for number, (_, _, done) in enumerate(wanted):
            if number < len(pages):
                page = pages[number]
                done(page._replace(headers=(("Vary", "Accept, Accept-Encoding"), *page.headers)))
            else:
                done(HttpAnswer(500, TEXT, b"500 internal error\n"))


def collect(metrics: ServerMetrics, clock: Clock, done: Callable[[Sheet | Exception], None]) -> None:
    """Collect the metrics of this process in slices of the event loop's time; call `done` with them, or the error."""
    sheet = Sheet()
    collecting = metrics.collect(sheet)

    def go_on() -> None:
        until = time.monotonic_ns() + SLICE_NS
        try:
            for _ in collecting:
                if time.monotonic_ns() >= until:
                    clock.call_later(PAUSE_NS, go_on)
                    return
        except Exception as error:
            done(error)
            return
        done(sheet)

    go_on()
