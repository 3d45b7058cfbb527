"""Metrics that the dashboard, the alert rules and the documentation name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "deploy/grafana/lakestream.json"
RULES = ROOT / "deploy/prometheus/lakestream.rules.yml"
RULES_TEST = ROOT / "deploy/prometheus/lakestream.rules.test.yml"
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"

_METRIC = re.compile(r"\b(?:lakestream|gnatsd|jetstream|jvm|process)_[a-z0-9_]+\b")
_HISTOGRAM_PART = re.compile(r"_(bucket|sum|count)$")
_EXPRESSION = re.compile(r"^ *expr: (.*(?:\n {10,}\S.*)*)", re.MULTILINE)


def expressions() -> list[str]:
    """Return the PromQL expressions of the dashboard and the rules."""
    return [*of_dashboard(json.loads(DASHBOARD.read_text())), *_EXPRESSION.findall(RULES.read_text())]


def named() -> set[str]:
    """Return the metrics in those expressions, histograms without the suffix of their parts."""
    found = {name for each in expressions() for name in _METRIC.findall(each)}
    return {_HISTOGRAM_PART.sub("", name) if _is_histogram(name) else name for name in found}


def _is_histogram(name: str) -> bool:
    return bool(_HISTOGRAM_PART.search(name)) and not name.startswith(("jetstream_", "gnatsd_"))


def of_dashboard(value: Any) -> list[str]:
    """Return the PromQL expressions of a dashboard, or of a part of one."""
    if isinstance(value, list):
        return [each for one in value for each in of_dashboard(one)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in ("expr", "definition") if isinstance(value.get(key), str)]
    return own + [each for one in value.values() for each in of_dashboard(one)]
