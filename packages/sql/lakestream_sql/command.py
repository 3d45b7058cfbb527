"""`lakestream sql`: SQL on the lake from a terminal, a pipe or a script.

Belongs here: the command's options, its prompt, and its exit codes: 0 when every statement succeeded, 1 at the first
that failed, 130 after Ctrl-C. The SQL itself is in lakestream_sql.session.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, Protocol

import typer

from lakestream import extras
from lakestream.cli.lake_options import LakeOption, default_lake
from lakestream.cli.results import WRITERS, ResultRows
from lakestream.cli.server_options import DEFAULT_SERVER, Server, with_login
from lakestream.cli.terminal import complain
from lakestream.lake.errors import LakeError
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.spark import ENTRY_POINTS
from lakestream_sql import TAIL_BYTES, Timestamps
from lakestream_sql.completion import DELIMITERS, Completer
from lakestream_sql.first_answer import require_answer
from lakestream_sql.tokens import Language, split

HISTORY_LENGTH = 1000
INTERRUPTED = 130
_PROMPT, _CONTINUED = "sql> ", "...> "
_HELP = """\
Write SQL as DuckDB has it and end it with a semicolon; it may span lines. Tables are the streams.
  SELECT subject, sum((json->>'price')::double) FROM ORDERS GROUP BY subject;
  SELECT seq, text(data) FROM ORDERS VERSION AS OF 3;
  SELECT * FROM ORDERS TIMESTAMP AS OF '2026-05-01 12:00:00';
  SELECT * FROM as_of(ORDERS, '2026-05-01 12:00:00.123456789');
  DESCRIBE ORDERS;   SUMMARIZE ORDERS;   DESCRIBE HISTORY ORDERS;
.tables  the streams, and how far their tables are (so does SHOW TABLES)
.help    this; TAB completes names
.quit    leave (so does Ctrl-D); Ctrl-C drops what is typed, or stops the query"""


RowFormat = Literal["table", "csv", "json"]


class Answerer(Protocol):
    """Session of a query engine that the shell uses."""

    root: str

    def tables(self) -> list[str]: ...

    def run(self, text: str) -> Iterable[ResultRows]: ...

    def close(self) -> None: ...


@with_login
def sql(
    login: Server,
    text: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="The query, the same as --query.")] = None,
    query: Annotated[
        str | None,
        typer.Option("-q", "--query", help="Run one query and exit. Without it, open an interactive prompt."),
    ] = None,
    lake: LakeOption = None,
    format: Annotated[RowFormat, typer.Option("--format", "-f", help="Output format.")] = "table",
    committed: Annotated[
        bool, typer.Option("--committed", help="Read only committed tables, without the newest messages.")
    ] = False,
    engine: Annotated[Language, typer.Option(help="Query engine; spark: Spark SQL on committed tables.")] = "duckdb",
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "-s",
            metavar="URL",
            help="The server: asked over NATS where no lake is; with a lake, for its newest messages.",
            show_default="the lake's",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Ask this server over NATS, even if there is a lake here."),
    ] = None,
    stream: Annotated[
        str, typer.Option("--stream", help="Over NATS: read this stream alone, as the user's permissions allow.")
    ] = "",
    tail_bytes: Annotated[
        int,
        typer.Option("--tail-bytes", min=0, help="Maximum bytes of a stream to read that are not in its table yet."),
    ] = TAIL_BYTES,
    timestamps: Annotated[
        Timestamps,
        typer.Option("--timestamp-as-of", help="Meaning of TIMESTAMP AS OF: time of commits, or of messages (as_of)."),
    ] = "commit",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, the same as --format json.")] = False,
) -> None:
    """Query the lake: DuckDB's SQL over the streams, with TIMESTAMP AS OF, VERSION AS OF and as_of()."""
    if url is None and lake is None and not default_lake().is_dir():
        url = server or (login.url if login.named and login.url != DEFAULT_SERVER else os.environ.get("NATS_URL"))

    def ask_lake() -> None:
        if not url:
            require_answer(paths.root(os.fspath(lake or default_lake())), complain)

    def opened() -> Answerer:
        if url:
            from lakestream_sql.nats_engine import NatsEngine  # loads nats-py, DuckDB and pyarrow

            return NatsEngine(url, login.login, stream, engine)
        root = os.fspath(lake or default_lake())
        ask_lake()
        if paths.is_local(paths.root(root)):  # in an object store the answer would cost each query requests
            lakes.require(root)
        if engine == "spark":
            spark: Answerer = extras.load(ENTRY_POINTS, "engine", "lake", "--engine spark")(root, timestamps=timestamps)
            return spark
        from lakestream_sql.session import Session  # loads DuckDB
        from lakestream_sql.uncompacted import FlushServer

        return Session(
            root,
            committed=committed,
            server=FlushServer(server, login.login),
            tail_bytes=tail_bytes,
            notify=complain,
            timestamps=timestamps,
        )

    if url and timestamps != "commit":
        complain("--timestamp-as-of is for queries of a lake's files; over NATS write as_of('ORDERS', T)")
        raise typer.Exit(1)
    try:
        with contextlib.closing(opened()) as session:
            shell = _Shell(session, "json" if as_json else format, engine)
            if (asked := text if query is None else query) is not None:
                code = shell.script(asked)
            elif sys.stdin.isatty():
                code = shell.converse(ask_lake)
            else:
                code = shell.script(sys.stdin.read())
    except LakeError as error:
        complain(error)
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


class _Shell:
    """Reads statements and writes their rows."""

    def __init__(self, session: Answerer, format: RowFormat, language: Language) -> None:
        self._session = session
        self._language = language
        self._write = WRITERS[format]
        self._ask_lake: Callable[[], None] = lambda: None

    def script(self, text: str) -> int:
        """Run a non-interactive text: commands, a line each, then statements. Returns the exit code."""
        while (line := text.lstrip().partition("\n")[0].strip()).startswith("."):
            code = self._command(line)
            if code != 0:
                return code or 0
            end = len(text) - len(text.lstrip()) + len(line)
            text = re.sub(r"\S", " ", text[:end]) + text[end:]  # positions in the rest do not change
        return self.answer(text)

    def answer(self, text: str) -> int:
        """Run every statement of a text up to the first that fails; return the exit code."""
        try:
            self._ask_lake()
            for result in self._session.run(text):
                self._write(result, sys.stdout)
            sys.stdout.flush()
        except LakeError as error:
            sys.stdout.flush()
            complain(error)
            return 1
        return 0

    def converse(self, ask_lake: Callable[[], None]) -> int:
        """Run the prompt. A failed statement does not end it.

        Args:
            ask_lake: called before each statement; raises LakeError if the lake does not answer any more.
        """
        self._ask_lake = ask_lake
        count = len(self._session.tables())
        described = "no table yet" if count == 0 else "1 table" if count == 1 else f"{count} tables"
        print(f"lakestream sql on {self._session.root}: {described}. .help for help, .quit to leave.")
        pending = ""

        def typed() -> tuple[str, str]:
            before, behind = _around_word()
            return pending + before, behind

        completer = Completer(self._session.run, self._language, typed)
        with _history(completer):
            while True:
                try:
                    line = input(_CONTINUED if pending else _PROMPT)
                except EOFError:
                    print()
                    return self.answer(pending) if pending.strip() else 0
                except KeyboardInterrupt:
                    print()
                    pending = ""
                    continue
                if not pending and line.strip().startswith("."):
                    if self._command(line.strip()) is None:
                        return 0
                    continue
                pending = self._take(pending + line + "\n")

    def _take(self, text: str) -> str:
        """Run the complete statements of the input; the rest waits for more lines."""
        done, rest = split(text, self._language)
        for statement, _ in done:
            try:
                if self.answer(statement.strip()) != 0:
                    break
            except KeyboardInterrupt:
                print("\nstopped", file=sys.stderr)
                break
        return rest if rest.strip() else ""

    def _command(self, line: str) -> int | None:
        """Run a line that begins with a dot. Returns its exit code; None: leave."""
        word = line.rstrip(";").lower()
        if word in (".quit", ".exit"):
            return None
        if word == ".help":
            print(_HELP)
        elif word == ".tables":
            return self.answer("SHOW TABLES")
        else:
            complain(f"{line} is not a command; .help shows them")
            return 1
        return 0


def _around_word() -> tuple[str, str]:
    """Return the line up to the word that is completed, and what follows it."""
    import readline

    line = readline.get_line_buffer()
    return line[: readline.get_begidx()], line[readline.get_endidx() :]


@contextlib.contextmanager
def _history(completer: Completer) -> Iterator[None]:
    """Set up line editing with the lines of earlier sessions, and TAB."""
    try:
        import readline
    except ImportError:  # a Python built without it: plain lines
        yield
        return
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    file = Path(state, "lakestream", "sql_history")
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LENGTH)
    readline.set_completer(completer.complete)
    readline.set_completer_delims(DELIMITERS)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # without a writable home there is no history
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
