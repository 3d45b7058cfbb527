"""The Typer application with every command of `lakestream`.

Belongs here: the list of commands. Each is in its own module. `serve` and `up` take nats-server's flags, so their
arguments pass through unread.
"""

from __future__ import annotations

import typer

from lakestream.cli.demo import demo
from lakestream.cli.jobs import clone, compact, maintain
from lakestream.cli.restore import restore
from lakestream.cli.sql import sql
from lakestream.cli.transfer import export, import_

app = typer.Typer(
    name="lakestream",
    help="A JetStream server whose stream store is a lakehouse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FLAGS_OF_NATS_SERVER = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_FLAGS_OF_NATS_SERVER)
def serve(context: typer.Context) -> None:
    """Start a server. Takes nats-server's flags; `lakestream serve -h` lists them."""
    from lakestream.cli import serve as command

    raise typer.Exit(command.serve(context.args))


@app.command(context_settings=_FLAGS_OF_NATS_SERVER)
def up(context: typer.Context) -> None:
    """Start a server and its compactor over ./data. Takes the flags of serve."""
    from lakestream.cli import up as command

    raise typer.Exit(command.up(context.args))


app.command()(sql)
app.command("import")(import_)
app.command()(export)
app.command()(restore)
app.command()(compact)
app.command()(maintain)
app.command()(clone)
app.command()(demo)
