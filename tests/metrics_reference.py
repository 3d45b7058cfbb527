"""The page docs/reference/metrics.md, made from the descriptions of the metrics.

    python -m tests.metrics_reference            writes it

Belongs here: the page's form. The documentation of a metric is where the code defines it, in
lakestream/ops/metrics/names.py and packages/spark/lakestream_spark/write/metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lakestream.metrics.family import HISTOGRAM, Family
from lakestream.ops.metrics import names as server
from lakestream.ops.metrics.server import METRICS_CONSUMERS, METRICS_STREAMS
from lakestream_spark.write import metrics as compactor

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
PROCESS = (
    "`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`, "
    "`process_max_fds` and `process_start_time_seconds` are those of prometheus-client, on Linux."
)


def page() -> str:
    """Return the page."""
    return f"""<!-- made from the code by `python -m tests.metrics_reference`: do not edit -->

# Metrics

```sh
lakestream up
curl localhost:8222/metrics
```

A compactor of its own has a port for them with `lakestream compact --metrics 9464`.

[Metrics and alerts](../metrics.md) shows how to collect them. Names with `gnatsd_` and `jetstream_` are those of
prometheus-nats-exporter, which shows counters as gauges. A histogram has `_bucket`, `_sum` and `_count`.

{PROCESS}

## Server

{_table(server.FAMILIES)}
Up to {METRICS_STREAMS:,} streams and {METRICS_CONSUMERS:,} consumers of a server have metrics of their own; further
ones count in totals and in `{server.LEFT_OUT.name}`. `{server.RAFT_LAG.name}` and the other metrics of groups are
there in a cluster, for groups with several members.

## Compactor

{_table(compactor.FAMILIES)}
Commits and failures have labels for up to {compactor.COMPACTOR_STREAMS:,} streams; those of further ones are counted
under empty labels.
"""


def _table(families: Iterable[Family]) -> str:
    rows = [("metric", "kind", "labels", "meaning"), ("---", "---", "---", "---")]
    rows += [(f"`{each.name}`", each.kind, _labels(each), each.help) for each in families]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _labels(family: Family) -> str:
    names: Sequence[str] = (*family.labels, "le") if family.kind == HISTOGRAM else family.labels
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
