"""`lakestream repair`: what can be repaired in a store, or in a running cluster, without a loss.

Belongs here: the command and its output. The repairs are in repair.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, console, counted, print_json
from lakestream.lake.progress import progress
from lakestream_verify.client import is_server, verify_running
from lakestream_verify.log.findings import Finding
from lakestream_verify.stores import StoreCheck, root_of
from lakestream_verify.verify_command import (
    LakeOption,
    NoLakeOption,
    StreamOption,
    cannot_run,
    chosen,
    place_of,
    show,
    show_running,
)


class Repaired(msgspec.Struct, frozen=True):
    """One repair. `aside`: the path of the damaged file, "" before it is done or if the file was missing."""

    file: str
    what: str
    aside: str = ""


@with_server
def repair(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="Storage directory (store_dir) of a stopped server, or the URL of a running one.",
        ),
    ],
    server: Server,
    stream: StreamOption = None,
    lake: LakeOption = "",
    no_lake: NoLakeOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out the plan. Without it, only show the plan.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair what is safe; damaged files move aside. The exit code is 1 if damage is left."""
    with cannot_run():
        if is_server(target):
            asked = Server(target, server.login)
            results = verify_running(asked, stream or [], lake=not no_lake, rows=False, repair=yes)
            raise typer.Exit(show_running(results, as_json))
        root = root_of(target)
        check = StoreCheck(root, chosen(stream or []), place_of(lake, no_lake, root), alone=True)
        with contextlib.closing(check):
            found = _findings(check)
            done = _repairs(check, found, yes)
            if yes and done:
                found = _findings(check)
    left = [each for each in found if not each.harmless]
    if as_json:
        print_json(
            {
                "ok": not left,
                "done": yes,
                "repairs": [msgspec.to_builtins(each) for each in done],
                "findings": [msgspec.to_builtins(each) for each in found],
            }
        )
    else:
        _show(done, left, yes)
    raise typer.Exit(1 if left else 0)


def _findings(check: StoreCheck) -> list[Finding]:
    with progress("verifying", check.total(), in_bytes=True) as advance:
        return list(check.findings(advance))


def _repairs(check: StoreCheck, found: Sequence[Finding], yes: bool) -> list[Repaired]:
    """Do the repairs, one for each file, or only name them."""
    done: dict[str, Repaired] = {}
    for finding in found:
        fix = check.fix(finding)
        if fix is not None and fix.file not in done:
            done[fix.file] = Repaired(fix.file, fix.what, fix.apply() if yes else "")
    return list(done.values())


def _show(done: Sequence[Repaired], left: Sequence[Finding], yes: bool) -> None:
    out = console()
    for each in done:
        out.print(f"{each.file}: {each.what}", soft_wrap=True, markup=False)
        if each.aside:
            out.print(f"  the damaged file is now {each.aside}", soft_wrap=True, markup=False)
    if yes or not done:
        show(left)
        out.print(f"{counted(len(done), 'file')} repaired, {counted(len(left), 'finding')} left")
    else:
        show([each for each in left if each.file not in {fixed.file for fixed in done}])
        out.print(f"{counted(len(done), 'file')} can be repaired: add --yes")
