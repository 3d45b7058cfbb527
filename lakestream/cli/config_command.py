"""`lakestream config`: checking a configuration file, and showing the settings in force.

Belongs here: the two commands and their output. Settings and their origins are in config/effective.py.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.terminal import JsonOption, complain, console, print_json
from lakestream.config.errors import StartError
from lakestream.config.loading import load
from lakestream.config.options import Flags, Options

config = typer.Typer(help="Check a configuration file, or show the settings in force.", no_args_is_help=True)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A configuration file (nats.conf).")]


@config.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a configuration file: exit code 0 if it is valid, else 1 with a line for each error."""
    try:
        options = load(Flags(config=file))
    except StartError as error:
        if as_json:
            print_json({"valid": False, "file": file, "errors": str(error).splitlines()})
        else:
            complain(error)
        raise typer.Exit(1) from None
    warnings = [*options.notices, *options.warnings]
    if as_json:
        print_json({"valid": True, "file": file, "digest": options.config_digest, "warnings": warnings})
        return
    for line in warnings:
        complain(line)
    print(f"{file} is valid ({options.config_digest})")


@config.command()
def show(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A configuration file (default: none).")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Leave out settings that have their defaults.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the settings in force and the place that each comes from; secrets are masked."""
    from lakestream.config.effective import DEFAULT, settings

    try:
        options: Options = load(Flags(config=file))
        found = [each for each in settings(options) if not (changed and each.origin == DEFAULT)]
    except StartError as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        rows = [msgspec.to_builtins(each) for each in found]
        print_json({"file": file, "digest": options.config_digest, "settings": rows})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for each in found:
        table.add_row(each.key, Text(_text(each.value)), each.origin)
    console().print(table)


def _text(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
