#!/usr/bin/env python3
"""Print the requirements of lakestream, or of some of its extras, one a line.

    python packages/requirements.py                          the base installation
    python packages/requirements.py lake demo                what these extras add to it
    python packages/requirements.py lake --without pyspark   the same without some distributions
    python packages/requirements.py --build                  what builds the packages of this repository

Images install them before the sources are copied, so that a change of the sources keeps the layer; `make run` installs
them in stages. An extra that is a package of this repository (`parts.py`) stands for what that requires: the package
itself is installed from its folder. Needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import argparse
import re

import parts


def main() -> None:
    """Print the requirements."""
    parser = argparse.ArgumentParser(description="Print the requirements of lakestream or of some of its extras.")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="distributions to leave out")
    parser.add_argument("--build", action="store_true", help="what builds the packages, and nothing else")
    wanted = parser.parse_args()
    if wanted.build:
        print("\n".join(parts.settings()["build-system"]["requires"]))
        return
    project = parts.project()
    own = parts.parts()
    optional = project["optional-dependencies"]
    if unknown := set(wanted.extras) - set(optional):
        parser.error(f"no extra {', '.join(sorted(unknown))}; there are {', '.join(sorted(optional))}")
    found: dict[str, None] = {}
    waiting = [name for extra in wanted.extras for name in optional[extra]]
    if not wanted.extras:
        waiting = project["dependencies"]
    while waiting:
        requirement = waiting.pop(0)
        if inner := re.fullmatch(rf"{parts.project()['name']}\[([\w,-]+)\]", requirement):
            waiting += [name for extra in inner[1].split(",") for name in optional[extra]]
        elif requirement in own:
            waiting += parts.dependencies(own[requirement])
        elif re.split(r"[\s\[<>=!;~]", requirement, maxsplit=1)[0] not in wanted.without:
            found[requirement] = None
    print(*found, sep="\n")


if __name__ == "__main__":
    main()
