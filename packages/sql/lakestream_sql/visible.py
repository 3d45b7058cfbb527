"""The rows that a user may see.

Belongs here: the subjects that permissions allow as a condition in DuckDB's SQL, and the barrier around the rows of a
table. DuckDB moves a user's conditions and expressions down to the scan, before those of an inner query, and the error
of a cast has the value in it. It cannot move them below an OFFSET, since that would change which rows are left out: an
OFFSET of 0 keeps the order, and costs the second thread of the scan. Conditions of the barrier itself go down to the
files: literal subjects and prefixes leave out files and row groups by their statistics. DuckDB compares a range with
these, not two ranges with OR, so permissions that no subject of the stream can match (`_INBOX.>`) are left out first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.lake.table.conditions import filter_sql
from lakestream.lake.table.schema import literal
from lakestream.protocol.client import Sight
from lakestream.protocol.subjects import is_literal


class Viewer(msgspec.Struct, frozen=True):
    """The user of a query: what it may see, any of them (None: every row), its roles (None: no field is masked), and
    the key of hashes that it sees instead of fields."""

    sees: tuple[Sight, ...] | None = None
    roles: tuple[str, ...] | None = None
    mask_key: str = ""


EVERYTHING = Viewer()
TELLING = frozenset({"stats"})
"""Functions that tell of rows which are left out: the range of a column in the files."""


def visible(select: str, sees: Sequence[Sight] | None) -> str:
    """Return a SELECT of the rows that a user may see among those of another one. `sees`: None for all."""
    return select if sees is None else f"SELECT * FROM ({select}) WHERE {_condition(sees)} OFFSET 0"


def within(sees: Sequence[Sight], low: str, high: str) -> list[Sight]:
    """Return what a user sees of a stream, without the filters that no subject from `low` to `high` matches. `high` may
    be the beginning of the last one."""

    def may_match(filter: str) -> bool:
        head = filter if is_literal(filter.encode()) else filter[: min(at for at in map(filter.find, "*>") if at >= 0)]
        return low[: len(head)] <= head and head[: len(high)] <= high

    found = list[Sight]()
    for sight in sees:
        allow = None if sight.allow is None else tuple(filter(may_match, sight.allow))
        if allow is None or allow:
            found.append(Sight(allow, tuple(filter(may_match, sight.deny))))
    return found


def _condition(sees: Sequence[Sight]) -> str:
    shown = list[str]()
    for sight in sees:
        hidden = f" AND NOT {matching(sight.deny)}" if sight.deny else ""
        shown.append(f"({'true' if sight.allow is None else matching(sight.allow)}{hidden})")
    return f"({' OR '.join(shown)})" if shown else "false"


def matching(filters: Sequence[str]) -> str:
    """Return the condition for subjects that match a NATS filter."""
    names = [each for each in filters if is_literal(each.encode())]
    found = [f"subject IN ({', '.join(map(literal, names))})"] if names else []
    found += [filter_sql(each) for each in filters if each not in names]
    return f"({' OR '.join(found) or 'false'})"
