"""Completion of names at the prompt of `lakestream sql`.

Belongs here: the words that may stand at a place of a statement: tables, columns of those that it names, functions. The
session is asked for them in its own language, once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from lakestream.lake.errors import LakeError
from lakestream_sql.buckets import short_name, written
from lakestream_sql.tokens import Language, SqlToken, tokens

KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "LIMIT", "JOIN", "USING", "HAVING", "WITH", "UNION", "DISTINCT"),
    *("BETWEEN", "INTERVAL", "VERSION", "TIMESTAMP", "DESCRIBE", "SUMMARIZE", "HISTORY", "EXPLAIN", "SHOW", "TABLES"),
)
DELIMITERS = " \t\n,;()[]{}=<>+-*/%|!:'"
"""Characters between words."""
_BEFORE_TABLES = ("FROM", "JOIN", "DESCRIBE", "SUMMARIZE", "HISTORY")
Ask = Callable[[str], Iterable[Iterable[tuple[Any, ...]]]]
"""Asks statements; returns their rows."""


TABLE_FUNCTIONS = {"duckdb": ("as_of(", "last("), "spark": ("as_of(",)}
COMMANDS = (".tables", ".help", ".quit")
"""Commands of the prompt, which are no SQL."""


class Completer:
    """Candidates for the word before the cursor.

    Args:
        ask: asks the session.
        language: of the session.
        typed: returns the statement up to that word, and what follows it.
    """

    def __init__(self, ask: Ask, language: Language, typed: Callable[[], tuple[str, str]]) -> None:
        self._ask, self._language, self._typed = ask, language, typed
        self._columns = dict[str, list[str]]()
        self._found = list[str]()

    def complete(self, word: str, state: int) -> str | None:
        """Return a candidate by its number, as readline asks for them."""
        if state == 0:
            self._found = self.candidates(word, *self._typed())
        return self._found[state] if state < len(self._found) else None

    def candidates(self, word: str, before: str, behind: str = "") -> list[str]:
        """Return the words that begin with `word`: keywords begin a statement, tables stand behind FROM, elsewhere
        columns and functions too."""
        found, more = self._names(before), self._names(behind)
        words = list(self._tables)
        table, dot, _ = word.rpartition(".")
        if not before.rpartition(";")[2].strip():
            words = [*KEYWORDS, *COMMANDS]
        elif found and found[-1].is_word(*_BEFORE_TABLES):
            words += TABLE_FUNCTIONS[self._language]
        else:
            columns = self._columns_named([*found, *more])
            words = [*columns, *words, *(f"{name}(" for name in self._functions), *KEYWORDS]
        if dot and table:
            words += [f"{table}.{each}" for each in self._columns_named(_called([*found, *more], table))]
        return list(dict.fromkeys(each for each in words if each.lower().startswith(word.lower())))

    def _names(self, text: str) -> list[SqlToken]:
        return [token for token in tokens(text, self._language) if token.kind in ("word", "quoted", "ticked")]

    def _columns_named(self, names: list[SqlToken]) -> list[str]:
        """Return the columns of the tables that some names mean."""
        columns = list[str]()
        for listed in self._tables.values():
            table = listed.partition(".")[2].strip("`").lower()
            if any(token.name.lower() in (table, table.rpartition("/")[2]) for token in names):
                columns += self._columns_of(listed)
        return columns

    @cached_property
    def _tables(self) -> dict[str, str]:
        """Return the names of tables: as they may be written, and as the session lists them."""
        listed = self._first("SHOW TABLES")
        return (
            {each: each for each in listed} if self._language == "spark" else {_written(each): each for each in listed}
        )

    @cached_property
    def _functions(self) -> list[str]:
        return self._first("SHOW FUNCTIONS")

    def _columns_of(self, table: str) -> list[str]:
        if table not in self._columns:
            self._columns[table] = self._first(f"DESCRIBE {table}")
        return self._columns[table]

    def _first(self, statement: str) -> list[str]:
        """Return the first column of the answer; nothing where there is none."""
        try:
            return [str(row[0]) for rows in self._ask(statement) for row in rows]
        except LakeError:
            return []


def _written(listed: str) -> str:
    """Return the shortest name of a table, for the one that DuckDB's session lists."""
    view, _, name = listed.rstrip("`").partition(".`")
    return short_name(name) if view == "delta" else f"{view}.{written(name)}"


def _called(names: list[SqlToken], called: str) -> list[SqlToken]:
    """Return those of some names that a table is called by, as in ORDERS or ORDERS AS o: itself, or what stands before
    its alias."""
    found = list[SqlToken]()
    named = [each for each in names if not each.is_word("AS")]
    for before, each in zip([*named[:1], *named], named, strict=False):
        if called.strip('"').lower() == each.name.lower():
            found += [each, before]
    return found
