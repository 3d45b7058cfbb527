"""Figures of `make bench`: names, units, goals, and what a run has stored of them.

Belongs here: the list of all figures, the results file, and the verdict on a goal. Measuring is in sections.py, running
in run.py, the page in report.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmarks" / "results.json"

OURS, A, B = "ours", "A", "B"
KINDS = (OURS, A, B)
"""lakestream, nats-server in its default mode, nats-server with `sync_interval: always`."""


class Goal(NamedTuple):
    """Bound of a figure of ours, or of its ratio to the same figure of another server.

    Attributes:
        against: `A` or `B`: a ratio; "": the figure itself.
        at_least: True if `bound` is a minimum.
        sync_ms: the goal holds only where one sync of the disk takes at least so long.
    """

    against: str
    at_least: bool
    bound: float
    sync_ms: float = 0.0

    def __str__(self) -> str:
        return " ".join(filter(None, ("≥" if self.at_least else "≤", f"{self.bound:,g}", self.against)))


class Figure(NamedTuple):
    """Figure of the table.

    Attributes:
        key: name in the results; `<key>_cpu_us` is the server's processor time for a message.
        section: section that measures it.
        unit: unit of the values.
    """

    key: str
    section: str
    title: str
    unit: str
    goals: tuple[Goal, ...] = ()


def _at_least(against: str, bound: float, sync_ms: float = 0.0) -> Goal:
    return Goal(against, True, bound, sync_ms)


def _at_most(against: str, bound: float) -> Goal:
    return Goal(against, False, bound)


_SCALE = (
    ("literal", "multi_last of 1,000 literal keys among 1 million", "s", 1.0),
    ("wildcard", "multi_last by wildcard among 1 million", "s", 1.0),
    ("info", "STREAM.INFO by wildcard, 1,000 of 1 million", "s", 1.0),
    ("filters", "consumer with 300 wildcard filters, and its messages", "s", 1.5),
    ("watch", "watch of 1 million keys", "s", 1.5),
    ("purge", "purge of a single key", "s", 1.0),
    ("deletes", "delete of every tenth of 5 million messages, each", "s", 1.0),
    ("lowered", "`max_msgs_per_subject` 10 to 1 on 1 million subjects", "s", 1.0),
    ("expiry", "1 million messages with a TTL of 2 s, until they have expired", "s", 1.0),
    ("ids", "5 million publishes with message ids, each", "s", 1.0),
    ("sources", "5 sources of 1 million messages each", "s", 1.0),
    ("mirror", "mirror of 5 million messages", "s", 1.0),
    ("streams", "5,000 streams created", "s", 1.5),
    ("churn", "3,000 streams, consumers and 4,000 connections come and go", "s", 0.0),
    ("fan", "1,000 core messages to 5,000 subscriptions on 50 connections", "s", 1.0),
)
"""Rows of the section `scale`, with the bound of their ratio to A (0: no goal). Each has a stall."""

_SYNCED = frozenset({"purge", "streams", "churn"})
"""Rows of single requests that this server answers once they are on disk: B does the same, A does not."""


_CLI = (
    ("cli_async", "js pub async`, 128 B", A),
    ("cli_async_1k", "js pub async`, 1 KiB", A),
    ("cli_async_16k", "js pub async`, 16 KiB", A),
    ("cli_async_4", "js pub async`, 4 clients", A),
    ("cli_async_16", "js pub async`, 16 clients", A),
    ("cli_batch", "js pub atomic`", A),
    ("cli_sync", "js pub sync`", B),
    ("cli_sync_16", "js pub sync`, 16 clients", B),
    ("cli_ordered", "js ordered`", A),
    ("cli_fetch", "js fetch`", A),
    ("cli_consume", "js consume`", A),
    ("cli_get", "js get sync`", A),
    ("cli_kv_put", "kv put`", B),
    ("cli_kv_put_16", "kv put`, 16 clients", B),
    ("cli_kv_get", "kv get`", A),
    ("cli_service", "service request`", A),
    ("cli_service_16", "service request`, 16 clients", A),
    ("cli_pub", "pub`, no subscriber", A),
    ("cli_pubsub", "pub`, one subscriber", A),
)
"""Runs of the section `cli`: key, words, and the server that the ratio of at least 1 is to."""


def _scale(key: str, title: str, unit: str, bound: float) -> tuple[Figure, Figure]:
    """Return a row's time, and the longest wait of another client meanwhile."""
    goals = (_at_most(A, bound),) if bound else ()
    if key in _SYNCED:
        goals += (_at_most(B, 1.0),)
    return (
        Figure(f"scale_{key}", "scale", title, unit, goals),
        Figure(f"scale_{key}_stall", "scale", "the same: longest wait of others", "ms", (_at_most("", 50),)),
    )


PINNED = "pinned_"
"""Begins the key of a figure that is measured with the server on one core and the client on another one."""

_SINGLE = (
    Figure("js_async_128", "publish", "publishes in flight, 128 B", "msgs/s", (_at_least(A, 1.5), _at_least(B, 60))),
    Figure("js_async_1024", "publish", "publishes in flight, 1 KiB", "msgs/s", (_at_least(A, 1.2), _at_least(B, 60))),
    Figure("js_sync64", "sync", "64 clients, a publish each", "msgs/s", (_at_least(A, 1.0), _at_least(B, 15, 0.3))),
    Figure("js_sync64_p99", "sync", "the same: p99 until the ack", "µs", (_at_most(A, 1.0),)),
    Figure("js_sync_p50", "sync", "one client, a publish at a time: p50", "µs", (_at_most(B, 1.1),)),
    Figure("kv_put", "bucket", "key-value puts in flight", "msgs/s", (_at_least(A, 1.2),)),
    Figure("direct_get", "bucket", "direct gets in flight", "msgs/s", (_at_least(A, 1.0),)),
    Figure("direct_get_p50", "bucket", "one direct get at a time: p50", "µs", (_at_most(A, 1.1),)),
    Figure("multi_last", "bucket", "multi_last, 1,000 of 20,000 keys", "msgs/s", (_at_least(A, 1.0),)),
    Figure("replay", "consume", "replay to a push consumer", "msgs/s", (_at_least(A, 1.0),)),
    Figure("pull_ack", "consume", "pull 500, ack each", "msgs/s", (_at_least(A, 1.0),)),
)


def _pinned(figure: Figure) -> Figure:
    """Return the figure of the section `pinned` that repeats one of another section."""
    goals = tuple(goal for goal in figure.goals if goal.against == A)
    return Figure(PINNED + figure.key, "pinned", f"one core each: {figure.title}", figure.unit, goals)


FIGURES = (
    *_SINGLE,
    Figure("core_pub", "core", "core publish, no subscriber", "msgs/s", (_at_least(A, 0.5),)),
    Figure("core_pubsub", "core", "core publish, one subscriber", "msgs/s", (_at_least(A, 0.6),)),
    Figure("r3_async", "cluster", "R3: publishes in flight, 128 B", "msgs/s", (_at_least(B, 2),)),
    Figure("r3_sync_p50", "cluster", "R3: one client, a publish at a time: p50", "µs", (_at_most(B, 1.0),)),
    Figure("r3_sync64", "cluster", "R3: 64 clients, a publish each", "msgs/s", (_at_least(B, 2),)),
    Figure("rest_mib", "rest", "server at rest: resident memory", "MiB", (_at_most("", 35),)),
    Figure("ready_s", "rest", "start to ready", "s", (_at_most("", 0.25),)),
    Figure("idle_empty", "idle", "idle server", "% of a core", (_at_most("", 2),)),
    Figure("idle_streams", "idle", "idle server with 1,000 streams", "% of a core", (_at_most("", 2),)),
    Figure("idle_connections", "idle", "idle server with 1,000 connections", "% of a core", (_at_most("", 2),)),
    Figure("idle_r3", "idle", "busiest node of an idle cluster with 100 R3 streams", "% of a core"),
    Figure("workers_rate", "workers", "publishes in flight, 4 clients, `workers: 2`", "msgs/s"),
    Figure("one_worker_rate", "workers", "the same, one process", "msgs/s"),
    *map(_pinned, _SINGLE),
    Figure("first_row_s", "fresh", "`lakestream up` to the first row", "s", (_at_most("", 25),)),
    Figure("fresh_p50_s", "fresh", "publish to visible in the table: p50", "s", (_at_most("", 5),)),
    Figure("fresh_p99_s", "fresh", "publish to visible in the table: p99", "s", (_at_most("", 10),)),
    Figure("idle_share", "fresh", "server and compactor without traffic", "% of a core", (_at_most("", 2),)),
    Figure("sql_count_ms", "sql", "SQL: count up to the last ack", "ms", (_at_most("", 100),)),
    Figure("sql_group_ms", "sql", "SQL: count and sum for each subject", "ms", (_at_most("", 2_000),)),
    Figure("sql_one_ms", "sql", "SQL: `WHERE subject = …`", "ms", (_at_most("", 30),)),
    Figure("sql_last_ms", "sql", "SQL: last message of a subject", "ms", (_at_most("", 30),)),
    Figure("sql_last_1000_ms", "sql", "SQL: last messages of 1,000 subjects", "ms", (_at_most("", 50),)),
    Figure("sql_last_in_ms", "sql", "the same, of subjects chosen by `IN`", "ms", (_at_most("", 50),)),
    Figure("sql_last_all_ms", "sql", "SQL: last messages of all subjects", "ms", (_at_most("", 1_000),)),
    Figure("sql_nats_ms", "sql", "SQL over NATS: last message of a subject, p50", "ms", (_at_most("", 30),)),
    Figure("sql_flight_ms", "sql", "Flight SQL: the same", "ms", (_at_most("", 30),)),
    Figure("sql_cold_ms", "sql", "`lakestream sql -q`, cold: the same", "ms", (_at_most("", 1_000),)),
    Figure("sql_flush_ms", "sql", "publish, seal and stage before a query", "ms"),
    Figure("compaction", "compaction", "compaction, server idle", "msgs/s", (_at_least("", 100_000),)),
    Figure("compaction_mib", "compaction", "compaction: peak memory", "MiB", (_at_most("", 1536),)),
    Figure("typed_untyped", "typed", "orders of 275 B, `local[2]`: without a schema", "msgs/s"),
    Figure("typed_keep", "typed", "the same to typed columns, from JSON", "msgs/s", (_at_least("", 200_000),)),
    Figure("typed_drop", "typed", "the same with `drop-when-typed`", "msgs/s"),
    Figure("typed_latest", "typed", "the same with an upsert table by a field of a million values", "msgs/s"),
    Figure("typed_nested", "typed", "orders with three lines each, from JSON", "msgs/s", (_at_least("", 60_000),)),
    Figure("typed_avro", "typed", "to typed columns, from Avro", "msgs/s", (_at_least("", 200_000),)),
    Figure("typed_protobuf", "typed", "to typed columns, from Protobuf", "msgs/s", (_at_least("", 200_000),)),
    Figure("typed_spark", "typed", "`spark.read.json` and a write to Delta, `local[2]`", "msgs/s"),
    Figure("typed_pyarrow", "typed", "pyarrow: JSON to Parquet, one core", "msgs/s"),
    Figure("compaction_beside", "compaction", "compaction beside a publisher", "msgs/s", (_at_least("", 60_000),)),
    Figure("compaction_beside_mib", "compaction", "the same: peak memory", "MiB", (_at_most("", 1536),)),
    *(Figure(key, "cli", f"`nats bench {words}", "msgs/s", (_at_least(against, 1.0),)) for key, words, against in _CLI),
    *(figure for each in _SCALE for figure in _scale(*each)),
    Figure("scale_ids_bytes", "scale", "a message id and its message: memory", "B", (_at_most(A, 1.0),)),
    Figure("scale_streams_last", "scale", "the last tenth of 5,000 streams, each", "ms", (_at_most(A, 1.5),)),
    Figure("scale_restart", "scale", "restart with 5,000 streams", "s", (_at_most(A, 1.0),)),
    Figure("scale_idle", "scale", "idle server with 5,000 streams", "% of a core", (_at_most("", 2),)),
)


class Section(msgspec.Struct):
    """Results of one section of a run.

    Attributes:
        figures: values of every round, by figure and kind.
        curves: points (x, y) by quantity and name of the curve.
        load: load averages of the last minute, before and after.
        skipped: reason why it was not measured.
        errors: what failed; the rows of a failing round are missing.
        commit: of a section that was added to the results of an earlier run.
    """

    figures: dict[str, dict[str, list[float]]] = {}
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    load: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    skipped: str = ""
    errors: list[str] = []
    commit: str = ""


class Machine(msgspec.Struct):
    """Machine of a run."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    sync_ms: float
    """Median of writing and syncing 4 KiB."""


class Results(msgspec.Struct):
    """Results file of one run."""

    date: str
    commit: str
    changed: bool
    """The working tree differed from the commit."""
    quick: bool
    rounds: int
    machine: Machine
    versions: dict[str, str]
    sections: dict[str, Section] = {}
    note: str = ""

    def save(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(path: Path = RESULTS) -> Results:
    """Read a results file."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


class Row(NamedTuple):
    """Row of the table: medians by kind, ratios of ours to A and B with their range over the rounds, verdicts."""

    figure: Figure
    medians: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
    cpu_us: dict[str, float]
    verdicts: tuple[str, ...]
    missing: str

    @property
    def verdict(self) -> str:
        """Return the words for the last column."""
        if self.missing:
            return self.missing
        if len(set(self.verdicts)) == 1:
            return self.verdicts[0]
        pairs = zip(self.figure.goals, self.verdicts, strict=True)
        return ", ".join(f"{goal.against}: {verdict}" for goal, verdict in pairs)


def row(figure: Figure, results: Results) -> Row:
    """Return the row of a figure."""
    section = results.sections.get(figure.section, Section(skipped="not part of this run"))
    values = section.figures.get(figure.key, {})
    medians = {kind: statistics.median(found) for kind, found in values.items() if found}
    cpu = section.figures.get(f"{figure.key}_cpu_us", {})
    ratios = {kind: _ratio(values[OURS], values[kind]) for kind in (A, B) if OURS in medians and kind in medians}
    missing = ""
    if OURS not in medians:
        missing = "not measured: " + (section.skipped or "; ".join(section.errors) or "no value")
    return Row(
        figure,
        medians,
        ratios,
        {kind: statistics.median(found) for kind, found in cpu.items() if found},
        () if missing else tuple(_verdict(goal, medians, ratios, results.machine) for goal in figure.goals),
        missing,
    )


def _ratio(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    rounds = [mine / its for mine, its in zip(ours, other, strict=False)]
    return statistics.median(ours) / statistics.median(other), min(rounds), max(rounds)


def _verdict(
    goal: Goal, medians: dict[str, float], ratios: dict[str, tuple[float, float, float]], machine: Machine
) -> str:
    if goal.sync_ms > machine.sync_ms:
        return f"no goal: a sync takes {machine.sync_ms:.2f} ms"
    if goal.against and goal.against not in ratios:
        return f"{goal.against} not measured"
    value = ratios[goal.against][0] if goal.against else medians[OURS]
    return "met" if (value >= goal.bound if goal.at_least else value <= goal.bound) else "not met"


def number(value: float) -> str:
    """Return a figure with three significant digits, or as a whole number."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
