"""The tables that a query mentions, and what takes their places.

Belongs here: names with dots between them as tables of the lake, and their times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.table.schema import literal
from lakestream_sql import buckets
from lakestream_sql.buckets import View


class Travel(msgspec.Struct, frozen=True):
    """VERSION AS OF, TIMESTAMP AS OF, MESSAGES (the time of as_of) or SEQUENCE (the revision of a bucket). `value` is
    its expression; `text` is a time that is written out, which may be more exact than DuckDB's times."""

    kind: Literal["VERSION", "TIMESTAMP", "MESSAGES", "SEQUENCE"]
    value: str
    text: str | None = None


class Mention(msgspec.Struct, frozen=True):
    """A table as a query mentions it.

    `name`: as written between the backticks after `delta.`, or as the argument of as_of; `bare`: of a stream, as in
    `FROM ORDERS`. `place`: its offset in the query text. `subject`: the only subject whose rows the query can want of
    it, where that is obvious. `view`: the table of a bucket or an object store (buckets.py), or of misfits, over the
    stream of that name. `last`: only the last message of each subject is read; NATS filters for all subjects that the
    query can want (empty: every subject). `pattern`: the filter that the query names. `counted`: the query wants only
    the number of rows.
    """

    name: str
    travel: Travel | None = None
    place: int = 0
    subject: str | None = None
    view: View | Literal["misfits"] | None = None
    bare: bool = False
    last: tuple[str, ...] | None = None
    pattern: str = ""
    counted: bool = False


def delta_scan(path: str, version: int) -> str:
    """Return the FROM item with which DuckDB reads a Delta table at a version."""
    return f"delta_scan({literal(path)}, version = {version})"


Locate = Callable[[Mention], str | None]
"""Resolves a mentioned table to a SELECT; None for a name that is DuckDB's to know. Raises SqlError."""


def mentioned(names: tuple[str, ...], travel: Travel | None, place: int) -> Mention | None:
    """Return the table of the lake that names with dots between them mean; None if they are DuckDB's to know."""
    first, last = names[0].lower() if names else "", names[-1] if names else ""
    if len(names) == 1:
        return Mention(f"{paths.STREAMS}/{last}", travel, place, bare=True)
    if len(names) == 3 and first == "accounts":
        return Mention(f"{paths.ACCOUNTS}/{paths.directory_name(names[1])}/{paths.STREAMS}/{last}", travel, place)
    if len(names) != 2:
        return None
    if first == "delta":
        return Mention(last, travel, place)
    if first == "misfits":
        return Mention(f"{paths.STREAMS}/{last}", travel, place, view="misfits")
    view = next((view for view in buckets.VIEWS if first == view), None)
    if view is None:
        return None
    if travel is not None:  # its times are those of messages, its versions are revisions
        kind: Literal["MESSAGES", "SEQUENCE"] = "SEQUENCE" if travel.kind == "VERSION" else "MESSAGES"
        travel = msgspec.structs.replace(travel, kind=kind)
    return Mention(buckets.stream_of(view, last), travel, place, view=view)
