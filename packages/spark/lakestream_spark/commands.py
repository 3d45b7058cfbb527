"""The Spark programs as commands.

Belongs here: the location of `jobs/*.py` (in a checkout, or as the wheel installs them), their command lines,
`lakestream compact`, `lakestream maintain`, `lakestream clone` and `lakestream schema replay`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import lakestream
from lakestream import extras
from lakestream.cli.lake_options import CatalogOption, LakeOption, default_lake
from lakestream.cli.terminal import JsonOption, complain
from lakestream.lake.errors import JavaMissing, JobMissing
from lakestream_spark import jars

JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print results as JSON, one object per line.")]


def find(name: str) -> Path:
    """Return the path of `jobs/<name>`.

    $LAKESTREAM_JOBS names another directory. Without it: beside the package in a checkout, else where the installed
    distribution has put the file (`share/lakestream/jobs` under the environment).

    Raises:
        JobMissing: it is in none of these places.
    """
    if directory := os.environ.get("LAKESTREAM_JOBS"):
        candidates = [Path(directory, name)]
    else:
        candidates = [Path(lakestream.__file__).resolve().parents[1] / "jobs" / name, *_installed(name)]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise JobMissing(
        f"jobs/{name} is not there: looked for {', '.join(map(str, candidates))}. Reinstall lakestream, or let "
        "LAKESTREAM_JOBS name the directory"
    )


def _installed(name: str) -> list[Path]:
    try:
        files = importlib.metadata.files(extras.DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.parts[-2:] == ("jobs", name)]


def compactor(lake: str, *options: str) -> list[str]:
    """Return the command line that compacts a lake, with this Python.

    Raises:
        JobMissing: the program is not found.
    """
    return [sys.executable, str(find("compact.py")), "--lake", lake, *options]


def compact(
    lake: LakeOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Compact what is staged now, then exit (default: run until stopped).")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the lake if it does not exist.")] = False,
    maintain_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Seconds between two rounds of table maintenance (default: 600; 0: never)."
        ),
    ] = None,
    report_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Log one summary line for this many seconds (default: 60; 0: a line for each batch).",
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve metrics for Prometheus at this address, /metrics.")
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve Spark Connect at this address; the token is $SPARK_CONNECT_AUTHENTICATE_TOKEN, or a new one.",
        ),
    ] = None,
    catalog: CatalogOption = None,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="v3|v2|off", help="Iceberg tables over the same files, for streams that do not say otherwise."
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Run the compactor: write staged messages into the streams' Delta tables with Spark."""
    options = [name for name, given in (("--once", once), ("--create", create), ("--json", as_json)) if given]
    options += [] if maintain_every is None else [f"--maintain-every={maintain_every}"]
    options += [] if report_every is None else [f"--report-every={report_every}"]
    options += [] if metrics is None else [f"--metrics={metrics}"]
    options += [] if connect is None else [f"--connect={connect}"]
    options += [f"--catalog={each}" for each in catalog or ()]
    options += [] if iceberg is None else [f"--iceberg={iceberg}"]
    _become("compact.py", lake, options, needs_java=not once)  # with nothing to do it needs no Java


def maintain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[detach MIRROR]", help="Copy the files that this mirror's table shares with its origin, and exit."
        ),
    ] = None,
    lake: LakeOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Do the work that is due now, then exit (default: run until stopped).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the work that is due, and change nothing (needs no Java).")
    ] = False,
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="Maintain only this stream's table.")] = None,
    target_mib: Annotated[
        int | None, typer.Option(metavar="MIB", help="Target size when small files are combined.")
    ] = None,
    min_files: Annotated[
        int | None, typer.Option(metavar="N", help="Minimum number of small files to rewrite.")
    ] = None,
    retain_hours: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Keep table versions readable up to this age.")
    ] = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds between two rounds of maintenance (default: 3600).")
    ] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Account of the stream to detach.")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Maintain the streams' Delta tables with Spark: rewrite small files, delete old ones, shorten the logs.

    `maintain detach MIRROR` copies the files that the table of a cloned mirror shares with its origin.
    """
    if words and (len(words) != 2 or words[0] != "detach"):
        complain("maintain takes `detach MIRROR`, or options only")
        raise typer.Exit(2)
    values = {
        "--detach": words[1] if words else None,
        "--account": account,
        "--stream": stream,
        "--target-mib": target_mib,
        "--min-files": min_files,
        "--retain-hours": retain_hours,
        "--every": every,
    }
    options = [f"{name}={value}" for name, value in values.items() if value is not None]
    options += [name for name, given in (("--once", once), ("--dry-run", dry_run), ("--json", as_json)) if given]
    _become("maintain.py", lake, options, needs_java=not dry_run, needs_spark=not dry_run)


def clone(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New directory for the clone.")],
    lake: LakeOption = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="The stream's account.")] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Table version to clone (default: the current one).")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Clone the version that was current at this time.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a shallow clone of a stream's Delta table with Spark."""
    values = {"--stream": stream, "--target": target, "--account": account, "--version": version, "--as-of": as_of}
    options = [f"{name}={value}" for name, value in values.items() if value is not None]
    _become("clone.py", lake, options + (["--json"] if as_json else []))


def replay(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream whose misfits to decode again.")],
    lake: LakeOption = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Account of the stream (default: $G).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode the messages that did not fit their schema again, after it was mended, with Spark."""
    options = [f"--stream={stream}", *([] if account is None else [f"--account={account}"])]
    _become("replay.py", lake, options + (["--json"] if as_json else []))


def _become(
    name: str, lake: str | None, options: Sequence[str], needs_java: bool = True, needs_spark: bool = True
) -> None:
    """Replace this process by a program, so that a scheduler watches, signals and reaps the program itself."""
    if needs_spark:
        extras.require("spark", f"lakestream {Path(name).stem}")
    try:
        if needs_java:
            jars.find_java()
        command = [sys.executable, str(find(name)), "--lake", lake or str(default_lake()), *options]
    except (JavaMissing, JobMissing) as error:
        complain(error)
        raise typer.Exit(1) from None
    os.execv(command[0], command)
