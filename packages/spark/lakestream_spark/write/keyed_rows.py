"""Changes of an upsert table that follow from messages, in columns.

Belongs here: the key of each message, the rows that it writes or deletes, and the last change of each key. No table is
read or written; keyed_table.py does that.

    key        the subject, or fields of the payload
    deletion   by subject: an empty payload, or KV-Operation: DEL or PURGE; by fields: what the envelope says

    debezium   {"before", "after", "op"}, alone or in `payload`: c, r, u write `after`; d deletes `before`; t truncates
    maxwell    {"type", "data", "old"}: insert, update, bootstrap-insert write `data`; delete deletes it
    op:$.f     the payload itself; a text of `f` that begins with d (delete, DELETE, d) or is `tombstone` deletes

A change of a key deletes the row of the old key. Messages without a key (misfits, tombstones, other events) change
nothing.

Sources: Debezium, "Data change events"; Maxwell, "Reference: data format".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table.policy import KeyedPolicy
from lakestream.lake.table.schema import is_partition_value
from lakestream.schemas.columns import column_names

OWN = ("subject", "seq", "time")
"""Columns of messages that every upsert table has, in front."""
_HIDDEN = frozenset(("time_ns", "headers", "header_block", "subject_bytes", "data_format", "removed_time_ns"))
_MARKERS = pa.array(["DEL", "PURGE"])


class KeyedChanges(msgspec.Struct, frozen=True):
    """Changes by the messages of a range.

    Attributes: `rows`: the last row of each key that has one; `keys`: texts of all keys that changed, whose earlier
    rows go; `truncated`: all earlier rows go.
    """

    rows: pa.Table
    keys: pa.Array
    truncated: bool = False


class _Event(msgspec.Struct, frozen=True):
    """Deletions or writes: the position of each in the messages, its key, and for writes the row."""

    at: Any
    keys: pa.Array
    written: bool


def changes(messages: pa.Table, policy: KeyedPolicy) -> KeyedChanges:
    """Return the changes by messages.

    Args:
        messages: rows of a stream's table, in the order of `seq`, with all of its columns.
        policy: what the table is keyed by.
    """
    if not policy.fields:
        deleted = _is_marker(messages)
        values = _payload(messages, keep_data=True)
        keys = _combined(messages.column("subject"))
        return _last(values, _events(keys, deleted), 0, False)
    if policy.cdc in ("debezium", "maxwell"):
        return _of_envelope(messages, policy)
    values = _payload(messages, keep_data=False)
    deleted = _false(len(messages))
    if policy.cdc:
        (column,) = column_names([policy.cdc.removeprefix("op:$.")], root=True)
        deleted = _tells_deletion(_field(values, column))
    return _last(values, _events(key_texts(values, policy.columns), deleted), 0, False)


def key_texts(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return the key of each row as a text; NULL where a column is."""
    if not columns:
        return _combined(rows.column("subject"))
    parts = [_text(_field(rows, column)) for column in columns]
    if len(parts) == 1:
        return parts[0]
    sized = []
    for part in parts:  # lengths keep ("a", "bc") from ("ab", "c")
        sized += [pc.cast(pc.binary_length(part), pa.string()), part]
    return pc.binary_join_element_wise(*sized, ":", null_handling="emit_null")


def _of_envelope(messages: pa.Table, policy: KeyedPolicy) -> KeyedChanges:
    root = {name: messages.column(name).combine_chunks() for name in messages.column_names}
    if "payload" in root and pa.types.is_struct(root["payload"].type):
        root = _parts(root["payload"])
    is_debezium = policy.cdc == "debezium"
    after, before = ("after", "before") if is_debezium else ("data_", "old")  # `data` is the payload's column
    values = _with_own(messages, _struct(root, after))
    earlier = _with_own(messages, _struct(root, before))
    kind = _text(root.get("op" if is_debezium else "type", pa.nulls(len(messages), pa.string())))
    kind = pc.fill_null(kind, "")
    new_keys = key_texts(values, policy.columns)
    if is_debezium:
        written = pc.is_in(kind, pa.array(["c", "r", "u"]))
        deleted, old_keys = pc.equal(kind, "d"), key_texts(earlier, policy.columns)
        truncated = pc.equal(kind, "t")
    else:
        written = pc.is_in(kind, pa.array(["insert", "update", "bootstrap-insert"]))
        deleted = pc.equal(kind, "delete")
        # `old` has the fields that changed; the others are as in `data`.
        whole = {name: pc.coalesce(_field(earlier, name), _field(values, name)) for name in policy.columns}
        old_keys = key_texts(pa.table(whole), policy.columns)
        old_keys = pc.if_else(deleted, new_keys, old_keys)
        truncated = _false(len(messages))
    moved = pc.fill_null(pc.and_(written, pc.not_equal(old_keys, new_keys)), False)
    cut = np.flatnonzero(np.asarray(truncated))
    start = int(cut[-1]) + 1 if len(cut) else 0
    events = [_event(old_keys, pc.or_(deleted, moved), False), _event(new_keys, written, True)]
    return _last(values, events, start, bool(len(cut)))


def _events(keys: pa.Array, deleted: pa.Array) -> list[_Event]:
    return [_event(keys, deleted, False), _event(keys, pc.invert(deleted), True)]


def _event(keys: pa.Array, chosen: pa.Array, written: bool) -> _Event:
    at = np.flatnonzero(np.asarray(pc.and_(pc.fill_null(chosen, False), pc.is_valid(keys))))
    return _Event(at, keys.take(pa.array(at)), written)


def _last(values: pa.Table, events: Sequence[_Event], start: int, truncated: bool) -> KeyedChanges:
    """Return the last change of each key among those from a row on."""
    order, keys = [], []
    for each in events:
        kept = each.at >= start
        order.append(each.at[kept] * 2 + each.written)
        keys.append(each.keys.filter(pa.array(kept)))
    found = pa.table({"key": pa.concat_arrays(keys), "order": np.concatenate(order)})
    last = found.group_by("key", use_threads=False).aggregate([("order", "max")])
    orders = np.asarray(last.column("order_max").combine_chunks())
    rows = np.sort(orders[orders % 2 == 1] // 2)
    return KeyedChanges(values.take(pa.array(rows)), last.column("key").combine_chunks(), truncated)


def _with_own(messages: pa.Table, columns: dict[str, Any]) -> pa.Table:
    return pa.table({name: messages.column(name) for name in OWN} | columns)


def payload_columns(names: Sequence[str], keep_data: bool) -> list[str]:
    """Return the columns of a stream's table that an upsert table has beside `OWN`: those of the payload."""
    left_out = {*OWN, *_HIDDEN, "schema", *([] if keep_data else ["data"])}
    return [name for name in names if name not in left_out and not is_partition_value(name)]


def _payload(messages: pa.Table, keep_data: bool) -> pa.Table:
    return messages.select([*OWN, *payload_columns(messages.column_names, keep_data)])


def _field(rows: pa.Table, name: str) -> Any:
    if name in rows.column_names:
        return _flat(rows.column(name))
    return pa.nulls(len(rows), pa.string())


def _struct(root: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a record as columns, with the names that they have in a table."""
    found = root.get(name)
    parts = _parts(found) if found is not None and pa.types.is_struct(found.type) else {}
    return dict(zip(column_names(list(parts), root=True), parts.values(), strict=True))


def _parts(struct: pa.StructArray) -> dict[str, Any]:
    return {field.name: part for field, part in zip(struct.type, struct.flatten(), strict=True)}


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _combined(column: Any) -> Any:
    found = _flat(column)
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _text(column: Any) -> Any:
    found = _flat(column)
    return found if pa.types.is_string(found.type) else found.cast(pa.string())


def _is_marker(messages: pa.Table) -> Any:
    """Return which messages delete their subject's row."""
    empty = pc.fill_null(pc.equal(pc.binary_length(_flat(messages.column("data"))), 0), False)
    operation = pc.map_lookup(_flat(messages.column("headers")), pa.scalar("KV-Operation"), "first")
    first = pc.list_element(pc.if_else(pc.greater(pc.list_value_length(operation), 0), operation, None), 0)
    return pc.or_(empty, pc.fill_null(pc.is_in(first, _MARKERS), False))


def _tells_deletion(column: Any) -> Any:
    lower = pc.utf8_lower(pc.fill_null(_text(column), ""))
    return pc.or_(pc.starts_with(lower, "d"), pc.equal(lower, "tombstone"))


def _false(count: int) -> Any:
    return pa.array(np.zeros(count, bool))
