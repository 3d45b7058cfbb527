"""The page of a scrape: both text formats, as prometheus-client's own parsers read them."""

from __future__ import annotations

import gzip

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lakestream.metrics.family import COUNTER, GAUGE, HISTOGRAM, Family, Sheet
from lakestream.metrics.histogram import Histogram
from lakestream.metrics.page import GZIP_BYTES, render

pytestmark = pytest.mark.unit

READS = Family("demo_reads_total", COUNTER, "Reads.", ("table",))
SIZE = Family("demo_size_bytes", GAUGE, "Size.", ("table",))
SECONDS = Family("demo_duration_seconds", HISTOGRAM, "Durations.")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
EXPECTED = {
    ("demo_reads_total", (("table", 'a"b'),)): 3.0,
    ("demo_reads_total", (("table", "c"),)): 5.0,
    ("demo_size_bytes", (("table", 'a"b'),)): 4.0,
    ("demo_size_bytes", (("table", "c"),)): 6.0,
    ("demo_duration_seconds_bucket", (("le", "0.5"),)): 1.0,
    ("demo_duration_seconds_bucket", (("le", "+Inf"),)): 2.0,
    ("demo_duration_seconds_count", ()): 2.0,
    ("demo_duration_seconds_sum", ()): 7.25,
}


def _sheet() -> Sheet:
    sheet, histogram = Sheet(), Histogram((0.5,))
    histogram.observe(0.25)
    histogram.observe(7.0)
    sheet.add((READS, SIZE), {"table": 'a"b'}, (3, 4))
    sheet.put(SECONDS, histogram.read())
    sheet.add((READS, SIZE), {"table": "c"}, (5, 6))
    return sheet


def test_the_text_format_has_every_value_once() -> None:
    page = render(_sheet(), process=False)
    assert page.content_type.startswith("text/plain; version=0.0.4")
    families = list(parse_text(page.body.decode()))
    found = [(s.name, tuple(sorted(s.labels.items())), s.value) for family in families for s in family.samples]
    assert len(found) == len(EXPECTED)
    assert {(name, labels): value for name, labels, value in found} == EXPECTED
    assert {family.name: family.type for family in families} == {
        "demo_reads": "counter",
        "demo_size_bytes": "gauge",
        "demo_duration_seconds": "histogram",
    }


def test_a_client_that_prefers_openmetrics_gets_it() -> None:
    page = render(_sheet(), accept=f"{OPENMETRICS};q=0.8,text/plain;version=0.0.4;q=0.5", process=False)
    assert page.content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(page.body.decode())
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}
    assert found == EXPECTED


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("deflate, gzip;q=1.0", True), ("br", False), ("gzip;q=0", False), ("", False)],
)
def test_large_pages_are_compressed_for_clients_that_accept_it(accepted: str, compressed: bool) -> None:
    sheet = Sheet()
    for number in range(GZIP_BYTES // 10):
        sheet.put(SIZE, number, {"table": f"t{number}"})
    page, plain = render(sheet, "", accepted, process=False), render(sheet, process=False)
    assert page.headers == ((("Content-Encoding", "gzip"),) if compressed else ())
    assert (gzip.decompress(page.body) if compressed else page.body) == plain.body


def test_small_pages_are_not_compressed() -> None:
    assert render(_sheet(), "", "gzip", process=False).headers == ()


def test_the_process_is_on_the_page() -> None:
    assert b"\nprocess_resident_memory_bytes " in render(Sheet()).body
