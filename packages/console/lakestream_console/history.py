"""The figures of the last day, for the plots of the page.

Belongs here: which figures are noted, of the server and of each account, and how rates and quantiles follow from
counters. The memory is in ring.py. Figures are noted from the server's start on, whether a page is open or not, and end
with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from lakestream.metrics.histogram import Buckets
from lakestream.net.accounts.accounts import Account
from lakestream.ops.monitoring.accounts import account_traffic
from lakestream.ops.monitoring.monitored import Monitored, configured
from lakestream.ops.monitoring.pages import Pages
from lakestream.ops.monitoring.query import Query
from lakestream.ports import Clock
from lakestream_console.ring import FINE_S, FigureRing, ring_bytes
from lakestream_console.stream_figures import StreamFigures

T = TypeVar("T")

MAX_BYTES = 4 << 20
"""Memory of all figures (4 MiB). Accounts for which none is left have no history; streams get what accounts leave."""

RATES = ("in", "out", "in_bytes", "out_bytes", "stored")
"""Series that are counters by the second: messages and bytes of clients, and messages stored in streams."""

OF_ACCOUNT = (*RATES, "lag", "lag_seconds", "connections")
OF_SERVER = (*OF_ACCOUNT, "ack50", "ack99", "sync99", "memory", "cpu")
"""Series of an account, and of the server: `lag` in messages, times in seconds, `memory` in bytes, `cpu` in percent."""

STREAMS_AT_ONCE = 256
"""Streams that are read in one turn of the event loop (256), which takes about a millisecond."""

MAX_RANGE_S = 86_400
"""The longest range (24 h)."""


class _Reading(NamedTuple):
    """Counters at a moment; `at` in ns of the steady clock."""

    at: int
    counters: dict[str, float]
    histograms: dict[str, Buckets]


class _Lag(NamedTuple):
    """Messages that are not in the tables yet, and the age of the oldest in ns."""

    messages: int
    age_ns: int


class ServerHistory:
    """The history of one server.

    Args:
        kept_s: time for which figures are kept; 0: none are noted.
    """

    def __init__(self, node: Monitored, pages: Pages, clock: Clock, kept_s: int) -> None:
        self._node, self._pages, self._clock, self._kept_s = node, pages, clock, kept_s
        self._rings: dict[str, FigureRing] = {}
        self._before: dict[str, _Reading] = {}
        self._streams = StreamFigures(kept_s)
        self._left = MAX_BYTES  # without the streams' part
        if kept_s:
            clock.call_later(0, self._tick)

    def read(self, account: str, range_s: int, stream: str = "") -> dict[str, Any]:
        """Return the figures of the last `range_s` seconds of an account, or of its stream; "": the server's."""
        now, seconds = self._clock.now() / 1e9, max(FINE_S, min(range_s, self._kept_s, MAX_RANGE_S))
        page: dict[str, Any] = {"now": now, "started": self._node.started_ns / 1e9, "kept": self._kept_s}
        if stream:
            found = self._streams.read((account, stream), now, seconds)
        else:
            found = ring.read(now, seconds) if (ring := self._rings.get(account)) is not None else None
        step, times, series = found or (FINE_S, [], {})
        return page | {"step": step, "times": times, "series": series}

    # ------------------------------------------------------------------ noting
    def _tick(self) -> None:
        self._clock.call_later(FINE_S * 1_000_000_000, self._tick)
        self._clock.spawn(self._note())

    async def _note(self) -> None:
        lags, stored = await self._lags(), await self._stored()
        counters, histograms, gauges = await self._of_server(sum(stored.values()))
        self._add("", OF_SERVER, counters, histograms, gauges | _lag(lags.values()))
        if self._node.accounts.alone:
            return  # every client sees the server's
        for account in configured(self._node):
            if account.connections or account.name in self._rings:
                counters, gauges = self._of_account(account, stored.get(account.name, 0))
                lag = [lags[account.name]] if account.name in lags else []
                self._add(account.name, OF_ACCOUNT, counters, {}, gauges | _lag(lag))
            await asyncio.sleep(0)  # between accounts, the server's clients

    def _add(
        self,
        name: str,
        series: tuple[str, ...],
        counters: dict[str, float],
        histograms: dict[str, Buckets],
        gauges: dict[str, float | None],
    ) -> None:
        ring = self._rings.get(name)
        if ring is None:
            size = ring_bytes(len(series))
            if self._streams.make_room(self._left - self._streams.bytes, size) < size:
                return
            self._left -= size
            ring = self._rings[name] = FigureRing(series, self._kept_s)
        now = _Reading(self._clock.steady(), counters, histograms)
        before = self._before.get(name)
        self._before[name] = now
        figures = dict(gauges)
        if before is not None and now.at > before.at:
            seconds = (now.at - before.at) / 1e9
            grown = {each: value - before.counters.get(each, value) for each, value in counters.items()}
            # A counter that shrank is that of a stream or client that has gone.
            figures |= {each: None if value < 0 else value / seconds for each, value in grown.items()}
            figures |= _quantiles(before.histograms, histograms)
        ring.note(self._clock.now() / 1e9, figures)

    async def _of_server(self, stored: int) -> tuple[dict[str, float], dict[str, Buckets], dict[str, float | None]]:
        node, pages, together = self._node, self._pages, self._pages.together
        found = pages.counters() | pages.machine() if together is None else await together.page("varz", Query())
        counters = {
            "in": found["in_msgs"],
            "out": found["out_msgs"],
            "in_bytes": found["in_bytes"],
            "out_bytes": found["out_bytes"],
        }
        gauges: dict[str, float | None] = {"memory": found["mem"], "connections": found["connections"]}
        histograms: dict[str, Buckets] = {}
        if together is None:
            counters["cpu"] = time.process_time() * 100
        if (jetstream := node.jetstream) is not None:
            syncs = jetstream.stores.figures.sync_seconds
            histograms = {"ack": jetstream.ack_seconds.read(), "sync": syncs.read()}
            if together is None:
                counters["stored"] = stored
            else:
                with contextlib.suppress(KeyError):
                    page = await together.page("jsz", Query(accounts="1", streams="1"))
                    counters["stored"] = sum(
                        stream["state"]["last_seq"]
                        for account in page["account_details"]
                        for stream in account.get("stream_detail", ())
                    )
        return counters, histograms, gauges

    def _of_account(self, account: Account, stored: int) -> tuple[dict[str, float], dict[str, float | None]]:
        traffic = account_traffic(self._node, account)
        counters = {
            "in": traffic["received"]["msgs"],
            "out": traffic["sent"]["msgs"],
            "in_bytes": traffic["received"]["bytes"],
            "out_bytes": traffic["sent"]["bytes"],
            "stored": stored,
        }
        return counters, {"connections": traffic["conns"]}

    async def _lags(self) -> dict[str, _Lag]:
        """Return the lags of the tables by account; {} without a lake."""
        keeper = self._node.jetstream.keeper if self._node.jetstream is not None else None
        found: dict[str, _Lag] = {}
        async for account, stream in in_steps(keeper.streams() if keeper is not None else ()):
            if keeper is not None and (lag := keeper.lag_of(account, stream)) is not None:
                before = found.get(account, _Lag(0, 0))
                found[account] = _Lag(before.messages + lag.messages, max(before.age_ns, lag.age_ns))
        return found

    async def _stored(self) -> dict[str, int]:
        """Return the last sequences of each account's streams together: their growth is the messages stored."""
        found: dict[str, int] = {}
        now = self._clock.now() / 1e9
        keeper = self._node.jetstream.keeper if self._node.jetstream is not None else None
        for name, serving in list(self._node.jetstream.served.items()) if self._node.jetstream is not None else ():
            found[name] = 0
            async for stream in in_steps(serving.engine.shown()):
                store = stream.store
                found[name] += store.last_seq
                key = name, stream.name
                if self._streams.wants(key, store.last_time / 1e9, now, self._left - self._streams.bytes):
                    lag = keeper.lag_of(*key) if keeper is not None else None
                    messages = lag.messages if lag is not None else None
                    created = stream.created_ns / 1e9
                    self._streams.note(key, store.last_seq, store.last_time / 1e9, messages, now, created, store.msgs)
        self._streams.forget(now)
        return found


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items that there are now, some in each turn of the event loop."""
    for number, item in enumerate(list(items), 1):
        yield item
        if not number % STREAMS_AT_ONCE:
            await asyncio.sleep(0)


def _lag(lags: Collection[_Lag]) -> dict[str, float | None]:
    """Return the messages that are not in the tables yet, and the age of the oldest."""
    if not lags:
        return {}
    return {"lag": sum(lag.messages for lag in lags), "lag_seconds": max(lag.age_ns for lag in lags) / 1e9}


def _quantiles(before: Mapping[str, Buckets], now: Mapping[str, Buckets]) -> dict[str, float | None]:
    if not now or not before:
        return {}
    return {
        "ack50": quantile(before["ack"], now["ack"], 0.5),
        "ack99": quantile(before["ack"], now["ack"], 0.99),
        "sync99": quantile(before["sync"], now["sync"], 0.99),
    }


def quantile(before: Buckets, after: Buckets, share: float) -> float | None:
    """Return a quantile of what a histogram counted between two readings; None if that is nothing."""
    total = after.count - before.count
    if total <= 0:
        return None
    wanted, lower, counted = total * share, 0.0, 0
    for (bound, count), (_, old) in zip(after.counts, before.counts, strict=True):
        grown = count - old
        if grown >= wanted:
            return lower + (bound - lower) * (wanted - counted) / ((grown - counted) or 1)
        lower, counted = bound, grown
    return lower  # above the last bound
