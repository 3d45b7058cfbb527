"""The dashboard fits Grafana's own types of dashboards, panels and their options, as its npm package has them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients import npm
from tests.packages.environments import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

SOURCES = Path(__file__).parent / "grafana"
DASHBOARD = ROOT / "deploy" / "grafana" / "lakestream.json"
COMPILE_S = 120


def complaints(dashboard: Any, folder: Path) -> str:
    """Return what the compiler says of a dashboard as a value of Grafana's types."""
    npm.install(SOURCES)
    shutil.copy(SOURCES / "checked.ts", folder)
    (folder / "node_modules").symlink_to(SOURCES / "node_modules")
    text = json.dumps(dashboard, indent=1)
    (folder / "dashboard.ts").write_text(
        f'import type {{ Checked }} from "./checked";\nexport const dashboard: Checked = {text};\n'
    )
    compiler = SOURCES / "node_modules" / "typescript" / "bin" / "tsc"
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--moduleResolution", "bundler"]
    command = [str(npm.NODE), str(compiler), *options, "--module", "esnext", "dashboard.ts"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_S, check=False
    ).stdout.strip()


def test_the_dashboard_has_the_fields_that_grafana_knows(tmp_path: Path) -> None:
    assert complaints(json.loads(DASHBOARD.read_text()), tmp_path) == ""


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ((), "colour"),
        (("gridPos",), "width"),
        (("fieldConfig", "defaults", "custom"), "lineWidht"),
        (("options", "legend"), "displayMod"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_grafana_does_not_know_is_found(path: tuple[str, ...], field: str, tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    place = next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")
    for name in path:
        place = place[name]
    place[field] = 1
    assert field in complaints(dashboard, tmp_path)
