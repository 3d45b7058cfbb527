"""The Typer application with every command of `lakestream`.

Belongs here: the list of commands. Each is in its own module, or in an optional package (`optional.py`). `serve` and
`up` take nats-server's flags, so their arguments pass through unread; a shell completes them by the table of flags.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from lakestream import __version__
from lakestream.cli.config_command import config
from lakestream.cli.doctor import doctor
from lakestream.cli.flags import SECTIONS
from lakestream.cli.nats.buckets import kv
from lakestream.cli.nats.consumers import consumer
from lakestream.cli.nats.messages import pub, request, sub
from lakestream.cli.nats.objects import objects
from lakestream.cli.nats.streams import stream
from lakestream.cli.optional import OptionalCommand, OptionalCommands
from lakestream.cli.repair import repair
from lakestream.cli.restore import restore, restore_schemas
from lakestream.cli.schema import schema
from lakestream.cli.status import status
from lakestream.cli.terminal import quiet_asyncio
from lakestream.cli.top import top
from lakestream.cli.verify import verify

RUN, NATS, DATA = "Run a server", "Use a server", "Query and move messages"
LOOK, LAKE = "Look and measure", "Maintain a lake"

app = typer.Typer(
    name="lakestream",
    help="A NATS JetStream server that keeps every stream as a Delta table.",
    epilog=(
        "Web console and metrics: run `lakestream up`, then open http://localhost:8222/console and /metrics. "
        "Python: `from lakestream.client import connect`."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
catalog = typer.Typer(
    cls=OptionalCommands,
    help="Register a lake's tables in a Hive metastore, AWS Glue or Unity Catalog.",
    no_args_is_help=True,
)
sharing = typer.Typer(
    cls=OptionalCommands, help="Share tables with recipients over Delta Sharing.", no_args_is_help=True
)
_FLAGS_OF_NATS_SERVER = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class _Completion(NamedTuple):
    """A completion, as Typer's shells read it."""

    value: str
    help: str
    type: str = "plain"


class _ServerCommand(TyperCommand):
    """A command with nats-server's flags: a shell completes them."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the flags that begin with the incomplete word; none for a value, which the shell completes."""
        if not incomplete.startswith("-"):
            return []
        flags = [flag for _, section in SECTIONS for flag in section]
        named = [(f"{'-' if len(name) < 3 else '--'}{name}", flag.help) for flag in flags for name in flag.names]
        return [_Completion(name, text) for name, text in named if name.startswith(incomplete)]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"lakestream: v{__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A NATS JetStream server that keeps every stream as a Delta table."""
    quiet_asyncio()


@app.command(cls=_ServerCommand, context_settings=_FLAGS_OF_NATS_SERVER, rich_help_panel=RUN)
def serve(context: typer.Context) -> None:
    """Start a server. Takes nats-server's flags; `lakestream serve -h` lists them."""
    from lakestream.cli import serve as command

    raise typer.Exit(command.serve(context.args))


@app.command(cls=_ServerCommand, context_settings=_FLAGS_OF_NATS_SERVER, rich_help_panel=RUN)
def up(context: typer.Context) -> None:
    """Start a server and its compactor over ./data. Takes the flags of serve."""
    from lakestream.cli import up as command

    raise typer.Exit(command.up(context.args))


def _sql() -> None:
    """Query the lake: DuckDB's SQL over the streams, with TIMESTAMP AS OF, VERSION AS OF and as_of()."""


def _compact() -> None:
    """Run the compactor: write staged messages into the streams' Delta tables with Spark."""


def _maintain() -> None:
    """Maintain the streams' Delta tables with Spark: rewrite small files, delete old ones, shorten the logs."""


def _clone() -> None:
    """Make a shallow clone of a stream's Delta table with Spark."""


def _replay() -> None:
    """Decode the messages that did not fit their schema again, after it was mended, with Spark."""


def _demo() -> None:
    """Publish 336,776 flights, ask the lake three questions, and check the answers against the data set."""


def _import() -> None:
    """Import a table or text file into a stream: each row becomes a message, exactly once."""


def _export() -> None:
    """Export a stream to a plain table: Delta, Parquet, CSV or JSON lines."""


def _move() -> None:
    """Move streams, buckets and consumers from one NATS server to another."""


def _bench() -> None:
    """Measure a NATS server with workloads, and show rates and latencies as a table and a plot."""


app.command("demo", cls=OptionalCommand, rich_help_panel=RUN)(_demo)
app.add_typer(config, name="config", rich_help_panel=RUN)
app.command(rich_help_panel=NATS)(pub)
app.command(rich_help_panel=NATS)(sub)
app.command(rich_help_panel=NATS)(request)
app.command("req", hidden=True)(request)
app.add_typer(stream, name="stream", rich_help_panel=NATS)
app.add_typer(consumer, name="consumer", rich_help_panel=NATS)
app.add_typer(kv, name="kv", rich_help_panel=NATS)
app.add_typer(objects, name="object", rich_help_panel=NATS)
app.command("sql", cls=OptionalCommand, rich_help_panel=DATA)(_sql)
app.command("import", cls=OptionalCommand, rich_help_panel=DATA)(_import)
app.command("export", cls=OptionalCommand, rich_help_panel=DATA)(_export)
app.command(rich_help_panel=DATA)(restore)
app.command("move", cls=OptionalCommand, rich_help_panel=DATA)(_move)
schema.command("replay", cls=OptionalCommand)(_replay)
schema.command("restore")(restore_schemas)
app.add_typer(schema, name="schema", rich_help_panel=DATA)
app.add_typer(sharing, name="sharing", rich_help_panel=DATA)
app.command(rich_help_panel=LOOK)(doctor)
app.command(rich_help_panel=LOOK)(verify)
app.command(rich_help_panel=LOOK)(repair)
app.command(rich_help_panel=LOOK)(status)
app.command(rich_help_panel=LOOK)(top)
app.command("bench", cls=OptionalCommand, rich_help_panel=LOOK)(_bench)
app.command("compact", cls=OptionalCommand, rich_help_panel=LAKE)(_compact)
app.command("maintain", cls=OptionalCommand, rich_help_panel=LAKE)(_maintain)
app.command("clone", cls=OptionalCommand, rich_help_panel=LAKE)(_clone)
app.add_typer(catalog, name="catalog", rich_help_panel=LAKE)
