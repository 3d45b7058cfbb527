#!/usr/bin/env python3
"""Compare the Python packages of lakestream and of its tests with the published security advisories (needs network).

    python packages/audit.py [--save] [pip-audit's options, such as --vulnerability-service osv]

Belongs here: the verdict about a report of pip-audit. A package that could not be looked up is a failure, not a pass:
pip-audit itself reports "No known vulnerabilities found" when its source knows none of the packages. `--save` writes
day and packages of a successful audit to packages/audit.json, which the tests compare with docs/dependencies.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RECORD = FOLDER / "audit.json"
ACCEPTED: dict[str, str] = {}
"""Advisories that do not apply, by id, each with the reason."""


def problems(report: dict[str, Any], wanted: set[str]) -> list[str]:
    """Return a line for every advisory that applies, and for every wanted package that was not looked up."""
    found, seen = [], set()
    for each in report["dependencies"]:
        name = each["name"]
        if "skip_reason" in each:
            found.append(f"{name}: not audited: {each['skip_reason']}")
        seen.add(name)
        for advisory in each.get("vulns", []):
            if not {advisory["id"], *advisory.get("aliases", [])} & set(ACCEPTED):
                fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
                found.append(f"{name} {each['version']}: {advisory['id']}, fixed in {fixed}")
    return found + [f"{name}: not audited: the report lacks it" for name in sorted(wanted - seen)]


def main() -> None:
    """Audit, and exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description="Compare the Python packages with security advisories.")
    parser.add_argument("--save", action="store_true", help="record a successful audit")
    options, more = parser.parse_known_args()
    listed = subprocess.run(
        [sys.executable, str(FOLDER / "sbom.py"), "--dev", "--requirements"], check=True, capture_output=True, text=True
    ).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(listed)
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command += ["--format", "json", "--requirement", file.name, *more]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if not done.stdout.startswith("{"):
        sys.exit("pip-audit has no report: are the advisories within reach?")
    wanted = dict(line.split("==") for line in listed.split())
    found = problems(json.loads(done.stdout), set(wanted))
    print("\n".join(found) or f"{len(wanted)} packages, no advisory applies")
    if not found and options.save:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        RECORD.write_text(json.dumps({"day": day, "packages": wanted}, indent=1) + "\n")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
