"""The last message of each subject: last(ORDERS), and the values of a bucket.

Belongs here: the rows as a SELECT. The subject index of the stream's leader (lake/last_messages.py) names them by their
sequences, so that only these are read of the table; where there is none, the table is searched.

An index that was read before a view was opened leads to exactly the last messages of the view. A subject with messages
beyond the table (`tail`) has its last one there. Of every other subject the index names the last message in the table.
If that one was removed meanwhile, the view knows, and the table is searched for an older one of this subject.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.conditions import MATCHES, Condition
from lakestream.lake.table.schema import literal
from lakestream.lake.table.segments import alive
from lakestream_client.lake.view import StreamView
from lakestream_sql.uncompacted import LastIndex, StreamQuery, selected
from lakestream_sql.visible import matching

Narrowed = Callable[[StreamView, Sequence[str], Sequence[int]], str]
LISTED = 64
"""Up to this many messages are listed in a condition; more are joined."""
MOST_LOST = 256
"""Up to this many subjects are searched for an older message; with more of them the whole table is."""


def by_index(
    live: StreamQuery, index: LastIndex, filters: Sequence[str], number: int, narrowed: Narrowed = lambda *_: ""
) -> tuple[str, dict[str, Any]] | None:
    """Return a SELECT of the last messages in a view, with the Arrow tables that it reads; None if the index does not
    fit to the view. There may be messages of other subjects than those that match a filter.

    Args:
        filters: those of the index.
        number: makes the names of Arrow tables unique within the statement.
        narrowed: returns the FROM item for rows with some subjects and sequences; "" for that of the view.
    """
    view = live.view
    fits = index.uid == view.uid and view.position <= index.begun and index.ended <= view.last_index
    if not fits or view.archive or view.has_removed:
        return None
    tail = live.tail.filter(Condition("subject", MATCHES, tuple(filters)).mask(live.tail)) if filters else live.tail
    newest = _newest(tail)
    table = ~_among(index.subjects, newest.column("subject"))
    gone = ~alive(index.seqs, view.hidden)
    lost = index.subjects.filter(pa.array(table & gone & (index.seqs >= view.hidden.floor)))
    if len(lost) > MOST_LOST:
        return None
    table &= ~gone & (index.seqs <= view.table_last_seq)
    seqs, subjects = index.seqs[table], index.subjects.filter(pa.array(table))
    selects, arrow, source = list[str](), dict[str, Any](), ""
    names = [*view.columns, *view.typed_names]
    if live.table and (len(seqs) or view.typed_names):  # whose columns the tail may lack
        if not len(seqs):
            where = "false"
        elif len(seqs) <= LISTED:
            source = narrowed(view, subjects.to_pylist(), seqs.tolist())
            where = f"seq IN ({', '.join(map(str, seqs))}) AND subject IN ({_list(subjects)})"
        else:
            listed = arrow[f"last_{number}"] = pa.table({"seq": np.sort(seqs)})
            ends = pc.min_max(subjects)
            where = (
                f"seq IN ({selected(f'last_{number}', listed)}) AND seq BETWEEN {seqs.min()} AND {seqs.max()} "
                f"AND subject BETWEEN {literal(ends['min'].as_py())} AND {literal(ends['max'].as_py())}"
            )
        plain = msgspec.structs.replace(view, hidden=departure_files.DeletedMessages())  # none of them is hidden
        selects.append(plain.table_sql(source or live.source, names, where))
    if live.table and len(lost):
        selects.append(by_search(f"({view.table_sql(live.source, names, f'subject IN ({_list(lost)})')})"))
    if newest.num_rows or not selects:
        arrow[f"newest_{number}"] = newest
        selects.append(selected(f"newest_{number}", newest))
    return " UNION ALL BY NAME ".join(f"({select})" for select in selects), arrow


def by_search(source: str, filters: Sequence[str] = ()) -> str:
    """Return a SELECT of the last messages in a FROM item, of the subjects that match a filter."""
    where = f" WHERE {matching(filters)}" if filters else ""
    # Not by a window function: that would carry all payloads.
    return f"SELECT * FROM {source} WHERE seq IN (SELECT max(seq) FROM {source}{where} GROUP BY subject)"


def _newest(tail: Any) -> Any:
    """Return the last row of each subject; `tail` is in sequence order."""
    codes = tail.column("subject").combine_chunks().dictionary_encode().indices.to_numpy()
    _, places = np.unique(codes[::-1], return_index=True)
    return tail.take(np.sort(len(codes) - 1 - places))


def _among(values: Any, some: Any) -> Any:
    return pc.is_in(values, value_set=some.combine_chunks().cast(values.type)).to_numpy(zero_copy_only=False)


def _list(values: Any) -> str:
    return ", ".join(map(literal, values.to_pylist()))
