"""Tests of what lakestream is made of: licences, bill of materials, advisories, findings of bandit, and secrets.

Advisories are not part of a test, since they need network: `make audit` looks them up before a release. Here is checked
that its verdict is right, and that the documentation says when it was last made.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections import Counter
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from packages import audit, sbom
from tests.packages import secrets

ROOT = Path(__file__).resolve().parents[2]
BANDIT = Path(__file__).with_name("bandit.toml")


@pytest.fixture(scope="module")
def every() -> list[sbom.Component]:
    return sbom.components(dev=True)


# ---------------------------------------------------------------------- licences


def test_every_dependency_has_an_allowed_licence_that_is_on_the_page(every: list[sbom.Component]) -> None:
    listed = {
        tuple(cell.strip() for cell in line.strip("| \n").split("|"))
        for line in sbom.PAGE.read_text().splitlines()
        if line.startswith("| ")
    }
    missing = {(each.name, each.licence) for each in every} - listed
    assert not missing, f"{missing}: run python packages/sbom.py --licences, and review the difference"


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MIT AND (Apache-2.0 OR GPL-3.0-only)"}, "MIT AND (Apache-2.0 OR GPL-3.0-only)"),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause"),
        ({"Classifier": "License :: OSI Approved :: BSD License", "License": "BSD-2-Clause"}, "BSD-2-Clause"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License-Expression": "GPL-3.0-only"}, ""),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, ""),
        ({"Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"}, ""),
        ({"License": "Proprietary"}, ""),
        ({}, ""),
    ],
)
def test_a_licence_is_known_and_allowed_or_an_error(fields: dict[str, str], licence: str) -> None:
    metadata = Message()
    for key, value in fields.items():
        metadata[key] = value
    if licence:
        assert sbom.licence_of("made-up", metadata) == licence  # type: ignore[arg-type]
    else:
        with pytest.raises(sbom.LicenceError, match="made-up"):
            sbom.licence_of("made-up", metadata)  # type: ignore[arg-type]


def test_a_requirement_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        sbom.needed(["no-such-package-anywhere"], {})


# ---------------------------------------------------------------------- bill of materials


def test_the_bill_of_materials_is_valid_and_has_the_jars(every: list[sbom.Component]) -> None:
    text = sbom.bill(every, sbom.version())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["name"]: each for each in json.loads(text)["components"]}
    for name in ("delta-spark_4.2_2.13", "hadoop-aws", "hadoop-gcp", "hadoop-azure", "sts", "lakestream-spark"):
        assert listed[name]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
        assert len(listed[name]["hashes"][0]["content"]) == 64
    hashes = {each["hashes"][0]["content"] for each in listed.values() if "hashes" in each}
    assert {pin.sha256 for pin in sbom.pinned().values()} <= hashes
    assert {"pyspark", "msgspec", "htm", "uplot"} <= set(listed)
    assert listed["pytest"]["scope"] == "excluded"


# ---------------------------------------------------------------------- advisories

UNREACHED = {"name": "a", "skip_reason": "Dependency not found on PyPI and could not be audited: a (1)"}
SOUND = {"name": "a", "version": "1", "vulns": []}
ADVISORY = {"id": "PYSEC-1", "fix_versions": ["2"], "aliases": ["CVE-1"], "description": ""}


@pytest.mark.parametrize(
    ("dependencies", "found"),
    [
        ([SOUND], []),
        ([SOUND | {"vulns": [ADVISORY]}], ["a 1: PYSEC-1, fixed in 2"]),
        ([SOUND | {"vulns": [ADVISORY | {"fix_versions": []}]}], ["a 1: PYSEC-1, fixed in no version yet"]),
        ([UNREACHED], [f"a: not audited: {UNREACHED['skip_reason']}"]),
        ([], ["a: not audited: the report lacks it"]),
    ],
)
def test_a_package_that_was_not_looked_up_does_not_pass(dependencies: list[dict[str, Any]], found: list[str]) -> None:
    assert audit.problems({"dependencies": dependencies, "fixes": []}, {"a"}) == found


def test_an_accepted_advisory_passes_by_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(audit.ACCEPTED, "CVE-1", "the function is not used")
    assert audit.problems({"dependencies": [SOUND | {"vulns": [ADVISORY]}], "fixes": []}, {"a"}) == []


def test_the_documentation_says_when_advisories_were_last_looked_up() -> None:
    record = json.loads(audit.RECORD.read_text())
    said = f"last successful audit: {record['day']}" if record["day"] else "no successful audit is recorded yet"
    assert said in (ROOT / "docs" / "dependencies.md").read_text()


# ---------------------------------------------------------------------- code


@pytest.mark.heavy
def test_findings_of_bandit_are_those_that_were_accepted() -> None:
    listed = tomllib.loads(BANDIT.read_text())
    skipped = ",".join(listed["everywhere"])
    command = [sys.executable, "-m", "bandit", "-q", "-f", "json", "-s", skipped, "-r"]
    done = subprocess.run(
        [*command, "lakestream", "jobs", "docker", "packages"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    assert not report["errors"]
    found = Counter((each["test_id"], each["filename"].removeprefix("./")) for each in report["results"])
    accepted = {(each["id"], file): count for each in listed["accepted"] for file, count in each["files"].items()}
    changed = {
        f"{test} in {file}: {found[test, file]} instead of {accepted.get((test, file), 0)}"
        for test, file in {*found, *accepted}
        if found[test, file] != accepted.get((test, file), 0)
    }
    assert not changed, f"fix the finding, or add it to {BANDIT.name} with its reason: {sorted(changed)}"
    assert all(each["reason"] for each in listed["accepted"])


# ---------------------------------------------------------------------- secrets


def test_no_file_has_a_secret_that_is_not_listed() -> None:
    assert list(secrets.unexpected(secrets.forms(secrets.tracked()))) == []


@pytest.mark.heavy
def test_detect_secrets_finds_what_is_listed_and_no_more() -> None:
    files = secrets.tracked()
    found = secrets.forms(files) | secrets.scan(files)
    assert list(secrets.unexpected(found)) == []
    assert secrets.accepted()[0] - found == set()


def test_a_secret_is_found(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE " + "KEY-----\n" + "A" * 64 + "\n-----END PRIVATE KEY-----\n"
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "seed").write_text("S" + "U" + "A2" * 28 + "\n")
    (tmp_path / "code.py").write_text("aws = 'AK" + "IA" + "QWERTYUIOPASDFGH'\n")
    files = ["key.pem", "seed", "code.py"]
    assert {each.file for each in secrets.forms(files, tmp_path)} == set(files)
    assert {each.file for each in secrets.scan(files, tmp_path)} >= {"key.pem", "code.py"}
    assert len(list(secrets.unexpected(secrets.forms(files, tmp_path)))) == 3
