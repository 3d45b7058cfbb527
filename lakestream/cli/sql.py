"""`lakestream sql`: questions to the lake from a terminal, a pipe or a script.

Belongs here: the command's options, its prompt, and its exit codes: 0 when every statement was answered, 1 at the first
that was not, 130 after Ctrl-C. The SQL itself is lakestream.lake.sql's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lakestream.cli.results import WRITERS
from lakestream.lake.errors import LakeError
from lakestream.lake.spark_sql import split
from lakestream.lake.sql import Session

DEFAULT_LAKE = Path("data", "lake")
HISTORY_LENGTH = 1000
INTERRUPTED = 130
_PROMPT, _CONTINUED = "sql> ", "...> "
_HELP = """\
Write Spark SQL and end it with a semicolon; it may span lines.
  SELECT subject, count(*) FROM delta.`streams/ORDERS` GROUP BY subject;
  SELECT get_json_object(data, '$.id') FROM delta.`streams/ORDERS` VERSION AS OF 3;
  SELECT * FROM delta.`streams/ORDERS` TIMESTAMP AS OF '2026-05-01 12:00:00';
  DESCRIBE delta.`streams/ORDERS`;   DESCRIBE HISTORY delta.`streams/ORDERS`;
.tables  the streams that have a table
.help    this
.quit    leave (so does Ctrl-D); Ctrl-C drops what is typed, or stops the query"""


class Format(StrEnum):
    """How rows are written."""

    table = "table"
    csv = "csv"
    json = "json"


def default_lake() -> Path:
    """Where the lake is when nobody says: here, if this directory is a lake's root, else ./data/lake."""
    return Path() if Path("streams").is_dir() or Path("segments").is_dir() else DEFAULT_LAKE


def sql(
    query: Annotated[str | None, typer.Option("-q", "--query", help="Answer this and leave; else a prompt.")] = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", envvar="LAKESTREAM_LAKE", help="The lake (default: here if it is one, or ./data/lake)."),
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How rows are written.")] = Format.table,
) -> None:
    """Ask the lake: Spark SQL over delta.`streams/<STREAM>`, with TIMESTAMP AS OF and VERSION AS OF."""
    try:
        with Session(lake or default_lake()) as session:
            shell = _Shell(session, format)
            if query is not None:
                code = shell.answer(query)
            elif sys.stdin.isatty():
                code = shell.converse()
            else:
                code = shell.answer(sys.stdin.read())
    except LakeError as error:
        _complain(error)
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as `head` does: nothing is wrong. Python must not flush into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def _complain(error: LakeError) -> None:
    print(f"lakestream: {error}", file=sys.stderr)


class _Shell:
    """Statements in, rows out."""

    def __init__(self, session: Session, format: Format) -> None:
        self._session = session
        self._write = WRITERS[format]

    def answer(self, text: str) -> int:
        """Answer every statement of a text up to the first wrong one; the exit code."""
        try:
            for result in self._session.run(text):
                self._write(result, sys.stdout)
            sys.stdout.flush()
        except LakeError as error:
            sys.stdout.flush()
            _complain(error)
            return 1
        return 0

    def converse(self) -> int:
        """The prompt. A wrong statement does not end it."""
        print(f"lakestream sql on {self._session.root}: {self._described()}. .help for help, .quit to leave.")
        with _history():
            pending = ""
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
                    if not self._command(line.strip()):
                        return 0
                    continue
                pending = self._take(pending + line + "\n")

    def _take(self, text: str) -> str:
        """Answer the complete statements of what was typed; the rest waits for more lines."""
        done, rest = split(text)
        for statement, _ in done:
            try:
                if self.answer(statement.strip()) != 0:
                    break
            except KeyboardInterrupt:
                print("\nstopped", file=sys.stderr)
                break
        return rest if rest.strip() else ""

    def _command(self, line: str) -> bool:
        """A line that begins with a dot. False: leave."""
        word = line.rstrip(";").lower()
        if word in (".quit", ".exit"):
            return False
        if word == ".help":
            print(_HELP)
        elif word == ".tables":
            for name in self._session.tables():
                print(f"delta.`{name}`")
        else:
            print(f"{line} is not a command; .help shows them", file=sys.stderr)
        return True

    def _described(self) -> str:
        count = len(self._session.tables())
        return "no table yet" if count == 0 else "1 table" if count == 1 else f"{count} tables"


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, and the lines of earlier sessions."""
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
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a home that cannot be written only costs the history
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
