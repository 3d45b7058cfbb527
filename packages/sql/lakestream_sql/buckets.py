"""Key-value buckets and object stores as tables: kv.conf, kv_history.conf and obj.files.

Belongs here: their names and those of other streams, and their rows as a SELECT over those of the stream, in DuckDB's
SQL. jvm/ has the same for Spark (Buckets.java).

    kv.<bucket>           the value of each key: key, value, revision, created
    kv_history.<bucket>   each revision that the bucket still has, also with operation: PUT, DEL or PURGE
                          both, if the stream has typed columns: schema and data, and `value` is a struct of them
    obj.<store>           the objects: name, size, chunks, digest, modified, description, metadata, headers, link, nuid,
                          revision

Sources: ADR-8 (key-value buckets), ADR-20 (object stores).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal, get_args

from lakestream.lake.storage import paths
from lakestream.lake.table.schema import SCHEMA_COLUMN, doubled, is_own

View = Literal["kv", "kv_history", "obj"]
VIEWS: tuple[View, ...] = get_args(View)
_STREAMS: dict[View, str] = {"kv": "KV_", "kv_history": "KV_", "obj": "OBJ_"}

_OPERATION = (
    "CASE WHEN headers['KV-Operation'] IS NOT NULL THEN headers['KV-Operation'][1] "
    "WHEN headers['Nats-Marker-Reason'] IS NOT NULL THEN 'PURGE' ELSE 'PUT' END"
)
_REVISIONS = (
    r"SELECT regexp_replace(subject, '^\$KV\.[^.]+\.', '') AS key, {value} AS value, seq AS revision, time AS created, "
    f"{_OPERATION} AS operation{{more}} FROM {{rows}} WHERE starts_with(subject, '$KV.')"
)
_NEWEST = "QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY revision DESC) = 1"
_OBJECTS = (
    "SELECT info->>'$.name' AS name, CAST(info->>'$.size' AS BIGINT) AS size, "
    "CAST(info->>'$.chunks' AS BIGINT) AS chunks, info->>'$.digest' AS digest, time AS modified, "
    "info->>'$.description' AS description, "
    """json_transform(info->'$.metadata', '"MAP(VARCHAR, VARCHAR)"') AS metadata, """
    """json_transform(info->'$.headers', '"MAP(VARCHAR, VARCHAR[])"') AS headers, """
    "nullif(concat_ws('/', info->>'$.options.link.bucket', info->>'$.options.link.name'), '') AS link, "
    "info->>'$.nuid' AS nuid, seq AS revision, subject, coalesce(info->>'$.deleted', 'false') = 'true' AS deleted "
    "FROM (SELECT *, TRY_CAST(decode(data, 'replace') AS JSON) AS info FROM {rows} "
    r"WHERE regexp_matches(subject, '^\$O\.[^.]+\.M\.')) WHERE info IS NOT NULL"
)


def stream_of(view: View, name: str) -> str:
    """Return the name between backticks of a bucket's stream. `name`: conf, or ACME/conf for one of account ACME."""
    account, slash, bucket = name.rpartition("/")
    stream = f"{paths.STREAMS}/{_STREAMS[view]}{bucket}"
    return f"{paths.ACCOUNTS}/{account}/{stream}" if slash else stream


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def written(name: str) -> str:
    """Return a name as it may be written in DuckDB's SQL."""
    return name if _PLAIN.fullmatch(name) and name.lower() not in _reserved() else doubled(name)


@cache
def _reserved() -> frozenset[str]:
    """Return the words of DuckDB that are no names of tables."""
    import duckdb  # the prompt of a server's SQL does not wait for it

    known = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    with duckdb.connect() as connection:
        return frozenset(name for (name,) in connection.execute(known).fetchall())


def short_name(name: str) -> str:
    """Return the names with dots between them that mean a stream, for the one between backticks."""
    parts = [paths.name_of(part) for part in name.split("/") if part not in (paths.STREAMS, paths.ACCOUNTS)]
    return ".".join([*["accounts"] * (len(parts) > 1), *map(written, parts)])


def buckets_of(stream: str) -> dict[View, str]:
    """Return the bucket of a stream, by its name between backticks, for each view that has it; {} for other streams."""
    directory, _, name = stream.rpartition("/")
    account = directory.removeprefix(f"{paths.ACCOUNTS}/").removesuffix(paths.STREAMS)
    found = [(view, begun) for view, begun in _STREAMS.items() if name.startswith(begun)]
    return {view: account + name.removeprefix(begun) for view, begun in found}


def select(view: View, rows: str, columns: Iterable[str] = ()) -> str:
    """Return the SELECT of a view.

    Args:
        rows: the FROM item with the rows of the stream.
        columns: the columns of these rows.
    """
    if view == "obj":
        newest = _OBJECTS.format(rows=rows) + " " + _NEWEST.format(by="subject")
        return f"SELECT * EXCLUDE (subject, deleted) FROM ({newest}) WHERE NOT deleted"
    typed = [doubled(column) for column in columns if not is_own(column)]
    value, more = "data", ""
    if typed:
        fields = ", ".join(f"{column} := {column}" for column in typed)
        value = f"CASE WHEN {SCHEMA_COLUMN} IS NOT NULL THEN struct_pack({fields}) END"
        more = f", {SCHEMA_COLUMN}, data"
    revisions = _REVISIONS.format(rows=rows, value=value, more=more)
    if view == "kv_history":
        return revisions
    # Of the finished rows: a typed column may have the name of one of theirs.
    newest = f"SELECT * FROM ({revisions}) {_NEWEST.format(by='key')}"
    return f"SELECT * EXCLUDE (operation) FROM ({newest}) WHERE operation = 'PUT'"
