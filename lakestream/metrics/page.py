"""The page of a scrape, in the text formats of Prometheus and OpenMetrics.

Belongs here: what prometheus-client is used for. It is imported with the first scrape: it takes 50 ms and 5 MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from lakestream.http.exchange import HttpAnswer
from lakestream.metrics.family import COUNTER, HISTOGRAM, Family, Row, Sheet
from lakestream.metrics.histogram import Buckets

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

GZIP_LEVEL = 1
"""Compression of large pages: label names repeat so often that a higher level gains little."""
GZIP_BYTES = 4096
"""Smaller pages are not compressed."""

_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)


class _Collected:
    """The registry of one scrape, as prometheus-client's encoders ask it."""

    def __init__(self, sheet: Sheet, process: bool) -> None:
        self._sheet, self._process = sheet, process

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import ProcessCollector
        from prometheus_client.metrics_core import Metric

        for rows in self._sheet.rows():
            for column, family in enumerate(rows.families):
                metric = Metric(_base(family), family.help, family.kind)
                metric.samples = cast("list[Sample]", _Samples(family, rows.rows, column))
                yield metric
        if self._process:
            yield from ProcessCollector(registry=None).collect()


def render(sheet: Sheet, accept: str = "", accept_encoding: str = "", process: bool = True) -> HttpAnswer:
    """Return the page. Takes a second for 50,000 samples: call it in a thread.

    Args:
        accept: the request's header of this name: OpenMetrics where the client prefers it, else Prometheus' own format.
        accept_encoding: the request's header of this name.
        process: add the metrics of this process (`process_resident_memory_bytes` …), where the system has /proc.
    """
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    body = encode(_Collected(sheet, process))
    if len(body) >= GZIP_BYTES and _GZIP.search(accept_encoding):
        import gzip

        return HttpAnswer(200, content_type, gzip.compress(body, GZIP_LEVEL), (("Content-Encoding", "gzip"),))
    return HttpAnswer(200, content_type, body)


def _base(family: Family) -> str:
    """Return the name without the suffix that the formats add to counters."""
    return family.name.removesuffix("_total") if family.kind == COUNTER else family.name


class _Samples:
    """The samples of one metric, each made when the encoder asks for it and gone after its line (see `Row`)."""

    def __init__(self, family: Family, rows: Sequence[Row], column: int) -> None:
        self._family, self._rows, self._column = family, rows, column

    def __iter__(self) -> Iterator[Sample]:
        from prometheus_client.samples import Sample

        family, column = self._family, self._column
        for row in self._rows:
            value, labels = row.values[column], cast("dict[str, str]", row.labels)
            if not isinstance(value, Buckets):
                yield Sample(family.name, labels, value)
                continue
            assert family.kind == HISTOGRAM, family.name
            for bound, count in value.counts:
                yield Sample(f"{family.name}_bucket", {**labels, "le": repr(float(bound))}, count)
            yield Sample(f"{family.name}_bucket", {**labels, "le": "+Inf"}, value.count)
            yield Sample(f"{family.name}_count", labels, value.count)
            yield Sample(f"{family.name}_sum", labels, value.sum)
