"""Statements in DuckDB's SQL, and the tables that they name.

Belongs here: cutting a text into statements, and replacing the places of tables in one by what DuckDB can read. Pure,
but for DuckDB's parser: a function that the caller passes in resolves the names.

A query is DuckDB's, to the letter. Ours are only the names of tables and their times, which DuckDB would not parse:

    delta.`streams/ORDERS`        a name in backticks, or delta.'/path'
    ORDERS VERSION AS OF 3        or TIMESTAMP AS OF, with any value behind it
    as_of(ORDERS, '…')            a table as of a time of messages
    last(ORDERS)                  the last message of each subject; DuckDB parses it, but does not know it
    :name                         a parameter; DuckDB's own $name and ? as well

The tokens tell where these are (tokens.py). What is left parses in DuckDB, whose own parser then says which names are
tables, and which are those of a WITH. Each table becomes a `query('…')` in its place. Every other letter stays.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import duckdb
import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.last_messages import MAX_FILTERS
from lakestream.lake.storage import paths
from lakestream.lake.table.schema import doubled, literal
from lakestream.protocol.subjects import subscribable
from lakestream_sql import buckets
from lakestream_sql.buckets import View
from lakestream_sql.explained import DuckdbError, advised, is_sparks
from lakestream_sql.tokens import SqlToken, significant, split, tokens


class SqlError(LakeError):
    """Raised when a query could not be answered. The text says what to do."""


class BadSql(SqlError):
    """Raised for a text that is not supported SQL; shows the place.

    Args:
        reason: the error.
        text: the whole query text.
        offset: the place, in characters from its start; None when it is not known.
    """

    def __init__(self, reason: str, text: str, offset: int | None = None) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(reason if offset is None else f"{reason}\n{excerpt(text, offset)}")


def excerpt(text: str, offset: int) -> str:
    """Return the line of `text` that holds `offset`, with a mark under the place."""
    offset = min(offset, len(text))
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : len(text) if end < 0 else end]
    number = text.count("\n", 0, offset) + 1
    return f"  line {number}, column {offset - start + 1}:\n  {line}\n  {' ' * (offset - start)}^"


# ---------------------------------------------------------------------- tables


class Travel(msgspec.Struct, frozen=True):
    """VERSION AS OF, TIMESTAMP AS OF, MESSAGES (the time of as_of) or SEQUENCE (the revision of a bucket). `value` is
    its expression; `text` is a time that is written out, which may be more exact than DuckDB's times."""

    kind: Literal["VERSION", "TIMESTAMP", "MESSAGES", "SEQUENCE"]
    value: str
    text: str | None = None


class Mention(msgspec.Struct, frozen=True):
    """A table as a query mentions it.

    `name`: as written between the backticks after `delta.`, or as the argument of as_of; `bare`: of a stream, as in
    `FROM ORDERS`. `place`: its offset in the query text. `subject`: the only subject whose rows the query can want of
    it, where that is obvious. `view`: the table of a bucket or an object store (buckets.py), or of misfits, over the
    stream of that name. `last`: only the last message of each subject is read; NATS filters for all subjects that the
    query can want (empty: every subject). `pattern`: the filter that the query names. `counted`: the query wants only
    the number of rows.
    """

    name: str
    travel: Travel | None = None
    place: int = 0
    subject: str | None = None
    view: View | Literal["misfits"] | None = None
    bare: bool = False
    last: tuple[str, ...] | None = None
    pattern: str = ""
    counted: bool = False


class TableAt(msgspec.Struct, frozen=True):
    """A Delta table at a version, to replace a mention; where DuckDB cannot read it, the view of this name."""

    path: str
    version: int
    view: str = ""


class Selection(msgspec.Struct, frozen=True):
    """A SELECT in DuckDB's SQL, to replace a mention."""

    sql: str


def rows_of(found: TableAt | Selection) -> str:
    """Return the query for all rows of a relation."""
    return f"SELECT * FROM {scan(found)}" if isinstance(found, TableAt) else found.sql


def scan(table: TableAt) -> str:
    """Return the relation with which DuckDB reads a table at a version."""
    if table.view:
        return table.view
    return f"delta_scan({literal(table.path)}, version = {table.version})"


Locate = Callable[[Mention], TableAt | Selection | None]
"""Resolves a mentioned table; None for a name that is DuckDB's to know. Raises SqlError."""
AS_OF, LAST = "as_of", "last"
Value = bool | int | float | str | None
"""A value of a parameter."""


class Bindings(msgspec.Struct, frozen=True):
    """Values that a query gets beside its text.

    `parameters`: of `:name` and `$name` by name; the first `?` of a text has the name 1. `unbound`: those without a
    value are NULL. `as_of`: a time, as the second argument of as_of; every stream without a time of its own is read as
    of it. None: as it is now.
    """

    parameters: Mapping[str, Value] = {}
    as_of: int | str | None = None
    unbound: bool = False


NO_BINDINGS = Bindings()
Timestamps = Literal["commit", "message"]
"""Meaning of TIMESTAMP AS OF on a stream's table: time of commits, as in Delta, or of messages, as in as_of."""
NESTED = "the query is nested too deeply; split it with WITH, or into several queries"
READ_ONLY = (
    "a statement here reads: SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, DESCRIBE HISTORY, SUMMARIZE, SHOW TABLES or "
    "EXPLAIN; streams change through NATS"
)

# ---------------------------------------------------------------------- replacing


class Edit(NamedTuple):
    """A replacement for the text from `start` to `end`."""

    start: int
    end: int
    text: str


class Edited:
    """A text with replacements.

    Args:
        text: the original.
        edits: do not overlap.
    """

    def __init__(self, text: str, edits: list[Edit]) -> None:
        edits.sort()
        self._edits, self._starts = edits, list[int]()
        parts, at, grown = list[str](), 0, 0
        for edit in edits:
            parts += [text[at : edit.start], edit.text]
            self._starts.append(edit.start + grown)
            grown += len(edit.text) - (edit.end - edit.start)
            at = edit.end
        self.text = "".join(parts) + text[at:]

    def place(self, offset: int) -> int:
        """Return the original's offset for one of the result; in a replacement its beginning."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return offset
        edit, inside = self._edits[at], offset - self._starts[at]
        return edit.start if inside < len(edit.text) else edit.end + inside - len(edit.text)


# ---------------------------------------------------------------------- DuckDB's parser


class Unparsed(Exception):
    """Raised for a text that DuckDB does not parse as a query: its reason, and the place."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason, self.offset = reason, offset


class SqlParser:
    """DuckDB's parser.

    Args:
        connection: to any database.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        rows = connection.cursor().execute("SELECT keyword_name, keyword_category FROM duckdb_keywords()").fetchall()
        self.reserved = frozenset(name.upper() for name, kind in rows if kind == "reserved")
        self.before_values = frozenset(name.upper() for name, kind in rows if kind != "unreserved") | {"BY", "OF"}
        """Words behind which a value may begin."""

    def tree(self, sql: str) -> dict[str, Any]:
        """Return the tree of one query.

        Raises:
            Unparsed: it is not one.
        """
        found = self._serialized(sql)
        if found.get("error_type") == "not implemented" and (listed := _with_values(sql)) != sql:
            found = self._serialized(listed)
        if found.get("error"):
            # An error's position is in characters; those of nodes are in bytes.
            reason, offset = str(found.get("error_message")), int(found.get("position", 0))
            if found.get("error_type") == "not implemented":
                reason = READ_ONLY
            elif "at end of input" in reason:
                offset = max(len(sql.rstrip()) - 1, 0)
            raise Unparsed(reason, offset or len(sql) - len(sql.lstrip()))
        if len(found["statements"]) != 1:
            raise Unparsed("one query is expected here", 0)
        return dict(found["statements"][0])

    def is_value(self, sql: str) -> bool:
        """Return True for a value, which may have operators and calls in it."""
        return not self._serialized(f"SELECT ({sql}\n)").get("error")

    def _serialized(self, sql: str) -> dict[str, Any]:
        # Not as a parameter: DuckDB imports pandas for the first one, a fifth of a cold query. But a literal
        # ends at a NUL.
        written = ("SELECT json_serialize_sql(?)", [sql])
        if "\0" not in sql:
            written = (f"SELECT json_serialize_sql({literal(sql)})", [])
        try:
            row = self._connection.cursor().execute(*written).fetchone()
            return dict(msgspec.json.decode(row[0])) if row is not None else {}
        except (RecursionError, duckdb.Error):
            raise Unparsed(NESTED, 0) from None


def characters(text: str, offset: int) -> int:
    """Return the number of characters in so many bytes of a text."""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def _with_values(sql: str) -> str:
    """Return a PIVOT with an empty list for each of its columns without one.

    DuckDB makes two statements of it, the first of which asks for the values, and shows the tree of neither.
    """
    found, edits = significant(sql), list[Edit]()
    for number, token in enumerate(found):
        depth, on, listed = 0, False, not token.is_word("PIVOT", "PIVOT_WIDER")
        for each in [*found[number + 1 :], SqlToken("sign", ")", len(sql), len(sql))]:
            depth += each.depth
            ends = depth < 0 or (depth == 0 and each.is_word("USING", "GROUP", "ORDER", "LIMIT"))
            if on and not listed and (ends or (depth == 0 and each.text == ",")):
                edits.append(Edit(each.start, each.start, " IN ('') "))
            if ends or (listed and not on):
                break
            if depth == 0:
                on, listed = on or each.is_word("ON"), each.text != "," and (listed or each.is_word("IN"))
    return Edited(sql, edits).text


# ---------------------------------------------------------------------- statements


class TableReference(msgspec.Struct, frozen=True):
    """A table in a statement: its place, what has to stand before and behind it there, and the replacements of names
    before its columns."""

    mention: Mention
    start: int = 0
    end: int = 0
    before: str = ""
    behind: str = ""
    qualifiers: tuple[Edit, ...] = ()


class Statement(msgspec.Struct, frozen=True):
    """One statement of a text.

    `sql`: a query in DuckDB's SQL, except for its tables; `prefix`: EXPLAIN and what belongs to it. `place` gives the
    offset in the whole text for one in `sql`. `parameters`: names of those in the text.
    """

    kind: Literal["query", "history", "tables", "functions", "explain"]
    sql: str
    place: Callable[[int], int]
    references: tuple[TableReference, ...] = ()
    prefix: str = ""
    parameters: tuple[str, ...] = ()

    def mentions(self) -> list[Mention]:
        """Return the tables that the statement mentions, in the order of the text."""
        return [each.mention for each in self.references]


def parse(text: str, parser: SqlParser, bindings: Bindings | None = NO_BINDINGS) -> list[Statement]:
    """Parse every statement of a text, with the values of parameters in the place of their names.

    A value becomes a literal: no text of a value is ever parsed as more.

    Args:
        bindings: None for a text whose parameters get no values yet.

    Raises:
        BadSql: with the place, when it does not parse or does more than read, or parameters and values do not agree.
    """
    done, rest = split(text)
    if rest:
        done.append((rest, len(text) - len(rest)))
    given = bindings or Bindings(unbound=True)
    marks = itertools.count(1)
    found = [_Reader(part, offset, text, parser, given, marks).statement() for part, offset in done]
    used = {name for each in found for name in each.parameters}
    if left := sorted(given.parameters.keys() - used):
        raise BadSql(f"the query has no parameter :{left[0]}", text)
    return found


def parameters(statements: list[Statement]) -> list[str]:
    """Return the names of the parameters of some statements: numbers in their order, then names in that of the
    alphabet."""
    found = {name for statement in statements for name in statement.parameters}
    return sorted(found, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))


def rewrite(statement: Statement, locate: Locate) -> Edited:
    """Return the query of a statement for DuckDB, without its prefix. Raises SqlError from `locate`."""
    edits = list[Edit]()
    for each in statement.references:
        if (found := locate(each.mention)) is not None:
            # DuckDB inlines the SELECT into the query. It leaves out the virtual columns of a table, which name files
            # of this machine (`filename`) or make DuckDB fail for good (`rowid`).
            relation = f"{each.before}query({literal(rows_of(found))}){each.behind}"
            edits += [Edit(each.start, each.end, relation), *each.qualifiers]
    return Edited(statement.sql, list(dict.fromkeys(edits)))


_TRAVELS: dict[str, Literal["VERSION", "TIMESTAMP"]] = {"VERSION": "VERSION", "TIMESTAMP": "TIMESTAMP"}
_SCHEMAS = ("delta", "accounts", "misfits", *buckets.VIEWS)
MAX_VALUE_TOKENS = 64
"""Tokens of a value behind AS OF, without those in parentheses."""


class _Reader:
    """Parses one statement.

    Args:
        part: its text, which begins at `offset` in `text`.
        marks: numbers of `?`.
    """

    def __init__(
        self, part: str, offset: int, text: str, parser: SqlParser, given: Bindings, marks: Iterator[int]
    ) -> None:
        self._text, self._offset, self._parser, self._given = text, offset, parser, given
        self._parameters = list[str]()
        self._bound = Edited(part, self._values(part, marks))
        self._part = self._bound.text
        self._tokens = significant(self._part)
        self._travels = list[tuple[tuple[str, ...], Mention]]()

    def statement(self) -> Statement:
        """Return the statement."""
        found, names = self._tokens, tuple(self._parameters)
        if (last := found[-1]).kind == "open":
            raise self._bad("a quote or comment is not closed", last)
        if len(found) == 2 and found[0].is_word("SHOW") and found[1].is_word("TABLES", "FUNCTIONS"):
            listed: Literal["tables", "functions"] = "tables" if found[1].is_word("TABLES") else "functions"
            return Statement(listed, "", self._place, parameters=names)
        if len(found) > 2 and found[0].is_word("DESCRIBE", "DESC") and found[1].is_word("HISTORY"):
            chain, end = self._chain(2)
            if (mention := mentioned(chain, None, self._place(found[end - 1].start))) is None or end < len(found):
                raise self._bad("DESCRIBE HISTORY takes a table, as in DESCRIBE HISTORY ORDERS", found[2])
            return Statement("history", "", self._place, (TableReference(mention),), parameters=names)
        begin = self._explained() if found[0].is_word("EXPLAIN") else 0
        if begin >= len(found):
            raise self._bad("EXPLAIN takes a query", found[0])
        start = found[begin].start if begin else 0
        edited = Edited(self._part, self._edits(begin))
        sql = edited.text[start:]  # nothing before it was edited

        def place(offset: int) -> int:
            return self._place(edited.place(offset + start))

        try:
            tree = self._parser.tree(sql)
        except Unparsed as error:
            ticked = any(token.kind == "ticked" for token in tokens(sql))
            reason = advised(DuckdbError(error.reason), is_spark=ticked or is_sparks(sql[: error.offset]))
            raise BadSql(reason, self._text, place(error.offset)) from None
        references = self._references(sql, tree, place)
        return Statement("explain" if begin else "query", sql, place, references, self._part[:start], names)

    def _place(self, offset: int) -> int:
        return self._offset + self._bound.place(offset)

    def _bad(self, reason: str, at: SqlToken) -> BadSql:
        return BadSql(reason, self._text, self._place(at.start))

    # ---- parameters

    def _values(self, part: str, marks: Iterator[int]) -> list[Edit]:
        """Return the literals for parameters, and blanks that are plain."""
        if part.isascii() and not any(mark in part for mark in "?$:"):
            return []
        edits, found, before = list[Edit](), list(tokens(part)), SqlToken("sign", ";", 0, 0)
        for token, behind in zip(found, [*found[1:], before], strict=True):
            name, end = "", token.end
            if token.kind == "blank":
                edits.append(Edit(token.start, end, " " * (end - token.start)))
                continue
            if token.kind == "parameter":
                name = token.text[1:] or str(next(marks))
            elif token.text == ":" and behind.kind == "word" and behind.start == end and self._begins_value(before):
                name, end = behind.text, behind.end
            if name:
                self._parameters.append(name)
                if name not in self._given.parameters and not self._given.unbound:
                    raise BadSql(f"the parameter :{name} has no value", self._text, self._offset + token.start)
                edits.append(Edit(token.start, end, _literal(self._given.parameters.get(name))))
            before = token
        return edits

    def _begins_value(self, before: SqlToken) -> bool:
        """Return True if a value may begin behind a token: there, `:x` is no slice and no field of a struct."""
        if before.kind == "word":
            return before.text.upper() in self._parser.before_values
        return before.kind == "sign" and before.text not in ")]}["

    # ---- what DuckDB does not parse

    def _explained(self) -> int:
        """Return the number of the first token of the query of an EXPLAIN."""
        found = [*self._tokens, *[SqlToken("sign", ";", 0, 0)] * 2]
        if found[1].text == "(" and found[2].is_word("FORMAT", "ANALYZE"):
            return self._closing(1)
        return 2 if found[1].is_word("ANALYZE") else 1

    def _edits(self, at: int) -> list[Edit]:
        edits, found = list[Edit](), self._tokens
        while at < len(found):
            token, (chain, end) = found[at], self._chain(at)
            if len(chain) == 1 and token.is_word("AS_OF") and self._text_at(end) == "(":
                end = self._closing(end)
                chain, mention = (AS_OF,), self._as_of(at, end)
            elif chain and (travel := self._travel(at, end)) is not None:
                named = mentioned(chain, travel[0], self._place(found[end - 1].start))
                if named is None:
                    raise self._bad("AS OF takes a stream or a table of the lake before it", token)
                mention, end = named, travel[1]
            else:
                if chain and chain[0].lower() in _SCHEMAS:
                    names = [each for each in found[at:end] if each.kind in ("ticked", "string")]
                    edits += [Edit(each.start, each.end, doubled(each.name)) for each in names]
                at = max(end, at + 1)
                continue
            # A name that DuckDB parses stands for the table with its time.
            self._travels.append((chain, mention))
            edits.append(Edit(token.start, found[end - 1].end, f"{AS_OF}.m{len(self._travels)}"))
            at = end
        return edits

    def _chain(self, at: int) -> tuple[tuple[str, ...], int]:
        """Return names with dots between them, and the number of the token behind them."""
        names = list[str]()
        for number in range(at, len(self._tokens), 2):
            token = self._tokens[number]
            is_path = token.kind == "string" and [each.lower() for each in names] == ["delta"]
            if token.kind not in ("word", "quoted", "ticked") and not is_path:
                break
            names.append(token.name)
            if self._text_at(number + 1) != ".":
                return tuple(names), number + 1
        return (), at

    def _travel(self, start: int, at: int) -> tuple[Travel, int] | None:
        """Return VERSION AS OF or TIMESTAMP AS OF behind a chain of names, and the number of the token behind it."""
        found, first = self._tokens, self._tokens[start]
        if at == start + 1 and first.kind == "word" and first.text.upper() in self._parser.reserved:
            return None
        at += at < len(found) and found[at].is_word("FOR")
        words = [token.text.upper() for token in found[at : at + 3]]
        if words[1:] != ["AS", "OF"] or words[0] not in _TRAVELS or found[at].kind != "word":
            return None
        if (end := self._value_end(at + 3)) == at + 3:
            raise self._bad("AS OF needs a version or a time behind it", found[at - 1])
        return self._travel_to(_TRAVELS[words[0]], at + 3, end), end

    def _value_end(self, begin: int) -> int:
        """Return the number of the token behind a value: the longest one that DuckDB takes for a value."""
        depth, end, found = 0, begin, self._tokens
        for number in range(begin, min(begin + MAX_VALUE_TOKENS, len(found))):
            token = found[number]
            depth += token.depth
            if depth < 0 or (depth == 0 and (token.text == "," or token.is_word("WHERE", "ON", "ORDER", "GROUP"))):
                break
            if depth == 0 and self._parser.is_value(self._part[found[begin].start : token.end]):
                end = number + 1
        return end

    def _travel_to(self, kind: Literal["VERSION", "TIMESTAMP", "MESSAGES"], start: int, end: int) -> Travel:
        value = self._tokens[start:end]
        is_written = len(value) == 1 or (len(value) == 2 and value[0].is_word("TIMESTAMP", "TIMESTAMPTZ"))
        text = value[-1].name if is_written and value[-1].kind == "string" else None
        return Travel(kind, self._part[value[0].start : value[-1].end], text)

    def _text_at(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _closing(self, at: int) -> int:
        """Return the number of the token behind the parenthesis that closes the one at `at`."""
        if (end := closing(self._tokens, at)) is None:
            raise self._bad("a parenthesis is not closed", self._tokens[at])
        return end

    def _as_of(self, at: int, end: int) -> Mention:
        """Parse as_of(ORDERS, T)."""
        found, (chain, comma) = self._tokens, self._chain(at + 2)
        name, value = found[at + 2], found[comma + 1 + (not chain) : end - 1]
        if name.kind == "string":
            named, comma = Mention(name.name), at + 3
        else:
            named = mentioned(chain, None, 0) or Mention("")
        depths = itertools.accumulate(token.depth for token in value)
        more = any(not depth and token.text == "," for depth, token in zip(depths, value, strict=True))
        if not named.name or self._text_at(comma) != "," or not value or more:
            raise self._bad(
                "as_of takes a stream and a moment: as_of(ORDERS, '2026-05-01 12:00:00'), or ns since 1970", found[at]
            )
        travel = self._travel_to("MESSAGES", comma + 1, end - 1)
        return msgspec.structs.replace(named, travel=travel, place=self._place(found[at].start))

    # ---- tables

    def _last(self, call: dict[str, Any], place: int) -> Mention:
        """Return the table that last(ORDERS) means."""
        arguments = [*call["children"], None, None]
        pattern, mention = _text(arguments[1]), None
        if arguments[0] is not None and arguments[0]["type"] == "COLUMN_REF":
            mention = self._referred(tuple(arguments[0]["column_names"]), place)[1]
        elif named := _text(arguments[0]):
            account, _, name = named.rpartition("/")
            mention = self._referred(("accounts", account, name) if account else (name,), place)[1]
        known = arguments[1] is None or (pattern is not None and _is_filter(pattern))
        if mention is None or mention.view is not None or not known or len(arguments) > 4:
            raise BadSql("last takes a stream, and subjects: last(ORDERS), last(ORDERS, 'eu.>')", self._text, place)
        return msgspec.structs.replace(mention, last=(), pattern=pattern or "", place=place)

    def _references(self, sql: str, tree: dict[str, Any], place: Callable[[int], int]) -> tuple[TableReference, ...]:
        found = self._tokens if sql == self._part else significant(sql)
        numbers = {token.start: number for number, token in enumerate(found)}
        tables, columns = list[dict[str, Any]](), list[dict[str, Any]]()
        shown, selects = set[int](), dict[int, dict[str, Any]]()
        for node, is_named in nodes(tree):
            kind = node.get("type")
            if (kind == "BASE_TABLE" and not is_named) or (kind == "TABLE_FUNCTION" and _is_last(node)):
                tables.append(node)
            elif kind == "COLUMN_REF" and len(node["column_names"]) > 2:
                columns.append(node)
            elif kind == "SELECT_NODE":
                selects[id(node["from_table"])] = node
            elif kind == "SHOW_REF" and _is_bare(node["query"]):
                shown.add(id(node["query"]["from_table"]))
        references = list[TableReference]()
        for node in tables:
            number = numbers.get(characters(sql, node["query_location"]), len(found))
            mention: Mention | None
            if node["type"] == "TABLE_FUNCTION":
                names: tuple[str, ...] = (LAST,)
                mention = self._last(node["function"], place(found[number].start))
                last = (closing(found, number + 1) or len(found)) - 1
            else:
                names = tuple(str(node[key]) for key in ("catalog_name", "schema_name", "table_name") if node[key])
                last = number + 2 * len(names) - 2
                if last >= len(found) or found[last].name.lower() != names[-1].lower():
                    continue  # DuckDB's own, such as the table of a SHOW
                names, mention = self._referred(names, place(found[last].start))
            if mention is None:
                continue
            mention = _narrowed(mention, node, selects.get(id(node)))
            is_table = number > 0 and found[number - 1].is_word("TABLE")
            start, end = found[number - is_table].start, found[last].end
            before = "FROM " if is_table or id(node) in shown else ""
            behind = "" if node["alias"] else f" AS {doubled(names[-1])}"
            edits = list[Edit]()
            for column in columns if len(names) > 1 else []:
                at = numbers.get(characters(sql, column["query_location"]))
                own = [name.lower() for name in column["column_names"][: len(names)]]
                if at is not None and own == [name.lower() for name in names]:
                    edits.append(Edit(found[at].start, found[at + 2 * len(names) - 2].start, ""))
            references.append(TableReference(mention, start, end, before, behind, tuple(edits)))
        return tuple(sorted(references, key=lambda each: each.start))

    def _referred(self, names: tuple[str, ...], place: int) -> tuple[tuple[str, ...], Mention | None]:
        """Return the mention that names in the query stand for, and the names as they were written."""
        if len(names) == 2 and names[0] == AS_OF:
            known = {f"m{number}": each for number, each in enumerate(self._travels, 1)}
            return known.get(names[1], (names, None))
        mention, moment = mentioned(names, None, place), self._given.as_of
        if mention is None or moment is None:
            return names, mention
        travel = Travel("MESSAGES", _literal(moment), moment if isinstance(moment, str) else None)
        return names, msgspec.structs.replace(mention, travel=travel)


def mentioned(names: tuple[str, ...], travel: Travel | None, place: int) -> Mention | None:
    """Return the table of the lake that names with dots between them mean; None if they are DuckDB's to know."""
    first, last = names[0].lower() if names else "", names[-1] if names else ""
    if len(names) == 1:
        return Mention(f"{paths.STREAMS}/{last}", travel, place, bare=True)
    if len(names) == 3 and first == "accounts":
        return Mention(f"{paths.ACCOUNTS}/{paths.directory_name(names[1])}/{paths.STREAMS}/{last}", travel, place)
    if len(names) != 2:
        return None
    if first == "delta":
        return Mention(last, travel, place)
    if first == "misfits":
        return Mention(f"{paths.STREAMS}/{last}", travel, place, view="misfits")
    view = next((view for view in buckets.VIEWS if first == view), None)
    if view is None:
        return None
    if travel is not None:  # its times are those of messages, its versions are revisions
        kind: Literal["MESSAGES", "SEQUENCE"] = "SEQUENCE" if travel.kind == "VERSION" else "MESSAGES"
        travel = msgspec.structs.replace(travel, kind=kind)
    return Mention(buckets.stream_of(view, last), travel, place, view=view)


_NOWHERE = (1 << 64) - 1


def _is_bare(query: dict[str, Any] | None) -> bool:
    """Return True for the query of DESCRIBE with a name alone."""
    chosen: list[dict[str, Any]] = query.get("select_list", []) if query is not None else []
    return bool(chosen) and chosen[0]["query_location"] == _NOWHERE


def closing(found: list[SqlToken], at: int) -> int | None:
    """Return the number of the token behind the parenthesis that closes the one at `at`; None if none does."""
    for number, depth in enumerate(itertools.accumulate(token.depth for token in found[at:])):
        if depth == 0:
            return at + number + 1
    return None


def _is_last(node: dict[str, Any]) -> bool:
    """Return True for a call of the table function `last`."""
    call = node["function"]
    return call.get("function_name") == LAST and not call.get("schema") and not call.get("catalog")


def _narrowed(mention: Mention, table: dict[str, Any], select: dict[str, Any] | None) -> Mention:
    """Return the mention with the subjects that the query can want of it.

    Args:
        select: the SELECT that reads this table alone, if there is one.
    """
    of_bucket = mention.view == "kv" and mention.travel is None
    if of_bucket or mention.pattern:
        mention = msgspec.structs.replace(mention, last=("$KV.>" if of_bucket else mention.pattern,))
    if select is None or select["sample"] or table["sample"]:
        return mention
    column, prefix = ("key", "$KV.*.") if mention.view == "kv" else ("subject", "")
    own = [[column], [str(table["alias"] or table.get("table_name") or LAST).lower(), column]]
    equal, begun = _wanted(select["where_clause"], own)
    if mention.view is None:
        subject = equal[0] if len(equal) == 1 else None
        mention = msgspec.structs.replace(mention, subject=subject, counted=_reads_no_column(select))
    filters = tuple(prefix + value for value in (equal or begun))
    if mention.last is None or not filters or len(filters) > MAX_FILTERS:
        return mention
    return msgspec.structs.replace(mention, last=filters) if all(map(_is_filter, filters)) else mention


_OF_COLUMNS = ("COLUMN_REF", "STAR", "POSITIONAL_REFERENCE")


def _reads_no_column(select: dict[str, Any]) -> bool:
    """Return True for a SELECT over one table that wants only the number of its rows: `SELECT count(*) FROM ORDERS`."""
    rest = {name: value for name, value in select.items() if name not in ("type", "from_table")}
    return all(node.get("class") not in _OF_COLUMNS and node.get("type") != "SELECT_NODE" for node, _ in nodes(rest))


def _wanted(where: dict[str, Any] | None, own: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return the values that a column is compared with in `column = '…' AND …` or `column IN ('…')`, and the NATS
    filter for the values that begin as `column LIKE 'eu.%'` says. `own`: spellings of the column."""
    begun, conditions = list[str](), [where] if where is not None else []
    while conditions:
        each = conditions.pop()
        name, children = each.get("function_name"), each.get("children") or []
        if each["type"] == "CONJUNCTION_AND":
            conditions += children
        elif each["type"] == "COMPARE_EQUAL":
            children = [each["left"], each["right"]]
            column, value = children if children[0]["type"] == "COLUMN_REF" else children[::-1]
            if _names(column) in own and (text := _text(value)) is not None:
                return [text], []
        elif each["type"] == "COMPARE_IN" and _names(children[0]) in own:
            values = [_text(value) for value in children[1:]]
            if None not in values:
                return [value for value in values if value is not None], []
        elif name in ("~~", "starts_with", "prefix", "^@") and _names(children[0]) in own:
            head = _text(children[1]) or ""
            if name == "~~":
                head = head[: min(at if (at := head.find(mark)) >= 0 else len(head) for mark in "%_")]
            begun = [f"{head.rpartition('.')[0]}.>"] if "." in head else begun
    return [], begun


def _names(column: dict[str, Any]) -> list[str]:
    return [name.lower() for name in column.get("column_names", ())]


def _text(value: dict[str, Any] | None) -> str | None:
    """Return the value of a constant text; None for anything else."""
    found = value["value"].get("value") if value is not None and value["type"] == "VALUE_CONSTANT" else None
    return found if isinstance(found, str) else None


def _is_filter(text: str) -> bool:
    return subscribable(text.encode())


MAX_NODES = 1_000_000
"""Nodes of a query's tree that are looked at; one with more is refused."""


def nodes(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the objects of a query's tree; with each, whether it is a table whose name is that of a WITH around it."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node, names = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, names) for each in node if isinstance(each, dict | list)]
            continue
        if node.get("type") == "RECURSIVE_CTE_NODE":
            names |= {str(node["cte_name"]).lower()}
        plain = node.get("type") == "BASE_TABLE" and not node["schema_name"] and not node["catalog_name"]
        yield node, plain and str(node["table_name"]).lower() in names
        for each in (node.get("cte_map") or {}).get("map") or ():
            waiting.append((each["value"], names))
            names |= {str(each["key"]).lower()}
        if node.get("class") != "CONSTANT":  # of which a list of values has many; its parts are no nodes
            inner = (value for key, value in node.items() if key != "cte_map")
            waiting += [(value, names) for value in inner if isinstance(value, dict | list)]
    raise SqlError(NESTED)


def _literal(value: Value) -> str:
    """Return a value as a literal, which may stand behind any token."""
    if value is None or isinstance(value, bool):
        return {None: " NULL ", True: " TRUE ", False: " FALSE "}[value]
    if isinstance(value, str):
        return f" {literal(value)} "
    if isinstance(value, float) and value - value != 0:
        return f" CAST('{value}' AS DOUBLE) "
    return f" ({value!r}) " if value < 0 else f" {value!r} "
