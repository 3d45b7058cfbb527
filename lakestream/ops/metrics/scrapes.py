"""Answering scrapes.

Belongs here: collecting in slices of the event loop's time, rendering in a thread, and sharing one collection among
scrapes that come together, so that a page of any size holds up clients for a few milliseconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from lakestream.metrics.family import Sheet
from lakestream.metrics.page import Page, render
from lakestream.ops.metrics.server import ServerMetrics, store_space
from lakestream.ops.monitoring.exchange import TEXT, Answer
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ports import Clock

SLICE_NS = 2_000_000
"""Time for which a collection keeps the event loop at once (2 ms)."""
PAUSE_NS = 1_000_000
"""Time between two slices (1 ms), which belongs to clients."""

Done = Callable[[Answer], None]


class Scrapes:
    """Scrapes of one server, one collection at a time."""

    def __init__(self, node: Monitored, clock: Clock, metrics: ServerMetrics) -> None:
        self._node, self._clock, self._metrics = node, clock, metrics
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
        sheet, wanted = Sheet(), self._waiting
        self._waiting = []
        self._go_on(self._metrics.collect(sheet), sheet, wanted)

    def _go_on(self, collecting: Iterator[None], sheet: Sheet, wanted: list[tuple[str, str, Done]]) -> None:
        until = time.monotonic_ns() + SLICE_NS
        try:
            for _ in collecting:
                if time.monotonic_ns() >= until:
                    self._clock.call_later(PAUSE_NS, lambda: self._go_on(collecting, sheet, wanted))
                    return
        except Exception as error:
            self._ended(wanted, None, error)
            return
        directory, formats = self._metrics.directory(), [(accept, encoding) for accept, encoding, _ in wanted]

        def work() -> list[Page]:
            if directory:
                store_space(sheet, directory)
            pages = {each: render(sheet, *each) for each in dict.fromkeys(formats)}
            return [pages[each] for each in formats]

        self._node.io.submit(work, lambda pages, error: self._ended(wanted, pages, error))

    def _ended(
        self, wanted: list[tuple[str, str, Done]], pages: list[Page] | None, error: BaseException | None
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
                encoding = (("Content-Encoding", page.encoding),) if page.encoding else ()
                done(Answer(200, page.content_type, page.body, (("Vary", "Accept, Accept-Encoding"), *encoding)))
            else:
                done(Answer(500, TEXT, b"500 internal error\n"))
