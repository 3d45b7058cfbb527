"""Spark's SQL on stream tables, translated for DuckDB.

Belongs here: parsing a query text into statements, and rewriting one into DuckDB's dialect. Pure: a function that the
caller passes in resolves tables' names.

sqlglot transpiles most by itself. Added are the names of tables (``delta.`streams/ORDERS` `` with TIMESTAMP AS OF and
VERSION AS OF, and the function as_of) and Spark's treatment of binary columns: a stream's `data` is binary, CAST(data
AS STRING) decodes UTF-8, and get_json_object and from_json give NULL for invalid JSON, where DuckDB would print escapes
or fail.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

import msgspec
import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.parsers.spark import SparkParser

from lakestream.lake.errors import LakeError
from lakestream.lake.sql import buckets
from lakestream.lake.sql.buckets import View
from lakestream.lake.table.schema import literal

DIALECT = "spark"
MACROS = (
    # typeof() is constant for a column, so that DuckDB keeps only the branch that applies.
    "CREATE MACRO spark_string(x) AS CASE typeof(x) WHEN 'BLOB' THEN decode(TRY_CAST(x AS BLOB), 'replace') "
    "ELSE CAST(x AS VARCHAR) END",
    "CREATE MACRO spark_json(x) AS TRY_CAST(spark_string(x) AS JSON)",
    # DuckDB lacks this function, which is useful for subjects.
    "CREATE MACRO substring_index(s, d, n) AS array_to_string(CASE WHEN n > 0 THEN string_split(s, d)[:n] "
    "WHEN n < 0 THEN string_split(s, d)[greatest(n, -len(string_split(s, d))):] ELSE [] END, d)",
)
"""DuckDB macros that rewritten queries use; the session creates them once."""


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


class Travel(msgspec.Struct, frozen=True):
    """VERSION AS OF, TIMESTAMP AS OF, MESSAGES (the time of as_of) or SEQUENCE (the revision of a bucket). `value` is
    its expression in DuckDB's SQL; `text` is a time that is written out, which may be more exact than DuckDB's
    times."""

    kind: Literal["VERSION", "TIMESTAMP", "MESSAGES", "SEQUENCE"]
    value: str
    text: str | None = None


class Mention(msgspec.Struct, frozen=True):
    """A table as a query mentions it.

    `name`: as written between the backticks after `delta.`, or as the argument of as_of. `place`: its offset in the
    query text. `subject`: the only subject whose rows the query can want of it, where that is obvious. `view`: the
    table of a bucket or an object store (buckets.py) over the stream of that name.
    """

    name: str
    travel: Travel | None = None
    place: int = 0
    subject: str | None = None
    view: View | None = None


class TableAt(msgspec.Struct, frozen=True):
    """A Delta table at a version, to replace a mention; where DuckDB cannot read it, the view of this name."""

    path: str
    version: int
    view: str = ""


class Selection(msgspec.Struct, frozen=True):
    """A SELECT in DuckDB's SQL, to replace a mention."""

    sql: str


Value = bool | int | float | str | None
"""A value of a parameter."""


class Bindings(msgspec.Struct, frozen=True):
    """Values that a query gets beside its text.

    `parameters`: of `:name` by name; the first `?` of a text has the name 1. `unbound`: those without a value are NULL.
    `as_of`: a time, as the second argument of as_of; every stream without a time of
    its own is read as of it. None: as it is now.
    """

    parameters: Mapping[str, Value] = {}
    as_of: int | str | None = None
    unbound: bool = False


NO_BINDINGS = Bindings()
Timestamps = Literal["commit", "message"]
"""Meaning of TIMESTAMP AS OF on a stream's table: time of commits, as in Delta, or of messages, as in as_of."""
NESTED = "the query is nested too deeply; split it with WITH, or into several queries"
ARGUMENTS = "a function has other arguments than it takes"
Locate = Callable[[Mention], TableAt | Selection]
"""Resolves a mentioned table; raises SqlError."""
AS_OF = "as_of"


class Statement(msgspec.Struct, frozen=True):
    """One statement of a text: its kind, and its part of the text (it starts at `offset`)."""

    kind: Literal["query", "describe", "history", "tables", "explain"]
    text: str
    offset: int
    tree: exp.Expression


def excerpt(text: str, offset: int) -> str:
    """Return the line of `text` that holds `offset`, with a mark under the place."""
    offset = min(offset, len(text))
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : len(text) if end < 0 else end]
    number = text.count("\n", 0, offset) + 1
    return f"  line {number}, column {offset - start + 1}:\n  {line}\n  {' ' * (offset - start)}^"


def split(text: str) -> tuple[list[tuple[str, int]], str]:
    """Cut a text at its semicolons, respecting quotes and comments.

    Returns:
        The complete statements as (text, offset), and the rest after the last semicolon: "" when it has only blanks and
            comments; a statement with an open quote or comment is incomplete and returned as the rest.
    """
    done: list[tuple[str, int]] = []
    start = 0
    try:
        tokens = sqlglot.tokenize(text, read=DIALECT)
    except TokenError:
        # An open quote takes in everything after it. Statements before it may be complete.
        return _split_before_open_quote(text)
    has_tokens = False
    for token in tokens:
        if token.token_type == sqlglot.TokenType.SEMICOLON:
            if has_tokens:
                done.append((text[start : token.start], start))
            start, has_tokens = token.end + 1, False
        else:
            has_tokens = True
    return done, text[start:] if has_tokens else ""


def _split_before_open_quote(text: str) -> tuple[list[tuple[str, int]], str]:
    done, _ = split(text[: _open_quote(text)])
    behind = done[-1][1] + len(done[-1][0]) + 1 if done else 0
    return done, text[behind:]


def parse(text: str) -> list[Statement]:
    """Parse every statement of a text.

    Raises:
        BadSql: with the place, when it does not parse or does more than read.
    """
    done, rest = split(text)
    if rest:
        done.append((rest, len(text) - len(rest)))
    found = []
    for part, offset in done:
        try:
            found.append(_parse_one(part, offset, text))
        except RecursionError:
            raise BadSql(NESTED, text, offset) from None
    return found


def _parse_one(part: str, offset: int, text: str) -> Statement:
    if (words := part.split(None, 2)) and words[0].upper() == "EXPLAIN":
        start = part.index(words[0]) + len(words[0])
        inner = _parse_one(part[start:], offset + start, text)
        if inner.kind != "query":
            raise BadSql("EXPLAIN takes a query", text, offset + start + 1)
        return Statement("explain", part, offset, inner.tree)
    if [word.upper() for word in words] == ["SHOW", "TABLES"]:
        return Statement("tables", part, offset, exp.Show(name="TABLES"))
    tree = _tree(part, offset, text)
    if isinstance(tree, exp.Describe):
        kind: Literal["history", "describe"] = "history" if tree.args.get("style") == "HISTORY" else "describe"
        if not isinstance(tree.this, exp.Table):
            raise BadSql("DESCRIBE takes a table", text, offset)
        return Statement(kind, part, offset, tree)
    if isinstance(tree, exp.Query | exp.Values):
        return Statement("query", part, offset, tree)
    raise BadSql(
        "a statement here is SELECT, WITH, VALUES, DESCRIBE, DESCRIBE HISTORY, SHOW TABLES or EXPLAIN; streams change "
        "through NATS",
        text,
        offset + len(part) - len(part.lstrip()),
    )


_OF_SQLGLOT = (AttributeError, LookupError, TypeError, ValueError, SqlglotError)
"""Errors of sqlglot, which takes the arguments of most functions as they come: those it needs may be missing."""


def _tree(part: str, offset: int, text: str) -> exp.Expression:
    try:
        tree = _parsed(part, text[:offset].count("?") if "?" in part else 0)
    except ParseError as error:
        raise _bad(error, part, offset, text) from None
    except TokenError:
        raise BadSql("a quote or comment is not closed", text, _open_quote(part) + offset) from None
    except SqlglotError as error:
        raise BadSql(str(error), text, offset) from None
    except _OF_SQLGLOT:
        raise BadSql(ARGUMENTS, text, offset + len(part) - len(part.lstrip())) from None
    assert isinstance(tree, exp.Expression)
    for version in tree.find_all(exp.Version):
        if version.expression is None:
            table = version.find_ancestor(exp.Table)
            place = int(table.this.meta.get("start", 0)) if table is not None else 0
            raise BadSql("AS OF needs a version or a time behind it", text, offset + place)
    return tree


class _Parser(SparkParser):
    """Parser that names the parameters `?` by the text of their tokens."""

    PLACEHOLDER_PARSERS: ClassVar = {
        **SparkParser.PLACEHOLDER_PARSERS,
        TokenType.PLACEHOLDER: lambda self: self.expression(exp.Placeholder(this=self._prev.text)),
    }


def _parsed(part: str, before: int) -> exp.Expr:
    """Return the tree of a statement, in which each `?` is a parameter with a number. Raises SqlglotError.

    Args:
        before: the number of parameters before it.
    """
    if "?" not in part:
        return sqlglot.parse_one(part, read=DIALECT)
    dialect = sqlglot.Dialect.get_or_raise(DIALECT)
    tokens: list[Token] = []
    number = before
    for token in dialect.tokenize(part):
        if token.token_type is not TokenType.PLACEHOLDER:
            tokens.append(token)
            continue
        number += 1
        tokens.append(Token(token.token_type, str(number), token.line, token.col, token.start, token.end))
    (tree,) = _Parser(dialect=dialect).parse(tokens, part)
    if tree is None:
        raise ParseError(f"No expression was parsed from {part!r}")
    return tree


def _bad(error: ParseError, part: str, offset: int, text: str) -> BadSql:
    first = error.errors[0] if error.errors else {}
    reason = re.sub(r" but got <Token .*", "", str(first.get("description") or error), flags=re.DOTALL).rstrip(".")
    if reason.startswith("Required keyword"):
        reason = "something is missing here"
    elif reason.startswith("Invalid expression"):
        reason = "did not expect this here"
    line, column, word = first.get("line"), first.get("col"), first.get("highlight") or ""
    if line is None or column is None:
        return BadSql(reason, text, offset + len(part) - len(part.lstrip()))
    # sqlglot counts from 1 and names the last character of the word.
    before = sum(len(earlier) for earlier in part.splitlines(keepends=True)[: line - 1])
    return BadSql(f"{reason}: {word!r}" if word else reason, text, offset + max(before + column - len(word), 0))


def _open_quote(part: str) -> int:
    """Return the start of the quote or comment that is not closed; 0 if it cannot be told."""
    try:
        sqlglot.tokenize(part, read=DIALECT)
    except TokenError as error:
        # For a quote sqlglot names the place. A comment begins at the last `/*` before which all is closed.
        if named := _MISSING.fullmatch(str(error.__cause__)):
            return int(named[1])
    starts = [found.start() for found in re.finditer(r"/\*", part)]
    for start in starts[: -MAX_COMMENTS - 1 : -1]:
        with contextlib.suppress(TokenError):
            sqlglot.tokenize(part[:start], read=DIALECT)
            return start
    return 0


def bound(statements: list[Statement], bindings: Bindings, text: str) -> list[Statement]:
    """Return the statements with the values of parameters in the place of their names.

    A value becomes a literal of the parsed query: no text of a value is ever parsed.

    Raises:
        BadSql: parameters and values do not agree.
    """
    used = set[str]()
    changed = []
    for statement in statements:
        tree = statement.tree.copy()
        for mark in list(tree.find_all(exp.Placeholder)):
            name = str(mark.this or "")
            if name not in bindings.parameters and not bindings.unbound:
                raise BadSql(f"the parameter :{name} has no value", text)
            used.add(name)
            mark.replace(exp.convert(bindings.parameters.get(name)))
        if bindings.as_of is not None and statement.kind in ("query", "explain"):
            _set_time(tree, bindings.as_of)
        changed.append(msgspec.structs.replace(statement, tree=tree))
    if left := sorted(bindings.parameters.keys() - used):
        raise BadSql(f"the query has no parameter :{left[0]}", text)
    return changed


def parameters(statements: list[Statement]) -> list[str]:
    """Return the names of the parameters of some statements: numbers in their order, then names in that of the
    alphabet."""
    marks = (mark for statement in statements for mark in statement.tree.find_all(exp.Placeholder))
    found = {str(mark.this or "") for mark in marks}
    return sorted(found, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))


def _set_time(tree: exp.Expression, moment: int | str) -> None:
    """Let every table without a time of its own be read as of a moment."""
    names = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier) or table.args.get("version") is not None:
            continue
        if not table.db and table.name in names:
            continue
        if _view(table) is not None:
            table.set("version", exp.Version(this="TIMESTAMP", kind="AS OF", expression=exp.convert(moment)))
            continue
        name = mentioned(table).name
        if table.args.get("alias") is None:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        table.set("this", exp.Anonymous(this=AS_OF, expressions=[exp.Literal.string(name), exp.convert(moment)]))
        table.set("db", None)


_MISSING = re.compile(r"Missing .+ from \d+:(\d+)")
MAX_COMMENTS = 16
"""Maximum number of places at which a comment that is not closed is looked for."""


def rewrite(statement: Statement, locate: Locate) -> str:
    """Return the statement in DuckDB's SQL.

    Args:
        statement: a query, or the query of an EXPLAIN, or a DESCRIBE.
        locate: called once for each mentioned table.

    Raises:
        SqlError: from `locate`, for a table that is not written as a Delta table, for a query that is nested too
            deeply, or for a function without the arguments that it needs.
    """
    try:
        return _rewritten(statement, locate)
    except RecursionError:
        raise SqlError(NESTED) from None


def _rewritten(statement: Statement, locate: Locate) -> str:
    tree = statement.tree.copy()
    if isinstance(tree, exp.Describe):
        tree = exp.select("*").from_(tree.this)
    with _refusing():
        for select in list(tree.find_all(exp.Select)):
            _name_columns(select)
    names = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if isinstance(table.this, exp.Identifier) and (table.db or table.name not in names):
            _place_table(table, mentioned(table, statement.offset), locate)
        elif _is_as_of(table.this):
            _place_table(table, _as_of(table.this, statement.offset), locate)
    for column in tree.find_all(exp.Column):
        for part in ("catalog", "db"):  # the first one of four names, of which the last is a field of a struct
            if column.text(part).lower() in ("delta", *buckets.VIEWS):
                column.set(part, None)
                break
    with _refusing():
        for node in reversed(list(tree.walk())):  # children before their parents
            if isinstance(node, exp.Expression) and (value := _spark_values(node)) is not node:
                node.replace(value)
        return _PREFIXES.get(statement.kind, "") + tree.sql(dialect="duckdb")


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Context in which sqlglot spells a tree. Raises SqlError in place of its errors, typed or not."""
    try:
        yield
    except _OF_SQLGLOT:
        raise SqlError(ARGUMENTS) from None


_PREFIXES = {"explain": "EXPLAIN ", "describe": "DESCRIBE "}


def query_of(statement: Statement, sql: str) -> str:
    """Return the query of a statement that `rewrite` has put into DuckDB's SQL."""
    return sql.removeprefix(_PREFIXES.get(statement.kind, ""))


def mentions(statement: Statement) -> list[Mention]:
    """Return the tables that a statement mentions. Raises SqlError as `rewrite`."""
    if statement.kind == "history":
        return [mentioned(statement.tree.this, statement.offset)]
    found: list[Mention] = []
    if statement.kind != "tables":
        names = {cte.alias_or_name for cte in statement.tree.find_all(exp.CTE)}
        for table in statement.tree.find_all(exp.Table):
            if isinstance(table.this, exp.Identifier) and (table.db or table.name not in names):
                found.append(mentioned(table, statement.offset))
            elif _is_as_of(table.this):
                found.append(_as_of(table.this, statement.offset))
    return found


def mentioned(table: exp.Table, offset: int = 0) -> Mention:
    """Parse a ``delta.`…` `` reference, or kv.conf. `offset`: where its statement starts in the query text.

    Raises:
        SqlError: it is not the name of a Delta table, a bucket or an object store.
    """
    if (view := _view(table)) is not None:
        return _bucket(table, view, offset)
    if table.db.lower() != "delta" or table.catalog:
        raise SqlError(
            f"unknown table {'.'.join(part.name for part in table.parts)}: "
            f"write the stream's table as delta.`streams/{table.name}`"
        )
    place = offset + int(table.this.meta.get("start", 0))
    return Mention(table.name, _travel(table), place, _only_subject(table))


def _travel(table: exp.Table) -> Travel | None:
    version = table.args.get("version")
    if version is None:
        return None
    kind: Literal["VERSION", "TIMESTAMP"] = "VERSION" if version.name.upper() == "VERSION" else "TIMESTAMP"
    if version.args.get("kind") != "AS OF":
        raise SqlError(f"{kind} {version.args.get('kind')} is not supported; write {kind} AS OF …")
    return Travel(kind, version.expression.sql(dialect="duckdb"), _written(version.expression))


def _view(table: exp.Table) -> View | None:
    """Return the view that a name like kv.conf means."""
    return None if table.catalog else next((view for view in buckets.VIEWS if table.db.lower() == view), None)


def _bucket(table: exp.Table, view: View, offset: int) -> Mention:
    """Parse kv.conf: its times are those of messages, its versions are revisions."""
    travel = _travel(table)
    if travel is not None:
        kind: Literal["MESSAGES", "SEQUENCE"] = "MESSAGES" if travel.kind == "TIMESTAMP" else "SEQUENCE"
        travel = msgspec.structs.replace(travel, kind=kind)
    place = offset + int(table.this.meta.get("start", 0))
    return Mention(buckets.stream_of(view, table.name), travel, place, view=view)


def _is_as_of(node: object) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == AS_OF


def _as_of(call: exp.Anonymous, offset: int) -> Mention:
    """Parse as_of('ORDERS', T)."""
    arguments = call.expressions
    if len(arguments) != 2 or not (isinstance(arguments[0], exp.Literal) and arguments[0].is_string):
        raise SqlError(
            "as_of takes a stream's name and a moment: as_of('ORDERS', '2026-05-01 12:00:00'), or ns since 1970"
        )
    place = offset + int(call.meta.get("start", 0))
    moment = arguments[1]
    table = call.parent
    assert isinstance(table, exp.Table)
    travel = Travel("MESSAGES", moment.sql(dialect="duckdb"), _written(moment))
    return Mention(arguments[0].name, travel, place, _only_subject(table))


def _written(moment: exp.Expression) -> str | None:
    """Return the text of a time that is written out."""
    written = moment.this if isinstance(moment, exp.Cast) and moment.is_type(*_TIMES) else moment
    return written.name if isinstance(written, exp.Literal) and written.is_string else None


_TIMES = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)


def _only_subject(table: exp.Table) -> str | None:
    """Return the subject of `WHERE subject = '…' AND …` over this table alone."""
    select = table.parent_select
    if not isinstance(select, exp.Select) or select.args.get("joins") or select.args.get("laterals"):
        return None
    source, where = select.args.get("from_") or select.args.get("from"), select.args.get("where")
    if (
        where is None
        or source is None
        or source.this is not table
        or table.args.get("joins")
        or table.args.get("sample")
    ):
        return None
    conditions = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
    for condition in conditions:
        if isinstance(condition, exp.EQ):
            for column, value in ((condition.left, condition.right), (condition.right, condition.left)):
                is_subject = isinstance(column, exp.Column) and column.name.lower() == "subject"
                if is_subject and isinstance(value, exp.Literal) and value.is_string:
                    return value.name
    return None


def _place_table(table: exp.Table, mention: Mention, locate: Locate) -> None:
    """Replace a table by its relation: joins, samples and aliases stay where they are."""
    found = locate(mention)
    alias = table.args.get("alias")
    # Spark lets an unaliased table's columns be qualified by its path, or its name.
    name = AS_OF if _is_as_of(table.this) else table.name if mention.view else mention.name
    if alias is None:
        alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True))
    elif alias.this is None:
        alias.set("this", exp.to_identifier(name, quoted=True))
    # DuckDB inlines the SELECT into the query. It leaves out the virtual columns of a table, which name files of this
    # machine (`filename`) or make DuckDB fail for good (`rowid`).
    source = exp.Anonymous(this="query", expressions=[exp.Literal.string(rows_of(found))])
    table.set("this", source)
    table.set("db", None)
    table.set("version", None)
    table.set("alias", alias)


def _name_columns(select: exp.Select) -> None:
    """Name a computed column by the text that the user wrote, not by the rewritten one."""
    for column in select.expressions:
        if not isinstance(column, exp.Column | exp.Alias | exp.Aliases | exp.Star | exp.Subquery | exp.UDTF):
            name = column.sql(dialect=DIALECT, normalize_functions="lower")
            column.replace(exp.alias_(column.copy(), name, quoted=True))


def _spark_values(node: exp.Expression) -> exp.Expression:
    """Apply Spark's treatment of binary values and of JSON to one node whose children are done."""
    if isinstance(node, exp.Cast) and node.to.this in exp.DataType.TEXT_TYPES:
        return node.this if isinstance(node.this, exp.Literal) and node.this.is_string else _call("string", node.this)
    if isinstance(node, exp.JSONExtractScalar | exp.JSONExtract) and not _is_call(node.this, "json"):
        node.set("this", _call("json", node.this))
    elif isinstance(node, exp.FromJson) or (isinstance(node, exp.Anonymous) and node.name.lower() == "from_json"):
        return _from_json(node)
    return node


def _call(macro: Literal["string", "json"], value: exp.Expression) -> exp.Expression:
    # A copy: the original is about to be replaced and must not be its own descendant.
    value = value.copy()
    return exp.Anonymous(this=f"spark_{macro}", expressions=[value])


def _is_call(node: exp.Expression, macro: Literal["string", "json"]) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == f"spark_{macro}"


def _from_json(node: exp.Expression) -> exp.Expression:
    """Rewrite from_json(value, 'a INT, b STRING') to json_transform with the same type; invalid fields become NULL."""
    arguments = node.expressions if isinstance(node, exp.Anonymous) else [node.this, node.expression]
    if len(arguments) != 2 or not (isinstance(arguments[1], exp.Literal) and arguments[1].is_string):
        raise SqlError("from_json takes two arguments here: a value and a schema as text, such as 'a INT, b STRING'")
    shape = _schema(arguments[1].name)
    structure = json.dumps(shape.sql(dialect="duckdb"), ensure_ascii=False)
    return exp.Anonymous(
        this="json_transform", expressions=[_call("json", arguments[0]), exp.Literal.string(structure)]
    )


def _schema(text: str) -> exp.DataType:
    """Parse a Spark schema: columns as in a CREATE TABLE, or one type."""
    for kind in (text, f"STRUCT<{text}>"):
        try:
            # As part of a CAST: DataType.build accepts unknown types.
            cast = sqlglot.parse_one(f"CAST(x AS {kind})", read=DIALECT)
        except SqlglotError:
            continue
        if isinstance(cast, exp.Cast):
            for column in cast.to.find_all(exp.ColumnDef):
                column.set("constraints", None)  # NOT NULL and COMMENT say nothing about how to read
            return cast.to
    raise SqlError(f"from_json does not understand the schema {text!r}; write it as in 'a INT, b ARRAY<STRING>'")


def rows_of(found: TableAt | Selection) -> str:
    """Return the query for all rows of a relation."""
    return f"SELECT * FROM {scan(found)}" if isinstance(found, TableAt) else found.sql


def scan(table: TableAt) -> str:
    """Return the relation with which DuckDB reads a table at a version."""
    if table.view:
        return table.view
    return f"delta_scan({literal(table.path)}, version = {table.version})"
