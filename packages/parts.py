#!/usr/bin/env python3
"""Optional products of lakestream that are packages of their own, in `packages/NAME`.

    python packages/parts.py          writes their names, versions and pins after the main pyproject.toml was changed

Belongs here: the list of these packages, and the rule for their names and versions. The distribution is called
`lakestream-<NAME>` and has the version of the main one; it requires exactly that version, and the extra NAME of the
main one requires exactly the package (so may other extras). Other files take the names from here. Needs Python 3.11 and
nothing else: images and `make run` ask for requirements before anything is installed.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
NAMES = (
    "bench",
    "catalogs",
    "client",
    "commands",
    "console",
    "demo",
    "flight",
    "iceberg",
    "mcp",
    "move",
    "mqtt",
    "postgres",
    "registry",
    "schemas",
    "sharing",
    "spark",
    "sql",
    "transfer",
    "verify",
)


class Part(NamedTuple):
    """A package in `packages/`: folder, distribution with its pin, and the import package."""

    folder: Path
    distribution: str
    requirement: str
    module: str


def settings(folder: Path = ROOT) -> dict[str, Any]:
    """Return a pyproject.toml."""
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def project(folder: Path = ROOT) -> dict[str, Any]:
    """Return the table `project` of a pyproject.toml."""
    found: dict[str, Any] = settings(folder)["project"]
    return found


def parts() -> dict[str, Part]:
    """Return the packages by the requirements that extras of the main one name them with."""
    main = project()
    found = {}
    for name in NAMES:
        distribution = f"lakestream-{name}"
        requirement = f"{distribution}=={main['version']}"
        module = distribution.replace("-", "_")
        found[requirement] = Part(ROOT / "packages" / name, distribution, requirement, module)
    return found


def dependencies(part: Part) -> list[str]:
    """Return what a package requires besides the main one."""
    return [each for each in project(part.folder)["dependencies"] if each != _pin()]


def wanted() -> dict[Path, str]:
    """Return the text that each pyproject.toml should have, by its path."""
    main, found = project(), parts().values()
    texts = {path: path.read_text() for path in (PYPROJECT, *(part.folder / "pyproject.toml" for part in found))}
    for part in found:
        pins = rf'"{part.distribution}==[^"]*"'  # in its own extra, and wherever else it is needed
        texts = {path: re.sub(pins, f'"{part.requirement}"', text) for path, text in texts.items()}
    for part in found:
        path = part.folder / "pyproject.toml"
        text = _replaced(texts[path], "name = ", part.distribution)
        text = _replaced(text, "version = ", main["version"])
        texts[path] = _replaced(text, "dependencies = [", _pin())
    return texts


def _pin() -> str:
    main = project()
    return f"{main['name']}=={main['version']}"


def _replaced(text: str, before: str, value: str) -> str:
    """Return a text with another string after the first line's beginning `before`."""
    changed, count = re.subn(rf'^{re.escape(before)}"[^"]*"', f'{before}"{value}"', text, count=1, flags=re.MULTILINE)
    assert count, f"no line begins with {before}"
    return changed


def main() -> None:
    """Write the files that are not as wanted."""
    for path, text in wanted().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
