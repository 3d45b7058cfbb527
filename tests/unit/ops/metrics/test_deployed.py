"""The Grafana dashboard and the alert rules name metrics that exist."""

from __future__ import annotations

import json
import re

import pytest

from lakestream.ops.metrics import names as server
from lakestream_spark.write import metrics as compactor
from tests.metrics_named import DASHBOARD, ROOT, RULES, expressions, named, of_dashboard
from tests.metrics_reference import PAGE, page

pytestmark = pytest.mark.unit


def test_every_metric_of_dashboard_and_rules_exists() -> None:
    assert len(expressions()) > 60
    known = {each.name for each in (*server.FAMILIES, *compactor.FAMILIES)} | {"process_cpu_seconds_total"}
    assert named() - known == set()


def test_names_are_used_once_and_every_metric_has_a_unit_or_is_of_the_exporter() -> None:
    both = [*server.FAMILIES, *compactor.FAMILIES]
    assert len({each.name for each in both}) == len(both)
    for each in both:
        assert (each.kind == "counter") == each.name.endswith("_total"), each.name
        assert each.help.endswith("."), each.name


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_panels_without_data_on_one_server_are_hidden_until_their_row_is_opened() -> None:
    rows = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows if row["collapsed"]] == ["Cluster"]
    closed = {each for row in rows if row["collapsed"] for each in of_dashboard(row)}
    open_at_first = [each for each in of_dashboard(json.loads(DASHBOARD.read_text())) if each not in closed]
    of_clusters = [each.name for each in (*server.RAFT, server.RAFT_LAG)]
    shown = [each for each in open_at_first if any(name in each for name in of_clusters)]
    assert [each for each in shown if not each.endswith(" or vector(0)")] == []


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.metrics_reference"


def test_the_documentation_says_what_to_do_about_every_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(alerts) > 10
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert [each for each in alerts if f"| `{each}` |" not in text] == []
