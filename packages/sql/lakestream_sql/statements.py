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
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from lakestream.lake.table.schema import doubled, literal
from lakestream_sql import NO_BINDINGS, Bindings, Value, buckets
from lakestream_sql.explained import BadSql, DuckdbError, advised, is_sparks
from lakestream_sql.mentions import (
    LAST,
    Locate,
    Mention,
    Travel,
    constant_text,
    is_bare,
    is_filter,
    is_last,
    mentioned,
    narrowed,
    of_stream,
)
from lakestream_sql.parser import SqlParser, Unparsed, characters, nodes
from lakestream_sql.tokens import Edit, Edited, SqlToken, closing, significant, split, tokens

AS_OF = "as_of"


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
            relation = f"{each.before}query({literal(found)}){each.behind}"
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

    def _ends_name(self, before: SqlToken) -> bool:
        """Return True if an alias may stand behind a token: AS, or a name."""
        is_word = before.kind == "word" and before.text.upper() not in self._parser.before_values
        return is_word or before.kind in ("quoted", "ticked") or before.is_word("AS")

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
                if at and self._ends_name(found[at - 1]):
                    raise self._bad("the time stands before the alias: ORDERS VERSION AS OF 3 AS o", token)
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
            named, comma = Mention(name.name and of_stream(name.name)), at + 3
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
        pattern, mention = constant_text(arguments[1]), None
        if arguments[0] is not None and arguments[0]["type"] == "COLUMN_REF":
            mention = self._referred(tuple(arguments[0]["column_names"]), place)[1]
        elif named := constant_text(arguments[0]):
            account, _, name = named.rpartition("/")
            mention = self._referred(("accounts", account, name) if account else (name,), place)[1]
        known = arguments[1] is None or (pattern is not None and is_filter(pattern))
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
            if (kind == "BASE_TABLE" and not is_named) or (kind == "TABLE_FUNCTION" and is_last(node)):
                tables.append(node)
            elif kind == "COLUMN_REF" and len(node["column_names"]) > 2:
                columns.append(node)
            elif kind == "SELECT_NODE":
                selects[id(node["from_table"])] = node
            elif kind == "SHOW_REF" and is_bare(node["query"]):
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
            mention = narrowed(mention, node, selects.get(id(node)))
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


def _literal(value: Value) -> str:
    """Return a value as a literal, which may stand behind any token."""
    if value is None or isinstance(value, bool):
        return {None: " NULL ", True: " TRUE ", False: " FALSE "}[value]
    if isinstance(value, str):
        return f" {literal(value)} "
    if isinstance(value, float) and value - value != 0:
        return f" CAST('{value}' AS DOUBLE) "
    return f" ({value!r}) " if value < 0 else f" {value!r} "
