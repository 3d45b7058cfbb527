"""The Spark programs from the command line.

Belongs here: where `jobs/compact.py` lies (in a checkout, or where the wheel put it), the command line that runs it,
and `lakestream compact`. What the program does is its own business.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lakestream.cli.sql import default_lake
from lakestream.lake.errors import JavaMissing, LakeError


class JobMissing(LakeError):
    """The Spark programs are not where they should be."""


def find(name: str) -> Path:
    """The path of `jobs/<name>`.

    $LAKESTREAM_JOBS names another directory. Without it: beside the package in a checkout, else where the installed
    distribution says that it put the file (`share/lakestream/jobs` under the environment).

    Raises:
        JobMissing: it is in none of these places.
    """
    if directory := os.environ.get("LAKESTREAM_JOBS"):
        candidates = [Path(directory, name)]
    else:
        candidates = [Path(__file__).resolve().parents[2] / "jobs" / name, *_installed(name)]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise JobMissing(
        f"jobs/{name} is not there: looked for {', '.join(map(str, candidates))}. Reinstall lakestream, or let "
        "LAKESTREAM_JOBS name the directory"
    )


def _installed(name: str) -> list[Path]:
    try:
        files = importlib.metadata.files("lakestream") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.parts[-2:] == ("jobs", name)]


def compactor(lake: str, *options: str) -> list[str]:
    """The command line that compacts a lake, with this Python.

    Raises:
        JobMissing: the program is not there.
    """
    return [sys.executable, str(find("compact.py")), "--lake", lake, *options]


def compact(
    lake: Annotated[
        str | None,
        typer.Option("--lake", envvar="LAKESTREAM_LAKE", help="The lake (default: here if it is one, or ./data/lake)."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Write what is staged now, then end; else go on.")] = False,
) -> None:
    """Move staged segments into the streams' Delta tables, with Spark, in this process's place."""
    from lakestream.lake import java

    try:
        java.find()
        command = compactor(lake or str(default_lake()), *(["--once"] if once else []))
    except (JavaMissing, JobMissing) as error:
        print(f"lakestream: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    # The scheduler that started us then watches, signals and reaps the program itself.
    os.execv(command[0], command)
