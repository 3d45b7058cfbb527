"""Which layout a stream's table gets.

Belongs here: the rule that chooses between partitions by subject, by tokens and by bucket, as a function of what the
stream asks for, how many subjects it has, and how the table is partitioned already. Rewriting a table is table.py's.

    auto            by subject up to 50 subjects, then by bucket
    subject         by subject up to 1,000 subjects, then by bucket
    tokens:1,3      by these tokens up to 1,000 combinations of them, then by bucket
    bucket[:N]      by bucket: N ranges of subjects

A table does not go back from buckets by itself: its stream would have to ask for something else.

And in which order the rows of a file are: by sequence where it has one subject, else in runs of successive sequences,
by subject within a run. So both a reader by sequence and one by subject find what they want in few pages, also of a
commit of a million messages, which otherwise has the messages of any second all over its files.
"""

from __future__ import annotations

from lakestream.lake.delta.policy import DEFAULT_BUCKETS, Partition
from lakestream.lake.delta.schema import SUBJECT_LIMIT, SUBJECT_MOST, Layout

SAMPLE = 20_000
"""Subjects that bounds are made of, at most."""

RUN_ROWS = 16_384
"""Rows of a run: large enough that a subject's rows lie together, small enough to be read for one of them."""
RUN_SEQS = 8 * RUN_ROWS
"""Sequences of a run in what the compactor writes, whose files each have a part of them."""
PAGE_SETTING = ("parquet.page.row.count.limit", "2048")
"""Rows of a page, as a setting of Spark: of a file, readers take the pages whose bounds hold what they want."""


def wanted(
    partition: Partition,
    subjects: int,
    current: Layout | None = None,
    decided_for: str | None = None,
    limit: int = SUBJECT_LIMIT,
) -> Partition:
    """What the table is to be partitioned by: `subject`, `tokens` or `bucket`, never `auto`.

    Args:
        partition: what the stream asks for.
        subjects: how many subjects it has.
        current: how its table is partitioned; None without a table.
        decided_for: the request (`Partition.text`) that `current` was chosen for.
        limit: subjects up to which `auto` means by subject.
    """
    buckets = Partition("bucket", buckets=partition.buckets if partition.kind == "bucket" else DEFAULT_BUCKETS)
    if partition.kind == "bucket":
        return buckets
    if current is not None and current.kind == "bucket" and decided_for == partition.text:
        return buckets
    if partition.kind == "tokens":
        return partition
    most = limit if partition.kind == "auto" else SUBJECT_MOST
    return Partition("subject") if subjects <= most else buckets


def agrees(current: Layout, want: Partition, asked: Partition, decided_for: str | None) -> bool:
    """Whether a table of this layout can stay as it is, when `want` came of what was `asked`."""
    if current.kind != want.kind:
        return False
    if want.kind == "tokens":
        return current.tokens == want.tokens
    # Fewer buckets than asked for are right where there were not enough subjects to cut.
    return want.kind != "bucket" or decided_for == asked.text or len(current.bounds) + 1 == want.buckets
