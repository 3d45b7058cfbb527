"""Commands of optional packages (`packages/`), which an installation may lack.

Belongs here: the entry point group by which such a package brings its commands, and the group that stands for them in
the help of lakestream.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from lakestream import extras

ENTRY_POINTS = "lakestream.commands"
"""Group of entry points: the name is that of the command, the object a `typer.Typer`."""
EXTRAS = {"catalog": "catalogs", "sharing": "sharing"}
"""Extra that brings the package of each command."""


class OptionalCommands(TyperGroup):
    """A group of commands that another package has.

    The package is loaded when one of the commands, or their help, is wanted: other commands neither wait for it nor
    fail with it.
    """

    def load(self) -> None:
        """Load the commands of the package, once.

        Raises:
            ExtraMissing: it is not installed.
        """
        if self.commands:
            return
        name = str(self.name)
        found = extras.load(ENTRY_POINTS, name, EXTRAS[name], f"lakestream {name}")
        self.commands.update(typer.main.get_group(found).commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Load the commands before the arguments are read, so that a missing package is told before any help.

        A shell that completes (`resilient_parsing`) is offered nothing then.
        """
        try:
            self.load()
        except extras.ExtraMissing:
            if not ctx.resilient_parsing:
                raise
        return super().parse_args(ctx, args)
