"""The Typer application with every command of `lakestream`.

Belongs here: the list of commands. Each is in its own module, or in an optional package (`optional.py`). `serve` and
`up` take nats-server's flags, so their arguments pass through unread; a shell completes them by the table of flags.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from lakestream import __version__
from lakestream.cli.flags import SECTIONS
from lakestream.cli.optional import OptionalCommand, OptionalCommands
from lakestream.cli.terminal import quiet_asyncio

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


def _later(panel: str, name: str, help: str, *, hidden: bool = False) -> None:
    """Add a command that is loaded when it is wanted."""
    command = app.command(name, cls=OptionalCommand, help=help, rich_help_panel=panel, hidden=hidden)
    command(lambda: None)


def _later_group(panel: str, name: str, help: str) -> None:
    """Add a group of commands that is loaded when one is wanted."""
    app.add_typer(typer.Typer(cls=OptionalCommands, help=help, no_args_is_help=True), name=name, rich_help_panel=panel)


_later(RUN, "demo", "Publish 336,776 flights, ask the lake three questions, and check the answers.")
_later_group(RUN, "config", "Check a configuration file, or show the settings in force.")
_later(RUN, "rotate-key", "Change the key of an encrypted store; no data is rewritten.")
_later(NATS, "pub", "Publish messages.")
_later(NATS, "sub", "Subscribe, and print the messages that arrive.")
_later(NATS, "request", "Send requests, and print the answers.")
_later(NATS, "req", "Send requests, and print the answers.", hidden=True)
_later_group(NATS, "stream", "Create, show, edit, read and delete streams.")
_later_group(NATS, "consumer", "Create, show, read, pause and delete consumers.")
_later_group(NATS, "kv", "Create and show key-value buckets; put, get, watch and delete keys.")
_later_group(NATS, "object", "Create and show object stores; put, get and delete objects.")
_later(DATA, "sql", "Query the lake: DuckDB's SQL over the streams, with TIMESTAMP AS OF, VERSION AS OF and as_of().")
_later(DATA, "mcp", "Serve streams, tables and buckets as tools to AI assistants (MCP), over stdio or HTTP.")
_later(DATA, "import", "Import a table or text file into a stream: each row becomes a message, exactly once.")
_later(DATA, "export", "Export a stream to a plain table: Delta, Parquet, CSV or JSON lines.")
_later(DATA, "restore", "Restore a stream as it was at a time: sequences, times, headers and gaps as they were.")
_later(DATA, "move", "Move streams, buckets and consumers from one NATS server to another.")
_later_group(DATA, "schema", "Register, compare and infer schemas of payloads.")
_later_group(DATA, "registry", "Serve Confluent's Schema Registry API, and bring schemas from other registries.")
_later_group(DATA, "sharing", "Share tables with recipients over Delta Sharing.")
_later(LOOK, "doctor", "Check this machine and a configuration, and say what is wrong and what to do.")
_later(LOOK, "verify", "Verify stores, or a running server, and the lake. Nothing is changed.")
_later(LOOK, "repair", "Repair what is safe; damaged files move aside. The exit code is 1 if damage is left.")
_later(LOOK, "status", "Show a server on one screen: load, streams, lag of the tables, the compactor, and warnings.")
_later(LOOK, "top", "Watch the rates of streams and connections and the lag of consumers, live.")
_later(LOOK, "bench", "Measure a NATS server with workloads, and show rates and latencies as a table and a plot.")
_later(LAKE, "compact", "Run the compactor: write staged messages into the streams' Delta tables with Spark.")
_later(
    LAKE,
    "maintain",
    "Maintain the streams' Delta tables with Spark: rewrite small files, delete old ones.",
)
_later(LAKE, "clone", "Make a shallow clone of a stream's Delta table with Spark.")
_later_group(LAKE, "iceberg", "Serve the Iceberg tables of a lake by a REST catalog.")
_later_group(LAKE, "catalog", "Register a lake's tables in a Hive metastore, AWS Glue or Unity Catalog.")
