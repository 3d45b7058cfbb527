"""Descriptions of metrics, and values of them at one moment.

Belongs here: the name, kind, labels and documentation of a metric, from which the page and docs/reference/metrics.md
are made, and the sheet that a scrape fills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lakestream.metrics.histogram import Buckets

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"

Labels = Mapping[str, str]
Value = float | Buckets


class Family(msgspec.Struct, frozen=True, eq=False):
    """A metric; each is made once, and equal only to itself.

    name: as on the page, the `_total` of a counter included.
    kind: GAUGE, COUNTER or HISTOGRAM.
    help: its documentation, with the unit.
    labels: names of the labels that its samples have.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def families(namespace: Mapping[str, object]) -> tuple[Family, ...]:
    """Return the families that a module has defined so far, alone or as a tuple, in their order."""
    groups = [each if isinstance(each, tuple) else (each,) for each in namespace.values()]
    return tuple(dict.fromkeys(one for group in groups for one in group if isinstance(one, Family)))


class Row(msgspec.Struct, frozen=True, gc=False):
    """Values of several metrics with the same labels.

    The garbage collector does not follow rows: thousands of them that live for a second would make it look at all
    objects of the server, which holds up the event loop for much longer than the scrape itself.
    """

    labels: Labels
    values: Sequence[Value]


class MetricRows(msgspec.Struct):
    """Values of several metrics that are always measured together, such as all those of a consumer."""

    families: tuple[Family, ...]
    rows: list[Row] = []


class Sheet:
    """Values of all metrics at one moment, in the order in which they were first added."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Family, ...], MetricRows] = {}

    def add(self, families: tuple[Family, ...], labels: Labels, values: Sequence[Value]) -> None:
        """Add one value of each family, all with these labels."""
        rows = self._rows.get(families)
        if rows is None:
            rows = self._rows[families] = MetricRows(families)
        rows.rows.append(Row(labels, values))

    def put(self, family: Family, value: Value, labels: Labels | None = None) -> None:
        """Add one value of one family."""
        self.add((family,), labels or {}, (value,))

    def rows(self) -> list[MetricRows]:
        """Return everything added."""
        return list(self._rows.values())
