#!/usr/bin/env python3
"""Build what is published: wheel and sdist of lakestream, wheels of its optional packages (`parts.py`), the wheel
lakestream-jars with Delta's JARs, and the bill of materials.

    python packages/build.py [--to dist] [--no-jars]

Run it with the Python of a development environment (`make packages` does). The JARs are taken from the cache of
`lakestream_spark.jars`, which fetches them if they are not there, and their checksums are verified once more.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import parts  # noqa: E402
import sbom  # noqa: E402

from lakestream_spark import jars, pins  # noqa: E402


def main() -> None:
    """Build the packages."""
    parser = argparse.ArgumentParser(description="Build wheel and sdist of lakestream, and the wheels beside it.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", metavar="DIR", help="output directory (dist)")
    parser.add_argument("--no-jars", action="store_true", help="without the wheel lakestream-jars")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        # setuptools writes build/ and *.egg-info beside its sources, so it gets a copy.
        source = Path(work, "lakestream")
        copy(ROOT, source)
        build(source, options.to)
        for part in parts.parts().values():
            build(source / part.folder.relative_to(ROOT), options.to, "--wheel")
        if not options.no_jars:
            package = Path(work, "jars")
            shutil.copytree(ROOT / "packages" / "jars", package)
            collect(package / jars.WHEEL)
            build(package, options.to, "--wheel")
    bill = options.to / f"lakestream-{sbom.version()}.cdx.json"
    bill.write_text(sbom.bill(sbom.components(), sbom.version()))


def copy(root: Path, target: Path) -> None:
    """Copy what the packages are built from: tracked and new files, without ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file() and not name.startswith("tests/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def collect(package: Path) -> None:
    """Copy Delta's JARs into the package and verify their checksums."""
    for path in jars.ensure_delta():
        copied = Path(shutil.copy2(path, package))
        digest = hashlib.sha256(copied.read_bytes()).hexdigest()
        if digest != pins.DELTA.files[copied.name].sha256:
            sys.exit(f"{path} has SHA-256 {digest}, not the pinned one; remove it and build again")


def build(source: Path, to: Path, *options: str) -> None:
    """Build one package, with the backend of its pyproject.toml in an environment of its own."""
    command = [sys.executable, "-m", "build", *options, "--outdir", str(to), str(source)]
    print(f"building {source.name} into {to}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + f"\nbuilding {source.name} failed")


if __name__ == "__main__":
    main()
