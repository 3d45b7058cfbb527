"""Commands that are loaded when they are wanted, most of them from optional packages (`packages/`).

Belongs here: the entry point group by which such a package brings its commands, and the commands and groups that stand
for them in the help of lakestream.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from lakestream import extras

ENTRY_POINTS = "lakestream.commands"
"""Group of entry points: the name is that of the command, the object its function, or a `typer.Typer` with commands."""
EXTRAS = {
    "bench": "bench",
    "catalog": "catalogs",
    "clone": "spark",
    "compact": "spark",
    "consumer": "commands",
    "demo": "demo",
    "doctor": "commands",
    "export": "transfer",
    "iceberg": "iceberg",
    "import": "transfer",
    "kv": "commands",
    "maintain": "spark",
    "mcp": "mcp",
    "move": "move",
    "object": "commands",
    "pub": "commands",
    "replay": "spark",
    "registry": "registry",
    "repair": "verify",
    "req": "commands",
    "request": "commands",
    "restore": "commands",
    "schema": "commands",
    "sharing": "sharing",
    "sql": "sql",
    "status": "commands",
    "stream": "commands",
    "sub": "commands",
    "top": "commands",
    "verify": "verify",
}
"""Extra that brings the package of each command."""


OWN = {
    "config": "lakestream.cli.config_command:config",
    "rotate-key": "lakestream.cli.rotate_command:rotate_key",
}
"""Commands that every installation has, as an entry point would name them."""


class LoadedLater:
    """A command that another module, or another package, has.

    It is loaded when the command, or its help, is wanted: others neither wait for it nor fail with it.
    """

    name: str | None
    loaded = False

    def take(self, found: Any) -> None:
        """Become the command that was found."""
        raise NotImplementedError

    def load(self) -> None:
        """Load the package, once.

        Raises:
            ExtraMissing: its package is not installed.
        """
        if not self.loaded:
            name = str(self.name)
            found = (
                EntryPoint(name, OWN[name], ENTRY_POINTS).load()
                if name in OWN
                else extras.load(ENTRY_POINTS, name, EXTRAS[name], f"lakestream {name}")
            )
            if not isinstance(found, typer.Typer):
                function, found = found, typer.Typer(add_completion=False)
                found.command()(function)
            self.take(typer.main.get_command(found))
            self.loaded = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Load the package before the arguments are read, so that a missing one is told before any help.

        A shell that completes (`resilient_parsing`) is offered nothing then.
        """
        try:
            self.load()
        except extras.ExtraMissing:
            if not ctx.resilient_parsing:
                raise
        parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return parsed


class OptionalCommands(LoadedLater, TyperGroup):
    """A group of commands."""

    def take(self, found: Any) -> None:
        self.commands.update(found.commands)


class OptionalCommand(LoadedLater, TyperCommand):
    """One command."""

    def take(self, found: Any) -> None:
        self.params, self.callback, self.help = found.params, found.callback, found.help
