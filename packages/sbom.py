#!/usr/bin/env python3
"""Bill of materials and licences of lakestream: Python packages, JARs, and the console's vendored files.

    python packages/sbom.py                 the bill of materials of lakestream-server[all] (CycloneDX 1.6, JSON)
    python packages/sbom.py --dev           with the tools of developers
    python packages/sbom.py --licences      docs/reference/licences.md
    python packages/sbom.py --requirements  the packages with their versions, for pip-audit

Belongs here: the components that lakestream needs, with versions, licences and checksums. Python packages are those
installed in this environment that the requirements in pyproject.toml lead to. A component without a known licence is an
error, and so is a licence that is not in `ALLOWED`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lakestream_spark import jars, pins  # noqa: E402
from packages import parts  # noqa: E402

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU"),
    *("MPL-2.0", "OFL-1.1", "PSF-2.0", "Zlib"),
}
"""SPDX identifiers: permissive licences, MPL-2.0 (files of its own only), and OFL-1.1 (fonts)."""

SAID = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD-3-Clause",
    "CC0": "CC0-1.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX identifiers of licences as packages name them."""

READ = {
    "atheris": "Apache-2.0",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "pytest-timeout": "MIT",
}
"""Licences from the licence files of packages whose metadata does not name one clearly."""

TOOLS_ONLY = {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}
"""Other licences, of clients that tests use unchanged: nothing of lakestream is linked with them or contains them."""

PAGE = ROOT / "docs" / "reference" / "licences.md"
VENDORED = ROOT / "packages" / "console" / "lakestream_console" / "static" / "vendor" / "README.md"
_VERSION = re.compile(r"(.+?)-(\d[\w.]*)\.jar")


class LicenceError(Exception):
    """Raised for a component whose licence is unknown or not allowed."""


class Component(NamedTuple):
    """Something that lakestream needs. `kind`: python, jar or vendored. `part`: "" runtime, or "dev"."""

    kind: str
    name: str
    version: str
    licence: str
    part: str = ""
    sha256: str = ""
    group: str = ""

    @property
    def purl(self) -> str:
        """Return the package URL."""
        if self.kind == "jar":
            return f"pkg:{f'maven/{self.group}' if self.group else 'generic'}/{self.name}@{self.version}"
        return f"pkg:{'pypi' if self.kind == 'python' else 'npm'}/{self.name.replace('@', '%40')}@{self.version}"


def pinned() -> dict[str, pins.Pin]:
    """Return the JARs that are fetched, by their names."""
    return {
        name: pin
        for package in (pins.DELTA, pins.ICEBERG, *pins.CLOUDS.values())
        for name, pin in package.files.items()
    }


def normal(name: str) -> str:
    """Return a package name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: Iterable[str], optional: dict[str, list[str]]) -> dict[str, importlib.metadata.Distribution]:
    """Return the installed packages that requirements lead to, by name. `optional`: lakestream's own extras.

    Packages of this repository are not among them, only what they require.

    Raise importlib.metadata.PackageNotFoundError for one that is not installed.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    own = {part.distribution: part for part in parts.parts().values()}
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = normal(wanted.name)
        if name == parts.project()["name"]:
            waiting += [(Requirement(text), "") for each in wanted.extras for text in optional[each]]
            continue
        if name in own:
            waiting += [(Requirement(text), "") for text in parts.dependencies(own[name])]
            continue
        found[name] = importlib.metadata.distribution(name)
        for each in {"", *wanted.extras}:
            if (name, each) not in seen:
                seen.add((name, each))
                waiting += [(Requirement(text), each) for text in found[name].requires or []]
    return found


def licence_of(name: str, metadata: importlib.metadata.PackageMetadata) -> str:
    """Return the licence of a package as an SPDX expression. Raise LicenceError for an unknown or forbidden one."""
    fields = {key: metadata.get_all(key, []) for key in ("License-Expression", "Classifier", "License")}
    expression = READ.get(name) or next(iter(fields["License-Expression"]), "")
    if not expression:
        classifiers = [text.split(" :: ")[-1] for text in fields["Classifier"] if text.startswith("License ::")]
        text = next(iter(fields["License"]), "").strip()
        # A short text names the licence more exactly than "BSD License" does.
        said = [text] if text in ALLOWED else [*classifiers, text.partition("\n")[0]]
        expression = next((SAID.get(each, each) for each in said if SAID.get(each, each) in ALLOWED), "")
        if not expression:
            raise LicenceError(
                f"{name}: no known licence in {said}; read its licence file and add it to packages/sbom.py"
            )
    check(name, expression)
    return expression


def check(name: str, expression: str) -> None:
    """Raise LicenceError unless every licence that an expression asks for is allowed."""
    for choice in expression.replace("(", " ").replace(")", " ").split(" AND "):
        if not any(each.strip() in ALLOWED for each in choice.split(" OR ")):
            raise LicenceError(f"{name}: the licence {choice.strip()} is not allowed (packages/sbom.py)")


def components(dev: bool = False) -> list[Component]:
    """Return the components of lakestream-server[all], and with `dev` the tools. Raise LicenceError."""
    project = parts.project()
    optional: dict[str, list[str]] = project["optional-dependencies"]
    runtime = needed([*project["dependencies"], "lakestream-server[all]"], optional)
    every = runtime | (needed(optional["dev"], optional) if dev else {})
    found = []
    for name, each in sorted(every.items()):
        found.append(
            Component(
                "python",
                name,
                each.version,
                licence_of(name, each.metadata) if name in runtime or name not in TOOLS_ONLY else TOOLS_ONLY[name],
                "" if name in runtime else "dev",
            )
        )
    for file, pin in pinned().items():
        match = _VERSION.fullmatch(file)
        assert match is not None, file
        if pin.licence not in ALLOWED:
            raise LicenceError(f"{file}: licence {pin.licence} is not allowed")
        found.append(Component("jar", match[1], match[2], pin.licence, sha256=pin.sha256, group=pin.group))
    own = Path(jars.own())
    found.append(
        Component(
            "jar", own.stem, project["version"], "Apache-2.0", sha256=hashlib.sha256(own.read_bytes()).hexdigest()
        )
    )
    return found + vendored()


def vendored() -> list[Component]:
    """Return the packages whose files are among the console's, from the table that is kept beside them."""
    found = []
    for line in VENDORED.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            package = cells[1].split()[0].strip("`")
            licence = " AND ".join(re.findall(r"[A-Z][\w.-]+(?= \()", cells[4]))
            check(package, licence)
            found.append(Component("vendored", package, cells[2], licence))
    return found


def bill(found: Iterable[Component], version: str) -> str:
    """Return the components as a CycloneDX 1.6 document."""
    entries = []
    for each in found:
        entry: dict[str, object] = {"type": "library", "bom-ref": each.purl, "name": each.name, "version": each.version}
        entry["purl"] = each.purl
        entry["scope"] = "excluded" if each.part else "required"
        simple = " " not in each.licence
        entry["licenses"] = [{"license": {"id": each.licence}} if simple else {"expression": each.licence}]
        if each.sha256:
            entry["hashes"] = [{"alg": "SHA-256", "content": each.sha256}]
        entries.append(entry)
    about = {"type": "application", "bom-ref": "lakestream", "name": "lakestream", "version": version}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return json.dumps({**document, "metadata": {"component": about}, "components": entries}, indent=1) + "\n"


def version() -> str:
    """Return lakestream's version."""
    return str(parts.project()["version"])


def page(found: Iterable[Component]) -> str:
    """Return docs/reference/licences.md. It names no versions, which differ from machine to machine."""
    parts = {
        "Python packages": ("python", "", "Packages of `lakestream-server[all]`, with those that they need."),
        "JARs": (
            "jar",
            "",
            "For Spark; fetched or installed with `lakestream-jars`, with their checksums in the bill.",
        ),
        "Vendored files": ("vendored", "", "Of the web console, part of the wheel."),
        "Tools of developers": ("python", "dev", "Installed by `.[dev]` in addition; no part of an installation."),
    }
    allowed = ", ".join(sorted(ALLOWED))
    text = (
        "# Licences of dependencies\n\n<!-- made by `make docs` from the installed packages: do not edit -->\n"
        "`make packages` writes the bill of materials with versions (CycloneDX, JSON) beside the wheel. Allowed are "
        f"{allowed}; a test fails for any other (psycopg, LGPL, is a client in tests only). PySpark's own wheel has "
        "the JARs of Spark, and lists their "
        "licences in its file LICENSE.\n"
    )
    everything = list(found)
    for title, (kind, part, about) in parts.items():
        rows = {(each.name, each.licence) for each in everything if each.kind == kind and each.part == part}
        lines = [f"| {name} | {licence} |" for name, licence in sorted(rows)]
        text += f"\n## {title}\n\n{about}\n\n| component | licence |\n|---|---|\n" + "\n".join(lines) + "\n"
    return text


def main() -> None:
    """Print or write what the options ask for."""
    parser = argparse.ArgumentParser(description="Bill of materials and licences of lakestream.")
    parser.add_argument("--dev", action="store_true", help="with the tools of developers")
    parser.add_argument("--licences", action="store_true", help="write docs/reference/licences.md")
    parser.add_argument("--requirements", action="store_true", help="print packages with their versions")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the bill there")
    options = parser.parse_args()
    try:
        found = components(options.dev or options.licences)
    except LicenceError as error:
        sys.exit(str(error))
    if options.licences:
        PAGE.write_text(page(found))
    elif options.requirements:
        print(*(f"{each.name}=={each.version}" for each in found if each.kind == "python"), sep="\n")
    elif options.to is not None:
        options.to.write_text(bill(found, version()))
    else:
        print(bill(found, version()), end="")


if __name__ == "__main__":
    main()
