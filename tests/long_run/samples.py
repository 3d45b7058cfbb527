"""Samples of a long run, and the verdict on them.

Belongs here: what is sampled, the comparison of the beginning with the end, and the plots. The processes are in
__main__.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
from deltalake import DeltaTable

from lakestream.lake.read.history.cache import DEFAULT_BYTES
from tests.bench.draw import lines, save
from tests.campaigns import RESULTS, Row

TEST = "tests/long_run/__main__.py"
MIB = 1 << 20
KINDS = ("publish", "kv put", "kv get")
"""Operations whose p99 is compared."""
PART = 1 / 5
"""Part of the period at rest that is compared: its first with its last fifth."""
FILLS_S = 480.0
"""Most time (8 minutes) until what a start has emptied is filled up to its limit again: the log of each stream
(`retain_bytes`, or 64 segments), and 4 MiB of recent entries of each group that a node leads. The cache of old messages
takes longer: it is told apart."""
MEMORY, DESCRIPTORS, LATENCY, DISK = 1.10, 1.05, 1.5, 1.10
"""Most by which the last fifth may exceed the first."""
LOG_BYTES = 6 * MIB
"""Most bytes of a stream's log (6 MiB): retain_bytes (4 MiB), open segment (256 KiB), outlines of segments that have
left, the checkpoint, and its successor while that is written."""


class Sample(msgspec.Struct, frozen=True):
    """State at one time.

    Attributes:
        at_s: seconds from the beginning.
        rss: bytes of resident memory, by process.
        descriptors: open descriptors, by process.
        cache: bytes of old messages in the cache of each node.
        log: bytes of the store of each node, without the lake.
        lake: bytes of all files of the lake.
        live: bytes of the files that the newest versions of the tables name.
        p50: median of the seconds an operation took since the sample before, by kind.
        p99: 99th percentile of them.
        failed: operations that were repeated, since the beginning.
    """

    at_s: float
    rss: dict[str, int]
    descriptors: dict[str, int]
    cache: dict[str, int]
    log: dict[str, int]
    lake: int
    live: int
    p50: dict[str, float]
    p99: dict[str, float]
    failed: int


class Run(msgspec.Struct):
    """A whole run: when the last node of each round was started again, and the samples."""

    minutes: float
    restarts_s: list[float]
    samples: list[Sample]
    done: dict[str, int]
    failed: dict[str, int]
    differences: list[str]

    @property
    def rest(self) -> list[Sample]:
        """Return the samples of the second half, from `FILLS_S` after the last restart on."""
        began = max(self.minutes * 30, max(self.restarts_s, default=0.0) + FILLS_S)
        return [each for each in self.samples if each.at_s >= began]


def used(process: psutil.Process) -> tuple[int, int]:
    """Return resident bytes and open descriptors of a process with its children."""
    rss = descriptors = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            rss += each.memory_info().rss
            descriptors += each.num_fds()
        except psutil.NoSuchProcess:
            continue
    return rss, descriptors


def size(directory: Path) -> int:
    """Return the bytes that the files below a directory occupy."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def live(lake: Path) -> int:
    """Return the bytes of the files of the newest version of each table."""
    total = 0
    for log in lake.glob("streams/**/_delta_log"):
        files = DeltaTable(str(log.parent)).get_add_actions().column("size_bytes").to_pylist()
        total += sum(files)
    return total


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return a percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def growth(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """Return the median of the last fifth divided by that of the first."""
    found = [each for sample in samples if (each := value(sample)) is not None]
    part = max(1, round(len(found) * PART))
    return statistics.median(found[-part:]) / max(statistics.median(found[:part]), 1e-9)


def within(log: Mapping[str, int], streams: int, minutes: int) -> Row:
    """Return the row of the nodes' logs, which fill up to their retention. `log`: most bytes of each node."""
    most = streams * LOG_BYTES
    told = ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in log.items())
    result = "kept" if max(log.values()) <= most else "**not kept**"
    promise = f"the log stays within its retention ({streams} streams, {most // MIB} MiB)"
    return Row("mixed load, minutes", promise, TEST, minutes, f"{result}: {told}")


def besides_cache(sample: Sample, process: str) -> float | None:
    """Return the bytes of memory of a process without the old messages that it caches; None without the process."""
    rss = sample.rss.get(process)
    return None if rss is None else rss - sample.cache.get(process, 0)


def full(samples: Sequence[Sample], minutes: int) -> Row:
    """Return the row of the caches of old messages, which fill up to their limit and stay there."""
    most = {name: max(each.cache.get(name, 0) for each in samples) for name in sorted(samples[-1].cache)}
    told = ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in most.items())
    result = "kept" if max(most.values(), default=0) <= DEFAULT_BYTES else "**not kept**"
    promise = f"the cache of old messages stays within its limit ({DEFAULT_BYTES // MIB} MiB)"
    return Row("mixed load, minutes", promise, TEST, minutes, f"{result}: {told}")


def verdict(run: Run, streams: int) -> list[Row]:
    """Return a row for each promise of a long run with so many streams."""
    rest, count = run.rest, round(run.minutes)
    processes = sorted(rest[0].rss)

    def row(promise: str, most: float, growths: Mapping[str, float]) -> Row:
        worst = max(growths, key=lambda name: growths[name])
        told = ", ".join(f"{name} {(factor - 1) * 100:+.0f} %" for name, factor in growths.items())
        result = "kept" if growths[worst] <= most else "**not kept**"
        return Row(
            "mixed load, minutes", f"{promise} (by at most {(most - 1) * 100:.0f} %)", TEST, count, f"{result}: {told}"
        )

    memory = {name: growth(rest, lambda each, name=name: besides_cache(each, name)) for name in processes}
    open_files = {name: growth(rest, lambda each, name=name: each.descriptors.get(name)) for name in processes}
    latency = {
        kind: growth(rest, lambda each, kind=kind: each.p99.get(kind)) for kind in ("publish", "kv put", "kv get")
    }
    log = {name: max(each.log.get(name, 0) for each in run.samples) for name in sorted(rest[0].log)}
    tables = {"tables' newest versions": growth(rest, lambda each: each.live)}
    right = "kept" if not run.differences else "**not kept**: " + "; ".join(run.differences)
    return [
        row("memory does not grow, besides the cache of old messages", MEMORY, memory),
        full(run.samples, count),
        row("descriptors do not grow", DESCRIPTORS, open_files),
        row("p99 does not grow", LATENCY, latency),
        within(log, streams, count),
        row("the tables do not grow beyond the streams' limits", DISK, tables),
        Row("mixed load, rolling restarts", "every acknowledged message is in stream and table, once", TEST,
            len(run.restarts_s), right),
    ]  # fmt: skip


def draw(run: Run) -> None:
    """Write the plots beside the results."""
    per_minute: dict[int, list[Sample]] = {}
    for sample in run.samples:
        per_minute.setdefault(int(sample.at_s // 60), []).append(sample)

    def over_time(value: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
        found = []
        for minute, samples in per_minute.items():
            if values := [each for sample in samples if (each := value(sample)) is not None]:
                found.append((minute + 0.5, statistics.median(values)))
        return found

    processes = sorted({name for sample in run.samples for name in sample.rss})
    logs = sorted(run.samples[-1].log)
    plots = {
        "memory": lines("Resident memory", {name: over_time(lambda each, name=name: _mib(each.rss.get(name)))
                        for name in processes}, "minutes", "MiB"),
        "descriptors": lines("Open descriptors", {name: over_time(lambda each, name=name: each.descriptors.get(name))
                             for name in processes}, "minutes", "descriptors"),
        "latency": lines("p99 of ten seconds, median of each minute",
                         {kind: over_time(lambda each, kind=kind: _ms(each.p99.get(kind))) for kind in KINDS},
                         "minutes", "ms"),
        "disk": lines("Bytes on disk", {
            **{f"log of {name}": over_time(lambda each, name=name: _mib(each.log.get(name))) for name in logs},
            "lake": over_time(lambda each: _mib(each.lake)),
            "newest versions": over_time(lambda each: _mib(each.live)),
        }, "minutes", "MiB"),
    }  # fmt: skip
    for name, svg in plots.items():
        save(RESULTS / f"long-run-{name}.svg", svg)


def _mib(count: float | None) -> float | None:
    return None if count is None else count / MIB


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
