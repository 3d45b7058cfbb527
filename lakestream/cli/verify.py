"""`lakestream verify`: everything that is wrong with the files of a store and its lake.

Belongs here: the command and its output. The checks are in lakestream/verify/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import INTERRUPTED
from lakestream.cli.terminal import JsonOption, complain, console, counted, print_json, size
from lakestream.lake.errors import LakeError
from lakestream.lake.files import paths
from lakestream.lake.progress import progress
from lakestream.log.format.errors import LogError
from lakestream.log.verify.findings import Finding, Repair
from lakestream.verify.lake import lake_beside
from lakestream.verify.stores import NoStore, StoreCheck, root_of

CANNOT_RUN = 2

StoreArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="Storage directory (store_dir) of a server that does not run.")
]
StreamOption = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="Only this stream, or ACCOUNT/NAME. May be repeated."),
]
LakeOption = Annotated[
    str, typer.Option("--lake", metavar="LAKE", help="The lake (default: DIR/lake, if it is there).")
]
NoLakeOption = Annotated[bool, typer.Option("--no-lake", help="Look at the store only.")]

REMEDIES = {
    Repair.NONE: "restore this file from a backup",
    Repair.START: "the next start of the server repairs it",
    Repair.REPAIR: "lakestream repair",
    Repair.REPLICAS: "start the node: the other replicas send what is damaged",
    Repair.COMPACTOR: "run server and compactor",
}


def verify(
    directory: StoreArgument,
    stream: StreamOption = None,
    lake: LakeOption = "",
    no_lake: NoLakeOption = False,
    rows: Annotated[bool, typer.Option("--rows", help="Name each row of a table that differs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify a store and its lake. Nothing is changed. The exit code is 1 if something is damaged."""
    with cannot_run():
        root = root_of(directory)
        check = StoreCheck(root, chosen(stream or []), place_of(lake, no_lake, root), rows)
        with contextlib.closing(check), progress("verifying", check.total(), in_bytes=True) as advance:
            found = list(check.findings(advance))
    damage = [each for each in found if not each.harmless]
    if as_json:
        print_json(summary(found, check))
    else:
        show(found)
        console().print(
            f"{counted(check.streams, 'stream')}, {size(check.bytes)} verified: "
            f"{len(damage)} damaged, {counted(len(found) - len(damage), 'note')}"
        )
    raise typer.Exit(1 if damage else 0)


def summary(found: Sequence[Finding], check: StoreCheck) -> dict[str, Any]:
    """Return the result for scripts."""
    return {
        "ok": all(each.harmless for each in found),
        "streams": check.streams,
        "bytes": check.bytes,
        "findings": [msgspec.to_builtins(each) for each in found],
    }


@contextlib.contextmanager
def cannot_run() -> Iterator[None]:
    """Context that turns the errors of an unusable store into a line and exit code 2; code 130 after Ctrl-C."""
    try:
        yield
    except (NoStore, LogError, LakeError, OSError) as error:
        complain(error)
        raise typer.Exit(CANNOT_RUN) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def place_of(lake: str, no_lake: bool, root: str) -> str:
    """Return the root of the lake to compare a store with, "" for none."""
    if no_lake:
        return ""
    return paths.root(lake) if lake else lake_beside(root)


def chosen(names: Sequence[str]) -> Callable[[str, str], bool]:
    """Return the predicate over (account, stream) for the streams that were named, or for all if none was."""
    wanted = frozenset(names)
    return lambda account, name: not wanted or bool(wanted & {name, f"{account}/{name}"})


def show(found: Sequence[Finding]) -> None:
    """Print findings, each with what to do about it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found:
        level = Text("note", "yellow") if each.harmless else Text("damaged", "bold red")
        stream = f"{each.account}/{each.stream}" if each.stream else ""
        table.add_row(level, each.kind, Text(stream), Text(f"{each.file}:{each.offset}: {each.what}"))
        if not each.harmless or each.repair is not Repair.NONE:
            table.add_row("", "", "", Text(f"→ {REMEDIES[each.repair]}", "bold"))
    if found:
        console().print(table)
