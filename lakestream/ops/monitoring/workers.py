"""The monitoring pages of a server that consists of several workers.

Belongs here: asking the other workers for their part of a page, and adding the parts up to the page of one server. The
worker that has the monitoring port asks; a worker that does not answer in time is left out, and /healthz says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.metrics.family import Family, Sheet, Value
from lakestream.metrics.histogram import Buckets
from lakestream.ops.monitoring.jetstream import Health
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.protocol.api.jsonio import dumps

if TYPE_CHECKING:
    from lakestream.net.peers.workers import Workers

PAGE, METRICS, COMMAND = "monitoring.page", "monitoring.metrics", "monitoring.command"
"""The calls to another worker: for its part of a page, for its metrics, and to carry out a command."""
TIMEOUT_NS = 2_000_000_000
"""Time for which a page waits for the other workers (2 s)."""

Part = dict[str, Any]
Ask = Callable[[str, Query, Callable[[Any], None]], None]
"""Calls back with this worker's part of the page of that name, or with the BadQuery."""

_ADDED = frozenset(
    {
        "connections",
        "lakestream_memory",
        "total_connections",
        "leafnodes",
        "in_msgs",
        "in_bytes",
        "in_client_msgs",
        "in_client_bytes",
        "out_msgs",
        "out_bytes",
        "out_client_msgs",
        "out_client_bytes",
        "slow_consumers",
        "stale_connections",
        "stalled_clients",
        "subscriptions",
        "mem",
        "cpu",
        "gomaxprocs",
        "slow_consumer_stats",
        "stale_connection_stats",
        "sent",
        "received",
        "num_subscriptions",
        "num_cache",
        "num_inserts",
        "num_removes",
        "num_matches",
        "conns",
        "total_conns",
        "client_connections",
        "leafnode_connections",
        "sublist_stats",
        "memory",
        "storage",
        "api",
        "streams",
        "consumers",
        "messages",
        "bytes",
        "stats",
        "jetstream",
        "reserved_memory",
        "reserved_storage",
        "active_accounts",
    }
)
"""Fields of pages that are added up."""
_SETTINGS = frozenset({"config", "limits", "level"})
"""Fields within added ones that are the same on all workers."""


def added(values: Sequence[Any]) -> Any:
    """Return the sum of numbers, or of all numbers in maps; of anything else the first value."""
    first = values[0]
    if isinstance(first, dict):
        maps = [each for each in values if isinstance(each, dict)]
        names = dict.fromkeys(name for each in maps for name in each)
        return {
            name: first[name]
            if name in first and name in _SETTINGS
            else added([each[name] for each in maps if name in each])
            for name in names
        }
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(each for each in values if isinstance(each, int | float))
    return first


def merge(name: str, query: Query, parts: Sequence[Part]) -> Part:
    """Return the page of the server from those of its workers; the first one is that of the worker which is asked."""
    page = dict(parts[0])
    for field in page.keys() & _ADDED:
        page[field] = added([each[field] for each in parts if field in each])
    special = _SPECIAL.get(name)
    if special is not None:
        special(page, query, parts)
    return page


# ---------------------------------------------------------------------- single pages
_SORTS: dict[str, tuple[str, bool]] = {
    "": ("cid", False),
    "cid": ("cid", False),
    "start": ("start", False),
    "subs": ("subscriptions", True),
    "pending": ("pending_bytes", True),
    "msgs_to": ("out_msgs", True),
    "msgs_from": ("in_msgs", True),
    "bytes_to": ("out_bytes", True),
    "bytes_from": ("in_bytes", True),
    "last": ("last_activity", True),
    "idle": ("last_activity", False),
    "uptime": ("start", True),
    "stop": ("stop", True),
    "reason": ("reason", False),
}
"""By `sort` of /connz the field of a connection, and True for descending."""


def _connz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    shown = [each for part in parts for each in part["connections"] or ()]
    field, descending = _SORTS.get(query.text("sort"), ("cid", False))
    shown.sort(key=lambda one: (one.get(field, 0 if field.endswith("s") else ""), one["cid"]), reverse=descending)
    offset, limit = (0, 1) if query.unsigned("cid") else query.page(_PAGED["connz"])
    shown = shown[offset : offset + limit]
    total = sum(part["total"] for part in parts)
    page |= {"num_connections": len(shown), "total": total, "offset": offset, "limit": limit}
    page["connections"] = shown if page["connections"] is not None else None


def _subsz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    offset, limit = query.page(_PAGED["subsz"])
    shown = [each for part in parts for each in part.get("subscriptions_list", ())]
    shown = sorted(shown, key=lambda one: (one["cid"], one["sid"], one["subject"]))[offset : offset + limit]
    page |= {"total": sum(part["total"] for part in parts), "offset": offset, "limit": limit}
    page["max_fanout"] = max(part["max_fanout"] for part in parts)
    if shown:
        page["subscriptions_list"] = shown


def _accstatz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    page["account_statz"] = _by_name("acc", [part["account_statz"] for part in parts])


def _accountz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    if "account_detail" in page:
        page["account_detail"] = merge("", query, [part["account_detail"] for part in parts])


def _jsz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    accounts: dict[str, list[Part]] = {}
    for part in parts:
        for account in part.get("account_details", ()):
            accounts.setdefault(account["name"], []).append(account)
    if accounts:
        page["account_details"] = [_account(each) for each in accounts.values()]


def _account(parts: Sequence[Part]) -> Part:
    page = merge("", Query(), parts)
    page |= {name: parts[0][name] for name in ("reserved_memory", "reserved_storage") if name in parts[0]}
    streams = [each for part in parts for each in part.get("stream_detail", ())]
    if streams:
        page["stream_detail"] = sorted(streams, key=lambda one: str(one["name"]))
    return page


def _varz(page: Part, query: Query, parts: Sequence[Part]) -> None:
    waits = [part["disk_io_wait_stats"] for part in parts]
    page["disk_io_wait_stats"] = added(waits) | {"max_wait_time": max(each["max_wait_time"] for each in waits)}
    if page.get("jetstream"):
        page["jetstream"]["stats"]["accounts"] = parts[0]["jetstream"]["stats"]["accounts"]
    lakes = [part["lake"] for part in parts if "lake" in part]
    if lakes:
        lake = dict(lakes[0])
        for name in ("lag", "lag_seconds", "last_commit", "misfits", "errors"):
            lake[name] = {stream: value for each in lakes for stream, value in each[name].items()}
        page["lake"] = lake


def _lakez(page: Part, query: Query, parts: Sequence[Part]) -> None:
    if page.get("disabled"):
        return
    offset, limit = query.page(_PAGED["lakez"])
    shown = [each for part in parts for each in part["streams"]]
    shown.sort(key=lambda one: (str(one.get("account", "")), str(one.get("stream", one.get("name", "")))))
    page |= {"streams": shown[offset : offset + limit], "offset": offset, "limit": limit}
    page["total"] = sum(part["total"] for part in parts)


def _by_name(key: str, lists: Sequence[Sequence[Part]]) -> list[Part]:
    found: dict[str, list[Part]] = {}
    for some in lists:
        for each in some:
            found.setdefault(each[key], []).append(each)
    return [merge("", Query(), parts) for parts in found.values()]


_SPECIAL: Mapping[str, Callable[[Part, Query, Sequence[Part]], None]] = {
    "connz": _connz,
    "subsz": _subsz,
    "accstatz": _accstatz,
    "accountz": _accountz,
    "jsz": _jsz,
    "varz": _varz,
    "lakez": _lakez,
}
MERGED = frozenset({*_SPECIAL, "statsz"})
"""Pages to which every worker has a part; the others are those of the worker that is asked."""
_PAGED = {"connz": 1024, "subsz": 1024, "lakez": 100}
"""Pages with offset and limit, and their default limit: every worker is asked for all entries through the last one
shown."""


def worst(parts: Sequence[Health]) -> Health:
    """Return the health of the server: an error of any worker, else a good answer, else that nothing was found."""
    return min(parts, key=lambda one: (one.status not in (500, 503), one.status != 200))


# ---------------------------------------------------------------------- metrics
Encoded = list[tuple[list[str], list[tuple[dict[str, str], list[float | Buckets]]]]]
"""A sheet between workers: by the names of families rows of labels and values."""


def encode_sheet(sheet: Sheet) -> bytes:
    found = [
        ([one.name for one in rows.families], [(each.labels, each.values) for each in rows.rows])
        for rows in sheet.rows()
    ]
    return msgspec.msgpack.encode(found)


def _encoded(found: Sheet | Exception) -> bytes:
    return encode_sheet(Sheet() if isinstance(found, Exception) else found)


_SHEET = msgspec.msgpack.Decoder(Encoded)


def add_sheets(own: Sheet, others: Iterable[bytes], families: Mapping[str, Family], once: Iterable[Family]) -> Sheet:
    """Return the metrics of the server.

    Args:
        own: those of the worker that is asked.
        others: encoded ones of the other workers.
        families: all metrics by name.
        once: metrics of the machine or the settings: the largest value is shown, not the sum.
    """
    largest = {family.name for family in once}
    merged: dict[tuple[Family, ...], dict[frozenset[tuple[str, str]], tuple[dict[str, str], list[Value]]]] = {}
    for names, rows in (part for body in (encode_sheet(own), *others) for part in _SHEET.decode(body)):
        held = merged.setdefault(tuple(families[name] for name in names), {})
        for labels, values in rows:
            key = frozenset(labels.items())
            if key not in held:
                held[key] = labels, list(values)
                continue
            before = held[key][1]
            for at, value in enumerate(values):
                before[at] = _total(before[at], value, names[at] in largest)
    sheet = Sheet()
    for group, some in merged.items():
        for labels, totals in some.values():
            sheet.add(group, labels, totals)
    return sheet


def _total(one: Value, other: Value, largest: bool) -> Value:
    if isinstance(one, Buckets) and isinstance(other, Buckets):
        pairs = zip(one.counts, other.counts, strict=True)
        return Buckets([(bound, a + b) for (bound, a), (_, b) in pairs], one.count + other.count, one.sum + other.sum)
    assert not isinstance(one, Buckets)  # Invariant: values of one metric
    assert not isinstance(other, Buckets)
    return max(one, other) if largest else one + other


# ---------------------------------------------------------------------- asking
class _Answered(msgspec.Struct):
    """A worker's part of a page, or what is wrong with the query."""

    page: msgspec.Raw = msgspec.Raw(b"{}")
    wrong: str = ""


_ANSWERED = msgspec.json.Decoder(_Answered)
_HEALTH = msgspec.json.Decoder(Health)


class Together:
    """The pages of a server of several workers.

    Args:
        workers: the connections to the other workers.
        ask: see `Ask`; of `healthz` it gives a `Health`.
        collect: calls back with this worker's metrics.
    """

    def __init__(
        self,
        workers: Workers,
        ask: Ask,
        collect: Callable[[Callable[[Sheet | Exception], None]], None],
    ) -> None:
        self._workers, self._ask = workers, ask
        self.commands: dict[str, Callable[[int], str]] = {}
        """Commands by name; each takes a number and returns the error, if any."""
        workers.peers.serve(PAGE, self._asked)
        workers.peers.serve(COMMAND, self._commanded)
        workers.peers.serve(METRICS, lambda node, body, answer: collect(lambda found: answer(_encoded(found))))

    @property
    def first(self) -> bool:
        """Return True on the worker that answers for the server."""
        return self._workers.is_first

    async def page(self, name: str, query: Query) -> Part:
        """Return one of the pages `MERGED` of the server. Raises BadQuery."""
        asked = query
        if name in _PAGED and not query.text("cid"):
            offset, limit = query.page(_PAGED[name])
            asked = query.but(offset="0", limit=str(offset + limit))
        own: asyncio.Future[Part | BadQuery] = asyncio.get_running_loop().create_future()
        self._ask(name, asked, own.set_result)
        others = await self._others(PAGE, msgspec.msgpack.encode((name, asked.values)))
        mine = await own
        if isinstance(mine, BadQuery):
            raise mine
        answers = [_ANSWERED.decode(body) for body in others if body is not None]
        parts = [msgspec.json.decode(each.page) for each in answers if not each.wrong]
        return merge(name, query, [mine, *parts])

    async def health(self, query: Query, own: Health) -> Health:
        """Return the health of the server. `own`: that of this worker."""
        others = await self._others(PAGE, msgspec.msgpack.encode(("healthz", query.values)))
        parts = [own]
        for name, body in zip(self._workers.names, others, strict=True):
            if body is None:
                parts.append(Health(503, f"{name} does not answer", "CONNECTION"))
            else:
                answered = _ANSWERED.decode(body)
                parts.append(_HEALTH.decode(answered.page))
        return worst(parts)

    async def command(self, name: str, number: int, worker: int | None = None) -> str:
        """Carry out a command on a worker, or (None) on all; return the first error, "" for none."""
        body = msgspec.msgpack.encode((name, number))
        me = self._workers.index
        errors = [self.commands[name](number)] if worker in (None, me) else []
        if worker is None:
            errors += [_text(each) for each in await self._others(COMMAND, body)]
        elif worker != me:
            errors.append(_text(await self._other(self._workers.name_of(worker), COMMAND, body)))
        return next((error for error in errors if error), "")

    def worker_of(self, cid: int) -> int:
        """Return the number of the worker that numbered a client."""
        return (cid - 1) % (len(self._workers.names) + 1)

    def _commanded(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        name, number = msgspec.msgpack.decode(body, type=tuple[str, int])
        answer(self.commands[name](number).encode() if name in self.commands else b"")

    async def sheets(self) -> list[bytes]:
        """Return the metrics of the other workers."""
        return [body for body in await self._others(METRICS, b"") if body is not None]

    async def _others(self, method: str, body: bytes) -> list[bytes | None]:
        """Return the answers of the other workers, by number; None of one that does not answer."""
        return await asyncio.gather(*(self._other(name, method, body) for name in self._workers.names))

    async def _other(self, name: str, method: str, body: bytes) -> bytes | None:
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(answer: bytes | None, why: str) -> None:
            if not future.done():
                future.set_result(answer)

        self._workers.peers.call(name, method, body, done, TIMEOUT_NS)
        return await future

    def _asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        name, values = msgspec.msgpack.decode(body, type=tuple[str, dict[str, str]])

        def done(page: Any) -> None:
            if isinstance(page, BadQuery):
                answer(msgspec.json.encode({"wrong": str(page)}))
            else:
                answer(b'{"page":' + dumps(page) + b"}")

        self._ask(name, Query(**values), done)


def _text(answer: bytes | None) -> str:
    return "a worker does not answer" if answer is None else answer.decode()
