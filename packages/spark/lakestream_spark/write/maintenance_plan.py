"""Decisions of maintenance, from a table's log.

Belongs here: settings (`Policy`), the state of a table (`Facts`), and the decision (`decide`): files to merge, a
checkpoint, the beginning of the log. All of it is arithmetic: nothing here touches a file. maintainer.py executes it.

Small files worth a rewrite: by size, the largest set in which the largest file is no larger than the others together,
give or take 1/128 of the target, if they are `min_files` at least. So a file is rewritten only together with about as
much again, some log2(target / commit) times in its life, and fewer than `min_files` small files are left, and a handful
that each outweigh all the smaller ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import HOUR_NS, TARGET_BYTES

MIB = 1024 * 1024
DEFAULT_MIN_FILES = 16
DEFAULT_RETAIN_HOURS = 168.0
"""Seven days, Delta's default."""
LEAST_RETAIN_HOURS = 1.0
"""Minimum retention: VACUUM deletes older files that no version names, and among younger ones would be those of running
commits and queries."""
MARGIN_NS = 600_000_000_000
"""Additional age that VACUUM requires of files: a commit's files are older than the commit."""
ROUND_BYTES = 1024 * MIB
ROUND_FILES = 10_000
"""Maximum number of files in one rewriting commit, unless a single new file needs more."""

Partition = tuple[str | None, ...]


class RetentionTooShort(LakeError):
    """Raised when VACUUM at this retention could delete files that are in use."""


class Policy(msgspec.Struct, frozen=True):
    """Settings of maintenance.

    `target_bytes`: target size of OPTIMIZE; files below half of it are small. `min_files`: minimum number of small
    files of one partition that are rewritten. `retain_ns`: age up to which versions stay readable, for tables that do
    not state it. `deleted_ratio`: a file with a larger share of deleted rows is rewritten without them.
    `checkpoint_commits`: number of commits after the last checkpoint that are worth one.
    """

    target_bytes: int = TARGET_BYTES
    min_files: int = DEFAULT_MIN_FILES
    retain_ns: int = int(DEFAULT_RETAIN_HOURS * HOUR_NS)
    deleted_ratio: float = 0.2
    checkpoint_commits: int = 20

    @property
    def small_bytes(self) -> int:
        """Return the size below which a file is small. Two small files together never exceed the target, so a rewrite
        of several always leaves fewer."""
        return self.target_bytes // 2

    @property
    def slack_bytes(self) -> int:
        """Return the size below which a rewrite is always worth it."""
        return self.target_bytes // 128


class DataFile(msgspec.Struct, frozen=True):
    """A data file: partition values, bytes, rows written, rows deleted since, range of sequences, key in the state, and
    whether some deleted rows are to be erased from it."""

    partition: Partition
    size: int
    rows: int
    deleted: int = 0
    min_seq: int = 0
    max_seq: int = 0
    key: tuple[str, str] = ("", "")
    erase: bool = False


class Facts(msgspec.Struct, frozen=True):
    """State of a table, from its log.

    `since_checkpoint`: commits after the newest checkpoint. `oldest`: first version in the log; `keep_from`: the one
    with which it may begin under the retention. `stale`: files that no version within the retention needs; `trouble`:
    why they are unknown. `incarnation`: the table's id, which another table at its path does not have. `erase`: number
    of deleted messages still to be erased (vacuum.py). `snapshots_from_ms`: time of an Iceberg snapshot that is older
    than the retention.
    """

    table: str
    stream: str
    uid: str
    incarnation: str
    version: int
    partition_columns: list[str]
    files: list[DataFile]
    since_checkpoint: int
    oldest: int
    keep_from: int
    retain_ns: int
    stale: list[str]
    trouble: str | None = None
    erase: int = 0
    snapshots_from_ms: int | None = None


class Bin(msgspec.Struct, frozen=True):
    """Files of one partition that become one file."""

    partition: Partition
    files: list[DataFile]

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(file.size for file in self.files)


class MaintenancePlan(msgspec.Struct, frozen=True):
    """Maintenance of one table: bins to rewrite, a checkpoint, the version with which its log begins (0: unchanged) and
    the number of commits dropped, files that VACUUM deletes, and the number of deleted messages to erase from files."""

    bins: list[Bin] = []
    checkpoint: bool = False
    keep_from: int = 0
    expired: int = 0
    stale: list[str] = []
    erase: int = 0

    def __bool__(self) -> bool:
        return bool(self.bins or self.checkpoint or self.expired or self.stale or self.erase)

    @property
    def files(self) -> int:
        """Return the number of files to rewrite."""
        return sum(len(each.files) for each in self.bins)

    def describe(self) -> str:
        """Return the plan in words for people."""
        steps = []
        if self.bins:
            count = len({each.partition for each in self.bins})
            noun = "partition" if count == 1 else "partitions"
            size = sum(each.size for each in self.bins)
            steps.append(f"optimize {self.files} files ({size / MIB:.1f} MiB) in {count} {noun}")
        if self.checkpoint:
            steps.append("checkpoint")
        if self.expired:
            steps.append(f"drop {self.expired} commits from the log")
        if self.stale:
            steps.append(f"vacuum {len(self.stale)} files")
        if self.erase:
            steps.append(f"erase {self.erase} messages")
        return ", ".join(steps) or "nothing to do"


def check_retention(hours: float) -> str | None:
    """Return a warning about a short retention, or None.

    Raises:
        RetentionTooShort: below `LEAST_RETAIN_HOURS`.
    """
    if hours < LEAST_RETAIN_HOURS:
        raise RetentionTooShort(
            f"a retention of {hours:g} h is below {LEAST_RETAIN_HOURS:g} h: VACUUM would delete files of commits and "
            "queries that are under way"
        )
    if hours < DEFAULT_RETAIN_HOURS:
        return f"time travel, and queries that run on, will reach back {hours:g} h only (default: 168 h)"
    return None


def decide(facts: Facts, policy: Policy) -> MaintenancePlan:
    """Return the plan for a table. The same facts always give the same plan, and executed plans give an empty one."""
    bins = decide_bins(facts.files, policy)
    return MaintenancePlan(
        bins=bins,
        checkpoint=bool(bins) or facts.since_checkpoint >= policy.checkpoint_commits,
        keep_from=facts.keep_from,
        expired=max(0, facts.keep_from - facts.oldest),
        stale=facts.stale,
        erase=facts.erase,
    )


def decide_bins(files: Sequence[DataFile], policy: Policy) -> list[Bin]:
    """Return the bins to rewrite."""
    by_partition: dict[Partition, list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    return [each for partition, members in by_partition.items() for each in _bins(partition, members, policy)]


def _bins(partition: Partition, files: Sequence[DataFile], policy: Policy) -> Iterator[Bin]:
    """Yield the bins to rewrite of one partition."""
    small: list[DataFile] = []
    worn: list[DataFile] = []
    worn_small: list[DataFile] = []
    for file in files:
        is_small = file.size < policy.small_bytes
        if file.erase or file.deleted > policy.deleted_ratio * file.rows:
            (worn_small if is_small else worn).append(file)
        elif is_small:
            small.append(file)
    for file in worn:
        yield Bin(partition, [file])
    chosen = worth_merging(small, policy)
    for packed in pack([*chosen, *worn_small], policy.target_bytes):
        if len(packed) > 1 or packed[0].deleted:
            yield Bin(partition, packed)


def worth_merging(small: Sequence[DataFile], policy: Policy) -> list[DataFile]:
    """Return the small files of a partition to merge; see the module's text."""
    ordered = sorted(small, key=lambda file: file.size)
    best = smaller = 0
    for count, file in enumerate(ordered, 1):
        if file.size <= smaller + policy.slack_bytes:
            best = count
        smaller += file.size
    return ordered[:best] if best >= max(policy.min_files, 2) else []


def pack(files: Sequence[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Yield runs of files in sequence order, each below `target` together, so that the new files hold narrow ranges."""
    packed: list[DataFile] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.min_seq, file.max_seq, file.key)):
        if packed and size + file.size > target:
            yield packed
            packed, size = [], 0
        packed.append(file)
        size += file.size
    if packed:
        yield packed


def layers(bins: Sequence[Bin], target: int) -> list[list[Bin]]:
    """Group bins that one job can write: each partition at most once, as it gives one file, and about `target`
    together."""
    left = list(bins)
    found: list[list[Bin]] = []
    while left:
        layer: list[Bin] = []
        rest: list[Bin] = []
        taken: set[Partition] = set()
        size = 0
        for each in left:
            if each.partition in taken or (layer and size + each.size > target):
                rest.append(each)
                continue
            layer.append(each)
            taken.add(each.partition)
            size += each.size
        found.append(layer)
        left = rest
    return found


def first_round(bins: Sequence[Bin], limit: int = ROUND_BYTES) -> list[Bin]:
    """Return as many bins as one commit takes."""
    taken: list[Bin] = []
    size = files = 0
    for each in bins:
        size += each.size
        files += len(each.files)
        if taken and (size > limit or files > ROUND_FILES):
            break
        taken.append(each)
    return taken


def log_floor(log: TableLog, written: Sequence[int], cutoff_ms: int) -> int:
    """Return the version with which the log may begin, so that every time from `cutoff_ms` on finds its version; 0 for
    none.

    It is the newest checkpoint at or before the last commit with progress that is at or before that time.
    """
    for version in reversed(log.versions[: log.count_until(cutoff_ms)]):
        if log.summary(version).progress is not None:
            at = bisect_right(written, version)
            return written[at - 1] if at else 0
    return 0
