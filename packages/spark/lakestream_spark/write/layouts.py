"""Layout that a stream's table should have, and its partitions as Spark writes them.

Belongs here: the choice of a layout, the sizes of runs and row groups, and partition columns by time and by fields in
Spark SQL. Their values are those of lakestream_client/lake/partitions.py, which has them in Arrow.

The layout follows from the request (`lakestream.partition`), the number of subjects and the current layout:

    auto            by subject up to 50 subjects, then by bucket
    subject         by subject up to 1,000 subjects, then by bucket
    tokens:1,3      by these tokens up to 1,000 combinations of them, then by bucket
    bucket[:N]      by bucket: N ranges of subjects
    day(time), $.a  by day or hour, and by typed columns, up to 1,000 combinations of their values, then by bucket; also
                    by fields inside of them ($.a.b), and by the month, day or hour of their times: month($.a)

A table does not go back from buckets unless its stream asks for something else. The rows of a file are sorted by
sequence where it has one subject, else in runs of successive sequences, by subject within a run. So readers by sequence
and readers by subject both find their rows in few pages, also of a commit of a million messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakestream.lake.table import segments
from lakestream.lake.table.policy import DEFAULT_BUCKETS, Partition
from lakestream.lake.table.schema import (
    BY_DAY,
    BY_HOUR,
    NULL_PARTITION,
    SUBJECT_LIMIT,
    SUBJECT_MOST,
    Layout,
    quoted,
    split_term,
    ticked,
)
from lakestream.schemas.columns import column_names
from lakestream_client.lake.partitions import CONTROL, DAY_NS, HOUR_NS, LENGTHS, MAX_VALUE

SAMPLE = 20_000
"""Maximum number of subjects from which bounds are chosen."""
RUN_ROWS = 16_384
"""Rows of a run: large enough to keep a subject's rows together, small enough to be read for one of them."""
GROUP_ROWS = 8_192
"""Maximum rows of a row group: half a run. DuckDB decodes a subject's column in whole groups, so smaller ones answer
`WHERE subject = …` in half the time; at 4,096 rows it is no quicker, and files have 6 % more bytes instead of 4 %."""
RUN_SEQS = 8 * RUN_ROWS
"""Sequences of a run in what the compactor writes, whose files each have a part of them."""
PAGE_SETTING = ("parquet.page.row.count.limit", "2048")
"""Rows of a page, as a Spark setting: readers skip pages by their bounds."""
_SPARK_KINDS = frozenset(("string", "long", "integer", "short", "byte", "bigint", "int", "boolean", "date"))


def wanted_partition(
    partition: Partition,
    subjects: int,
    current: Layout | None = None,
    decided_for: str | None = None,
    limit: int = SUBJECT_LIMIT,
) -> Partition:
    """Return the partitioning that a table should have: `subject`, `tokens` or `bucket`, never `auto`.

    Args:
        partition: the requested partitioning.
        subjects: number of the stream's subjects.
        current: the table's layout; None without a table.
        decided_for: the request (`Partition.text`) for which `current` was chosen.
        limit: maximum number of subjects with which `auto` means by subject.
    """
    buckets = Partition("bucket", buckets=partition.buckets if partition.kind == "bucket" else DEFAULT_BUCKETS)
    if partition.kind == "bucket":
        return buckets
    if current is not None and current.kind == "bucket" and decided_for == partition.text:
        return buckets
    if partition.kind in ("tokens", "fields"):
        return partition
    most = limit if partition.kind == "auto" else SUBJECT_MOST
    return Partition("subject") if subjects <= most else buckets


def layout_agrees(current: Layout, want: Partition, asked: Partition, decided_for: str | None) -> bool:
    """Return True if a table of this layout needs no rewriting for `want`, which followed from the request `asked`."""
    if current.kind != want.kind:
        return False
    if want.kind == "tokens":
        return current.tokens == want.tokens
    if want.kind == "fields":
        return current.terms == typed_terms(want.terms)
    # Fewer buckets than requested are right where there were too few subjects.
    return want.kind != "bucket" or decided_for == asked.text or len(current.bounds) + 1 == want.buckets


def typed_terms(terms: tuple[str, ...]) -> tuple[str, ...]:
    """Return terms with the names of columns in the place of those of fields."""
    fields = [split_term(term)[1][0] for term in terms if term.startswith("$")]
    names = dict(zip(dict.fromkeys(fields), column_names(dict.fromkeys(fields), root=True), strict=True))

    def typed(term: str) -> str:
        function, (root, *inner) = split_term(term)
        path = ".".join([names[root], *(column_names([name], root=False)[0] for name in inner)])
        return f"${function}({path})" if function else f"${path}"

    return tuple(typed(term) if term.startswith("$") else term for term in terms)


def choose_bounds(subjects: Iterable[str], buckets: int) -> tuple[str, ...]:
    """Return bounds that cut a sample of subjects into up to `buckets` ranges of about equal size."""
    ordered = sorted(set(subjects))
    cuts = {len(ordered) * number // buckets for number in range(1, buckets)}
    return tuple(ordered[cut] for cut in sorted(cuts) if 0 < cut < len(ordered))


def sample_subjects(path: str, after: int, most: int) -> list[str]:
    """Return up to `most` distinct subjects of a segment's messages, evenly spread over their order."""
    found: set[str] = set()
    for batch in segments.decode(path, after):
        found.update(batch.column(0).unique().to_pylist())
    ordered = sorted(found)
    return ordered[:: -(-len(ordered) // most)] if len(ordered) > most else ordered


def spark_values(layout: Layout, types: Mapping[str, Any]) -> dict[str, str]:
    """Return the partition columns as Spark SQL over a row, by name: the same as `partitions.arrays`.

    Args:
        types: Spark's names of the types of the row's columns and of the fields inside of them, by path (`a.b`).
    """
    found = {}
    for name in layout.columns:
        if name == BY_DAY:
            found[name] = f"date_from_unix_date(CAST(time_ns div {DAY_NS} AS INT))"
        elif name == BY_HOUR:
            found[name] = f"CAST((time_ns div {HOUR_NS}) % 24 AS INT)"
        elif (text := _spark_text(layout.field(name), types)) is None:
            found[name] = "CAST(NULL AS STRING)"
        else:
            found[name] = (
                f"CASE WHEN octet_length({text}) BETWEEN 1 AND {MAX_VALUE} AND {text} <> {quoted(NULL_PARTITION)} "
                f"AND NOT {text} RLIKE {quoted(CONTROL)} THEN {text} END"
            )
    return found


def _spark_text(field: str, types: Mapping[str, Any]) -> str | None:
    """Return the text of a field as an expression; None: NULL."""
    function, path = split_term(field)
    kind, column = types.get(".".join(path)), ".".join(map(ticked, path))
    if not function:
        return f"CAST({column} AS STRING)" if kind in _SPARK_KINDS else None
    day = f"CAST({column} AS STRING)"
    if kind == "timestamp":  # whatever the session's time zone is
        micros, of_day, of_hour = f"unix_micros({column})", DAY_NS // 1000, HOUR_NS // 1000
        days = f"CAST(({micros} - pmod({micros}, {of_day})) div {of_day} AS INT)"
        hour = f"lpad(CAST(pmod({micros}, {of_day}) div {of_hour} AS STRING), 2, '0')"
        day = f"concat(CAST(date_from_unix_date({days}) AS STRING), 'T', {hour})"
    elif kind != "date" or function == "hour":
        return None
    return f"substr({day}, 1, {LENGTHS[function]})"


def combinations(values: Iterable[Mapping[str, str | None]]) -> int:
    """Return the number of different values of fields among partitions, whatever their times."""
    times = (BY_DAY, BY_HOUR)
    return len({tuple(sorted((name, text) for name, text in each.items() if name not in times)) for each in values})
