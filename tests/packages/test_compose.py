"""Tests of the compose files and of the systemd units with the tools that read them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packages.environments import ROOT, environ, make_venv, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

EXPOSED = 2.0
"""Highest accepted exposure level of `systemd-analyze security`, whose scale is 0 (best) to 10."""


def test_the_compose_files_fit_their_schema(tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    programs = make_venv(tmp_path / "venv", env, "check-jsonschema==0.39.0")
    checker = [programs / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    files = sorted((ROOT / "docker").glob("compose*.yaml"))
    assert len(files) == 2
    run([*checker, *files], env)
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(files[-1].read_text().replace("ports:", "port:"))
    assert subprocess.run([*map(str, checker), str(wrong)], env=env, capture_output=True, check=False).returncode == 1


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a root with the units and with a program at the place that they name."""
    root = tmp_path / "root"
    units = root / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for path in (ROOT / "deploy" / "systemd").glob("lakestream*"):
        shutil.copy(path, units)
    for program in ("opt/lakestream/bin/lakestream", "bin/kill"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).write_text("#!/bin/sh\n")
        (root / program).chmod(0o755)
    return root


def test_systemd_accepts_the_units(installed: Path) -> None:
    units = sorted((installed / "etc" / "systemd" / "system").iterdir())
    assert len(units) == 6
    # Targets of the system are not in this root; everything else that systemd says is about these units.
    command = [
        "systemd-analyze",
        "verify",
        f"--root={installed}",
        "--man=no",
        "--recursive-errors=no",
        *map(str, units),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = [
        line for line in (done.stdout + done.stderr).splitlines() if "lakestream" in line and "not found" not in line
    ]
    assert said == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["lakestream", "lakestream-compactor", "lakestream-compact", "lakestream-maintain"])
def test_the_services_are_little_exposed(installed: Path, name: str) -> None:
    path = installed / "etc" / "systemd" / "system" / f"{name}.service"
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)]
    shown = run(command, dict(os.environ))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
    assert level, shown
    assert float(level[1]) <= EXPOSED, shown


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "systemd").glob("*.timer")), ids=lambda path: str(path.name))
def test_systemd_can_read_the_calendar_of_a_timer(path: Path) -> None:
    [calendar] = re.findall(r"^OnCalendar=(.+)$", path.read_text(), re.MULTILINE)
    assert "Next elapse" in run(["systemd-analyze", "calendar", calendar], dict(os.environ))
