"""What a stream's table needs, decided from its log.

Belongs here: how tables are kept (`Policy`), what is known of one (`Facts`), and the decision what to do (`decide`):
which files to put together, whether to write a checkpoint, where the log may begin. All of it is arithmetic: nothing
here touches a file. Doing it is maintenance.py's.

Which small files are worth a rewrite: by size, the most of which the largest is no larger than the others together,
give or take 1/128 of the target, if they are `min_files` at least. So a file is rewritten only together with about as
much again, some log2(target / commit) times in its life, and what is left of small files is fewer than `min_files` and
a handful that each outweigh all the smaller ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from lakestream.lake.delta.time_travel import CommitLog
from lakestream.lake.errors import LakeError

MIB = 1024 * 1024
HOUR_NS = 3_600_000_000_000
DEFAULT_TARGET_BYTES = 128 * MIB
DEFAULT_MIN_FILES = 16
DEFAULT_RETAIN_HOURS = 168.0
"""Seven days, as Delta has it."""
DELTAS_LOG_HOURS = 720.0
"""At which age Delta, when it writes a checkpoint, drops commits of tables that do not say it
(`delta.logRetentionDuration`)."""
LEAST_RETAIN_HOURS = 1.0
"""VACUUM takes files that no version names, if they are older than this: among them would be those of a commit that is
still under way, and files that a query is reading."""
MARGIN_NS = 600_000_000_000
"""VACUUM leaves files this much longer than the retention says: a commit's files are older than the commit."""
ROUND_BYTES = 1024 * MIB
ROUND_FILES = 10_000
"""What one commit of a rewrite takes at most, unless a single new file needs more; the rest goes into the next one."""

Partition = tuple[str | None, ...]
_INTERVAL = re.compile(r"(\d+)\s+(week|day|hour|minute|second)s?\b", re.IGNORECASE)
_UNIT_NS = {"week": 168 * HOUR_NS, "day": 24 * HOUR_NS, "hour": HOUR_NS, "minute": HOUR_NS // 60, "second": 10**9}


class RetentionTooShort(LakeError):
    """VACUUM at this retention could take files that are in use."""


class Policy(msgspec.Struct, frozen=True):
    """How tables are kept.

    `target_bytes`: size that OPTIMIZE aims at; files below half of it are small. `min_files`: small files of one
    partition that are worth a rewrite. `retain_ns`: age up to which versions stay readable, for tables that do not say
    it themselves. `deleted_ratio`: a file with a larger share of deleted rows is rewritten without them.
    `checkpoint_commits`: commits after the last checkpoint that are worth one.
    """

    target_bytes: int = DEFAULT_TARGET_BYTES
    min_files: int = DEFAULT_MIN_FILES
    retain_ns: int = int(DEFAULT_RETAIN_HOURS * HOUR_NS)
    deleted_ratio: float = 0.2
    checkpoint_commits: int = 20

    @property
    def small_bytes(self) -> int:
        """Below this a file is small. Two small files together never exceed the target, so a rewrite of several always
        leaves fewer."""
        return self.target_bytes // 2

    @property
    def slack_bytes(self) -> int:
        """So little is rewritten at any time."""
        return self.target_bytes // 128


class DataFile(msgspec.Struct, frozen=True):
    """A data file: its partition's values, bytes, rows written and rows deleted since, the range of its sequences, its
    key in the table's state, and whether some of the deleted rows are to be erased from it."""

    partition: Partition
    size: int
    rows: int
    deleted: int = 0
    min_seq: int = 0
    max_seq: int = 0
    key: tuple[str, str] = ("", "")
    erase: bool = False


class Facts(msgspec.Struct, frozen=True):
    """What a table's log says.

    `since_checkpoint`: commits after the newest checkpoint. `oldest`: first version in the log; `keep_from`: the one
    that it may begin with under the retention. `stale`: files that no version within the retention needs; `trouble`:
    why that cannot be told. `incarnation`: the table's own id, which the next table at its place does not have.
    `erase`: deleted messages whose bytes are still to go (erasure.py).
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


class Bin(msgspec.Struct, frozen=True):
    """Files of one partition that become one file."""

    partition: Partition
    files: list[DataFile]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


class Plan(msgspec.Struct, frozen=True):
    """What is to be done to a table: the bins to rewrite, whether to write a checkpoint, the version that its log shall
    begin with (0: as it is) and how many commits that drops, the files that VACUUM deletes, and how many deleted
    messages are to be erased from files."""

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
        """Files that are rewritten."""
        return sum(len(each.files) for each in self.bins)

    def describe(self) -> str:
        """In words, for people."""
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
    """A warning about a short retention, or None when it needs none.

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
    if hours > DELTAS_LOG_HOURS:
        return (
            f"Delta cuts logs at {DELTAS_LOG_HOURS:g} h by itself, where the stream's metadata does not say "
            "lakestream.time_travel: only with that do versions stay longer"
        )
    return None


def decide(facts: Facts, policy: Policy) -> Plan:
    """What the table needs. The same facts always give the same plan, and done plans give an empty one."""
    bins = decide_bins(facts.files, policy)
    return Plan(
        bins=bins,
        checkpoint=bool(bins) or facts.since_checkpoint >= policy.checkpoint_commits,
        keep_from=facts.keep_from,
        expired=max(0, facts.keep_from - facts.oldest),
        stale=facts.stale,
        erase=facts.erase,
    )


def decide_bins(files: Sequence[DataFile], policy: Policy) -> list[Bin]:
    """What to rewrite."""
    by_partition: dict[Partition, list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    return [each for partition, members in by_partition.items() for each in _bins(partition, members, policy)]


def _bins(partition: Partition, files: Sequence[DataFile], policy: Policy) -> Iterator[Bin]:
    """What to rewrite of one partition."""
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
    """The small files of a partition to put together; see the module's text."""
    ordered = sorted(small, key=lambda file: file.size)
    best = smaller = 0
    for count, file in enumerate(ordered, 1):
        if file.size <= smaller + policy.slack_bytes:
            best = count
        smaller += file.size
    return ordered[:best] if best >= max(policy.min_files, 2) else []


def pack(files: Sequence[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Runs of files in sequence order, each below `target` together, so that the new files hold narrow ranges."""
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
    """Bins that one job can write: each partition at most once, as it gives one file, and about `target` together."""
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
    """As many bins as one commit shall take."""
    taken: list[Bin] = []
    size = files = 0
    for each in bins:
        size += each.size
        files += len(each.files)
        if taken and (size > limit or files > ROUND_FILES):
            break
        taken.append(each)
    return taken


def log_floor(log: CommitLog, written: Sequence[int], cutoff_ms: int) -> int:
    """The version that the log may begin with, so that every commit and message time from `cutoff_ms` on finds its
    version: the newest checkpoint at or before the last commit that speaks of the stream and is at or before that time.

    0 when there is no such.
    """
    for version in reversed(log.versions[: versions_until(log, cutoff_ms)]):
        if log.commit(version).progress is not None:
            at = bisect_right(written, version)
            return written[at - 1] if at else 0
    return 0


def versions_until(log: CommitLog, cutoff_ms: int) -> int:
    """How many of the log's versions were made at or before a time. In-commit timestamps ascend."""
    low, high = 0, len(log.versions)
    while low < high:
        middle = (low + high) // 2
        if log.commit(log.versions[middle]).time_ms <= cutoff_ms:
            low = middle + 1
        else:
            high = middle
    return low


def interval_ns(text: str) -> int:
    """The length of an interval as Delta's table properties spell it (`interval 1 week`); 0 when it says nothing."""
    return sum(int(count) * _UNIT_NS[unit.lower()] for count, unit in _INTERVAL.findall(text))
